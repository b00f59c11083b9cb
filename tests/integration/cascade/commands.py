"""What the other commands make of a cascade, and what is refused of one before anything is trained.

Claim (failures): Stages that do not fit one another, in size, in texts, in what is passed, are refused in one sentence before the first
of them trains; and a stage that was not trained is named with the command that does it.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import cascades as c  # noqa: E402

SHORT = dict(run=dict(name="short", steps=2, batch=4))


def test_stages_that_do_not_agree_are_refused_before_the_first_trains():
    cases = {
        "size": (dict(sr16=dict(encoder__image=dict(size=[4, 4]))),
                 'stage 3 of size, "sr16", takes a "low" of 1 x 4 x 4, and the stage before it, "sr8", makes 1 x 8 x 8'),
        "texts": (dict(sr8=dict(data=dict(text_width=64))), '"sr8", is asked for by "text"'),
        "idle": (dict(sr8=dict(model=dict(low_res_cond=False))), '"sr8", makes "low" of its data, and neither its model'),
        "share": (dict(sr16=dict(encoder__image=dict(crop=[11, 11], size=[6, 6]))), '"low": is of 6 of 11 pixels of a part, and of a whole picture of 16'),
        "other": (dict(passes="small"), '"sr8", does not take "small", which the cascade passes'),
    }
    for name, (options, said) in cases.items():
        path = c.cascade(name, **options)
        t.refused(2, [said], *c.words(path, "refused"))
        t.refused(2, [said], "config", "check", path)
        t.refused(2, [said], "train", path, "--dry-run")
    path = c.cascade("first", stages=["sr8", "sr16"])
    t.refused(2, ['stage 1 of first, "sr8", takes "low", and no stage is before it'], *c.words(path, "refused"))
    t.refused(2, ['stage 1 of first, "sr8"'], *c.words(path, "refused", "--local-ranks", 2))
    c.cascade("inner")
    path = c.cascade("outer", stages=["base", "inner"])
    t.refused(2, ['stage "inner" is itself a cascade'], *c.words(path, "refused"))
    t.check(not (t.work / "refused").exists(), "a folder was made")


def test_what_is_set_and_what_is_asked_for_name_a_stage():
    path = c.cascade("set")
    t.refused(2, ["--set run.steps=3", "write it as --set base.run.steps=3; stages: base, sr8, sr16"], "train", path, "--set", "run.steps=3")
    t.refused(2, ["--stage", 'no stage "4"', "1 to 3: base, sr8, sr16"], "train", path, "--stage", "4")
    t.refused(2, ["--stage 1", "is one recipe"], "train", t.work / "base.toml", "--stage", "1")
    t.refused(2, ["--resume", "checkpoint of one stage"], "train", path, "--resume", "runs/x")
    t.refused(2, ["--trace out.json"], "train", path, "--trace", "out.json")


def test_checks_and_dry_runs_are_of_each_stage():
    path = c.cascade("checked")
    said = t.run("config", "check", path, "--set", "sr8.run.batch=2").stdout
    t.equal([line for line in said.splitlines() if line.startswith("stage ")], [f"stage {i} of 3, {one}" for i, one in enumerate(c.STAGES, 1)],
            "headers")
    t.equal(said.count("fine on 1 rank"), 3, said)
    said = t.run("train", path, "--dry-run").stdout
    t.equal([said.count(f"stage {i} of 3, {one}\n") for i, one in enumerate(c.STAGES, 1)], [1, 1, 1], said)
    every = json.loads(t.run("train", path, "--dry-run", "--json").stdout)
    t.equal(list(every), list(c.STAGES), "stages")
    for one in c.STAGES:
        t.equal(every[one], json.loads(t.run("train", t.work / f"{one}.toml", "--dry-run", "--json").stdout), f"dry run of {one}")
    t.equal(list(json.loads(t.run("train", path, "--dry-run", "--json", "--stage", "2").stdout)), ["sr8"], "one stage")


def test_a_trained_stage_is_no_other_recipe_s_and_no_damaged_one():
    path = c.cascade("kept", **SHORT)
    t.run(*c.words(path, "kept"))
    recipe = (t.work / "kept/base.toml").read_bytes()
    changed = ["--set", "base.model.embed_dim=64"]
    t.refused(2, ["model.embed_dim", "was 32", "is 64 now"], *c.words(path, "kept", *changed, "--stage", 1))
    t.refused(2, ["model.embed_dim"], *c.words(path, "kept", *changed))
    t.refused(2, ["cascade.output", "is the folder of a run"], *c.words(path, "kept/base"))
    t.equal((t.work / "kept/base.toml").read_bytes(), recipe, "the stage's recipe")
    t.check("all 3 stages are trained" in t.run("train", t.work / "kept").all, "the folder goes on no more")
    for file in (t.work / "kept/base/checkpoints").glob("step_*/model*.safetensors"):
        file.write_bytes(file.read_bytes()[:1000])
    t.refused(7, ["none that can be used"], "train", t.work / "kept")


def test_export_and_evaluate_are_of_each_stage():
    path = c.cascade("told", validate=dict(every=2, samples=8), **SHORT)
    t.run(*c.words(path, "told", "--stage", 1))
    out = ["--format", "nemo", "--out", t.work / "exported"]
    missing = ['stage 2 of told, "sr8", has no checkpoint', "--stage sr8`"]
    t.refused(7, missing, "checkpoint", "export", t.work / "told", *out)
    t.refused(7, missing, "evaluate", t.work / "told")
    t.run(*c.words(path, "told"))
    table = t.run("evaluate", t.work / "told").stdout
    t.equal([line for line in table.splitlines() if line in c.STAGES], list(c.STAGES), "stages in the table")
    every = json.loads(t.run("evaluate", t.work / "told", "--json", "--local-ranks", 2).stdout)
    t.equal(list(every), list(c.STAGES), "stages")
    for one in c.STAGES:
        alone = json.loads(t.run("evaluate", t.work / "told" / one, "--json").stdout)
        t.check(all(abs(a["loss"] - b["loss"]) < 1e-6 for a, b in zip(every[one]["rows"], alone["rows"])), one)
    t.refused(2, ["stands beside others"], "evaluate", t.work / "told", t.work / "told/base")
    t.run("checkpoint", "export", t.work / "told", *out)
    t.equal(sorted(path.stem for path in (t.work / "exported").glob("*.safetensors")), sorted(c.STAGES), "files")
    t.refused(2, ["is a file, and a cascade is exported"], "checkpoint", "export", t.work / "told", "--format", "nemo", "--out", "x.safetensors")


def test_what_is_of_one_run_refuses_a_cascade_and_names_its_stages():
    path = c.cascade("one-run", **SHORT)
    t.run(*c.words(path, "one-run", "--stage", "1"))
    recipe = ["one recipe is wanted", "name one of its stages: base.toml, sr8.toml, sr16.toml"]
    t.refused(2, recipe, "bench", "loader", path)
    t.refused(2, recipe, "diff", path)
    t.refused(2, ["name a stage's", "base"], "config", "show", path)
    folder = t.work / "one-run"
    named = ["it is the folder of a cascade", str(folder / "base"), str(folder / "sr8")]
    for words in (["checkpoint", "inspect", folder], ["checkpoint", "verify", folder]):
        t.refused(7, named, *words)
    t.refused(2, named, "bench", "loader", folder)
    t.refused(2, ["`ditto replay` is of one run", str(folder / "base")], "replay", folder)


if __name__ == "__main__":
    t.main(globals())
