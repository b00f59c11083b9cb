# hostile_names.py, with Python alone.
exec python3 "$(dirname "$0")/hostile_names.py" "$@"
