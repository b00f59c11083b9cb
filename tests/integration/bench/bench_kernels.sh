#!/usr/bin/env bash
# Claim (machine): `ditto bench kernels` times every variant of every op, at the shapes that a step has, says consistent
# figures, and leaves nothing behind.
set -euo pipefail
ditto=${DITTO:?the program}
recipe=${DITTO_SOURCE_DIR:?the source folder}/configs/digits.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "bench kernels: $1" >&2; exit 1; }
small=(--set run.threads=1 --set run.batch=8 --set model.depth=2 --set model.width=32 --seconds 0.001)
cd "$work"

"$ditto" bench kernels "$recipe" "${small[@]}" --json > all.json
"$ditto" bench kernels "$recipe" "${small[@]}" --set 'kernels.linear="reference"' --op linear --op silu --json > some.json
"$ditto" bench step "$recipe" --set run.threads=1 --set run.batch=8 --set model.depth=2 --set model.width=32 --warmup 0 \
  --steps 1 --breakdown --json > step.json
[ ! -e runs ] || fail "it wrote a run's folder"
python3 - <<'P'
import json, statistics
bench, some, step = (json.load(open(f"{name}.json")) for name in ("all", "some", "step"))
assert min(bench["matmul_flops_per_s"], bench["stream_bytes_per_s"]) > 0, bench
# A step's calls, of a linear layer's those that a breakdown counts too.
def of(op):
    return [call for call in bench["calls"] if call["op"] == op]
for op in "linear", "attention", "norm_modulate":
    counted = sum(c["calls"] for c in step["breakdown"]["calls"] if (c["phase"], c["call"]) == ("forward", op))
    assert sum(call["calls_a_step"] for call in of(op)) == counted > 0, (op, counted, of(op))
assert {call["op"] for call in some["calls"]} == {"linear", "silu"}, some
# Variants: all that there are, once, timed or not; what the recipe chooses first.
for call in bench["calls"]:
    names = [v["variant"] for v in call["variants"]] + call["cannot"]
    assert len(set(names)) == len(names) and "reference" in names, call
    assert [v["chosen"] for v in call["variants"]] == [True] + [False] * (len(call["variants"]) - 1), call
    for v in call["variants"]:
        for found in filter(None, (v["forward"], v["backward"])):
            assert found["median_s"] == statistics.median(found["seconds"]) > 0, call
            least = {"products": found["flops"] / bench["matmul_flops_per_s"], "memory": found["bytes"] / bench["stream_bytes_per_s"]}
            assert found["bound"] == max(least, key=least.get), call
            assert abs(found["share"] * found["median_s"] - max(least.values())) < 1e-9 * max(least.values()), call
assert {v["variant"] for c in some["calls"] if c["op"] == "linear" for v in c["variants"][:1]} == {"reference"}, some
# A layer of 8 samples of 16 tokens: a product forward, two backward; what goes in and comes out, once.
(mlp,) = [call for call in of("linear") if call["call"] == "linear fp32 [8, 16, 128] [32, 128] [32]"]
assert mlp["calls_a_step"] == 2, mlp
assert {"exact_plain", "reference"} < {v["variant"] for v in mlp["variants"]}, mlp
for v in mlp["variants"]:
    product, x, w, y = 2 * 8 * 16 * 128 * 32, 8 * 16 * 128, 32 * 128 + 32, 8 * 16 * 32
    assert (v["forward"]["flops"], v["forward"]["bytes"]) == (product, 4 * (x + w + y)), v
    assert (v["backward"]["flops"], v["backward"]["bytes"]) == (2 * product, 4 * (2 * x + 2 * w + y)), v
(attention,) = of("attention")
assert attention["variants"][0]["forward"]["flops"] == 2 * 2 * 8 * 4 * 16 * 16 * 8, attention
# Ops that the model does not call are there too, families as one.
for op in "experts", "attention_partial", "adamw":
    assert [(call["calls_a_step"], len(call["variants"]) > 0) for call in of(op)] == [(0, True)], (op, of(op))
P
"$ditto" bench kernels "${small[@]}" --set model.depth=1 --set model.heads=4 --op attention |
  grep -q "exact_plain .* % products" || fail "its text has no share"

refused() {  # words, then the command's
  local status=0 words=$1
  shift
  "$ditto" bench kernels "$@" 2> err || status=$?
  [ $status -eq 2 ] && grep -q "$words" err || fail "$*: exit code $status, $(cat err)"
}
refused "op \"linaer\".*linear" "$recipe" --op linaer
refused "run.device" "$recipe" --set run.device=cuda
refused "none.toml" "$work/none.toml"
