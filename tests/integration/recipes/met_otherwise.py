"""Claim (options): Requests that would be met by something else than what was asked for: guidance that does nothing, a null
condition that was never learned, pictures of before among those of now, a run that begins where another was meant. They are
refused, or it is said."""

import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

_runs = {}


def trained(name, classes=10, dropout=0.1, **sections):
    """A run of two steps; its folder."""
    if name not in _runs:
        path = t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=2, batch=4), data=t.synthetic(classes=classes),
                                                       objective=dict(condition_dropout=dropout), **sections))
        _runs[name] = (t.work / name, t.train(path, name).all)
    return _runs[name][0]


def sample(run, *arguments, out="out", code=0, keep=False):
    if not keep:
        shutil.rmtree(t.work / out, ignore_errors=True)
    return t.run("sample", run, "--out", t.work / out, "--steps", 2, "--progress", "none", *arguments, code=code)


# --- guidance ------------------------------------------------------------------------------------------------------------

GUIDED = [["--guidance", 4], ["--guidance", 0], ["--guidance", 0.5, "--batch", 1], ["--guidance", 2, "--local-ranks", 2],
          ["--guidance", 2, "--guidance-channels", 3], ["--set", "guidance.plugin=cfg", "--set", "guidance.scale=3.0"],
          ["--set", "guidance.plugin=cfg", "--set", "guidance.scale=1.0", "--set", "guidance.form=weight"]]


def test_guidance_of_a_model_without_conditions_is_refused_where_it_is_asked_for():
    bare = trained("bare", classes=0)
    for words in GUIDED if t.slow else GUIDED[:1]:
        done = sample(bare, "--seeds", "0-1", *words, code=2)
        t.check("guidance would have no effect: the model takes no condition" in done.all, words, done.all)
        t.check(not (t.work / "out").exists(), "a refused command left a folder")
    for words in ([], ["--guidance", 1]):
        t.check("guidance" not in sample(bare, "--seeds", "0-1", *words).all, words)
    own = trained("bare-own", classes=0, guidance=dict(plugin="cfg", scale=3.0))
    t.check("warning: guidance will have no effect" in _runs["bare-own"][1], _runs["bare-own"][1])
    t.check("warning: guidance has no effect: the model takes no condition" in sample(own, "--seeds", "0").all, "of the recipe's own")


def test_options_of_guidance_without_guidance_are_refused():
    run = trained("idle-options")
    for option in ("guidance.from=0.5", "guidance.rescale=0.5", 'guidance.channels="3"')[:None if t.slow else 1]:
        t.refused(2, [option.partition("=")[0], "guidance.scale"], "sample", run, "--seeds", 0, "--out", t.work / "idle-out",
                  "--set", "guidance.plugin=cfg", "--set", option)
    t.refused(2, ["guidance.to", "no noise level"], "sample", run, "--seeds", 0, "--out", t.work / "idle-out", "--guidance", 2,
              "--set", "guidance.to=0.0")
    t.refused(2, ["run.seed", "of the training"], "sample", run, "--seeds", 0, "--out", t.work / "idle-out", "--set", "run.seed=5")


def test_guidance_away_from_a_null_condition_that_was_never_learned_is_said():
    words = "the null condition, which is never learned with objective.condition_dropout = 0"
    never, learned = trained("never", dropout=0.0), trained("learned")
    for asked in GUIDED if t.slow else GUIDED[:1]:
        t.check(sample(never, "--seeds", "0-1", *asked).all.count(words) == 1, asked)
        t.check("null" not in sample(learned, "--seeds", "0-1", *asked).all, asked)
    t.check("null" not in sample(never, "--seeds", "0-1", "--guidance", 1).all, "no guidance leads away from nothing")
    own = trained("never-own", dropout=0.0, guidance=dict(plugin="cfg", scale=3.0))
    t.check(words in _runs["never-own"][1] and words in sample(own, "--seeds", "0").all, "of the recipe's own")
    path = t.write_recipe("on.toml", t.recipe(run=dict(name="on", steps=1, batch=4, init_from=str(learned)), data=t.synthetic(),
                                              objective=dict(condition_dropout=0.0), guidance=dict(plugin="cfg", scale=3.0)))
    t.check("unless run.init_from has learned it" in t.train(path, "on").all, "what it started from may have")
    t.check("unless what its training began with has learned it" in sample(t.work / "on", "--seeds", "0").all, "and so its samples")


# --- pictures of before --------------------------------------------------------------------------------------------------


def files(out="out"):
    return sorted(str(file.relative_to(t.work / out)) for file in (t.work / out).rglob("*") if file.is_file())


