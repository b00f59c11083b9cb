"""What Ditto says to people who mistype, forget or do something twice.

Claim (options): Mistyped commands and options, data that is not there and layouts that cannot be are answered before anything
starts, with the remedy.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def test_a_mistyped_command_is_answered_with_the_nearest():
    t.refused(2, ['there is no command "trian"', 'did you mean "train"?'], "trian", "recipe.toml")
    t.refused(2, ['ditto checkpoint: there is no command "veriffy"', 'did you mean "verify"?'], "checkpoint", "veriffy", "runs/x")
    t.refused(2, ['there is no command "zzzzzzzz"', "there are: train, sample"], "zzzzzzzz")


def test_a_line_that_cannot_be_read_is_answered_in_one_sentence():
    path = t.write_recipe("tiny.toml", t.recipe())
    for parts, words in (
        (["ditto checkpoint: needs a command", "inspect, verify, export, import"], ["checkpoint"]),
        (["ditto sample: from is required"], ["sample"]),
        (["--set run.steps: is not KEY=VALUE", "write --set run.steps=5"], ["train", path, "--set", "run.steps", 5]),
        (['--size: "-1" is not a whole number from 4 to 1024'], ["init", t.work, "--size", -1]),
        (['--size: "-1" is not a whole number above 0'], ["data", "prepare", t.work, "--out", "x", "--size", -1]),
        (['--validation: "abc" is not a number'], ["data", "prepare", t.work, "--out", "x", "--validation", "abc"]),
        (['--fit: "nope" is none of crop, pad, stretch'], ["init", t.work, "--fit", "nope"]),
        (['--fit: "1" is none of crop, pad, stretch'], ["init", t.work, "--fit", 1]),
        (['SHELL: "tcsh" is none of bash, zsh, fish'], ["completion", "tcsh"]),
        (['ditto version: takes no "extra"'], ["version", "extra"]),
        (["--seeds: is given 2 times", "give it once"], ["sample", "runs/x", "--seeds", 1, "--seeds", 2]),
        (["--out: needs a value"], ["sample", "runs/x", "--out"]),
        (["--ranks requires --dry-run"], ["train", path, "--ranks", 2]),
    ):
        done = t.refused(2, parts, *words)
        t.equal(len(done.stderr.splitlines()), 1, f"lines of {words}: {done.stderr}")
        t.check(len(done.stderr) < 300, done.stderr)
    t.check("open" not in t.run("plugins", code=2).stderr, "a command that help does not list")


def test_an_option_of_another_section_is_named_with_it():
    path = t.write_recipe("tiny.toml", t.recipe())
    t.refused(2, ['[run] has no option "lr"', "it is lr_schedule.lr"], "train", path, "--set", "run.lr=0.1")
    t.refused(2, ['[checkpoint] has no option "steps"', "it is run.steps"], "config", "check", path, "--set", "checkpoint.steps=3")
    for key in ("name", "type"):
        t.refused(2, [f'[optimizer] has no option "{key}"', 'optimizer.plugin = "…"'], "train", path, "--set", f"optimizer.{key}=adamw")


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


RAW = ("filesystem error", "json.exception", "[json", "basic_string", "dlerror", "MKL", "terminate", "what():")


def said(arguments, code, *parts, **how):
    """The command ends with the code and one error that has the parts and no library's words for things."""
    done = t.subprocess.run([t.ditto, *map(str, arguments)], capture_output=True, text=True, timeout=t.patient(120),
                            env=t.environment, **how)
    text = done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    t.check(done.returncode == code and len(errors) == 1, arguments, f"exit code {done.returncode}, expected {code}:\n{text}")
    for part in parts:
        t.check(part in errors[0], f"no \"{part}\" in: {errors[0]}")
    t.check(not any(raw in text for raw in RAW), f"a library's own words: {text}")


