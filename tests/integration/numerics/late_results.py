"""run.read_results: whether the host reads a step's losses and norm before it asks for the update, or while the next step is
computed, every line of metrics.jsonl, every skipped step, every loss scale, receipt and checkpoint is the same.

Claim (again): With run.read_results = "late" metrics (but for times and memory), skipped steps, loss scales, errors, receipts,
traces, stops by signals and resumes are those of "at_once", byte for byte: of every optimizer, in fp16, and on 2 ranks.
"""

import json
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import numeric  # noqa: E402

WAYS = ("at_once", "late")
MEASURED = ("step_s", "samples_per_s", "tflops", "mfu", "mem_bytes", "data_wait", "mem")  # times, memory, and what follows
HUGE = 2.0**28  # a gradient times this is beyond fp16's 65504


def calm(line):
    """A line of metrics.jsonl without what was measured."""
    line = {key: value for key, value in line.items() if key not in MEASURED}
    for op in (op for ops in line.get("comm", {}).values() for op in ops.values()):
        for counted in op.values():
            counted.pop("waited_s")
    return line


def lines(folder):
    return [calm(line) for line in t.lines_of(t.work / folder / "metrics.jsonl")]


def same_lines(one, other):
    mine, others = lines(one), lines(other)
    for a, b in zip(mine, others):
        t.equal(a, b, f"metrics of {one} and {other}, step {a['step']}")
    t.equal(len(mine), len(others), f"lines of {one} and {other}")
    return mine


def extras(folder):
    """What the newest checkpoint notes of counts and scales; not of this option."""
    return json.loads((t.latest(folder) / "state.json").read_text())["extra"]


def both(name, tree, *arguments, **options):
    """Trained both ways; the lines, and what was said."""
    path, said = t.write_recipe(f"{name}.toml", tree), []
    for way in WAYS:
        said.append(t.train(path, f"{name}-{way}", *arguments, run__read_results=way, **options).all)
    made = same_lines(f"{name}-at_once", f"{name}-late")
    t.same_state(f"{name}-at_once", f"{name}-late")
    t.equal(extras(f"{name}-at_once"), extras(f"{name}-late"), f"counts of {name}")
    return made, said


def skipping(**sections):
    """Some steps are skipped; the gradient is clipped in the others. Nothing but the last step has to be known at once."""
    tree = numeric.overflowing(clip_norm=1.0, steps=20) | dict(checkpoint=dict(every=0))
    for name, options in sections.items():
        tree[name] = dict(options)
    return tree


def test_steps_are_skipped_alike_by_every_optimizer():
    for optimizer in ("adamw", "adamw8bit", "sgd", "lion", "muon", "adafactor", "schedule_free"):
        made, said = both(optimizer, skipping(optimizer=dict(plugin=optimizer)))
        skipped = [line["step"] for line in made if line.get("skipped")]
        t.check(3 <= len(skipped) <= 16, f"{optimizer}: the recipe is to skip some of {len(made)} steps, not {skipped}")
        t.check(any(b == a + 1 for a, b in zip(skipped, skipped[1:])), f"{optimizer}: no two steps in a row: {skipped}")
        for all_of_it in said:
            for step in skipped:
                t.check(f"step {step}: the loss is " in all_of_it, f"{optimizer}: no word of step {step}: {all_of_it}")
    groups = dict(plugin="muon", group=[dict(match="*.bias", plugin="adamw", weight_decay=0.0)])
    both("groups", skipping(optimizer=groups))


def test_an_average_that_warms_up_counts_the_updates_alone():
    tree = skipping()
    tree["ema"] = dict(decay=0.999, warmup=True)  # min(decay, (1 + n) / (10 + n))
    made, _ = both("average", tree)
    updates = 0
    for line in made:
        updates += not line.get("skipped")
        t.equal(float(line["ema_decay"]), (1 + updates) / (10 + updates), f"the average's decay in step {line['step']}")


def test_what_is_seen_and_kept_in_between_is_the_same():
    tree = skipping(checkpoint=dict(every=3, keep=100), validate=dict(every=4, samples=8))
    both("kept", tree)
    t.equal(t.checkpoints("kept-at_once"), t.checkpoints("kept-late"), "checkpoints")
    for name in t.checkpoints("kept-late"):
        one, other = (t.tensors_of(t.work / f"kept-{way}/checkpoints/{name}") for way in WAYS)
        t.check(one == other, f"{name} differs")
    seen = [[{key: value for key, value in line.items() if key != "seconds"}
             for line in t.lines_of(t.work / f"kept-{way}/validation.jsonl")] for way in WAYS]
    t.equal(seen[0], seen[1], "validation losses")


def test_the_loss_scale_falls_and_rises_alike():
    tree = t.recipe(run=dict(precision="fp16", steps=28, batch=16, micro_batch=8, loss_scale=HUGE, loss_scale_every=4,
                             clip_norm=0.5))
    made, _ = both("half", tree)
    t.check(sum(bool(line.get("skipped")) for line in made) >= 4, f"too few overflows: {made}")
    scales = [float(line["loss_scale"]) for line in made]
    t.check(any(b == 2 * a for a, b in zip(scales, scales[1:])) and any(2 * b == a for a, b in zip(scales, scales[1:])),
            f"the scale is to fall and to rise: {scales}")
    both("half-two", tree, "--local-ranks", 2)
    same_lines("half-late", "half-two-late")


