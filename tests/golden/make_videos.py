#!/usr/bin/env python3
"""Tiny videos coded by PyAV (its own FFmpeg, of another version than Debian's), and what PyAV reads out of them again: for each file its
frames as RGB, and how many coded frames have to be decoded for some choices of frames.

    python3 -m venv av && av/bin/pip install av==18.1.0 numpy==2.4.6 safetensors==0.8.0
    av/bin/python tests/golden/make_videos.py      writes tests/golden/videos/*

A frame's brightness says its number (neighbours differ much), its colours are smooth. RGB is computed here from the decoded planes by
the matrices of BT.601 and BT.709, in double precision, with chroma interpolated; swscale has no part in it.
"""
import json
import math
import pathlib
import struct
from fractions import Fraction

import av
import numpy as np
from safetensors.numpy import save_file

INTO = pathlib.Path(__file__).resolve().parent / "videos"
HEIGHT, WIDTH, FRAMES, GOP = 24, 32, 24, 8
X264 = {"g": str(GOP), "bf": "3", "crf": "12", "sc_threshold": "0"}
READS = [(0, 1, 1), (5, 1, 1), (8, 1, 1), (15, 1, 1), (23, 1, 1), (0, 24, 1), (0, 3, 9), (6, 4, 1), (3, 2, 2), (1, 3, 8), (9, 2, 7)]
# name: codec, pixel format, full range, matrix, codec's options, container's options
CLIPS = {
    "h264.mp4": ("libx264", "yuv420p", False, "bt709", X264, {}),
    "h264_open.mp4": ("libx264", "yuv420p", False, "bt601", {**X264, "x264-params": "open-gop=1:keyint=8:min-keyint=8:bframes=3:b-adapt=0:scenecut=0"}, {}),
    "h264_fragments.mp4": ("libx264", "yuv420p", False, "bt709", X264, {"movflags": "frag_keyframe+empty_moov"}),
    "h264_turned.mp4": ("libx264", "yuv444p", True, "bt709", X264, {}),
    "hevc_10bit.mp4": ("libx265", "yuv420p10le", False, "bt709", {"x265-params": "keyint=8:min-keyint=8:bframes=3:open-gop=0:scenecut=0:log-level=none:crf=12"}, {}),
    "vp8_hidden.webm": ("libvpx", "yuv420p", False, "bt601", {"g": str(GOP), "auto-alt-ref": "1", "lag-in-frames": "8", "b": "400k"}, {}),
    "vp9.webm": ("libvpx-vp9", "yuv420p", False, "bt709", {"g": str(GOP), "auto-alt-ref": "1", "lag-in-frames": "12", "b": "400k"}, {}),
    "av1.mkv": ("libsvtav1", "yuv420p", False, "bt709", {"g": str(GOP), "preset": "8", "crf": "15"}, {}),
    "mpeg4.avi": ("mpeg4", "yuv420p", False, "bt601", {"g": str(GOP), "b": "1M", "sc_threshold": "1000000000"}, {}),
    "mpeg2.ts": ("mpeg2video", "yuv420p", False, "bt601", {"g": str(GOP), "bf": "2", "b": "2M", "sc_threshold": "1000000000"}, {}),
}


