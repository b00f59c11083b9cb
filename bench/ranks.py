#!/usr/bin/env python3
"""Training steps of several ranks on this machine (data parallel, ddp) beside those of one process with a thread a core.

Every round times each setting in turn, so that what disturbs the machine disturbs all: one process with a thread a
core, as many ranks of one thread, and twice as many. A ratio is that of one round's medians; the table has the rounds'
median. Bounds: a rank a core reaches 0.95 of the one process; two ranks a core lose at most 10 % more.

Usage: ./dev bench ranks [--rounds 5] [--steps 5] [--only dit_s_2] [--precision bf16] [--out FOLDER]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import details, processor, spread, usable_processors, write  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
CORES = usable_processors()
MODELS = {"dit_s_2": ("DiT-S/2, 32x32x4, batch 8", "bench/dit_s_2.toml", 1, ["run.batch=8"]),
          "digits_16": ("digits, batch 16", "configs/digits.toml", 8, ["run.batch=16"]),
          "digits_128": ("digits, batch 128", "configs/digits.toml", 4, ["run.batch=128"])}
SETTINGS = {1: CORES, CORES: 1, 2 * CORES: 1}  # ranks: threads of each


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="each times every setting (default 5)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps a round for DiT-S/2; the digits take four "
                        "(batch 128) and eight times as many (default 5)")
    parser.add_argument("--only", choices=list(MODELS), action="append", help="this model only (may be repeated)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], action="append", help="this one only")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


def step_seconds(name, precision, ranks, args):
    _, recipe, times, sets = MODELS[name]
    command = [DITTO, "bench", "step", str(ROOT / recipe), "--json", "--steps", str(times * args.steps), "--warmup", "2",
               "--set", f"run.threads={SETTINGS[ranks]}", "--set", f"run.precision={precision}"]
    for one in sets:
        command += ["--set", one]
    if ranks > 1:
        command += ["--local-ranks", str(ranks)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["median_s"]


def main():
    args = arguments()
    load = os.getloadavg()[0]
    lines = [f"# Several ranks on one machine, {processor()}", "",
             "Written by bench/ranks.py (`./dev bench ranks`), which says what the ratios are.", "",
             f"- processor: {processor()} ({details()}); load average before the run: {load:.2f}",
             f"- {time.strftime('%Y-%m-%d', time.gmtime())}; {args.rounds} rounds of {args.steps} timed steps for "
             "DiT-S/2, and more for the digits; numerics \"fast\"", "",
             "| model | precision | " + " | ".join(f"{r} x {t}, ms" for r, t in SETTINGS.items()) +
             f" | {CORES} ranks reach (0.95) | {2 * CORES} ranks reach of {CORES} (0.90) |",
             "|---|---|---:|---:|---:|---:|---:|"]
    for name in args.only or MODELS:
        for precision in args.precision or ["fp32", "bf16"]:
            print(f"{MODELS[name][0]}, {precision} …", file=sys.stderr, flush=True)
            times = {ranks: [] for ranks in SETTINGS}
            for _ in range(args.rounds):
                for ranks in SETTINGS:
                    times[ranks].append(step_seconds(name, precision, ranks, args))
            ratios = [[a / b for a, b in zip(times[few], times[many])] for few, many in ((1, CORES), (CORES, 2 * CORES))]
            lines.append(f"| {MODELS[name][0]} | {precision} | " +
                         " | ".join(f"{1e3 * statistics.median(times[r]):.1f}" for r in SETTINGS) + " | " +
                         " | ".join(spread(one, ".2f") for one in ratios) + " |")
    write(lines, args.out, "ranks")


if __name__ == "__main__":
    main()
