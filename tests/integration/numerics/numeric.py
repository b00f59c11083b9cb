"""What happens to numbers that are not finite.

Claim (failures): A step that is not finite is skipped or ends the run, as the recipe says.
"""

import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

LARGE = 4.3e18  # sixteen squares of such numbers are about the largest fp32


def overflowing(**options):
    """Some classes' pictures are so large that their loss is infinite in fp32, the others' are not: some steps are
    skipped, always the same ones."""
    run = dict(steps=24, batch=1, non_finite="skip", max_skipped=20) | options
    return t.recipe(run=run, data=t.synthetic(content="clusters", mean=LARGE, spread=0.0, channels=1, height=4, width=4),
                    encoder__image=dict(plugin="identity"), objective=dict(plugin="diffusion", condition_dropout=0.0),
                    checkpoint=dict(every=1, keep=100), ema=dict(decay=0.9))


def weights(folder, step):
    return t.tensors_of(t.work / folder / "checkpoints" / f"step_{step:08}")


def state(folder, step):
    return json.loads((t.work / folder / "checkpoints" / f"step_{step:08}" / "state.json").read_text())


def test_a_skipped_step_advances_and_leaves_weights_averages_and_counters():
    path = t.write_recipe("skip.toml", overflowing())
    done = t.train(path, "skip")
    lines = t.metrics("skip")
    skipped = [line["step"] for line in lines if line["skipped"]]
    t.check(3 <= len(skipped) <= 18, f"the recipe is to skip some of {len(lines)} steps, not {skipped}")
    t.equal(len(lines), 24, "steps")
    t.equal([line["samples"] for line in lines], list(range(1, 25)), "samples used up")
    t.equal(t.learned_of("skip"), [0 if line["skipped"] else 1 for line in lines], "samples that the rate counts")
    updates = 0
    for line in lines:
        step = line["step"]
        updates += not line["skipped"]
        t.equal(state("skip", step)["counters"]["steps"], updates, f"the optimizer's steps after step {step}")
        if step == 1:
            continue
        t.equal(weights("skip", step) == weights("skip", step - 1), bool(line["skipped"]), f"step {step} left all tensors")
        if line["skipped"]:
            t.check(f"step {step}: " in done.all and "skipped" in done.all, f"no word of step {step}:", done.all)
    raw = t.lines_of(t.work / "skip/metrics.jsonl")
    for line in raw:
        t.equal("not_finite" in line, bool(line.get("skipped")), f"not_finite of step {line['step']}")


def test_a_resume_among_skipped_steps_is_the_uninterrupted_run():
    path = t.write_recipe("skip2.toml", overflowing())
    t.train(path, "skip-whole")
    skipped = [line["step"] for line in t.metrics("skip-whole") if line["skipped"]]
    for stop in (skipped[0], skipped[1] - 1, 24):
        t.train(path, "skip-parts", run__steps=stop)
    t.same_metrics("skip-whole", "skip-parts")
    t.same_state("skip-whole", "skip-parts")


def test_skipping_ends_after_as_many_steps_in_a_row_as_allowed():
    # Every picture overflows; three steps may be skipped.
    path = t.write_recipe("always.toml", overflowing(max_skipped=3))
    done = t.refused(5, ["step 4", "for the 4th time in a row", "run.max_skipped = 3", "lower lr_schedule.lr"], "train", path,
                     *t.sets({"data.mean": 1e25, "run.output": str(t.work / "always")}))
    t.equal([line["step"] for line in t.metrics("always") if line["skipped"]], [1, 2, 3], "skipped steps")
    t.equal(t.run("checkpoint", "verify", t.work / "always/checkpoints/step_00000003").returncode, 0, "verify")
    # The count goes on after a resume: the fourth in a row still ends the run.
    t.refused(5, ["step 4", "for the 4th time in a row"], "train", path,
              *t.sets({"data.mean": 1e25, "run.output": str(t.work / "always")}))
    t.check(done.all.count("skipped") >= 3, done.all)


def test_stop_ends_the_run_with_code_5_and_keeps_the_checkpoint_before():
    path = t.write_recipe("stop.toml", t.recipe(run=dict(steps=20), checkpoint=dict(every=1, keep=3),
                                               lr_schedule=dict(lr=1e30, warmup=0)))
    done = t.refused(5, ["step ", "the loss is", "run.clip_norm", "the newest checkpoint is of step "], "train", path,
                     *t.sets({"run.output": str(t.work / "stop")}))
    bad = int(done.stderr.split("error: step ")[1].split(":")[0])
    t.check(bad > 1, f"the first step is finite, and {bad} is not")
    t.check(f"error: step {bad}" in (t.work / "stop/log.txt").read_text(), "the log does not say what ended the run")
    lines = t.metrics("stop")
    t.equal(len(lines), bad - 1, "lines before the step that is not finite")
    t.equal(t.checkpoints("stop")[-1], f"step_{bad - 1:08}", "the newest checkpoint")
    t.run("checkpoint", "verify", t.latest("stop"))


