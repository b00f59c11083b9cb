"""What a run may go on from, and what it is told where it may not."""

import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def first(name, **sections):
    """A run of two steps: its recipe."""
    path = t.write_recipe(f"{name}.toml", t.recipe(**({"run": dict(steps=2), "checkpoint": dict(every=2)} | sections)))
    t.train(path, name)
    return path


def goes_on(path, name, *arguments, **options):
    done = t.train(path, name, *arguments, run__steps=4, **options)
    t.check("resumed from" in done.all and len(t.metrics(name)) == 4, done.all)
    return done


def is_refused(code, parts, path, name, *arguments, **options):
    before = (t.work / name / "metrics.jsonl").read_bytes()
    given = {key.replace("__", "."): value for key, value in options.items()}
    t.refused(code, parts, "train", path, *t.sets({"run.output": str(t.work / name), "run.steps": 4} | given), *arguments)
    t.equal((t.work / name / "metrics.jsonl").read_bytes(), before, "metrics.jsonl after a refusal")


def test_an_imported_checkpoint_starts_a_run_and_is_none_itself():
    path = first("plain", ema=dict(enabled=False), optimizer=dict(plugin="sgd"), model=dict(convention="facebook"))
    t.run("checkpoint", "export", t.work / "plain", "--format", "facebook-dit", "--out", t.work / "plain.safetensors")
    t.run("checkpoint", "import", t.work / "plain.safetensors", "--format", "facebook-dit", "--recipe", path,
          "--out", t.work / "imported")
    is_refused(7, ["imported: holds weights and nothing else of a run", "--set run.init_from="], path, "plain",
               "--resume", t.work / "imported")
    t.train(path, "from-imported", run__init_from=str(t.work / "imported"), run__steps=1)


def test_another_optimizer_is_refused_by_name():
    path = first("adamw")
    for plugin in ("sgd", "lion", "adamw8bit"):
        is_refused(7, ["holds another optimizer's state", "init_from"], path, "adamw", optimizer__plugin=plugin)
    path = first("sgd", optimizer=dict(plugin="sgd"))
    is_refused(7, ["holds another optimizer's state", "init_from"], path, "sgd", optimizer__plugin="adamw")
    goes_on(path, "sgd")


def test_an_average_that_is_switched_on_is_refused_and_one_that_is_switched_off_is_let_go():
    path = first("ema")
    goes_on(path, "ema", ema__enabled=False)
    path = first("no-ema", ema=dict(enabled=False))
    is_refused(7, ["has no EMA", "ema.enabled"], path, "no-ema", ema__enabled=True)
    goes_on(path, "no-ema")


def test_other_pictures_of_the_same_names_and_sizes_are_other_data():
    shards = t.work / "shards"
    shutil.copytree(t.digits, shards)
    path = first("data", data=dict(shards=[f"{shards}/train-*.tar"]))
    shard = sorted(shards.glob("train-*.tar"))[0]
    whole = shard.read_bytes()
    at = whole.index(b"IDAT") + 8
    shard.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
    is_refused(2, ["the run learned from other data than is there now", "--allow-change data"], path, "data")
    goes_on(path, "data", "--allow-change", "data")


def test_a_run_that_is_moved_or_removed_meanwhile_says_so():
    path = t.write_recipe("long.toml", t.recipe(run=dict(steps=100_000), checkpoint=dict(every=50)))
    for name, move in (("moved", lambda at: at.rename(t.work / "elsewhere")), ("removed", shutil.rmtree)):
        log = t.work / f"{name}.log"
        with open(log, "w") as out:
            process = t.subprocess.Popen([t.ditto, "train", str(path), *t.sets({"run.output": str(t.work / name)})],
                                         cwd=t.work, env=t.environment, stdout=out, stderr=out, start_new_session=True)
        t.wait_for(lambda: t.lines_in(name) > 5 or process.poll() is not None, "steps")
        move(t.work / name)
        t.equal(process.wait(120), 7, f"exit code of a run that is {name}: {log.read_text()}")
        errors = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
        t.check(len(errors) == 1 and "was moved or removed while this run wrote it" in errors[0], log.read_text())


def test_a_run_whose_lock_file_is_removed_stays_alone():
    path = t.write_recipe("locked.toml", t.recipe(run=dict(steps=100_000)))
    process = t.start("train", path, *t.sets({"run.output": str(t.work / "locked")}))
    try:
        t.wait_for(lambda: t.lines_in("locked") > 2 or process.poll() is not None, "steps")
        (t.work / "locked/.lock").unlink()
        t.refused(2, ["locked: is being written by "], "train", path, *t.sets({"run.output": str(t.work / "locked")}))
        t.refused(2, ["locked: is being written by "], "checkpoint", "import", t.work / "plain.safetensors", "--format",
                  "facebook-dit", "--recipe", t.work / "plain.toml", "--out", t.work / "locked/checkpoints/step_00000001")
        t.check(process.poll() is None, "the run went on")
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    t.main(globals())
