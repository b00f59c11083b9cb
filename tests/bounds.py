#!/usr/bin/env python3
"""Bounds that keep the tree readable, and how much of each is used. Exits with 1 where one is passed.

    python3 tests/bounds.py [NAME…]    readme, changelog, folders; all of them where none is named
"""

import pathlib
import re
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
README_BYTES, UNRELEASED_LINES, FOLDER_FILES = 8192, 60, 30


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


CHECKS = {check.__name__: check for check in (readme, changelog, folders)}


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
