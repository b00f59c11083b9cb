#!/usr/bin/env python3
"""Whether samples show what they were asked for: those of data/emoji/make.py's prompts against its pictures, by the L2 distance of pixels.

    ditto sample runs/emoji_text --prompts .deps/emoji/prompts.txt --out samples && python3 data/emoji/judge.py samples

    own_near    share of the prompts that were learned from whose own picture is among the 40 nearest of all
    right_tone  share of the held-out prompts (a base and a skin tone, a pair that no step saw) where of the base's six tones the one asked
                for is nearest

Beside each stand its chance and its 95 % interval (Wilson's); --json FILE keeps them, with how many pictures are nearer to each sample than
its own (one that is as far is not nearer). With --bicubic instead of a folder: the PSNR of the held-out pictures of --data after bicubic
filters made them a fourth as wide, and wide again, which is what an autoencoder to a fourth of the side has to be better than.
"""
import argparse
import json
import math
import multiprocessing
import pathlib
import struct
import sys
import tarfile
import zlib

EMOJI = pathlib.Path(__file__).resolve().parents[2] / ".deps/emoji"
NEAR = 40


class Refused(Exception):
    pass


# --- pictures ----------------------------------------------------------------------------------------------------------------


def pixels_of(data, place):
    """(side, its numbers from -1 to 1, by rows, red, green, blue) of a square PNG as Ditto writes it: 8 bits, RGB."""
    at, packed, side = 8, b"", 0
    while data[:8] == b"\x89PNG\r\n\x1a\n" and at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        at += 12 + size
        if kind == b"IHDR" and struct.unpack(">IIBBBBB", body)[2:] == (8, 2, 0, 0, 0) and body[:4] == body[4:8]:
            side = struct.unpack(">I", body[:4])[0]
        elif kind == b"IDAT":
            packed += body
    if not side:
        raise Refused(f"{place}: no square PNG of 8-bit RGB; expected what ditto sample or data prepare wrote")
    return side, tuple(one / 127.5 - 1 for one in unfilter(zlib.decompress(packed), 3 * side, side, 3))


def paeth(left, up, corner):
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    return left if to_left <= to_up and to_left <= to_corner else up if to_up <= to_corner else corner


