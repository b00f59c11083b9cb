#!/usr/bin/env bash
# Claim (machine): Sampling keeps what a step of it frees for the next: more steps ask the system for no more memory.
set -euo pipefail
export DITTO=${DITTO:?the program} DITTO_SOURCE_DIR=${DITTO_SOURCE_DIR:?the source folder}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$DITTO" train "$DITTO_SOURCE_DIR/configs/digits.toml" --set run.threads=1 --set run.steps=1 --set run.batch=8 --set model.depth=2 \
  --set validate.every=0 --set validate.grid_every=0 --set 'run.output="run"' 2> /dev/null
python3 - <<'P'
import os, resource, subprocess

def faults(steps):
    """Pages of 4 KiB that the system gave."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    subprocess.run([os.environ["DITTO"], "sample", "run", "--out", f"out{steps}", "--seeds", "0-63", "--batch", "64", "--steps",
                    str(steps), "--set", "run.threads=1"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before

few, many = faults(2), faults(42)  # 190,000 more where memory goes back; a run of either has 10,000 to 30,000, by chance
assert many - few < 60000, f"{many - few} pages more for 40 steps more"
P
