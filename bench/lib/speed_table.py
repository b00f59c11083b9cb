#!/usr/bin/env python3
"""The tables of speed of docs/performance.md and README.md, each cell of which is one of a page in bench/results.

    python3 bench/lib/speed_table.py            says what of them is not the pages', and then exits with 1
    python3 bench/lib/speed_table.py --write    writes them
"""
import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- speed: bench/lib/speed_table.py --write -->", "<!-- end of speed -->"
MACHINES = {"Zen 5": "amd-epyc-26-2", "Zen 4": "amd-epyc-25-17", "Zen 3": "amd-epyc-25-1", "Xeon": "intel-xeon-processor"}
BEST, EAGER = "PyTorch's best of all", "PyTorch's best eager"
DIT, LONG, B_2, FEW, MANY = ("DiT-S/2, 32x32x4, batch 8", "DiT-S/2, 64x64x4, batch 2", "DiT-B/2, 32x32x4, batch 4", "digits, batch 16",
                             "digits, batch 128")
AUTOENCODER = ("encode 256 x 256, batch 1", "decode to 256 x 256, batch 1")
UNETS = ("SD's UNet, half width, 32x32x4, batch 4", "Efficient UNet, half width, 64x64x3, batch 4")
TEXTS = ("T5 1.1 base, 128 tokens, batch 8", "CLIP-L, 77 tokens, batch 8")


class Pages:
    """The tables of the pages of bench/results."""

    def __init__(self, folder):
        self.texts = {path.stem: path.read_text() for path in sorted(folder.glob("*.md"))}

    def rows(self, page):
        """Of all tables of a page: column -> cell, and the first cells."""
        head, found = None, []
        for line in self.texts.get(page, "").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
            if not cells:
                head = None
            elif not head:
                head = cells
            elif set("".join(cells)) - set("-: "):
                found.append((cells, dict(zip(head, cells))))
        return found

    def cell(self, page, first, *columns):
        """Of the row that begins with `first`, without its range; the first of these columns that the table has. "": nothing."""
        for cells, row in self.rows(page):
            column = next((one for one in columns if one in row), None)
            if tuple(cells[:len(first)]) == first and column:
                return re.sub(r" \([^)]*\)", "", row[column])
        return ""

    def best(self, page, first, column):
        """Of the rows of peers that begin so, the one that comes nearest to Ditto: "2.19 (webdataset)"."""
        peers = [(float(row[column].split()[0]), row[column].split()[0], cells[1]) for cells, row in self.rows(page)
                 if cells[0] == first and not cells[1].startswith("**Ditto")]
        return f"{min(peers)[1]} ({min(peers)[2]})" if peers else ""

    def item(self, page, start):
        """What a list's item says behind this and a colon."""
        found = re.search(rf"^- {re.escape(start)}: ([0-9.]+)", self.texts.get(page, ""), re.MULTILINE)
        return found[1] if found else ""

    def links(self, *kinds):
        found = [f"[{name}{', later' if kind != kinds[0] else ''}](../bench/results/{kind}-{machine}.md)" for name, machine in MACHINES.items()
                 for kind in kinds if f"{kind}-{machine}" in self.texts]
        return f"({', '.join(found)})"


def joined(*cells):
    return ", ".join(cell or "–" for cell in cells) if any(cells) else ""


def step_beside_pytorch(pages, machine, model, precision):
    """Of two pages of a machine the later one's, where it has the row."""
    return (pages.cell(f"step-one-number-{machine}", (model, precision), BEST, EAGER) or
            pages.cell(f"step-{machine}", (model, precision), BEST, EAGER))


