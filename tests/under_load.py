#!/usr/bin/env python3
"""Runs the quick tests of several ranks again and again while other processes keep the processors busy: a test, or the code
under it, that hopes to be fast enough fails here now and then. Of a test's cases those run that start ranks.

    tests/under_load.py [--runs 50] [--busy 8] [--jobs 1] [--for MINUTES] [--write FILE] [WORD…]

WORD: only tests with one of the words in their names. --busy: so many processes beside a test want a processor at all times:
those of other tests, and loops where those are fewer. --jobs: so many tests at once. --for: no run begins later. --write: adds
the runs to those of the table in FILE, of which those that FILE says least of come first; so fifty runs of each can be made bit
by bit.

A test's time limits are ten times its usual ones. What a failed run said is kept in build/release/under_load.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

source = pathlib.Path(__file__).resolve().parents[1]
build = pathlib.Path(os.environ.get("DITTO_BUILD_DIR", source / "build/release"))
STARTS_RANKS = re.compile(r'as_ranks\(|local[-_]ranks|Launch\(|"torchrun"|"srun"|ditto_matrix'
                          r'|on_ranks\(|check_parallel\(|try_model\(|"plugins", "try"')  # threads
PATIENCE = 10
MOST_RANKS = 8  # of a test
NAME = re.compile(r"(?:.*[ *&])?(\w+)(?:\(| =|\{)")


def pieces(file):
    """[(name, text)] of what stands at the left edge of a source: functions, tests and constants."""
    text = re.sub(r"\n(?=[\w@\[])", "\0", file.read_text())
    for piece in text.split("\0"):
        case, name = re.match(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', piece), NAME.match(piece.partition("\n")[0])
        yield re.sub(r'"\s*"', "", case[1]).strip().strip('"') if case else name and name[1], piece


def cases_with_ranks(file):
    """Names of the cases in a source that start ranks, themselves or by what they call in it and in its neighbours."""
    modules = re.findall(r"^(?:from|import) (\w+)", file.read_text(), re.M) if file.suffix == ".py" else []
    beside = [path for module in modules if module != "support" for path in (source / "tests/integration").rglob(f"{module}.py")]
    own = list(pieces(file))
    known = own + [piece for neighbour in beside for piece in pieces(neighbour)]
    starting = {number for number, (_, text) in enumerate(known) if STARTS_RANKS.search(text)}
    while True:
        names = {known[number][0] for number in starting} - {None}
        calls = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b") if names else re.compile("(?!)")
        more = {number for number, (_, text) in enumerate(known) if calls.search(text)} | starting
        if more == starting:
            break
        starting = more
    return [name for number, (name, text) in enumerate(own)
            if number in starting and (text.startswith("TEST_CASE(") or text.startswith("def test_"))]


def command_of_ranks(name, command):
    """The command for those cases of a test that start ranks; none where no case does."""
    folder, file = name.split(" ")[0].split("/")
    found = next((source / "tests" / folder).rglob(file if file.endswith((".py", ".sh")) else f"{file}.cpp"), None)
    if not found or found.suffix == ".sh":
        return found and STARTS_RANKS.search(found.read_text()) and command
    cases = cases_with_ranks(found)
    if found.suffix == ".cpp":
        return cases and [*command, "--test-case=" + ",".join(case.replace(",", "\\,") for case in cases)]
    return cases and [*command, *cases]


def tests(words):
    listed = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True,
                                       text=True).stdout)["tests"]
    for test in listed:
        properties = {entry["name"]: entry["value"] for entry in test["properties"]}
        command = "slow" not in properties["LABELS"] and command_of_ranks(test["name"], test["command"])
        if command and (not words or any(word in test["name"] for word in words)):
            yield test["name"], command, properties


running = set()  # process groups of tests


def run(command, properties):
    """Whether it passed, and what it said; None: it cannot run here."""
    environment = os.environ | dict(entry.split("=", 1) for entry in properties["ENVIRONMENT"])
    environment["DITTO_TEST_PATIENCE"] = str(PATIENCE)
    with subprocess.Popen(command, cwd=properties["WORKING_DIRECTORY"], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as test:
        running.add(test.pid)
        try:
            said, _ = test.communicate(timeout=PATIENCE * properties["TIMEOUT"])
            return None if test.returncode == 77 else test.returncode == 0, said
        except subprocess.TimeoutExpired as late:
            os.killpg(test.pid, signal.SIGKILL)
            return False, f"{test.communicate()[0]}\nnot done after {late.timeout} s\n"
        finally:
            running.discard(test.pid)


class Load:
    """Loops that run while fewer than `busy` processes beside a test want a processor."""

    def __init__(self, busy):
        self.wanted = busy + MOST_RANKS
        self.loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.wanted)]
        self.awake = self.wanted
        self.ended = threading.Event()
        self.keeper = threading.Thread(target=self.keep)
        self.keeper.start()

    def keep(self):
        while not self.ended.wait(0.05):
            running = int(re.search(r"procs_running (\d+)", pathlib.Path("/proc/stat").read_text())[1])
            others = running - self.awake - 1  # but for this one
            awake = min(max(self.wanted - others, 0), self.wanted)
            for number in range(min(awake, self.awake), max(awake, self.awake)):
                self.loops[number].send_signal(signal.SIGCONT if awake > self.awake else signal.SIGSTOP)
            self.awake = awake

    def end(self):
        self.ended.set()
        self.keeper.join()
        for loop in self.loops:
            loop.kill()


ROW = re.compile(r"\| (\S+) \| (\d+) \| (\d+) \| (\S+) \|")
HEAD = """# Tests of several ranks under load

