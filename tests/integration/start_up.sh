# start_up.py, with Python alone.
exec python3 "$(dirname "$0")/start_up.py" "$@"
