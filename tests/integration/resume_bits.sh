# resume_bits.py, with Python alone.
exec python3 "$(dirname "$0")/resume_bits.py" "$@"
