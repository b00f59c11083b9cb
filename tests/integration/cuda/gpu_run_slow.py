"""tests/gpu/run, which a GPU is asked by while one is at hand, rehearsed on mock GPUs.

Claim (machine): What a GPU is to show (tests/gpu/run) is rehearsed without one, every part, in less than ten minutes; a part that fails or
hangs stops no other, and the table and gpu.json have them all.
"""

import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

NEED_A_GPU = {"racecheck", "ncu"}
NEED_TORCH = {"ceilings", "bench"}


def asked(name, *words, code, **environment):
    """(what it printed, the parts of gpu.json)"""
    out = t.work / name
    done = subprocess.run([sys.executable, str(t.source / "tests/gpu/run"), "--mock", "--out", str(out), *words], text=True, capture_output=True,
                          cwd=t.work, env=t.environment | environment, timeout=t.patient(700))
    t.equal(done.returncode, code, f"exit code of tests/gpu/run: {done.stdout}{done.stderr}")
    file = out / "gpu.json"
    return done.stdout or done.stderr, json.loads(file.read_text())["parts"] if file.exists() else {}


def test_every_part_is_rehearsed_in_less_than_ten_minutes():
    began = time.monotonic()
    text, parts = asked("all", code=0)
    print(text, flush=True)
    t.check(time.monotonic() - began < t.patient(600), "more than ten minutes")
    not_run = {name for name, part in parts.items() if part["result"] == "not run"}
    t.check(NEED_A_GPU <= not_run <= NEED_A_GPU | NEED_TORCH, f"other parts than those that need a GPU did not run: {not_run}")
    t.check(len(parts) >= 12 and all(part["result"] == "ok" for name, part in parts.items() if name not in not_run), text)


def test_a_part_that_fails_or_hangs_stops_no_other():
    text, parts = asked("broken", "card", "racecheck", code=1, DITTO="/bin/false")
    t.equal({name: part["result"] for name, part in parts.items()}, {"card": "FAILED", "racecheck": "not run"}, "results")
    t.equal([line.split()[0] for line in text.splitlines()[-3:-1]], ["card", "racecheck"], "rows of the table, which comes last")
    hangs = t.work / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 1000\n")
    hangs.chmod(0o755)
    began = time.monotonic()
    _, parts = asked("hanging", "card", "racecheck", code=1, DITTO=str(hangs))
    t.equal({name: part["result"] for name, part in parts.items()}, {"card": "FAILED", "racecheck": "not run"}, "results")
    t.check("not over after 20 s" in parts["card"]["said"], parts["card"])
    t.check(time.monotonic() - began < t.patient(60), "it waited for what hangs")


def test_a_part_that_is_none_is_refused():
    text, parts = asked("none", "kernel", code=1)
    t.check("there is no part 'kernel'; expected some of: card, ceilings" in text and not parts, text)


if __name__ == "__main__":
    t.main(globals())
