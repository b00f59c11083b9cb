"""A transformer that enlarges: configs/digits_sr.toml, whole.

Claim (sampling): `dit` learns super-resolution from the same encoder as Imagen's networks: of the 176 held-out digits the mean of
8 samples of 4 to 8 pixels is above bicubic enlargement by 1 dB of PSNR, and a sample obeys the small picture that it is given.
"""

import math
import pathlib
import sys
import tarfile
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

SIDE, SAMPLES = 8, 8


def held_out():
    """[(class, pixels)] of -1 to 1."""
    digits = {}
    with tarfile.open(t.source / "data/digits/validation-000000.tar") as tar, tempfile.TemporaryDirectory() as folder:
        for member in tar:
            name, kind = member.name.split(".")
            data = tar.extractfile(member).read()
            if kind == "png":
                file = pathlib.Path(folder) / member.name
                file.write_bytes(data)
                data = [2 * byte / 255 - 1 for byte in t.read_png(file)[3]]
            digits.setdefault(name, {})[kind] = data
    return [(int(one["cls"]), one["png"]) for _, one in sorted(digits.items())]


def small(pixels):
    """The mean of each four."""
    return [sum(pixels[(2 * y + i) * SIDE + 2 * x + j] for i in (0, 1) for j in (0, 1)) / 4
            for y in range(SIDE // 2) for x in range(SIDE // 2)]


def cubic(x, a):
    return ((a + 2) * x - (a + 3)) * x * x + 1 if x < 1 else ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def enlarged(pixels, a):
    """By cubic convolution: a = -0.75 as LibTorch has it, -0.5 as Pillow."""
    half, rows = SIDE // 2, []
    for i in range(SIDE):
        first, near = (i - 1) // 2, (0.25, 0.75)[i % 2 == 0]
        weights = [cubic(one, a) for one in (near + 1, near, 1 - near, 2 - near)]
        rows.append([(min(half - 1, max(0, first + k - 1)), weights[k]) for k in range(4)])
    wide = [[sum(w * pixels[y * half + x] for x, w in row) for row in rows] for y in range(half)]
    return [min(1.0, max(-1.0, sum(w * wide[y][x] for y, w in row))) for row in rows for x in range(SIDE)]


def psnr(a, b):
    return 10 * math.log10(4 / max(1e-12, sum((x - y) ** 2 for x, y in zip(a, b)) / len(a)))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def drawn(name, digits, lows, times):
    """Of each digit `times` samples' pixels."""
    flat = [number for low in lows for _ in range(times) for number in low]
    labels = [label for label, _ in digits for _ in range(times)]
    file = t.work / f"{name}.safetensors"
    t.write_tensors(file, {"low": ("F32", [len(labels), 1, SIDE // 2, SIDE // 2], flat), "label": ("I64", [len(labels)], labels)})
    t.run("sample", t.work / "run", "--condition", file, "--out", t.work / name, "--pass", f"made={t.work / name}-made.safetensors", timeout=600)
    made = t.numbers(t.read_tensors(t.work / f"{name}-made.safetensors")["made"])
    size = SIDE * SIDE
    return [[made[(i * times + k) * size:(i * times + k + 1) * size] for k in range(times)] for i in range(len(digits))]


def test_a_transformer_that_sees_a_small_picture_enlarges_it_better_than_bicubic():
    t.train(t.source / "configs/digits_sr.toml", "run", timeout=1800)
    digits = held_out()
    lows = [small(pixels) for _, pixels in digits]
    own = drawn("own", digits, lows, SAMPLES)
    means = [[mean(numbers) for numbers in zip(*samples)] for samples in own]
    bar = mean(max(psnr(enlarged(low, a), pixels) for a in (-0.75, -0.5)) for low, (_, pixels) in zip(lows, digits))
    gained = mean(psnr(one, pixels) for one, (_, pixels) in zip(means, digits))
    print(f"bicubic {bar:.2f} dB, the mean of {SAMPLES} samples {gained:.2f} dB", flush=True)
    t.check(gained > bar + 1, f"bicubic has {bar:.2f} dB, and the mean of samples {gained:.2f}")
    others = lows[1:] + lows[:1]
    other = [small(one[0]) for one in drawn("other", digits, others, 1)]
    near, far = (mean(abs(x - y) for low, one in zip(given, other) for x, y in zip(low, one)) for given in (others, lows))
    print(f"made small again, a sample of another's small picture is {near:.3f} from that one, and {far:.3f} from its own", flush=True)
    t.check(near < 0.1 and far > 3 * near, f"with another's small picture a sample, made small again, is {near:.3f} from that one")


if __name__ == "__main__":
    t.main(globals())
