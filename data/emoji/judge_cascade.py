#!/usr/bin/env python3
"""Whether the last stage of configs/emoji_cascade enlarges what it is given: its samples of held-out emoji against data/emoji/make.py's pictures.

    judge_cascade.py prepare FOLDER                             what to sample: prompts, and small pictures of 32 pixels, in FOLDER
    ditto sample runs/emoji_cascade/sr64 --prompts FOLDER/own.txt --condition FOLDER/own.safetensors --out own
    ditto sample runs/emoji_cascade/sr64 --prompts FOLDER/other.txt --condition FOLDER/other.safetensors --out other
    judge_cascade.py judge own other                            the figures; exit code 1 where one misses its floor

    gain        PSNR of the mean of a picture's samples (8), less that of its small picture enlarged by bicubic filters:
                at least 0.5 dB
    small       a sample made small again, less what it was given, in the mean of absolutes on -1 to 1: at most 0.05 of each
    obeys       of samples with the small picture of another prompt: PSNR against that one enlarged, less that against the small picture of
                their own prompt enlarged: at least 6 dB

A small picture is a held-out one's, made by antialiased bicubic filters (a = -0.5); enlarged it is by those of Imagen's networks (a = -0.75), and the
bar of `gain` is the better of these and Pillow's (a = -0.5), picture by picture. With --stages FOLDER … the folders of a
cascade's stages (`ditto sample CASCADE --all`): how far each stage's pictures, made small again, are from those of the stage before; that has
no floor.
"""
import argparse
import array
import json
import multiprocessing
import pathlib
import struct
import sys

import judge

SAMPLES, GAIN, SMALL, OBEYS = 8, 0.5, 0.05, 6.0


# --- what is sampled -----------------------------------------------------------------------------------------------------------


def held_out(data):
    """[(prompt, pixels)] of pictures of one side, by prompt, and the side."""
    pictures = judge.pictures_in(sorted(data.glob("held_out/*.tar")))
    sides = {side for side, _ in pictures.values()}
    if len(sides) != 1 or min(sides) % 2:
        raise judge.Refused(f"{data}/held_out: pictures have the sides {sorted(sides)}; expected one, an even number of pixels")
    return [(prompt, pictures[prompt][1]) for prompt in sorted(pictures)], sides.pop()


