"""One of four ranks is killed at random moments: the others end with exit code 6, name it, and the run goes on undisturbed.

Claim (failures): A killed rank is named by the others within 5 s, and the resumed run has the undisturbed one's bits; so do
torchrun, mpirun, Slurm and two network namespaces. Also: `kill.py --slow`, `launchers_slow.py`
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

kills = 20 if t.slow else 2
ranks = 4
timeout_s = 30  # to meet, too
noticed_s = t.patient(5)
_cluster = False


def command(folder, steps):
    path = t.write_recipe("kill.toml", t.recipe(
        run=dict(batch=8, micro_batch=2), checkpoint=dict(every=3), parallel=dict(timeout_s=timeout_s), log=dict(plain_every=1e-6)))
    return [t.ditto, "train", str(path), *t.sets({"run.output": str(t.work / folder), "run.steps": steps})]


def by_name(process):
    """The rank that --local-ranks started as this process, if it did."""
    name = re.fullmatch(r"ditto rank (\d+)\n", (process / "comm").read_text())
    return name and name[1]


def by_slurm(process):
    variables = dict(entry.partition("=")[::2] for entry in (process / "environ").read_text(errors="replace").split("\0"))
    return variables.get("SLURM_PROCID")


def ranks_of(place, folder):
    """{rank: pid} of this run's processes."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text(errors="replace")
            if str(t.work / folder) in words and words.startswith((t.ditto, "ditto\0")) and (rank := place(process)):
                found[int(rank)] = int(process.name)
        except OSError:
            continue
    return found


def steps_said(log):
    """How far a start is, in its own words: metrics.jsonl still has the lines of the start before until this one resumes."""
    return max((int(step) for step in re.findall(r"^step (\d+)/", log.read_text(), re.MULTILINE)), default=0)


def gone(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def kill_one(random, start, place, folder, moment, after_the_end):
    """Starts the run, kills a rank once `moment` steps are done, and looks at how the others end."""
    log = t.work / f"{folder}.log"
    with open(log, "w") as out:
        process = start(out, 10**9)  # it never ends by itself, however late this process looks
    t.wait_for(lambda: steps_said(log) >= moment or process.poll() is not None, f"step {moment}", 120)
    time.sleep(random.uniform(0, 0.1))
    alive = ranks_of(place, folder)
    t.equal(sorted(alive), list(range(ranks)), f"ranks that are there after {steps_said(log)} steps, waiting for {moment}, "
            f"with exit code {process.poll()}: {log.read_text()}")
    victim = random.randrange(ranks)
    began = time.monotonic()
    os.kill(alive[victim], signal.SIGKILL)
    t.wait_for(lambda: all(gone(pid) for pid in alive.values()), "the others to end", timeout_s + 30)
    took = time.monotonic() - began
    code = process.wait(60)
    said = log.read_text()
    t.check(took <= noticed_s, f"the others took {took:.1f} s: {said}")
    for rank in range(ranks):
        named = said.count(f"rank {rank} ends because rank {victim} was lost")
        t.equal(named, 0 if rank == victim else 1, f"lines of rank {rank} that name rank {victim}: {said}")
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    t.check(len(errors) == 1 and f"rank {victim} was " in errors[0], f"errors: {errors}")
    after_the_end(victim, code, said)
    return took


def kill_and_resume(folder, start, place, after_the_end):
    random = t.seed_of(folder)
    longest = 0
    moments = sorted(random.sample(range(1, 5 * kills), kills - 1)) + [5 * kills]  # the last start has something to resume
    for moment in moments:
        longest = max(longest, kill_one(random, start, place, folder, moment, after_the_end))
    print(f"{kills} kills; the last of the others ended at most {longest:.1f} s later", flush=True)
    steps = t.lines_in(folder) + 8
    t.run(*command(f"{folder}-whole", steps)[1:])
    with open(t.work / f"{folder}.log", "w") as out:
        t.equal(start(out, steps).wait(240), 0, f"exit code of the last: {(t.work / f'{folder}.log').read_text()}")
    t.check("resumed from" in (t.work / f"{folder}.log").read_text(), "the last did not resume")
    t.same_metrics(f"{folder}-whole", folder)
    t.same_state(f"{folder}-whole", folder)


def test_a_killed_rank_of_local_ranks_ends_the_others_and_the_run_goes_on():
    def start(out, steps):
        return subprocess.Popen([*command("local", steps), "--local-ranks", str(ranks)], cwd=t.work, env=t.environment, stdout=out,
                                stderr=out, start_new_session=True)

    def after_the_end(victim, code, said):
        t.equal(code, 6, f"exit code: {said}")
        t.check(f"error: rank {victim} was killed by signal 9" in said, said)

    kill_and_resume("local", start, by_name, after_the_end)


def cluster():
    global _cluster
    missing = [program for program in ("srun", "sinfo", "slurmctld", "slurmd", "munged") if not shutil.which(program)]
    if missing:
        raise t.NotRun(f"{' and '.join(missing)} not installed")
    if os.geteuid() != 0:
        raise t.NotRun("only root can start a Slurm of its own")
    done = t.one_node_slurm("start", ranks)
    if done.returncode:
        raise t.NotRun(f"Slurm did not start: {done.stderr.strip()[-300:]}")
    _cluster = True
    return {"SLURM_CONF": str(t.work / "slurm/slurm.conf")}


def test_a_killed_rank_of_srun_ends_the_others_and_the_run_goes_on():
    t.only_slow()
    env = t.environment | cluster()
    # Each task leaves its exit code behind: srun tells only the largest.
    task = '"$@"; code=$?; echo $code > "$0.$SLURM_PROCID"; exit $code'
    codes = t.work / "srun.code"
    before = ["srun", f"--ntasks={ranks}", "--kill-on-bad-exit=0", "bash", "-c", task, str(codes)]

    def start(out, steps):
        return subprocess.Popen([*before, *command("srun", steps)], cwd=t.work, env=env, stdout=out, stderr=out,
                                start_new_session=True)

    def after_the_end(victim, code, said):
        t.check(code != 0, f"exit code of srun: {code}")
        for rank in range(ranks):
            found = int((t.work / f"srun.code.{rank}").read_text())
            t.equal(found, 137 if rank == victim else 6, f"exit code of rank {rank}: {said}")

    kill_and_resume("srun", start, by_slurm, after_the_end)


def stop_cluster():
    if _cluster:
        t.one_node_slurm("stop")


if __name__ == "__main__":
    t.main(globals(), at_end=stop_cluster)
