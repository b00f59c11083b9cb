# one_number.py, with Python alone.
exec python3 "$(dirname "$0")/one_number.py" "$@"