def speed(pages):
    def step(machine, model, *precisions):
        return joined(*(step_beside_pytorch(pages, machine, model, one) for one in precisions))

    def share(machine, model):
        return pages.cell(f"step-{machine}", (model, "bf16", "**Ditto**"), "share")

    def sampling(machine, preset):
        return joined(*(pages.item(f"sample-{preset}-{machine}", f"{peer}'{s} time over Ditto's (bound {bound})")
                        for peer, s, bound in (("diffusers", "", 1.25), ("OpenVINO", "s", 1.0))))

    def loader(machine, kind):
        return pages.best(f"loader-{machine}", kind, "Ditto's one thread is faster by (range)")

    def video(machine):
        return joined(*(pages.cell(f"video-{machine}", (kind,), "Ditto is faster by (range)")
                        for kind in ("480 x 320, as they are", "cropped and resized to 64 x 64")))

    def encoders(machine, precision, *works):
        return joined(*(pages.cell(f"encode-{machine}", (work, precision), "its time over Ditto's (range)") for work in works))

    def unets(machine, precision):
        return joined(*(pages.cell(f"unet-{machine}", (work, precision), "its time over Ditto's (range)") for work in UNETS))

    def optimizer(machine):
        return pages.cell(f"optimizer-{machine}", ("update", '**Ditto**, numerics "fast"'), "PyTorch's time over it")

    one, bf16 = "fp32, one number", "bf16"
    return [
        (f"a training step {pages.links('step', 'step-one-number')} of DiT-S/2, batch 8: fp32, one number", lambda m: step(m, DIT, "fp32", one)),
        ("… bf16", lambda m: step(m, DIT, bf16)),
        ("… bf16: of the rate of a matrix multiply it reaches", lambda m: share(m, DIT)),
        ("of DiT-S/2 with 1,024 tokens, bf16", lambda m: step(m, LONG, bf16)),
        ("of DiT-B/2, bf16", lambda m: step(m, B_2, bf16)),
        ("of the digits, batch 128: fp32, one number, bf16", lambda m: step(m, MANY, "fp32", one, bf16)),
        ("of the digits, batch 16: fp32, one number, bf16", lambda m: step(m, FEW, "fp32", one, bf16)),
        (f"of Stable Diffusion's UNet and Imagen's Efficient one, at half width {pages.links('unet')}, fp32: diffusers, NeMo",
         lambda m: unets(m, "fp32")),
        ("… bf16", lambda m: unets(m, bf16)),
        (f"a step of sampling {pages.links('sample-s-2')}, DiT-S/2, guidance, four pictures, bf16: diffusers, compiled; OpenVINO with static "
         "shapes", lambda m: sampling(m, "s-2")),
        (f"… DiT-XL/2 {pages.links('sample-xl-2')}", lambda m: sampling(m, "xl-2")),
        (f"Stable Diffusion's autoencoder at 256 x 256, encoding and decoding {pages.links('encode')}, fp32: diffusers",
         lambda m: encoders(m, "fp32", *AUTOENCODER)),
        ("… bf16", lambda m: encoders(m, bf16, *AUTOENCODER)),
        ("T5 1.1 base at 128 tokens, CLIP-L at 77, batch 8, fp32: transformers", lambda m: encoders(m, "fp32", *TEXTS)),
        ("… bf16", lambda m: encoders(m, bf16, *TEXTS)),
        (f"AdamW with average and compute copies {pages.links('optimizer')}: fused AdamW and EMA", optimizer),
        (f"PNGs of tar files {pages.links('loader')}: the fastest of webdataset, megatron-energon, SPDL", lambda m: loader(m, "PNG to 64 x 64")),
        ("latents of tar files: the fastest of these", lambda m: loader(m, "latents")),
        ("JPEGs at half of their sides, made into floats: libjpeg-turbo, which only decodes",
         lambda m: loader(m, "JPEG, half of its sides").removesuffix(" (libjpeg-turbo)")),
        (f"frames of videos {pages.links('video')}, and resized ones: PyAV", video),
    ]