def test_a_run_over_another_that_cannot_make_its_first_step_costs_that_nothing():
    path = t.write_recipe("over.toml", overflowing(steps=4, non_finite="stop") | dict(record=dict(receipts=True)))
    t.train(path, "over", data__mean=0.0)
    files = ("metrics.jsonl", "receipts.jsonl", "run.toml")
    before = t.checkpoints("over"), [(t.work / "over" / name).read_bytes() for name in files]
    for read in ("at_once", "late"):
        done = t.refused(5, ["step 1", "there is no checkpoint yet"], "train", path, "--resume", "never",
                         *t.sets({"data.mean": 1e25, "run.output": str(t.work / "over"), "run.read_results": read}))
        t.check((t.checkpoints("over"), [(t.work / "over" / name).read_bytes() for name in files]) == before,
                f"{read}: something of the run before is gone:", done.all)
    t.train(path, "over", "--resume", "never", data__mean=0.0, run__steps=2)
    t.equal((t.checkpoints("over"), len(t.metrics("over"))), (before[0][:2], 2), "what is left when it could")


def all_finite(folder):
    """Whether all that the run's checkpoints hold is finite; and their steps."""
    for name in t.checkpoints(folder):
        for key, (dtype, _, data) in t.tensors_of(t.work / folder / "checkpoints" / name).items():
            t.check(dtype != "F32" or all(map(math.isfinite, t.numbers((dtype, None, data)))), f"{name}: {key}")
    return [int(name[5:]) for name in t.checkpoints(folder)]


def test_a_state_that_is_not_finite_is_never_kept():
    # Loss and norm of a step are finite while the squares in the optimizer's state, or the weights after it, are not.
    named = set()
    for lr in (1e6, 1e15, 1e38):
        for policy in ("stop", "skip"):
            folder = f"large-{lr:g}-{policy}"
            path = t.write_recipe("large.toml", t.recipe(
                run=dict(steps=12, non_finite=policy, max_skipped=100, clip_norm=0.0), checkpoint=dict(every=1, keep=100),
                lr_schedule=dict(lr=lr, warmup=0)))
            done = t.run("train", path, *t.sets({"run.output": str(t.work / folder)}), code=5)
            errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            t.check(len(errors) == 1 and "lr_schedule.lr" in errors[0], done.all)
            steps = all_finite(folder)
            way_back = f"the newest checkpoint is of step {steps[-1]}, and all its numbers are finite" if steps else \
                "there is no checkpoint yet"
            t.check(errors[0].endswith(way_back), f"{way_back}: {errors[0]}")
            if "holds numbers that are not finite" in errors[0]:
                named.add(policy)
            if lr == 1e6:  # from there the run does go on, with what was advised
                t.train(path, folder, run__steps=steps[-1] + 1, lr_schedule__lr=1e-9, run__clip_norm=1.0)
    t.check("stop" in named, f"no state of {named} was not finite while its loss was")


def test_a_state_that_is_not_finite_ends_the_first_step_that_is_skipped_for_it():
    path = t.write_recipe("broken.toml", t.recipe(
        run=dict(steps=12, non_finite="skip", max_skipped=100, clip_norm=0.0), checkpoint=dict(every=0),
        lr_schedule=dict(lr=1e38, warmup=0)))
    done = t.refused(5, ["holds numbers that are not finite"], "train", path, *t.sets({"run.output": str(t.work / "broken")}))
    skipped = [bool(line["skipped"]) for line in t.metrics("broken")]
    t.equal(skipped, [False] * (len(skipped) - 1) + [True], "skipped steps")
    t.check(f"error: step {len(skipped)}: " in done.stderr, done.stderr)


def test_weights_that_are_not_finite_make_no_pictures():
    path = t.write_recipe("large64.toml", t.recipe(run=dict(steps=1, precision="fp64"), ema=dict(enabled=False),
                                                   lr_schedule=dict(lr=1e200, warmup=0), model=dict(convention="facebook")))
    t.train(path, "large64")
    words = ["sample", t.work / "large64", "--out", t.work / "none", "--set", "run.precision=fp32"]
    t.refused(7, [f"step_00000001: weight '", "holds numbers that are not finite"], *words)
    t.refused(7, [f"step_00000001: weight '", "holds numbers that are not finite"], "train", path,
              *t.sets({"run.output": str(t.work / "from"), "run.init_from": str(t.work / "large64"), "run.precision": "fp32"}))
    bad = t.work / "bad.safetensors"
    t.train(path, "small64", lr_schedule__lr=1e-3, run__precision="fp32")
    t.run("checkpoint", "export", t.work / "small64", "--format", "facebook-dit", "--out", bad)
    tensors = {name: (dtype, shape, list(t.numbers((dtype, shape, data))))
               for name, (dtype, shape, data) in t.read_tensors(bad).items()}
    name = next(name for name in sorted(tensors) if name.endswith("bias"))
    tensors[name][2][0] = math.nan
    t.write_tensors(bad, tensors)
    t.refused(7, ["bad.safetensors: weight '", "holds numbers that are not finite"], "checkpoint", "import", bad, "--format",
              "facebook-dit", "--recipe", path, "--out", t.work / "bad-imported", "--set", "run.precision=fp32")
    t.check(not (t.work / "bad-imported").exists(), "an import that was refused left a folder")


if __name__ == "__main__":
    t.main(globals())
