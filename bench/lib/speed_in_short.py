#!/usr/bin/env python3
"""README.md's short table of speed: six rows, each cell of which is one of a page in bench/results.

    python3 bench/lib/speed_in_short.py            says what of it is not the pages', and then exits with 1
    python3 bench/lib/speed_in_short.py --write    writes it
"""
import difflib
import pathlib
import sys

from speed_table import BEST, DIT, EAGER, MANY, Pages

ROOT = pathlib.Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- speed: bench/lib/speed_in_short.py --write -->", "<!-- end of speed -->"
MACHINES = {"Zen 5": "amd-epyc-26-2", "Zen 4": "amd-epyc-25-17", "Xeon": "intel-xeon-processor"}


def rows(pages):
    def step(machine, model, precision):
        # Of two pages of a machine the later one, where it has the row.
        return (pages.cell(f"step-one-number-{machine}", (model, precision), BEST, EAGER) or
                pages.cell(f"step-{machine}", (model, precision), BEST, EAGER))

    return [
        ("a training step of DiT-S/2, batch 8, bf16; PyTorch, the best of eager and compiled", lambda m: step(m, DIT, "bf16")),
        ("the same in fp32", lambda m: step(m, DIT, "fp32")),
        ("a training step of the digits, batch 128, bf16; the same peer", lambda m: step(m, MANY, "bf16")),
        ("a step of sampling DiT-S/2 with guidance, bf16; diffusers, compiled",
         lambda m: pages.item(f"sample-s-2-{m}", "diffusers' time over Ditto's (bound 1.25)")),
        ("PNGs of tar files; the fastest of webdataset, megatron-energon, SPDL",
         lambda m: pages.best(f"loader-{m}", "PNG to 64 x 64", "Ditto's one thread is faster by (range)").split(" ")[0]),
        ("JPEGs at half of their sides, as floats; libjpeg-turbo, which only decodes",
         lambda m: pages.best(f"loader-{m}", "JPEG, half of its sides", "Ditto's one thread is faster by (range)").split(" ")[0]),
    ]


def made_of(folder):
    pages = Pages(folder)
    lines = [f"| What, and its peer | {' | '.join(MACHINES)} |", "|---|" + "---:|" * len(MACHINES)]
    lines += [f"| {label} | {' | '.join(cell(machine) or '–' for machine in MACHINES.values())} |" for label, cell in rows(pages)]
    return "\n".join([BEGIN, *lines, END])


def written(text):
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"README.md: expected one {BEGIN} and one {END} behind it")
    return text[text.index(BEGIN):text.index(END) + len(END)]


def differences(readme, folder):
    """Lines of README's table that are not the pages'."""
    return list(difflib.unified_diff(written(readme).splitlines(), made_of(folder).splitlines(), "README.md", "the pages", lineterm="", n=0))


def main():
    readme, folder = ROOT / "README.md", ROOT / "bench/results"
    text = readme.read_text()
    if "--write" in sys.argv:
        readme.write_text(text.replace(written(text), made_of(folder)))
    elif found := differences(text, folder):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
