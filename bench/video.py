#!/usr/bin/env python3
"""Ditto's loader of video files beside PyAV: the same frames of the same files, each by one thread on one core.

Every round times each once, one after another, by its processor time, so that other processes matter less. A ratio is
Ditto's rate over PyAV's in the same round, above 1 where Ditto is faster; the table has the rounds' median. Clips are
made first, by PyAV: windows that move over scikit-learn's two photographs, 480 x 320, H.264 with a key frame every 24
frames and B-frames. A sample is 8 frames, each 3 further, from a frame drawn at random; both make batches of 8 samples,
as floats.

Usage: ./dev bench video [--rounds 5] [--seconds 1] [--out FOLDER]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import details, processor, spread, write  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
PEER = os.environ.get("DITTO_PEERS_AV", str(ROOT / ".deps/peers_av/bin/python"))
SCRIPT = str(ROOT / "bench/peers/videos.py")
SIZES = {"480 x 320, as they are": (0, [320, 480]), "cropped and resized to 64 x 64": (64, [64, 64])}
RECIPE = """[run]
name = "video"
batch = 8

[data]
plugin = "table"
table = "clips.csv"
frames = "frames"
interval = "interval"
first = "first"
size = {size}

[loader]
shuffle = false
threads = 1
"""


def output(*command):
    core = str(min(os.sched_getaffinity(0)))
    return json.loads(subprocess.run(["taskset", "-c", core, *map(str, command)], check=True, stdout=subprocess.PIPE).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="each times everything once (default 5)")
    parser.add_argument("--seconds", type=float, default=1, help="of each timing, after a warm-up (default 1)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    args = parser.parse_args()
    for needed, why in ((DITTO, "./dev build"), (PEER, "./dev peers")):
        if not pathlib.Path(needed).exists():
            sys.exit(f"video.py: there is no {needed}; {why}")
    load, rates = os.getloadavg()[0], {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        subprocess.run([PEER, SCRIPT, "make", folder], check=True)
        for number in range(args.rounds):
            for title, (side, size) in SIZES.items():
                recipe = folder / "video.toml"
                recipe.write_text(RECIPE.format(size=size))
                ours = output(DITTO, "bench", "loader", recipe, "--json", "--seconds", args.seconds)
                theirs = output(PEER, SCRIPT, "read", folder, side, args.seconds)
                if theirs["shape"] != [3, 8, *size] or ours.get("left_out"):
                    sys.exit(f"video.py: PyAV makes {theirs['shape']}; Ditto: {ours}")
                rates.setdefault(title, []).append((ours["samples_per_s"] / ours["share_computing"], theirs["rate"]))
                print(f"round {number + 1}, {title}: Ditto {rates[title][-1][0]:.1f}, PyAV {rates[title][-1][1]:.1f}",
                      file=sys.stderr, flush=True)
    lines = [f"# Video files, {processor()}", "",
             "Written by bench/video.py (`./dev bench video`), which says what the clips are.", "",
             f"- processor: {processor()} ({details()}); load average before the run: {load:.2f}; PyAV {theirs['version']} "
             f"(libavcodec {theirs['ffmpeg']})",
             f"- {time.strftime('%Y-%m-%d', time.gmtime())}; {args.rounds} rounds, {args.seconds:g} s a timing; medians; "
             "one thread on one core",
             f"- coded frames from key frames to wanted ones, counted by PyAV: {theirs['coded']:.1f} a sample of 8 frames; "
             "that Ditto's decoder gets as many tests/golden/videos_test.cpp checks", "",
             "| frames | Ditto, samples a second of processor time | PyAV | Ditto is faster by (range) |",
             "|---|---:|---:|---:|"]
    for title, pairs in rates.items():
        lines.append(f"| {title} | {statistics.median(a for a, _ in pairs):.1f} | {statistics.median(b for _, b in pairs):.1f} | " +
                     spread([a / b for a, b in pairs], ".2f") + " |")
    write(lines, args.out, "video")


if __name__ == "__main__":
    main()
