#!/usr/bin/env python3
"""One training step of Ditto beside PyTorch in Python, on the same LibTorch version, machine and threads.

Every round times each setting of PyTorch and then Ditto, so that what disturbs the machine disturbs all: A B A B. A
ratio is PyTorch's time over Ditto's in the same round, above 1 where Ditto is faster; the table has the rounds' median.
In fp32 Ditto is timed twice: with the fastest kernels, and with run.numerics = "one". PyTorch's settings: attention by
its fused op (sdpa) and by plain matrix products, eager; with --compile the faster of the two under torch.compile as
well (20 to 30 s each). Start-up is measured too: from the start of the process to the
end of the first step of configs/digits.toml.

With --device cuda both sides compute on the first GPU, larger models, without the start-up.

Usage: ./dev bench step [--pairs 3] [--steps 5] [--only dit_s_2] [--compile] [--device cuda] [--out FOLDER]
"""
import argparse
import json
import os
import pathlib
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "peers"))


def without_refused_instructions():
    """Where bf16 products end the process (virtual machines that announce AMX and refuse it), both sides go without."""
    product = "import torch; a = torch.ones(64, 64).bfloat16(); a @ a"
    died = subprocess.run([sys.executable, "-c", product], stderr=subprocess.DEVNULL).returncode == -signal.SIGILL
    if died and "ONEDNN_MAX_CPU_ISA" not in os.environ:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"


without_refused_instructions()  # LibTorch reads it once
import torch  # noqa: E402

import dit  # noqa: E402

DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
RECIPES = {"dit_s_2": ("bench/dit_s_2.toml", []),
           "dit_s_2_1024": ("bench/dit_s_2.toml", ["data.height=64", "data.width=64", "run.batch=2"]),
           "dit_b_2": ("bench/dit_s_2.toml", ['model.preset="B/2"', "run.batch=4"]),
           "dit_s_2_128": ("bench/dit_s_2.toml", ["run.batch=128"]),
           "dit_xl_2_32": ("bench/dit_s_2.toml", ['model.preset="XL/2"', "run.batch=32"]),
           "digits_16": ("configs/digits.toml", ["run.batch=16"]),
           "digits_128": ("configs/digits.toml", ["run.batch=128"])}
TITLES = {"dit_s_2": "DiT-S/2, 32x32x4, batch 8", "dit_s_2_1024": "DiT-S/2, 64x64x4, batch 2",
          "dit_b_2": "DiT-B/2, 32x32x4, batch 4", "dit_s_2_128": "DiT-S/2, 32x32x4, batch 128",
          "dit_xl_2_32": "DiT-XL/2, 32x32x4, batch 32", "digits_16": "digits, batch 16",
          "digits_128": "digits, batch 128"}