def test_errors_come_with_the_same_words_and_lines():
    cases = {
        "row": (numeric.overflowing(max_skipped=3), {"data.mean": 1e25}, "for the 4th time in a row"),
        "stop": (t.recipe(run=dict(steps=20), lr_schedule=dict(lr=1e30, warmup=0)), {}, "the loss is"),
        "state": (t.recipe(run=dict(steps=12, non_finite="skip", max_skipped=100), lr_schedule=dict(lr=1e38, warmup=0)), {},
                  "holds numbers that are not finite"),
    }
    for name, (tree, options, words) in cases.items():
        tree["checkpoint"] = dict(every=0)
        path, errors = t.write_recipe(f"{name}.toml", tree), []
        for way in WAYS:
            given = options | {"run.output": str(t.work / f"{name}-{way}"), "run.read_results": way}
            done = t.refused(5, [words], "train", path, *t.sets(given))
            errors.append([line for line in done.stderr.splitlines() if line.startswith("error: ")])
        t.equal(errors[0], errors[1], f"errors of {name}")
        same_lines(f"{name}-at_once", f"{name}-late")


def test_a_step_that_is_read_with_the_one_before_keeps_its_line():
    """The step that ends the run is one that has to be known at once, by which the one before is read and not told yet."""
    tree = t.recipe(run=dict(steps=20), lr_schedule=dict(lr=1e30, warmup=0))
    path = t.write_recipe("known.toml", tree)
    t.refused(5, ["the loss is"], "train", path, *t.sets({"run.output": str(t.work / "known")}))
    told = t.lines_in("known")
    t.check(0 < told < 19, f"the run is to end on its way, not after {told} steps")
    for way in WAYS:
        given = {"run.output": str(t.work / f"known-{way}"), "run.read_results": way, "checkpoint.every": told + 1}
        t.refused(5, [f"step {told + 1}: the loss is"], "train", path, *t.sets(given))
    t.equal(len(same_lines("known-at_once", "known-late")), told, "lines")


def test_layouts_decide_together():
    # Of the second layout each rank has half of the weights, and of the third only the last one the losses.
    layouts = {"two": {}, "fsdp": {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}, "pipeline": {"parallel.pipeline": 2},
               "tensor": {"parallel.tensor": 2}}
    tree = skipping()
    tree["run"] |= dict(batch=2, micro_batch=1)
    for name, sets in layouts.items():
        made, _ = both(name, tree, "--local-ranks", 2, *t.sets(sets))
        t.check(any(line.get("skipped") for line in made) and not all(line.get("skipped") for line in made),
                f"{name} is to skip some steps")


def test_one_number_stays_that_number():
    tree = skipping()
    tree["run"] |= dict(numerics="one")
    both("exact", tree)
    both("exact-two", tree, "--local-ranks", 2)
    same_lines("exact-late", "exact-two-late")


def test_receipts_are_the_same():
    both("receipts", skipping(record=dict(receipts=True, average_every=2)))
    one, other = ((t.work / f"receipts-{way}/receipts.jsonl").read_text() for way in WAYS)
    t.equal(one, other, "receipts")


def test_traces_count_the_same():
    made, _ = both("traced", skipping(), "--local-ranks", 2, "--trace", "comm", run__batch=2)
    t.check(all("comm" in line for line in made), "no line counts what travels")
    made, _ = both("kernels", skipping(), "--trace", "kernels")
    t.check(all("kernels" in line for line in made), "no line counts kernels")


def test_a_resume_may_change_the_way():
    path = t.write_recipe("resume.toml", skipping())
    t.train(path, "whole", run__read_results="at_once")
    skipped = [line["step"] for line in lines("whole") if line.get("skipped")]
    for number, stop in enumerate((skipped[0], skipped[1] + 1, skipped[-1] - 1, 20)):
        t.train(path, "parts", run__steps=stop, run__read_results=WAYS[(number + 1) % 2])
    same_lines("whole", "parts")
    t.same_state("whole", "parts")
    t.equal(extras("whole")["skipped_in_a_row"], extras("parts")["skipped_in_a_row"], "skipped in a row")


def test_a_signal_stops_after_a_step_with_its_checkpoint():
    for ranks in (1, 2):
        tree = t.recipe(run=dict(steps=60, batch=8, micro_batch=2), checkpoint=dict(every=0))
        path, late = t.write_recipe("signal.toml", tree), f"signal-late{ranks}"
        t.train(path, f"signal-whole{ranks}", run__read_results="at_once")
        words = [t.ditto, "train", path, "--local-ranks", ranks,
                 *t.sets({"run.output": str(t.work / late), "run.read_results": "late"})]
        with open(t.work / f"{late}.log", "w") as out:
            process = subprocess.Popen([str(word) for word in words], cwd=t.work, env=t.environment, stdout=out, stderr=out,
                                       start_new_session=True)
            t.wait_for(lambda: t.lines_in(late) >= 5 or process.poll() is not None, "step 5", 120)
            process.send_signal(signal.SIGTERM)
            code = process.wait(t.patient(120))
        said = (t.work / f"{late}.log").read_text()
        t.check(code in (0, 75), f"exit code {code}: {said}")  # 0: it was over by then
        t.equal(t.latest(late).name, f"step_{t.lines_in(late):08}", f"the newest checkpoint is of the last line: {said}")
        t.train(path, late, "--local-ranks", ranks, run__read_results="late")
        same_lines(f"signal-whole{ranks}", late)
        t.same_state(f"signal-whole{ranks}", late)


def test_run_toml_has_the_way_where_the_recipe_does():
    path = t.write_recipe("noted.toml", t.recipe(run=dict(steps=1)))
    t.train(path, "noted")
    t.check("read_results" not in (t.work / "noted/run.toml").read_text(), "auto is noted")
    t.train(path, "noted-late", run__read_results="late")
    t.check('read_results = "late"' in (t.work / "noted-late/run.toml").read_text(), "late is not noted")


if __name__ == "__main__":
    t.main(globals())
