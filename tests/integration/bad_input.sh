# bad_input.py, with Python alone.
exec python3 "$(dirname "$0")/bad_input.py"
