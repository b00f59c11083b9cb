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
    words: set  # in its text and name
    seconds: float  # without a mutant; a guess until it was run
    reached: set = dataclasses.field(default_factory=set)  # numbers of mutants
    unknown: set = dataclasses.field(default_factory=set)  # those of which nobody knows yet whether it reaches them
    fit: bool | None = None  # it passes without a mutant; unknown until it was run
    file: "Test | None" = None  # that it is a case of


def words_of(text):
    """What its names are made of: of text_mask_BS and TextMask alike "text" and "mask"."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)
    return {part.lower().rstrip("s") for part in parts if len(part) > 2}


def sources(name, suffix=""):
    """What the test that ctest calls `name`, FOLDER/FILE, is written in: the files of this name wherever they lie in the folder."""
    folder, stem = SOURCE / "tests" / name.split("/")[0], pathlib.Path(name).stem
    return sorted(folder.rglob(f"{stem.removesuffix(suffix)}.*"))


def source_of_cases(name):
    return next((path for path in sources(name) if path.suffix == ".cpp"), None)


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
        text = version(sources(name))
        own = "".join(file.read_text() for file in sources(name, "_sse2"))
        words = words_of(name + own)
        if command[0].endswith("_tests"):
            tests[name] = Test(name, [*command, "--abort-after=1"], environment, text, words, 4)
            continue
        script = pathlib.Path(command[-1]) if len(command) == 2 and command[-1].endswith(".py") else None  # with Python alone
        functions = script and re.findall(r"^def (test_\w+)\((.*?)(?=^\S)", script.read_text(), re.MULTILINE | re.DOTALL)
        if not functions:
            tests[name] = Test(name, command, environment, text, words, 40)
            continue
        for function, body in functions:
            own = f"{name} {function[5:]}"
            tests[own] = Test(own, [*command, function], environment, text, words_of(own + body), 12)
    return tests


def cases(file):
    """The cases of a file of tests, each by itself."""
    text = source_of_cases(file.name).read_text()
    found = re.findall(r'^TEST_CASE\(((?:\s*"(?:[^"\\]|\\.)*")+)\s*\)(.*?)(?=^\S|\Z)', text, re.MULTILINE | re.DOTALL)
    made = []
    for literal, body in found:
        name = "".join(json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', literal))
        made.append(dataclasses.replace(file, name=f"{file.name}: {name}", command=[*file.command, "--test-case=" + name.replace(",", "?")],
                                        words=words_of(name + body), seconds=file.seconds / len(found), reached=set(), fit=None, file=file))
    return made


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
            if test.command[0].endswith("_tests") and source_of_cases(test.name) and test.seconds > self.SPLIT:
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
        """A site keeps its number, so that what was reached before new ones were drawn stays known."""
        test.unknown = set(self.numbers)
        before = self.kept["tests"].get(test.name)
        if before:
            test.seconds = before["seconds"]
        if before and before["version"] == test.version:
            test.fit, test.reached = before["fit"], set(before["reached"])
            test.unknown = self.numbers - (set(self.kept["numbers"]) - set(before.get("unknown", ())))

    def save(self):
        known = [test for test in self.tests.values()] + [test.file for test in self.tests.values() if test.file]
        kept = {test.name: {"version": test.version, "seconds": test.seconds, "fit": test.fit, "reached": sorted(test.reached),
                            "unknown": sorted(test.unknown)} for test in known if test.fit is not None}
        kept = {name: before | {"version": ""} for name, before in self.kept["tests"].items()} | kept  # how long they took
        self.file.with_suffix(".tmp").write_text(json.dumps({"numbers": sorted(self.numbers), "tests": kept}))
        self.file.with_suffix(".tmp").rename(self.file)

    def traced(self, test, limit, number=None):
        """run(), and the numbers that it reached."""
        trace = self.out / "trace" / re.sub(r"\W", "_", f"{test.name[:150]} {number}")
        trace.parent.mkdir(exist_ok=True)
        trace.unlink(missing_ok=True)
        result = run(test, self.out, limit, number, trace)
        reached = {int(line) for line in trace.read_text().split()} if trace.exists() else set()
        trace.unlink(missing_ok=True)
        return *result, reached

    def know(self, test, ended, seconds, reached):
        """What a run without a mutant says of a test."""
        with self.lock:
            test.seconds, test.fit, test.reached, test.unknown = seconds, ended == "passed", reached, set()
            self.save()

    def trace(self, test):
        """Runs it without a mutant. A test that fails like this is left out."""
        with self.busy.setdefault(test.name, threading.Lock()):
            if test.fit is not None:
                return
            ended, seconds, said, reached = self.traced(test, 1200)
            self.know(test, ended, seconds, reached)
            print(f"  {test.name}: {ended} in {seconds:.1f} s, reaches {len(reached)} mutants", flush=True)
            if ended == "failed" or ended == "too long":
                print(f"  LEFT OUT: it fails without a mutant:\n{said[-2000:]}", flush=True)

    def reaching(self, number):
        return [test for test in self.tests.values() if self.may_reach(test, number)]

    def may_reach(self, test, number):
        return test.fit is not False and (number in test.reached or number in test.unknown and (
            test.file is None or self.may_reach(test.file, number)))

    def sees(self, test, number):
        """(whether it ends otherwise than without the mutant, how, seconds, what it said)"""
        ended, seconds, said, reached = self.traced(test, limit_of(test), number)
        if number not in reached and ended in ("passed", "not run"):  # this was a run without a mutant
            self.know(test, ended, seconds, reached)
            return False, ended, seconds, said
        if ended in ("failed", "too long") and (test.fit is None or number not in reached):
            test.fit = None
            self.trace(test)  # is the test to blame?
            if not test.fit or number not in test.reached:
                return False, ended, seconds, said
        with self.lock:
            test.reached.add(number)
            test.unknown.discard(number)
        if ended == "too long":  # is the machine to blame?
            _, alone, _ = run(test, self.out, 5 * limit_of(test))
            test.seconds = max(test.seconds, alone)
            if alone > 0.5 * seconds:
                ended, seconds, said = run(test, self.out, limit_of(test), number)
        return ended in ("failed", "too long"), ended, seconds, said