GUESSES = {1: lambda left, up, corner: left, 2: lambda left, up, corner: up, 3: lambda left, up, corner: (left + up) // 2, 4: paeth}


def unfilter(raw, row, height, step):
    """The bytes of `height` rows before PNG's filters."""
    out, above = [], bytearray(step + row)
    for y in range(height):
        kind, line = raw[y * (row + 1)], bytearray(step) + raw[y * (row + 1) + 1:(y + 1) * (row + 1)]
        if kind:
            guess = GUESSES[kind]
            for x in range(step, step + row):
                line[x] = (line[x] + guess(line[x - step], above[x], above[x - step])) & 255
        out.append(line[step:])
        above = line
    return b"".join(out)


def pictures_in(shards):
    """{caption: (side, pixels)}"""
    found = {}
    for shard in shards:
        with tarfile.open(shard) as tar:
            parts = {}
            for member in tar:
                key, suffix = member.name.split(".", 1)
                parts.setdefault(key, {})[suffix] = tar.extractfile(member).read() if suffix in ("png", "txt") else b""
        for key, part in parts.items():
            found[part["txt"].decode()] = pixels_of(part["png"], f"{shard}:{key}.png")
    if not found:
        raise Refused("no pictures; make them with data/emoji/make.py")
    return found


def samples_in(folder):
    """[(prompt, side, pixels)] of a folder that `ditto sample --prompts` wrote."""
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return [(line["prompt"], *pixels_of((folder / line["file"]).read_bytes(), folder / line["file"])) for line in lines]


# --- what is measured --------------------------------------------------------------------------------------------------------


def places_nearer(own, sample, pictures):
    """How many of `pictures` are nearer to the sample than its own."""
    mine = math.dist(sample, own)
    return sum(math.dist(sample, other) < mine for other in pictures if other is not own)


def judged(prompt, side, sample):
    """{prompt, what, place}: how many pictures are nearer than the one asked for, of all or of the base's six tones."""
    if prompt not in _pictures:
        raise Refused(f"samples.jsonl: no picture is called \"{prompt}\"; sample make.py's prompts.txt")
    if side != _pictures[prompt][0]:
        raise Refused(f"samples are of {side} pixels, pictures of {_pictures[prompt][0]}; name those of the same side with --data")
    others = _pairs.get(prompt, _pictures)
    place = places_nearer(_pictures[prompt][1], sample, (_pictures[name][1] for name in others))
    return {"prompt": prompt, "what": "right_tone" if prompt in _pairs else "own_near", "place": place}


def interval(hits, count):
    """Wilson's, of 95 %."""
    z, share = 1.959964, hits / count
    middle, half = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return [(middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)]


def summary(prompts, pictures, pairs):
    result = {}
    for what, limit, chance in (("own_near", NEAR, NEAR / pictures), ("right_tone", 1, 1 / max(map(len, pairs.values()), default=1))):
        places = [one["place"] for one in prompts if one["what"] == what]
        if places:
            hits = sum(place < limit for place in places)
            result[what] = {"prompts": len(places), "hits": hits, "share": hits / len(places), "interval": interval(hits, len(places)),
                            "chance": chance}
    return result


def judge(folder, data, pairs):
    global _pictures, _pairs
    samples = samples_in(folder)
    _pictures, _pairs = pictures_in(sorted(data.glob("train/*.tar")) + sorted(data.glob("held_out/*.tar"))), pairs
    with multiprocessing.get_context("fork").Pool() as pool:
        prompts = pool.starmap(judged, samples)
    return summary(prompts, len(_pictures), pairs) | {"places": {one["prompt"]: one["place"] for one in prompts}}


# --- a bar for autoencoders --------------------------------------------------------------------------------------------------


def weights_of(size, to):
    """[[(place, weight)]] of each of `to` numbers made of `size`, Pillow's: Keys' cubic with a = -0.5, as wide as a number that is made."""
    scale = max(1.0, size / to)

    def cubic(x):
        x = abs(x)
        return (1.5 * x - 2.5) * x * x + 1 if x < 1 else ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0.0

    rows = []
    for i in range(to):
        centre = (i + 0.5) * size / to
        places = range(max(0, int(centre - 2 * scale + 0.5)), min(size, int(centre + 2 * scale + 0.5)))
        row = [cubic((place + 0.5 - centre) / scale) for place in places]
        rows.append([(place, one / sum(row)) for place, one in zip(places, row)])
    return rows


def resized(pixels, side, to):
    """Of a square of RGB; not rounded, kept within -1 to 1."""
    weights = weights_of(side, to)
    wide = [[sum(w * pixels[(y * side + x) * 3 + c] for x, w in row) for row in weights for c in range(3)] for y in range(side)]
    return [min(1.0, max(-1.0, sum(w * wide[y][x] for y, w in row))) for row in weights for x in range(3 * to)]


def psnr(squares, count):
    """Of numbers from -1 to 1."""
    return math.inf if squares == 0 else 10 * math.log10(4 * count / squares)


def bicubic(data):
    squares = {}
    for name, (side, pixels) in pictures_in(sorted(data.glob("held_out/*.tar"))).items():
        again = resized(resized(pixels, side, side // 4), side // 4, side)
        squares[name] = math.dist(pixels, again) ** 2
        count = len(pixels)
    values = squares.values()
    mean = sum(psnr(one, count) for one in values) / len(values)
    return {"pictures": len(values), "psnr_of_all": psnr(sum(values), count * len(values)), "mean_psnr": mean}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=pathlib.Path, nargs="?", help="a folder with samples.jsonl")
    parser.add_argument("--data", type=pathlib.Path, help="the pictures (.deps/emoji/32; with --bicubic /64)")
    parser.add_argument("--pairs", type=pathlib.Path, help="make.py's pairs.json (beside --data)")
    parser.add_argument("--bicubic", action="store_true", help="the PSNR of held-out pictures made small and wide again")
    parser.add_argument("--json", type=pathlib.Path, help="write all that was measured to this file")
    asked = parser.parse_args()
    if asked.bicubic == (asked.samples is not None):
        parser.error("name a folder of samples, or --bicubic")
    data = asked.data or EMOJI / ("64" if asked.bicubic else "32")
    try:
        if asked.bicubic:
            result = bicubic(data)
            print("bicubic to a fourth of the side and back, {pictures} held-out pictures: "
                  "PSNR {psnr_of_all:.2f} dB of all pixels, {mean_psnr:.2f} dB in the mean".format(**result))
        else:
            result = judge(asked.samples, data, json.loads((asked.pairs or data.parent / "pairs.json").read_text()))
            for what in sorted(result.keys() - {"places"}):
                print("{}: {share:.1%} ({hits} of {prompts}; 95 % within {:.1%} to {:.1%}), by chance {chance:.1%}".format(
                    what, *result[what]["interval"], **result[what]))
    except (Refused, OSError, KeyError) as why:
        sys.exit(f"judge.py: {why}")
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
