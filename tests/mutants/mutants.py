"""Plants hundreds of small faults, one at a time, and says which quick test sees each of them.

  tests/mutants.sh                     draws 220, builds them all as one library beside build/release, and looks which tests see them
  tests/mutants.sh --go-on             takes up what an earlier run has left (all are kept in tests/mutants/seen.json as they come)
  tests/mutants.sh --again --only pipeline   forgets what was not seen of files with this in their name, and tries those again
  tests/mutants.sh --known 20          draws from those that were seen before, and asks for the same again (some minutes)
  tests/mutants.sh --page docs/layout_derivations.md   writes the table of what was seen into a page

Needs an ordinary build (./dev build). Tests are the quick ones of ./dev test (of scripts each function), in the order in which
they are likely to see a mutant soonest; one that does not reach the mutant's line without it is not run. The first that fails
ends it; each has three times as long as without a mutant, and 20 seconds. A mutant that outlives --budget seconds of tests is run
on ten layouts (equal.py), and on rings where few of them reach it: where losses, validations, norms, weights and states have the
bits of the original, it changes no training; where they have not, or none of these layouts reaches it, all other tests that reach
it are tried. That bits are the same there is no proof for other layouts: each such row of tests/mutants/seen.json gets its reason
by hand ("why"), and one for which there is none asks for a test.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import math
import os
import pathlib
import sys
import threading
import time

import build
import equal
import quick
import sites

SOURCE = quick.SOURCE
SEEN = pathlib.Path(__file__).resolve().parent / "seen.json"
FOLDERS = ("sdk/src", "core/mesh", "core/ranks", "core/components", "core/network", "core/process", "core/assembly", "core/train",
           "plugins/parallel")
BEGIN, END = "<!-- mutants: tests/mutants.sh --page -->", "<!-- end of mutants -->"


def arguments():
    parser = argparse.ArgumentParser(prog="tests/mutants.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=220, help="mutants to draw (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default %(default)s)")
    parser.add_argument("--build", default="build/release", help="the ordinary build (default %(default)s)")
    parser.add_argument("--out", help="the build with mutants (default: build/mutants, with --known build/mutants_known)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests at once (default: cores)")
    parser.add_argument("--budget", type=float, default=200, help="seconds of tests before a mutant is held against the original (default %(default)s)")
    parser.add_argument("--for", type=float, dest="seconds", default=float("inf"), metavar="SECONDS", help="begin no mutant after so long; 0: only build")
    parser.add_argument("--go-on", action="store_true", help="keep what earlier runs found")
    parser.add_argument("--again", action="store_true", help="keep of it what was seen")
    parser.add_argument("--only", default="", help="mutants with this in file or line")
    parser.add_argument("--known", type=int, metavar="N", help="N of the mutants that are known to be seen, by the test that saw them")
    parser.add_argument("--page", type=pathlib.Path, help="only write the table of what was seen")
    return parser.parse_args()


def all_sites():
    found = []
    for folder in FOLDERS:
        for path in sorted((SOURCE / folder).rglob("*.cpp")):
            found += sites.sites(str(path.relative_to(SOURCE)), path.read_text().split("\n"))
    return found


def make(found, options, build_folder, out, count):
    """Builds `count` mutants; {number: site}."""
    drawn = sites.numbered(sites.draw(found, count + count // 3, options.seed))  # some do not compile
    made = set(build.make(SOURCE, build_folder, out, drawn))
    kept = [number for number in drawn if number in made][:count]
    print(f"{len(found)} places for mutants; {len(kept)} drawn with seed {options.seed}, {len(drawn) - len(made)} others did not compile", flush=True)
    return {number: drawn[number] for number in kept}


# --- results -------------------------------------------------------------------------------------------------------------


class Results:
    """What was found of each mutant, as a row: "test", "how" and "seconds" where one sees it; "changes" where none does; "same"
    where it changes nothing, and "why", written by hand."""

    def __init__(self, drawn, old):
        self.lock, self.drawn, self.old = threading.Lock(), drawn, old
        self.rows = {site.key: old[site.key] for site in drawn.values() if site.key in old}

    def add(self, site, row):
        with self.lock:
            before = self.old.get(site.key, {})
            if "why" in before and "test" not in row:
                row["why"] = before["why"]
            self.rows[site.key] = row
            rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(self.rows.items()))
            SEEN.with_suffix(".tmp").write_text(f'{{"drawn": {len(self.drawn)}, "mutants": {{\n{rows}\n}}}}\n')
            SEEN.with_suffix(".tmp").rename(SEEN)


def old_results():
    return json.loads(SEEN.read_text())["mutants"] if SEEN.exists() else {}


# --- trying --------------------------------------------------------------------------------------------------------------


class Trial:
    """Always runs what is likely to cost least until a mutant is seen: a test that reaches it, or one of which that is unknown."""

    HOLDING = 60  # seconds that a comparison with the original may take

    def __init__(self, options, build_folder, out, drawn, results):
        self.options, self.out, self.drawn, self.results = options, out, drawn, results
        self.tests = quick.Quick(build_folder, out, drawn)
        self.saw = collections.Counter(row["test"] for row in results.rows.values() if "test" in row)
        self.frequency = collections.Counter(word for test in self.tests.tests.values() for word in test.words)
        self.lock, self.busy, self.held, self.file = threading.Lock(), set(), {}, out / "tried.json"
        # Tests that a mutant passed: their versions, and what they take. Those that have changed since do not count.
        kept = json.loads(self.file.read_text()) if self.file.exists() else {}
        now = {of.name: of.version for test in self.tests.tests.values() for of in (test, test.file) if of}
        self.tried = {number: {name: took for name, took in kept.get(str(number), {}).items() if now.get(name) == took[0]}
                      for number in drawn}
        self.passed = collections.Counter(name for tried in self.tried.values() for name in tried)
        self.todo = {number for number, site in drawn.items() if site.key not in results.rows
                     and options.only in f"{site.file}: {site.what}"}
        (out / "said").mkdir(exist_ok=True)

    def cost(self, test, site):
        """Seconds until this test is likely to have seen a mutant."""
        return test.seconds * (self.passed[test.name] + 2) / (self.saw[test.name] + 1) * self.strangeness(test.name, site)

    @functools.lru_cache(None)
    def words(self, site):
        """{word of the mutant's file, function and lines: how much it says}"""
        path, lines = pathlib.Path(site.file), (SOURCE / site.file).read_text().split("\n")
        head = next((line for line in reversed(lines[: site.line - 1]) if line[:1].strip() and line.endswith("{")), "")
        of_file = path.stem + (f" {path.parts[2]}" if path.parts[0] == "plugins" else "")
        near, found = " ".join(lines[max(0, site.line - 4) : site.line + 3]), collections.Counter()
        for weight, text in ((1, of_file), (1, head), (0.5, site.what), (0.5, near)):
            for word in quick.words_of(text):
                found[word] += weight * math.log(len(self.tests.tests) / max(1, self.frequency[word]))
        return found

    @functools.lru_cache(None)
    def strangeness(self, name, site):
        """Less where the test's text has words of the mutant that few tests have."""
        words = self.words(site)
        return math.exp(-sum(words[word] for word in words.keys() & self.tests.tests[name].words) / 10)

    def was_tried(self, number, test):
        return test.name in self.tried[number] or (test.file is not None and test.file.name in self.tried[number])

    def next(self):
        """(mutant, test or none), or none: a test for a mutant, or a mutant that tests will not see."""
        best, job = float("inf"), None
        for number in self.todo - self.busy:
            spent = sum(seconds for name, (_, seconds) in self.tried[number].items())
            if number not in self.held and spent > self.options.budget and self.HOLDING < best:
                best, job = self.HOLDING, (number, None)
            for test in self.tests.reaching(number):
                if not self.was_tried(number, test) and self.cost(test, self.drawn[number]) < best:
                    best, job = self.cost(test, self.drawn[number]), (number, test)
        return job or next(((number, None) for number in self.todo - self.busy), None)

    def work(self, until):
        while time.monotonic() < until:
            with self.lock:
                if not self.todo:
                    return
                job = self.next()
                if job:
                    number, test = job
                    self.busy.add(number)
            if not job:  # what is left is under way
                time.sleep(1)
                continue
            try:
                if test:
                    self.try_test(number, test)
                else:
                    self.hold(number)
            finally:
                with self.lock:
                    self.busy.discard(number)

    def try_test(self, number, test):
        sees, how, seconds, said = self.tests.sees(test, number)
        with self.lock:
            if sees:
                self.saw[test.name] += 1
                (self.out / "said" / f"{number}.txt").write_text(f"{self.drawn[number]}\n{test.name} {how}\n{said[-6000:]}")
                self.add(number, {"test": test.name, "how": how, "seconds": round(seconds, 1)})
                return
            self.passed[test.name] += 1
            self.tried[number][test.name] = [test.version, round(test.seconds, 1)]
            text = json.dumps({number: tried for number, tried in self.tried.items() if tried})
            self.file.with_suffix(".tmp").write_text(text)
            self.file.with_suffix(".tmp").rename(self.file)

    def hold(self, number):
        """Against the original. What changes a training goes on to all other tests that reach it."""
        if number not in self.held:
            self.held[number] = equal.changes(self.out, number)
        what, reached = self.held[number]
        with self.lock:
            tests = len(self.tried[number])
            if not what and reached or all(self.was_tried(number, test) for test in self.tests.reaching(number)):
                self.add(number, {"changes": what, "tests": tests} if what else {"same": reached, "tests": tests})

    def add(self, number, row):
        site = self.drawn[number]
        self.results.add(site, row)
        self.todo.discard(number)
        how = f"{row['how']}: {row['test']} in {row['seconds']} s" if "test" in row else \
              f"NOT SEEN by {row['tests']} tests: {row.get('changes') or 'the same bits; reached on %d layouts' % row['same']}\n  {site.what}"
        print(f"[{len(self.results.rows)}/{len(self.drawn)}] {site.file}:{site.line} {number} {site.kind}: {how}", flush=True)

    def run(self):
        until = time.monotonic() + self.options.seconds
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(lambda _: self.work(until), range(self.options.jobs)))


