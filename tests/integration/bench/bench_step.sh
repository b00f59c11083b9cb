#!/usr/bin/env bash
# Claim (machine): `ditto bench step` times the very steps that `ditto train` takes, says consistent figures, and leaves
# nothing behind.
set -euo pipefail
ditto=${DITTO:?the program}
recipe=${DITTO_SOURCE_DIR:?the source folder}/configs/digits.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "bench step: $1" >&2; exit 1; }
small=(--set run.threads=1 --set run.batch=8 --set model.depth=2 --set model.width=32 --set lr_schedule.warmup=1)
cd "$work"

"$ditto" bench step "$recipe" "${small[@]}" --warmup 2 --steps 3 --breakdown --json > bench.json
[ ! -e runs ] || fail "it wrote a run's folder"
"$ditto" train "$recipe" "${small[@]}" --set run.steps=5 --set validate.every=0 --set validate.grid_every=0 \
  --set 'run.output="run"' 2> /dev/null
python3 - <<'P'
import json, statistics
bench = json.load(open("bench.json"))
last = [json.loads(line) for line in open("run/metrics.jsonl")][-1]
assert last["step"] == 5 and bench["loss"] == last["loss"], (bench["loss"], last)
assert len(bench["steps_s"]) == 3 and bench["median_s"] == statistics.median(bench["steps_s"]), bench
assert bench["min_s"] == min(bench["steps_s"]) > 0, bench
assert abs(bench["tflops"] - bench["flops"] / bench["median_s"] / 1e12) < 1e-9 * bench["tflops"], bench
assert abs(bench["share"] - bench["tflops"] / bench["matmul_tflops"]) < 1e-9 and 0 < bench["share"] < 1, bench
phases, calls = bench["breakdown"]["phases_s"], bench["breakdown"]["calls"]
assert abs(sum(phases.values()) - sum(bench["steps_s"])) < 0.1 * sum(bench["steps_s"]), (phases, bench["steps_s"])
assert min(phases["forward"], phases["backward"], phases["update"]) > 0, phases
for phase, call in ("forward", "linear_gelu_tanh"), ("backward", "linear_gelu_tanh backward"):  # of two blocks
    assert [(c["calls"], "variant" in c) for c in calls if (c["phase"], c["call"]) == (phase, call)] == [(3 * 2, True)], calls
for phase, seconds in phases.items():
    assert sum(c["seconds"] for c in calls if c["phase"] == phase) <= seconds, (phase, calls)
assert bench["batch"] == 8 and bench["threads"] == 1 and bench["precision"] == "fp32", bench
P
"$ditto" bench step "$recipe" "${small[@]}" --warmup 0 --steps 1 | grep -q "matrix multiply .* share reached" ||
  fail "its text has no share of the matrix multiply"
"$ditto" bench step "$recipe" "${small[@]}" --warmup 0 --steps 1 --local-ranks 2 --breakdown --trace step.json > breakdown
grep -q "^backward " breakdown || fail "two ranks have no breakdown"
python3 - <<'P'
import json
events = json.load(open("step.json"))["traceEvents"]
for rank in 0, 1:  # one step of each, whole
    names = [event["name"] for event in events if event["pid"] == rank and event["ph"] == "X"]
    assert (names.count("update"), names.count("encode")) == (1, 1) and "forward" in names and "backward" in names, names
    for call in "linear_gelu_tanh/", "linear_gelu_tanh backward/":  # of two blocks
        assert sum(name.startswith("ditto::" + call) for name in names) == 2, names
P

status=0
"$ditto" bench step "$recipe" --steps 0 2> /dev/null || status=$?
[ $status -eq 2 ] || fail "no steps: exit code $status, expected 2"
status=0
"$ditto" bench step "$work/none.toml" 2> err || status=$?
[ $status -eq 2 ] && grep -q "none.toml" err || fail "a missing recipe: exit code $status, $(cat err)"
