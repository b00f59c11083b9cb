"""fp16 and its dynamic loss scale: it trains, an overflow costs one step on all ranks alike, and a resume goes on with it.

Claim (again): In fp16 an overflow halves the loss scale on all ranks, and a resume goes on with the same bits.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def half(**options):
    return t.recipe(run=dict(precision="fp16", steps=12, batch=16, micro_batch=8) | options)


def scales(folder):
    return [float(line["loss_scale"]) for line in t.lines_of(t.work / folder / "metrics.jsonl")]


def state(folder):
    return json.loads((t.latest(folder) / "state.json").read_text())


def overflowed(folder):
    """The number of steps at the start whose gradient overflowed; checks that the scale was halved by each, and by nothing
    else."""
    lines, scale = t.lines_of(t.work / folder / "metrics.jsonl"), scales(folder)
    count = sum(bool(line.get("skipped")) for line in lines)
    for i, line in enumerate(lines):
        t.equal(bool(line.get("skipped")), i < count, f"{folder}: step {line['step']} skipped")
        t.equal("grad_norm" in line.get("not_finite", {}), i < count, f"{folder}: norm of step {line['step']} overflowed")
        t.equal(scale[i], scale[0] / 2 ** min(i, count), f"{folder}: loss scale of step {line['step']}")
    return count


HUGE = 2.0**28  # a gradient times this is beyond fp16's 65504


def test_fp16_learns_what_fp32_learns():
    path = t.write_recipe("half.toml", half(steps=60))
    t.train(path, "half")
    t.train(path, "single", run__precision="fp32")
    half_lines, lines = t.metrics("half"), t.metrics("single")
    for a, b in zip(half_lines, lines):
        one, other = float(a["loss"]), float(b["loss"])
        t.check(abs(one - other) < 0.02 * other, f"step {a['step']}: loss {one} in fp16, {other} in fp32")
    t.check(float(half_lines[-1]["loss"]) < 0.8 * float(half_lines[0]["loss"]), "the loss does not fall")
    t.equal(set(scales("half")), {65536.0}, "loss scales of a run without overflow")
    t.check(not any("loss_scale" in line for line in t.lines_of(t.work / "single/metrics.jsonl")), "fp32 has a loss scale")


def test_the_scale_is_taken_out_of_the_norm():
    path = t.write_recipe("scale.toml", half())
    t.train(path, "scale-low", run__loss_scale=4096.0)
    t.train(path, "scale-high", run__loss_scale=16384.0)
    for a, b in zip(t.metrics("scale-low"), t.metrics("scale-high")):
        one, other = float(a["grad_norm"]), float(b["grad_norm"])
        t.check(abs(one - other) < 1e-3 * other, f"norm of step {a['step']}: {one} and {other}")  # but for tiny numbers


def test_an_overflow_halves_the_scale_on_all_ranks_and_is_no_skipped_step():
    path = t.write_recipe("huge.toml", half(loss_scale=HUGE, steps=20, max_skipped=1))  # non_finite = "stop"
    done = t.train(path, "huge")
    count = overflowed("huge")
    t.check(3 <= count <= 16, f"{count} overflows")
    t.check("at a loss scale of" in done.all, "no word of the overflow:", done.all)
    t.equal(state("huge")["extra"]["skipped_in_a_row"], "0", "skipped steps that count")
    t.equal(state("huge")["counters"]["steps"], 20 - count, "the optimizer's steps")
    t.equal(float(state("huge")["extra"]["loss_scale"]), HUGE / 2**count, "the saved scale")
    t.train(path, "huge-two", "--local-ranks", 2)
    t.equal(overflowed("huge-two"), count, "overflows on two ranks")
    t.same_metrics("huge", "huge-two")
    t.same_state("huge", "huge-two")
    t.train(path, "huge-tensor", "--local-ranks", 2, parallel__tensor=2, parallel__tensor_plugin="tensor")
    overflowed("huge-tensor")


def test_the_scale_doubles_after_steps_without_overflow():
    path = t.write_recipe("rise.toml", half(loss_scale=256.0, loss_scale_every=3, steps=8))
    t.train(path, "rise")
    t.equal(scales("rise"), [256.0, 256.0, 256.0, 512.0, 512.0, 512.0, 1024.0, 1024.0], "loss scales")


def test_a_resume_goes_on_with_the_scale_bit_for_bit():
    path = t.write_recipe("resume.toml", half(loss_scale=HUGE, loss_scale_every=4, steps=24))
    t.train(path, "resume-whole")
    for stop in (2, 13, 24):  # among overflows, between two rises
        t.train(path, "resume-parts", run__steps=stop)
    t.same_metrics("resume-whole", "resume-parts")
    t.equal(scales("resume-parts"), scales("resume-whole"), "loss scales")
    t.same_state("resume-whole", "resume-parts")
    for name in ("loss_scale", "steps_since_overflow"):
        t.equal(state("resume-parts")["extra"][name], state("resume-whole")["extra"][name], name)


def test_a_resume_takes_another_scale_where_the_recipe_has_one():
    path = t.write_recipe("other-scale.toml", half(loss_scale=256.0, steps=4))
    t.train(path, "other-scale", run__steps=2)
    done = t.train(path, "other-scale", run__loss_scale=16.0)
    t.check("changed since: run.loss_scale: 256.0 -> 16.0" in done.all, done.all)
    t.equal(scales("other-scale"), [256.0, 256.0, 16.0, 16.0], "loss scales")


def test_ranks_that_share_weights_or_blocks_train_in_fp16_too():
    path = t.write_recipe("shares.toml", half(loss_scale=HUGE, steps=16))
    t.train(path, "shares-one")
    for axis, plugin in (("shard", "zero1"), ("shard", "zero2"), ("shard", "fsdp"), ("pipeline", "pipeline")):
        t.train(path, plugin, "--local-ranks", 2, **{f"parallel__{axis}": 2, f"parallel__{axis}_plugin": plugin})
        t.equal(overflowed(plugin), overflowed("shares-one"), f"overflows under {plugin}")
        t.same_metrics("shares-one", plugin)
        t.same_state("shares-one", plugin)


if __name__ == "__main__":
    t.main(globals())