Written by tests/under_load.py: of each quick test the cases that start ranks, while {busy} other processes or more, of tests
beside it or loops, want a processor. A failure that was mended is counted; the test's runs since then are in the last column.
Runs are added up over commits: each is of the program as it was then.

| test | runs | failed | since |
|---|---:|---:|---:|
"""


class Table:
    """test -> [runs, failures, runs since the last failure], added to what the file says."""

    def __init__(self, file, busy):
        self.file, self.busy, self.rows = file, busy, collections.defaultdict(lambda: [0, 0, 0])
        if file and file.exists():
            for name, *numbers in ROW.findall(file.read_text()):
                self.rows[name] = [int(number) for number in numbers]

    def add(self, name, passed):
        row = self.rows[name]
        row[:] = [row[0] + 1, row[1] + (not passed), row[2] + 1 if passed else 0]
        if self.file:
            lines = [f"| {test} | {' | '.join(map(str, numbers))} |\n" for test, numbers in sorted(self.rows.items())]
            self.file.write_text(HEAD.format(busy=self.busy) + "".join(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50, help="of each, those that FILE has without a failure since counted")
    parser.add_argument("--busy", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--for", type=float, dest="minutes", metavar="MINUTES")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    chosen = {name: how for name, *how in tests(asked.words)}
    if not chosen:
        sys.exit(f"no quick test of several ranks has {asked.words} in its name")
    kept = build / "under_load"
    kept.mkdir(exist_ok=True)
    table, failed, began = Table(asked.write, asked.busy), 0, time.monotonic()
    # In rounds, so that what is cut short has run all alike.
    todo = sorted((number, name) for name in chosen for number in range(table.rows[name][2], asked.runs))

    absent = set()  # tests that cannot run here

    def one(number, name):
        start = time.monotonic()
        if name in absent or asked.minutes and start - began > 60 * asked.minutes:
            return None
        return number, name, *run(*chosen[name]), time.monotonic() - start

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    load = Load(asked.busy)
    pool = concurrent.futures.ThreadPoolExecutor(asked.jobs)
    try:
        for done in concurrent.futures.as_completed([pool.submit(one, *pair) for pair in todo]):
            if not done.result():
                continue
            number, name, passed, said, seconds = done.result()
            if passed is None:
                absent.add(name)
                print(f"{name} cannot run here", flush=True)
                continue
            table.add(name, passed)
            print(f"{name}, run {number + 1}: {'passed' if passed else 'FAILED'} ({seconds:.0f} s)", flush=True)
            if not passed:
                failed += 1
                (kept / f"{name.replace('/', '-')}-{number}.log").write_text(said)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        load.end()
        for group in list(running):
            os.killpg(group, signal.SIGKILL)
    print(f"{failed} runs failed; in {time.monotonic() - began:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