def shares(pages):
    def ranks(machine, column):
        page = f"ranks-{machine}"
        columns = [name for _, row in pages.rows(page) for name in row if name.startswith(column)]
        return joined(*(pages.cell(page, (model, "bf16"), *columns) for model in (DIT, MANY, FEW)))

    def memory(machine, column):
        return joined(*(pages.cell(f"memory-{machine}", ("bf16", label), column) for label in ("**Ditto**", "**Ditto**, blocks computed again")))

    def unets(machine, column):
        return joined(*(pages.cell(f"unet-{machine}", (work, precision), column) for precision in ("fp32", "bf16") for work in UNETS))

    def sizes(machine):
        return joined(*(pages.cell(f"sizes-{machine}", (label,), "times one sample a forward") for label in ("packs", "buckets", "padded to the largest")))

    def start_up(machine):
        found = [pages.item(f"step-{machine}", name) for name in ("Ditto", "PyTorch")]
        return f"{found[0]} s, {found[1]} s" if all(found) else ""

    return [
        (f"two ranks of one thread {pages.links('ranks')} reach of one process of two threads, bf16: DiT-S/2, the digits at batch 128, at 16",
         lambda m: ranks(m, "2 ranks reach")),
        ("four ranks reach of two: the same", lambda m: ranks(m, "4 ranks reach")),
        (f"memory of a whole step {pages.links('memory')} of DiT-S/2, bf16, of eager PyTorch's; with blocks computed again",
         lambda m: memory(m, "of eager PyTorch's least")),
        ("… of the part above what stays alone", lambda m: memory(m, "of its peak alone")),
        (f"the two UNets {pages.links('unet')}, fp32 and bf16: rate of one number, of fast numerics'", lambda m: unets(m, "one number, of fast (bound 0.8)")),
        ("… memory above weights, gradients and states, of eager PyTorch's", lambda m: unets(m, "peak of eager's (bound 70 %)")),
        ("… with blocks computed again", lambda m: unets(m, "computed again (bound 40 %)")),
        (f"latents of five sizes {pages.links('sizes')}, fp32: tokens a second beside one sample a forward, of packs, buckets, and padding each to "
         "the largest of the set", sizes),
        ("from the start of the process to the end of the first step of the digits: Ditto, PyTorch", start_up),
    ]


def in_short(pages):
    def step(model, precision):
        return lambda machine: step_beside_pytorch(pages, machine, model, precision)

    def loader(kind):
        return lambda machine: pages.best(f"loader-{machine}", kind, "Ditto's one thread is faster by (range)").partition(" ")[0]

    return [
        ("a training step of DiT-S/2, batch 8, bf16; PyTorch, the best of eager and compiled", step(DIT, "bf16")),
        ("the same in fp32", step(DIT, "fp32")),
        ("a training step of the digits, batch 128, bf16; the same peer", step(MANY, "bf16")),
        ("a step of sampling DiT-S/2 with guidance, bf16; diffusers, compiled",
         lambda machine: pages.item(f"sample-s-2-{machine}", "diffusers' time over Ditto's (bound 1.25)")),
        ("PNGs of tar files; the fastest of webdataset, megatron-energon, SPDL", loader("PNG to 64 x 64")),
        ("JPEGs at half of their sides, as floats; libjpeg-turbo, which only decodes", loader("JPEG, half of its sides")),
    ]


def table(title, rows, machines=MACHINES, nothing=""):
    found = [(label, [cell(MACHINES[machine]) for machine in machines]) for label, cell in rows]
    return [f"| {title} | {' | '.join(machines)} |", "|---|" + "---:|" * len(machines),
            *(f"| {label} | {' | '.join(cell or nothing for cell in cells)} |".replace("|  |", "| |").replace("|  |", "| |")
              for label, cells in found if any(cells))]


def performance(pages):
    return ["", *table("The peer's time over Ditto's", speed(pages)), "", *table("Shares, and seconds", shares(pages)), ""]


def readme(pages):
    return table("What, and its peer", in_short(pages), ("Zen 5", "Zen 4", "Xeon"), "–")


TABLES = {"docs/performance.md": performance, "README.md": readme}


def made_of(folder, page):
    return "\n".join([BEGIN, *TABLES[page](Pages(folder)), END])


def written(text, page):
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{page}: expected one {BEGIN} and one {END} behind it")
    return text[text.index(BEGIN):text.index(END) + len(END)]


def differences(text, folder, page):
    """Lines of a page's tables that are not those of bench/results."""
    return list(difflib.unified_diff(written(text, page).splitlines(), made_of(folder, page).splitlines(), page, "bench/results", lineterm="", n=0))


def main():
    folder, found = ROOT / "bench/results", []
    for page in TABLES:
        text = (ROOT / page).read_text()
        if "--write" in sys.argv:
            (ROOT / page).write_text(text.replace(written(text, page), made_of(folder, page)))
        else:
            found += differences(text, folder, page)
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
