# All of layouts.py.
exec python3 "$(dirname "$0")/layouts.py" --slow
