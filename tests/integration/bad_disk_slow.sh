# bad_disk.py, with every read.
exec python3 "$(dirname "$0")/bad_disk.py" --slow
