# signals.py, with Python alone.
exec python3 "$(dirname "$0")/signals.py" "$@"
