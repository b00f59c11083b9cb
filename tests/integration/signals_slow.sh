# All of signals.py.
exec python3 "$(dirname "$0")/signals.py" --slow