def write_pictures(file, name, pictures, side):
    """Safetensors: one tensor [N, 3, side, side] of -1 to 1, of pixels by rows."""
    numbers = array.array("f")
    for pixels in pictures:
        for channel in range(3):
            numbers.extend(pixels[channel::3])
    if sys.byteorder != "little":
        numbers.byteswap()
    told = {name: {"dtype": "F32", "shape": [len(pictures), 3, side, side], "data_offsets": [0, 4 * len(numbers)]}}
    head = json.dumps(told, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    file.write_bytes(struct.pack("<Q", len(head)) + head + numbers.tobytes())


def prepare(data, folder, name, count):
    pictures, side = held_out(data)
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [prompt for prompt, _ in pictures]
    small = [judge.resized(pixels, side, side // 2) for _, pixels in pictures]
    lists = {"own": (prompts, small, count), "other": (prompts, small[1:] + small[:1], 1)}
    for which, (texts, lows, times) in lists.items():
        (folder / f"{which}.txt").write_text("".join(text + "\n" for text in texts for _ in range(times)))
        write_pictures(folder / f"{which}.safetensors", name, [low for low in lows for _ in range(times)], side // 2)
    print(f"{folder}: {len(prompts)} held-out prompts, {count} samples of each, and one of each with another one's small picture")


# --- filters -------------------------------------------------------------------------------------------------------------------


def doubled(pixels, side):
    """Of a square of RGB, as torch.nn.functional.interpolate enlarges by `bicubic` and Imagen's networks do: Keys' cubic with a = -0.75."""
    rows = []
    for i in range(2 * side):
        first, near = (i - 1) // 2, (0.25, 0.75)[i % 2 == 0]  # two places on either side of (i + 0.5) / 2 - 0.5
        weights = [cubic(one) for one in (near + 1, near, 1 - near, 2 - near)]
        rows.append([(min(side - 1, max(0, first + k - 1)), weights[k]) for k in range(4)])
    wide = [[sum(w * pixels[(y * side + x) * 3 + c] for x, w in row) for row in rows for c in range(3)] for y in range(side)]
    return [min(1.0, max(-1.0, sum(w * wide[y][x] for y, w in row))) for row in rows for x in range(6 * side)]


def cubic(x, a=-0.75):
    return ((a + 2) * x - (a + 3)) * x * x + 1 if x < 1 else ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


# --- what is measured ----------------------------------------------------------------------------------------------------------


def by_prompt(folder, side):
    """{prompt: [pixels]} of samples of that side."""
    found = {}
    for prompt, its_side, pixels in judge.samples_in(folder):
        if its_side != side:
            raise judge.Refused(f"{folder}: a sample of \"{prompt}\" has a side of {its_side} pixels, and pictures one of {side}")
        found.setdefault(prompt, []).append(pixels)
    return found


def apart(a, b):
    """Mean of absolutes."""
    return sum(abs(x - y) for x, y in zip(a, b)) / len(a)


def psnr(a, b):
    return judge.psnr(judge.math.dist(a, b) ** 2, len(a))


def measured(prompt, side, picture, samples, other, small_of_other):
    """Of one prompt."""
    small = judge.resized(picture, side, side // 2)
    enlarged, others = doubled(small, side // 2), doubled(small_of_other, side // 2)
    mean = [sum(numbers) / len(numbers) for numbers in zip(*samples)]
    return {"prompt": prompt, "bicubic": psnr(enlarged, picture), "softer": psnr(judge.resized(small, side // 2, side), picture),
            "mean_of_samples": psnr(mean, picture),
            "one_sample": sum(psnr(one, picture) for one in samples) / len(samples),
            "small": [apart(judge.resized(one, side, side // 2), small) for one in samples],
            "other_small": apart(judge.resized(other, side, side // 2), small_of_other),
            "obeys": psnr(other, others) - psnr(other, enlarged)}


def mean_of(values):
    values = list(values)
    return sum(values) / len(values)


def figures(own, other, data, count):
    pictures, side = held_out(data)
    ours, theirs = by_prompt(own, side), by_prompt(other, side)
    work = []
    for number, (prompt, picture) in enumerate(pictures):
        found = len(ours.get(prompt, [])), len(theirs.get(prompt, []))
        if found != (count, 1):
            raise judge.Refused(f"{own} and {other} have {found[0]} and {found[1]} samples of \"{prompt}\"; expected {count} and 1: "
                                "sample what `judge_cascade.py prepare` wrote")
        after = pictures[(number + 1) % len(pictures)][1]
        work.append((prompt, side, picture, ours[prompt], theirs[prompt][0], judge.resized(after, side, side // 2)))
    with multiprocessing.get_context("fork").Pool() as pool:
        prompts = pool.starmap(measured, work)
    small = [one for row in prompts for one in row["small"]]
    obeys = [row["obeys"] for row in prompts]
    return {"pictures": len(prompts), "samples_of_each": count,
            "bicubic": mean_of(row["bicubic"] for row in prompts), "softer": mean_of(row["softer"] for row in prompts),
            "mean_of_samples": mean_of(row["mean_of_samples"] for row in prompts),
            "one_sample": mean_of(row["one_sample"] for row in prompts),
            "gain": mean_of(row["mean_of_samples"] - max(row["bicubic"], row["softer"]) for row in prompts),
            "gains": sum(row["mean_of_samples"] > max(row["bicubic"], row["softer"]) for row in prompts),
            "small": {"mean": mean_of(small), "largest": max(small), "above": sum(one > SMALL for one in small), "of": len(small)},
            "obeys": {"mean": mean_of(obeys), "least": min(obeys), "below": sum(one < OBEYS for one in obeys), "of": len(obeys)},
            "prompts": prompts}


def said(result):
    """[(whether it holds, None where it has no floor; a line)]"""
    small, obeys = result["small"], result["obeys"]
    yield None, (f"PSNR of {result['pictures']} held-out pictures, in the mean: {result['bicubic']:.2f} dB enlarged by bicubic "
                 f"filters ({result['softer']:.2f} by softer ones), "
                 f"{result['mean_of_samples']:.2f} dB the mean of {result['samples_of_each']} samples, {result['one_sample']:.2f} dB one sample")
    yield result["gain"] >= GAIN, (f"gain: {result['gain']:+.2f} dB over bicubic filters (floor {GAIN}), more than 0 of {result['gains']} "
                                   f"of {result['pictures']}")
    yield small["largest"] <= SMALL, (f"small: made small again {small['mean']:.4f} from what was given in the mean, {small['largest']:.4f} at "
                                      f"most (bound {SMALL}, passed by {small['above']} of {small['of']})")
    yield obeys["mean"] >= OBEYS, (f"obeys: with another's small picture {obeys['mean']:+.2f} dB nearer to that one in the mean (floor {OBEYS}), "
                                   f"{obeys['least']:+.2f} dB at least, {obeys['below']} of {obeys['of']} below it")


def of_stages(folders):
    """Of each stage but the first, how far its pictures are from those before it once they are as small."""
    stages = [judge.samples_in(folder) for folder in folders]
    for before, after, folder in zip(stages, stages[1:], folders[1:]):
        if [one[0] for one in before] != [one[0] for one in after]:
            raise judge.Refused(f"{folder}: its prompts are not those of the stage before it")
        values = [apart(judge.resized(big, side, small_side), small) for (_, small_side, small), (_, side, big) in zip(before, after)]
        yield {"folder": str(folder), "from": before[0][1], "to": after[0][1], "mean": mean_of(values), "largest": max(values)}


def report(asked):
    result = figures(asked.own, asked.other, asked.data, asked.count)
    result["stages"] = list(of_stages(asked.stages))
    lines = list(said(result))
    for holds, line in lines:
        print({True: "holds   ", False: "MISSED  ", None: "        "}[holds] + line)
    for one in result["stages"]:
        print("        the cascade's {from} -> {to}: made small again {mean:.4f} from the stage before in the mean, "
              "{largest:.4f} at most".format(**one))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    missed = sum(holds is False for holds, _ in lines)
    if missed:
        sys.exit(f"judge_cascade.py: {missed} of {sum(holds is not None for holds, _ in lines)} floors are missed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=judge.EMOJI / "64", help="make.py's pictures (.deps/emoji/64)")
    parser.add_argument("--count", type=int, default=SAMPLES, help=f"samples of each picture ({SAMPLES})")
    what = parser.add_subparsers(dest="what", required=True)
    first = what.add_parser("prepare", help="write what is to be sampled")
    first.add_argument("folder", type=pathlib.Path)
    first.add_argument("--name", default="low", help="of the small picture's tensor (low)")
    then = what.add_parser("judge", help="measure what was sampled")
    then.add_argument("own", type=pathlib.Path, help="samples of own.txt")
    then.add_argument("other", type=pathlib.Path, help="samples of other.txt")
    then.add_argument("--stages", type=pathlib.Path, nargs="+", default=[], help="folders of a cascade's stages, the first one first")
    then.add_argument("--json", type=pathlib.Path, help="write all that was measured to this file")
    asked = parser.parse_args()
    try:
        if asked.what == "prepare":
            prepare(asked.data, asked.folder, asked.name, asked.count)
        else:
            report(asked)
    except (judge.Refused, OSError, KeyError, ValueError) as refused:
        sys.exit(f"judge_cascade.py: {refused}")


if __name__ == "__main__":
    main()
