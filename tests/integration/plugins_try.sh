# plugins_try.py, with Python alone.
exec python3 "$(dirname "$0")/plugins_try.py" "$@"
