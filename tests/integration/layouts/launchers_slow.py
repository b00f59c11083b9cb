"""Ranks from torchrun, Slurm, Open MPI and --local-ranks: each trains the digits recipe as one rank does, bit for bit."""

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

steps = 4
recipe = t.source / "configs/digits.toml"
peers = pathlib.Path(os.environ.get("DITTO_PEERS", t.source / ".deps/peers/bin/python"))
_cluster = None


def options(folder, **more):
    given = {"run.output": str(t.work / folder), "run.steps": steps, "run.threads": 1, "run.micro_batch": 32,
             "parallel.timeout_s": 60, "validate.grid_every": 0}
    return [str(recipe), *t.sets(given | more)]


def alone():
    """The one rank's run that the others must equal."""
    if not (t.work / "alone").exists():
        t.run("train", *options("alone"))
        t.check(len({line["loss"] for line in t.metrics("alone")}) == steps, "some steps have the same loss")
    return "alone"


def launch(words, folder, code=0, env=None):
    """Runs `words`, which end in `ditto train …` into `folder`; its losses, norms and weights are one rank's."""
    one = alone()
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=t.patient(240), cwd=t.work,
                          env=t.environment | (env or {}))
    done.all = done.stdout + done.stderr
    t.equal(done.returncode, code, f"exit code of {words[0]}: {done.all}")
    t.same_metrics(one, folder)
    t.same_state(one, folder)
    return done


def said_ranks(text, count):
    t.check(f"{count} ranks" in text, f"no word of {count} ranks: {text}")


def need(*programs):
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        raise t.NotRun(f"{' and '.join(missing)} not installed")


def torchrun():
    path = peers.parent / "torchrun"
    if not path.exists():
        raise t.NotRun("torchrun is one of the Python peers (./dev peers)")
    return str(path)


# --- torchrun ----------------------------------------------------------------------------------------------------------


def under_torchrun(count):
    words = [torchrun(), "--no-python", "--nproc-per-node", count, "--master-port", t.free_port(), t.ditto, "train"]
    done = launch(words + options(f"torchrun-{count}"), f"torchrun-{count}")
    said_ranks(done.all, count)


def test_torchrun_with_two_processes():
    under_torchrun(2)


def test_torchrun_with_four_processes():
    under_torchrun(4)


def test_torchrun_shows_what_a_rank_failed_of():
    words = [torchrun(), "--no-python", "--nproc-per-node", 2, "--master-port", t.free_port(), t.ditto, "train"]
    # Loss and gradient overflow on all ranks alike: an error that is found after they have started.
    broken = options("torchrun-fails", **{"lr_schedule.lr": 1e30, "lr_schedule.warmup": 0, "run.steps": 20})
    done = subprocess.run([str(word) for word in words + broken], capture_output=True, text=True, timeout=t.patient(240), cwd=t.work,
                          env=t.environment)
    t.equal(done.returncode, 1, "exit code of torchrun")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    t.check(len(errors) == 1 and re.match(r"error: rank \d: step \d+: the loss is", errors[0]), f"errors: {errors}")
    shown = done.stderr[done.stderr.index("Root Cause"):]
    t.check(errors[0].removeprefix("error: ").split(":", 1)[1][:30] in shown, f"torchrun did not show it: {shown}")


def test_torchrun_starts_killed_ranks_again_and_they_resume():
    one = alone()
    folder = t.work / "restarted"
    words = [torchrun(), "--no-python", "--max-restarts", "1", "--monitor-interval", "0.1", "--nproc-per-node", "2",
             "--master-port", str(t.free_port()), t.ditto, "train", *options("restarted", **{"checkpoint.every": 1})]
    with open(t.work / "restarted.log", "w") as log:
        process = subprocess.Popen([str(word) for word in words], cwd=t.work, env=t.environment, stdout=log, stderr=log)
        t.wait_for(lambda: (folder / "checkpoints/latest").exists() or process.poll() is not None, "a checkpoint")
        of_ranks = [pid for pid in t.children(process.pid) if "ditto" in t.command_of(pid)]
        t.check(len(of_ranks) == 2, f"ranks of torchrun: {of_ranks}")
        os.kill(of_ranks[1], signal.SIGKILL)
        t.equal(process.wait(120), 0, f"exit code: {(t.work / 'restarted.log').read_text()}")
    t.check("resumed from" in (t.work / "restarted.log").read_text(), "it did not resume")
    t.same_metrics(one, "restarted")
    t.same_state(one, "restarted")


# --- two hosts ---------------------------------------------------------------------------------------------------------


