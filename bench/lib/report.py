"""What the benchmarks' tables have in common."""
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time


def cpuinfo(key):
    found = re.search(rf"^{key}\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else ""


def usable_processors():
    """As many as ditto takes by itself: what the affinity mask and the control group leave."""
    ditto = os.environ.get("DITTO", str(pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/ditto"))
    if not os.access(ditto, os.X_OK):
        sys.exit(f"there is no program at {ditto}; run ./dev build, or set DITTO")
    said = subprocess.run([ditto, "doctor", "--json"], stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said)["processor"]["threads"]


def processor():
    return cpuinfo("model name") or platform.machine()


def details():
    """What a processor's name may leave open."""
    known = [f"{key.removeprefix('cpu ')} {cpuinfo(key) or 'unknown'}" for key in ("cpu family", "model", "stepping")]
    sets = [s for s in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if s in cpuinfo("flags").split()]
    return f"{', '.join(known)}; {usable_processors()} cores; {', '.join(sets)}"


def file_name(name, machine=""):
    """NAME-MACHINE, without a suffix. The machine is the processor if it is not given: with family and model where its name
    has no number of a model, so that generations which are called alike have files of their own."""
    if not machine:
        numbered = re.search(r"\d{3}", processor())
        machine = processor() if numbered else f"{processor()} {cpuinfo('cpu family')} {cpuinfo('model')}"
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", f"{name} {machine}".lower())).strip("-")


def spread(values, form):
    """Their median, and in brackets the least and the largest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


QUIET = 0.5  # of the load average: above it something else runs, or has just ended
LOAD = re.compile(r"load average(?: before the run)?:? (\d+\.\d\d)")
NOTES = "<!-- notes: written by hand; ./dev bench keeps what follows -->"


def load_now():
    return os.getloadavg()[0]


def today():
    return time.strftime("%Y-%m-%d", time.gmtime())


def of_load(lines):
    """What stands at the top of a page that says of a run that the machine was not quiet before it."""
    loads = [load for line in lines for load in LOAD.findall(line) if float(load) > QUIET]
    if not loads:
        return []
    return [f"**Not a quiet machine: the load average before the run was {' and '.join(loads)}, above {QUIET}; these times say little.**", ""]


def page(lines, before=""):
    """A page of these lines, the first of which is its title, with the notes of the page that was there before."""
    notes = before[before.index(NOTES):] if NOTES in before else ""
    text = "\n".join(lines[:2] + of_load(lines) + lines[2:]).rstrip("\n") + "\n"
    return text + (f"\n{notes}" if notes else "")


def write(lines, folder, name, machine=""):
    """Prints them, and writes them to NAME-MACHINE.md in the folder. What people have written there below NOTES stays."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_name(name, machine)}.md"
    text = page(lines, path.read_text() if path.exists() else "")
    print(text)
    path.write_text(text)
    print(f"written: {path}", file=sys.stderr)
