#!/usr/bin/env python3
"""Tokens a second of samples of several sizes: packs and buckets beside one sample a forward, and padding.

Every round times each setting in turn, so that what disturbs the machine disturbs all. Ratios are to one sample a forward, the
simplest that needs no plan. Padding is timed as a batch of as many samples that all have the largest size of the set, which is
the work of padding each to that; of its tokens only those of the samples count.

Usage: ./dev bench sizes [--rounds 3] [--steps 3] [--out FOLDER]
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import details, load_now, processor, spread, today, usable_processors, write  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
SIZES = ["16x16", "16x32", "32x16", "32x32", "48x48"]  # of latents; 64 to 576 tokens with patches of 2
PATCH, BATCH, BUDGET = 2, 20, 1200
RECIPE = """
[run]
name = "sizes"
steps = 1000
batch = {batch}
[model]
plugin = "dit"
depth = 12
width = 384
heads = 6
patch = {patch}
[scheduler]
plugin = "rectified_flow"
[objective]
plugin = "diffusion"
[optimizer]
plugin = "adamw"
[encoder.image]
plugin = "identity"
[data]
plugin = "synthetic"
channels = 4
samples = 1000
"""


def tokens(size):
    return math.prod(int(side) // PATCH for side in size.split("x"))


LARGEST = max(SIZES, key=tokens)
MIXED = [f"data.sizes={json.dumps(SIZES)}"]
SETTINGS = {
    "packs": MIXED + ['batch.plan="packs"', f"batch.tokens={BUDGET}", f"run.micro_batch={BATCH}"],
    "buckets": MIXED + ['batch.plan="buckets"', f"batch.tokens={BUDGET}", f"run.micro_batch={BATCH}"],
    "one sample a forward": MIXED + ["run.micro_batch=1"],
    "padded to the largest": [f"data.sizes={json.dumps([LARGEST])}", f"run.micro_batch={BUDGET // tokens(LARGEST)}"],
}


def seconds_a_step(recipe, sets, steps, threads):
    command = [DITTO, "bench", "step", str(recipe), "--json", "--steps", str(steps), "--warmup", "1",
               "--set", f"run.threads={threads}"]
    for one in sets:
        command += ["--set", one]
    times = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["steps_s"]
    return statistics.mean(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="each times every setting (default 3)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps a round (default 3)")
    parser.add_argument("--threads", type=int, default=usable_processors(), help="default: all that may be used")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    args = parser.parse_args()
    load = load_now()
    args.out.mkdir(parents=True, exist_ok=True)
    recipe = args.out / "sizes.toml"
    recipe.write_text(RECIPE.format(batch=BATCH, patch=PATCH))
    try:
        times = {name: [] for name in SETTINGS}
        for _ in range(args.rounds):
            for name, sets in SETTINGS.items():
                times[name].append(seconds_a_step(recipe, sets, args.steps, args.threads))
    finally:
        recipe.unlink()
    useful = BATCH * sum(map(tokens, SIZES)) / len(SIZES)  # of a step, in the mean
    base = "one sample a forward"
    lines = [f"# Samples of several sizes, {processor()}", "",
             "Written by bench/sizes.py (`./dev bench sizes`): DiT-S/2 in fp32, latents of " + ", ".join(SIZES) +
             f", {BATCH} samples a step, at most {BUDGET} tokens a micro-batch, {args.threads} threads; the median of "
             f"{args.rounds} rounds of {args.steps} steps, and the rounds' range of ratios.", "",
             f"- processor: {processor()} ({details()}); load average before the run: {load:.2f}; "
             f"{subprocess.run([DITTO, '--version'], check=True, capture_output=True, text=True).stdout.strip()}; {today()}", "",
             "| | step, ms | tokens of samples/s | times one sample a forward |", "|---|---:|---:|---:|"]
    for name in SETTINGS:
        ratios = [b / a for a, b in zip(times[name], times[base])]
        step = statistics.median(times[name])
        lines.append(f"| {name} | {1e3 * step:.0f} | {useful / step:.0f} | {spread(ratios, '.2f')} |")
    write(lines, args.out, "sizes")


if __name__ == "__main__":
    main()
