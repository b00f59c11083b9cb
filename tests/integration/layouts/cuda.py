"""What one GPU can show: the matrix of layouts against the CPU, NCCL with itself, bits that come again, and memory as
measured. With --slow, and where there are several GPUs, layouts of several ranks too."""

import contextlib
import glob
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

TRANSPORT = ""  # run.transport of what computes on a GPU; mock_gpu.py, whose GPUs are none, has its own, and a smaller model
ONE_GPU = {}  # and variables with which there is one alone
SHARING = ["shard=2 shard_plugin=fsdp", "tensor=2 sequence=true"]  # layouts of ranks that share a GPU
LARGE = dict(run=dict(steps=4, batch=32, micro_batch=16, precision="bf16"), model=dict(plugin="dit", depth=12, width=384, heads=6, patch=2),
             data=t.synthetic(channels=4, height=32, width=32, content="noise"))  # DiT-S/2


def gpus():
    """How many there are; a machine without, or a build without CUDA, has nothing to test."""
    count = len(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")
    if not count:
        raise t.NotRun("no GPU")
    if not (t.build / "lib/ditto/plugins/transports/libnccl.so").exists():
        raise t.NotRun("there is a GPU, but the build is without CUDA (no plugin nccl)")
    return count


def on(device):
    """Options of a run there."""
    return {"run.device": device} | ({"run.transport": TRANSPORT if device == "cuda" else ""} if TRANSPORT else {})


@contextlib.contextmanager
def sharing_a_gpu():
    """What runs meanwhile may have several ranks on one GPU, which NCCL refuses."""
    global TRANSPORT
    folder = t.work / "staged"  # not that of all plugins for tests, some of which are wrong
    folder.mkdir(exist_ok=True)
    shutil.copy(t.build / "tests/fixture_plugins/staged.so", folder)
    before = t.environment, TRANSPORT
    t.environment, TRANSPORT = t.environment | ONE_GPU | {"DITTO_PLUGIN_PATH": str(folder)}, "staged"
    try:
        yield
    finally:
        t.environment, TRANSPORT = before


def matrix(*arguments, timeout):
    words = [t.build / "tests/ditto_matrix", *map(str, arguments), "--device", "cuda", *(("--transport", TRANSPORT) if TRANSPORT else ())]
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, env=t.environment)
    print(done.stdout, end="", flush=True)  # the figures, and the peaks of memory
    t.equal(done.returncode, 0, "exit code of ditto_matrix")
    return done.stdout


def train(name, *arguments, tree=None, device="cuda", **options):
    path = t.write_recipe(f"{name}.toml", tree or t.recipe(run=dict(steps=12), checkpoint=dict(every=6)))
    return t.train(path, name, *arguments, **on(device) | options)


def test_what_one_device_can_run_trains_as_one_rank_on_the_cpu():
    gpus()
    matrix("--table", "device", timeout=1500)


def test_layouts_of_several_gpus_train_as_one_rank_on_the_cpu():
    if gpus() < 4:
        raise t.NotRun("fewer than 4 GPUs")
    matrix("--table", "all" if t.slow else "core", *(["--only", " fp64 "] if t.slow else []), timeout=3600)


def test_two_ranks_that_share_a_gpu_train_as_one_rank_on_the_cpu():
    gpus()
    with sharing_a_gpu():
        matrix(*(word for layout in SHARING for word in ("--layout", layout)), timeout=600)


def test_two_runs_give_the_same_bits():
    gpus()
    for precision in ("fp32", "bf16"):
        for name in ("first", "second"):
            train(f"{name}-{precision}", run__precision=precision)
        t.same_metrics(f"first-{precision}", f"second-{precision}")
        t.same_state(f"first-{precision}", f"second-{precision}")


def test_a_resume_gives_the_bits_of_the_uninterrupted_run():
    gpus()
    train("whole")
    train("parts", run__steps=6)
    train("parts")
    t.same_metrics("whole", "parts")
    t.same_state("whole", "parts")
    t.check("gpu = " in (t.work / "whole/run.toml").read_text(), "run.toml does not name the GPU")


def test_recomputation_gives_the_same_bits():
    gpus()
    train("plain")
    train("recomputed", parallel__recompute="blocks")
    t.same_metrics("plain", "recomputed")
    t.same_state("plain", "recomputed")


def test_a_model_gives_the_cpus_outputs_and_gradients():
    gpus()
    train("exact", device="cpu", run__precision="fp64", run__steps=3)
    numbers = [(i * 37 % 101 - 50) / 25 for i in range(4 * 64)]
    x, y = str(t.work / "x.safetensors"), str(t.work / "y.safetensors")
    t.write_tensors(x, {"x": ("F64", [4, 1, 8, 8], numbers), "t": ("F32", [4], [3.5, 250.0, 777.7, 999.0]),
                        "label": ("I64", [4], [0, 3, 9, 10]), "grad_output": ("F64", [4, 1, 8, 8], numbers[::-1])})
    results = []
    for device in ("cpu", "cuda"):
        t.run("forward", t.work / "exact", "--in", x, "--out", y, "--grad", *t.sets(on(device)))
        results.append({name: t.numbers(tensor) for name, tensor in t.read_tensors(y).items()})
    for name, expected in results[0].items():
        largest = max(map(abs, expected), default=0) or 1
        worst = max((abs(a - b) for a, b in zip(results[1][name], expected)), default=0) / largest
        t.check(worst <= 1e-12, f"{name} is {worst:.1e} away from the CPU's")


def test_samples_and_exports_of_a_run_on_a_gpu():
    gpus()
    train("sampled")
    for folder in ("a", "b"):
        t.run("sample", t.work / "sampled", "--out", t.work / folder, "--seeds", "0-9", "--steps", 4, "--guidance", 2)
    for seed in range(10):
        name = f"{seed:06}.png"
        t.equal(t.read_png(t.work / "a" / name)[3] == t.read_png(t.work / "b" / name)[3], True, f"{name} twice")
    t.run("sample", t.work / "sampled", "--out", t.work / "cpu", "--seeds", "0-9", "--steps", 4,
          *t.sets(on("cpu")))
    t.run("checkpoint", "export", t.work / "sampled", "--format", "facebook-dit", "--out", t.work / "exported.safetensors")


def memory(name, **options):
    """Bytes of the device's tensors in the last step."""
    train(name, "--trace", "comm", tree=t.recipe(**LARGE), **options)
    shares = t.lines_of(t.work / name / "metrics.jsonl")[-1]["mem"]
    print(f"{name}: " + ", ".join(f"{share} {size / 1e6:.1f} MB" for share, size in shares.items()), flush=True)
    return shares


def test_memory_that_recomputation_and_offload_save():
    gpus()
    plain, recomputed = memory("memory-plain"), memory("memory-recomputed", parallel__recompute="blocks")
    offloaded = memory("memory-offloaded", parallel__offload="optimizer")
    t.check(recomputed["activations"] < 0.5 * plain["activations"], "recomputation saves less than half of the activations")
    t.equal((offloaded["optimizer"], offloaded["ema"]), (0, 0), "bytes of states and averages that are left on the device")
    masters = plain["optimizer"] / 2
    t.check(plain["parameters"] - offloaded["parameters"] > 0.9 * masters, "offload leaves fp32 weights on the device")


if __name__ == "__main__":
    t.main(globals())
