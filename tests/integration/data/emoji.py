"""data/emoji: a font's pictures get the names that CLDR has for them, what is held out is pairs of a base and a skin tone that no step sees, and
samples are judged by which pictures they are nearest to. With made-up pictures and names, and without the packages that the real ones are in.
"""

import importlib.util
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import types
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def script(name):
    spec = importlib.util.spec_from_file_location(f"emoji_{name}", t.source / f"data/emoji/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make, judge = script("make"), script("judge")
TONES = "light medium-light medium medium-dark dark".split()
NAMES = {"\U0001F34E": "red apple", "\U0001F34F": "green apple", "\U0001F680": "rocket", "\U0001F468": "man", "\U0001F44D": "thumbs up"}
SIDE = 8


# --- a font and a table of names -------------------------------------------------------------------------------------------------


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, colour, rows):
    """8 bits a number; `rows` with the filters in front."""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)) + \
        chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def plain(red, green, blue, opacity=255):
    """Wider than high, as those of the font are."""
    return png(16, 8, 6, (b"\0" + bytes([red, green, blue, opacity]) * 16) * 8)


def of_rgb(side, numbers):
    return png(side, side, 2, b"".join(b"\0" + bytes(numbers[y * 3 * side:(y + 1) * 3 * side]) for y in range(side)))


def names_with_tones():
    """Of thumbs and men all tones, of people with a rocket all but one."""
    names = dict(NAMES)
    for tone, name in zip(make.TONES, TONES):
        names["\U0001F44D" + tone] = f"thumbs up: {name} skin tone"
        names["\U0001F468" + tone] = f"man: {name} skin tone"
        names["\U0001F468" + tone + "\u200d\U0001F680"] = f"man astronaut: {name} skin tone"
    names["\U0001F468\u200d\U0001F680"] = "man astronaut"
    return names


def font_of(pictures, extension=False):
    """{emoji: bytes of a PNG} as fontTools shows a font that has them: ligatures of glyphs that are called by characters, perhaps in an extension."""
    characters = {ord(one): f"u{ord(one):x}" for emoji in pictures for one in emoji}
    ligatures, strike = {}, {}
    for emoji, picture in pictures.items():
        glyphs = [characters[ord(one)] for one in emoji]
        if len(glyphs) > 1:
            ligatures.setdefault(glyphs[0], []).append(types.SimpleNamespace(Component=glyphs[1:], LigGlyph="_".join(glyphs)))
        strike["_".join(glyphs)] = types.SimpleNamespace(imageData=bytearray(picture))
    table = types.SimpleNamespace(ligatures=ligatures)
    other = types.SimpleNamespace(mapping={})
    lookups = [types.SimpleNamespace(SubTable=[other]), types.SimpleNamespace(SubTable=[types.SimpleNamespace(ExtSubTable=table) if extension else table])]
    gsub = types.SimpleNamespace(table=types.SimpleNamespace(LookupList=types.SimpleNamespace(Lookup=lookups)))

    class Font(dict):
        def getBestCmap(self):
            return characters
    return Font(GSUB=gsub, CBDT=types.SimpleNamespace(strikeData=[strike]))


def coloured(names, seed=1):
    draw = random.Random(seed)
    return {emoji: plain(*(draw.randrange(256) for _ in range(3))) for emoji in names}


def write_names(file, names):
    text = "".join(f'<annotation cp="{emoji}">a | b</annotation><annotation cp="{emoji}" type="tts">{name}</annotation>' for emoji, name in names.items())
    file.write_text(f"<ldml><annotations>{text}</annotations></ldml>")
    return file


def test_pictures_have_the_names_of_their_characters():
    names = names_with_tones()
    half = len(names) // 2
    files = [write_names(t.work / f"{i}.xml", dict(part)) for i, part in enumerate((list(names.items())[:half], list(names.items())[half:]))]
    t.equal(make.names_in(files), names, "names of two files")
    pictures = coloured(names)
    for extension in (False, True):
        found = make.pictures_in(font_of(pictures | {"\U0001F4A9": plain(1, 2, 3)}, extension), names | {"\U0001F99C": "parrot", "\U0001F34E\U0001F680": "no ligature"})
        t.equal(found, {name: (emoji, pictures[emoji]) for emoji, name in names.items()}, "pictures by name")
    selected = make.pictures_in(font_of({"\u2764": plain(200, 0, 0)}), {"\u2764\ufe0f": "red heart"})
    t.equal(list(selected), ["red heart"], "a name whose characters select a picture")