def planes(number, chroma, depth):
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    light = 50 + 6 * (number * 11 % FRAMES) + 30 * x / WIDTH
    cy, cx = (HEIGHT, WIDTH) if chroma == 1 else (HEIGHT // 2, WIDTH // 2)
    y, x = np.mgrid[0:cy, 0:cx]
    u = 128 + 30 * math.sin(number) + 20 * y / cy
    v = 128 + 30 * math.cos(number) - 20 * x / cx
    return [np.round(plane * 2 ** (depth - 8)).astype(np.uint16 if depth > 8 else np.uint8) for plane in (light, u, v)]


def write(path, codec, pixels, full, matrix, options, container_options, frames=FRAMES):
    with av.open(str(path), "w", options=container_options) as out:
        stream = out.add_stream(codec, rate=12, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pixels
        context = stream.codec_context
        context.color_range = 2 if full else 1
        context.colorspace = 1 if matrix == "bt709" else 6
        context.thread_count = 1
        out.start_encoding()  # also of no frames
        for number in range(frames):
            frame = av.VideoFrame(WIDTH, HEIGHT, pixels)
            for plane, values in zip(frame.planes, planes(number, 1 if "444" in pixels else 2, 10 if "10" in pixels else 8)):
                row = np.zeros((values.shape[0], plane.line_size), np.uint8)
                row[:, : values.shape[1] * values.itemsize] = values.view(np.uint8).reshape(values.shape[0], -1)
                plane.update(row.tobytes())
            frame.pts, frame.time_base = number, Fraction(1, 12)
            frame.color_range, frame.colorspace = context.color_range, context.colorspace
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    if "turned" in path.name:  # by a quarter, clockwise: in the track's header
        data = bytearray(path.read_bytes())
        at = data.index(b"tkhd") + 4 + 40
        assert struct.unpack_from(">9i", data, at) == (65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
        struct.pack_into(">9i", data, at, 0, 65536, 0, -65536, 0, 0, HEIGHT << 16, 0, 1 << 30)
        path.write_bytes(data)


def upsample(plane):  # to twice the rows and columns: chroma lies between rows, and on every other column
    rows = np.empty((2 * plane.shape[0], plane.shape[1]))
    above, below = np.vstack([plane[:1], plane[:-1]]), np.vstack([plane[1:], plane[-1:]])
    rows[0::2], rows[1::2] = 0.75 * plane + 0.25 * above, 0.75 * plane + 0.25 * below
    out = np.empty((rows.shape[0], 2 * rows.shape[1]))
    right = np.hstack([rows[:, 1:], rows[:, -1:]])
    out[:, 0::2], out[:, 1::2] = rows, 0.5 * (rows + right)
    return out


def rgb(frame, full, matrix):
    depth = 10 if "10" in frame.format.name else 8
    read = []
    for plane in frame.planes:
        values = np.frombuffer(plane, np.uint16 if depth > 8 else np.uint8).reshape(plane.height, -1)[:, : plane.width]
        read.append(values.astype(float) / 2 ** (depth - 8))
    light, u, v = read
    if u.shape != light.shape:
        u, v = upsample(u), upsample(v)
    if not full:
        light, u, v = (light - 16) * 255 / 219, (u - 128) * 255 / 224, (v - 128) * 255 / 224
    else:
        u, v = u - 128, v - 128
    red, blue = (0.2126, 0.0722) if matrix == "bt709" else (0.299, 0.114)
    green = 1 - red - blue
    r, b = light + 2 * (1 - red) * v, light + 2 * (1 - blue) * u
    g = (light - red * r - blue * b) / green
    return np.clip(np.round(np.stack([r, g, b], -1)), 0, 255).astype(np.uint8)


def coded_frames(packets, times, wanted):
    """From the key frame before each wanted one, in the order of decoding, up to it; what two of them need counts once."""
    needed = set()
    for number in wanted:
        at = next(i for i, packet in enumerate(packets) if packet["pts"] == times[number])
        key = max(i for i in range(at + 1) if packets[i]["key"])
        if packets[key]["pts"] > times[number]:  # shown before its key frame: it depends on the run before, too
            key = max(i for i in range(key) if packets[i]["key"])
        needed.update(range(key, at + 1))
    return len(needed)


def main():
    INTO.mkdir(exist_ok=True)
    notes, tensors = {}, {}
    for name, (codec, pixels, full, matrix, options, container_options) in CLIPS.items():
        path = INTO / name
        write(path, codec, pixels, full, matrix, options, container_options)
        with av.open(str(path)) as file:
            frames = [rgb(frame, full, matrix) for frame in file.decode(video=0)]
        with av.open(str(path)) as file:
            packets = [{"pts": p.pts, "key": p.is_keyframe} for p in file.demux(video=0) if p.size]
        assert len(frames) == FRAMES, (name, len(frames))
        if "turned" in name:
            frames = [np.rot90(frame, -1) for frame in frames]
        note = {"frames": len(frames), "bytes": path.stat().st_size, "keys": sum(p["key"] for p in packets)}
        times = sorted(p["pts"] for p in packets if p["pts"] is not None)
        if len(times) == FRAMES == len(set(times)):
            note["reads"] = [[*read, coded_frames(packets, times, range(read[0], read[0] + read[1] * read[2], read[2]))] for read in READS]
        notes[name] = note
        tensors[name] = np.ascontiguousarray(np.stack(frames))
        print(name, note)
    write(INTO / "no_frames.mp4", "mpeg4", "yuv420p", False, "bt601", {}, {}, frames=0)
    (INTO / "videos.json").write_text(json.dumps(notes, indent=1) + "\n")
    save_file(tensors, INTO / "videos.safetensors")


main()
