# All of kill.py.
exec python3 "$(dirname "$0")/kill.py" --slow
