"""The promise: the same training again, in a second run and after any restart.

Claim (again): Two runs of a recipe, and a run killed at random moments and resumed (on one rank and on four), have the same
losses and final weights, bit for bit.

Claim (again): After a changed batch size a resume goes on with the next sample.
"""

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

kills = 20 if t.slow else 4


def test_two_runs_of_a_recipe_give_the_same_bits():
    path = t.write_recipe("twice.toml", t.recipe(run=dict(steps=20), checkpoint=dict(every=7), validate=dict(every=10, samples=24)))
    t.train(path, "first")
    t.train(path, "second")
    t.same_metrics("first", "second")
    t.same_state("first", "second")
    ignored = {"seconds"}
    validations = [[{k: v for k, v in line.items() if k not in ignored} for line in t.lines_of(t.work / name / "validation.jsonl")]
                   for name in ("first", "second")]
    t.equal(validations[0], validations[1], "validations")
    t.equal(len(validations[0]), 2, "validations")


def test_the_resolved_recipe_in_a_runs_folder_starts_the_same_run():
    path = t.write_recipe("resolved.toml", t.recipe(run=dict(steps=5)))
    t.train(path, "given")
    t.train(t.work / "given/run.toml", "resolved")
    t.same_metrics("given", "resolved")
    t.same_state("given", "resolved")


def test_another_seed_or_order_gives_other_losses():
    path = t.write_recipe("other.toml", t.recipe(run=dict(steps=2)))
    t.train(path, "seed-0")
    t.train(path, "seed-1", run__seed=1)
    t.train(path, "stored", loader__shuffle=False)
    first = t.metrics("seed-0")
    for other in ("seed-1", "stored"):
        for a, b in zip(first, t.metrics(other)):
            t.check(a["loss"] != b["loss"], f"{other} has the loss of seed 0: {a['loss']}")


def kill_and_resume(folder, reference, ranks):
    """A run that is killed `kills` times at random moments: while it starts, computes or saves.

    Until its last kill it has more steps before it than it can take, however late this process looks: it never ends by itself."""
    random = t.seed_of(folder)
    last = 10 * kills - 8
    path = t.write_recipe(f"{folder}.toml", t.recipe(run=dict(batch=8, micro_batch=2), checkpoint=dict(every=3)))
    moments = sorted(random.sample(range(1, last), kills - 1)) + [last]  # so that there is always one to resume from

    def of_steps(steps):
        return ["train", path, *t.sets({"run.output": str(t.work / folder), "run.steps": steps}),
                *(["--local-ranks", ranks] if ranks else [])]

    for number, moment in enumerate(moments):
        if number == kills // 2 and t.lines_in(folder):  # as a dying machine leaves it
            with open(t.work / folder / "metrics.jsonl", "a") as log:
                log.write('{"step":1,"lo')
        process = t.start(*of_steps(10**9))
        if moment < moments[-1] and random.random() < 0.25:
            time.sleep(random.uniform(0, 0.6))
        else:
            t.wait_for(lambda: t.lines_in(folder) >= moment or process.poll() is not None, f"step {moment}")
            time.sleep(random.uniform(0, 0.03))
        t.check(process.poll() is None, f"it ended by itself, with exit code {process.poll()}, before it was killed")
        of_ranks = t.children(process.pid)
        if of_ranks and random.random() < 0.5:  # one rank dies: the others and their parent notice, and end
            os.kill(random.choice(of_ranks), signal.SIGKILL)
            t.equal(process.wait(60), 6, "exit code after a rank was killed")
        else:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    steps = t.lines_in(folder) + 8
    t.train(path, reference, run__steps=steps)
    done = t.run(*of_steps(steps))
    t.check("resumed from" in done.all, "it did not say what it resumed from:", done.all)
    t.same_metrics(reference, folder)
    t.same_state(reference, folder)
    t.equal(len(t.metrics(folder)), steps, "steps")
    left = [name for name in os.listdir(t.work / folder / "checkpoints") if ".tmp-" in name]
    t.equal(left, [], "what unfinished saves left")


