"""PyAV, for bench/video.py; runs in its environment (./dev peers).

    videos.py make FOLDER        clips out of scikit-learn's two photographs, and clips.csv: a row a sample
    videos.py read FOLDER SIDE SECONDS
                                 reads the rows one after another, and prints {"rate": …, "coded": …}: samples a second of processor time

SIDE 0: frames as they are; else brought to SIDE x SIDE by swscale, which converts their colours in the same pass. In batches of 8, by one thread.
"""
import csv
import json
import pathlib
import sys
import time
from fractions import Fraction

import av
import numpy as np
import torch

HEIGHT, WIDTH, FRAMES, CLIPS, ROWS, TAKEN, INTERVAL, BATCH = 320, 480, 120, 8, 64, 8, 3, 8


def make(folder):
    from sklearn.datasets import load_sample_image

    photos = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    draws = np.random.default_rng(0)
    for clip in range(CLIPS):
        photo = photos[clip % 2]
        begin, end = (np.array([draws.integers(photo.shape[0] - HEIGHT), draws.integers(photo.shape[1] - WIDTH)]) for _ in "ab")
        with av.open(str(folder / f"{clip}.mp4"), "w") as out:
            stream = out.add_stream("libx264", rate=24, options={"g": "24", "bf": "3", "crf": "20"})
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            for number in range(FRAMES):
                top, left = np.round(begin + (end - begin) * number / FRAMES).astype(int)
                part = photo[top:top + HEIGHT, left:left + WIDTH]
                noisy = np.clip(part + draws.normal(0, 3, part.shape), 0, 255).astype(np.uint8)
                frame = av.VideoFrame.from_ndarray(noisy, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 24)
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    with open(folder / "clips.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "frames", "interval", "first"])
        for row in range(ROWS):
            rows.writerow([f"{row % CLIPS}.mp4", TAKEN, INTERVAL, draws.integers(FRAMES - (TAKEN - 1) * INTERVAL)])


def tensor(frame, side):
    if not side:
        return torch.from_numpy(frame.to_ndarray(format="rgb24"))
    width = round(side * frame.width / frame.height)  # its short side, then the middle
    pixels = frame.reformat(width, side, "rgb24").to_ndarray()
    return torch.from_numpy(pixels[:, (width - side) // 2:][:, :side])


def sample(folder, path, frames, interval, first, side):
    with av.open(str(folder / path)) as file:
        stream = file.streams.video[0]
        stream.codec_context.thread_type, stream.codec_context.thread_count = "NONE", 1
        of_frame = 1 / (stream.average_rate * stream.time_base)
        wanted, taken = [round((first + i * interval) * of_frame) for i in range(frames)], []
        if first:
            file.seek(wanted[0], stream=stream)
        for frame in file.decode(stream):
            if frame.pts == wanted[len(taken)]:
                taken.append(tensor(frame, side))
                if len(taken) == frames:
                    break
        return torch.stack(taken, 1).permute(3, 1, 0, 2).float().div_(127.5).sub_(1)


def coded(folder, path, frames, interval, first):
    """Coded frames from the key frame before the first wanted one to the last wanted one."""
    with av.open(str(folder / path)) as file:
        packets = [(p.pts, p.is_keyframe) for p in file.demux(video=0) if p.size]
    times = sorted(pts for pts, _ in packets)
    place = [next(i for i, p in enumerate(packets) if p[0] == times[first + n * interval]) for n in range(frames)]
    needed = set()
    for at in place:
        needed.update(range(max(i for i in range(at + 1) if packets[i][1]), at + 1))
    return len(needed)


def read(folder, side, seconds):
    torch.set_num_threads(1)
    with open(folder / "clips.csv", newline="") as file:
        rows = [(row["path"], *(int(row[key]) for key in ("frames", "interval", "first"))) for row in csv.DictReader(file)]
    for row in rows[:8]:
        shape = sample(folder, *row, side).shape
    began, count = time.process_time(), 0
    while time.process_time() - began < seconds:
        torch.stack([sample(folder, *rows[(count + i) % len(rows)], side) for i in range(BATCH)])
        count += BATCH
    took = time.process_time() - began
    print(json.dumps({"rate": count / took, "shape": list(shape), "version": av.__version__,
                      "ffmpeg": ".".join(map(str, av.library_versions["libavcodec"])),
                      "coded": sum(coded(folder, *row) for row in rows) / len(rows)}))


if sys.argv[1] == "make":
    make(pathlib.Path(sys.argv[2]))
else:
    read(pathlib.Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
