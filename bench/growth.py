#!/usr/bin/env python3
"""How a bf16 training step grows with tokens, batch and width: Ditto beside PyTorch in Python, and beside the rate of a matrix
multiply.

The model is DiT-S/2 cut to 4 blocks, so that all points take minutes; heads are 64 wide. Three sweeps: tokens of a sample, with
4,096 tokens a step; batch, of samples of 64 tokens; width, with 4 samples of 256 tokens. A point that two sweeps share is measured once.
Rounds and PyTorch's settings are those of bench/step.py: at every point each round times PyTorch's (sdpa and products, eager;
with --compile both under torch.compile too, compiled anew for every point) and then Ditto.

Writes growth-PROCESSOR.md, the numbers beside it as .json, and the plot as .svg.

Usage: ./dev bench growth [--rounds 3] [--steps 5] [--only tokens] [--points 2] [--compile] [--out FOLDER]
"""
import argparse
import collections
import dataclasses
import json
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import details, file_name, processor, write  # noqa: E402
from steps import RATIOS, STEP, Model, add_arguments, begin, hardware_lines, measure, peak_line, peaks_of, step_table, summary_table  # noqa: E402
import dit  # noqa: E402
import plot  # noqa: E402
import torch  # noqa: E402

DEPTH, HEAD_WIDTH = 4, 64
SMALL = "where a step has up to 1,024 tokens of width 384 or less"
Shape = collections.namedtuple("Shape", "tokens batch width")
SWEEPS = {"tokens": [Shape(tokens, 4096 // tokens, 384) for tokens in (64, 256, 1024, 4096)],
          "batch": [Shape(64, batch, 384) for batch in (1, 2, 4, 8, 16, 32, 64)],
          "width": [Shape(256, 4, width) for width in (128, 256, 384, 768, 1152)]}
TITLES = {"tokens": "Tokens: 4,096 a step, width 384", "batch": "Batch: samples of 64 tokens, width 384",
          "width": "Width: 4 samples of 256 tokens"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="each times every setting of a point (default 3)")
    parser.add_argument("--steps", type=int, default=5, help=f"timed steps a round, four times as many {SMALL} (default 5)")
    parser.add_argument("--only", choices=list(SWEEPS), action="append", help="this sweep only (may be repeated)")
    parser.add_argument("--points", type=int, help="only so many of each sweep, its first")
    add_arguments(parser)
    parser.set_defaults(device="cpu")
    return parser.parse_args()


def model_of(shape):
    side, heads = 2 * math.isqrt(shape.tokens), shape.width // HEAD_WIDTH
    workload = dataclasses.replace(dit.DIT_S_2, size=side, depth=DEPTH, width=shape.width, heads=heads, batch=shape.batch)
    sets = {"data.height": side, "data.width": side, "model.depth": DEPTH, "model.width": shape.width, "model.heads": heads,
            "run.batch": shape.batch}
    return Model(f"{shape.tokens} tokens, batch {shape.batch}, width {shape.width}", workload, "bench/dit_s_2.toml",
                 tuple(f"{key}={value}" for key, value in sets.items()))


def measure_all(shapes, args):
    cases = {}
    for shape in shapes:
        steps = args.steps * (4 if shape.tokens * shape.batch <= 1024 and shape.width <= 384 else 1)
        cases[shape] = measure(model_of(shape), "bf16", steps, args)
    return cases


def seconds_of(case):
    """Of what the plot shows: setting -> the median of its rounds."""
    lines = {"Ditto": [one["median_s"] for one in case.ours], "PyTorch, best eager": case.peers[case.best_peer(dit.ATTENTION)]}
    compiled = [setting for setting in case.peers if setting.endswith("compiled")]
    if compiled:
        lines["PyTorch, compiled"] = case.peers[case.best_peer(compiled)]
    return {name: statistics.median(seconds) for name, seconds in lines.items()}


def draw(sweeps, cases, peak, path):
    figure, axes = plot.panels(1, len(sweeps))
    for panel, (name, shapes) in zip(axes[0], sweeps.items()):
        places = [getattr(shape, name) for shape in shapes]
        rates = {}
        for shape in shapes:
            for label, seconds in seconds_of(cases[shape]).items():
                rates.setdefault(label, []).append(cases[shape].flops() / seconds / 1e9)
        for label, values in rates.items():
            panel.plot(places, values, marker="o", markersize=3, label=label)
        panel.axhline(1000 * peak, color="#888888", linestyle="--", label="matrix multiply")
        panel.set_xscale("log", base=2)
        panel.set_xticks(places, places)
        panel.minorticks_off()
        panel.set_ylim(bottom=0)
        panel.set(title=TITLES[name], xlabel=name, ylabel="GFLOP/s")
    plot.save(figure, path)


def numbers(sweeps, cases, peak, args):
    points = [{"sweeps": [name for name, shapes in sweeps.items() if shape in shapes], **shape._asdict(), "depth": DEPTH,
               "heads": shape.width // HEAD_WIDTH, "flops": case.flops(), "parameters": case.ours[0]["parameters"],
               "ditto_s": [one["median_s"] for one in case.ours], "pytorch_s": case.peers} for shape, case in cases.items()]
    return {"processor": processor(), "details": details(), "threads": args.threads, "pytorch": torch.__version__, "precision": "bf16",
            "steps": args.steps, "matmul_flops_per_s": 1e12 * peak, "points": points}


def main():
    args = arguments()
    load = begin(args)
    sweeps = {name: SWEEPS[name][:args.points] for name in args.only or SWEEPS}
    cases = measure_all(dict.fromkeys(shape for shapes in sweeps.values() for shape in shapes), args)
    peaks = peaks_of(cases.values())
    name = file_name("growth")
    lines = [f"# How a training step grows, {processor()}", "", "Written by bench/growth.py (`./dev bench growth`): DiT-S/2 cut to "
             f"{DEPTH} blocks, bf16, heads of {HEAD_WIDTH}; the numbers are in {name}.json.", ""]
    lines += hardware_lines(args, load, f"{args.rounds} rounds, {args.steps} timed steps a round, {4 * args.steps} {SMALL}")
    lines += [peak_line(peaks, args.device), "", STEP, "", f"![GFLOP/s by {', '.join(sweeps)}]({name}.svg)"]
    for sweep, shapes in sweeps.items():
        found = [cases[shape] for shape in shapes]
        lines += ["", f"## {TITLES[sweep]}", "", RATIOS, ""] + summary_table(found) + [""] + step_table(found, peaks)
    write(lines, args.out, "growth")
    (args.out / f"{name}.json").write_text(json.dumps(numbers(sweeps, cases, peaks["bf16"], args), indent=1) + "\n")
    draw(sweeps, cases, peaks["bf16"], args.out / f"{name}.svg")


if __name__ == "__main__":
    main()
