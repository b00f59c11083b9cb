# diff.py with 200 random layouts.
exec python3 "$(dirname "$0")/diff.py" --slow
