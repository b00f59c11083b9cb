#!/usr/bin/env python3
"""Keeps sdk/abi.lock: for each kind of plugins its ABI number (`kAbi` of its interface), the first version that has it,
and a hash of the headers that plugins of this kind are compiled with, without comments and white space: the
interface's header, what that includes, and the tools beside it (TOOLS, TOOLS_OF). A version that was released keeps its
ABI: a raised number needs a version that CHANGELOG.md does not have as released.

    python3 sdk/abi_lock.py           says whether the lock holds
    python3 sdk/abi_lock.py --write   writes it, after the numbers were raised
"""

import argparse
import hashlib
import pathlib
import re
import sys

# What plugins of any kind may use beside their interface's header, and those of one kind.
TOOLS = ["plugin.h", "math/elementary.h", "math/random.h", "math/sizes.h", "text.h", "math/threads.h", "upload.h"]
TOOLS_OF = {"model": ["nn/*.h", "exact/*.h", "exchange/*.h"], "encoder": ["nn/*.h", "exchange/*.h", "text_encoder.h", "token_encoder.h"], "objective": ["diffusion/denoising.h", "nn/autoencoder.h"],
            "data": ["math/pictures.h", "video_decoder.h"], "kernels": ["math/prepared.h", "exact/terms.h", "list_update.h"],
            "scheduler": ["kernels.h", "diffusion/error_loss.h", "diffusion/predictions.h", "diffusion/interpolant.h"], "optimizer": ["kernels.h", "list_update.h"],  # kernels.h: ops they are given
            "parallel": ["parallel/*.h", "nn/attention_unit.h"]}
ALL_OF_THEM = "ditto.h"  # includes the others, and holds nothing of its own

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/"""  # comments
    r"""|R"([^()\\\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""  # what must stay as it is
    r"""|\\\n""",  # a macro goes on in the next line: for the compiler that is no new line
    re.DOTALL,
)
KIND = re.compile(r'const char\* kKind = "(\w+)";\s*static constexpr std::uint32_t kAbi = (\d+);')
WRITE = "run: python3 sdk/abi_lock.py --write"


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


class Headers:
    def __init__(self, sdk: pathlib.Path):
        root = sdk / "include" / "ditto"
        self.text = {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in sorted(root.rglob("*.h"))}
        self.version = re.search(r'kVersion\s*=\s*"([^"]*)"', self.text["version.h"]).group(1)
        self.kinds = {}  # name -> (header, number)
        for name, text in self.text.items():
            for kind, number in KIND.findall(text):
                self.kinds[kind] = (name, int(number))

    def of(self, kind: str):
        """The headers that a plugin of this kind is compiled with."""
        found, todo = set(), [self.kinds[kind][0], *TOOLS]
        for pattern in TOOLS_OF.get(kind, []):
            todo += [name for name in self.text if pathlib.PurePosixPath(name).match(pattern)]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += re.findall(r"#include <ditto/([^>]+)>", self.text[name])
        return sorted(found)

    def hash(self, kind: str):
        digest = hashlib.sha256()
        for name in self.of(kind):
            source = re.sub(r'(kVersion\s*=\s*)"[^"]*"', r'\1""', self.text[name])  # releases alone change no ABI,
            source = re.sub(r"(kAbi\s*=\s*)\d+", r"\1", source)  # nor does another kind's number
            digest.update(name.encode() + b"\0" + normal_form(source).encode() + b"\0")
        return digest.hexdigest()[:32]

    def of_no_kind(self):
        return sorted(set(self.text) - {ALL_OF_THEM} - {name for kind in self.kinds for name in self.of(kind)})


