#!/usr/bin/env python3
"""Ditto's loader beside megatron-energon, webdataset and SPDL, of the same shards and without a model; and decoding of JPEGs beside
libjpeg-turbo itself.

Every round times each once, one after another, so that what disturbs the machine disturbs all. A ratio is Ditto's rate over the
other's in the same round, above 1 where Ditto is faster; the table has the rounds' median. Sets are made first: Debian's Noto Color
Emoji as they lie in the font (palette PNGs of 136 x 128) to 64 x 64 floats; latents of 4 x 32 x 32 in torch.save's format; JPEGs of
1024 x 768, cut out of scikit-learn's two photographs, to 128 x 128 by ADM's way, for which half of their sides are decoded. All files
are in the page cache. One thread means one core (the process is kept to it), two threads two.

Usage: ./dev bench loader [--rounds 5] [--seconds 1] [--sets FOLDER] [--out FOLDER]
"""
import argparse
import ctypes.util
import io
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import details, processor, spread, write  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
PEER = os.environ.get("DITTO_PEERS_ENERGON", str(ROOT / ".deps/peers_energon/bin/python"))
SERVER = str(ROOT / "bench/peers/loaders.py")
FONT = pathlib.Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
SAMPLES = {"png": 3500, "pth": 4000, "jpg": 240}
A_SHARD = 500
DATA = {"png": "size = [64, 64]", "pth": 'image = ["pth"]\nlatent = [4, 32, 32]', "jpg": 'size = [128, 128]\nresize = "bicubic"'}
TITLES = {"png": "PNG to 64 x 64", "pth": "latents", "jpg": "JPEG, half of its sides"}
PEERS = {"png": ["megatron-energon", "webdataset", "SPDL"], "pth": ["megatron-energon", "webdataset", "SPDL"], "jpg": ["libjpeg-turbo"]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="each times everything once (default 5)")
    parser.add_argument("--seconds", type=float, default=1, help="of each timing, after a warm-up (default 1)")
    parser.add_argument("--only", choices=list(DATA), action="append", help="this set only (may be repeated)")
    parser.add_argument("--sets", type=pathlib.Path, help="where the sets are made, and found when they are there (default: a temporary folder)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


# --- sets --------------------------------------------------------------------------------------------------------------


def emoji():
    """The font's PNGs: 136 x 128, most of them with a palette."""
    font = FONT.read_bytes()
    at = font.find(b"\x89PNG\r\n\x1a\n")
    while at >= 0:
        end = at + 8
        while font[end + 4:end + 8] != b"IEND":
            end += 12 + struct.unpack(">I", font[end:end + 4])[0]
        yield font[at:end + 12]
        at = font.find(b"\x89PNG\r\n\x1a\n", end)


def latents():
    import torch

    draws = torch.Generator().manual_seed(0)
    while True:
        file = io.BytesIO()
        torch.save(torch.randn(4, 32, 32, generator=draws), file)
        yield file.getvalue()


def photographs():
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_image

    draws = np.random.default_rng(0)
    whole = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    while True:
        photo = whole[int(draws.integers(2))]
        width = int(draws.integers(400, 560))
        height = width * 3 // 4
        left, top = int(draws.integers(photo.width - width)), int(draws.integers(photo.height - height))
        part = np.asarray(photo.resize((1024, 768), Image.BICUBIC, (left, top, left + width, top + height)))
        noisy = np.clip(part + draws.normal(0, 4, part.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "JPEG", quality=90)
        yield file.getvalue()


def make_set(folder, kind):
    done = folder / "done"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    source = {"png": emoji, "pth": latents, "jpg": photographs}[kind]()
    tar = None
    for number, data in zip(range(SAMPLES[kind]), source):
        if number % A_SHARD == 0:
            if tar:
                tar.close()
            tar = tarfile.open(folder / f"train-{number // A_SHARD:06}.tar", "w")
        for name, content in ((f"{number:06}.{kind}", data), (f"{number:06}.cls", str(number % 10).encode())):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    tar.close()
    fields = json.dumps({"image": kind, "label": "cls"})
    subprocess.run([PEER, SERVER, "prepare", str(folder), fields], check=True, stdout=subprocess.DEVNULL)
    (folder / "loader.toml").write_text(
        f'[run]\nname = "{kind}"\nbatch = 64\nthreads = 1\n\n[data]\nplugin = "webdataset"\npath = "."\nclasses = 10\n{DATA[kind]}\n')
    done.touch()


# --- timings -----------------------------------------------------------------------------------------------------------


def of_ditto(folder, threads, seconds):
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    done = subprocess.run(["taskset", "-c", cores, DITTO, "bench", "loader", str(folder / "loader.toml"), "--json", "--seconds", str(seconds),
                           "--set", f"loader.threads={threads}"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


class Peers:
    """Their process, kept to one core."""

    def __init__(self):
        core = str(min(os.sched_getaffinity(0)))
        self.process = subprocess.Popen(["taskset", "-c", core, PEER, SERVER, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("loader.py: the peers' process ended")
        return json.loads(line)

    def measure(self, peer, folder, kind, seconds):
        print(json.dumps({"peer": peer, "folder": str(folder), "kind": kind, "seconds": seconds}), file=self.process.stdin, flush=True)
        return self.answer()


def check_alike(kind, answers):
    """The peers do the same work: shapes, types, and nearly the same pictures."""
    shape = {"png": [64, 3, 64, 64], "pth": [64, 4, 32, 32]}.get(kind)
    for peer, answer in answers.items():
        if shape and (answer["shape"] != shape or answer["type"] != "torch.float32"):
            sys.exit(f"loader.py: {peer} makes {answer} of {kind}, expected {shape} of torch.float32")


def measure(sets, kinds, args):
    peers = Peers()
    rates = {kind: {} for kind in kinds}
    for number in range(args.rounds + 1):  # the first one is not counted: files into the page cache, caches into being
        for kind in kinds:
            folder, answers = sets / kind, {}
            for peer in PEERS[kind]:
                answers[peer] = peers.measure(peer, folder, kind, args.seconds if number else 0.1)
            ours = {f"Ditto, {n} thread{'s'[:n - 1]}": of_ditto(folder, n, args.seconds if number else 0.1) for n in (1, 2)}
            check_alike(kind, answers)
            for name, answer in (answers | ours).items() if number else ():
                rates[kind].setdefault(name, []).append(answer["samples_per_s"])
            print(f"round {number}, {kind}: " + ", ".join(f"{name} {answer['samples_per_s']:.0f}" for name, answer in (answers | ours).items()),
                  file=sys.stderr, flush=True)
    return rates, peers.versions


# --- report ------------------------------------------------------------------------------------------------------------


def ratio_text(ours, theirs):
    return spread([a / b for a, b in zip(ours, theirs)], ".2f")


def table(rates):
    lines = ["| set | | samples/s | Ditto's one thread is faster by (range) |", "|---|---|---:|---:|"]
    for kind, of_kind in rates.items():
        one = of_kind["Ditto, 1 thread"]
        for name, values in of_kind.items():
            ours = name.startswith("Ditto")
            ratio = ratio_text(one, values) if not ours else "" if values is one else f"two threads: {ratio_text(values, one)}"
            lines.append(f"| {TITLES[kind]} | {'**' if ours else ''}{name}{'**' if ours else ''} | {statistics.median(values):.0f} | {ratio} |")
    return lines


def main():
    args = arguments()
    for needed, why in ((DITTO, "./dev build"), (PEER, "./dev peers"), (FONT, "apt-get install fonts-noto-color-emoji")):
        if not pathlib.Path(needed).exists():
            sys.exit(f"loader.py: there is no {needed}; {why}")
    if not ctypes.util.find_library("avdevice"):  # without it SPDL waits for a sample that never comes
        sys.exit("loader.py: there is no libavdevice; apt-get install libavdevice59 libavfilter8")
    kinds = args.only or list(DATA)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        sets = args.sets or pathlib.Path(temporary)
        for kind in kinds:
            make_set(sets / kind, kind)
        rates, versions = measure(sets, kinds, args)
    lines = [f"# The loader alone, {processor()}", "", "Written by bench/loader.py (`./dev bench loader`), which says what the sets are.", "",
             f"- processor: {processor()} ({details()}); load average before the run: {load:.2f}",
             "- " + ", ".join(f"{peer} {version}" for peer, version in versions.items() if peer != "libjpeg-turbo") +
             f"; libjpeg-turbo as simplejpeg {versions['libjpeg-turbo']} binds it, of files in memory, into one buffer, without anything after it",
             f"- {time.strftime('%Y-%m-%d', time.gmtime())}; {args.rounds} rounds, {args.seconds:g} s a timing; medians; batches of 64, shuffled; "
             "the peers without workers (SPDL: a thread)", ""]
    lines += table(rates)
    write(lines, args.out, "loader")


if __name__ == "__main__":
    main()
