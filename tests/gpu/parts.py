"""What tests/gpu/run does, a function a part: it returns a sentence and figures, or raises support.Failed or support.NotRun.

Of a machine with a GPU; with MOCK on mock GPUs (tests/mock_gpu) at small sizes, which rehearses everything but the card.
"""

import csv
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "tests/integration"), str(SOURCE / "bench/lib")]
import support as t  # noqa: E402
import cuda  # noqa: E402
import cuda_emulated  # noqa: E402
from floor import floor_ms  # noqa: E402

MOCK = "--mock" in sys.argv
CUDAS = {"LD_LIBRARY_PATH": str(t.build / "lib/torch/../nvidia/cu13/lib")}  # where PyTorch has cublasLt, which only a test opens by itself
OUT = pathlib.Path()  # where results go; t.work is removed at the end
if MOCK:
    import mock_gpu  # noqa: E402  makes cuda.py's GPUs its own


def said(command, timeout=600, code=0, env=None):
    """What a program prints."""
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout,
                          cwd=t.work, env=t.environment | (env or {}))
    print(done.stdout, done.stderr, sep="", end="", flush=True)
    t.check(done.returncode == code, f"exit code {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def with_torch():
    """A Python that has PyTorch."""
    for python in (sys.executable, os.environ.get("DITTO_PEERS"), SOURCE / ".deps/peers/bin/python"):
        if python and shutil.which(python) and subprocess.run([str(python), "-c", "import torch"], capture_output=True).returncode == 0:
            return python
    raise t.NotRun("needs a Python with PyTorch")


def tool(name):
    found = shutil.which(name) or shutil.which(f"/usr/local/cuda/bin/{name}")
    if MOCK or not found:
        raise t.NotRun(f"{name} needs a GPU" if MOCK else f"there is no {name}")
    return found


# --- the card ------------------------------------------------------------------------------------------------------------


def card():
    """The program, its plugins and the GPU are there."""
    doctor = json.loads(said([t.ditto, "doctor", "--json"]))
    plugins = sum(len(names) for names in doctor["plugins"].values())
    if MOCK:
        return f"a mock; {plugins} plugins", {"name": "mock"}
    t.check(shutil.which("nvidia-smi"), "there is no nvidia-smi: the driver is not where programs are looked for")
    query = "name,driver_version,memory.total,clocks.max.sm"
    name, driver, memory, clock = said(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]).splitlines()[0].split(", ")
    return f"{name}, driver {driver}, {plugins} plugins", {"name": name, "driver": driver, "memory": memory, "clock": clock}


def ceilings():
    figures = json.loads(said([with_torch(), SOURCE / "tests/gpu/ceilings.py", *(["--small"] if MOCK else [])]).splitlines()[-1])
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in figures.items() if name != "on")
    return numbers, figures


# --- kernels -------------------------------------------------------------------------------------------------------------


def emulation():
    program = OUT / "emulated/cuda_kernels"
    return program if program.exists() else cuda_emulated.program(OUT / "emulated", cuda_emulated.objects(OUT / "emulated"))


def kernels_program():
    if MOCK:
        return emulation()
    of_kit = t.build / "tests/cuda_kernels"
    if of_kit.exists():
        return of_kit
    if (SOURCE / "kit.json").exists():
        raise t.NotRun("the kit was packed where there is no nvcc")
    made = subprocess.run([sys.executable, SOURCE / "tests/gpu/build_kernels", OUT / "built"], text=True, capture_output=True)
    if made.returncode == 77:
        raise t.NotRun(made.stdout.removeprefix("not run: ").strip())
    t.check(made.returncode == 0, made.stderr)
    return OUT / "built/cuda_kernels"


def hashes(text):
    """[(case, hash)], and cases that are wrong fail."""
    wrong = [line for line in text.splitlines() if "WRONG" in line]
    t.check(not wrong, *wrong)
    found = [(line.split(":")[0], line.split(" bits ")[1].split()[0]) for line in text.splitlines() if " bits " in line]
    t.check(found, "no case ran")
    return found


def kernels():
    """Each against fp64; the hash that emulation has of it; and a second run's."""
    program, of_kit = kernels_program(), t.build / "tests/emulated.txt"
    first = hashes(said([program, "0"], env=CUDAS))
    second = hashes(said([program, "1"], env=CUDAS))  # another order of threads, where they are emulated
    emulated = hashes(of_kit.read_text() if of_kit.exists() else said([emulation(), "2"]))
    other = [case for (case, mine), (_, theirs) in zip(first, emulated)
             if mine != theirs and not case.startswith("product, ")]  # cublasLt's sums have an order of its own
    again = [case for (case, mine), (_, theirs) in zip(first, second) if mine != theirs]
    figures = {"cases": len(first), "not_the_emulations": other, "not_the_same_twice": again}
    t.equal([case for case, _ in first], [case for case, _ in emulated], "cases")
    t.check(not other and not again, f"of {len(first)} cases {len(other)} have not the emulation's hash, {len(again)} not the same "
            f"twice: {', '.join((other + again)[:5])}")
    return f"{len(first)} cases within a rounding of fp64, twice the same, with the emulation's hashes but for cublasLt's", figures


