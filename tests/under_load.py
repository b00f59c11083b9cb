#!/usr/bin/env python3
"""Runs the quick tests of several ranks again and again while other processes keep the processors busy: a test, or the code
under it, that hopes to be fast enough fails here now and then.

    tests/under_load.py [--runs 50] [--busy 8] [WORD…]     only tests with one of the words in their names

A test's time limit is ten times its usual one. What a failed run said is kept in build/release/under_load.
"""

import argparse
import json
import os
import pathlib
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--busy", type=int, default=8)
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    chosen = list(tests(asked.words))
    if not chosen:
        sys.exit(f"no quick test of several ranks has {asked.words} in its name")
    kept = build / "under_load"
    kept.mkdir(exist_ok=True)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(asked.busy)]
    failed = 0
    try:
        for name, command, properties in chosen:
            began, failures = time.monotonic(), 0
            for number in range(asked.runs):
                passed, said = run(command, properties)
                if not passed:
                    failures += 1
                    (kept / f"{name.replace('/', '-')}-{number}.log").write_text(said)
            print(f"{name}: {failures} of {asked.runs} runs failed ({time.monotonic() - began:.0f} s)", flush=True)
            failed += failures
    finally:
        for process in busy:
            process.kill()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