def test_a_working_folder_that_is_gone_is_said():
    path = t.write_recipe("tiny.toml", t.recipe())
    for words in (["train", path], ["config", "check", path], ["train", path, "--local-ranks", 2]) if t.slow else (["train", path],):
        (t.work / "gone").mkdir()
        inside = t.subprocess.run(["bash", "-c", 'cd "$1" && rmdir "$1" && shift && exec "$@"', "bash", str(t.work / "gone"), t.ditto,
                                   *map(str, words)], capture_output=True, text=True, env=t.environment, timeout=t.patient(120))
        text = inside.stdout + inside.stderr
        t.check(inside.returncode == 2 and "error: the working folder: cannot be found" in text and "removed" in text, words, text)
        t.check(not any(raw in text for raw in RAW), text)


def test_a_recipe_is_a_file():
    path = t.write_recipe("tiny.toml", t.recipe())
    said(["config", "check", "/dev/stdin"], 2, "/dev/stdin: is a pipe or a device", "write it to a file", input=path.read_text())
    read, write = os.pipe()
    os.write(write, path.read_bytes()), os.close(write)
    said(["train", f"/dev/fd/{read}"], 2, "is a pipe", pass_fds=[read])
    said(["config", "check", t.work], 2, "is a folder, and a recipe is a file")
    said(["config", "check", "/dev/null"], 2, "is a pipe or a device")
    with open(path) as file:
        t.check(t.subprocess.run([t.ditto, "config", "check", "/dev/stdin"], stdin=file, capture_output=True, env=t.environment).returncode == 0,
                "a file on standard input")


def test_a_file_where_a_folder_is_expected_is_called_a_file():
    path = t.write_recipe("tiny.toml", t.recipe(run=dict(steps=1)))
    t.train(path, "run")
    said(["sample", path, "--out", t.work / "x"], 7, "is a file, and runs and checkpoints are folders")
    said(["checkpoint", "inspect", t.latest("run") / "state.json"], 7, "is a file")
    t.run("checkpoint", "export", t.work / "run", "--format", "facebook-dit", "--out", t.work / "lora.safetensors")
    for words in (["--adapter", t.work / "lora.safetensors"], ["--set", f"adapter.weights={t.work / 'lora.safetensors'}"]):
        said(["sample", t.work / "run", "--out", t.work / "x", *words], 7, "lora.safetensors: is a file", "adapter_config.json")


def test_a_number_beyond_64_bits_is_called_so():
    path = t.write_recipe("tiny.toml", t.recipe())
    most = "9223372036854775807"
    for value in (2**63, 2**64 - 1, 10**40, -(2**63) - 1):
        said(["config", "check", path, "--set", f"run.seed={value}"], 2, "out of range", most)
    said(["config", "check", path, "--set", "run.seed=-1"], 2, "run.seed is -1", "at least 0")
    t.run("config", "check", path, "--set", f"run.seed={most}")
    t.train(t.write_recipe("seeds.toml", t.recipe(run=dict(steps=1))), "seeds")
    for seeds in (2**63, 2**64 - 1, -1, f"0-{2**63}", "3,-1", "-1-3") if t.slow else (2**64 - 1, "3,-1"):
        done = t.run("sample", t.work / "seeds", "--out", t.work / "x", f"--seeds={seeds}", code=2)
        t.check("out of range" in done.all and most in done.all if seeds != "-1-3" else "write it as 0-9" in done.all, seeds, done.all)


def test_a_path_that_cannot_be_looked_at_is_said_without_a_librarys_words():
    path = t.write_recipe("tiny.toml", t.recipe())
    long = "x" * 300
    said(["sample", long, "--out", t.work / "x"], 2, long[:20], "File name too long")
    said(["checkpoint", "verify", long], 2, long[:20], "File name too long")
    said(["train", t.work / "tiny.toml", "--set", f"run.init_from={t.work / 'tiny.toml'}/inside"], 7, "tiny.toml/inside")


t.main(globals())