def exact():
    found = hashes(said([kernels_program(), "0", "fp32", "products"]))
    t.check(len(found) >= 16, f"only {len(found)} cases")
    return f"{len(found)} products with the CPU's bits", {"cases": len(found)}


def racecheck():
    sanitizer, figures = tool("compute-sanitizer"), {}
    for word in ("updates", "products", "norms", "rows", "maps"):
        text = said([sanitizer, "--tool", "racecheck", "--error-exitcode", "9", kernels_program(), "0", "fp32", word])
        figures[word] = re.findall(r"RACECHECK SUMMARY: (.*)", text)
    return "no races: " + ", ".join(figures), figures


# --- training ------------------------------------------------------------------------------------------------------------


def on_gpu():
    """Options of a run there, with the kernels of plugins/kernels/cuda; on the mock, which has none in a kit, with the references."""
    return cuda.on("cuda") | ({} if MOCK else {"plugins.kernels": ["cuda"]})


def matrix():
    """The table `device`: each case against one rank on the CPU."""
    text = cuda.matrix("--table", "device", *(["--every", "6"] if MOCK else []), timeout=600)
    return text.splitlines()[-1], {"ok": text.count("\nok ") + text.startswith("ok ")}


def nccl():
    """Groups of one member, whose every gather and exchange is made by the transport."""
    text = cuda.matrix("--table", "device", "--only", "dit fp64 shard=1 shard_plugin=fsdp", *(["--every", "3"] if MOCK else []), timeout=300)
    return text.splitlines()[-1], {}


def recipe(name, **run):
    return t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, batch=16, micro_batch=8) | run, checkpoint=dict(every=4)))


def training():
    """The same training as on the CPU."""
    steps, figures = 5 if MOCK else 50, {}
    for precision, bound in (("fp64", 1e-12), ("fp32", 1e-5)):
        path = recipe(precision, steps=steps, precision=precision)
        for device in ("cpu", "cuda"):
            t.train(path, f"{precision}-{device}", **(on_gpu() if device == "cuda" else cuda.on(device)))
        here, there = (float(t.metrics(f"{precision}-{device}")[-1]["loss"]) for device in ("cpu", "cuda"))
        figures[precision] = abs(here - there) / abs(here)
        t.check(figures[precision] <= bound, f"{precision}: the loss after {steps} steps is {here} on the CPU and {there} on the GPU")
    return f"the CPU's loss after {steps} steps, " + ", ".join(f"{p} to {value:.1e}" for p, value in figures.items()), figures


def fingerprint(folder):
    """Of a run's metrics, and of all that its last checkpoint keeps."""
    text = hashlib.sha256(json.dumps(t.metrics(folder)).encode())
    for key, (dtype, shape, data) in sorted(t.tensors_of(t.latest(folder)).items()):
        text.update(f"{key} {dtype} {shape}".encode() + data)
    return text.hexdigest()[:16]