class TwoHosts:
    """Two network namespaces joined by a pair of virtual cables."""

    def __init__(self):
        need("ip")
        self.names = [f"ditto{os.getpid()}{side}" for side in "ab"]
        self.cables = [f"dt{os.getpid() % 100000}{side}" for side in "ab"]
        try:
            for name in self.names:
                self.ip("netns", "add", name)
            self.ip("link", "add", self.cables[0], "type", "veth", "peer", "name", self.cables[1])
            for host, (name, cable) in enumerate(zip(self.names, self.cables)):
                self.ip("link", "set", cable, "netns", name)
                self.ip("-n", name, "addr", "add", f"10.213.7.{host + 1}/24", "dev", cable)
                self.ip("-n", name, "link", "set", cable, "up")
                self.ip("-n", name, "link", "set", "lo", "up")
        except t.NotRun:
            self.remove()
            raise

    @staticmethod
    def ip(*words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode:
            raise t.NotRun(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


def test_torchrun_on_two_hosts():
    program = torchrun()
    one = alone()
    with TwoHosts() as hosts:
        running = []
        for host, (name, cable) in enumerate(zip(hosts.names, hosts.cables)):
            words = ["ip", "netns", "exec", name, program, "--no-python", "--nnodes", "2", "--node-rank", host, "--master-addr",
                     "10.213.7.1", "--master-port", "29511", "--nproc-per-node", "2", t.ditto, "train"]
            log = open(t.work / f"host{host}.log", "w")
            running.append(subprocess.Popen([str(word) for word in words + options("hosts")], cwd=t.work, stdout=log, stderr=log,
                                            env=t.environment | {"GLOO_SOCKET_IFNAME": cable}))
        for host, process in enumerate(running):
            t.equal(process.wait(240), 0, f"exit code on host {host}: {(t.work / f'host{host}.log').read_text()}")
    said_ranks((t.work / "host0.log").read_text(), 4)
    t.same_metrics(one, "hosts")
    t.same_state(one, "hosts")


# --- MPI ---------------------------------------------------------------------------------------------------------------


def under_mpi(count):
    need("mpirun")
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", count, t.ditto, "train"]
    done = launch(words + options(f"mpi-{count}"), f"mpi-{count}")
    said_ranks(done.all, count)


def test_mpirun_with_two_processes():
    under_mpi(2)


def test_mpirun_with_four_processes():
    under_mpi(4)


# --- Slurm -------------------------------------------------------------------------------------------------------------


def cluster():
    """The environment of a Slurm of one node: the one that SLURM_CONF names, or one that is started here."""
    global _cluster
    need("srun", "sbatch", "sinfo", "scontrol")
    if "SLURM_CONF" in os.environ:
        return {}
    if _cluster:
        return _cluster
    need("slurmctld", "slurmd", "munged")
    if os.geteuid() != 0:
        raise t.NotRun("only root can start a Slurm of its own")
    done = t.one_node_slurm("start", 4)
    if done.returncode:
        raise t.NotRun(f"Slurm did not start: {done.stderr.strip()[-300:]}")
    _cluster = {"SLURM_CONF": str(t.work / "slurm/slurm.conf")}
    return _cluster


def test_srun_with_four_tasks():
    env = cluster()
    done = launch(["srun", "--ntasks=4", t.ditto, "train", *options("srun")], "srun", env=env)
    said_ranks(done.all, 4)


def batch_script():
    """The script in docs/clusters.md, to the letter."""
    text = (t.source / "docs/clusters.md").read_text()
    script = re.search(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", text, re.S)
    t.check(script, "docs/clusters.md has no batch script")
    path = t.work / "train.sbatch"
    path.write_text(script.group(1))
    return path


def submit(folder, **more):
    env = t.environment | cluster() | {"DITTO": t.ditto}
    done = subprocess.run(["sbatch", "--parsable", f"--output={t.work}/{folder}.log", str(batch_script()), *options(folder, **more)],
                          capture_output=True, text=True, cwd=t.work, env=env, timeout=t.patient(60))
    t.equal(done.returncode, 0, f"exit code of sbatch: {done.stderr}")
    return done.stdout.strip()


def state_of(job):
    done = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, env=t.environment | cluster())
    found = re.search(r"JobState=(\w+).*?ExitCode=(\d+)", done.stdout, re.S)
    return found.groups() if found else ("?", "?")


def wait_for_job(job, folder):
    t.wait_for(lambda: state_of(job)[0] in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"), f"job {job}", 200)
    t.equal(state_of(job), ("COMPLETED", "0"), f"state of the job: {(t.work / f'{folder}.log').read_text()}")


def test_the_batch_script_of_the_documentation():
    one = alone()
    wait_for_job(submit("sbatch"), "sbatch")
    said_ranks((t.work / "sbatch.log").read_text(), 4)
    t.same_metrics(one, "sbatch")
    t.same_state(one, "sbatch")


def test_a_job_whose_time_is_over_saves_queues_up_again_and_goes_on():
    alone_longer = options("alone-40", **{"run.steps": 40})
    t.run("train", *alone_longer)
    job = submit("requeued", **{"run.steps": 40})
    t.wait_for(lambda: t.lines_in("requeued") >= 2, "step 2", 120)
    subprocess.run(["scancel", "--signal=USR1", job], check=True, env=t.environment | cluster())  # as Slurm's --signal does
    log = t.work / "requeued.log"
    t.wait_for(lambda: "stopped after step" in log.read_text(), "the ranks to stop", 60)
    # Slurm holds a requeued job back for two minutes; the test does not wait for that. Started in the same second again, its
    # credential would be the one that was just revoked.
    t.wait_for(lambda: state_of(job)[0] == "PENDING", "the job to queue up again", 60)
    time.sleep(3)
    def release():
        if state_of(job)[0] == "PENDING":
            subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], capture_output=True,
                           env=t.environment | cluster())
        return "resumed from" in log.read_text()

    try:
        t.wait_for(release, "the job to start again", 100)
    except t.Failed as why:
        shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, env=t.environment | cluster())
        raise t.Failed(f"{why}: {shown.stdout}{log.read_text()}")
    wait_for_job(job, "requeued")
    t.check("resumed from" in log.read_text(), f"it did not resume: {log.read_text()}")
    t.same_metrics("alone-40", "requeued")
    t.same_state("alone-40", "requeued")


def stop_cluster():
    if _cluster:
        t.one_node_slurm("stop")


if __name__ == "__main__":
    t.main(globals(), at_end=stop_cluster)