def known(options, build_folder, out):
    """N of the mutants that a test saw, if their lines are still there: the same test must see them."""
    rows = {key: row["test"] for key, row in old_results().items() if "test" in row}
    left = [site for site in all_sites() if site.key in rows]
    drawn = make(left, options, build_folder, out, min(options.known, len(left)))
    tests = quick.Quick(build_folder, out, drawn)
    unseen = []

    def one(number):
        site = drawn[number]
        test = tests.find(rows[site.key])
        sees, how, seconds, _ = tests.sees(test, number)
        print(f"{site.file}:{site.line} {site.kind}: {how}: {test.name} in {seconds:.1f} s", flush=True)
        if not sees:
            unseen.append(site)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, drawn))
    print(f"{len(drawn) - len(unseen)} of {len(drawn)} mutants seen")
    return 1 if unseen or len(drawn) < options.known / 2 else 0


# --- the page ------------------------------------------------------------------------------------------------------------


def table():
    kept = json.loads(SEEN.read_text())
    rows = {tuple(key.split("|", 3)): row for key, row in kept["mutants"].items()}
    seen = [row for row in rows.values() if "test" in row]
    same = [row for row in rows.values() if "same" in row]
    holes = len(rows) - len(seen) - len(same)
    parts = [f"{kept['drawn']} mutants were drawn, and {len(rows)} have been run: {len(seen)} are seen by a quick test"]
    if same:
        parts.append(f"{len(same)} are not, and have the original's bits on the layouts of tests/mutants/equal.py")
    if holes:
        parts.append(f"{holes} are not, and change a training")
    lines = ["; ".join(parts) + ".", ""]
    by_file = collections.defaultdict(list)
    for (file, kind, nth, what), row in sorted(rows.items()):
        by_file[file].append((kind, what, row))
    lines += ["| Where | Mutant | Seen by, in |", "|---|---|---|"]
    for file, some in by_file.items():
        for kind, what, row in some:
            text = what.replace("|", "\\|").replace("`", "'")
            if "test" in row:
                how = f"{row['test']}, {row['seconds']:.0f} s" + (" (stood still)" if row["how"] == "too long" else "")
            elif "same" in row:
                how = f"nobody: the same bits on the {row['same']} layouts that reach it. " + row.get("why", "")
            else:
                how = "**nobody**: " + row["changes"].split(": ")[0]
            lines.append(f"| {file} | {kind}: `{text}` | {how.strip()} |")
    return "\n".join(lines)