def bits():
    """Of two runs, and of one that is killed and resumed."""
    steps = 12 if MOCK else 100
    path = recipe("bits", steps=steps, precision="bf16")
    for name in ("first", "second"):
        t.train(path, name, **on_gpu())
    sets = {"run.output": str(t.work / "killed")} | on_gpu()
    process = t.start("train", path, *t.sets(sets))
    t.wait_for(lambda: t.checkpoints("killed") or process.poll() is not None, "a checkpoint")
    t.check(process.poll() is None, "the run that is to be killed ended before:", (t.work / "started.log").read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    t.check(t.lines_in("killed") < steps, "the run that is to be killed was done")
    t.train(path, "killed", **on_gpu())
    found = {name: fingerprint(name) for name in ("first", "second", "killed")}
    t.check(len(set(found.values())) == 1, f"hashes differ: {found}")
    return f"one hash of two runs and of one killed and resumed: {found['first']}", found


def staged():
    """Two ranks on one card, their tensors through the host's memory: as one rank on the CPU in fp64; twice, and as one
    rank on the card, to the bit."""
    path, found = recipe("staged", steps=4 if MOCK else 50, precision="bf16"), {}
    with cuda.sharing_a_gpu():
        cuda.matrix(*(word for layout in cuda.SHARING for word in ("--layout", layout)), timeout=300)
        for name, ranks in (("first", 2), ("second", 2), ("alone", 1)):
            t.train(path, f"staged-{name}", "--local-ranks", ranks, **on_gpu())
            found[name] = fingerprint(f"staged-{name}")
    t.check(len(set(found.values())) == 1, f"hashes differ: {found}")
    return f"{len(cuda.SHARING)} layouts in fp64 as on the CPU; two runs of two ranks have one rank's hash: {found['alone']}", found


# --- speed ---------------------------------------------------------------------------------------------------------------

BENCH = {"dit_s_2_128": (30, 256, 12, 384), "dit_b_2_128": (35, 256, 12, 768), "dit_xl_2_128": (70, 256, 28, 1152)}  # seconds, shapes


def floor_of(case, tokens, depth, width):
    """Milliseconds, by what this card's ceilings are; none without them."""
    file = OUT / "ceilings.json"
    measured = json.loads(file.read_text())["figures"] if file.exists() else None
    if not measured or MOCK:
        return None
    return sum(floor_ms(depth=depth, width=width, tokens=tokens, batch=case["batch"], parameters=case["parameters"],
                        tflops=measured["bf16_tflops"], terabytes=measured["copy_tb_s"]).values())


def bench():
    """A step beside PyTorch's, eager and compiled, in bf16."""
    python, lines, figures, failed = with_torch(), [], {}, []
    models = {"digits_16": (120, 16, 6, 128)} if MOCK else BENCH
    how = ["--mock", "--pairs", 1, "--steps", 1, "--warmup", 1] if MOCK else ["--compile", "sdpa", "--pairs", 2, "--steps", 8]
    for name, (limit, *shape) in models.items():
        file = OUT / f"step-{name}.json"
        command = [python, SOURCE / "bench/step.py", "--device", "cuda", "--precision", "bf16", "--only", name, *how, "--json", file, "--out", OUT]
        try:
            said(command, timeout=limit, env={"DITTO": str(t.ditto)})
        except (subprocess.TimeoutExpired, t.Failed) as why:
            print(why, flush=True)
            failed.append(name)
            continue
        (case,) = json.loads(file.read_text())
        least = floor_of(case, *shape)
        figures[name] = case | {"floor_ms": least}
        ours = 1000 * case["seconds"]["Ditto"]
        lines.append(f"{name} {ours:.1f} ms, PyTorch {', '.join(f'{k} {1000 * v:.1f}' for k, v in case['seconds'].items() if k != 'Ditto')}"
                     + (f", floor {least:.1f}: {ours / least:.2f} of it" if least else ""))
    t.check(not failed, "; ".join(lines), f"no figure of {', '.join(failed)}")
    return "; ".join(lines), figures


def ncu():
    """The five kernels of a step of DiT-S/2 that take longest, then what the profiler says of each."""
    profiler = tool("ncu")
    step = [t.ditto, "bench", "step", SOURCE / "bench/dit_s_2.toml", "--steps", 2, "--warmup", 1,
            *t.sets({"run.precision": "bf16", "run.batch": 128} | on_gpu())]
    text = said([profiler, "--csv", "--metrics", "gpu__time_duration.sum", "--kernel-name-base", "function", "--clock-control", "none",
                 "--launch-skip", 2000, "--launch-count", 800, *step])
    rows = csv.DictReader(io.StringIO("\n".join(line for line in text.splitlines() if line.startswith('"'))))
    spent = {}
    for row in rows:
        spent[row["Kernel Name"]] = spent.get(row["Kernel Name"], 0) + float(row["Metric Value"].replace(",", ""))
    t.check(spent, "the profiler saw no kernel")
    longest = sorted(spent, key=spent.get, reverse=True)[:5]
    shares = {name: spent[name] / sum(spent.values()) for name in longest}
    names = "regex:^(" + "|".join(re.escape(name) for name in longest) + ")$"
    (OUT / "ncu.txt").write_text(said([profiler, "--set", "basic", "--kernel-name-base", "function", "--kernel-name", names, "--clock-control",
                                       "none", "--launch-skip", 200, "--launch-count", 20, *step]))
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items()), shares


# In the order of their worth, and how many seconds each has: on a GPU, and on the mock.
PARTS = {"card": (card, 20, 20), "ceilings": (ceilings, 30, 60), "kernels": (kernels, 40, 200), "matrix": (matrix, 90, 240),
         "training": (training, 30, 60), "exact": (exact, 15, 30), "nccl": (nccl, 20, 60), "staged": (staged, 35, 90),
         "bits": (bits, 25, 60), "racecheck": (racecheck, 30, 20), "bench": (bench, 120, 120), "ncu": (ncu, 25, 20)}
TOTAL = 480, 600
