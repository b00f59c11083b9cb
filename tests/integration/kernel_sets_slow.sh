# kernel_sets_slow.py, with Python alone.
exec python3 "$(dirname "$0")/kernel_sets_slow.py" "$@"
