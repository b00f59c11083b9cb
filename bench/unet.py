#!/usr/bin/env python3
"""A training step of two UNets beside PyTorch: Stable Diffusion's at half its width (diffusers, 32 x 32 latents) and Imagen's Efficient one
(nemo-toolkit, 64 x 64 pixels), batch 4, in fp32 and bf16.

Every round times each setting of the peer and then Ditto, each in a process of its own, so that what disturbs the machine disturbs all:
A B A B. The peer's settings: maps with channels first and channels last, eager; with --compile both under torch.compile as well. Ditto has
both too (run.memory_format), and then run.numerics = "one". A ratio is the time of the peer's best setting over that of Ditto's best in the
same round, above 1 where Ditto is faster; best is the setting of the least median.

Memory is counted by bench/allocations.cpp, as bench/memory.py says, of the setting with channels first: what stays between two steps
(weights, moments, average, copies in bf16), and the peak above it, from which the gradients' bytes are taken. Of eager PyTorch and Ditto, and
of both where blocks are computed again.

Bounds: 1.05 in fp32; 1.1 in bf16, and 1.5 where LibTorch's bf16 convolution is slower than its fp32 one, which is measured; one number at
least 0.8 of fast; the peak at most 70 % of eager's, and with blocks computed again 40 %.

Usage: ./dev bench unet [--rounds 3] [--steps 2] [--only unet_sd] [--precision bf16] [--compile] [--no-memory] [--peers] [--out FOLDER]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench" / "lib"), str(ROOT / "bench")]
from instructions import without_refused_instructions  # noqa: E402
from report import details, load_now, processor, spread, today, write  # noqa: E402
from encode import Rates  # noqa: E402
from memory import series, trough_and_peak_above  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
NEMO = os.environ.get("DITTO_PEERS_NEMO", str(ROOT / ".deps/peers_nemo/bin/python"))
PEERS = {"unet_sd": [sys.executable, str(ROOT / "bench/peers/sd.py")], "imagen_efficient": [NEMO, str(ROOT / "bench/peers/imagen.py")]}
TITLES = {"unet_sd": "SD's UNet, half width, 32x32x4, batch 4", "imagen_efficient": "Efficient UNet, half width, 64x64x3, batch 4"}
MAPS = ("channels first", "channels last")
AGAIN = ", checkpointed"
MEMORY_STEPS = 3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="each times all (default 3)")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a setting in a round (default 2)")
    parser.add_argument("--warmup", type=int, default=1, help="steps before them (default 1; of compiled settings at least 2)")
    parser.add_argument("--only", choices=list(PEERS), action="append", help="this one only (may be repeated)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], action="append", help="this one only")
    parser.add_argument("--compile", action="store_true", help="torch.compile of the peer's settings too")
    parser.add_argument("--no-memory", action="store_true", help="leave memory out")
    parser.add_argument("--peers", action="store_true", help="take the peers' times alone, print them, and write nothing")
    parser.add_argument("--threads", type=int, help="default: all that may be used")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


def answer(command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"unet.py: {' '.join(done.args)} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{"):])  # NeMo's models speak before


def ditto_command(name, precision, threads, warmup, steps, *sets):
    command = [DITTO, "bench", "step", ROOT / f"bench/{name}.toml", "--json", "--warmup", warmup, "--steps", steps]
    for one in (f"run.precision={precision}", f"run.threads={threads}", *sets):
        command += ["--set", one]
    return [str(word) for word in command]


class Case:
    """A model in a precision: each round's steps of every setting."""

    def __init__(self, name, precision, args):
        self.name, self.precision, self.args = name, precision, args
        self.settings = [*MAPS, *(f"{one}, compiled" for one in MAPS if args.compile)]
        self.peers = {one: [] for one in self.settings}
        self.ours = {one: [] for one in (*MAPS, "one number")}
        self.memory = {}  # label -> what stays, and the peak above it

    def title(self):
        return TITLES[self.name]

    def round(self):
        args = self.args
        for setting in self.settings:
            warmup = max(2, args.warmup) if setting.endswith("compiled") else args.warmup
            self.peers[setting].append(answer([*PEERS[self.name], "time", self.precision, setting, warmup, args.steps, args.threads]))
        for setting in () if args.peers else self.ours:
            sets = 'run.numerics="one"' if setting == "one number" else f'run.memory_format="{setting.replace(" ", "_")}"'
            self.ours[setting].append(answer(ditto_command(self.name, self.precision, args.threads, args.warmup, args.steps, sets)))
        self.require_same()

    def require_same(self):
        theirs = self.peers[MAPS[0]][0]
        for one in (runs[-1] for runs in self.ours.values() if runs):
            for what in ("parameters", "batch"):
                if one[what] != theirs[what]:
                    sys.exit(f"unet.py: {self.title()}: the peer has {what} {theirs[what]}, Ditto {one[what]}: not the same step")

    def count_memory(self, library, folder):
        peer = [*PEERS[self.name], "train", self.precision]
        ours = ditto_command(self.name, self.precision, self.args.threads, 1, MEMORY_STEPS - 1, f'run.memory_format="{MAPS[0].replace(" ", "_")}"')
        for label, command in {"PyTorch": [*peer, MAPS[0], str(MEMORY_STEPS), str(self.args.threads)],
                               f"PyTorch{AGAIN}": [*peer, MAPS[0] + AGAIN, str(MEMORY_STEPS), str(self.args.threads)],
                               "**Ditto**": ours, f"**Ditto**{AGAIN}": ours + ["--set", 'parallel.recompute="blocks"']}.items():
            self.memory[label] = trough_and_peak_above(series(command, library, folder))

    # --- what comes of it

    @staticmethod
    def seconds(runs):
        return [one["median_s"] for one in runs]

    def best(self, of):
        return min(of, key=lambda one: statistics.median(self.seconds(of[one])))

    def fast(self):
        return {one: self.ours[one] for one in MAPS}

    def ratios(self, theirs, ours):
        return [one / other for one, other in zip(self.seconds(theirs), self.seconds(ours))]

    def to_best(self):
        return self.ratios(self.peers[self.best(self.peers)], self.ours[self.best(self.fast())])

    def one_of_fast(self):
        return self.ratios(self.ours[self.best(self.fast())], self.ours["one number"])

    def flops(self):
        return self.ours[MAPS[0]][0]["flops"]

    def above(self, label):
        """Bytes of the peak above weights, gradients and states."""
        return max(0, self.memory[label][1] - 4 * self.peers[MAPS[0]][0]["parameters"])

    def memory_share(self, label):
        """Of the peer's that computes as much again."""
        return self.above(label) / max(1, self.above("PyTorch"))


