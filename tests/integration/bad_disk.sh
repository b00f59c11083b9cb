# bad_disk.py, with a few of the reads.
exec python3 "$(dirname "$0")/bad_disk.py" "$@"
