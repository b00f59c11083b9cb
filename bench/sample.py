#!/usr/bin/env python3
"""A step of sampling with guidance in bf16, beside diffusers' DiTTransformer2DModel under torch.compile.

Both take DDIM's steps on latents of four pictures, each step one forward of eight rows (with the class and without).
Ditto's are timed by `ditto bench sample`, diffusers' are of a loop of its model and its scheduler in this process; of both
the first two do not count. Every round
times both, so that what disturbs the machine disturbs both: the ratio is diffusers' time over Ditto's. A single
picture's step is compared with a quarter of four's.

Bounds: at least 1.25 times compiled diffusers; a single picture at most 1.1 times a quarter.

Usage: ./dev bench sample [--rounds 5] [--steps 10] [--preset S/2] [--eager] [--out FOLDER]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import diffusers
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import processor, spread, write  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
PRESETS = {"S/2": (12, 6, 64), "B/2": (12, 12, 64), "XL/2": (28, 16, 72)}  # depth, heads, width of a head
FEW = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="each times both (default 5)")
    parser.add_argument("--steps", type=int, default=10, help="timed steps a round (default 10)")
    parser.add_argument("--preset", choices=list(PRESETS), default="S/2")
    parser.add_argument("--eager", action="store_true", help="diffusers without torch.compile")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


class Peer:
    def __init__(self, args):
        depth, heads, width = PRESETS[args.preset]
        torch.manual_seed(0)
        model = diffusers.DiTTransformer2DModel(num_attention_heads=heads, attention_head_dim=width, in_channels=4,
                                                out_channels=8, num_layers=depth, sample_size=32, patch_size=2,
                                                num_embeds_ada_norm=1000).to(torch.bfloat16).eval()
        self.model = model if args.eager else torch.compile(model)
        self.scheduler = diffusers.DDIMScheduler()

    @torch.inference_mode()
    def seconds_a_step(self, steps):
        """As DiTPipeline does it, of four pictures."""
        x = torch.randn(4, 4, 32, 32, dtype=torch.bfloat16)
        labels = torch.tensor([0, 1, 2, 3] + 4 * [1000])
        self.scheduler.set_timesteps(steps + FEW)
        for i, t in enumerate(self.scheduler.timesteps):
            if i == FEW:
                began = time.perf_counter()
            noise = self.model(torch.cat([x, x]), timestep=t.expand(8), class_labels=labels).sample[:, :4]
            given, free = noise.chunk(2)
            x = self.scheduler.step(free + 4 * (given - free), t, x).prev_sample
        return (time.perf_counter() - began) / steps


def ditto_run(args, run):
    sets = [f'model.preset="{args.preset}"', "run.steps=1", "run.batch=1", "run.precision=bf16", f'run.output="{run}"']
    command = [DITTO, "train", str(ROOT / "bench/dit_s_2.toml")]
    for one in sets:
        command += ["--set", one]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ditto_seconds_a_step(args, run, pictures):
    timed = args.steps * 4 // pictures
    command = [DITTO, "bench", "sample", str(run), "--weights", "weights", "--sampler", "ddim", "--guidance", "4", "--classes",
               "0-3", "--seeds", f"0-{pictures - 1}", "--batch", str(pictures), "--steps", str(FEW + timed), "--warmup",
               str(FEW), "--set", f"run.threads={args.threads}", "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return statistics.fmean(json.loads(done.stdout)["steps_s"])


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        ditto_run(args, run)
        peer, theirs, four, one = Peer(args), [], [], []
        peer.seconds_a_step(2)  # compiles
        for _ in range(args.rounds):
            theirs.append(peer.seconds_a_step(args.steps))
            four.append(ditto_seconds_a_step(args, run, 4))
            one.append(ditto_seconds_a_step(args, run, 1))
    kind = "eager" if args.eager else "compiled"
    lines = [f"# Sampling with DiT-{args.preset}, {processor()}", "",
             "Written by bench/sample.py (`./dev bench sample`), which says what is timed: steps of four pictures with "
             "guidance, bf16.", "",
             f"- processor: {processor()}, {len(os.sched_getaffinity(0))} cores; {args.threads} threads; load average "
             f"before the run: {load:.2f}",
             f"- {args.rounds} rounds of {args.steps} steps, of one picture four times as many; PyTorch {torch.__version__}, diffusers "
             f"{diffusers.__version__}; {time.strftime('%Y-%m-%d', time.gmtime())}", "",
             "| | ms a step |", "|---|---:|",
             f"| diffusers, {kind}, four pictures | {spread([1e3 * s for s in theirs], '.0f')} |",
             f"| **Ditto**, four pictures | {spread([1e3 * s for s in four], '.0f')} |",
             f"| **Ditto**, one picture | {spread([1e3 * s for s in one], '.0f')} |", "",
             f"- diffusers' time over Ditto's (bound 1.25): {spread([a / b for a, b in zip(theirs, four)], '.2f')}",
             f"- one picture over a quarter of four (bound 1.1): {spread([4 * a / b for a, b in zip(one, four)], '.2f')}"]
    write(lines, args.out, f"sample {args.preset}")


if __name__ == "__main__":
    main()
