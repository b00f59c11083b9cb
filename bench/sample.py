#!/usr/bin/env python3
"""A step of sampling with guidance in bf16, beside diffusers' DiTTransformer2DModel under torch.compile, with inductor's freezing
(weights are constants, as for inference they are) and without, and under OpenVINO.

All take DDIM's steps on latents of four pictures, each step one forward of eight rows (with the class and without).
Ditto's are timed by `ditto bench sample`, the others' are of a loop of the model and diffusers' scheduler in this process; of
all the first two do not count. OpenVINO has the same model compiled for the CPU with static shapes, on as many threads, in bf16
where it knows that of the processor: its output is compared with PyTorch's before anything is timed, and refused if another
(bench/peers/openvino_dit.py). Its int8 is not measured. Every round times all, so that what disturbs the machine disturbs all:
the ratios are the others' time over Ditto's. A single picture's step, of Ditto and of OpenVINO, is compared too, and Ditto's
with a quarter of four's.

Bounds: at least 1.25 times compiled diffusers, the faster of both; in the same precision at least as fast as OpenVINO; a single picture at most
1.1 times a quarter.

Usage: ./dev bench sample [--rounds 5] [--steps 10] [--preset S/2] [--eager] [--out FOLDER]
       ./dev bench sample --preset XL/2 --rounds 3 --steps 3    (16 GB of memory, and 3 GB of the disk meanwhile)
"""
import argparse
import ctypes
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import diffusers
import openvino
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench" / "lib"), str(ROOT / "bench" / "peers")]
import openvino_dit  # noqa: E402
from report import details, processor, spread, usable_processors, write  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
PRESETS = {"S/2": (12, 6, 64), "B/2": (12, 12, 64), "XL/2": (28, 16, 72)}  # depth, heads, width of a head
FEW = 2
NO_CLASS = 1000


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="each times all (default 5)")
    parser.add_argument("--steps", type=int, default=10, help="timed steps a round (default 10)")
    parser.add_argument("--preset", choices=list(PRESETS), default="S/2")
    parser.add_argument("--eager", action="store_true", help="diffusers without torch.compile")
    parser.add_argument("--threads", type=int, default=usable_processors(), help="default: all that may be used")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


def diffusers_model(preset):
    depth, heads, width = PRESETS[preset]
    torch.manual_seed(0)
    return diffusers.DiTTransformer2DModel(num_attention_heads=heads, attention_head_dim=width, in_channels=4,
                                           out_channels=8, num_layers=depth, sample_size=32, patch_size=2,
                                           num_embeds_ada_norm=NO_CLASS).eval()


@torch.inference_mode()
def seconds_a_step(forward, pictures, dtype, steps):
    """As DiTPipeline does it."""
    x = torch.randn(pictures, 4, 32, 32, dtype=dtype)
    labels = torch.tensor([*range(pictures)] + pictures * [NO_CLASS])
    scheduler = diffusers.DDIMScheduler()
    scheduler.set_timesteps(steps + FEW)
    for i, t in enumerate(scheduler.timesteps):
        if i == FEW:
            began = time.perf_counter()
        noise = forward(torch.cat([x, x]), t.expand(2 * pictures), labels)[:, :4]
        given, free = noise.chunk(2)
        x = scheduler.step(free + 4 * (given - free), t, x).prev_sample
    return (time.perf_counter() - began) / steps