def test_what_is_held_out_are_bases_in_one_of_six_tones():
    names = names_with_tones()
    pictures = make.pictures_in(font_of(coloured(names)), names)
    families = sorted(family[0] for family in make.families_of(pictures))
    t.equal(families, ["man", "man astronaut", "thumbs up"], "bases in six tones")
    t.equal(make.families_of({name: one for name, one in pictures.items() if name != "man: dark skin tone"})[0][0], "thumbs up", "the bases without one tone")
    alike = pictures | {"man: dark skin tone": ("\U0001F468" + make.TONES[4], pictures["man"][1])}
    t.equal(sorted(family[0] for family in make.families_of(alike)), ["man astronaut", "thumbs up"], "bases whose tones can be told")
    pairs = make.pairs_of(pictures, 3)
    t.equal([len(family) for family in pairs.values()], [6] * 3, "tones of a base")
    t.check(all(name in family[1:] for name, family in pairs.items()), pairs)
    t.equal(len({family.index(name) for name, family in pairs.items()}), 3, "different tones of three")
    t.equal(make.pairs_of(dict(reversed(pictures.items())), 3), pairs, "pairs of the same pictures in another order")


def test_shuffled_captions_are_others_and_all_of_them():
    names = [f"name {i}" for i in range(100)]
    others = make.shuffled(names)
    t.equal((sorted(others), sorted(others.values())), (sorted(names), sorted(names)), "names")
    t.check(all(name != other for name, other in others.items()), "a picture has kept its name")
    t.equal(make.shuffled(names[::-1]), others, "the same names in another order")


# --- shards, and what is judged by them --------------------------------------------------------------------------------------------


def made():
    """make.py's folder of the tiny font; {name: colour of the picture}."""
    into = t.work / "emoji"
    names = names_with_tones()
    if not into.exists():
        make.make(make.pictures_in(font_of(coloured(names) | {"\U0001F680": plain(0, 0, 200, 128)}), names), SIDE, t.ditto, into, True)
    return into, names


def read(into, part):
    return judge.pictures_in(sorted((into / str(SIDE) / part).glob("*.tar")))