def page(path):
    text = path.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{path} has no place for the table: a line {BEGIN} and a line {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}")


def main():
    options = arguments()
    if options.page:
        page(options.page)
        return 0
    build_folder, out = (SOURCE / options.build).resolve(), (SOURCE / (options.out or ("build/mutants_known" if options.known else "build/mutants"))).absolute()
    if not (build_folder / "bin/ditto").exists():
        print("not run: needs an ordinary build (./dev build)")
        return 77
    if options.known:
        return known(options, build_folder, out)
    old = old_results()
    drawn = make(all_sites(), options, build_folder, out, options.count)
    if options.again:
        chosen = {site.key for site in drawn.values() if options.only in f"{site.file}: {site.what}"}
        keep = {key: row for key, row in old.items() if "test" in row or key not in chosen}
    else:
        keep = old if options.go_on else {}
    results = Results(drawn, old)
    results.rows = {key: row for key, row in results.rows.items() if key in keep}
    Trial(options, build_folder, out, drawn, results).run()
    rows = results.rows.values()
    holes = [key for key, row in results.rows.items() if "changes" in row]
    print(f"{len(rows)} of {len(drawn)} mutants run: {sum('test' in row for row in rows)} seen, {sum('same' in row for row in rows)} change nothing, "
          f"{len(holes)} change a training and are seen by no quick test", *holes, sep="\n  ")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
