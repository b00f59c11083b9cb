"""A training step of Ditto beside PyTorch in Python, on the same LibTorch version, machine and threads: times, rates and tables.

Every round times each setting of PyTorch and then Ditto, so that what disturbs the machine disturbs all: A B A B. A
ratio is PyTorch's time over Ditto's in the same round, above 1 where Ditto is faster; tables have the rounds' median.
"""
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))
from instructions import without_refused_instructions  # noqa: E402

without_refused_instructions()  # LibTorch reads it once
import torch  # noqa: E402

import dit  # noqa: E402
from report import details, processor, spread, usable_processors  # noqa: E402

DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
SCRIPT = pathlib.Path(sys.argv[0]).name
RATIOS = "PyTorch's time over Ditto's, above 1 where Ditto is faster; the median of the rounds, and their range:"
STEP = ("A step is forward, backward, gradients' norm, AdamW (fused) and EMA. GFLOP/s counts the model's own products (a backward as two "
        "forwards); the share is of the matrix multiply above.")


def add_arguments(parser):
    parser.add_argument("--warmup", type=int, default=2, help="steps before them in every round (default 2)")
    parser.add_argument("--threads", type=int, default=usable_processors(), help="default: all that may be used")
    parser.add_argument("--compile", choices=list(dit.ATTENTION), nargs="*", metavar="SETTING",
                        help="torch.compile of PyTorch's settings too, or of these alone: sdpa, products")
    parser.add_argument("--mock", action="store_true", help="a rehearsal of --device cuda where there is no GPU: Ditto on the mock GPU of "
                        "the tests, PyTorch on the CPU")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")


def begin(args):
    """The load average before the run."""
    if not os.access(DITTO, os.X_OK):
        sys.exit(f"{SCRIPT}: there is no program at {DITTO}; run ./dev build, or set DITTO")
    if peer_device(args) == "cuda" and not torch.cuda.is_available():
        print(f"{SCRIPT}: not run: no GPU", file=sys.stderr)
        sys.exit(77)
    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"{SCRIPT}: something else runs here (load average {load:.2f}): these times say little", file=sys.stderr)
    return load


def peer_device(args):
    return "cpu" if args.mock else args.device


def compiled_settings(args):
    return () if args.compile is None else args.compile or list(dit.ATTENTION)


@dataclasses.dataclass(frozen=True)
class Model:
    """What both sides compute: the peer a workload, Ditto a recipe and its changes."""
    title: str
    workload: dit.Workload
    recipe: str
    sets: tuple


def ditto_step(model, precision, steps, args, numerics="fast"):
    sets = [*model.sets, f"run.precision={precision}", f'run.numerics="{numerics}"', f"run.threads={args.threads}",
            f"run.device={args.device}"]
    if args.device == "cuda":
        sets.append('run.transport="mock_gpu"' if args.mock else 'plugins.kernels=["cuda"]')
    command = [DITTO, "bench", "step", str(ROOT / model.recipe), "--json", "--steps", str(steps),
               "--warmup", str(max(1, args.warmup))]
    for one in sets:
        command += ["--set", one]
    mock = {"DITTO_PLUGIN_PATH": str(pathlib.Path(DITTO).parents[1] / "tests/mock_gpu")} if args.mock else {}
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ | mock).stdout)


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

    def __init__(self, title, precision):
        self.title, self.precision = title, precision
        self.peers, self.ours, self.one_number, self.peaks = {}, [], [], []
        self.peer_bytes = {}  # of a GPU, at the peak of each setting

    def flops(self):
        return self.ours[0]["flops"]

    def peak(self):
        return max(self.peaks)

    def best_peer(self, settings):
        return min(settings, key=lambda s: statistics.median(self.peers[s]))

    def ratios(self, setting, ours=None):
        return [theirs / one["median_s"] for theirs, one in zip(self.peers[setting], ours or self.ours)]


