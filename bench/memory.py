#!/usr/bin/env python3
"""Peak of activations and temporaries of a training step, Ditto beside eager PyTorch, both counted by one tool.

bench/allocations.cpp, an LD_PRELOAD library built here with g++, writes down the bytes that a process has from malloc.
Between two steps both sides hold what stays (weights, moments, average, compute copies; gradients are let go before the
forward on both): the trough. The peak of the steps above that trough is activations, temporaries, and the gradients
that are there by then; both together are a whole step's memory, which is what has to be there. PyTorch casts its weights
to bf16 within a step (autocast), so that they are in its peak; Ditto's copies of them in bf16 are in what stays. PyTorch
computes no block again.

Usage: ./dev bench memory [--precision bf16] [--out FOLDER]
"""
import argparse
import array
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import details, processor, today, usable_processors, write  # noqa: E402
sys.path.insert(0, str(ROOT / "bench" / "peers"))
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
TITLE, RECIPE = "DiT-S/2, 32x32x4, batch 8", ROOT / "bench/dit_s_2.toml"
STEPS = 3
HEAD = ["| precision | | stays, MB | peak above it, MB | whole step, MB | of eager PyTorch's least | of its peak alone |",
        "|---|---|---:|---:|---:|---:|---:|"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["fp32", "bf16"], action="append", help="this one only (default bf16)")
    parser.add_argument("--threads", type=int, default=usable_processors(), help="default: all that may be used")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    parser.add_argument("--peer", nargs=2, metavar=("ATTENTION", "PRECISION"), help="only take PyTorch's steps")
    return parser.parse_args()


def take_peer_steps(attention, precision, threads):
    import torch
    import dit
    torch.set_num_threads(threads)
    trainer = dit.Trainer(dit.DIT_S_2)
    for _ in range(STEPS):
        trainer.optimizer.zero_grad(set_to_none=True)
        trainer.step(attention, precision)


def series(command, library, folder):
    """Bytes in use as they rose and fell, of the process that came to have most."""
    environment = dict(os.environ, LD_PRELOAD=str(library), ALLOCATIONS=str(folder / "series"))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    found = []
    for path in folder.glob("series.*"):
        with path.open("rb") as file:
            count = array.array("q")
            count.frombytes(file.read(8))
            numbers = array.array("q")
            numbers.frombytes(file.read(8 * count[0]))
            found.append(numbers)
        path.unlink()
    return max(found, key=lambda numbers: max(numbers, default=0))


def trough_and_peak_above(used):
    """Of the last steps, which all come as high: between the first and the last of them lies the trough."""
    near = 0.95 * max(used)
    first = next(i for i, now in enumerate(used) if now > near)
    last = next(i for i in reversed(range(len(used))) if used[i] > near)
    stays = min(used[first:last + 1])
    if stays > near:
        sys.exit("memory.py: no two steps can be told apart in what was counted")
    return stays, max(used) - stays


def commands(precision, threads):
    peer = [sys.executable, __file__, "--threads", str(threads), "--peer"]
    ditto = [DITTO, "bench", "step", str(RECIPE), "--warmup", "1", "--steps", str(STEPS - 1), "--set",
             f"run.precision={precision}", "--set", f"run.threads={threads}"]
    return {"PyTorch, sdpa": peer + ["sdpa", precision], "PyTorch, products": peer + ["products", precision],
            "**Ditto**": ditto,
            "**Ditto**, attention computed again": ditto + ["--set", 'parallel.recompute="attention"'],
            "**Ditto**, blocks computed again": ditto + ["--set", 'parallel.recompute="blocks"']}


def rows(precision, found):
    """Shares are of the least that eager PyTorch takes. `found`: label -> what stays and the peak above it, in bytes."""
    peers = [numbers for label, numbers in found.items() if label.startswith("PyTorch")]
    whole, least = min(map(sum, peers)), min(peak for _, peak in peers)
    return [f"| {precision} | {label} | {stays / 1e6:.0f} | {peak / 1e6:.0f} | {(stays + peak) / 1e6:.0f} | "
            f"{100 * (stays + peak) / whole:.0f} % | {100 * peak / least:.0f} % |" for label, (stays, peak) in found.items()]


def main():
    args = arguments()
    if args.peer:
        return take_peer_steps(*args.peer, args.threads)
    lines = [f"# Memory of a training step of {TITLE}, {processor()}", "",
             "Written by bench/memory.py (`./dev bench memory`), which says what is counted.", "",
             f"- processor: {processor()} ({details()}); {args.threads} threads; {today()}", "",
             *HEAD]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        library = folder / "allocations.so"
        subprocess.run(["g++", "-O2", "-std=c++20", "-shared", "-fPIC", "-o", library, ROOT / "bench/allocations.cpp"],
                       check=True)
        for precision in args.precision or ["bf16"]:
            found = {label: trough_and_peak_above(series(command, library, folder))
                     for label, command in commands(precision, args.threads).items()}
            lines += rows(precision, found)
    write(lines, args.out, "memory")


if __name__ == "__main__":
    main()
