"""The tests of ./dev test, in the build with mutants: which mutants each reaches, and whether it fails."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Test:
    name: str
    command: list
    environment: dict
    version: str  # of its text
    seconds: float  # without a mutant; a guess until it was run
    reached: set | None = None  # numbers of mutants; unknown until it was run
    fit: bool = True  # it passes without a mutant
    file: "Test | None" = None  # that it is a case of


def version(files):
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:16]


def quick_tests(build, out):
    """{name: Test}. A script of functions is as many tests: what one of them sees is seen sooner."""
    shown = subprocess.run(["ctest", "--test-dir", build, "-LE", "^slow$", "--show-only=json-v1"], check=True, capture_output=True)
    tests = {}
    for entry in json.loads(shown.stdout)["tests"]:
        there = lambda text: text.replace(str(build), str(out))
        properties = {item["name"]: item["value"] for item in entry["properties"]}
        environment = dict(item.split("=", 1) for item in map(there, properties.get("ENVIRONMENT", [])))
        name, command = entry["name"], [there(word) for word in entry["command"]]
        folder, stem = SOURCE / "tests" / name.split("/")[0], pathlib.Path(name).stem
        text = version(folder.glob(f"{stem}.*"))
        if command[0].endswith("_tests"):
            tests[name] = Test(name, [*command, "--abort-after=1"], environment, text, 4)
            continue
        script = pathlib.Path(command[-1]) if command[-1].endswith(".sh") else None
        called = script and re.search(r'^exec python3 "\$\(dirname "\$0"\)/(\w+\.py)"$', script.read_text(), re.MULTILINE)
        if not called:
            tests[name] = Test(name, command, environment, text, 40)
            continue
        for function in re.findall(r"^def (test_\w+)\(", (folder / called[1]).read_text(), re.MULTILINE):
            own = f"{name} {function[5:]}"
            tests[own] = Test(own, ["python3", str(folder / called[1]), function], environment, text, 12)
    return tests


def cases(file):
    """The cases of a file of tests, each by itself."""
    text = (SOURCE / "tests" / f"{file.name}.cpp").read_text()
    found = re.findall(r'^TEST_CASE\(((?:\s*"(?:[^"\\]|\\.)*")+)\s*\)', text, re.MULTILINE)
    names = ["".join(json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', literal)) for literal in found]
    return [dataclasses.replace(file, name=f"{file.name}: {name}", command=[*file.command, "--test-case=" + name.replace(",", "?")],
                                seconds=file.seconds / len(names), reached=None, file=file) for name in names]


class Clock:
    """Seconds that this program saw pass, so that a machine that stands still makes no test late."""

    TICK = 0.1

    def __init__(self, limit):
        self.limit, self.seconds, self.lost, self.late, self.done = limit, 0.0, 0.0, False, threading.Event()

    def start(self, end):
        def count():
            before = time.monotonic()
            while not self.done.wait(self.TICK):
                now = time.monotonic()
                seen = min(now - before, 10 * self.TICK)
                self.seconds, self.lost, before = self.seconds + seen, self.lost + now - before - seen, now
                if self.seconds > self.limit:
                    self.late = True
                    end()
                    return

        self.thread = threading.Thread(target=count)
        self.thread.start()

    def stop(self):
        self.done.set()
        self.thread.join()


def run(test, out, limit, number=None, trace=None):
    """How it ended, "passed", "failed", "too long" or "not run"; the seconds it took; what it said."""
    work = out / "tmp" / f"{threading.get_ident()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environment = os.environ | test.environment | {"TMPDIR": str(work), "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    environment |= {} if number is None else {"DITTO_MUTANT": str(number)}
    environment |= {} if trace is None else {"DITTO_MUTANT_TRACE": str(trace)}
    limits = ["prlimit", f"--data={8 << 30}", f"--fsize={2 << 30}"]  # a loop that never ends takes no machine with it
    clock = Clock(limit)
    process = subprocess.Popen([*limits, *test.command], cwd=SOURCE, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    clock.start(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
    failed, said = False, []
    try:
        for line in process.stdout:
            said.append(line)
            if number is not None and line.startswith(("FAIL ", "FAILED:")):  # what is left would only take time
                failed = True
                os.killpg(process.pid, signal.SIGKILL)
                break
        process.stdout.close()
        code = process.wait()
    finally:
        clock.stop()
        shutil.rmtree(work, ignore_errors=True)
    ended = "too long" if clock.late else "not run" if code == 77 else "passed" if code == 0 and not failed else "failed"
    if clock.lost > 2 and ended in ("failed", "too long"):  # its own clocks may have told it that somebody hangs
        return run(test, out, limit, number, trace)
    return ended, clock.seconds, "".join(said)


def limit_of(test):
    return 20 + 3 * test.seconds


class Quick:
    """The tests with what is known of them, which is kept in `out`. Of a file that is known to take long its cases."""

    SPLIT = 5  # seconds

    def __init__(self, build, out, numbers):
        self.out, self.numbers, self.file, self.lock = out, set(numbers), out / "tests.json", threading.Lock()
        self.tests = quick_tests(build, out)
        self.busy = {name: threading.Lock() for name in self.tests}
        self.kept = json.loads(self.file.read_text()) if self.file.exists() else {"numbers": [], "tests": {}}
        for test in list(self.tests.values()):
            self.recall(test)
            if test.command[0].endswith("_tests") and (SOURCE / "tests" / f"{test.name}.cpp").exists() and test.seconds > self.SPLIT:
                for case in cases(test):
                    self.recall(case)
                    self.tests[case.name] = case
                del self.tests[test.name]

    def find(self, name):
        """Also a file whose cases there are, and a case of a file."""
        if name in self.tests:
            return self.tests[name]
        of_file = [test for test in self.tests.values() if test.file and test.file.name == name]
        return of_file[0].file if of_file else next(case for case in cases(self.tests[name.split(": ")[0]]) if case.name == name)

    def recall(self, test):
        before = self.kept["tests"].get(test.name)
        if before and before["version"] == test.version:
            test.seconds = before["seconds"]
            if self.numbers <= set(self.kept["numbers"]):
                test.fit, test.reached = before["fit"], set(before["reached"])

    def save(self):
        known = [test for test in self.tests.values()] + [test.file for test in self.tests.values() if test.file]
        kept = {test.name: {"version": test.version, "seconds": test.seconds, "fit": test.fit, "reached": sorted(test.reached)}
                for test in known if test.reached is not None}
        self.file.with_suffix(".tmp").write_text(json.dumps({"numbers": sorted(self.numbers), "tests": kept}))
        self.file.with_suffix(".tmp").rename(self.file)

    def trace(self, test):
        """Runs it without a mutant, for what it reaches. A test that fails like this is left out."""
        with self.busy.setdefault(test.name, threading.Lock()):
            if test.reached is not None:
                return
            trace = self.out / "trace" / re.sub(r"\W", "_", test.name)
            trace.parent.mkdir(exist_ok=True)
            trace.unlink(missing_ok=True)
            ended, seconds, said = run(test, self.out, 1200, trace=trace)
            reached = {int(line) for line in trace.read_text().split()} if trace.exists() else set()
            with self.lock:
                test.seconds, test.fit, test.reached = seconds, ended == "passed", reached
                self.save()
            print(f"  {test.name}: {ended} in {seconds:.1f} s, reaches {len(reached)} mutants", flush=True)
            if ended == "failed" or ended == "too long":
                print(f"  LEFT OUT: it fails without a mutant:\n{said[-2000:]}", flush=True)

    def reaching(self, number):
        return [test for test in self.tests.values() if test.fit and self.may_reach(test, number)]

    def may_reach(self, test, number):
        if test.reached is not None:
            return number in test.reached
        return test.file is None or test.file.reached is None or number in test.file.reached

    def sees(self, test, number):
        """(whether it ends otherwise than without the mutant, how, seconds, what it said)"""
        ended, seconds, said = run(test, self.out, limit_of(test), number)
        if ended == "too long":  # is the machine to blame?
            _, alone, _ = run(test, self.out, 5 * limit_of(test))
            test.seconds = max(test.seconds, alone)
            if alone > 0.5 * seconds:
                ended, seconds, said = run(test, self.out, limit_of(test), number)
        return ended in ("failed", "too long"), ended, seconds, said
