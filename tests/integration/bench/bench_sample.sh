#!/usr/bin/env bash
# Claim (machine): `ditto bench sample` times the steps that `ditto sample` takes, but for the first ones of each batch, and
# writes nothing.
set -euo pipefail
ditto=${DITTO:?the program}
recipe=${DITTO_SOURCE_DIR:?the source folder}/configs/digits.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "bench sample: $1" >&2; exit 1; }
cd "$work"

"$ditto" train "$recipe" --set run.threads=1 --set run.batch=8 --set model.depth=2 --set model.width=32 --set run.steps=1 \
  --set validate.every=0 --set validate.grid_every=0 --set 'run.output="run"' 2> /dev/null
before=$(find . | sort)
"$ditto" bench sample run --seeds 0-4 --batch 2 --steps 6 --warmup 2 --guidance 2 --json > bench.json
"$ditto" bench sample run --seeds 0-1 --steps 3 | grep -q "^step .* ms median of 1, .* ms a sample" || fail "its text has no time"
[ "$before" = "$(find . ! -name bench.json | sort)" ] || fail "it wrote files"
python3 - <<'P'
import json, statistics
bench = json.load(open("bench.json"))
assert len(bench["steps_s"]) == 3 * 4 and min(bench["steps_s"]) > 0, bench  # of 2, 2 and 1 samples
assert bench["median_s"] == statistics.median(bench["steps_s"]) and bench["sample_s"] == bench["median_s"] / 2, bench
assert bench["batch"] == 2 and bench["guidance"] == "cfg" and bench["precision"] == "fp32", bench
P

refused() {  # words, then the command's
  local status=0 words=$1
  shift
  "$ditto" bench sample "$@" 2> err || status=$?
  [ $status -eq 2 ] && grep -q "$words" err || fail "$*: exit code $status, $(cat err)"
}
refused "warmup.*steps" run --steps 2
refused "dopri5.*--sampler" run --sampler dopri5
