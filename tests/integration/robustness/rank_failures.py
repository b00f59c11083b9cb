"""What goes wrong on several ranks is said once, by whoever starts them and in whatever command, and ends all of them.

Claim (failures): A mistake that all ranks find is said once, one that a single rank finds ends the others, under any launcher.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

launchers = {
    "torchrun": lambda rank, count: {"RANK": rank, "WORLD_SIZE": count},
    "Slurm": lambda rank, count: {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": count, "SLURM_STEP_NUM_NODES": 1},
    "Open MPI": lambda rank, count: {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": count,
                                     "OMPI_COMM_WORLD_LOCAL_SIZE": count},
}
_trained = []


def recipe():
    return t.write_recipe("digits.toml", t.recipe(run=dict(name="digits", steps=2)))


def trained():
    if not _trained:
        t.train(recipe(), "digits")
        _trained.append(t.work / "digits")
    return _trained[0]


class Launch:
    """`count` ranks as a launcher starts them; folders[rank] is where one runs, if not in this script's folder."""

    def __init__(self, launcher, count, *words, folders=None):
        port, ranks = 20000 + os.getpid() % 10000, range(count)
        files = [t.work / f"error-{rank}.json" for rank in ranks]
        for file in files:
            file.unlink(missing_ok=True)
        started = [subprocess.Popen(
            [t.ditto, *(str(word) for word in words)], cwd=(folders or {}).get(rank, t.work), text=True,
            env=t.environment | {"MASTER_PORT": str(port), "TORCHELASTIC_ERROR_FILE": str(files[rank])}
            | {key: str(value) for key, value in launchers[launcher](rank, count).items()},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for rank in ranks]
        self.said = [process.communicate(timeout=t.patient(120))[1] for process in started]
        self.codes = [process.returncode for process in started]
        self.files = [json.loads(file.read_text())["message"]["message"] if file.exists() else "" for file in files]
        self.errors = [line for text in self.said for line in text.splitlines() if line.startswith("error: ")]


def fail_alike(launcher, code, part, *words):
    done = Launch(launcher, 3, *words)
    t.equal(done.codes, [code] * 3, f"exit codes of {launcher}'s ranks: {done.said}")
    t.check(len(done.errors) == 1 and part in done.errors[0], f"{launcher}: one error with \"{part}\" in {done.said}")
    for rank, text in enumerate(done.files):
        t.check(part in text, f"{launcher}: the error file of rank {rank}: {text}")


def test_what_is_wrong_on_all_ranks_is_said_once():
    path = recipe()
    for launcher in launchers:
        fail_alike(launcher, 2, "model.width is 0", "train", path, "--set", "model.width=0")
    fail_alike("Slurm", 3, "no model 'dot'", "train", path, "--set", "model.plugin=dot")
    fail_alike("Slurm", 2, "the degrees tensor 2", "bench", "step", path, "--set", "parallel.tensor=2")
    fail_alike("Slurm", 2, "3 data ranks", "forward", path, "--in", "x.safetensors", "--out", "y.safetensors")


def test_a_command_line_that_cannot_be_read_is_said_once():
    done = Launch("Slurm", 2, "train", recipe(), "--nonsense")
    t.equal(done.codes, [2, 2], f"exit codes: {done.said}")
    t.equal("".join(done.said).count("--nonsense"), 1, f"how often they say it: {done.said}")
    t.check(all("--nonsense" in text for text in done.files), f"error files: {done.files}")


def test_what_is_wrong_on_one_rank_is_said_by_it_and_ends_the_others():
    recipe()
    empty = t.work / "another host"
    empty.mkdir()
    for launcher in launchers:
        done = Launch(launcher, 3, "train", "digits.toml", *t.sets({"run.steps": 10**6}), folders={2: empty})
        t.equal(done.codes, [6, 6, 2], f"exit codes of {launcher}'s ranks: {done.said}")
        t.check(len(done.errors) == 1 and "rank 2: digits.toml" in done.errors[0], f"{launcher}: {done.said}")
        for rank in (0, 1):
            t.check(f"rank {rank} ends because rank 2 failed" in done.said[rank], f"{launcher}: {done.said}")


def test_a_plugins_mistake_on_one_rank_is_said_with_its_place_and_nobody_else_is_blamed():
    plugins = t.work / "plugins"
    plugins.mkdir()
    shutil.copy(t.build / "tests/fixture_plugins/faulty_layout.so", plugins)
    path = t.write_recipe("faulty.toml", t.recipe(
        run=dict(name="faulty", steps=2, batch=4), model=dict(plugin="faulty_layout", fault="none"),
        objective=dict(plugin="diffusion", condition_dropout=0.0), parallel=dict(timeout_s=120)))
    pipeline, regions = {"parallel.pipeline": 2, "run.micro_batch": 1}, {"parallel.tensor": 2, "parallel.sequence": True}
    faults = [("borrows from a later block", pipeline, "is used while its numbers are with other ranks"),
              ("borrows from an earlier block", pipeline, "is used while its numbers are with other ranks"),
              ("takes part of the tokens", regions, 'layer "blocks.0.up": is given a tensor of ')]
    for fault, layout, said in faults:
        began = time.monotonic()
        done = t.refused(3, ["block ", "of model 'faulty_layout'", said], "train", path, "--local-ranks", 2,
                         *t.sets({"model.fault": fault, "run.output": str(t.work / "faulty")} | layout),
                         env={"DITTO_PLUGIN_PATH": str(plugins)})
        t.check("hangs" not in done.all, f"{fault}: {done.all}")
        t.check(time.monotonic() - began < 100, f"{fault}: it took {time.monotonic() - began:.0f} s: {done.all}")


def hang(folder, *words):
    """Two ranks, of which one is stopped; what they say."""
    options = t.sets({"parallel.hang_s": 2, "parallel.timeout_s": 15})
    log = t.work / f"{folder}.log"
    with open(log, "w") as out:
        process = subprocess.Popen([t.ditto, *(str(word) for word in words), *options, "--local-ranks", "2"], cwd=t.work,
                                   env=t.environment, stdout=out, stderr=out)
    # Starting takes about a second of their time, which is long on a busy machine.
    t.wait_for(lambda: [t.cpu_seconds(pid) > 3 for pid in t.children(process.pid)] == [True, True], "two ranks at work", 120)
    os.kill(t.children(process.pid)[1], signal.SIGSTOP)
    t.equal(process.wait(60), 6, f"exit code: {log.read_text()}")
    return log.read_text()


def test_a_rank_that_is_stopped_ends_the_others_of_sample_and_bench_too():
    for name, words in (("sample", ["sample", trained(), "--out", t.work / "samples", "--seeds", "0-99999"]),
                        ("bench", ["bench", "step", recipe(), "--steps", 10**6])):
        said = hang(name, *words)
        t.check("rank 0 ends because rank 1 was lost" in said, f"{name}: {said}")


def test_what_one_process_does_is_refused_to_several():
    for words in (["data", "prepare", t.digits, "--out", t.work / "shards"],
                  ["checkpoint", "export", trained(), "--format", "diffusers", "--out", t.work / "x.safetensors"],
                  ["checkpoint", "import", "x.pt", "--format", "diffusers", "--recipe", recipe(), "--out", t.work / "x"]):
        done = Launch("Slurm", 2, *words)
        t.equal(done.codes, [2, 2], f"exit codes of {words}: {done.said}")
        t.check(all("2 ranks" in text and "Slurm" in text for text in done.said), f"{words}: {done.said}")


if __name__ == "__main__":
    t.main(globals())
