# A quick part of the matrix of layouts, and the mistakes that it must see.
#
# Claim (layouts): Every parallel layout, alone and composed, on four models, 28 of them on nine more, and 14 that cut no
# tokens on three UNets, with dropout too (where a model refuses one, by its words): losses, norms, gradients, weights, EMA,
# optimizer states and validation are one rank's to 1e-12 in fp64, and along the data and pipeline axes and with
# recomputation its bits in fp32. Also: all of it in `matrix_slow.sh`,
# `parallelism_matrix.md`
#
# Claim (layouts): That comparison sees 16 planted mistakes (a gradient summed twice, heads swapped, noise by rank, a norm over
# a rank's channels, a skip added twice, …), in fp64, fp32 and bf16. Also: the last two in `matrix_slow.sh`
#
# Claim (networks): Tokens that `[tread]` leads around blocks are the same on every layout: losses, norms, gradients and
# weights to 1e-12 in fp64, one hash under `run.numerics = "one"`; in packs, buckets and pipelines too; against blocks run by
# hand on the kept tokens; what cannot lose tokens is refused by name. Also: `one_number_models.py`, `tread.py`,
# `token_route_test.cpp`
set -eu
matrix=$DITTO_BUILD_DIR/tests/ditto_matrix
$matrix --table core
$matrix --table faults --only fp64  # in fp32 and bf16: matrix_slow.sh
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
