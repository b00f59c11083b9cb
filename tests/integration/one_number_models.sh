# one_number_models.py, with Python alone.
exec python3 "$(dirname "$0")/one_number_models.py" "$@"
