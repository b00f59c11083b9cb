"""Starting costs a rank no more memory than what it keeps: the model is cut before it is filled, and a checkpoint's pieces
go where they belong. Of every rank the anonymous memory is watched from its start until its first step.

Claim (machine): Until its first step a rank holds at most its share of weights, states and average, 2 % more, and what a model
of one block holds, from initialisation and from a checkpoint of one rank. Also: DiT-XL/2 on 4 ranks in `start_up.py --slow`
"""

import os
import pathlib
import shutil
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

MiB = 1 << 20
FSDP = {"parallel.shard": 4, "parallel.shard_plugin": "fsdp"}


def anonymous(pid):
    """Bytes of a process's own memory, in use now; files that it maps are not counted."""
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line for line in text.splitlines() if line.startswith("RssAnon:")]
    return 1024 * int(found[0].split()[1]) if found else 0


def until_first_step(path, folder, ranks, *arguments, **options):
    """Starts a run and ends it when all ranks are ready for their first step, which is when run.toml is there; what each rank
    held at most, and the seconds."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    began = time.monotonic()
    process = t.start("train", path, "--local-ranks", ranks, *t.sets({"run.output": str(t.work / folder)} | FSDP | given), *arguments)
    most, ready = {}, t.work / folder / "run.toml"
    try:
        while not ready.exists():
            t.check(process.poll() is None, f"{folder} ended before its first step:\n{(t.work / 'started.log').read_text()[-2000:]}")
            t.check(time.monotonic() - began < 600, f"{folder} is not at its first step after 600 s")
            for pid in t.children(process.pid):
                most[pid] = max(most.get(pid, 0), anonymous(pid))
            time.sleep(0.002)
        seconds, there = time.monotonic() - began, t.children(process.pid)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(t.work / folder)
    t.equal(len(there), ranks, "ranks that were watched")
    return [most[pid] for pid in there], seconds


def share(path):
    """Bytes of weights, states and average of one rank of four: what has to be there at the first step."""
    said = t.run("train", path, "--dry-run", "--json", "--ranks", 4, *t.sets(FSDP)).stdout
    largest = t.json.loads(said)["largest"]["bytes"]
    return sum(largest[kind] for kind in ("parameters", "optimizer", "ema"))


def check_peaks(name, path):
    """From initialisation, and from a checkpoint that one rank wrote."""
    expected = share(path)
    for source in ("initialisation", "one rank's checkpoint"):
        peaks = []
        for folder, depth in (("one-block", ("--set", "model.depth=1")), ("all-blocks", ())):
            arguments = list(depth)
            if source != "initialisation":
                t.train(path, "by-one", "--set", "run.steps=0", *depth)
                arguments += ["--resume", t.latest("by-one")]
            most, seconds = until_first_step(path, folder, 4, *arguments)
            shutil.rmtree(t.work / "by-one", ignore_errors=True)
            peaks.append(max(most))
        bound = 1.02 * expected + peaks[0]
        print(f"  {name}, from {source}: {peaks[1] / MiB:.0f} MiB on a rank; its share {expected / MiB:.0f}, one block "
              f"{peaks[0] / MiB:.0f}, allowed {bound / MiB:.0f}; {seconds:.1f} s to the first step", flush=True)
        t.check(peaks[1] > expected, f"{name}, from {source}: a rank held {peaks[1]} bytes of a share of {expected}")
        t.check(peaks[1] <= bound, f"{name}, from {source}: a rank held {peaks[1]} bytes, and {bound:.0f} are allowed")


def recipe(model, **sections):
    tree = t.recipe(run=dict(steps=1, batch=4), data=t.synthetic(channels=4, height=32, width=32, classes=1000), **sections)
    tree["model"] = model
    return t.write_recipe("start.toml", tree)


def test_a_rank_starts_in_the_memory_of_its_share():
    # All weights are twice what a rank keeps of weights and momentum, so that they would be seen.
    path = recipe(dict(plugin="dit", depth=24, width=384, heads=6, patch=2), optimizer=dict(plugin="sgd"), ema=dict(enabled=False))
    check_peaks("24 blocks of 384", path)


def test_a_rank_of_the_largest_dit_starts_in_the_memory_of_its_share():
    if not t.slow:
        raise t.NotRun("DiT-XL/2 takes minutes, 12 GB of memory and 11 GB of disk (./dev test --all)")
    available = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable:")) * 1024
    free = shutil.disk_usage(t.work).free
    if min(available, free) < 14 << 30:
        raise t.NotRun(f"needs 14 GB of memory and of disk; {available >> 30} and {free >> 30} are free")
    check_peaks("DiT-XL/2", recipe(dict(plugin="dit", preset="XL/2")))


if __name__ == "__main__":
    t.main(globals())
