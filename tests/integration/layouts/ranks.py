"""The rule of order: with the same micro-batches, data ranks give the bits of one rank.

Claim (again): On 2, 3 and 4 ranks (by `--local-ranks`, and torchrun where it is there), batches that the ranks do not divide
included: one rank's bits in losses, norms and all state.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

steps = 50 if t.slow else 10
_alone = {}


def recipe(name, batch, micro_batch):
    return t.write_recipe(f"{name}.toml", t.recipe(
        run=dict(steps=steps, batch=batch, micro_batch=micro_batch, clip_norm=0.5), lr_schedule=dict(lr=2e-3, warmup=3),
        loader=dict(flip=True), validate=dict(every=steps // 2, samples=37, batch=5)))


def alone(batch, micro_batch):
    """The recipe and the folder of one rank's run of it."""
    name = f"alone-{batch}-{micro_batch}"
    if name not in _alone:
        _alone[name] = recipe(name, batch, micro_batch)
        t.train(_alone[name], name)
        t.check(len({line["loss"] for line in t.metrics(name)}) == steps, "some steps have the same loss")
    return _alone[name], name


def same_run(one, other):
    # A step's loss is the sum of its samples' losses in the order of their ids, each at the time and noise that belong to
    # its id: equal bits mean the same samples under the same ids.
    t.same_metrics(one, other)
    t.same_state(one, other)
    validations = [[{key: value for key, value in line.items() if key != "seconds"}
                    for line in t.lines_of(t.work / folder / "validation.jsonl")] for folder in (one, other)]
    t.equal(validations[0], validations[1], f"validations of {one} and {other}")
    t.equal(len(t.metrics(other)), steps, "steps")


def on_ranks(count, batch, micro_batch):
    path, name = alone(batch, micro_batch)
    folder = f"{name}-on-{count}"
    t.train(path, folder, "--local-ranks", count)
    same_run(name, folder)


def test_two_ranks_give_the_bits_of_one():
    on_ranks(2, 16, 4)


def test_four_ranks_with_one_micro_batch_each_give_the_bits_of_one():
    on_ranks(4, 16, 4)


def test_three_ranks_that_do_not_divide_the_batch_give_the_bits_of_one():
    on_ranks(3, 18, 4)  # five micro-batches, the last of two samples


def test_four_ranks_of_which_two_have_nothing_to_do_give_the_bits_of_one():
    on_ranks(4, 8, 4)


def test_ranks_without_a_stated_micro_batch_share_the_batch_unevenly():
    path = recipe("shared", 10, 0)
    t.train(path, "shared-3", "--local-ranks", 3)
    t.train(path, "shared-1", run__micro_batch=4)  # ten samples on three ranks: at most four each
    same_run("shared-1", "shared-3")


def test_a_run_goes_on_with_another_number_of_ranks():
    path, name = alone(16, 4)
    for count, until in ((2, 3), (4, 6), (0, steps)):
        t.train(path, "moved", *(["--local-ranks", count] if count else []), run__steps=until)
    t.same_metrics(name, "moved")
    t.same_state(name, "moved")


def test_deterministic_ranks_with_several_micro_batches_each_give_the_bits_of_one():
    on_ranks(2, 20, 2)  # ten micro-batches, five a rank


def test_torchrun_gives_the_bits_of_one_rank():
    peers = pathlib.Path(os.environ.get("DITTO_PEERS", t.source / ".deps/peers/bin/python"))
    torchrun = peers.parent / "torchrun"
    if not torchrun.exists():
        raise t.NotRun("torchrun is one of the Python peers (./dev peers)")
    path, name = alone(16, 4)
    words = [str(torchrun), "--no-python", "--nproc_per_node", "2", "--master_port", str(20000 + os.getpid() % 10000), t.ditto,
             "train", str(path), *t.sets({"run.output": str(t.work / "torchrun")})]
    done = t.subprocess.run(words, capture_output=True, text=True, timeout=t.patient(240), cwd=t.work, env=t.environment)
    t.equal(done.returncode, 0, f"exit code of torchrun: {done.stderr}")
    same_run(name, "torchrun")


def test_replicas_sum_while_the_backward_runs():
    done = t.train(recipe("overlapped", 8, 0), "overlapped", "--local-ranks", 2, "--trace", "comm", run__steps=1)
    calls = [line.split()[:3] for line in done.all.splitlines()]
    t.check(["replicate", "exchange", "backward"] in calls, f"no sum in backward: {done.all}")


if __name__ == "__main__":
    t.main(globals())
