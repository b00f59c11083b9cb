# All of third_party.py.
exec python3 "$(dirname "$0")/third_party.py" --slow
