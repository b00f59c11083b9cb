"""What Ditto says to people who mistype, forget or do something twice."""

import os

import support as t


def test_a_mistyped_command_is_answered_with_the_nearest():
    t.refused(2, ['there is no command "trian"', 'did you mean "train"?'], "trian", "recipe.toml")
    t.refused(2, ['ditto checkpoint: there is no command "veriffy"', 'did you mean "verify"?'], "checkpoint", "veriffy", "runs/x")
    t.refused(2, ['there is no command "zzzzzzzz"', "there are: train, sample"], "zzzzzzzz")


def test_an_option_of_another_section_is_named_with_it():
    path = t.write_recipe("tiny.toml", t.recipe())
    t.refused(2, ['[run] has no option "lr"', "it is lr_schedule.lr"], "train", path, "--set", "run.lr=0.1")
    t.refused(2, ['[checkpoint] has no option "steps"', "it is run.steps"], "config", "check", path, "--set", "checkpoint.steps=3")


def test_config_check_opens_data_and_puts_the_parts_together():
    path = t.write_recipe("tiny.toml", t.recipe())
    done = t.run("config", "check", path)
    t.check("fine on 1 rank" in done.stdout, done.all)
    check = lambda code, parts, *words, **options: t.refused(code, parts, "config", "check", path, *t.sets({key.replace("__", "."): value for key, value in options.items()}), *words)
    check(2, ["none-*.tar"], data__shards=[str(t.work / "none-*.tar")])
    check(2, ["patch"], model__patch=3)
    check(2, ["heads"], parallel__tensor=3, parallel__tensor_plugin="tensor")
    check(2, ["shard"], "--ranks", 3, parallel__shard=2, parallel__shard_plugin="fsdp")
    done = t.run("config", "check", path, *t.sets({"parallel.tensor": 2, "parallel.tensor_plugin": "tensor"}), "--ranks", 4)
    t.check("fine on 4 ranks" in done.stdout, done.all)
    text = t.recipe(data=t.synthetic(channels=3), model=dict(plugin="dit_text", depth=1, width=32, heads=4, patch=2))
    t.refused(2, ["text"], "config", "check", t.write_recipe("text.toml", text))


def test_config_check_makes_no_weights():
    """A model of 8 GB of weights is checked in a tenth of that."""
    path = t.write_recipe("large.toml", t.recipe(model=dict(plugin="dit", depth=12, width=2304, heads=16, patch=2)))
    before = os.times()
    with open(t.work / "said", "w") as said:
        pid = os.posix_spawn(t.ditto, [t.ditto, "config", "check", str(path)], t.environment,
                             file_actions=[(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)])
        _, status, usage = os.wait4(pid, 0)
    t.equal(os.waitstatus_to_exitcode(status), 0, "exit code of " + (t.work / "said").read_text())
    t.check(usage.ru_maxrss < 800_000, f"{usage.ru_maxrss} kB resident")
    t.check(os.times().children_user - before.children_user < 20, "seconds")


def test_forward_names_the_input_that_does_not_fit():
    path = t.write_recipe("tiny.toml", t.recipe())
    good = {"x": ("F32", [2, 1, 8, 8], [0.5] * 128), "t": ("F32", [2], [0.5, 0.5]), "label": ("I64", [2], [1, 2])}
    for name, tensor, parts in [("x", ("F32", [2, 1, 8, 6], [0.5] * 96), ['"x" is [2, 1, 8, 6]', "expected [any, 1, 8, 8]"]),
                                ("t", ("F32", [2, 1], [0.5, 0.5]), ['"t" is [2, 1]', "expected [any]"]),
                                ("label", ("I64", [3], [1, 2, 3]), ['"label" has 3 samples, and "x" 2'])]:
        t.write_tensors(t.work / "in.safetensors", good | {name: tensor})
        t.refused(4, ["in.safetensors", *parts], "forward", path, "--in", t.work / "in.safetensors", "--out", t.work / "out.safetensors")
    t.write_tensors(t.work / "in.safetensors", good)
    files = ["--in", t.work / "in.safetensors", "--out", t.work / "out.safetensors"]
    t.run("forward", path, *files)
    for of_sampling in ("sampler.steps=9", "guidance.scale=2.0", "cache.every=2"):
        t.refused(2, [f"--set {of_sampling}", "is of sampling"], "forward", path, *files, "--set", of_sampling)


def test_a_run_says_where_it_is_and_a_finished_one_that_it_is():
    path = t.write_recipe("tiny.toml", t.recipe(run=dict(steps=2)))
    first = t.train(path, "done")
    t.equal(first.stderr.count(str(t.work / "done")), 2, "times the folder is named, at start and end, in:\n" + first.stderr)
    before = (t.work / "done/metrics.jsonl").read_text()
    again = t.train(path, "done")
    t.check("has made all of its 2 steps before" in again.stderr, again.stderr)
    t.equal((t.work / "done/metrics.jsonl").read_text(), before, "metrics after a second start")
    recipe = (t.work / "done/run.toml").read_text()
    t.refused(2, ["run.steps: is 1, and", "is of step 2", "raise it"], "train", path,
              *t.sets({"run.output": str(t.work / "done"), "run.steps": 1}))
    t.equal((t.work / "done/run.toml").read_text(), recipe, "run.toml after a refused start")


t.main(globals())