def beyond(headers: Headers, plugins: pathlib.Path):
    """What sources of plugins include that their kind's number does not stand for."""
    for source in sorted(plugins.rglob("*.cpp")):
        folder = "".join(file.read_text(encoding="utf-8") for file in sorted(source.parent.glob("*.cpp")))
        interface = re.search(r"DITTO_PLUGIN\((\w+),", folder)
        header = interface and re.compile(rf"class DITTO_API {interface.group(1)}\b[^;]*?kKind = \"(\w+)\"", re.DOTALL)
        kind = header and next((m.group(1) for t in headers.text.values() if (m := header.search(t))), None)
        if kind is None:
            continue
        for name in re.findall(r"#include <ditto/([^>]+)>", source.read_text(encoding="utf-8")):
            if name in headers.text and name != ALL_OF_THEM and name not in headers.of(kind):
                yield f"{source.relative_to(plugins.parent)} includes <ditto/{name}>, which is none of the headers of {kind}"


def headings(changelog: pathlib.Path):
    """The versions of CHANGELOG.md, newest first: the one that is not released yet, and those that are."""
    lines = [line for line in changelog.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    coming = [re.sub(r"## Unreleased:? *", "", line) for line in lines if line.startswith("## Unreleased")]
    return coming, [line[3:].split()[0] for line in lines if not line.startswith("## Unreleased")]


def parts(version: str):
    return [int(part) for part in version.split(".")]


def named(kinds, headers: Headers):
    return ", ".join(f"{kind} ({headers.kinds[kind][1]} in {headers.kinds[kind][0]})" for kind in kinds)


def problem(locked, headers: Headers, changelog: pathlib.Path):
    """What is wrong, with the remedy; None where the lock holds."""
    if homeless := headers.of_no_kind():
        return f"no kind's number stands for {', '.join(homeless)}; name it in TOOLS or TOOLS_OF of sdk/abi_lock.py"
    if set(locked) != set(headers.kinds):
        return f"sdk/abi.lock is missing, or of other kinds; {WRITE}"
    raised = [kind for kind, (_, number) in headers.kinds.items() if number != locked[kind][0]]
    changed = [kind for kind in headers.kinds if headers.hash(kind) != locked[kind][2]]
    still = [kind for kind in changed if kind not in raised]
    if still:
        return (f"headers of these kinds have changed, and kAbi is still: {named(still, headers)}; if a compiled plugin "
                f"can notice the change, raise kAbi there; then {WRITE}")
    if raised:
        return f"sdk/abi.lock has other numbers than: {named(raised, headers)}; {WRITE}"
    for kind, (number, since, _) in locked.items():
        if parts(headers.version) < parts(since):
            return f"kVersion is {headers.version}, and ABI {number} of {kind} is there since {since}; raise kVersion"
    coming, released = headings(changelog)
    if headers.version not in coming and headers.version != (released or [None])[0]:
        return f"kVersion is {headers.version}, and CHANGELOG.md begins with {(coming + released)[0]}; bring them together"
    return None


def read_lock(lock: pathlib.Path):
    """kind -> (number, since, hash)"""
    rows = [line.split() for line in lock.read_text().splitlines()] if lock.exists() else []
    return {row[0]: (int(row[1]), row[3], row[4]) for row in rows if len(row) == 5}


def write(lock: pathlib.Path, headers: Headers, changelog: pathlib.Path) -> int:
    locked = read_lock(lock)
    raised = [kind for kind, (_, number) in headers.kinds.items() if kind not in locked or locked[kind][0] != number]
    if locked and raised and headers.version in headings(changelog)[1]:
        print(f"kAbi was raised: {named(raised, headers)}, and {headers.version} is released; raise kVersion in "
              "sdk/include/ditto/version.h, and head CHANGELOG.md by it", file=sys.stderr)
        return 1
    rows = [f"{kind} {number} since {headers.version if kind in raised else locked[kind][1]} {headers.hash(kind)}\n"
            for kind, (_, number) in sorted(headers.kinds.items())]
    lock.write_text("".join(rows))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the lock")
    parser.add_argument("--sdk", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    arguments = parser.parse_args()
    headers = Headers(arguments.sdk)
    lock, changelog = arguments.sdk / "abi.lock", arguments.sdk.parent / "CHANGELOG.md"
    if arguments.write:
        return write(lock, headers, changelog)
    found = [*beyond(headers, arguments.sdk.parent / "plugins")]
    if first := problem(read_lock(lock), headers, changelog):
        found.insert(0, first)
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