ON = {"cpu": ["dit_s_2", "dit_s_2_1024", "dit_b_2", "digits_16", "digits_128"], "cuda": ["dit_s_2_128", "dit_xl_2_32"]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="rounds; each times PyTorch and Ditto (default 3)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps a round for DiT; the digits take four "
                        "times as many (default 5)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them in every round (default 2)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--only", choices=list(RECIPES), action="append", help="this model only (may be repeated)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], action="append", help="this one only")
    parser.add_argument("--device", choices=list(ON), default="cpu", help="where both compute (default cpu)")
    parser.add_argument("--compile", action="store_true", help="torch.compile of PyTorch's faster setting too")
    parser.add_argument("--no-start", action="store_true", help="leave start-up times out")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


def ditto_step(name, precision, steps, args, numerics="fast"):
    recipe, sets = RECIPES[name]
    sets = sets + [f"run.precision={precision}", f'run.numerics="{numerics}"', f"run.threads={args.threads}", f"run.device={args.device}"]
    command = [DITTO, "bench", "step", str(ROOT / recipe), "--json", "--steps", str(steps),
               "--warmup", str(max(1, args.warmup))]
    for one in sets:
        command += ["--set", one]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def peer_step(trainer, attention, precision, compiled, steps, warmup):
    seconds = []
    for i in range(warmup + steps):
        began = time.perf_counter()
        trainer.step(attention, precision, compiled)
        if i >= warmup:
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def matmul_size(device):
    return 1024 if device == "cpu" else 8192


def matmul_tflops(precision, device, seconds=0.2):
    """As `ditto bench step` measures it: the best of a product of two square matrices, on a GPU of eight in a row."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    size, repeats = matmul_size(device), 1 if device == "cpu" else 8
    if device == "cpu":
        a, b = (torch.full((size, size), 0.5, dtype=dtype) for _ in range(2))
    else:
        a = torch.arange(size * size, dtype=torch.float32, device=device).sin().to(dtype).view(size, size)
        b = a.t().contiguous()
    out, best = torch.empty_like(a), float("inf")

    def once():
        began = time.perf_counter()
        for _ in range(repeats):
            torch.mm(a, b, out=out)
        if device != "cpu":
            out[0, 0].item()  # waits for it
        return (time.perf_counter() - began) / repeats

    once()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        best = min(best, once())
    return 2 * size**3 / best / 1e12


class Case:
    """A model in a precision: the rounds' times of every setting, and Ditto's reports."""

    def __init__(self, name, precision):
        self.name, self.precision = name, precision
        self.peers, self.ours, self.one_number, self.peaks = {}, [], [], []

    def flops(self):
        return self.ours[0]["flops"]

    def peak(self):
        return max(self.peaks)

    def best_peer(self, settings):
        return min(settings, key=lambda s: statistics.median(self.peers[s]))

    def ratios(self, setting, ours=None):
        return [theirs / one["median_s"] for theirs, one in zip(self.peers[setting], ours or self.ours)]


def measure(name, precision, args):
    case = Case(name, precision)
    steps = args.steps * (4 if name.startswith("digits") else 1)
    trainer = dit.Trainer(dit.WORKLOADS[name], args.device)
    for _ in range(args.pairs):
        for attention in dit.ATTENTION:
            case.peers.setdefault(attention, []).append(
                peer_step(trainer, attention, precision, False, steps, args.warmup))
        if args.compile:
            best = case.best_peer(dit.ATTENTION) if not trainer.compiled else next(iter(trainer.compiled))
            case.peers.setdefault(f"{best}, compiled", []).append(
                peer_step(trainer, best, precision, True, steps, max(2, args.warmup)))
        case.peaks.append(matmul_tflops(precision, args.device))
        if args.device == "cuda":
            torch.cuda.empty_cache()  # Ditto is a process of its own beside this one
        case.ours.append(ditto_step(name, precision, steps, args))
        if precision == "fp32" and args.device == "cpu":
            case.one_number.append(ditto_step(name, precision, steps, args, "one"))
        case.peaks.append(case.ours[-1]["matmul_tflops"])
    if trainer.count() != case.ours[0]["parameters"]:
        sys.exit(f"step.py: {name}: the peer has {trainer.count()} parameters, Ditto {case.ours[0]['parameters']}: "
                 "not the same model")
    if trainer.w.batch != case.ours[0]["batch"]:
        sys.exit(f"step.py: {name}: the peer's batch is {trainer.w.batch}, Ditto's {case.ours[0]['batch']}")
    return case


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
    for _ in range(args.pairs):
        times["PyTorch"].append(start_peer(args))
        times["Ditto"].append(start_ditto(args))
    return times


def processor():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    value = lambda key: (re.search(rf"^{key}\s*: (.*)$", text, re.M) or [None, "unknown"])[1]
    sets = [s for s in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {s} " in value("flags") + " "]
    return (value("model name"), f"family {value('cpu family')}, model {value('model')}, stepping {value('stepping')}; "
            f"{os.cpu_count()} cores; {', '.join(sets)}")


def machine_name(args):
    return processor()[0] if args.device == "cpu" else torch.cuda.get_device_name()


def hardware_lines(args, load):
    name, details = processor()
    gpu = [] if args.device == "cpu" else [
        f"- GPU: {machine_name(args)}, {torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB; deterministic "
        "kernels in Ditto, PyTorch as it comes; fp32 without TF32"]
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    limits = f", both kept to ONEDNN_MAX_CPU_ISA={limit}" if limit else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return gpu + [f"- processor: {name} ({details}); {memory:.0f} GiB of memory",
            f"- {args.threads} threads each{limits}; load average before the run: {load:.2f}",
            f"- PyTorch {torch.__version__}; {time.strftime('%Y-%m-%d', time.gmtime())}; {args.pairs} rounds, "
            f"{args.steps} timed steps a round for DiT and {4 * args.steps} for the digits"]


def peak_lines(cases, device):
    peaks = {}
    for case in cases:
        peaks[case.precision] = max(peaks.get(case.precision, 0), case.peak())
    size = matmul_size(device)
    return peaks, [f"- matrix multiply ({size} x {size}, best of this run): " +
                   ", ".join(f"{p} {1000 * peak:.0f} GFLOP/s" for p, peak in peaks.items())] + [
        f"- Ditto's tensors at the peak, {TITLES[case.name]}, {case.precision}: "
        f"{case.ours[-1]['peak_bytes'] / 2**30:.2f} GiB" for case in cases]


def row(case, label, seconds, peak, ratio):
    median = statistics.median(seconds)
    rate = case.flops() / median / 1e12
    batch = case.ours[0]["batch"]
    return (f"| {TITLES[case.name]} | {case.precision} | {label} | {1000 * median:.1f} | {batch / median:.1f} | "
            f"{1000 * rate:.0f} | {100 * rate / peak:.0f} % | {ratio} |")


def ratio_text(ratios):
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def step_table(cases, peaks):
    lines = ["| model | precision | | step, ms | img/s | GFLOP/s | share | Ditto is faster by (range) |",
             "|---|---|---|---:|---:|---:|---:|---:|"]
    for case in cases:
        peak = peaks[case.precision]
        for setting, seconds in case.peers.items():
            lines.append(row(case, f"PyTorch, {setting}", seconds, peak, ratio_text(case.ratios(setting))))
        lines.append(row(case, "**Ditto**", [o["median_s"] for o in case.ours], peak, ""))
        if case.one_number:
            lines.append(row(case, "**Ditto**, one number", [o["median_s"] for o in case.one_number], peak, ""))
    return lines


def summary_table(cases):
    lines = ["| model | precision | PyTorch as it comes (sdpa) | PyTorch's best eager |" +
             (" PyTorch's best of all |" if any(len(c.peers) > 2 for c in cases) else ""), ""]
    lines[1] = "|" + "---|" * (lines[0].count("|") - 1)
    for case in cases:
        cells = [ratio_text(case.ratios("sdpa")), ratio_text(case.ratios(case.best_peer(dit.ATTENTION)))]
        if len(case.peers) > 2:
            cells.append(ratio_text(case.ratios(case.best_peer(case.peers))))
        lines.append(f"| {TITLES[case.name]} | {case.precision} | " + " | ".join(cells) + " |")
        if case.one_number:
            best = [case.best_peer(dit.ATTENTION)] + ([case.best_peer(case.peers)] if len(case.peers) > 2 else [])
            cells = [ratio_text(case.ratios(setting, case.one_number)) for setting in ["sdpa"] + best]
            lines.append(f"| {TITLES[case.name]} | {case.precision}, one number | " + " | ".join(cells) + " |")
    return lines


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
    if not os.access(DITTO, os.X_OK):
        sys.exit(f"step.py: there is no program at {DITTO}; run ./dev build, or set DITTO")
    if args.device == "cuda" and not torch.cuda.is_available():
        print("step.py: not run: no GPU", file=sys.stderr)
        sys.exit(77)
    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"step.py: something else runs here (load average {load:.2f}): these times say little", file=sys.stderr)
    cases = []
    for name in args.only or ON[args.device]:
        for precision in args.precision or ["fp32", "bf16"]:
            print(f"{TITLES[name]}, {precision} …", file=sys.stderr, flush=True)
            cases.append(measure(name, precision, args))
    peaks, peak_text = peak_lines(cases, args.device)
    lines = [f"# One training step, {machine_name(args)}", "", "Written by bench/step.py (`./dev bench step`).", ""]
    lines += hardware_lines(args, load) + peak_text
    lines += ["", "PyTorch's time over Ditto's, above 1 where Ditto is faster; the median of the rounds, and their "
              "range:", ""]
    lines += summary_table(cases)
    lines += ["", "A step is forward, backward, gradients' norm, AdamW (fused) and EMA. GFLOP/s counts the model's own "
              "products (a backward as two forwards); the share is of the matrix multiply above.", ""]
    lines += step_table(cases, peaks)
    if not args.no_start and args.device == "cpu":
        print("start-up …", file=sys.stderr, flush=True)
        lines += [""] + start_lines(start_up(args))
    print("\n".join(lines))
    args.out.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", machine_name(args).lower())).strip("-")
    path = args.out / f"step-{slug}.md"
    path.write_text("\n".join(lines) + "\n")
    print(f"written: {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
