# `ditto data prepare | inspect | verify | split` as a user runs them, with the exit codes they promise.
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

table=$DITTO_SOURCE_DIR/tests/support/table.csv.gz
expect 0 "50 samples to train on, 0 held out" "$DITTO" data prepare "$table" --shape 2x2 --largest 16 --out "$work/shards"
expect 0 '"samples": 50' "$DITTO" data inspect "$work/shards" --json
expect 0 "50 samples" "$DITTO" data verify "$work/shards"
cp -r "$work/shards" "$work/again"
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
echo "<svg>" >"$work/photos/dog/c.svg"
echo junk >"$work/photos/dog/._b.jpg"
expect 0 "2 samples to train on, 0 held out, 2 classes" "$DITTO" data prepare "$work/photos" --out "$work/classes"
grep -qF "left out: .svg, not PNG, JPEG, WebP, AVIF, TIFF, GIF or BMP (1): dog/c.svg" "$work/out" || fail "no word of c.svg: $(cat "$work/out")"
grep -qF "a system or tool (2): .ipynb_checkpoints, dog/._b.jpg" "$work/out" || fail "no word of junk: $(cat "$work/out")"
expect 0 '"16 x 8 x 3": 1' "$DITTO" data inspect "$work/classes" --json
grep -qF '"classes": {' "$work/out" && grep -qF '"0": "cat"' "$work/out" || fail "no name of a class: $(cat "$work/out")"
expect 0 "cat/a.jfif" "$DITTO" data inspect "$work/classes" --names
expect 0 "1:2 #" "$DITTO" data inspect "$work/classes" --sheet "$work/sheet.png"
[ "$(head -c 4 "$work/sheet.png" | tail -c 3)" = PNG ] || fail "no contact sheet"
(cd "$work/classes" && sha256sum --quiet -c SHA256SUMS) || fail "SHA256SUMS does not hold"

expect 0 "2 samples" "$DITTO" data verify "$work/classes"
printf x | dd of="$work/classes/train-000000.tar" bs=1 seek=700 conv=notrunc status=none
expect 4 "has other bytes than SHA256SUMS says" "$DITTO" data verify "$work/classes"
expect 4 "does not fit its shard" sh -c "rm '$work/classes/SHA256SUMS'; printf '\0' >> '$work/classes/train-000000.tar.idx'; '$DITTO' data verify '$work/classes'"

# Dealt out anew: a share of every class, the same ones by the same seed.
expect 0 "33 samples to train on, 17 held out" "$DITTO" data split "$work/again" --validation 0.5 --seed 3 --out "$work/split"
expect 0 "33 samples to train on, 17 held out" "$DITTO" data split "$work/again" --validation 0.5 --seed 3 --out "$work/split2"
cmp "$work/split/validation-000000.tar" "$work/split2/validation-000000.tar"
expect 0 "33 samples to train on, 17 held out" "$DITTO" data split "$work/again" --validation 0.5 --seed 4 --out "$work/split3"
! cmp -s "$work/split/validation-000000.tar" "$work/split3/validation-000000.tar" || fail "another seed holds out the same samples"
expect 0 "50 samples to train on, 0 held out" "$DITTO" data split "$work/split" --validation 0 --out "$work/whole"

# Bad files end it, or are skipped and named.
head -c 40 "$formats/rgb.png" >"$work/photos/dog/cut.png"
expect 4 "dog/cut.png" "$DITTO" data prepare "$work/photos" --out "$work/strict"
expect 0 "2 samples to train on, 0 held out, 2 classes, 1 bad file skipped" "$DITTO" data prepare "$work/photos" --skip-bad --out "$work/skipped"
grep -qF '"file":"dog/cut.png","outcome":"bad"' "$work/skipped/report.jsonl" || fail "cut.png is not in the report"
expect 0 '"8 x 8 x 3": 2' sh -c "'$DITTO' data prepare '$work/photos' --skip-bad --size 8 --out '$work/small' && '$DITTO' data inspect '$work/small' --json"
expect 2 "are for folders" "$DITTO" data prepare "$table" --shape 2x2 --size 8 --out "$work/no"
