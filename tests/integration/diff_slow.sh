# diff.py with 200 random layouts, and the core of the matrix: layouts without a fault are the same.
set -eu
python3 "$(dirname "$0")/diff.py" --slow
"$DITTO_BUILD_DIR/tests/ditto_matrix" --table core --diff
