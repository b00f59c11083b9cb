"""`ditto init` on shards, on a folder of emoji and on one of 12-megapixel photos: the recipe that it writes trains as it is, within
a tenth of the memory that it says.

Claim (options): The recipe that `ditto init` writes trains as it is, within a tenth of the memory it says: digits, emoji,
photos of 12 megapixels.
"""
import json
import pathlib
import subprocess
import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps
from sklearn.datasets import load_sample_image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

FONT = pathlib.Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
KINDS = {"faces": (0x1F600, 0x1F637), "animals": (0x1F400, 0x1F43E), "food": (0x1F345, 0x1F370), "hands": (0x1F446, 0x1F450)}


def peak_of(words):
    """Bytes at the peak of a process that a small one starts, and what it says."""
    watcher = "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; " \
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
    run = subprocess.run([sys.executable, "-c", watcher, *map(str, words)], capture_output=True, text=True, cwd=t.work, env=t.environment)
    t.equal(run.returncode, 0, f"{words}: {run.stdout}{run.stderr}")
    return 1024 * int(run.stderr.split()[-1])


def try_init(source, name, samples, **expected):
    recipe = t.work / f"{name}.toml"
    said = json.loads(subprocess.run([t.ditto, "init", str(source), "--out", str(recipe), "--json"], capture_output=True, text=True,
                                     cwd=t.work, env=t.environment, check=True).stdout)
    t.equal(said["samples"], samples, "samples to train on")
    text = recipe.read_text()
    for line in expected.pop("lines", []):
        t.check(line in text, f"no {line} in {text}")
    peak = peak_of([t.ditto, "train", recipe, "--set", "run.steps=20", "--set", f"run.output={t.work}/{name}_run"])
    t.check(abs(peak / said["peak_bytes"] - 1) < 0.1, f"{name}: {peak} bytes at the peak, and {said['peak_bytes']} were promised")
    losses = [line["loss"] for line in t.metrics(t.work / f"{name}_run")]
    t.check(len(losses) == 20 and losses[-1] < losses[0], losses)
    print(f"{name}: {said['parameters']} parameters, batch {said['batch']}, {said['step_s']:.2f} s a step, "
          f"{peak / 2**20:.0f} MiB at the peak, {said['peak_bytes'] / 2**20:.0f} promised")


def test_digits():
    try_init(t.digits, "digits", 1621, lines=["size = [8, 8]", "classes = 10", "channels = 1", 'validation_shards = ["'])


def test_emoji():
    if not FONT.exists():
        raise t.NotRun("needs Debian's fonts-noto-color-emoji")
    font = ImageFont.truetype(str(FONT), 109)
    count = 0
    for kind, (first, last) in KINDS.items():
        (t.work / "emoji" / kind).mkdir(parents=True)
        for code in range(first, last):
            picture = Image.new("RGBA", (136, 128))
            ImageDraw.Draw(picture).text((0, 0), chr(code), font=font, embedded_color=True)
            picture.save(t.work / f"emoji/{kind}/{code:x}.png")
            count += 1
    held = max(count // 20, 8)  # of each class a twentieth, rounded down, is fewer
    try_init(t.work / "emoji", "emoji", count - held, lines=["size = [64, 64]", 'plugin = "cfg"', "channels = 3"])
    names = json.loads((t.work / "emoji_shards/classes.json").read_text())
    t.equal(names, sorted(KINDS), "classes")
    t.run("sample", t.work / "emoji_run", "--out", t.work / "drawn", "--classes", "food", "--seeds", "0-1", "--steps", "2")
    t.check(len(list((t.work / "drawn").glob("*.png"))) >= 2, "no pictures of the class \"food\"")


def test_photos_of_12_megapixels():
    rng = np.random.default_rng(0)
    (t.work / "photos").mkdir()
    for number in range(40):  # cut out of scikit-learn's two photographs, enlarged, with a camera's noise
        photo = Image.fromarray(load_sample_image(("china.jpg", "flower.jpg")[number % 2]))
        width = int(rng.integers(200, 560))
        left, top = int(rng.integers(0, photo.width - width)), int(rng.integers(0, photo.height - width * 3 // 4 + 1))
        photo = photo.crop((left, top, left + width, top + width * 3 // 4)).resize((4000, 3000), Image.BICUBIC)
        if number % 3 == 0:
            photo = ImageOps.mirror(photo)
        noise = rng.normal(0, 4, (750, 1000, 3)).round().astype(np.int16)
        pixels = np.clip(np.asarray(photo, np.int16) + np.tile(noise, (4, 4, 1)), 0, 255).astype(np.uint8)
        upright = Image.fromarray(pixels)
        exif = Image.Exif()
        if number % 4 == 0:  # as a camera stores what it saw on its side
            upright, exif[0x0112] = upright.rotate(90, expand=True), 6
        upright.save(t.work / f"photos/{number}.jpg", quality=90, exif=exif)
    try_init(t.work / "photos", "photos", 32, lines=["size = [64, 64]", 'label = "none"'])


t.main(globals())
