#!/usr/bin/env python3
"""Encoders beside diffusers and transformers, of the same random weights: Stable Diffusion's autoencoder at 256 x 256 both ways, T5 1.1's
base at 128 tokens and CLIP's ViT-L/14 text encoder at 77, batch 8.

Every round times each setting of the peer and then Ditto, each in a process of its own, so that what disturbs the machine disturbs all:
A B A B. A ratio is the peer's time over Ditto's in the same round, above 1 where Ditto is faster; the table has the rounds' median. The
peer's settings: the autoencoder with maps channels first and channels last, text encoders with attention eager and by sdpa; with --compile
all under torch.compile too. All texts fill their places.

Encoding is what `ditto bench step --breakdown` says of it, of a step of a tiny model: of texts from the caption on, tokenizer and all, of
pictures with the draw of a latent. The peer gets ids. Decoding is the time from one file of pictures of `ditto sample` to the next, with one
step of that model and the PNG. Start-up is in none. Memory is a process's largest resident set (VmHWM), of Ditto with the tiny model's
training or sampling in it.

Bounds: 1.1 times the peer's best setting; in bf16 1.5 where LibTorch's bf16 convolution is slower than its fp32 one, which is measured; the
memory at most that of the peer's setting that takes least; and caching (`ditto encode`, loader.encoded) saves of a step what the breakdown
says encoding takes, within 10 %.

Usage: ./dev bench encode [--rounds 3] [--repeats 3] [--only t5] [--compile] [--out FOLDER]
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
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from instructions import without_refused_instructions  # noqa: E402
from report import details, load_now, processor, spread, today, usable_processors, write  # noqa: E402
import vocabularies  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
PEER = str(ROOT / "bench/peers/encoders.py")
WORKS = {"vae_encode": "encode 256 x 256", "vae_decode": "decode to 256 x 256", "t5": "T5 1.1 base, 128 tokens", "clip": "CLIP-L, 77 tokens"}
MAPS, ATTENTION = ["channels first", "channels last"], ["eager", "sdpa"]
TINY = {"depth": 1, "width": 32, "heads": 1}
LEARNS = {"scheduler": {"plugin": "rectified_flow"}, "sampler": {"plugin": "euler", "steps": 1}, "objective": {"plugin": "diffusion"},
          "optimizer": {"plugin": "adamw"}, "lr_schedule": {"lr": 1e-4}, "ema": {"enabled": False}}
CACHE_SIDE, CACHE_BATCH = 64, 4


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="each times all (default 3)")
    parser.add_argument("--repeats", type=int, default=3, help="batches timed in a round, behind one that is not (default 3)")
    parser.add_argument("--pictures", type=int, default=1, help="batch of the autoencoder (default 1)")
    parser.add_argument("--only", choices=list(WORKS), action="append", help="this one only (may be repeated)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], action="append", help="this one only")
    parser.add_argument("--compile", action="store_true", help="torch.compile of the peer's settings too")
    parser.add_argument("--threads", type=int, default=usable_processors(), help="default: all that may be used")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


# --- recipes -----------------------------------------------------------------------------------------------------------


def recipe(path, batch, **sections):
    run = {"name": "bench_encode", "steps": 100, "batch": batch, "seed": 0, "numerics": "fast"}
    lines = []
    for name, options in ({"run": run} | sections | LEARNS).items():
        lines += [f"[{name.replace('__', '.')}]", *(f"{key} = {json.dumps(value)}" for key, value in options.items()), ""]
    path.write_text("\n".join(lines))


def pictures(folder, name, side, batch, model):
    recipe(folder / f"{name}.toml", batch, data={"plugin": "synthetic", "samples": 16 * batch, "height": side, "width": side},
           encoder__image={"plugin": "autoencoder_kl", "weights": "vae", "format": "diffusers"}, model={"plugin": "dit", "patch": 4} | model)


def texts(folder, kind, plugin, format, tokens):
    vocabularies.write_texts(folder / f"{kind}.tar", kind, 64)
    recipe(folder / f"{kind}.toml", 8,
           data={"plugin": "webdataset", "shards": [f"{kind}.tar"], "size": [8, 8], "label": "none", "caption": "txt"},
           encoder__image={"plugin": "identity"},
           encoder__text={"plugin": plugin, "takes": "caption", "weights": kind, "format": format, "tokens": tokens},
           model={"plugin": "dit_text", "patch": 8} | TINY)


def prepare(folder, args):
    """What both sides read, and the recipes."""
    peer("save", folder)
    vocabularies.write_t5(folder / "t5")
    vocabularies.write_clip(folder / "clip")
    texts(folder, "t5", "t5", "transformers", 128)
    texts(folder, "clip", "clip_text", "transformers5", 77)
    pictures(folder, "vae", 256, args.pictures, TINY)
    pictures(folder, "cache", CACHE_SIDE, CACHE_BATCH, {"depth": 4, "width": 128, "heads": 4})
    if not args.only or "vae_decode" in args.only:
        run([DITTO, "train", str(folder / "vae.toml"), *sets(args, "fp32", run__steps=1, run__output=str(folder / "run"))])


# --- running -----------------------------------------------------------------------------------------------------------


def sets(args, precision, **options):
    options = {"run__precision": precision, "run__threads": args.threads} | options
    return [word for key, value in options.items() for word in ("--set", f"{key.replace('__', '.')}={json.dumps(value)}")]


def run(command):
    """What it prints, and its largest resident set in bytes. This process is small: a child begins as large as it is."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=said, text=True)
        with process.stdout:
            printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said.seek(0)
            sys.exit(f"encode.py: {' '.join(process.args)} ended with {process.returncode}:\n{said.read()}")
    return printed, 1024 * usage.ru_maxrss


