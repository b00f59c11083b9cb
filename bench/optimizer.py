#!/usr/bin/env python3
"""The update of DiT-B/2's weights alone (AdamW, EMA, compute copy in bf16) beside PyTorch's and the memory's speed.

Every round times PyTorch's fused AdamW and then its foreach EMA, the norm of its gradients, and `ditto bench optimizer`
with numerics "fast" and "one". A share is of the rate at which the same process multiplies 256 MB of numbers where they
are; the table has the rounds' median. PyTorch's update writes no compute copies: it moves 36 bytes a parameter in two
passes and more, Ditto's 38 in one. Bound: 85 % of the stream, and faster than PyTorch's.

Usage: ./dev bench optimizer [--rounds 5] [--threads N] [--out FOLDER]
"""
import argparse
import dataclasses
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "peers"))
import dit  # noqa: E402

DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
DIT_B_2 = dataclasses.replace(dit.DIT_S_2, width=768, heads=12, batch=4)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="each times both sides (default 5)")
    parser.add_argument("--repeats", type=int, default=5, help="updates a round (default 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


def median_seconds(repeats, work):
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


class Peer:
    def __init__(self):
        self.trainer = dit.Trainer(DIT_B_2)
        for p in self.trainer.parameters:
            p.grad = torch.randn_like(p)

    @torch.no_grad()
    def update(self):
        self.trainer.optimizer.step()
        torch._foreach_lerp_(self.trainer.average, self.trainer.parameters, 1 - self.trainer.w.decay)

    @torch.no_grad()
    def norm(self):
        return torch.nn.utils.get_total_norm([p.grad for p in self.trainer.parameters], foreach=True).item()


def ditto(numerics, args):
    command = [DITTO, "bench", "optimizer", str(ROOT / "bench/dit_s_2.toml"), "--json", "--warmup", "1",
               "--rounds", str(args.repeats)]
    for one in ('model.preset="B/2"', "run.precision=bf16", f'run.numerics="{numerics}"', f"run.threads={args.threads}"):
        command += ["--set", one]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def processor():
    names = re.findall(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0].strip() if names else platform.machine()


def of(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    peer, theirs, ours = Peer(), {"update": [], "norm": []}, {"fast": [], "one": []}
    for _ in range(args.rounds):
        for name in theirs:
            theirs[name].append(median_seconds(args.repeats, getattr(peer, name)))
        for numerics, found in ours.items():
            found.append(ditto(numerics, args))
    parameters = ours["fast"][0]["parameters"]
    if peer.trainer.count() != parameters:
        sys.exit(f"optimizer.py: the peer has {peer.trainer.count()} parameters, Ditto {parameters}: not the same model")
    stream = [one["stream"]["bytes_per_s"] / 1e9 for found in ours.values() for one in found]
    lines = [f"# AdamW, EMA and compute copy of DiT-B/2, {processor()}", "",
             "Written by bench/optimizer.py (`./dev bench optimizer`), which says what is timed.", "",
             f"- processor: {processor()}, {len(os.sched_getaffinity(0))} cores; {args.threads} threads; load average "
             f"before the run: {load:.2f}",
             f"- {parameters} parameters; {args.rounds} rounds of {args.repeats} updates; PyTorch {torch.__version__}; "
             f"{time.strftime('%Y-%m-%d', time.gmtime())}",
             f"- stream: {of(stream, '.1f')} GB/s", "",
             "| | bytes a parameter | ms | share of the stream | PyTorch's time over it |", "|---|---:|---:|---:|---:|"]
    for name, label in (("update", "fused AdamW, foreach EMA"), ("norm", "norm of the gradients")):
        lines.append(f"| PyTorch, {label} | | {of([1e3 * s for s in theirs[name]], '.1f')} | | |")
        for numerics, found in ours.items():
            seconds = [statistics.median(one[name]["seconds"]) for one in found]
            lines.append(f"| **Ditto**, {name}, numerics \"{numerics}\" | {found[0][name]['bytes'] / parameters:.1f} | "
                         f"{of([1e3 * s for s in seconds], '.1f')} | "
                         f"{of([100 * one[name]['share'] for one in found], '.0f')} % | "
                         f"{of([a / b for a, b in zip(theirs[name], seconds)], '.2f')} |")
    text = "\n".join(lines) + "\n"
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", processor().lower())).strip("-")
    (args.out / f"optimizer-{slug}.md").write_text(text)


if __name__ == "__main__":
    main()
