"""Claim (options): A path on the command line is looked for from where the command is typed, one in a recipe from the recipe's
folder; a run is gone on with, verified and looked at by its folder, from wherever that is; and what is no recipe and no run has a
remedy of its own."""

import json
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def test_what_is_set_is_seen_from_where_it_is_typed():
    here, there = t.work / "here", t.work / "there"
    (here / "configs").mkdir(parents=True), there.mkdir()
    quiet = ["--set", "log.progress=none"]
    small = dict(run=dict(name="base", steps=1, batch=4))
    shutil.move(t.write_recipe("base.toml", t.recipe(**small)), here / "configs/base.toml")
    t.run("train", "configs/base.toml", *quiet, cwd=here)
    begun = t.run("train", "configs/base.toml", *quiet, "--set", "run.name=next", "--set", "run.init_from=runs/base", cwd=here)
    t.check(f"weights from {here / 'runs/base'}" in begun.all, begun.all)
    # The run knows the place by then, wherever it is gone on with.
    t.check(f"init_from = \"{here / 'runs/base'}\"" in (here / "runs/next/run.toml").read_text(), (here / "runs/next/run.toml").read_text())
    # Of a plugin's options too, each of a list; addresses stay.
    for shard in t.digits.glob("*.tar*"):
        shutil.copy(shard, there)
    shards = ["--set", 'data.shards=["train-*.tar"]', "--set", 'data.validation_shards=["validation-*.tar"]']
    for words in (["config", "check"], ["data", "verify"]):
        t.run(*words, here / "configs/base.toml", *shards, cwd=there)
    t.refused(2, ["there"], "config", "check", here / "configs/base.toml", "--set", 'data.shards=["none-*.tar"]', cwd=there)
    # What a recipe says is the recipe's.
    own = t.recipe(run=dict(name="own", steps=1, batch=4, init_from="../runs/base"))
    shutil.move(t.write_recipe("own.toml", own), here / "configs/own.toml")
    t.check("weights from" in t.run("train", here / "configs/own.toml", *quiet, cwd=there).all, "a recipe's path")


def test_a_run_is_gone_on_with_from_anywhere():
    path = t.write_recipe("anywhere.toml", t.recipe(run=dict(name="anywhere", steps=2, batch=4), data=t.synthetic()))
    t.run("train", path)
    run, elsewhere = t.work / "runs/anywhere", t.work / "elsewhere"
    elsewhere.mkdir()
    for steps, (name, folder) in enumerate([(run, elsewhere), (run / "run.toml", elsewhere), ("run.toml", run), ("runs/anywhere", t.work)], 3):
        done = t.run("train", name, "--set", f"run.steps={steps}", cwd=folder)
        t.check("resumed from" in done.all and "run.output" not in done.all, name, done.all)
        t.equal(t.lines_in(run), steps, f"steps after {name} in {folder}")
    t.check(not (elsewhere / "runs").exists(), "another run was begun")
    t.check('\noutput = ""' in (run / "run.toml").read_text(), "the run notes where it was gone on with")
    other = t.run("train", run, "--set", "run.name=other", "--set", "run.steps=1", cwd=elsewhere)
    t.check("resumed from" not in other.all and (elsewhere / "runs/other/run.toml").exists(), other.all)
    t.check("fine on 1 rank" in t.run("config", "check", run).all, "config check RUN")
    (t.work / "run-link").symlink_to(run)
    for words, part in ((["inspect", run], "step_00000006"), (["verify", run], "step_00000006: every byte"),
                        (["verify", "run-link/checkpoints/latest"], "run-link/checkpoints/latest: every byte")):
        t.check(part in t.run("checkpoint", *words).stdout, words)
    newest = t.work / "runs/anywhere/checkpoints/step_00000006/model-00000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    done = t.run("checkpoint", "verify", run, code=7)  # the newest is the one that is meant, whole or not
    t.check("model-00000.safetensors" in done.stdout, done.all)
    t.refused(7, ["holds no checkpoint"], "checkpoint", "verify", t.work / "elsewhere")


