# bad_recipes.py, with Python alone.
exec python3 "$(dirname "$0")/bad_recipes.py" "$@"
