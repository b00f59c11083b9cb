# A quick part of the matrix of layouts, and the mistakes that it must see.
set -eu
matrix=$DITTO_BUILD_DIR/tests/ditto_matrix
$matrix --table core
$matrix --table faults