def test_pictures_of_before_are_refused_and_removed_where_that_is_asked_for():
    run = trained("learned")
    kinds = [(["--seeds", "0-9"], ["--seeds", "0-3"]), (["--seeds", "0-3"], ["--seeds", "2-7"]),
             (["--seeds", "0,1,1"], ["--seeds", "1"]),
             (["--seeds", "0-3", "--name", "{class}/{seed}"], ["--seeds", "0-1"]),
             (["--seeds", "0-1"], ["--seeds", "0-3", "--name", "{class}-{index}"]),
             (["--seeds", "0-3"], ["--seeds", "0-1", "--local-ranks", 2])]
    for first, second in kinds if t.slow else kinds[:1]:
        sample(run, *first)
        before = {name: (t.work / "out" / name).read_bytes() for name in files()}
        for mine in ("notes.txt", "mine.png", "of_mine/000000.png"):
            (t.work / "out" / mine).parent.mkdir(exist_ok=True)
            (t.work / "out" / mine).write_text("mine")
        refused = sample(run, *second, keep=True, code=2)
        t.check("samples from before" in refused.all and "--overwrite" in refused.all, refused.all)
        t.equal({name: (t.work / "out" / name).read_bytes() for name in before}, before, "what a refused command left")
        sample(run, *second, "--overwrite", keep=True)
        listed = [line["file"] for line in t.lines_of(t.work / "out/samples.jsonl")]
        t.equal(files(), sorted([*listed, "samples.jsonl", "grid.png", "notes.txt", "mine.png", "of_mine/000000.png"]),
                f"files of {second} over {first}")
        for mine in ("notes.txt", "mine.png", "of_mine/000000.png"):
            t.equal((t.work / "out" / mine).read_text(), "mine", mine)
    t.run("sample", run, "--out", t.work / "fresh", "--overwrite", "--seeds", 0, "--steps", 1)  # nothing is there
    # What no list names is somebody's, whatever its name; and a list's names do not lead elsewhere.
    sample(run, "--seeds", "0")
    (t.work / "out/000003.png").write_text("mine")
    refused = sample(run, "--seeds", "2-3", "--overwrite", keep=True, code=2)
    t.check("000003.png" in refused.all and (t.work / "out/000003.png").read_text() == "mine", refused.all)
    (t.work / "elsewhere.png").write_text("mine")
    with open(t.work / "out/samples.jsonl", "a") as list_:
        for name in ("linked/x.png", "../elsewhere.png", str(t.work / "elsewhere.png"), "../learned/run.toml", "run.toml"):
            list_.write(json.dumps({"file": name}) + "\nno JSON\n[7]\n")
    (t.work / "out/run.toml").write_text("mine")
    (t.work / "away").mkdir(exist_ok=True)
    (t.work / "away/x.png").write_text("mine")
    (t.work / "out/linked").symlink_to(t.work / "away")
    sample(run, "--seeds", "5", "--overwrite", keep=True)
    t.check((t.work / "elsewhere.png").exists() and (t.work / "away/x.png").exists() and (t.work / "learned/run.toml").exists() and (t.work / "out/run.toml").exists(),
            "a list that leads elsewhere was followed")


def test_a_sampling_that_fails_leaves_the_pictures_of_before():
    run = trained("learned")
    sample(run, "--seeds", "0-1")
    before = {name: (t.work / "out" / name).read_bytes() for name in files()}
    t.run("sample", run, "--out", t.work / "out", "--overwrite", "--seeds", "0-1", "--sampler", "ancestral", code=2)
    t.equal({name: (t.work / "out" / name).read_bytes() for name in files()}, before, "files")


# --- a run's own recipe --------------------------------------------------------------------------------------------------


def test_a_runs_recipe_that_begins_another_run_says_so():
    run = trained("named")
    elsewhere = t.work / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    checkpoint = t.latest("named")
    words = "is of the run in"
    for recipe in [run / "run.toml", checkpoint / "recipe.toml"] if t.slow else [run / "run.toml"]:
        shutil.rmtree(elsewhere / "runs", ignore_errors=True)
        begun = t.run("train", recipe, "--set", "run.output=", "--set", "run.steps=3", cwd=elsewhere)
        t.check(f"{words} {run}" in begun.all and "begins anew" in begun.all and f"--set run.output={run}" in begun.all, begun.all)
        again = t.run("train", recipe, "--set", "run.output=", "--set", "run.steps=4", cwd=elsewhere)
        t.check(words in again.all and "it goes on" in again.all and "resumed from" in again.all, again.all)
    shutil.copy(run / "run.toml", t.work / "copied.toml")
    shutil.copytree(run, t.work / "run-2", symlinks=True)
    for recipe, sets in ((run / "run.toml", {"run.output": str(run)}), (t.work / "copied.toml", {"run.output": "copied"}),
                         (t.work / "run-2/run.toml", {"run.output": str(t.work / "x/../run-2")})):
        t.check(words not in t.run("train", recipe, *t.sets(sets), cwd=t.work).all, recipe)


t.main(globals())
