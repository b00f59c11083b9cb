# All of ranks.py.
exec python3 "$(dirname "$0")/ranks.py" --slow
