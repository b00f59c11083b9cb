"""Standard output and error that are full, closed, or read by nobody; and files that may not grow."""

import os
import pathlib
import resource
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

FULL = "No space left on device"


def pipe_without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def ditto(*arguments, out=subprocess.PIPE, err=subprocess.PIPE, closed=(), limit=None):
    """Runs ditto with these streams; `closed`: descriptors that it finds closed; `limit`: of a file's bytes."""
    def prepare():
        for descriptor in closed:
            os.close(descriptor)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return subprocess.run([t.ditto, *(str(word) for word in arguments)], stdout=out, stderr=err, text=True, timeout=t.patient(240),
                          cwd=t.work, env=t.environment, preexec_fn=prepare)


def commands():
    """Every command that prints what it found."""
    run = t.work / "run"
    if not run.exists():
        path = t.write_recipe("run.toml", t.recipe(run=dict(steps=2), model=dict(convention="facebook")))
        t.train(path, "run")
    pictures = t.work / "pictures"
    if not pictures.exists():
        t.run("sample", run, "--out", pictures, "--seeds", "0", "--steps", "1")
    return {
        "help": ["--help"], "version": ["--version"], "train help": ["train", "--help"],
        "sample": ["sample", run, "--out", t.work / "pictures", "--seeds", "0-1", "--steps", "1", "--overwrite"],
        "inspect": ["checkpoint", "inspect", run], "inspect --json": ["checkpoint", "inspect", run, "--json"],
        "verify": ["checkpoint", "verify", t.latest("run")],
        "export": ["checkpoint", "export", run, "--format", "facebook-dit", "--out", t.work / "exported.safetensors"],
        "import": ["checkpoint", "import", t.work / "exported.safetensors", "--format", "facebook-dit", "--recipe",
                   t.work / "run.toml", "--out", t.work / "imported"],
        "config check": ["config", "check", t.work / "run.toml"], "config show": ["config", "show", t.work / "run.toml"],
        "data inspect": ["data", "inspect", t.digits], "data inspect --json": ["data", "inspect", t.digits, "--json"],
        "data verify": ["data", "verify", t.digits],
        "data prepare": ["data", "prepare", pictures, "--out", t.work / "shards"],
        "plugins list": ["plugins", "list"], "plugins show": ["plugins", "show", "model/dit"],
        "plugins show --json": ["plugins", "show", "model/dit", "--json"],
        "doctor": ["doctor", "--output", t.work / "doctor"],
        "bench step": ["bench", "step", t.work / "run.toml", "--steps", "1", "--warmup", "0"],
        "bench loader": ["bench", "loader", t.work / "run.toml", "--seconds", "0.01"],
        "bench optimizer": ["bench", "optimizer", t.work / "run.toml", "--rounds", "1", "--warmup", "0"],
        "bench kernels": ["bench", "kernels", t.work / "run.toml", "--op", "silu", "--seconds", "0.001"],
        "bench checkpoint": ["bench", "checkpoint", t.work / "run.toml", "--rounds", "1", "--folder", t.work],
        "bench sample": ["bench", "sample", run, "--seeds", "0", "--steps", "1", "--warmup", "0"],
    }


def test_results_that_cannot_be_printed_are_an_error_of_every_command():
    for name, words in commands().items():
        with open("/dev/full", "w") as full:
            done = ditto(*words, out=full)
        t.equal(done.returncode, 4, f"exit code of {name} into a full disk: {done.stderr}")
        t.check(f"error: standard output: cannot be written: {FULL}" in done.stderr, f"{name}: {done.stderr}")
        t.equal(done.stderr.count("error: "), 1, f"errors of {name}: {done.stderr}")


def test_a_closed_output_and_one_without_a_reader_are_errors_too():
    for name in ("version", "inspect", "plugins list", "config show"):
        words = commands()[name]
        done = ditto(*words, closed=[1])
        t.equal((done.returncode, done.stderr), (4, "error: standard output: is closed, and what was to be printed is lost\n"), name)
        writer = pipe_without_reader()
        done = ditto(*words, out=writer)
        os.close(writer)
        t.equal((done.returncode, done.stderr), (4, "error: standard output: cannot be written: Broken pipe\n"), name)
        t.equal(ditto(*words, err=subprocess.DEVNULL, closed=[2]).returncode, 0, f"{name} without standard error")


def test_a_run_goes_on_without_anybody_who_hears_it():
    path = t.write_recipe("deaf.toml", t.recipe(run=dict(steps=3), log=dict(plain_every=0.001)))
    t.train(path, "heard")
    for name, ranks in (("full", 1), ("closed", 1), ("no-reader", 1), ("full", 2)):
        folder = f"{name}-{ranks}"
        words = ["train", path, *t.sets({"run.output": str(t.work / folder)})] + (["--local-ranks", 2] if ranks > 1 else [])
        if name == "full":
            with open("/dev/full", "w") as full:
                done = ditto(*words, out=full, err=full)
        elif name == "closed":
            done = ditto(*words, closed=[0, 1, 2])
        else:
            writer = pipe_without_reader()
            done = ditto(*words, out=writer, err=writer)
            os.close(writer)
        t.equal(done.returncode, 0, f"exit code of a run with {folder} streams")
        log = (t.work / folder / "log.txt").read_text()
        t.check("samples to learn from" in log and "step 3/3" in log, f"{folder}/log.txt: {log}")
        if ranks == 1:
            t.same_metrics("heard", folder)


def test_files_that_may_not_grow_end_a_run_by_one_error():
    path = t.write_recipe("small.toml", t.recipe(run=dict(steps=300), checkpoint=dict(every=0)))
    done = ditto("train", path, *t.sets({"run.output": str(t.work / "metrics")}), limit=20_000)
    t.equal(done.returncode, 4, f"exit code where metrics.jsonl cannot grow: {done.stderr}")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    t.check(len(errors) == 1 and "metrics/metrics.jsonl: cannot be written: File too large" in errors[0], done.stderr)
    # A checkpoint is larger than anything else that this run writes.
    done = ditto("train", path, *t.sets({"run.output": str(t.work / "saved"), "run.steps": 2}), limit=40_000)
    t.equal(done.returncode, 7, f"exit code where a checkpoint cannot grow: {done.stderr}")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    t.check(len(errors) == 1 and "the save failed: " in errors[0] and "File too large" in errors[0], done.stderr)
    t.equal(os.listdir(t.work / "saved/checkpoints"), [], "what a save that failed leaves")
    t.train(path, "saved", run__steps=2)
    # TensorBoard's events: the last of them are written at the end, and count as well.
    done = ditto("train", path, *t.sets({"run.output": str(t.work / "events"), "run.steps": 20, "log.tensorboard": True,
                                         "log.tensorboard_flush": 1e9, "checkpoint.every": 0, "model.width": 4,
                                         "model.heads": 1, "model.depth": 1, "data.classes": 10}), limit=12_000)
    t.check(done.returncode in (4, 7), f"{done.returncode}: {done.stderr}")
    t.equal(done.stderr.count("error: "), 1, f"errors: {done.stderr}")


if __name__ == "__main__":
    t.main(globals())
