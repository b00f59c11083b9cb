"""Claim (plugins): What a run does with a plugin of an author's that breaks a promise, or that says something of itself: it is
refused by its name, or what it says is said. All of the variants with --slow."""

import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

FIXTURES = t.build / "tests/fixture_plugins"


def plugins(*names):
    folder = t.work / "plugins"
    folder.mkdir(exist_ok=True)
    for name in names:
        if not (folder / f"{name}.so").exists():
            shutil.copy(FIXTURES / f"{name}.so", folder)
    return {"DITTO_PLUGIN_PATH": str(folder)}


def refused(code, parts, path, folder, *arguments, env, **options):
    given = {key.replace("__", "."): value for key, value in options.items()}
    return t.refused(code, parts, "train", path, *t.sets({"run.output": str(t.work / folder)} | given), *arguments, env=env)


def faulty(name, **more):
    return t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=2, batch=8), data=t.synthetic(), **more))


# --- objectives --------------------------------------------------------------------------------------------------------

SAMPLES = {
    "fewer samples": "prepare() was given 8 samples, and gives 7",
    "samples twice": "prepare() was given 8 samples, and gives 16",
    "fewer rows": "gives \"noise\" as [7, 1, 8, 8]",
    "a whole tensor": "gives \"noise\" as []",
    "fewer weights": "gives 7 weights",
    "other order": "gives others, or in another order",
    "a mean": "of 8 samples is []",
    "losses of half": "of 8 samples is [4]",
}
QUICK = {"fewer samples", "losses of half"}


def test_an_objective_keeps_a_batchs_samples():
    env = plugins("faulty_objective")
    for fault, said in SAMPLES.items():
        if t.slow or fault in QUICK:
            path = faulty("samples", objective=dict(plugin="faulty_objective", fault=fault))
            refused(3, ["objective \"faulty_objective\"", said, "Objective::"], path, "samples", env=env)
    t.train(faulty("right", objective=dict(plugin="faulty_objective")), "right", env=env)


def test_a_gradient_of_exactly_0_is_said_once():
    env = plugins("faulty_objective")
    path = faulty("zero", objective=dict(plugin="faulty_objective", fault="no gradient"))
    said = t.train(path, "zero", env=env, run__steps=4).all
    t.equal(said.count("the gradient's norm is exactly 0"), 1, f"how often it is said\n{said}")
    t.check("step 1: the gradient's norm is exactly 0, and nothing is learned" in said, said)
    t.check("exactly 0" not in t.train(path, "not-zero", env=env, objective__fault="none").all, "it is said where it is not so")


# --- pictures ----------------------------------------------------------------------------------------------------------


def test_a_flip_of_pictures_that_do_not_say_whether_they_turn_is_refused():
    env = plugins("outlined")
    variants = [dict(height=8, width=8), dict(height=8, width=8, share=2), dict(height=16, width=8), dict(height=16, width=8, share=2)]
    for number, options in enumerate(variants if t.slow else variants[:1]):
        path = t.write_recipe("outlines.toml", t.recipe(run=dict(name="outlines", steps=2, batch=8), loader=dict(flip=True),
                                                        data=dict(plugin="outlined", says=False, **options)))
        words = ["loader.flip", "mirrors \"image\", and \"outline\"", "turns_with_image"]
        t.refused(2, words, "config", "check", path, env=env)
        refused(2, words, path, "outlines", env=env)
        t.train(path, f"turning-{number}", env=env, data__says=True)
        t.train(path, f"still-{number}", env=env, loader__flip=False)


# --- strategies --------------------------------------------------------------------------------------------------------


def replicated(name, **options):
    return t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=2, batch=8, micro_batch=4, **options), data=t.synthetic(),
                                                   parallel=dict(replicate_plugin="replicas")))


def test_under_one_number_a_strategy_says_that_it_is_exact():
    env = plugins("replicas")
    path = replicated("one", numerics="one")
    words = ["run.numerics", "the strategy \"replicas\", which does not say that it is exact", "parallel.replicate"]
    refused(2, words, path, "one", "--local-ranks", 2, env=env)
    t.train(path, "one-exact", "--local-ranks", 2, env=env, parallel__says_exact=True)
    t.train(path, "one-alone", env=env, parallel__says_exact=True)
    t.same_state("one-alone", "one-exact")
    t.train(path, "fast", "--local-ranks", 2, env=env, run__numerics="fast")


def test_a_strategy_with_a_memory_says_on_a_resume_that_equal_bits_end():
    env = plugins("replicas")
    path = replicated("memory")
    line = "equal bits end here: a strategy of [parallel] keeps numbers that no checkpoint has"
    for folder, remembers in (("remembers", True), ("forgets", False)):
        given = dict(env=env, parallel__says_remembers=remembers)
        first = t.train(path, folder, "--local-ranks", 2, **given).all
        t.check(line not in first, f"said of a run that begins\n{first}")
        resumed = t.train(path, folder, "--local-ranks", 2, run__steps=4, **given).all
        t.equal(resumed.count(line), int(remembers), f"{folder}: how often it is said\n{resumed}")


# --- kernels -----------------------------------------------------------------------------------------------------------


def test_rows_that_copy_say_so_where_rows_are_listed():
    shown = t.run("plugins", "show", "kernels/exact")
    t.check("OP " in shown.stdout and "COPIES" in shown.stdout, shown.stdout)
    rows = json.loads(t.run("plugins", "show", "kernels/exact", "--json").stdout)["kernels"]
    t.check({"op": "linear", "variant": "exact_plain", "exact": True, "copies": True} in rows, rows)
    env = plugins("faulty_kernels")
    rows = json.loads(t.run("plugins", "show", "kernels/faulty_kernels", "--json", env=env).stdout)["kernels"]
    t.equal([(row["op"], row["copies"]) for row in rows], [("gated_residual", True), ("norm_modulate", False)], "rows")


t.main(globals())