def test_a_run_that_was_killed_and_resumed_is_the_uninterrupted_run():
    kill_and_resume("killed", "whole", 0)


def test_ranks_that_were_killed_and_resumed_are_the_uninterrupted_rank():
    global kills
    kills = kills if t.slow else 2
    kill_and_resume("killed-ranks", "whole-ranks", 4)


def test_a_torn_last_line_and_later_steps_are_dropped_by_a_resume():
    path = t.write_recipe("torn.toml", t.recipe(run=dict(steps=6), checkpoint=dict(every=2, keep=5)))
    t.train(path, "torn")
    before = (t.work / "torn/metrics.jsonl").read_text()
    with open(t.work / "torn/metrics.jsonl", "a") as log:
        log.write(before.splitlines()[0].replace('"step":1,', '"step":7,') + '\n{"step":8,"loss":0.')
    t.train(path, "torn")
    t.equal((t.work / "torn/metrics.jsonl").read_text(), before, "metrics.jsonl")
    done = t.train(path, "torn", "--resume", str(t.work / "torn/checkpoints/step_00000002"), run__steps=4)
    t.check("step_00000006 is after step 2" in done.all, "no word of the later steps:", done.all)
    t.equal([line["loss"] for line in t.metrics("torn")], [line["loss"] for line in t.lines_of_text(before)[:4]], "losses")


def test_a_changed_batch_goes_on_with_the_sample_after_the_last():
    """With weights that stay, the loss of a step is the mean of its samples', whichever batch they come in."""
    path = t.write_recipe("batches.toml", t.recipe(run=dict(batch=4, micro_batch=4), lr_schedule=dict(lr=0.0)))
    t.train(path, "fours", run__steps=29)
    losses = [float(line["loss"]) for line in t.metrics("fours")]
    t.equal(len(set(losses)), 29, "different losses")
    steps = samples = 0
    for batch, more, ranks in ((16, 2, 0), (12, 3, 0), (4, 2, 2), (20, 2, 2)):
        t.train(path, "batches", "--allow-change", "run.batch", *(["--local-ranks", ranks] if ranks else []), run__batch=batch,
                run__steps=steps + more)
        for line in t.metrics("batches")[steps:]:
            mean = sum(losses[samples // 4:(samples + batch) // 4]) / (batch // 4)
            samples += batch
            t.equal(line["samples"], samples, f"samples after step {line['step']}")
            t.check(abs(float(line["loss"]) - mean) < 1e-12 * mean,
                    f"step {line['step']} has the loss {line['loss']}, its samples have {mean}")
        steps += more
    t.equal(samples, 4 * 29, "samples")


def test_a_resume_says_what_it_resumes_from_and_what_differs():
    path = t.write_recipe("said.toml", t.recipe(run=dict(steps=4), checkpoint=dict(every=2)))
    t.train(path, "said")
    done = t.train(path, "said", run__steps=5, lr_schedule__lr=2e-3)
    t.check("resumed from" in done.all and "step_00000004 (step 4)" in done.all, done.all)
    for line in ("changed since: run.steps: 4 -> 5", "changed since: lr_schedule.lr: 0.001 -> 0.002"):
        t.check(line in done.all, f"no \"{line}\" in {done.all}")
    done = t.train(path, "said", "--resume", "never")
    t.check("resumed" not in done.all, done.all)
    t.equal(len(t.metrics("said")), 4, "steps after starting over")


def test_a_run_may_start_from_the_weights_of_another():
    path = t.write_recipe("from.toml", t.recipe(run=dict(steps=3)))
    t.train(path, "teacher")
    for which, section in (("weights", "model"), ("ema", "ema")):
        folder = f"pupil-{which}"
        t.train(path, folder, run__init_from=str(t.work / "teacher"), run__init_weights=which, run__steps=0)
        old, new = t.tensors_of(t.latest("teacher")), t.tensors_of(t.latest(folder))
        for (kind, name), tensor in new.items():
            if kind in ("model", "ema"):
                t.check(tensor == old[section, name], f"{kind} {name} of {folder} is not the teacher's")


if __name__ == "__main__":
    t.main(globals())
