# third_party.py, with Python alone.
exec python3 "$(dirname "$0")/third_party.py" "$@"
