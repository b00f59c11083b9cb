# hostile_files.py, with Python alone.
exec python3 "$(dirname "$0")/hostile_files.py" "$@"
