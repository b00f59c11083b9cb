# layout_refusals.py, with Python alone.
exec python3 "$(dirname "$0")/layout_refusals.py" "$@"
