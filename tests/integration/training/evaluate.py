"""Claim (layouts): `ditto evaluate` gives the validation of a run to its last digit on 1 and 2 ranks and with `fsdp` 2, of
its average and of its weights, and holds all that are named against the same samples, times and noise."""

import json
import pathlib
import shutil
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

LAYOUTS = {"1 rank": [], "2 ranks": ["--local-ranks", 2],
           "fsdp 2": ["--local-ranks", 2, *t.sets({"parallel.shard": 2, "parallel.shard_plugin": "fsdp"})]}


def recipe(name, held_out=100, **sections):
    data = t.synthetic(samples=64, validation_samples=held_out) | sections.pop("data", {})
    tree = t.recipe(data=data, model=dict(depth=1, width=16, heads=2) | sections.pop("model", {}), sampler=None,
                    validate=dict(every=2) | sections.pop("validate", {}), **sections)
    return t.write_recipe(name, tree)


def evaluated(*words):
    """The JSON that a command prints, its numbers as they are written: equal texts mean equal bits."""
    done = t.run("evaluate", *words, "--json", "--progress", "none")
    found = json.loads(done.stdout, parse_float=str)
    found["said"] = done.stderr
    return found


def row_of(found, run, weights="ema", step=None):
    rows = [row for row in found["rows"] if row["run"] == str(t.work / run) and row["weights"] == weights
            and step in (None, row["step"])]
    t.equal(len(rows), 1, f"rows of {run}, {weights}, step {step}")
    return rows[0]


def same_as_of_run(row, line, what):
    t.equal((row["loss"], row["samples"], row["losses"]), (line["validation_loss"], line["samples"], line["losses"]), what)
    t.equal([stratum["loss"] for stratum in row["strata"]], line["strata"], f"strata of {what}")


def last_validation(run):
    return t.lines_of(t.work / run / "validation.jsonl")[-1]


def test_the_validation_of_the_run_to_its_last_digit_on_every_layout():
    for held_out, strata in ((100, "one"), (20, "each")):
        path = recipe(f"{strata}.toml", held_out)
        runs = {f"{strata}-{name.replace(' ', '-')}": words for name, words in LAYOUTS.items()}
        for run, words in runs.items():
            t.train(path, run, *words)
            t.train(path, f"{run}-no-average", *words, ema__enabled=False)
        for name, words in LAYOUTS.items():
            found = evaluated(*(t.work / folder for run in runs for folder in (run, f"{run}-no-average")), *words)
            t.equal((found["strata"], found["seed"], len(found["rows"])), (strata, 0, 9), f"strata, seed and rows on {name}")
            for run in runs:
                same_as_of_run(row_of(found, run), last_validation(run), f"{run} on {name}")
                # The average changes nothing of what is learned.
                plain = last_validation(f"{run}-no-average")
                same_as_of_run(row_of(found, run, "weights"), plain, f"weights of {run} on {name}")
                same_as_of_run(row_of(found, f"{run}-no-average", "weights"), plain, f"{run} without average on {name}")
        run = next(iter(runs))
        cut = row_of(evaluated(t.work / run, "--local-ranks", 2, "--set", "parallel.tensor=2"), run)
        loss, own = float(cut["loss"]), float(last_validation(run)["validation_loss"])
        t.check(abs(loss - own) < 1e-5 * own and cut["samples"] == held_out, f"with tensor 2 {loss}, in the run {own}")


def test_each_stratum_has_every_sample_and_intervals_are_of_samples():
    path = recipe("few.toml", 20)
    t.train(path, "few")
    each = row_of(evaluated(t.work / "few"), "few")
    t.equal((each["samples"], each["step"], each["learned"]), (20, 8, 128), "samples, step, and samples learned from")
    mean = sum(float(stratum["loss"]) for stratum in each["strata"]) / 8
    t.check(abs(mean - float(each["loss"])) < 1e-9 * mean, f"the strata's mean is {mean} in {each}")
    for part in (each, *each["strata"]):
        low, high = map(float, part["interval"])
        half = 2.093024054408263 * float(part["standard_error"])  # Student's, of 19 degrees of freedom
        t.check(half > 0 and abs(high - low - 2 * half) < 1e-9, f"interval in {part}")
    one = row_of(evaluated(t.work / "few", "--set", "validate.strata=one"), "few")
    t.check(one["samples"] == 20 and one["loss"] != each["loss"], f"{one} and {each}")
    t.equal(last_validation("few")["samples"], 20, "samples that counted in the run")


def test_all_that_are_named_are_held_against_the_same():
    for seed in (0, 1):
        t.train(recipe(f"seed-{seed}.toml", 80), f"seed-{seed}", run__seed=seed)
    t.train(recipe("wide.toml", 80, model=dict(width=24)), "wide")
    runs = [t.work / name for name in ("seed-0", "seed-1", "wide")]
    found = evaluated(*runs)
    t.equal([found["said"].count(word) for word in ("note: ", "run.seed", str(runs[1]))], [1, 1, 1], f"notes in {found['said']}")
    same_as_of_run(row_of(found, "seed-0"), last_validation("seed-0"), "the first one")
    same_as_of_run(row_of(found, "wide"), last_validation("wide"), "another model")
    other = row_of(found, "seed-1")
    t.check(other["loss"] != last_validation("seed-1")["validation_loss"], "other noise gave the same loss:", other)
    t.equal(other["loss"], row_of(evaluated(runs[1], "--set", "run.seed=0"), "seed-1")["loss"], "by the first one's seed")
    turned = evaluated(*reversed(runs), "--set", "run.seed=0")
    for name in ("seed-0", "seed-1", "wide"):
        t.equal(row_of(turned, name)["loss"], row_of(found, name)["loss"], f"{name} in another order")


