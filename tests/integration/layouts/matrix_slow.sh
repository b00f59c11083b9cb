# Every layout against one rank, and some drawn at random; what one has saved, loaded by others; communication against
# closed forms; layouts without a fault are the same to --diff.
# Writes docs/generated/parallelism_matrix.md.
#
# Claim (layouts): What each strategy sends is its closed form, call by call and byte by byte, on 93 layouts
# (of UNets: the maps and live skips that a pipeline sends, and a sum of each block's map along tensor). Also:
# `layout_derivations.md`
#
# Claim (layouts): Layouts drawn at random (axes, options, optimizers, uneven batches, resumes on another layout) train as
# one rank too. Also: `ditto_matrix --table random`
set -eu
matrix=$DITTO_BUILD_DIR/tests/ditto_matrix
failed=0
$matrix --table counts || failed=1
$matrix --table faults || failed=1
$matrix --table checkpoints || failed=1
$matrix --table random || failed=1
$matrix --table device || failed=1
$matrix --table core --diff || failed=1
$matrix --table all --write "$DITTO_SOURCE_DIR/docs/generated/parallelism_matrix.md" || failed=1
exit $failed
