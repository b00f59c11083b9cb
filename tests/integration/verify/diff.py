"""ditto diff: where two runs part, and that layouts of one recipe do not. `--layouts=N --seed=N`: how many random layouts, and
which (6; 200 with --slow).

Claim (again): `ditto diff` names step, unit, op and tensor of each planted fault, and says "the same" of layouts that have one
number. Also: `matrix.sh`
"""

import json
import pathlib
import random
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
from unets import UNETS  # noqa: E402


def number(option, otherwise):
    return next((int(word.split("=")[1]) for word in sys.argv if word.startswith(f"--{option}=")), otherwise)


def recipe(name="diff.toml", numerics="one", **sections):
    run = dict(name="diff", steps=4, batch=8, micro_batch=2, threads=1, numerics=numerics, clip_norm=0.5)
    model = dict(depth=4, width=48, heads=6, patch=1)  # 64 tokens: two leaves
    return t.write_recipe(name, t.recipe(run=run | sections.pop("run", {}), model=model | sections.pop("model", {}), **sections))


def diff(*arguments, code=0, **options):
    """The comparison as JSON; options with "__" for the dot are of the second run."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    words = [word if word != "--set" else "--with" for word in t.sets(given)]
    done = t.run("diff", *arguments, "--json", *words, code=code)
    return json.loads(done.stdout)


def first(result):
    one = result["first"][0]
    return one["step"], one["pass"], one["unit"], one["op"], one["tensor"]


CUTS = (dict(parallel__tensor=2, parallel__sequence=True), dict(parallel__context=2, parallel__context_plugin="ring"),
        dict(parallel__context=2, parallel__context_plugin="ulysses"), dict(parallel__tensor=2))
KERNELS = ("linear", "linear_gelu_tanh", "silu", "norm_modulate", "gated_residual", "attention", "sample_mean")


def draw(random):
    """Options of a layout of one to four ranks; some cut what run.numerics = "one" refuses as yet."""
    options = {}
    left = random.choice([1, 2, 2, 2, 3, 4])
    while left > 1:
        axis = random.choice(["replicate", "shard", "pipeline", "tensor", "context"])
        if f"parallel.{axis}" in options:
            continue
        degree = 3 if left == 3 else random.choice([2, left])
        if axis == "pipeline" and degree == 4:
            continue
        options[f"parallel.{axis}"] = degree
        left //= degree
    if "parallel.shard" in options:
        options["parallel.shard_plugin"] = random.choice(["zero1", "zero2", "fsdp"])
    if "parallel.context" in options:
        options["parallel.context_plugin"] = random.choice(["ring", "ulysses", "fastseq"])
    if "parallel.tensor" in options and random.random() < 0.5:
        options["parallel.sequence"] = True
    if options.get("parallel.pipeline") == 2 and random.random() < 0.5:
        options["parallel.virtual_stages"] = 2
    options["run.micro_batch"] = random.choice([0, 1, 2, 3, 5, 8])
    if random.random() < 0.3:
        options["run.threads"] = 2
    if random.random() < 0.3:
        options["parallel.recompute"] = random.choice(["blocks", "attention"])
    if random.random() < 0.2:
        options["parallel.offload"] = "optimizer"
    if random.random() < 0.3:
        options |= {f"kernels.{op}": "exact_plain" for op in random.sample(KERNELS, 3)}
    return options


def diff_of_drawn(path, drawn):
    """Of a drawn layout; heads, tokens' leaves and run.numerics decide which can be."""
    while True:
        options = draw(drawn)
        words = [word if word != "--set" else "--with" for word in t.sets(options)]
        # Modulations start at zero: blocks have no gradient before the third step.
        done = subprocess.run([t.ditto, "diff", str(path), "--steps", "3", "--json", *words], capture_output=True, text=True,
                              cwd=t.work, env=t.environment)
        if done.returncode != 2:
            t.check(done.returncode == 0, f"exit code {done.returncode}: {options}\n{done.stdout}{done.stderr}")
            return options, json.loads(done.stdout)
        print(f"refused: {options}: {done.stderr.strip()}", flush=True)


def test_random_layouts_are_the_same():
    path = recipe()
    drawn = random.Random(number("seed", 1))
    for case in range(number("layouts", 200 if t.slow else 6)):
        options, result = diff_of_drawn(path, drawn)
        print(f"{case + 1}: {options}: {result['compared']} tensors", flush=True)
        t.check(result["same"] and result["first"] == [], result)
        # Whatever the layout: each of 8 samples in 3 steps has its batch, its units' tensors and its losses.
        t.check(result["compared"] > 1000, f"only {result['compared']} tensors were compared: {result}")


def test_unets_with_blocks_computed_again_are_the_same():
    """Their skips are a block's own map as well, which goes on in it."""
    for name, options in UNETS.items():
        sections = dict(data=t.synthetic(text_tokens=6, text_width=64), model=dict(plugin=name) | options)
        path = t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=2, batch=4, micro_batch=2, numerics="one"), **sections))
        result = diff(path, parallel__recompute="blocks")
        t.check(result["same"] and result["compared"] > 1000, f"{name}: {result}")


