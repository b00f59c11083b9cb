# one_number_bf16_slow.py, with Python alone.
exec python3 "$(dirname "$0")/one_number_bf16_slow.py" "$@"