def test_shards_hold_the_pictures_on_white_under_their_names():
    into, names = made()
    train, held_out, mixed = (read(into, part) for part in ("train", "held_out", "shuffled"))
    pairs = json.loads((into / "pairs.json").read_text())
    t.equal(set(held_out), set(pairs), "what is held out")
    t.equal(set(train), set(names.values()) - set(pairs), "what is learned from")
    t.equal({name: mixed[other] for name, other in make.shuffled(train).items()}, train, "pictures of the names that they were given")
    side, pixels = train["rocket"]
    t.equal(side, SIDE, "side")
    middle = pixels[(SIDE // 2 * SIDE + SIDE // 2) * 3:][:3]
    t.check(all(abs(found - (expected / 127.5 - 1)) < 0.01 for found, expected in zip(middle, (127, 127, 227))), f"half of blue on white is {middle}")
    t.equal((pixels[:3], pixels[-3:]), ((1, 1, 1), (1, 1, 1)), "corners, beside the picture")
    prompts = (into / "prompts.txt").read_text().splitlines()
    t.equal((sorted(prompts[:-len(pairs)]), prompts[-len(pairs):]), (sorted(train), list(pairs)), "prompts")


def write_samples(name, samples):
    """{prompt: (side, numbers from -1 to 1)}"""
    folder = t.work / name
    folder.mkdir()
    with open(folder / "samples.jsonl", "w") as lines:
        for i, (prompt, (side, pixels)) in enumerate(samples.items()):
            (folder / f"{i:06}.png").write_bytes(of_rgb(side, [round((one + 1) * 127.5) for one in pixels]))
            lines.write(json.dumps({"file": f"{i:06}.png", "prompt": prompt, "seed": i}) + "\n")
    return folder


def judged(folder, into, *words, code=0):
    done = subprocess.run([sys.executable, t.source / "data/emoji/judge.py", folder, "--data", into / str(SIDE), *words], capture_output=True, text=True)
    t.equal(done.returncode, code, f"exit code: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def test_samples_are_held_against_all_pictures_and_against_the_bases_tones():
    into, _ = made()
    pairs = json.loads((into / "pairs.json").read_text())
    pictures = read(into, "train") | read(into, "held_out")
    judged(write_samples("true", pictures), into, "--json", t.work / "true.json")
    result = json.loads((t.work / "true.json").read_text())
    t.equal((result["right_tone"]["share"], result["own_near"]["share"], set(result["places"].values())), (1, 1, {0}), "shares of true pictures")
    t.equal((result["own_near"]["prompts"], result["right_tone"]["prompts"]), (len(pictures) - len(pairs), len(pairs)), "prompts")
    t.check(abs(result["own_near"]["chance"] - 40 / len(pictures)) < 1e-12 and abs(result["right_tone"]["chance"] - 1 / 6) < 1e-12, result)
    # Each held-out name shows another tone of its base.
    wrong = {name: pictures[family[0]] for name, family in pairs.items()}
    said = judged(write_samples("wrong", wrong | {"rocket": pictures["red apple"]}), into, "--json", t.work / "wrong.json")
    result = json.loads((t.work / "wrong.json").read_text())
    t.check(f"right_tone: 0.0% (0 of {len(pairs)};" in said, said)
    sample, own = pictures["red apple"][1], pictures["rocket"][1]
    t.equal(result["places"]["rocket"], sum(math.dist(sample, one) < math.dist(sample, own) for _, one in pictures.values()), "pictures nearer than its own")
    t.check(0 < result["places"]["rocket"] < len(pictures), result["places"])


def test_what_cannot_be_judged_is_said():
    into, _ = made()
    t.check('no picture is called "a cow"' in judged(write_samples("cow", {"a cow": read(into, "train")["rocket"]}), into, code=1), "another prompt")
    t.check("samples are of 4 pixels, pictures of 8" in judged(write_samples("small", {"rocket": (4, [0.0] * 48)}), into, code=1), "another side")
    t.check("samples.jsonl" in judged(t.work / "nowhere", into, code=1), "no samples")
    grey = write_samples("grey", {"rocket": (4, [0.0] * 48)})
    (grey / "000000.png").write_bytes(png(4, 4, 0, b"\0\0\0\0\0" * 4))
    t.check("no square PNG of 8-bit RGB" in judged(grey, into, code=1), "a grey PNG")


def test_shares_have_wilsons_intervals():
    low, high = judge.interval(0, 50)
    t.check(low == 0 and abs(high - 0.0713) < 1e-4, (low, high))
    low, high = judge.interval(20, 50)
    t.check(abs(low - 0.2761) < 1e-4 and abs(high - 0.5382) < 1e-4, (low, high))


# --- pictures ----------------------------------------------------------------------------------------------------------------


def test_every_filter_of_png_is_read():
    draw = random.Random(3)
    rows, numbers, above = b"", [], [0] * 30
    for y in range(10):
        line = [draw.randrange(256) for _ in range(30)]
        for x in range(30):
            left, up, corner = (line[x - 3] if x > 2 else 0), above[x], (above[x - 3] if x > 2 else 0)
            paeth = min((left, up, corner), key=lambda one: abs(left + up - corner - one))
            numbers.append(line[x])
            filtered = line[x] - (0, left, up, (left + up) // 2, paeth)[y % 5]
            rows += (bytes([y % 5]) if x == 0 else b"") + bytes([filtered & 255])
        above = line
    side, pixels = judge.pixels_of(png(10, 10, 2, rows), "here")
    t.equal((side, [round((one + 1) * 127.5) for one in pixels]), (10, numbers), "pixels")


def test_bicubic_filters_are_pillows():
    """What Pillow 13.0.0 makes of 8 x 8 numbers (its mode F): 2 x 2, and of these the third row of 8 x 8."""
    numbers = [((7 * x + 5 * y * y + x * y) % 13 - 6) / 10 for y in range(8) for x in range(8) for _ in range(3)]
    small = judge.resized(numbers, 8, 2)
    wide = judge.resized(small, 2, 8)[2 * 8 * 3:3 * 8 * 3]
    t.check(all(abs(a - b) < 1e-6 for a, b in zip(small[::3], [-0.0870349, -0.0464673, 0.116304, -0.0470097])), small)
    t.check(all(abs(a - b) < 1e-6 for a, b in zip(wide[1::3], [-0.072101, -0.0707272, -0.0675436, -0.0614994, -0.0545397, -0.0484955, -0.0453119, -0.0439381])), wide)
    t.equal(judge.resized([1.0, -1.0, 0.5] * 64, 8, 2), [1.0, -1.0, 0.5] * 4, "one colour")


def test_the_bar_for_autoencoders_is_bicubic_s_psnr():
    into, _ = made()
    result = judge.bicubic(into / str(SIDE))
    t.equal(result["pictures"], 3, "held-out pictures")
    again = {name: judge.resized(judge.resized(pixels, SIDE, 2), 2, SIDE) for name, (_, pixels) in read(into, "held_out").items()}
    wrong = [sum((a - b) ** 2 for a, b in zip(pixels, again[name])) / len(pixels) for name, (_, pixels) in read(into, "held_out").items()]
    t.check(abs(result["psnr_of_all"] - 10 * math.log10(4 / (sum(wrong) / 3))) < 1e-9, result)
    t.check(abs(result["mean_psnr"] - sum(10 * math.log10(4 / one) for one in wrong) / 3) < 1e-9, result)


if __name__ == "__main__":
    t.main(globals())