# --- the page ----------------------------------------------------------------------------------------------------------


def bound(precision, rates):
    return 1.05 if precision == "fp32" else 1.5 if rates.slow_bf16() else 1.1


def bounds_table(cases, rates):
    yield ("| | precision | peer's best setting | Ditto's | its time over Ditto's (range) | bound | one number, of fast (bound 0.8) | "
           "peak of eager's (bound 70 %) | computed again (bound 40 %) |")
    yield "|---|---|---|---|---:|---:|---:|---:|---:|"
    for case in cases:
        shares = [f"{100 * case.memory_share(f'**Ditto**{again}'):.0f} %" if case.memory else "" for again in ("", AGAIN)]
        yield (f"| {case.title()} | {case.precision} | {case.best(case.peers)} | {case.best(case.fast())} | {spread(case.to_best(), '.2f')} | "
               f"{bound(case.precision, rates[case.name])} | {spread(case.one_of_fast(), '.2f')} | {' | '.join(shares)} |")


def times_table(cases, rates):
    yield "| | precision | | step, ms | samples/s | GFLOP/s | share | Ditto's best is faster by (range) |"
    yield "|---|---|---|---:|---:|---:|---:|---:|"
    for case in cases:
        ours = case.ours[case.best(case.fast())]
        rows = [(f"PyTorch, {one}", runs) for one, runs in case.peers.items()] + [(f"**Ditto**, {one}", runs) for one, runs in case.ours.items()]
        for label, runs in rows:
            seconds = case.seconds(runs)
            rate = case.flops() / statistics.median(seconds) / 1e12
            yield (f"| {case.title()} | {case.precision} | {label} | {spread([1e3 * one for one in seconds], '.0f')} | "
                   f"{runs[0]['batch'] / statistics.median(seconds):.2f} | {1e3 * rate:.0f} | "
                   f"{100 * rate / rates[case.name].products[case.precision]:.0f} % | {spread(case.ratios(runs, ours), '.2f')} |")


