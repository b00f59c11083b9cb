# The digits of the repository are what `ditto data prepare` makes of scikit-learn's table, byte for byte.
#
# Claim (data): The digits in the repository are scikit-learn's, byte for byte as `ditto data prepare` makes them.
set -euo pipefail
table=$("$DITTO_PEERS" -c 'import os, sklearn.datasets.data as d; print(os.path.join(d.__path__[0], "digits.csv.gz"))' 2>/dev/null) ||
  { echo "not run: scikit-learn is not there; ./dev peers fetches it"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$DITTO" data prepare "$table" --shape 8x8 --largest 16 --validation 0.1 --shard-samples 500 --out "$work"
for shard in "$DITTO_SOURCE_DIR"/data/digits/*.tar; do
  cmp "$shard" "$work/$(basename "$shard")"
done
[ "$(ls "$work"/*.tar | wc -l)" = "$(ls "$DITTO_SOURCE_DIR"/data/digits/*.tar | wc -l)" ]
