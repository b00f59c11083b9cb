"""A cascade's stages are trained in order by one command, which goes on wherever it was killed.

Claim (failures): A cascade that is killed at moments spread over the training of its three stages goes on by the same command, and every
stage ends with the undisturbed one's bits, on one rank and with a stage on two by FSDP; so it does after SIGTERM, and where stages train
at the same time, each in a process of its own. Also: `train.py --slow`, twenty kills each

Claim (one number): With `run.numerics = "one"` all stages of a cascade have one number on one rank, on two, and by FSDP.
"""

import contextlib
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import cascades as c  # noqa: E402

KILLS = 20 if t.slow else 3
STEPS = 20 * len(c.STAGES)
FSDP = ["--local-ranks", 2, "--set", "sr8.parallel.shard=2", "--set", 'sr8.parallel.shard_plugin="fsdp"']


@functools.cache
def undisturbed(*more):
    """The folder of a cascade that nothing happened to, and what it said."""
    output = "-".join(["undisturbed", *(word.split(".")[0] for word in map(str, more) if not word.startswith("-"))])
    return output, t.run(*c.words(c.cascade(), output, *more)).all


def done(output):
    """Steps of all stages."""
    return sum(t.lines_in(f"{output}/{one}") for one in c.STAGES)


def gone(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def kill_all(process):
    """The command and, at once, the ranks that it has started."""
    pids = t.children(process.pid)
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    t.wait_for(lambda: all(gone(pid) for pid in pids), "ranks to end")
    process.wait(t.patient(30))


def killed_and_whole(output, *more):
    whole, _ = undisturbed(*more)
    path = c.cascade()
    random = t.seed_of(output)
    killed = 0
    for moment in sorted(random.sample(range(STEPS), KILLS)):
        process = t.start(*c.words(path, output, *more))
        t.wait_for(lambda: done(output) >= moment or process.poll() is not None, f"step {moment} of all stages", 120)
        time.sleep(random.uniform(0, 0.2))
        killed += process.poll() is None
        kill_all(process)
    t.check(killed * 2 > KILLS, f"only {killed} of {KILLS} were killed before they had ended")
    end = t.run(*c.words(path, output, *more))
    t.check("all 3 stages are trained" in end.all, end.all)
    c.same(whole, output)


def test_killed_anywhere_the_same_command_goes_on():
    killed_and_whole("killed")


def test_killed_anywhere_with_a_stage_on_two_ranks_by_fsdp():
    t.only_slow()
    killed_and_whole("killed-fsdp", *FSDP)


def test_a_stage_is_what_its_recipe_alone_would_train():
    output, said = undisturbed()
    for number, one in enumerate(c.STAGES, 1):
        t.check(f"stage {number} of 3, {one}: " in said, said)
        if t.slow or one == "sr8":
            t.train(t.work / f"{one}.toml", f"alone/{one}")
            t.same_metrics(f"{output}/{one}", f"alone/{one}")
            t.same_state(f"{output}/{one}", f"alone/{one}")


def test_what_is_trained_is_left_out_and_what_is_to_train_on_is_not():
    shutil.copytree(t.work / undisturbed()[0], t.work / "longer", symlinks=True)
    more = t.run(*c.words(c.cascade(), "longer", "--set", "sr8.run.steps=22"))
    t.equal((more.all.count("is trained, step 20"), t.lines_in("longer/sr8")), (2, 22), f"one that is to train on: {more.all}")
    again = t.run("train", t.work / "longer")
    t.equal((again.all.count("is trained, step 20"), again.all.count("is trained, step 22")), (2, 1), again.all)


def test_it_goes_on_by_its_folder_where_the_recipes_have_gone():
    whole, _ = undisturbed()
    path = c.cascade("gone")
    t.run(*c.words(path, "gone", "--stage", "base", "--set", "base.run.steps=7", "--set", "sr16.run.steps=9"))
    for file in [path, *(t.work / f"{one}.toml" for one in c.STAGES)]:
        file.unlink()
    t.equal([t.lines_in(f"gone/{one}") for one in c.STAGES], [7, 0, 0], "steps of one stage")
    t.run("train", t.work / "gone", "--set", "base.run.steps=20", "--set", "sr16.run.steps=20")
    c.same(whole, "gone")


def test_stages_train_at_the_same_time_in_processes_of_their_own():
    whole, _ = undisturbed()
    path = c.cascade()
    processes = [t.start(*c.words(path, "at-once", "--stage", which)) for which in (1, "sr8", 3)]
    t.equal([process.wait(t.patient(120)) for process in processes], [0, 0, 0], "exit codes")
    c.same(whole, "at-once")
    files = sorted(path.name for path in (t.work / "at-once").iterdir())
    t.equal(files, sorted([*c.STAGES, *(f"{one}.toml" for one in c.STAGES), "cascade.toml"]), "what lies in the folder")


def stopped(output, *more):
    whole, _ = undisturbed(*more)
    path = c.cascade()
    process = t.start(*c.words(path, output, *more))
    t.wait_for(lambda: t.lines_in(f"{output}/sr8") >= 2 or process.poll() is not None, "the second stage")
    process.send_signal(signal.SIGTERM)
    t.equal(process.wait(t.patient(60)), 75, "exit code")
    t.equal(t.lines_in(f"{output}/sr16"), 0, "steps of the last stage")
    t.run(*c.words(path, output, *more))
    c.same(whole, output)


def test_a_signal_stops_the_cascade_saved():
    stopped("stopped")


def test_a_signal_stops_ranks_of_a_cascade_saved():
    t.only_slow()
    stopped("stopped-ranks", "--local-ranks", 2)


def test_ranks_of_a_launcher_go_through_the_stages_together():
    t.only_slow()
    whole, _ = undisturbed("--local-ranks", 2)
    path, port = c.cascade(), t.free_port()
    ranks = []
    for rank in (0, 1):
        env = t.environment | dict(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([t.ditto, *map(str, c.words(path, "launched"))], env=env, cwd=t.work, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True))
    said = [rank.communicate(timeout=t.patient(120))[0] for rank in ranks]
    t.equal([rank.returncode for rank in ranks], [0, 0], f"exit codes: {said}")
    t.check("all 3 stages are trained" in said[0] and "stages" not in said[1], said)
    c.same(whole, "launched")


def test_all_stages_have_one_number():
    t.only_slow()
    path = c.cascade("one", run=dict(name="one", steps=4, batch=4, micro_batch=2, numerics="one"))
    t.run(*c.words(path, "number-1"))
    t.run(*c.words(path, "number-2", "--local-ranks", 2))
    shard = [word for one in c.STAGES for word in ("--set", f"{one}.parallel.shard=2", "--set", f'{one}.parallel.shard_plugin="fsdp"')]
    t.run(*c.words(path, "number-fsdp", "--local-ranks", 2, *shard))
    c.same("number-1", "number-2")
    c.same("number-1", "number-fsdp")


if __name__ == "__main__":
    t.main(globals())
