# All of dry_run.py.
exec python3 "$(dirname "$0")/dry_run.py" --slow
