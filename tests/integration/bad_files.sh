# bad_files.py, with Python alone.
exec python3 "$(dirname "$0")/bad_files.py" "$@"
