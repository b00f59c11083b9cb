"""A run that is asked to stop by a signal, at any moment, whoever gets it: one step is finished and saved, the exit code is
75, and the resume is the whole run. --slow: every signal to process, rank and group of 1, 2 and 4 ranks, 20 times each.

Claim (failures): SIGTERM, SIGINT, SIGHUP or SIGUSR1 at any moment, to a process, a rank or the whole group, saves one step and
ends with 75; the resume is the whole run. Also: 20 times each in `signals.py --slow`
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
ANSWER = "stops when the step under way is done and saved"
times = int(os.environ.get("DITTO_TEST_SIGNALS", 20)) if t.slow else 1
steps = 60 if not t.slow else 12 * times
endless = dict(run=dict(steps=10**9, batch=8, micro_batch=2))  # it never ends by itself, however late this process looks


class Run:
    """`ditto train` of the digits, stopped and started again in one folder."""

    def __init__(self, folder, ranks, **more):
        self.folder, self.ranks, self.log = folder, ranks, t.work / f"{folder}.log"
        self.start_s = 0.2  # from its handlers to its first step
        path = t.write_recipe(f"{folder}.toml", t.recipe(
            **dict(run=dict(steps=steps, batch=8, micro_batch=2), checkpoint=dict(every=0)) | more))
        self.command = [t.ditto, "train", str(path), *t.sets({"run.output": str(t.work / folder)})]
        if ranks:
            self.command += ["--local-ranks", str(ranks)]

    def start(self, *before, ignored=()):
        def prepare():
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)
        with open(self.log, "w") as out:
            return subprocess.Popen([*before, *self.command], cwd=t.work, env=t.environment, stdout=out, stderr=out,
                                    start_new_session=True, preexec_fn=prepare)

    def said(self):
        return self.log.read_text()

    def steps(self):
        return t.lines_in(self.folder)

    def saved(self):
        found = t.checkpoints(self.folder) if (t.work / self.folder / "checkpoints").exists() else []
        return int(found[-1][len("step_"):]) if found else 0

    def wait_for_step(self, process, step):
        t.wait_for(lambda: self.steps() >= step or process.poll() is not None, f"step {step}", 120)

    def finish(self):
        """Goes on to its end; then it is the run that nothing happened to."""
        t.equal(self.start().wait(240), 0, f"exit code of the last: {self.said()}")
        t.same_metrics(undisturbed(), self.folder)
        t.same_state(undisturbed(), self.folder)

    def check_stop(self, process, before, what):
        """It has ended as asked, having saved its last step; or while starting, with nothing done; or at its own end."""
        code = process.wait(120)
        said, starting = self.said(), "stopped by a signal while starting" in self.said() or "before the ranks" in self.said()
        what = f"{what}, after {before} steps: {said}"
        if code == 0 and self.saved() == steps:
            return
        t.equal(code, 75, f"exit code of {what}")
        t.equal("error" in said, False, f"an error of {what}")
        t.equal(self.saved(), before if starting else self.steps(), f"the step that is saved, of {what}")
        if not starting:
            t.check(self.saved() > before and f"stopped after step {self.saved()} by a signal" in said, what)
        return code


def undisturbed():
    if not (t.work / "whole").exists():
        t.equal(Run("whole", 0).start().wait(240), 0, "exit code of the run that nothing happens to")
    return "whole"


def answers(pid, number):
    """Whether the process has a handler for the signal."""
    try:
        status = open(f"/proc/{pid}/status").read()
    except OSError:
        return False
    return int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1 == 1


def alive_ranks(process):
    return [pid for pid in t.children(process.pid) if answers(pid, signal.SIGTERM)]


def send(process, number, target, random):
    if process.poll() is not None:
        return
    try:
        if target == "group":
            os.killpg(process.pid, number)
        elif target == "rank":
            os.kill(random.choice(alive_ranks(process)), number)
        else:
            os.kill(process.pid, number)
    except (ProcessLookupError, IndexError):
        pass  # it has just ended


def stop_once(run, number, target, random, starting):
    """Stops the run while it starts, or in some step."""
    before, process = run.saved(), run.start()
    t.wait_for(lambda: answers(process.pid, number) or process.poll() is not None, "its handlers")
    began = time.monotonic()
    if target == "rank":
        t.wait_for(lambda: len(alive_ranks(process)) == run.ranks or process.poll() is not None, "its ranks")
    if not starting:
        run.wait_for_step(process, before + 1)
        run.start_s = time.monotonic() - began
        run.wait_for_step(process, min(before + random.randint(1, 5), steps - 1))
    time.sleep(random.uniform(0, run.start_s if starting else 0.03))
    t.check(process.poll() is None or run.saved() == steps, f"it ended before {number.name}: {run.said()}")
    send(process, number, target, random)
    run.check_stop(process, before, f"{number.name} to the {target} of {run.ranks or 1} ranks")


def stop_often(number, target, ranks, random, often):
    run = Run(f"{number.name}-{target}-{ranks}", ranks)
    for k in range(often):
        stop_once(run, number, target, random, starting=k % 5 == 4)
    run.finish()


def test_a_signal_to_process_rank_or_group_saves_one_step_and_the_resume_is_the_whole_run():
    random = t.seed_of("signals")
    if t.slow:
        for ranks in (0, 1, 2, 4):
            for target in ("process", "group") if ranks == 0 else ("process", "rank", "group"):
                for number in STOPS:
                    began = time.monotonic()
                    stop_often(number, target, ranks, random, times)
                    print(f"{number.name} to the {target} of {ranks or 'no local'} ranks: {times} times, "
                          f"{time.monotonic() - began:.0f} s", flush=True)
        return
    alone, together = Run("alone", 0), Run("together", 2)
    for k, number in enumerate(random.sample(STOPS, 4)):
        stop_once(alone, number, "process" if k % 2 else "group", random, starting=k == 3)
        stop_once(together, number, ("process", "rank", "group")[k % 3], random, starting=k == 3)
    alone.finish()
    together.finish()


def test_timeout_which_sends_its_signal_twice_saves_too():
    random = t.seed_of("timeout")
    for ranks in (0, 2, 4) if t.slow else (2,):
        run = Run(f"timeout-{ranks}", ranks)
        began = time.monotonic()
        process = run.start()
        run.wait_for_step(process, 1)
        start = time.monotonic() - began
        send(process, signal.SIGTERM, "process", random)
        run.check_stop(process, 0, "SIGTERM")
        for k in range(times * len(STOPS) if t.slow else 2):
            number, before = STOPS[k % len(STOPS)], run.saved()
            process = run.start("timeout", "--preserve-status", f"--signal={number.value}",
                                f"{start * random.uniform(0.5, 1.3):.3f}")
            if process.wait(120) == 128 + number and not run.said():
                continue  # its library was still being loaded
            run.check_stop(process, before, f"timeout with {number.name} on {ranks or 1} ranks")
        run.finish()


def test_signals_while_it_saves_change_nothing():
    for ranks in (0, 2):
        run = Run(f"flood-{ranks}", ranks, **endless)
        process = run.start()
        run.wait_for_step(process, 5)
        t.check(process.poll() is None, f"it ended by itself: {run.said()}")
        while process.poll() is None:
            send(process, signal.SIGTERM, "group", None)
            send(process, signal.SIGHUP, "group", None)
            time.sleep(0.002)
        t.equal(run.check_stop(process, 0, "a flood of signals"), 75, "exit code")
        t.equal(run.said().count(ANSWER), 1, f"answers: {run.said()}")


def test_ctrl_c_answers_at_once_and_a_second_one_ends_the_run_at_once():
    for ranks in (0, 2):
        run = Run(f"long-{ranks}", ranks, run=dict(steps=3, batch=4096), model=dict(plugin="dit", depth=8, width=128, heads=4,
                                                                                  patch=1))
        process = run.start()
        t.wait_for(lambda: "data: " in run.said(), "its beginning")
        time.sleep(0.5)
        began = time.monotonic()
        send(process, signal.SIGINT, "group", None)
        t.wait_for(lambda: "SIGINT: " + ANSWER in run.said(), "the answer", 1)
        time.sleep(0.8)
        t.check(process.poll() is None, f"the step is to last for longer than this: {run.said()}")
        ranks_there = t.children(process.pid)
        t.equal(len(ranks_there), ranks, "ranks")
        send(process, signal.SIGINT, "group", None)
        t.equal(process.wait(5), -signal.SIGINT, f"exit code after {time.monotonic() - began:.1f} s: {run.said()}")
        t.check("SIGINT again: ends at once, without saving" in run.said(), run.said())
        t.wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks_there), "the end of its ranks", 5)
        t.equal(run.said().count(ANSWER), 1, f"answers: {run.said()}")
        t.equal(run.saved(), 0, "checkpoints")


def test_a_signal_to_one_rank_that_starts_stops_all():
    path = t.write_recipe("starting.toml", t.recipe(run=dict(batch=8, steps=500)))

    def start(rank, options, port):
        return subprocess.Popen([t.ditto, "train", str(path), *t.sets(options)], cwd=t.work, text=True,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                env=t.environment | {"MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"})

    for name, options in (("ddp", {}), ("tensor", {"parallel.tensor": 2})):
        options = options | {"run.output": str(t.work / f"starting-{name}")}
        port = t.free_port()
        waits = start(1, options, port)  # for rank 0
        t.wait_for(lambda: answers(waits.pid, signal.SIGTERM), "its handlers")
        waits.send_signal(signal.SIGTERM)
        ranks = [start(0, options, port), waits]
        said = [rank.communicate(timeout=t.patient(120))[1] for rank in ranks]
        t.equal([rank.returncode for rank in ranks], [75, 75], f"{name}: exit codes: {said}")
        t.check("stopped by a signal while starting" in said[0], said)


def test_a_signal_that_was_ignored_at_the_start_stays_ignored():
    for ranks in (0, 2):
        run = Run(f"ignored-{ranks}", ranks, **endless)
        process = run.start(ignored=(signal.SIGHUP, signal.SIGINT))
        t.wait_for(lambda: answers(process.pid, signal.SIGTERM), "its handlers")
        while run.steps() < 10 and process.poll() is None:
            for number in (signal.SIGHUP, signal.SIGINT):
                send(process, number, "group", None)
            time.sleep(0.02)
        t.check(process.poll() is None, f"it ended: {run.said()}")
        send(process, signal.SIGTERM, "group", None)
        t.equal(run.check_stop(process, 0, "SIGTERM beside ignored signals"), 75, "exit code")


def test_a_reader_that_ends_by_the_same_ctrl_c_does_not_end_the_run_unsaved():
    for ranks in (0, 2):
        run = Run(f"piped-{ranks}", ranks, **endless)
        process = subprocess.Popen(run.command, cwd=t.work, env=t.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        t.wait_for(lambda: run.steps() >= 5 or process.poll() is not None, "step 5")
        process.stdout.close()
        send(process, signal.SIGINT, "group", None)
        t.equal(process.wait(60), 75, f"exit code on {ranks or 1} ranks")
        t.equal(run.saved(), run.steps(), "the step that is saved")


if __name__ == "__main__":
    t.main(globals())
