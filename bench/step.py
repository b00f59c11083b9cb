#!/usr/bin/env python3
"""One training step of Ditto beside PyTorch in Python, on the same LibTorch version, machine and threads.

Every round times each setting of PyTorch and then Ditto, so that what disturbs the machine disturbs all: A B A B. A
ratio is PyTorch's time over Ditto's in the same round, above 1 where Ditto is faster; the table has the rounds' median.
In fp32 Ditto is timed twice: with the fastest kernels, and with run.numerics = "one". PyTorch's settings: attention by
its fused op (sdpa) and by plain matrix products, eager; with --compile both under torch.compile as well (20 to 30 s
each). Start-up is measured too: from the start of the process to the
end of the first step of configs/digits.toml.

With --device cuda both sides compute on the first GPU, larger models, without the start-up; --mock rehearses that without one.

Usage: ./dev bench step [--pairs 3] [--steps 5] [--only dit_s_2] [--compile [sdpa]] [--device cuda] [--json FILE] [--out FOLDER]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import write  # noqa: E402
from steps import (DITTO, RATIOS, STEP, Model, add_arguments, as_json, begin, hardware_lines, machine_name, measure, peak_line,  # noqa: E402
                   peaks_of, step_table, summary_table)
import dit  # noqa: E402

RECIPES = {"dit_s_2": ("bench/dit_s_2.toml", []),
           "dit_s_2_1024": ("bench/dit_s_2.toml", ["data.height=64", "data.width=64", "run.batch=2"]),
           "dit_b_2": ("bench/dit_s_2.toml", ['model.preset="B/2"', "run.batch=4"]),
           "dit_s_2_128": ("bench/dit_s_2.toml", ["run.batch=128"]),
           "dit_b_2_128": ("bench/dit_s_2.toml", ['model.preset="B/2"', "run.batch=128"]),
           "dit_xl_2_32": ("bench/dit_s_2.toml", ['model.preset="XL/2"', "run.batch=32"]),
           **{f"dit_xl_2_{batch}": ("bench/dit_s_2.toml", ['model.preset="XL/2"', f"run.batch={batch}"]) for batch in (128, 192, 256)},
           "digits_16": ("configs/digits.toml", ["run.batch=16"]),
           "digits_128": ("configs/digits.toml", ["run.batch=128"])}
TITLES = {"dit_s_2": "DiT-S/2, 32x32x4, batch 8", "dit_s_2_1024": "DiT-S/2, 64x64x4, batch 2",
          "dit_b_2": "DiT-B/2, 32x32x4, batch 4", "dit_s_2_128": "DiT-S/2, 32x32x4, batch 128",
          "dit_b_2_128": "DiT-B/2, 32x32x4, batch 128", "dit_xl_2_32": "DiT-XL/2, 32x32x4, batch 32",
          **{f"dit_xl_2_{batch}": f"DiT-XL/2, 32x32x4, batch {batch}" for batch in (128, 192, 256)}, "digits_16": "digits, batch 16",
          "digits_128": "digits, batch 128"}
ON = {"cpu": ["dit_s_2", "dit_s_2_1024", "dit_b_2", "digits_16", "digits_128"], "cuda": ["dit_s_2_128", "dit_xl_2_32"]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, dest="rounds", metavar="PAIRS", help="rounds; each times PyTorch and Ditto (default 3)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps a round for DiT; the digits take four "
                        "times as many (default 5)")
    parser.add_argument("--only", choices=list(RECIPES), action="append", help="this model only (may be repeated)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], action="append", help="this one only")
    parser.add_argument("--device", choices=list(ON), default="cpu", help="where both compute (default cpu)")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures, too")
    parser.add_argument("--no-start", action="store_true", help="leave start-up times out")
    add_arguments(parser)
    return parser.parse_args()


def first_line_seconds(command, done, cwd):
    """Seconds from the start of a process until done(process) says so. The process is then ended."""
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while not done(process):
            if process.poll() is not None and not done(process):
                sys.exit(f"step.py: {' '.join(command)} ended before its first step:\n{process.stderr.read().decode()}")
            time.sleep(0.002)
        return time.perf_counter() - began
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def start_ditto(args):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "run" / "metrics.jsonl"
        command = [DITTO, "train", str(ROOT / "configs/digits.toml"), "--set", "run.steps=1", "--set",
                   f"run.threads={args.threads}", "--set", f'run.output="{metrics.parent}"']
        return first_line_seconds(command, lambda _: metrics.exists() and b"\n" in metrics.read_bytes(), folder)


def start_peer(args):
    command = [sys.executable, str(ROOT / "bench/peers/dit.py"), "digits_128", str(args.threads)]

    def done(process):
        return process.stdout.readline() == b"step 1\n"  # waits for it

    return first_line_seconds(command, done, ROOT)


def start_up(args):
    times = {"Ditto": [], "PyTorch": []}
    start_ditto(args), start_peer(args)  # files into the page cache
    for _ in range(args.rounds):
        times["PyTorch"].append(start_peer(args))
        times["Ditto"].append(start_ditto(args))
    return times


def start_lines(times):
    ours, theirs = statistics.median(times["Ditto"]), statistics.median(times["PyTorch"])
    show = lambda values: ", ".join(f"{v:.2f}" for v in values)
    return ["## Start-up", "",
            "From the start of the process to the end of the first step of the digits recipe (batch 128, fp32), page "
            "cache warm. PyTorch imports torch, makes the model and takes the step; Ditto reads its data too, opens "
            "its plugins and writes its run's folder.", "",
            f"- Ditto: {ours:.2f} s ({show(times['Ditto'])})",
            f"- PyTorch: {theirs:.2f} s ({show(times['PyTorch'])}); {theirs / ours:.1f} times as long"]


def main():
    args = arguments()
    load = begin(args)
    cases = []
    for name in args.only or ON[args.device]:
        for precision in args.precision or ["fp32", "bf16"]:
            model = Model(TITLES[name], dit.WORKLOADS[name], *RECIPES[name])
            cases.append(measure(model, precision, args.steps * (4 if name.startswith("digits") else 1), args))
    if args.json:
        args.json.write_text(json.dumps(as_json(cases), indent=1))
    peaks = peaks_of(cases)
    lines = [f"# One training step, {machine_name(args)}", "", "Written by bench/step.py (`./dev bench step`).", ""]
    lines += hardware_lines(args, load, f"{args.rounds} rounds, {args.steps} timed steps a round for DiT and "
                            f"{4 * args.steps} for the digits")
    lines += [peak_line(peaks, args.device)]
    lines += [f"- Ditto's tensors at the peak, {case.title}, {case.precision}: {case.ours[-1]['peak_bytes'] / 2**30:.2f} GiB"
              for case in cases]
    lines += ["", RATIOS, ""] + summary_table(cases) + ["", STEP, ""] + step_table(cases, peaks)
    if not args.no_start and args.device == "cpu":
        print("start-up …", file=sys.stderr, flush=True)
        lines += [""] + start_lines(start_up(args))
    write(lines, args.out, "step", "" if args.device == "cpu" else machine_name(args))


if __name__ == "__main__":
    main()