def test_a_run_that_did_not_validate_and_other_samples():
    t.train(t.write_recipe("plain.toml", t.recipe()), "plain")
    t.train(t.write_recipe("seen.toml", t.recipe(validate=dict(every=8))), "seen")
    own = row_of(evaluated(t.work / "plain"), "plain")
    same_as_of_run(own, last_validation("seen"), "a run that did not validate")
    named = row_of(evaluated(t.work / "plain", "--data", t.digits), "plain")
    t.equal(named["loss"], own["loss"], "of a folder those that are held out by their names")
    (t.work / "others").mkdir()
    shutil.copy(t.digits / "train-000003.tar", t.work / "others/some.tar")
    shutil.copy(t.digits / "train-000003.tar", t.work / "same.tar")
    others = evaluated(t.work / "plain", "--data", "others", "--weights", "ema")
    t.equal(len(others["rows"]), 1, "rows of the average alone")
    t.check(others["rows"][0]["loss"] != own["loss"], "other samples gave the same loss:", others)
    t.equal(evaluated(t.work / "plain", "--data", "same.tar")["rows"][0]["loss"], others["rows"][0]["loss"], "of a file")
    # Of a prepared set: another set, or shards.
    with tarfile.open(t.digits / "validation-000000.tar") as shard:
        for number, member in enumerate(one for one in shard.getmembers()[:200] if one.name.endswith(".png")):
            folder = t.work / "pictures" / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / member.name).write_bytes(shard.extractfile(member).read())
    t.run("data", "prepare", t.work / "pictures", "--out", t.work / "set", "--validation", "0.2")
    prepared = t.recipe(run=dict(steps=1), data=dict(shards=[], validation_shards=[], path=str(t.work / "set"), classes=0))
    t.train(t.write_recipe("set.toml", prepared), "set")
    of_set = row_of(evaluated(t.work / "set"), "set")
    for place, labels in ((t.work / "set", []), (t.work / "set/validation-000000.tar", t.sets({"data.label": "cls"}))):  # which a set says
        t.equal(row_of(evaluated(t.work / "set", "--data", place, *labels), "set")["loss"], of_set["loss"], f"of {place}")
    t.refused(2, ["--data", "synthetic"], "evaluate", tiny_run(), "--data", "others")
    t.train(t.write_recipe("none.toml", t.recipe(data=dict(validation_shards=[]))), "none", run__steps=1)
    t.refused(2, ["validation_shards", "--data PLACE"], "evaluate", t.work / "none")
    t.equal(row_of(evaluated(t.work / "none", "--data", t.digits), "none")["samples"], own["samples"], "samples of --data")


def tiny_run():
    t.train(recipe("tiny.toml", 10), "tiny")
    return t.work / "tiny"


def test_what_cannot_be_held_against_the_same_is_refused():
    one = tiny_run()
    t.train(recipe("schedule.toml", 10, scheduler=dict(plugin="iddpm")), "schedule")
    t.train(recipe("held-out.toml", 10, data=dict(seed=1)), "held-out")
    for other, parts in (("schedule", ["iddpm", "rectified_flow", "by two commands"]), ("held-out", ["other samples", "--data"])):
        t.refused(2, [str(t.work / other), str(one), *parts], "evaluate", one, t.work / other)
    t.refused(2, ["\"image\"", "[1, 8, 8]", "[1, 16, 16]"], "evaluate", one, *t.sets({"data.height": 16, "data.width": 16}))
    for idle in ("optimizer.plugin=adamw", "sampler.steps=3", "validate.every=2"):
        t.refused(2, [idle.split("=")[0], "leave it out"], "evaluate", one, "--set", idle)
    t.refused(7, ["there is no such folder"], "evaluate", one, t.work / "nowhere")


def test_a_table_of_runs_for_people():
    tiny_run()
    t.train(recipe("second.toml", 10, model=dict(width=24)), "second")
    lines = t.run("evaluate", "tiny", "second", "--progress", "none").stdout.splitlines()
    t.equal([line.split()[:3] for line in lines[:5]], [["run", "step", "weights"], ["tiny", "8", "ema"], ["tiny", "8", "weights"],
                                                       ["second", "8", "ema"], ["second", "8", "weights"]], "first columns")
    t.equal([line.count("±") for line in lines[1:5]], [9] * 4, f"intervals in {lines}")


def test_twenty_checkpoints_of_three_runs_are_one_table():
    t.only_slow()
    models = {"a": {}, "b": dict(width=24), "c": dict(depth=2)}
    steps = {"a": 14, "b": 14, "c": 12}
    for run, model in models.items():
        t.train(recipe(f"{run}.toml", 80, model=model), f"many-{run}", run__steps=steps[run], checkpoint__every=2, checkpoint__keep=99)
    runs = [t.work / f"many-{run}" for run in models]
    table = t.run("evaluate", *runs, "--all", "--progress", "none").stdout.splitlines()
    t.equal(len(table), 1 + 40 + 2, "lines: a head, two for each checkpoint, what it means")
    for words in LAYOUTS.values():
        found = evaluated(*runs, "--all", *words)
        t.equal(len(found["rows"]), 40, "rows")
        for run in models:
            lines = t.lines_of(t.work / f"many-{run}" / "validation.jsonl")
            t.equal([line["step"] for line in lines], list(range(2, steps[run] + 1, 2)), f"validations of {run}")
            for line in lines:
                same_as_of_run(row_of(found, f"many-{run}", "ema", line["step"]), line, f"step {line['step']} of {run}")
    one_by_one = evaluated(*sorted(runs[0].glob("checkpoints/step_*")))
    t.equal([row["loss"] for row in one_by_one["rows"]], [row["loss"] for row in found["rows"][:14]], "checkpoints by their names")


t.main(globals())