class Peers:
    def __init__(self, args):
        model = diffusers_model(args.preset)
        self.static = openvino_dit.Models(model, [8, 2], args.threads)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # the weights in fp32, which the C library keeps else
        self.of = {"eager": model} if args.eager else {"compiled": torch.compile(model),
                                                        "compiled and frozen": torch.compile(model, options={"freezing": True})}

    def diffusers(self, kind, steps):
        return seconds_a_step(lambda x, t, labels: self.of[kind](x, timestep=t, class_labels=labels).sample, 4, torch.bfloat16, steps)

    def openvino(self, pictures, steps):
        return seconds_a_step(self.static.of[2 * pictures], pictures, torch.float32, steps * 4 // pictures)


def ditto_run(args, run):
    sets = [f'model.preset="{args.preset}"', "run.steps=1", "run.batch=1", "run.precision=bf16", f'run.output="{run}"',
            'optimizer.plugin="sgd"', "optimizer.momentum=0", "ema.enabled=false"]  # which keep nothing beside the weights
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


class Times:
    """Of each round, in seconds a step."""

    def __init__(self):
        self.diffusers, self.openvino, self.four, self.one, self.openvino_one = {}, [], [], [], []

    def best_diffusers(self):
        return min(self.diffusers.values(), key=statistics.median)

    def round(self, args, run, peers):
        for kind in peers.of:
            self.diffusers.setdefault(kind, []).append(peers.diffusers(kind, args.steps))
        self.openvino.append(peers.openvino(4, args.steps))
        self.four.append(ditto_seconds_a_step(args, run, 4))
        self.one.append(ditto_seconds_a_step(args, run, 1))
        self.openvino_one.append(peers.openvino(1, args.steps))


def ratio(above, below, times=1):
    return spread([times * a / b for a, b in zip(above, below)], ".2f")


def milliseconds(seconds):
    return spread([1e3 * s for s in seconds], ".0f")


def table(args, load, times, static):
    precision, layers = static.of[8].precision(), static.of[8].products()
    alike = precision == "bf16" and set(layers) == {"bf16"}
    says = (f"says that it computes in {precision} on {static.of[8].threads()} threads, {layers.count('bf16')} of its {len(layers)} "
            "linear layers in bf16")
    name, bound = "OpenVINO", "bound 1.0"
    if not alike:
        says += ": it does not have all of that on this processor"
        name, bound = f"OpenVINO, {layers.count('bf16')} of {len(layers)} layers in bf16", "not in the same precision, so no bound"
    return [f"# Sampling with DiT-{args.preset}, {processor()}", "",
            "Written by bench/sample.py (`./dev bench sample`), which says what is timed: steps of four pictures with guidance, bf16, "
            "and of one picture.", "",
            f"- processor: {processor()} ({details()}); {args.threads} threads; load average before the run: {load:.2f}",
            f"- {args.rounds} rounds of {args.steps} steps, of one picture four times as many; PyTorch {torch.__version__}, diffusers "
            f"{diffusers.__version__}, OpenVINO {openvino.__version__.split('-')[0]}; {time.strftime('%Y-%m-%d', time.gmtime())}",
            f"- OpenVINO, asked for bf16, {says}. Before the rounds its output was at most {100 * static.error:.2f} % from PyTorch's in "
            f"fp32 (bound {openvino_dit.TIMES} times PyTorch's own in bf16, {100 * static.peer_error:.2f} %). Its int8 is not measured.", "",
            "| | ms a step |", "|---|---:|",
            *(f"| diffusers, {kind}, four pictures | {milliseconds(seconds)} |" for kind, seconds in times.diffusers.items()),
            f"| {name}, four pictures | {milliseconds(times.openvino)} |",
            f"| **Ditto**, four pictures | {milliseconds(times.four)} |",
            f"| **Ditto**, one picture | {milliseconds(times.one)} |",
            f"| {name}, one picture | {milliseconds(times.openvino_one)} |", "",
            f"- diffusers' time over Ditto's (bound 1.25): {ratio(times.best_diffusers(), times.four)}",
            f"- OpenVINO's time over Ditto's ({bound}): {ratio(times.openvino, times.four)}",
            f"- OpenVINO's time over Ditto's, one picture ({bound}): {ratio(times.openvino_one, times.one)}",
            f"- one picture over a quarter of four (bound 1.1): {ratio(times.one, times.four, 4)}"]


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    load, times = os.getloadavg()[0], Times()
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        ditto_run(args, run)
        peers = Peers(args)
        for kind in peers.of:
            peers.diffusers(kind, 2)  # compiles
        for _ in range(args.rounds):
            times.round(args, run, peers)
    write(table(args, load, times, peers.static), args.out, f"sample {args.preset}")


if __name__ == "__main__":
    main()