def memory_table(cases):
    yield "| | precision | | stays, MB | peak above it, MB | less the gradients, MB | whole step, MB | of eager PyTorch's, less the gradients |"
    yield "|---|---|---|---:|---:|---:|---:|---:|"
    for case in cases:
        for label, (stays, peak) in case.memory.items():
            yield (f"| {case.title()} | {case.precision} | {label} | {stays / 1e6:.0f} | {peak / 1e6:.0f} | {case.above(label) / 1e6:.0f} | "
                   f"{(stays + peak) / 1e6:.0f} | {100 * case.memory_share(label):.0f} % |")


def rate_lines(rates):
    def shown(found):
        return ", ".join(f"{precision} {1e3 * rate:.0f} GFLOP/s" for precision, rate in found.items())
    for name, found in rates.items():
        yield (f"- {TITLES[name]}: matrix multiply (1024 x 1024, best of this run) {shown(found.products)}, of which the share is; LibTorch's "
               f"3 x 3 convolutions of its maps, in the better order, {shown(found.convolutions)}, in bf16 "
               f"{'slower than in fp32' if found.slow_bf16() else 'no slower'}")


def page(args, load, cases, rates):
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    versions = sorted({case.peers[MAPS[0]][0]["versions"] for case in cases})
    return [f"# One training step of UNets, {processor()}", "", "Written by bench/unet.py (`./dev bench unet`), which says what is timed and counted.", "",
            f"- processor: {processor()} ({details()}); {args.threads} threads each"
            f"{f', both kept to ONEDNN_MAX_CPU_ISA={limit}' if limit else ''}; load average before the run: {load:.2f}",
            f"- {args.rounds} rounds of {args.steps} steps; {'; '.join(versions)}; {today()}", *rate_lines(rates), "",
            *bounds_table(cases, rates), "", *times_table(cases, rates), "", *(memory_table(cases) if not args.no_memory else [])]


def main():
    args = arguments()
    without_refused_instructions()
    if args.threads is None:
        from report import usable_processors
        args.threads = usable_processors()
    load = load_now()
    names, precisions = args.only or list(PEERS), args.precision or ["fp32", "bf16"]
    cases = [Case(name, precision, args) for name in names for precision in precisions]
    rates = {name: Rates() for name in names}
    for i in range(args.rounds):
        for case in cases:
            print(f"round {i + 1}: {case.title()}, {case.precision} …", file=sys.stderr, flush=True)
            rates[case.name].add(answer([*PEERS[case.name], "rates", args.threads]))
            case.round()
            for runs in case.ours.values():
                if runs:
                    rates[case.name].add({"products": {case.precision: runs[-1]["matmul_tflops"]}})
    if args.peers:
        for case in cases:
            print(json.dumps({"model": case.title(), "precision": case.precision, "seconds": {one: case.seconds(runs) for one, runs in case.peers.items()}}))
        return print("\n".join(rate_lines(rates)))
    if not args.no_memory:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            library = folder / "allocations.so"
            subprocess.run(["g++", "-O2", "-std=c++20", "-shared", "-fPIC", "-o", library, ROOT / "bench/allocations.cpp"], check=True)
            for case in cases:
                print(f"memory: {case.title()}, {case.precision} …", file=sys.stderr, flush=True)
                case.count_memory(library, folder)
    write(page(args, load, cases, rates), args.out, "unet")


if __name__ == "__main__":
    main()