def measure(model, precision, steps, args):
    print(f"{model.title}, {precision} …", file=sys.stderr, flush=True)
    torch.compiler.reset()  # or what a second model compiles would serve any shape, and after some nothing would be compiled
    case = Case(model.title, precision)
    device = peer_device(args)
    trainer = dit.Trainer(model.workload, device)
    settings = [(name, name, False) for name in dit.ATTENTION]
    settings += [(f"{name}, compiled", name, True) for name in compiled_settings(args)]
    for _ in range(args.rounds):
        for setting, attention, compiled in settings:
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            case.peers.setdefault(setting, []).append(
                peer_step(trainer, attention, precision, compiled, steps, max(2, args.warmup) if compiled else args.warmup))
            if device == "cuda":
                case.peer_bytes[setting] = torch.cuda.max_memory_allocated()
        case.peaks.append(matmul_tflops(precision, device))
        if device == "cuda":
            torch.cuda.empty_cache()  # Ditto is a process of its own beside this one
        case.ours.append(ditto_step(model, precision, steps, args))
        if precision == "fp32" and args.device == "cpu":
            case.one_number.append(ditto_step(model, precision, steps, args, "one"))
        case.peaks.append(case.ours[-1]["matmul_tflops"])
    if trainer.count() != case.ours[0]["parameters"]:
        sys.exit(f"{SCRIPT}: {model.title}: the peer has {trainer.count()} parameters, Ditto {case.ours[0]['parameters']}: "
                 "not the same model")
    if trainer.w.batch != case.ours[0]["batch"]:
        sys.exit(f"{SCRIPT}: {model.title}: the peer's batch is {trainer.w.batch}, Ditto's {case.ours[0]['batch']}")
    return case


def machine_name(args):
    return processor() if peer_device(args) == "cpu" else torch.cuda.get_device_name()


def hardware_lines(args, load, rounds):
    gpu = [] if peer_device(args) == "cpu" else [
        f"- GPU: {machine_name(args)}, {torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB; deterministic "
        "kernels in Ditto, PyTorch as it comes; fp32 without TF32"]
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    limits = f", both kept to ONEDNN_MAX_CPU_ISA={limit}" if limit else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return gpu + [f"- processor: {processor()} ({details()}); {memory:.0f} GiB of memory",
            f"- {args.threads} threads each{limits}; load average before the run: {load:.2f}",
            f"- PyTorch {torch.__version__}; {time.strftime('%Y-%m-%d', time.gmtime())}; {rounds}"]


def peaks_of(cases):
    """Precision -> the rate of a matrix multiply."""
    peaks = {}
    for case in cases:
        peaks[case.precision] = max(peaks.get(case.precision, 0), case.peak())
    return peaks


def peak_line(peaks, device):
    size = matmul_size(device)
    return (f"- matrix multiply ({size} x {size}, best of this run): " +
            ", ".join(f"{p} {1000 * peak:.0f} GFLOP/s" for p, peak in peaks.items()))


def as_json(cases):
    """For programs: seconds of a step, each the rounds' median, and bytes at the peak."""
    return [{"model": case.title, "precision": case.precision, "batch": case.ours[0]["batch"],
             "parameters": case.ours[0]["parameters"], "flops": case.flops(), "matmul_tflops": case.peak(),
             "seconds": {"Ditto": statistics.median(one["median_s"] for one in case.ours)} |
                        {name: statistics.median(seconds) for name, seconds in case.peers.items()},
             "bytes": {"Ditto": case.ours[-1]["peak_bytes"]} | case.peer_bytes} for case in cases]


def row(case, label, seconds, peak, ratio):
    median = statistics.median(seconds)
    rate = case.flops() / median / 1e12
    batch = case.ours[0]["batch"]
    return (f"| {case.title} | {case.precision} | {label} | {1000 * median:.1f} | {batch / median:.1f} | "
            f"{1000 * rate:.0f} | {100 * rate / peak:.0f} % | {ratio} |")


def step_table(cases, peaks):
    lines = ["| model | precision | | step, ms | img/s | GFLOP/s | share | Ditto is faster by (range) |",
             "|---|---|---|---:|---:|---:|---:|---:|"]
    for case in cases:
        peak = peaks[case.precision]
        for setting, seconds in case.peers.items():
            lines.append(row(case, f"PyTorch, {setting}", seconds, peak, spread(case.ratios(setting), ".2f")))
        lines.append(row(case, "**Ditto**", [o["median_s"] for o in case.ours], peak, ""))
        if case.one_number:
            lines.append(row(case, "**Ditto**, one number", [o["median_s"] for o in case.one_number], peak, ""))
    return lines


def summary_table(cases):
    lines = ["| model | precision | PyTorch as it comes (sdpa) | PyTorch's best eager |" +
             (" PyTorch's best of all |" if any(len(c.peers) > 2 for c in cases) else ""), ""]
    lines[1] = "|" + "---|" * (lines[0].count("|") - 1)
    for case in cases:
        settings = ["sdpa", case.best_peer(dit.ATTENTION)] + ([case.best_peer(case.peers)] if len(case.peers) > 2 else [])
        for label, ours in ((case.precision, case.ours), (f"{case.precision}, one number", case.one_number)):
            if ours:
                cells = [spread(case.ratios(setting, ours), ".2f") for setting in settings]
                lines.append(f"| {case.title} | {label} | " + " | ".join(cells) + " |")
    return lines
