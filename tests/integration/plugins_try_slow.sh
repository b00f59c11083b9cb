# plugins_try.py with every mistake.
exec python3 "$(dirname "$0")/plugins_try.py" --slow
