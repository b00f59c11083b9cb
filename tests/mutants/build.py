"""A second build folder beside an ordinary one, in which some sources have mutants: only what differs is compiled."""

import concurrent.futures
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


def compile_file(file, source, chosen, build, out, commands):
    """Compiles `file` with its mutants; those that do not compile are dropped. The numbers of those that are left."""
    entry = commands[str(source / file)]
    target = out / "objects" / f"{file}.o"
    text = out / "source" / file
    for place in (target, text):
        place.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.split(entry["command"])
    del command[command.index("-o") : command.index("-o") + 2]
    del command[command.index("-c") : command.index("-c") + 2]
    lines = (source / file).read_text().split("\n")
    command += ["-w", f"-I{HERE}", f"-iquote{(source / file).parent}", "-o", str(target), "-c", str(text)]
    while True:
        text.write_text(f'#include "mutant.h"\n#line 1 "{text}"\n' + "\n".join(sites.mutated(lines, chosen)))
        done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True)
        if done.returncode == 0:
            return file, target, chosen
        # Where an error lies in a template, the line that asked for it is named by a note.
        wrong = {int(line) for line in re.findall(re.escape(str(text)) + r":(\d+)", done.stderr)}
        left = {number: site for number, site in chosen.items() if site.line not in wrong}
        if len(left) == len(chosen):
            raise SystemExit(f"{text} does not compile, and no mutant is to blame:\n{done.stderr[:4000]}")
        chosen = left


def make(source, build, out, chosen):
    """Builds into `out`; the mutants that compile, {number: site}."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    commands = {entry["file"]: entry for entry in json.loads((build / "compile_commands.json").read_text())}
    if str(source / "core/train/step.cpp") not in commands:
        raise SystemExit(f"{build} compiles several files as one; configure it anew with -DDITTO_UNITY=OFF")
    by_file = {}
    for number, site in chosen.items():
        by_file.setdefault(site.file, {})[number] = site
    objects, kept = {}, {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compile_file, file, source, some, build, out, commands) for file, some in by_file.items()]
        for i, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            file, target, left = job.result()
            objects[file] = target
            kept |= left
            print(f"compiled {i} of {len(jobs)}: {file} ({len(left)} mutants)", flush=True)
    for folder in ("bin", "lib", "tests"):
        subprocess.run(["cp", "-al", build / folder, out / folder], check=True)
    link(source, build, out, objects, commands)
    return kept


def link(source, build, out, objects, commands):
    replaced = {}  # an object of the ordinary build -> the one with mutants
    for file, target in objects.items():
        words = shlex.split(commands[str(source / file)]["command"])
        replaced[words[words.index("-o") + 1]] = str(target)
    plugins = [f"lib/ditto/plugins/parallel/lib{pathlib.Path(file).parts[2]}.so" for file in objects if file.startswith("plugins/parallel/")]
    for target in ["libditto_core.a", "lib/libditto_sdk.so", *sorted(set(plugins)), *PROGRAMS]:
        relink(build, out, target, replaced)


def relink(build, out, target, replaced):
    """The ordinary build's last command for `target`, with other objects and into the other folder."""
    shown = subprocess.run(["ninja", "-C", build, "-t", "commands", target], check=True, capture_output=True, text=True)
    (out / target).unlink(missing_ok=True)  # a hard link to the ordinary one
    for command in shown.stdout.strip().split("\n")[-1].split("&&"):
        words = [word.replace("\\$", "$") for word in shlex.split(command)]  # which only a shell takes for an escape
        words = [replaced.get(word, str(out / word) if word in OWN or word == target else word) for word in words]
        if words != [":"]:
            subprocess.run(words, cwd=build, check=True)