def peer(*words):
    """What it says, and its memory."""
    printed, memory = run([sys.executable, PEER, *words])
    return json.loads(printed.splitlines()[-1]), memory


def ditto_step(path, args, precision, steps, **options):
    printed, memory = run([DITTO, "bench", "step", path, "--json", "--breakdown", "--warmup", 1, "--steps", steps,
                           *sets(args, precision, **options)])
    return json.loads(printed), memory


def encoding_seconds(step):
    """Of one batch."""
    return step["breakdown"]["phases_s"]["encode"] / len(step["steps_s"])


def ditto_decode(folder, args, precision):
    """Seconds from a batch's last file to the next one's."""
    out, batches = folder / "samples", args.repeats + 1
    _, memory = run([DITTO, "sample", folder / "run", "--out", out, "--overwrite", "--progress", "none", "--batch", args.pictures, "--seeds",
                     f"0-{batches * args.pictures - 1}", *sets(args, precision)])
    files = [out / f"{args.pictures * (1 + i) - 1:06}.png" for i in range(batches)]
    times = [file.stat().st_mtime_ns for file in files]
    for file in out.iterdir():
        file.unlink()  # else they are there already
    return (times[-1] - times[0]) / args.repeats / 1e9, memory


class Case:
    """A work in a precision: each round's seconds a batch, and the largest memory."""

    def __init__(self, work, precision, args):
        self.work, self.precision = work, precision
        self.batch = args.pictures if work.startswith("vae") else 8
        kinds = MAPS if work.startswith("vae") else ATTENTION
        self.settings = kinds + ([f"{kind}, compiled" for kind in kinds] if args.compile else [])
        self.peers, self.ours, self.memory, self.our_memory = {one: [] for one in self.settings}, [], dict.fromkeys(self.settings, 0), 0

    def round(self, folder, args):
        """The rates of products that Ditto has found meanwhile, in TFLOP/s."""
        for setting in self.settings:
            found, memory = peer("time", folder, self.work, self.precision, setting, self.batch, args.repeats, args.threads)
            self.peers[setting].append(statistics.fmean(found["seconds"]))
            self.memory[setting] = max(self.memory[setting], memory)
        rates = []
        if self.work == "vae_decode":
            seconds, memory = ditto_decode(folder, args, self.precision)
        else:
            step, memory = ditto_step(folder / f"{self.work.partition('_')[0]}.toml", args, self.precision, args.repeats)
            seconds = encoding_seconds(step)
            rates.append(step["matmul_tflops"])
        self.ours.append(seconds)
        self.our_memory = max(self.our_memory, memory)
        return rates

    def best(self):
        return min(self.settings, key=lambda one: statistics.median(self.peers[one]))

    def ratios(self, setting):
        return [theirs / ours for theirs, ours in zip(self.peers[setting], self.ours)]

    def memory_ratio(self):
        return self.our_memory / min(self.memory.values())


class Caching:
    """A step's seconds while it encodes, what the breakdown says of them, and without: of each round."""
    STEPS = 4  # as many times the repeats

    def __init__(self, folder, args):
        self.path, self.online, self.said, self.cached = folder / "cache.toml", [], [], []
        self.words = {"loader__encoded": str(folder / "encoded")}
        run([DITTO, "encode", self.path, "--out", folder / "encoded", "--progress", "none", *sets(args, "fp32")])

    def round(self, args):
        steps = self.STEPS * args.repeats
        step, _ = ditto_step(self.path, args, "fp32", steps)
        self.online.append(statistics.fmean(step["steps_s"]))
        self.said.append(encoding_seconds(step))
        self.cached.append(statistics.fmean(ditto_step(self.path, args, "fp32", steps, **self.words)[0]["steps_s"]))

    def saved(self):
        """Of what encoding is said to take."""
        return [(online - cached) / said for online, cached, said in zip(self.online, self.cached, self.said)]


