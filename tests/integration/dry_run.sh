# dry_run.py, with Python alone.
exec python3 "$(dirname "$0")/dry_run.py" "$@"
