#!/usr/bin/env python3
"""Bounds that keep the tree readable, and how much of each is used. Exits with 1 where one is passed.

    python3 tests/bounds.py [NAME…]    readme, changelog, folders, trainer, sections, axes, exact, kinds; all where none is named

A list is looked for in sources by its words: a statement of which so many are elements (behind a brace or a comma, not a call's
first argument) is one.

Claim (plugins): Sections, axes and exact operations are listed once each, and a kind of plugins stands in at most three places.
"""

import pathlib
import re
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
README_BYTES, UNRELEASED_LINES, FOLDER_FILES = 8192, 60, 30
TRAINER_MEMBERS, LOOP_LINES, KIND_PLACES = 12, 150, 3


def readme():
    yield "README.md, bytes", len((SOURCE / "README.md").read_bytes()), README_BYTES, "move what a newcomer does not need to docs/"


def changelog():
    text = (SOURCE / "CHANGELOG.md").read_text()
    newest = re.search(r"^## Unreleased.*?(?=^## |\Z)", text, re.M | re.S)
    lines = newest[0].rstrip().count("\n") + 1 if newest else 0
    yield "CHANGELOG.md, lines of what is unreleased", lines, UNRELEASED_LINES, "join lines of one subject; commits keep the rest"


def folders():
    """The fullest folder of core and of sdk, and every folder beyond the bound."""
    for top in ("core", "sdk"):
        counts = {}
        for path in (SOURCE / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                counts[path.parent] = counts.get(path.parent, 0) + 1
        most = max(counts, key=counts.get)
        for folder in sorted({most, *(one for one, count in counts.items() if count > FOLDER_FILES)}):
            yield f"{folder.relative_to(SOURCE)}, files", counts[folder], FOLDER_FILES, "make a folder of one of its subjects"


def trainer():
    """Trainer is the loop over steps: its source is the loop and the steps' parts of it."""
    header, loop = SOURCE / "core/train/trainer.h", SOURCE / "core/train/trainer.cpp"
    body = re.search(r"^class Trainer .*?^};", header.read_text(), re.M | re.S)[0]
    members = re.findall(r"^  [^()\n]*\b\w+_(?: = [^;\n]*|\{[^;\n]*)?;", body, re.M)
    yield "Trainer, members", len(members), TRAINER_MEMBERS, "give what belongs together to a part of it"
    yield f"{loop.relative_to(SOURCE)}, lines", len(loop.read_text().splitlines()), LOOP_LINES, "move what is no part of the loop"


def sources(*folders):
    """(file, its text without comments) of the folders."""
    for path in sorted(path for folder in folders for path in (SOURCE / folder).rglob("*") if path.suffix in (".h", ".cpp")):
        yield path, re.sub(r"^\s*//.*|\s//\s.*", "", path.read_text(), flags=re.M)


def kept(pattern, *folders):
    """The file and the text of a list that is kept once, by the way it begins."""
    found = [(path, match[0]) for path, text in sources(*folders) for match in re.finditer(pattern + r"[^;]*;", text)]
    if len(found) != 1:
        sys.exit(f"{len(found)} sources have a list that begins like {pattern}; expected one: say here how it begins")
    return found[0]


def lists(words, fewest, element, *folders):
    """(file, statement) of which so many words are elements; `element`: how a word stands in one, as a pattern with a group."""
    for path, text in sources(*folders):
        for statement in text.split(";"):
            if len(set(words).intersection(re.findall(r"(?<=[{,<])\s*" + element, statement))) >= fewest:
                yield path, statement


def once(what, found, remedy):
    """As a bound of one, with all places where there are more."""
    places = ", ".join(str(path.relative_to(SOURCE)) for path in found)
    yield f"lists of {what} ({places})", len(found), 1, remedy


def sections():
    _, table = kept(r"kSections\[\] = ", "core")
    names = re.findall(r'\{"(\w+)",', table)
    found = [path for path, _ in lists(names, 6, r'"(\w+)"', "core", "sdk", "plugins", "apps")]
    yield from once("sections", found, "walk sections() instead")


def axes():
    """Two kinds of lists of them are no second one: an order of their own, which is called so, and one whose length is kAxes'."""
    _, table = kept(r"kAxes\{", "sdk/include")
    names = re.findall(r"Axis::(\w+)", table)
    found = [path for path, statement in lists(names, 5, r'(?:Axis::|")(\w+)', "core", "sdk/include", "sdk/src", "plugins", "apps")
             if not re.search(r"[oO]rder\{|kAxes\.size\(\)", statement)]
    yield from once("axes", found, "walk kAxes instead")


def exact():
    _, table = kept(r"kSingle = ", "sdk/src")
    names = re.findall(r'"(\w+)"', table)
    found = [path for path, _ in lists(names, 5, r'"(?:aten::)?(\w+)"', "core", "sdk", "plugins", "apps")]
    yield from once("exact operations", found, "ask is_inexact() instead")


def kinds():
    """A kind's places: its interface, whose destructor is beside those of others, and each list of kinds, by type or by word."""
    _, table = kept(r"std::tuple<Model", "core")
    types = re.findall(r"\w+", table[:table.index(">")])
    words = re.findall(r'kKind = "(\w+)"', "".join(text for _, text in sources("sdk/include")))
    found = {path for names, element in ((types, r"(\w+)"), (words, r'"(\w+)"'))
             for path, _ in lists(names, 5, element, "core", "sdk", "apps")}
    places = ", ".join(["its interface", *sorted(str(path.relative_to(SOURCE)) for path in found)])
    remedy = "walk for_each_kind() instead"
    yield f"places of a kind of plugins ({places})", 1 + len(found), KIND_PLACES, remedy
    patch = (SOURCE / "tests/new_kind/stopper.patch").read_text()
    changed = [file for file in re.findall(r"^\+\+\+ b/(.*)", patch, re.M) if not file.startswith("plugins/")]
    yield "files that a new kind changes beside its plugin (tests/new_kind)", len(changed), KIND_PLACES, remedy


CHECKS = {check.__name__: check for check in (readme, changelog, folders, trainer, sections, axes, exact, kinds)}


def main():
    names = sys.argv[1:] or list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        sys.exit(f"there is no bound '{unknown[0]}'; expected some of: {', '.join(CHECKS)}")
    beyond = 0
    for name in names:
        for what, used, bound, remedy in CHECKS[name]():
            print(f"{what}: {used} of {bound}{f': too many; {remedy}' if used > bound else ''}")
            beyond += used > bound
    sys.exit(1 if beyond else 0)


if __name__ == "__main__":
    main()
