#!/usr/bin/env python3
"""docs/proofs.md: what tests hold, made of the claims at the heads of their files.

    python3 tests/proofs.py [--check]    says where the page is not what the tests claim, and then exits with 1
    python3 tests/proofs.py --write      writes it

A claim is a paragraph of the docstring of a Python file, or of the comment that a .cpp or .sh file begins with:

    Claim (SUBJECT): What holds, in a sentence. Also: `other_test.cpp`, at length in `other.py --slow`, `layout_rules.md`

and ends with an empty line, with the next claim or with the comment. SUBJECT is one of those below; without one, as in
"Claim: What holds", it is the first of them. Behind "Also:" stand the
other tests and pages that hold it, by name alone: their folders are looked up, so that files may move. A file may have several claims.
"""

import ast
import difflib
import pathlib
import re
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PAGE = SOURCE / "docs/proofs.md"
SUBJECTS = {
    "again": "The same training again",
    "one number": "One number: the same bits on every layout",
    "layouts": "Layouts of ranks",
    "failures": "Checkpoints, signals and failures",
    "numbers": "Models, schedules, samplers and optimizers against their references",
    "networks": "Several networks, adapters and groups",
    "sampling": "Sampling",
    "data": "Data",
    "weights": "Weights of other projects",
    "plugins": "Plugins",
    "options": "Recipes, options and messages",
    "machine": "Memory, speed and what surrounds a run",
}
INTRO = """# What is proven, and where

Each row is a claim, and the tests that fail where it does not hold. `./dev test` runs them, and with `--all` those whose names end in
`_slow` or ` --slow`; those that compare with Python need `./dev peers` first, and are listed as not run without it.

All of it is held on the CPU, in fp32, bf16 and fp16 over fp32 weights, and in fp64. What one GPU has shown stands in
[bench/results/cuda-nvidia-h200.md](../bench/results/cuda-nvidia-h200.md). This page is made by `tests/proofs.py --write` of the claims at the heads of the tests.
"""
CLAIM = re.compile(r"^Claim(?: \(([^)]*)\))?: *")


def head(path):
    """The docstring, or the comments before the first line of code, without their marks."""
    text = path.read_text()
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    mark = "//" if path.suffix == ".cpp" else "#"
    lines = []
    for line in text.splitlines():
        if line.startswith(mark):
            lines.append(line[len(mark):].strip())
        elif line:
            break
        else:
            lines.append("")
    return "\n".join(lines)


def claims_of(path):
    """(subject, claim) of each paragraph that is one."""
    found, open_one = [], False
    for line in head(path).splitlines():
        begins = CLAIM.match(line)
        if begins:
            found.append([begins[1] or "again", line[begins.end():]])
        elif open_one and line.strip():
            found[-1][1] += " " + line.strip()
        open_one = bool(begins) or open_one and bool(line.strip())
    everywhere = len(re.findall(r"^(?://|#|\"{3})? ?Claim(?: \([^)]*\))?: ", path.read_text(), re.M))
    if everywhere != len(found):
        sys.exit(f"{path.relative_to(SOURCE)} has {everywhere} claims, {len(found)} of them at its head; "
                 "put them into its docstring, or into the comment that it begins with")
    return [(subject, text.strip()) for subject, text in found]


def named(word, files):
    """`NAME.py --slow` with the folder of NAME.py, a page as a link."""
    name, _, rest = word.partition(" ")
    if pathlib.Path(name).suffix not in (".py", ".sh", ".cpp", ".md"):
        return f"`{word}`"
    found = [path for path in files if path.name == name]
    if len(found) != 1:
        sys.exit(f"a claim names {name}, and {len(found)} files of tests/ and docs/ are called so; name one")
    path = str(found[0].relative_to(SOURCE))
    return f"[{path}]({path.removeprefix('docs/')})" if path.endswith(".md") else f"`{path}{' ' + rest if rest else ''}`"


def row(path, text, files):
    claim, _, also = text.replace("|", "\\|").partition(" Also: ")
    proof = f"`{path.relative_to(SOURCE)}`"
    if also:
        proof += "; " + re.sub(r"`([^`]+)`", lambda match: named(match[1], files), also)
    return f"| {claim.removesuffix('.')} | {proof} |"


def made():
    tests = sorted(path for path in (SOURCE / "tests").rglob("*") if path.suffix in (".py", ".sh", ".cpp") and path.name != "proofs.py")
    files = tests + sorted((SOURCE / "docs").rglob("*.md"))
    rows = {subject: [] for subject in SUBJECTS}
    for path in tests:
        for subject, text in claims_of(path):
            if subject not in rows:
                sys.exit(f"{path.relative_to(SOURCE)} has a claim of the subject '{subject}'; expected one of {', '.join(SUBJECTS)}")
            rows[subject].append(row(path, text, files))
    parts = [INTRO]
    for subject, title in SUBJECTS.items():
        if rows[subject]:
            parts.append("\n".join([f"## {title}", "", "| Claim | Proof |", "|---|---|", *rows[subject], ""]))
    return "\n".join(parts)


def main():
    page = made()
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page)
        print(f"{PAGE.relative_to(SOURCE)}: {page.count('| `tests/')} claims")
        return
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    now = PAGE.read_text() if PAGE.exists() else ""
    different = list(difflib.unified_diff(now.splitlines(), page.splitlines(), "docs/proofs.md", "the tests' claims", lineterm="", n=0))
    if different:
        sys.exit("\n".join([*different, "docs/proofs.md is not what the tests claim; python3 tests/proofs.py --write makes it so"]))
    print("docs/proofs.md is what the tests claim")


if __name__ == "__main__":
    main()
