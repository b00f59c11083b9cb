#!/usr/bin/env python3
"""The update of DiT-B/2's weights alone (AdamW, EMA, compute copy in bf16) beside PyTorch's and the memory's speed.

Every round times, each in a process of its own, PyTorch's fused AdamW and then its foreach EMA, the norm of its
gradients, and `ditto bench optimizer` with numerics "fast" and "one". A share is of the rate at which the same process
multiplies 256 MB of numbers where they are (which pages a process gets makes up to a factor of two, of all rates
alike); the table has the rounds' median. PyTorch's update writes no compute copies: it moves 36 bytes a parameter in two
passes and more, Ditto's 38 in one. Bound: 85 % of the stream, and faster than PyTorch's.

Usage: ./dev bench optimizer [--rounds 5] [--threads N] [--out FOLDER]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import details, processor, spread, usable_processors, write  # noqa: E402
sys.path.insert(0, str(ROOT / "bench" / "peers"))
import dit  # noqa: E402

DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="each times both sides (default 5)")
    parser.add_argument("--repeats", type=int, default=5, help="updates a round (default 5)")
    parser.add_argument("--threads", type=int, default=usable_processors(), help="default: all that may be used")
    parser.add_argument("--peer", action="store_true", help="only time PyTorch")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


def median_seconds(repeats, work):
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


@torch.no_grad()
def time_peer(args):
    trainer = dit.Trainer(dit.DIT_B_2)
    for p in trainer.parameters:
        p.grad = torch.randn_like(p)
    stream = torch.ones(1 << 26)

    def update():
        trainer.optimizer.step()
        torch._foreach_lerp_(trainer.average, trainer.parameters, 1 - trainer.w.decay)

    def norm():
        return torch.nn.utils.get_total_norm([p.grad for p in trainer.parameters], foreach=True).item()

    passes = {"update": (update, 36), "norm": (norm, 4), "stream": (lambda: stream.mul_(-1), 8)}
    found = {name: {"seconds": [median_seconds(args.repeats, work)]} for name, (work, _) in passes.items()}
    rate = 8 * stream.numel() / found["stream"]["seconds"][0]
    for name, (_, bytes_each) in passes.items():
        numbers = stream.numel() if name == "stream" else trainer.count()
        found[name]["bytes"] = bytes_each * numbers
        found[name]["share"] = bytes_each * numbers / found[name]["seconds"][0] / rate
    found["stream"]["bytes_per_s"] = rate
    print(json.dumps({"parameters": trainer.count(), **found}))


def timed(command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def ditto(numerics, args):
    command = [DITTO, "bench", "optimizer", str(ROOT / "bench/dit_s_2.toml"), "--json", "--warmup", "1",
               "--rounds", str(args.repeats)]
    for one in ('model.preset="B/2"', "run.precision=bf16", f'run.numerics="{numerics}"', f"run.threads={args.threads}"):
        command += ["--set", one]
    return timed(command)


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    if args.peer:
        return time_peer(args)
    load = os.getloadavg()[0]
    peer = [sys.executable, __file__, "--peer", "--threads", str(args.threads), "--repeats", str(args.repeats)]
    sides = {"PyTorch": [], "**Ditto**, numerics \"fast\"": [], "**Ditto**, numerics \"one\"": []}
    for _ in range(args.rounds):
        for side, found in sides.items():
            found.append(timed(peer) if side == "PyTorch" else ditto("one" if "one" in side else "fast", args))
    parameters = {found[0]["parameters"] for found in sides.values()}
    if len(parameters) > 1:
        sys.exit(f"optimizer.py: the sides have {parameters} parameters: not the same model")
    number = parameters.pop()
    stream = [one["stream"]["bytes_per_s"] / 1e9 for found in sides.values() for one in found]
    lines = [f"# AdamW, EMA and compute copy of DiT-B/2, {processor()}", "",
             "Written by bench/optimizer.py (`./dev bench optimizer`), which says what is timed.", "",
             f"- processor: {processor()} ({details()}); {args.threads} threads; load average before the run: "
             f"{load:.2f}",
             f"- {number} parameters; {args.rounds} rounds of {args.repeats} updates; PyTorch {torch.__version__}; "
             f"{time.strftime('%Y-%m-%d', time.gmtime())}",
             f"- stream: {spread(stream, '.1f')} GB/s", "",
             "| | | bytes a parameter | ms | share of its stream | PyTorch's time over it |",
             "|---|---|---:|---:|---:|---:|"]
    seconds = lambda one, name: statistics.median(one[name]["seconds"])
    for name in ("update", "norm"):
        for side, found in sides.items():
            lines.append(f"| {name} | {side} | {found[0][name]['bytes'] / number:.1f} | "
                         f"{spread([1e3 * seconds(one, name) for one in found], '.1f')} | "
                         f"{spread([100 * one[name]['share'] for one in found], '.0f')} % | "
                         f"{spread([seconds(a, name) / seconds(b, name) for a, b in zip(sides['PyTorch'], found)], '.2f')} |")
    write(lines, args.out, "optimizer")


if __name__ == "__main__":
    main()
