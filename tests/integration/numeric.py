"""What happens to numbers that are not finite."""

import json

import support as t

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
    done = t.refused(5, ["step ", "the loss is", "the last checkpoint is from before it", "run.clip_norm"], "train", path,
                     *t.sets({"run.output": str(t.work / "stop")}))
    bad = int(done.stderr.split("error: step ")[1].split(":")[0])
    t.check(bad > 1, f"the first step is finite, and {bad} is not")
    lines = t.metrics("stop")
    t.equal(len(lines), bad - 1, "lines before the step that is not finite")
    t.equal(t.checkpoints("stop")[-1], f"step_{bad - 1:08}", "the newest checkpoint")
    t.run("checkpoint", "verify", t.latest("stop"))


if __name__ == "__main__":
    t.main(globals())
