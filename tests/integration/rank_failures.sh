# rank_failures.py, with Python alone.
exec python3 "$(dirname "$0")/rank_failures.py" "$@"
