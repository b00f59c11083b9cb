"""Plants hundreds of small faults, one at a time, and says which quick test sees each of them.

  tests/mutants.sh                     draws mutants, builds them all as one library, runs them, and writes what was seen
  tests/mutants.sh --go-on             goes on with a run that was stopped
  tests/mutants.sh --known 20          draws from those that were seen before, and asks for the same again (a few minutes)
  tests/mutants.sh --page FILE         writes the table of what was seen, in Markdown

Needs an ordinary build of single files (cmake --preset release -DDITTO_UNITY=OFF, ./dev build). A mutant's tests are the quick
ones of ./dev test that reach its line, the shortest first, each up to three times as long as it takes without a mutant. A mutant
that 200 seconds of tests do not see is run on six layouts, where its losses, norms and weights must be the bits of the original:
then it changes no training.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import build
import equal
import sites

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SEEN = pathlib.Path(__file__).resolve().parent / "seen.json"
FOLDERS = ("sdk/src", "core/dist", "core/train", "plugins/parallel")


def arguments():
    parser = argparse.ArgumentParser(prog="tests/mutants.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=240, help="mutants to draw (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default %(default)s)")
    parser.add_argument("--build", default="build/release", help="the ordinary build (default %(default)s)")
    parser.add_argument("--out", default="build/mutants", help="the build with mutants (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests at once (default: cores)")
    parser.add_argument("--budget", type=float, default=200, help="seconds of tests before a mutant is held against the original (default %(default)s)")
    parser.add_argument("--slow", type=float, default=1, help="how many times longer tests may take, on a machine that does other work too")
    parser.add_argument("--go-on", action="store_true", help="with the mutants and results that are in --out")
    parser.add_argument("--known", type=int, metavar="N", help="N of the mutants that are known to be seen, by the test that saw them")
    parser.add_argument("--page", type=pathlib.Path, help="only write the table of what was seen")
    return parser.parse_args()


# --- what there is -------------------------------------------------------------------------------------------------------


def all_sites():
    found = []
    for folder in FOLDERS:
        for path in sorted((SOURCE / folder).rglob("*.cpp")):
            found += sites.sites(str(path.relative_to(SOURCE)), path.read_text().split("\n"))
    return found


def draw(found, count, seed):
    """As many of each kind as there are, in turn, so that rare kinds are not lost among frequent ones; none overlap."""
    by_kind = collections.defaultdict(list)
    for site in found:
        by_kind[site.kind].append(site)
    source = random.Random(seed)
    for some in by_kind.values():
        source.shuffle(some)
    drawn, taken = {}, collections.defaultdict(list)
    while len(drawn) < count and any(by_kind.values()):
        for some in by_kind.values():
            if not some:
                continue
            site = some.pop()
            spans = taken[site.file, site.line]
            if all(site.end < begin or end < site.begin for begin, end in spans) and len(drawn) < count:
                spans.append((site.begin, site.end))
                drawn[len(drawn) + 1] = site
    return drawn


# --- tests ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Test:
    name: str
    command: list
    environment: dict
    seconds: float = 0.0  # without a mutant


def quick_tests(build_folder, out):
    """The tests of ./dev test, in the build with mutants."""
    shown = subprocess.run(["ctest", "--test-dir", build_folder, "-LE", "^slow$", "--show-only=json-v1"], check=True, capture_output=True)
    tests = {}
    for test in json.loads(shown.stdout)["tests"]:
        if test["name"] == "integration/mutants.sh":
            continue
        there = lambda text: text.replace(str(build_folder), str(out))
        properties = {item["name"]: item["value"] for item in test["properties"]}
        environment = dict(item.split("=", 1) for item in map(there, properties.get("ENVIRONMENT", [])))
        command = [there(word) for word in test["command"]]
        if command[0].endswith("_tests"):
            command.append("--abort-after=1")
        tests[test["name"]] = Test(test["name"], command, environment)
    return tests


def run(test, out, limit, **variables):
    """How it ended: "passed", "failed", "too long" or "not run"; and the seconds it took."""
    work = out / "tmp" / f"{threading.get_ident()}"
    work.mkdir(parents=True, exist_ok=True)
    environment = os.environ | test.environment | variables | {"TMPDIR": str(work), "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    began = time.monotonic()
    process = subprocess.Popen(test.command, cwd=SOURCE, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    late = threading.Event()

    def stop():
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, stop)
    timer.start()
    failed, said = False, []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("FAIL ") and "DITTO_MUTANT" in variables:  # a table of layouts goes on after a case that failed
                failed = True
                os.killpg(process.pid, signal.SIGKILL)
                break
        process.stdout.close()
        code = process.wait()
    finally:
        timer.cancel()
        shutil.rmtree(work, ignore_errors=True)
    seconds = time.monotonic() - began
    if late.is_set():
        return "too long", seconds
    if code == 77:
        return "not run", seconds
    if code != 0 and "DITTO_MUTANT" not in variables:
        (out / "failed.txt").write_text("".join(said))
    return "passed" if code == 0 and not failed else "failed", seconds


def measure(tests, out, jobs):
    """Which mutants each test reaches, and how long it takes; {test: [numbers]}."""
    reached = {}

    def one(test):
        trace = out / "trace" / test.name.replace("/", "_")
        trace.parent.mkdir(exist_ok=True)
        trace.unlink(missing_ok=True)
        ended, test.seconds = run(test, out, 1200, DITTO_MUTANT_TRACE=str(trace))
        numbers = sorted({int(line) for line in trace.read_text().split()}) if trace.exists() else []
        print(f"{test.name}: {ended} in {test.seconds:.1f} s, reaches {len(numbers)} mutants", flush=True)
        if ended == "passed":
            reached[test.name] = numbers
        elif ended != "not run":
            print(f"LEFT OUT: {test.name} fails without a mutant:\n{(out / 'failed.txt').read_text()[-3000:]}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, sorted(tests.values(), key=lambda test: test.name)))
    return reached


def limit_of(test, slow):
    return slow * (20 + 3 * test.seconds)


def try_mutant(number, tests, reached, out, options):
    """The first quick test that fails: {"test", "how", "seconds"}. A mutant that outlives --budget seconds of tests is held
    against the original first: {"equal": ""} where it changes no training; else the other tests are tried too."""
    spent, held = 0.0, None
    for test in sorted((tests[name] for name, numbers in reached.items() if number in numbers), key=lambda test: test.seconds):
        if held is None and spent + test.seconds > options.budget:
            held = equal.changes(number, out)
            if not held:
                break
        ended, seconds = run(test, out, limit_of(test, options.slow), DITTO_MUTANT=str(number))
        spent += seconds / options.slow
        if ended in ("failed", "too long"):
            return {"test": test.name, "how": ended, "seconds": round(seconds, 1)}
    return {"equal": equal.changes(number, out) if held is None else held}


# --- the whole -----------------------------------------------------------------------------------------------------------


def plain(site):
    return dataclasses.asdict(site)


def save(state, out):
    (out / "state.tmp").write_text(json.dumps(state, indent=1))
    (out / "state.tmp").rename(out / "state.json")


def begin(options, build_folder, out):
    found = all_sites()
    drawn = draw(found, options.count + options.count // 4, options.seed)  # some do not compile
    made = build.make(SOURCE, build_folder, out, drawn)
    kept = dict(sorted(made.items())[: options.count])
    print(f"{len(found)} places for mutants; {options.count} drawn with seed {options.seed}, {len(drawn) - len(made)} others did not compile")
    tests = quick_tests(build_folder, out)
    reached = measure(tests, out, options.jobs)
    state = {"seed": options.seed, "sites": {str(n): plain(site) for n, site in kept.items()}, "reached": reached,
             "seconds": {name: test.seconds for name, test in tests.items()}, "results": {}}
    save(state, out)
    return state


def finish(options, build_folder, out, state):
    tests = quick_tests(build_folder, out)
    for name, test in tests.items():
        test.seconds = state["seconds"].get(name, 60)
    todo = [number for number in state["sites"] if number not in state["results"]]
    lock, began = threading.Lock(), time.monotonic()

    def one(number):
        result = try_mutant(int(number), tests, state["reached"], out, options)
        site = state["sites"][number]
        with lock:
            state["results"][number] = result
            save(state, out)
            done = len(state["results"])
            left = (time.monotonic() - began) / max(1, done - (len(state["sites"]) - len(todo))) * (len(state["sites"]) - done)
            print(f"[{done}/{len(state['sites'])}, {left / 60:.0f} min left] {site['file']}:{site['line']} {site['kind']}: "
                  + (f"{result['how']}: {result['test']} after {result['seconds']} s" if "test" in result else
                     f"NOT SEEN: {result['equal'] or 'the same bits on all layouts'}\n  {site['what']}"), flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, todo))


def write_seen(state):
    """What later runs and the page are made from."""
    rows = [{key: site[key] for key in ("file", "kind", "what", "begin")} | state["results"][number]
            for number, site in state["sites"].items()]
    SEEN.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def known(options, build_folder, out):
    """N of the mutants that a test saw, if their lines are still there: the same test must see them."""
    rows = {(row["file"], row["kind"], row["what"], row["begin"]): row["test"] for row in json.loads(SEEN.read_text()) if "test" in row}
    left = [site for site in all_sites() if (site.file, site.kind, site.what, site.begin) in rows]
    drawn = draw(left, options.known, options.seed)
    made = build.make(SOURCE, build_folder, out, drawn)
    tests = quick_tests(build_folder, out)
    missed = []

    def one(number):
        site = made[number]
        name = rows[site.file, site.kind, site.what, site.begin]
        ended, seconds = run(tests[name], out, 300, DITTO_MUTANT=str(number))
        print(f"{site.file}:{site.line} {site.kind}: {ended}: {name} after {seconds:.1f} s", flush=True)
        if ended not in ("failed", "too long"):
            missed.append(site)

    for name in {rows[site.file, site.kind, site.what, site.begin] for site in made.values()}:
        ended, seconds = run(tests[name], out, 300)
        if ended != "passed":
            raise SystemExit(f"{name}: {ended} without a mutant")
        tests[name].seconds = seconds
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, made))
    print(f"{len(made) - len(missed)} of {len(made)} mutants seen")
    return 1 if missed or len(made) < min(options.known, len(left)) / 2 else 0


def page():
    rows = json.loads(SEEN.read_text())
    seen = [row for row in rows if "test" in row]
    lines = [f"{len(rows)} mutants, {len(seen)} seen, {len(rows) - len(seen)} not seen.", "", "| Where | What | Line | Seen by, after |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row["file"], row["what"])):
        what = row["what"].replace("|", "\\|")
        how = f"{row['test']}, {row['seconds']} s" + (" (stood still)" if row["how"] == "too long" else "") if "test" in row else \
              row["equal"] or "nobody: the same bits on six layouts. " + row.get("why", "")
        lines.append(f"| {row['file']} | {row['kind']} | `{what}` | {how} |")
    return "\n".join(lines) + "\n"


def main():
    options = arguments()
    if options.page:
        options.page.write_text(page())
        return 0
    build_folder, out = (SOURCE / options.build).resolve(), (SOURCE / options.out).absolute()
    if not (build_folder / "bin/ditto").exists():
        print("not run: needs an ordinary build (./dev build)")
        return 77
    if options.known:
        return known(options, build_folder, out)
    state = json.loads((out / "state.json").read_text()) if options.go_on else begin(options, build_folder, out)
    finish(options, build_folder, out, state)
    write_seen(state)
    unseen = [number for number, result in state["results"].items() if "test" not in result]
    holes = [number for number in unseen if state["results"][number]["equal"]]
    print(f"{len(state['sites'])} mutants: {len(state['sites']) - len(unseen)} seen, {len(unseen) - len(holes)} change nothing, {len(holes)} change a "
          "training and are seen by no quick test")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
