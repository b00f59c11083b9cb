# All of sampling.py.
exec python3 "$(dirname "$0")/sampling.py" --slow
