#!/usr/bin/env python3
"""Keeps sdk/abi.lock: a hash of the SDK's headers without comments and white space, and the ABI number.

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
    number = None
    for header in headers:
        source = header.read_text(encoding="utf-8")
        if header.name == "version.h":
            number = int(re.search(r"kAbi\s*=\s*(\d+)", source).group(1))
            source = re.sub(r"(kVersion\s*=\s*)\"[^\"]*\"", r'\1""', source)  # releases alone change no ABI
        digest.update(header.relative_to(sdk / "include").as_posix().encode() + b"\0")
        digest.update(normal_form(source).encode() + b"\0")
    return number, digest.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the lock")
    parser.add_argument("--sdk", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    arguments = parser.parse_args()
    number, digest = state(arguments.sdk)
    lock = arguments.sdk / "abi.lock"
    text = f"abi {number}\nheaders sha256:{digest}\n"
    if arguments.write:
        lock.write_text(text)
        return 0
    if not lock.exists():
        print(f"sdk/abi.lock is missing; run: python3 sdk/abi_lock.py --write", file=sys.stderr)
        return 1
    if lock.read_text() == text:
        return 0
    locked = int(lock.read_text().split()[1])
    if locked == number:
        print(f"the SDK's headers have changed, and kAbi is still {number}; {REMEDY}", file=sys.stderr)
    else:
        print(f"kAbi is {number}, and sdk/abi.lock is of {locked}; run: python3 sdk/abi_lock.py --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