def test_what_is_no_recipe_has_its_own_remedy():
    pictures, recipes = t.work / "pictures", t.work / "recipes"
    pictures.mkdir(), recipes.mkdir()
    t.refused(2, ["is a folder", f"ditto init {pictures}"], "train", pictures)
    for name in ("b.toml", "a.toml"):
        (recipes / name).write_text("")
    t.refused(2, ["is a folder", f"name the file, as {recipes / 'a.toml'}, one of 2 there"], "train", recipes)
    for name in ("runs-of/b", "runs-of/a"):
        (t.work / name / "checkpoints").mkdir(parents=True)
        (t.work / name / "run.toml").write_text("")
    (t.work / "begun").mkdir()
    (t.work / "begun/.lock").write_text("")
    for folder, remedy in (("runs-of", "name a run in it, as runs-of/a, one of 2 there"), ("begun", "without its run.toml: name the recipe"),
                           ("runs-of/a/checkpoints", "name the run, runs-of/a")):
        t.refused(2, ["is a folder", remedy], "train", folder)
    (t.work / "is.toml").write_text("")
    (t.work / "table.csv").write_text("a,b\n")
    (t.work / "one.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(16))
    for name, said in (("is.toml", ["is a recipe already", "ditto train is.toml"]), ("runs-of/a", ["is the folder of a run", "ditto train runs-of/a"]),
                       ("one.png", ["is a picture", "the folder that it lies in"]), ("table.csv", ["is no .tar file", "ditto data prepare"])):
        t.refused(2, said, "init", name, "--out", "none.toml")
    path = t.write_recipe("step.toml", t.recipe(run=dict(name="step", steps=1, batch=4), data=t.synthetic()))
    t.train(path, "step")
    t.refused(2, ["it is a checkpoint", f"--resume {t.latest('step')}"], "train", t.latest("step"))


def test_a_link_that_leads_nowhere_is_called_so():
    os.symlink("gone", t.work / "dangling")
    os.symlink("gone.toml", t.work / "dangling.toml")
    path = t.write_recipe("tiny.toml", t.recipe(data=t.synthetic()))
    text = ['is a link to "gone', "and nothing is there"]
    for code, words in ((2, ["train", t.work / "dangling.toml"]), (7, ["checkpoint", "inspect", t.work / "dangling"]),
                        (7, ["checkpoint", "verify", t.work / "dangling"]), (7, ["sample", t.work / "dangling", "--out", t.work / "x"]),
                        (7, ["train", path, "--set", "run.init_from=dangling"]), (2, ["init", t.work / "dangling"]),
                        (2, ["data", "prepare", t.work / "dangling", "--out", t.work / "y"]),
                        (4, ["data", "inspect", t.work / "dangling"])):
        t.refused(code, text, *words)
    (t.work / "includes.toml").write_text('include = "dangling.toml"\n')
    table = t.write_recipe("table.toml", t.recipe(data=dict(plugin="table", table="rows.csv", classes=10, channels=1, size=[8, 8])))
    (t.work / "rows.csv").write_text("path,label\na.png,1\n")
    prepared = t.write_recipe("prepared.toml", t.recipe(data=dict(shards=[], validation_shards=[])))
    for words in (["train", "includes.toml"], ["train", path, "--set", "run.output=dangling"], ["train", prepared, "--set", "data.path=dangling/"],
                  ["train", table, "--set", "data.folder=dangling"], ["data", "prepare", t.source / "tests/support/table.csv.gz", "--shape", "2x2",
                                                                       "--largest", 16, "--out", "dangling"]):
        t.refused(2, text, *words)
    t.refused(2, ["includes.toml:1:", "is a link to"], "train", "includes.toml")
    for include, said in (("", "names no file"), (".", "is a folder"), ("~/x.toml", "begins with ~")):
        (t.work / "includes.toml").write_text(f"include = {json.dumps(include)}\n")
        t.refused(2, ["includes.toml:1:", said], "train", "includes.toml")


def test_what_a_shell_or_a_browser_would_read_is_no_path():
    path = t.write_recipe("plain.toml", t.recipe(run=dict(steps=1, batch=4)))
    numbers = t.source / "tests/support/table.csv.gz"
    for words in (["train", path, "--set", "run.output=~/x"], ["train", path, "--set", "data.path=~/x"],
                  ["config", "check", path, "--set", 'data.shards=["~/x.tar"]'],
                  ["data", "prepare", numbers, "--shape", "2x2", "--largest", 16, "--out=~/x"], ["init", "~/x"], ["init", t.digits, "--out=~/x.toml"]):
        t.refused(2, ["begins with ~", "write the folder out"], *words)
    t.refused(2, ["plain.toml:", "begins with ~"], "train", t.write_recipe("plain.toml", t.recipe(run=dict(steps=1, batch=4, output="~/x"))))
    path = t.write_recipe("plain.toml", t.recipe(run=dict(steps=1, batch=4)))
    t.refused(2, ["is an address", "write it as /tmp/x"], "train", path, "--set", "run.output=file:///tmp/x")
    t.refused(2, ["is an address"], "train", path, "--set", "run.output=http://x/y")
    for name in (".", ".."):
        t.refused(2, ["run.name", "a folder that others are in"], "train", path, "--set", f'run.name="{name}"')
    t.check(not [one for one in os.listdir(t.work) if one in ("~", "file:", "http:", "checkpoints")], os.listdir(t.work))


def test_plugins_are_found_without_their_kind():
    t.equal(t.run("plugins", "show", "dit").stdout, t.run("plugins", "show", "model/dit").stdout, "a plugin by its id")
    t.refused(2, ['there is no plugin "dti" of any kind', 'did you mean "dit"?'], "plugins", "show", "dti")
    t.refused(2, ['there is no kind "modle"', 'did you mean "model"?'], "plugins", "show", "modle/dit")
    listed = json.loads(t.run("plugins", "list", "sampler", "--json").stdout)
    t.check(len(listed) > 2 and all(one["kind"] == "sampler" for one in listed), listed)
    t.check(all(line.split()[0] in ("KIND", "sampler") for line in t.run("plugins", "list", "sampler").stdout.splitlines()), "a list of one kind")
    t.refused(2, ['there is no kind "samplers"', 'did you mean "sampler"?'], "plugins", "list", "samplers")


t.main(globals())
