#!/usr/bin/env bash
# Claim (machine): `ditto bench checkpoint` times checkpoints of the recipe's own size, says consistent figures, and leaves
# nothing behind.
set -euo pipefail
ditto=${DITTO:?the program}
recipe=${DITTO_SOURCE_DIR:?the source folder}/configs/digits.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "bench checkpoint: $1" >&2; exit 1; }
cd "$work"
mkdir disk

"$ditto" bench checkpoint "$recipe" --set run.threads=1 --set model.depth=2 --set model.width=32 --folder disk --rounds 3 \
  --json > bench.json
"$ditto" bench checkpoint "$recipe" --set run.threads=1 --set model.depth=2 --set model.width=32 --rounds 1 |
  grep -q "^load .* MB/s, .*: weights" || fail "its text has no rate"
[ -z "$(ls disk)" ] && [ "$(ls)" = $'bench.json\ndisk' ] || fail "it left files: $(ls . disk)"
python3 - <<'P'
import json, statistics
bench = json.load(open("bench.json"))
numbers = 4 * 4 * bench["parameters"]  # fp32: weights, average, two moments
assert numbers < bench["bytes"] < numbers + 100_000, bench
for name, beside in ("write", "write"), ("stall", "write"), ("save", "write"), ("read", "read"), ("verify", "read"), ("load", "read"):
    found = bench[name]
    assert len(found["seconds"]) == 3 and min(found["seconds"]) > 0, bench
    rate = bench["bytes"] / statistics.median(found["seconds"])
    assert abs(found["bytes_per_s"] - rate) < 1e-9 * rate, bench
    assert abs(found["share"] - rate / bench[beside]["bytes_per_s"]) < 1e-9, bench
assert all(a < b for a, b in zip(bench["stall"]["seconds"], bench["save"]["seconds"])), bench
P
status=0
"$ditto" bench checkpoint "$recipe" --folder none 2> err || status=$?
[ $status -eq 2 ] && grep -q -- "--folder none" err || fail "no folder: exit code $status, $(cat err)"