def test_cuts_of_tensors_and_tokens_are_the_same():
    path = recipe()
    for options in CUTS if t.slow else CUTS[:2]:
        result = diff(path, "--steps", 3, **options)
        print(f"{options}: {result}", flush=True)
        t.check(result["same"] and result["compared"] > 1000, options, result)


def test_what_differs_is_named_where_it_begins():
    path = recipe()
    result = diff(path, code=1, lr_schedule__lr=0.01)
    t.equal(first(result)[:2], (1, "update"), "where another learning rate shows")
    t.equal(first(result)[3], "updates", "what it changes")
    t.check(result["first"][0]["a"] != result["first"][0]["b"] and len(result["first"][0]["a"]) == 16, result)
    t.equal(len(result["first"]), 1, "passes that part in the first step")

    result = diff(path, code=1, objective__condition_dropout=0.9)
    t.equal(first(result), (1, "forward", "batch", "makes", "label"), "where dropped conditions show")

    result = diff(path, code=1, optimizer__weight_decay=0.5)
    t.equal((first(result)[0], first(result)[3]), (1, "updates"), "where weight decay shows")
    result = diff(path, code=1, run__clip_norm=0.01)
    t.equal((first(result)[0], first(result)[3]), (1, "updates"), "where clipping shows")
    result = diff(path, code=1, ema__decay=0.05)
    t.equal((first(result)[0], first(result)[3]), (1, "averages"), "where another average shows")
    result = diff(path, code=1, ema__enabled=False)
    t.check(not result["same"] and not result["first"] and result["only_in_a"] > 0, result)
    t.check(not diff(path, code=1, model__depth=5)["same"], "another depth is the same")
    result = diff(path, code=1, model__mlp_ratio=2)
    t.check(first(result)[:2] == (1, "forward") and "Float [" in result["first"][0]["a"], result)


def test_kernels_that_differ_are_named_by_op():
    """A fast norm against LibTorch's own: the first op with other bits is that one, within a tolerance none is."""
    path = recipe("fast.toml", numerics="fast", optimizer=dict(eps=1e-3))
    t.check(diff(path)["same"], "two runs of one recipe part")
    result = diff(path, code=1, kernels__norm_modulate="reference")
    t.equal(first(result)[:4], (1, "forward", "block 0", "norm_modulate"), "where another norm shows")
    t.check(result["first"][0]["relative"] < 1e-5, result)
    t.check(diff(path, "--tolerance", 1e-3, "--steps", 1, kernels__norm_modulate="reference")["same"], "within 1e-3 they part")
    text = t.run("diff", path, "--with", 'kernels.norm_modulate="reference"', code=1).stdout
    for part in (f"A: {path}, 1 rank", "B: ", "kernels.norm_modulate", "they part", "step 1, forward, block 0, norm_modulate",
                 "step 1, update, ", "of 8 samples"):
        t.check(part in text, f"no \"{part}\" in", text)


def test_layouts_within_rounding():
    """Fast numerics: tensor and token cuts are the same up to rounding, a real difference is none."""
    path = recipe("rounding.toml", numerics="fast", run=dict(precision="fp64"), optimizer=dict(eps=1e-3))
    for options in CUTS if t.slow else CUTS[:2]:
        result = diff(path, "--tolerance", 1e-9, "--steps", 3, **options)
        t.check(result["same"] and result["compared"] > 1000, options, result)
    result = diff(path, "--tolerance", 1e-9, code=1, parallel__tensor=2, lr_schedule__lr=2e-3)
    t.equal((first(result)[1], first(result)[3]), ("update", "updates"), "where another learning rate shows")


def test_run_folders_are_read_and_stay_as_they_are():
    path = recipe("folders.toml")
    t.train(path, "one")
    t.train(path, "two", run__seed=3)

    def files(folder):
        return {file: file.stat().st_mtime_ns for file in (t.work / folder).rglob("*")}

    before = files("one") | files("two")
    t.check(diff(t.work / "one", path)["same"], "a run and its recipe part")
    result = diff(t.work / "one", t.work / "two", code=1)
    t.equal(first(result)[:3], (1, "forward", "batch"), "where another seed shows")
    t.equal([one["pass"] for one in result["first"]], ["forward", "backward", "update"], "passes that part")
    t.equal(files("one") | files("two"), before, "files of the runs")
    done = t.run("diff", t.work / "one", "--steps", 1)
    t.check("the same: " in done.stdout, done.stdout)


def test_refusals():
    path = recipe()
    t.refused(2, ["run.numerics", "fp64"], "diff", path, "--with", "run.precision=fp64")
    t.refused(2, ["without a run.toml"], "diff", t.work)
    t.refused(2, ["parallel.nothing"], "diff", path, "--with", "parallel.nothing=2")
    t.refused(2, ["starts its ranks itself"], "diff", path, env={"RANK": "0", "WORLD_SIZE": "1"})


if __name__ == "__main__":
    t.main(globals())
