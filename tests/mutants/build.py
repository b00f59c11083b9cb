"""A second build folder beside an ordinary one, in which some sources have mutants: only the objects that hold one are compiled
again (of eight sources, where the build compiles eight as one), and only what they are part of is linked again."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import sites

HERE = pathlib.Path(__file__).resolve().parent
OWN = ("libditto_core.a", "lib/libditto_sdk.so")
PROGRAMS = ("bin/ditto", "tests/ditto_unit_tests", "tests/ditto_contract_tests", "tests/ditto_golden_tests", "tests/ditto_faults_tests",
            "tests/ditto_matrix")
TARGETS = ("ditto_error.dir", "ditto_sdk.dir", "ditto_core.dir", "plugins/")  # whose objects are looked at


class Unit:
    """What the ordinary build compiles to one object."""

    def __init__(self, entry, source, build):
        self.folder, self.text = entry["directory"], pathlib.Path(entry["file"])
        words = shlex.split(entry["command"])
        at = words.index("-o")
        self.object = words[at + 1]  # relative to the build folder
        del words[at : at + 2]
        at = words.index("-c")
        del words[at : at + 2]
        self.command = words
        files = re.findall(r'#include "(.*)"', self.text.read_text()) if build in self.text.parents else [str(self.text)]
        self.files = [str(pathlib.Path(file).relative_to(source)) for file in files if source in pathlib.Path(file).parents]


def units(source, build):
    """{source file: Unit}"""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if any(f"CMakeFiles/{target}" in entry["command"] or f" {target}" in entry["command"] for target in TARGETS):
            unit = Unit(entry, source, build)
            for file in unit.files:
                found.setdefault(file, unit)
    return found


def compile_unit(unit, chosen, source, build, out):
    """Compiles `unit` with the sites `chosen` {number: site}; those that do not compile are dropped. The numbers of those left."""
    target = out / "objects" / unit.object
    stamp_file = target.with_suffix(".json")
    stamp = hashlib.sha256(repr((unit.command, [(source / file).read_text() for file in unit.files], sorted(chosen.items()),
                                 (build / unit.object).stat().st_mtime_ns, (HERE / "mutant.h").read_text())).encode()).hexdigest()
    if target.exists() and stamp_file.exists():
        before = json.loads(stamp_file.read_text())
        if before["stamp"] == stamp:
            return before["numbers"]
    target.parent.mkdir(parents=True, exist_ok=True)
    texts = {file: out / "source" / file for file in unit.files}
    together = out / "source" / f"{unit.object}.cpp"
    folders = dict.fromkeys(f"-iquote{(source / file).parent}" for file in unit.files)
    command = [*unit.command, "-w", f"-I{HERE}", *folders, "-o", str(target), "-c", str(together)]
    together.parent.mkdir(parents=True, exist_ok=True)
    together.write_text('#include "mutant.h"\n' + "".join(f'#include "{text}"\n' for text in texts.values()))
    left = dict(chosen)
    while True:
        for file, text in texts.items():
            text.parent.mkdir(parents=True, exist_ok=True)
            own = {number: site for number, site in left.items() if site.file == file}
            text.write_text("\n".join(sites.mutated((source / file).read_text().split("\n"), own)))
        done = subprocess.run(command, cwd=unit.folder, capture_output=True, text=True)
        if done.returncode == 0:
            break
        # Where an error lies in a template, the line that asked for it is named by a note.
        wrong = {(file, int(line)) for file, text in texts.items() for line in re.findall(re.escape(str(text)) + r":(\d+)", done.stderr)}
        fine = {number: site for number, site in left.items() if (site.file, site.line) not in wrong}
        if len(fine) == len(left):
            raise SystemExit(f"{together} does not compile, and no mutant is to blame:\n{done.stderr[:4000]}")
        left = fine
    stamp_file.write_text(json.dumps({"stamp": stamp, "numbers": sorted(left)}))
    return sorted(left)


def make(source, build, out, chosen):
    """Builds into `out`; of the sites `chosen` {number: site} the numbers of those that compile."""
    by_file, by_unit = units(source, build), {}
    for number, site in chosen.items():
        if site.file not in by_file:
            raise SystemExit(f"{build} has no object of {site.file}; build it anew (./dev build)")
        by_unit.setdefault(by_file[site.file], {})[number] = site
    kept = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {pool.submit(compile_unit, unit, some, source, build, out): unit for unit, some in by_unit.items()}
        for i, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            kept += job.result()
            print(f"compiled {i} of {len(jobs)}: {jobs[job].object} ({len(job.result())} mutants)", flush=True)
    link(by_unit, build, out)
    return sorted(kept)


def link(made, build, out):
    stamps = [(out / "objects" / unit.object).with_suffix(".json").read_text() for unit in made]
    there = [(path, (build / path).stat().st_mtime_ns) for path in (*OWN, *PROGRAMS)]
    stamp = hashlib.sha256(repr((sorted(stamps), there)).encode()).hexdigest()
    if (out / "linked").exists() and (out / "linked").read_text() == stamp:
        return
    (out / "linked").unlink(missing_ok=True)
    for folder in ("bin", "lib", "tests"):
        shutil.rmtree(out / folder, ignore_errors=True)
        subprocess.run(["cp", "-al", build / folder, out / folder], check=True)
    replaced = {unit.object: str(out / "objects" / unit.object) for unit in made}
    plugins = {f"lib/ditto/plugins/parallel/lib{pathlib.Path(file).parts[2]}.so"
               for unit in made for file in unit.files if file.startswith("plugins/parallel/")}
    for target in ("libditto_core.a", "lib/libditto_sdk.so", *sorted(plugins), *PROGRAMS):
        relink(build, out, target, replaced)
    (out / "linked").write_text(stamp)


def relink(build, out, target, replaced):
    """The ordinary build's last command for `target`, with other objects and into the other folder."""
    shown = subprocess.run(["ninja", "-C", build, "-t", "commands", target], check=True, capture_output=True, text=True)
    (out / target).unlink(missing_ok=True)  # a hard link to the ordinary one
    for command in shown.stdout.strip().split("\n")[-1].split("&&"):
        words = [word.replace("\\$", "$") for word in shlex.split(command)]  # which only a shell takes for an escape
        words = [replaced.get(word, str(out / word) if word in OWN or word == target else word) for word in words]
        if words != [":"]:
            subprocess.run(words, cwd=build, check=True)
