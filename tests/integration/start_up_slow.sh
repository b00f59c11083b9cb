# All of start_up.py.
exec python3 "$(dirname "$0")/start_up.py" --slow
