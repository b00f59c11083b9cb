# All of promise.py.
exec python3 "$(dirname "$0")/promise.py" --slow
