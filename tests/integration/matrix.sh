# A quick part of the matrix of layouts, and the mistakes that it must see.
set -eu
matrix=$DITTO_BUILD_DIR/tests/ditto_matrix
$matrix --table core
$matrix --table faults
$matrix --table faults --diff --only fp64  # each is named by unit, op and tensor
$matrix --table core --diff --only "one number"  # and layouts without one are the same (of all the core: matrix_slow.sh)

# Results that are kept are of one build.
kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
$matrix --steps 1 --layout recompute=blocks --keep "$kept"
echo "another build" >"$kept/build"
if $matrix --steps 1 --layout recompute=blocks --keep "$kept" 2>"$kept/error"; then
  echo "FAIL: the results of another build were taken for this one's"
  exit 1
fi
grep "has results of another build" "$kept/error"
