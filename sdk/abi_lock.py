#!/usr/bin/env python3
"""Keeps sdk/abi.lock: a hash of the SDK's headers without comments and white space, the ABI number, and the first
version that has it. A version that was released keeps its ABI: a raised number needs a version that CHANGELOG.md does not
have as released.

    python3 sdk/abi_lock.py           says whether the lock holds
    python3 sdk/abi_lock.py --write   writes it, after kAbi in sdk/include/ditto/version.h was raised
"""

import argparse
import hashlib
import pathlib
import re
import sys

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/"""  # comments
    r"""|R"([^()\\\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""  # what must stay as it is
    r"""|\\\n""",  # a macro goes on in the next line: for the compiler that is no new line
    re.DOTALL,
)
REMEDY = (
    "if a compiled plugin can notice the change, raise kAbi in sdk/include/ditto/version.h; "
    "then run: python3 sdk/abi_lock.py --write"
)


def normal_form(source: str) -> str:
    """The text without comments, and with white space only where it parts two words."""
    pieces, at = [], 0

    def code(text):
        text = re.sub(r"\s+", " ", text)
        return re.sub(r" ?([^\w ]) ?", r"\1", text)

    for match in TOKEN.finditer(source):
        pieces.append(source[at : match.start()])
        kept = match.group()
        pieces.append(("\0", kept) if kept[0] in "\"'R" else " ")
        at = match.end()
    pieces.append(source[at:])
    # Join neighbouring code first, so that a comment between two words is one space.
    out, run = [], ""
    for piece in pieces:
        if isinstance(piece, tuple):
            out.append(code(run).strip())
            out.append(piece[1])
            run = ""
        else:
            run += piece
    out.append(code(run).strip())
    return "".join(out)


def state(sdk: pathlib.Path):
    headers = sorted((sdk / "include" / "ditto").rglob("*.h"))
    digest = hashlib.sha256()
    number = version = None
    for header in headers:
        source = header.read_text(encoding="utf-8")
        if header.name == "version.h":
            number = int(re.search(r"kAbi\s*=\s*(\d+)", source).group(1))
            version = re.search(r'kVersion\s*=\s*"([^"]*)"', source).group(1)
            source = re.sub(r"(kVersion\s*=\s*)\"[^\"]*\"", r'\1""', source)  # releases alone change no ABI
        digest.update(header.relative_to(sdk / "include").as_posix().encode() + b"\0")
        digest.update(normal_form(source).encode() + b"\0")
    return number, version, digest.hexdigest()


def headings(changelog: pathlib.Path):
    """The versions of CHANGELOG.md, newest first: the one that is not released yet, and those that are."""
    lines = [line for line in changelog.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    coming = [re.sub(r"## Unreleased:? *", "", line) for line in lines if line.startswith("## Unreleased")]
    return coming, [line[3:].split()[0] for line in lines if not line.startswith("## Unreleased")]


def parts(version: str):
    return [int(part) for part in version.split(".")]


def problem(locked, number: int, version: str, digest: str, changelog: pathlib.Path):
    """What is wrong, with the remedy; None where the lock holds."""
    if not locked:
        return "sdk/abi.lock is missing; run: python3 sdk/abi_lock.py --write"
    if int(locked["abi"]) != number:
        return f"kAbi is {number}, and sdk/abi.lock is of {locked['abi']}; run: python3 sdk/abi_lock.py --write"
    if locked["headers"] != f"sha256:{digest}":
        return f"the SDK's headers have changed, and kAbi is still {number}; {REMEDY}"
    if parts(version) < parts(locked["since"]):
        return f"kVersion is {version}, and ABI {number} is there since {locked['since']}; raise kVersion"
    coming, released = headings(changelog)
    if version not in coming and version != (released or [None])[0]:
        return f"kVersion is {version}, and CHANGELOG.md begins with {(coming + released)[0]}; bring them together"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the lock")
    parser.add_argument("--sdk", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    arguments = parser.parse_args()
    number, version, digest = state(arguments.sdk)
    lock, changelog = arguments.sdk / "abi.lock", arguments.sdk.parent / "CHANGELOG.md"
    locked = dict(line.split() for line in lock.read_text().splitlines()) if lock.exists() else {}
    if arguments.write:
        is_raised = locked.get("abi") != str(number)
        if is_raised and version in headings(changelog)[1]:
            print(f"kAbi was raised to {number}, and {version} is released with {locked.get('abi', 'another')}; "
                  "raise kVersion in sdk/include/ditto/version.h, and head CHANGELOG.md by it", file=sys.stderr)
            return 1
        since = version if is_raised else locked["since"]
        lock.write_text(f"abi {number}\nsince {since}\nheaders sha256:{digest}\n")
        return 0
    found = problem(locked, number, version, digest, changelog)
    if found:
        print(found, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
