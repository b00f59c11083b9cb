#!/usr/bin/env bash
# Claim (again): The recipes of configs/*_tiny.toml train in seconds: every model learns, and a run's own run.toml gives the
# same losses.
set -euo pipefail
ditto=${DITTO:-build/release/bin/ditto}
source=${DITTO_SOURCE_DIR:-.}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

losses() { python3 -c 'import json, sys; [print(json.loads(line)["loss"]) for line in open(sys.argv[1])]' "$1/metrics.jsonl"; }

for recipe in "$source"/configs/*_tiny.toml; do
  name=$(basename "$recipe" .toml)
  "$ditto" train "$recipe" --set run.threads=1 --set run.output="\"$work/$name\"" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  losses "$work/$name" > "$work/first"
  test "$(wc -l < "$work/first")" = 20
  python3 - "$work/first" "$name" <<'PY'
import sys
losses = [float(line) for line in open(sys.argv[1])]
first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
print(f"{sys.argv[2]}: mean loss {first:.4f} over the first 5 steps, {last:.4f} over the last 5")
assert last < 0.9 * first
PY
  "$ditto" train "$work/$name/run.toml" --set run.output="\"$work/again\"" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  losses "$work/again" | cmp - "$work/first"
  rm -r "$work/again"
done
