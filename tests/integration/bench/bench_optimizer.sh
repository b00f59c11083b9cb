#!/usr/bin/env bash
# Claim (machine): `ditto bench optimizer` counts the bytes that an update has to move, says consistent figures, and leaves
# nothing behind.
set -euo pipefail
ditto=${DITTO:?the program}
recipe=${DITTO_SOURCE_DIR:?the source folder}/configs/digits.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "bench optimizer: $1" >&2; exit 1; }
small=(--set run.threads=1 --set model.depth=2 --set model.width=32 --warmup 1 --rounds 3)
cd "$work"

"$ditto" bench optimizer "$recipe" "${small[@]}" --set run.precision=bf16 --json > bf16.json
"$ditto" bench optimizer "$recipe" "${small[@]}" --set ema.enabled=false --json > bare.json
"$ditto" bench optimizer "$recipe" "${small[@]}" --set 'run.numerics="one"' --json > one.json
[ ! -e runs ] || fail "it wrote a run's folder"
python3 - <<'P'
import json, statistics
# Weights, two moments and the average are read and written, gradients read, copies in bf16 written.
for name, update in ("bf16", 38), ("bare", 28), ("one", 36):
    bench = json.load(open(f"{name}.json"))
    assert bench["update"]["bytes"] == update * bench["parameters"], (name, bench)
    assert bench["norm"]["bytes"] == 4 * bench["parameters"], (name, bench)
    for of in "update", "norm", "stream":
        found = bench[of]
        assert len(found["seconds"]) == 3 and min(found["seconds"]) > 0, bench
        rate = found["bytes"] / statistics.median(found["seconds"])
        assert abs(found["bytes_per_s"] - rate) < 1e-9 * rate, bench
        assert abs(found["share"] - rate / bench["stream"]["bytes_per_s"]) < 1e-9, bench
P
"$ditto" bench optimizer "$recipe" "${small[@]}" | grep -q "^update .* 36.0 bytes a parameter; .* % of the stream" ||
  fail "its text has no share of the stream"

status=0
"$ditto" bench optimizer "$recipe" --rounds 0 2> /dev/null || status=$?
[ $status -eq 2 ] || fail "no rounds: exit code $status, expected 2"
status=0
"$ditto" bench optimizer "$recipe" --set run.device=cuda 2> err || status=$?
[ $status -eq 2 ] && grep -q 'run.device' err || fail "a GPU: exit code $status, $(cat err)"
