#!/usr/bin/env python3
"""Runs the quick tests of several ranks again and again while other processes keep the processors busy: a test, or the code
under it, that hopes to be fast enough fails here now and then.

    tests/under_load.py [--runs 50] [--busy 8] [--jobs 1] [--for MINUTES] [--write FILE] [WORD…]

WORD: only tests with one of the words in their names. --jobs: so many tests at once, each a load for the others too. --for:
no run begins later. --write: adds the runs to those of the table in FILE, of which those that FILE says least of come first; so
fifty runs of each can be made bit by bit.

A test's time limit is ten times its usual one. What a failed run said is kept in build/release/under_load.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

source = pathlib.Path(__file__).resolve().parents[1]
build = pathlib.Path(os.environ.get("DITTO_BUILD_DIR", source / "build/release"))
SEVERAL_RANKS = ("as_ranks(", "local-ranks", "local_ranks", "Launch(", "ditto_matrix")


def starts_ranks(name):
    label, stem = name.split("/")
    stem = stem.removesuffix(".sh").removesuffix(".py")
    files = [source / "tests" / label / (stem + suffix) for suffix in (".cpp", ".sh", ".py")]
    return any(word in file.read_text() for file in files if file.exists() for word in SEVERAL_RANKS)


def tests(words):
    listed = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True,
                                       text=True).stdout)["tests"]
    for test in listed:
        properties = {entry["name"]: entry["value"] for entry in test["properties"]}
        if "slow" in properties["LABELS"] or not starts_ranks(test["name"]):
            continue
        if not words or any(word in test["name"] for word in words):
            yield test["name"], test["command"], properties


def run(command, properties):
    environment = os.environ | dict(entry.split("=", 1) for entry in properties["ENVIRONMENT"])
    try:
        done = subprocess.run(command, cwd=properties["WORKING_DIRECTORY"], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=10 * properties["TIMEOUT"])
        return done.returncode in (0, 77), done.stdout
    except subprocess.TimeoutExpired as late:
        return False, f"{(late.stdout or b'').decode()}\nnot done after {late.timeout} s\n"


ROW = re.compile(r"\| (\S+) \| (\d+) \| (\d+) \| (\S+) \|")
HEAD = """# Tests of several ranks under load

Written by tests/under_load.py, which says what it runs: each quick test of several ranks, while {busy} other processes keep the
processors busy. A failure that was mended is counted; the test's runs since then are in the last column.

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

    def one(number, name):
        if asked.minutes and time.monotonic() - began > 60 * asked.minutes:
            return number, name, None, "", 0
        start = time.monotonic()
        return number, name, *run(*chosen[name]), time.monotonic() - start

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(asked.busy)]
    try:
        with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
            for number, name, passed, said, seconds in pool.map(lambda pair: one(*pair), todo):
                if passed is None:
                    continue
                table.add(name, passed)
                print(f"{name}, run {number + 1}: {'passed' if passed else 'FAILED'} ({seconds:.0f} s)", flush=True)
                if not passed:
                    failed += 1
                    (kept / f"{name.replace('/', '-')}-{number}.log").write_text(said)
    finally:
        for process in busy:
            process.kill()
    print(f"{failed} runs failed; in {time.monotonic() - began:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
