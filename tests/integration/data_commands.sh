# `ditto data prepare | inspect | verify` as a user runs them, with the exit codes they promise.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "FAILED: $*" >&2; exit 1; }
expect() {  # expect CODE TEXT COMMAND…: the exit code, and TEXT in what is printed
  local code=$1 text=$2 got=0
  shift 2
  "$@" >"$work/out" 2>&1 || got=$?
  [ "$got" = "$code" ] || fail "exit code $got, expected $code: $* ($(cat "$work/out"))"
  grep -qF -- "$text" "$work/out" || fail "no \"$text\" from: $* ($(cat "$work/out"))"
}

table=$DITTO_SOURCE_DIR/tests/unit/table.csv.gz
expect 0 "50 samples to train on, 0 held out" "$DITTO" data prepare "$table" --shape 2x2 --largest 16 --out "$work/shards"
expect 0 '"samples": 50' "$DITTO" data inspect "$work/shards" --json
expect 0 "50 samples" "$DITTO" data verify "$work/shards"
expect 2 "is there already" "$DITTO" data prepare "$table" --shape 2x2 --largest 16 --out "$work/shards"
expect 2 "a row holds 4 values" "$DITTO" data prepare "$table" --shape 3x3 --out "$work/other"
expect 4 "row 5, column 5: value 16.0 is outside" \
  "$DITTO" data prepare "$table" --shape 2x2 --label first --largest 15 --out "$work/other"
expect 2 "holds no .tar" "$DITTO" data inspect "$work/other"
expect 4 "nowhere.tar" "$DITTO" data verify "$work/nowhere.tar"

shard=$work/shards/train-000000.tar
truncate -s 5000 "$shard"
expect 4 "problem: $shard" "$DITTO" data verify "$shard"
echo "not a tar" >"$work/no.tar"
expect 4 "$work/no.tar" "$DITTO" data verify "$work/no.tar"

expect 0 "176 samples" "$DITTO" data verify "$DITTO_SOURCE_DIR/data/digits"

mkdir -p "$work/photos/cat" "$work/photos/dog" "$work/photos/.ipynb_checkpoints"
formats=$DITTO_SOURCE_DIR/tests/golden/formats
cp "$formats/oriented_6.jpg" "$work/photos/cat/a.jfif"
cp "$formats/rgb.png" "$work/photos/dog/b"
cp "$formats/rgb.png" "$work/photos/.ipynb_checkpoints/b-checkpoint.png"
echo BM >"$work/photos/dog/c.bmp"
echo junk >"$work/photos/dog/._b.jpg"
expect 0 "2 samples to train on, 0 held out, 2 classes" "$DITTO" data prepare "$work/photos" --out "$work/classes"
grep -qF "left out: .bmp, not PNG, JPEG or WebP (1): dog/c.bmp" "$work/out" || fail "no word of c.bmp: $(cat "$work/out")"
grep -qF "a system or tool (2): .ipynb_checkpoints, dog/._b.jpg" "$work/out" || fail "no word of junk: $(cat "$work/out")"
expect 0 '"16 x 8 x 3": 1' "$DITTO" data inspect "$work/classes" --json
