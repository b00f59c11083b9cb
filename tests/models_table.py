#!/usr/bin/env python3
"""The tables of docs/models.md: from what the golden test of models prints, and what models share in the SDK.

    models_table.py            says what is not current in the tables, and then exits with 1
    models_table.py --write    writes them

Errors are those of the machine that runs it, as powers of ten above them; one that is written may be up to ten times
smaller than what is measured here. All else must be equal.
"""

import json
import math
import os
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("DITTO_BUILD_DIR", SOURCE / "build/release"))
PAGE = SOURCE / "docs/models.md"
BEGIN, END = "<!-- table: tests/models_table.py --write -->", "<!-- end of table -->"
SHARED_BEGIN, SHARED_END = "<!-- shared: tests/models_table.py --write -->", "<!-- end of shared -->"
SHARED_HEAD = ["ditto/", "lines", "models"]
HEAD = ["model", "reference", "as it is", "cases", "parameters of published sizes", "output, fp64", "gradient, fp64", "output, fp32",
        "gradient, fp32", "options no case sets", "lines"]
ERRORS = range(5, 9)
MOST_CHANGED = 5  # two of them are NeMo's UNetModel with attention of its own block classes that it does not take
sys.path.insert(0, str(SOURCE / "sdk"))
from abi_lock import TOOLS_OF  # noqa: E402


def printed():
    done = subprocess.run([BUILD / "tests/ditto_golden_tests", "--source-file=*/models_test.cpp", "--no-path-filenames"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"the golden test of models fails:\n{done.stdout}{done.stderr}")
    return [json.loads(line.removeprefix("models_test: ")) for line in done.stdout.splitlines() if line.startswith("models_test: ")]


def power(error):
    """The power of ten that is not below it."""
    return "0" if error == 0 else f"1e{math.ceil(math.log10(error)):d}"


def count(files):
    return sum(len(file.read_text().splitlines()) for file in files)


def sources_of(model):
    return [file for file in (SOURCE / "plugins/models" / model).glob("*.*") if file.suffix in (".cpp", ".h")]


def shared_rows():
    """Of each header that is for models alone, and its source: lines, and the models that include it or another that does."""
    def included(files):
        return {name for file in files for name in re.findall(r"#include <ditto/([^>]+)>", file.read_text())}

    headers = SOURCE / "sdk/include/ditto"
    of_all, todo = set(), ["model.h"]
    while todo:
        name = todo.pop()
        of_all.add(name)
        todo += included([headers / name]) - of_all
    tools = {str(path.relative_to(headers)): path for pattern in TOOLS_OF["model"] for path in headers.glob(pattern)}
    tools = {name: path for name, path in tools.items() if name not in of_all}
    users = {name: set() for name in tools}
    for model in sorted(folder.name for folder in (SOURCE / "plugins/models").iterdir()):
        todo = included(sources_of(model))
        while todo:
            name = todo.pop()
            if name in tools and model not in users[name]:
                users[name].add(model)
                todo |= included([tools[name]])
    files = {name: [path, *(SOURCE / "sdk/src").glob(f"*/{path.stem}.cpp")] for name, path in tools.items()}
    return [[f"`{name}`", str(count(files[name])), ", ".join(f"`{model}`" for model in sorted(users[name])) or "–"]
            for name in sorted(tools)]


def options_unset(row):
    """Of a model; and those of them that only cases of transformers_test set."""
    cases = [json.loads(path.read_text())["case"] for path in (SOURCE / "tests/golden/transformers").glob("*.json")]
    ours = {name for case in cases if case["model"] == row["model"] for name in case["options"]}
    unset, ours = (", ".join(f"`{name}`" for name in row["unset"] if (name in ours) == of_ours) for of_ours in (False, True))
    return (unset or "none") + (f"; {ours}: a case of our own definition" if ours else "")


def rows_of(found):
    """A row for each model and reference."""
    unset = {row["model"]: options_unset(row) for row in found if "unset" in row}
    counts = [row for row in found if "parameters" in row]
    groups = {}
    for row in found:
        if "fp64" in row:
            groups.setdefault((row["model"], row["reference"]), []).append(row)
    for row in counts:
        groups.setdefault((row["model"], row["reference"]), [])
    rows = []
    for (model, reference), cases in sorted(groups.items()):
        changes = [f"{case['case']}: {case['changes']}" for case in cases if case["changes"]]
        as_it_is = ("" if 0 < len(changes) == len(cases) else "yes, but " if changes else "yes") + "; ".join(changes)
        sizes = [f"{row['case']}: {row['parameters']:,}" for row in counts if (row["model"], row["reference"]) == (model, reference)]
        # A reference that computes in float32 whatever it is given says nothing in fp64.
        double = [case for case in cases if case["precision"] == "fp64"]
        worst = [power(max(case[kind][i] for case in of)) if of else "–"
                 for kind, of in (("fp64", double), ("fp32", cases)) for i in (0, 1)]
        rows.append([f"`{model}`", reference, as_it_is, str(len(cases)), "<br>".join(sizes) or "–", *worst,
                     unset[model], str(count(sources_of(model)))])
    return rows


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cells(text):
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.strip().splitlines()[2:]]


def close_enough(said, measured):
    if said == measured or "–" in (said, measured):
        return said == measured
    return float(measured) < 11 * float(said)


def differences(head, said, measured):
    if len(said) != len(measured):
        yield f"{len(said)} rows are written, and there are {len(measured)}"
    for old, new in zip(said, measured):
        for i, name in enumerate(head):
            same = close_enough(old[i], new[i]) if head is HEAD and i in ERRORS else old[i] == new[i]
            if not same:
                yield f"{new[0]}, {new[1]}: {name} is {new[i]}, and the table says {old[i]}"


def main():
    page = PAGE.read_text()
    found = printed()
    changed = [row["case"] for row in found if row.get("changes")]
    if len(changed) > MOST_CHANGED:
        sys.exit(f"{len(changed)} references are not as they are published, and {MOST_CHANGED} may be: {', '.join(changed)}")
    wrong = []
    for begin, end, head, rows in ((BEGIN, END, HEAD, rows_of(found)), (SHARED_BEGIN, SHARED_END, SHARED_HEAD, shared_rows())):
        before, _, rest = page.partition(begin)
        now, mark, after = rest.partition(end)
        if not mark:
            sys.exit(f"{PAGE} has no place for the table: {begin} … {end}")
        wrong += differences(head, cells(now), rows)
        page = f"{before}{begin}\n{table(head, rows)}\n{end}{after}"
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page)
        print(f"{PAGE} is written")
        return
    print("\n".join(wrong) or f"{PAGE.name}: all rows are current")
    sys.exit(1 if wrong else 0)


main()
