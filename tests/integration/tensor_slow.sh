# All of tensor.py.
exec python3 "$(dirname "$0")/tensor.py" --slow