class Rates:
    """The largest of the run, in TFLOP/s."""

    def __init__(self):
        self.products, self.convolutions = {}, {}

    def add(self, found):
        for kind, kept in (("products", self.products), ("convolutions", self.convolutions)):
            for precision, rate in found.get(kind, {}).items():
                kept[precision] = max(kept.get(precision, 0), rate)

    def slow_bf16(self):
        return self.convolutions["bf16"] < self.convolutions["fp32"]

    def bound(self, precision):
        return 1.5 if precision == "bf16" and self.slow_bf16() else 1.1


# --- the page ----------------------------------------------------------------------------------------------------------


def milliseconds(seconds):
    return spread([1e3 * one for one in seconds], ".0f")


def title(case):
    return f"{WORKS[case.work]}, batch {case.batch}"


def bounds_table(cases, rates):
    yield "| | precision | peer's best setting | its time over Ditto's (range) | bound | Ditto's memory over its | bound |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for case in cases:
        yield (f"| {title(case)} | {case.precision} | {case.best()} | {spread(case.ratios(case.best()), '.2f')} | "
               f"{rates.bound(case.precision)} | {case.memory_ratio():.2f} | 1.0 |")


def times_table(cases, rates, flops):
    yield "| | precision | | ms a batch | GFLOP/s | share | memory, MB | Ditto is faster by (range) |"
    yield "|---|---|---|---:|---:|---:|---:|---:|"
    for case in cases:
        peer_name = "diffusers" if case.work.startswith("vae") else "transformers"
        rows = [(f"{peer_name}, {one}", case.peers[one], case.memory[one], spread(case.ratios(one), ".2f")) for one in case.settings]
        for label, seconds, memory, ratio in rows + [("**Ditto**", case.ours, case.our_memory, "")]:
            rate = flops[case.work] * case.batch / statistics.median(seconds) / 1e12
            yield (f"| {title(case)} | {case.precision} | {label} | {milliseconds(seconds)} | {1e3 * rate:.0f} | "
                   f"{100 * rate / rates.products[case.precision]:.0f} % | {memory / 1e6:.0f} | {ratio} |")


def rate_lines(rates):
    def shown(found):
        return ", ".join(f"{precision} {1e3 * rate:.0f} GFLOP/s" for precision, rate in found.items())
    says, bound = ("slower", 1.5) if rates.slow_bf16() else ("no slower", 1.1)
    return [f"- matrix multiply (1024 x 1024, best of this run): {shown(rates.products)}; the share is of it",
            f"- LibTorch's 3 x 3 convolutions of the autoencoder's maps, in the better order: {shown(rates.convolutions)}. In bf16 they are "
            f"{says} than in fp32, so that the bound in bf16 is {bound}"]


def page(args, load, cases, rates, facts, caching):
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return [f"# Encoders, {processor()}", "", "Written by bench/encode.py (`./dev bench encode`), which says what is timed.", "",
            f"- processor: {processor()} ({details()}); {args.threads} threads each"
            f"{f', both kept to ONEDNN_MAX_CPU_ISA={limit}' if limit else ''}; load average before the run: {load:.2f}",
            f"- {args.rounds} rounds of {args.repeats} batches; {facts['versions']}; {today()}",
            *rate_lines(rates),
            "- a sample's own operations: " + ", ".join(f"{WORKS[work]} {count / 1e9:.1f} GFLOP" for work, count in facts["flops"].items()),
            f"- with caching a step of {CACHE_BATCH} pictures of {CACHE_SIDE} x {CACHE_SIDE} takes {milliseconds(caching.cached)} ms, and while it "
            f"encodes {milliseconds(caching.online)} ms, of which the breakdown says encoding took {milliseconds(caching.said)} ms",
            f"- what caching saves over what the breakdown says (bound 0.9 to 1.1): {spread(caching.saved(), '.2f')}", "",
            *bounds_table(cases, rates), "", *times_table(cases, rates, facts["flops"])]


def main():
    args = arguments()
    without_refused_instructions()
    load = load_now()
    cases = [Case(work, precision, args) for work in args.only or WORKS for precision in args.precision or ["fp32", "bf16"]]
    rates, facts = Rates(), peer("facts")[0]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(folder, args)
        caching = Caching(folder, args)
        for i in range(args.rounds):
            rates.add(peer("rates", args.threads)[0])
            for case in cases:
                print(f"round {i + 1}: {title(case)}, {case.precision} …", file=sys.stderr, flush=True)
                for rate in case.round(folder, args):
                    rates.add({"products": {case.precision: rate}})
            caching.round(args)
    write(page(args, load, cases, rates, facts, caching), args.out, "encode")


if __name__ == "__main__":
    main()
