# fp16.py, with Python alone.
exec python3 "$(dirname "$0")/fp16.py" "$@"
