"""What `ditto data prepare` and `ditto init` say of a folder: bad files, what is cut, padded or stretched, captions, masks, splits; and
what a run says of the disk that its checkpoints take.

Claim (data): `--fit pad` and `--fit stretch` keep all of a picture, and what is made so says it in its notes and in report.jsonl.
"""

import json
import os
import pathlib
import struct
import sys
import tarfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

SIZES = [(32, 32), (48, 32), (32, 64), (40, 32)]  # width and height


def png(width, height, left, right):
    """Two halves, side by side."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    row = b"\0" + bytes([left]) * (width // 2) + bytes([right]) * (width - width // 2)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * height)) + chunk(b"IEND", b"")


def folder(name, bad=0):
    made = t.work / name
    made.mkdir()
    for i in range(40):
        width, height = SIZES[i % 4]
        (made / f"{i:03}.png").write_bytes(png(width, height, 10, 200))
    for i in range(bad):
        (made / f"bad{i:03}.png").write_bytes(b"no picture")
    return made


def samples(out):
    found = {}
    for shard in sorted(out.glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            parts = {member.name: tar.extractfile(member).read() for member in tar}
        for name, data in parts.items():
            if name.endswith(".json"):
                notes = json.loads(data)
                path = t.work / "one.png"
                path.write_bytes(parts[name[:-4] + "png"])
                found[notes["file"]] = notes, t.read_png(path)
    return found


def test_pictures_that_are_not_square_are_cut_padded_or_stretched_and_it_is_said():
    source = folder("drawings")
    made = {}
    for fit, said in (("crop", "30 of 40 pictures are not square: of each the middle is kept, and 20 % to 50 % are cut off (--size; --fit"),
                      ("pad", "30 of 40 pictures are not square: each is kept whole, and 20 % to 50 % of its square is white (--fit pad)"),
                      ("stretch", "30 of 40 pictures are not square: each is stretched along its shorter side, by 1.25 to 2 (--fit stretch)")):
        done = t.run("data", "prepare", source, "--out", t.work / fit, "--size", 16, "--fit", fit)
        t.check(said in done.all, done.all)
        made[fit] = samples(t.work / fit)
        report = {line["file"]: line for line in t.lines_of(t.work / fit / "report.jsonl")}
        for number in range(40):
            notes, (width, height, _, _, _) = made[fit][f"{number:03}.png"]
            t.equal((width, height), (16, 16), "a square")
            expected = None if fit == "crop" or number % 4 == 0 else fit
            t.equal((notes.get("fit"), report[f"{number:03}.png"].get("fit")), (expected, expected), f"{fit} of {number}")
    t.run("data", "prepare", source, "--out", t.work / "default", "--size", 16)
    for file in ("train-000000.tar", "report.jsonl"):
        t.check((t.work / "default" / file).read_bytes() == (t.work / "crop" / file).read_bytes(), f"{file}: crop is the default")
    tall = {fit: made[fit]["002.png"][1][3] for fit in made}  # 32 x 64
    t.check(all(tall["pad"][16 * y:16 * y + 4] == b"\xff" * 4 for y in range(16)), "white on the left of a tall picture")
    t.check(b"\xff" not in tall["stretch"] + tall["crop"], "white in a picture that is not padded")
    wide = {fit: made[fit]["001.png"][1][3] for fit in made}  # 48 x 32
    t.check(wide["pad"][:16] == b"\xff" * 16 and wide["pad"][-16:] == b"\xff" * 16, "white above and below a wide one")
    t.check(wide["stretch"][0] == 10 and wide["stretch"][15] == 200, "both ends of a wide one")


def test_fit_without_a_square_is_refused():
    source = folder("as-they-are")
    t.refused(2, ["--fit", "add --size"], "data", "prepare", source, "--out", t.work / "none", "--fit", "pad")
    t.run("data", "prepare", source, "--out", t.work / "none", "--size", 16, "--fit", "squeeze", code=2)
    t.refused(2, ["--fit", "shards"], "init", t.digits, "--out", t.work / "digits.toml", "--fit", "pad")


def test_bad_files_are_named_up_to_twenty_and_the_rest_is_pointed_to():
    source = folder("many-bad", bad=23)
    done = t.run("data", "prepare", source, "--out", t.work / "bad", "--skip-bad")
    lines = [line for line in done.stdout.splitlines() if line.startswith("bad: ")]
    t.equal(len(lines), 21, f"lines of bad files in {done.stdout}")
    t.equal([f"bad{i:03}.png" in lines[i] for i in range(20)], [True] * 20, "their names")
    strict = t.refused(4, ["23 pictures cannot be read, the first of them bad000.png"], "data", "prepare", source, "--out", t.work / "strict")
    t.equal([line for line in strict.stderr.splitlines() if line.startswith("bad: ")][:20],
            [line.rsplit("; ", 1)[0] for line in lines[:20]], "the same without --skip-bad, for which there is one remedy")
    t.check("bad: 3 more, which --skip-bad names" in strict.stderr, strict.stderr)
    t.check("3 more, named in" in lines[20] and str(t.work / "bad/report.jsonl") in lines[20], lines[20])
    done = t.run("init", folder("few-bad", bad=2), "--out", t.work / "few.toml")
    for i in range(2):
        t.check(f"bad: bad{i:03}.png: " in done.all, done.all)
    t.check("pictures are not square" in done.all, done.all)
    t.check("a checkpoint takes " in done.stdout and "that are kept" in done.stdout, done.stdout)


def test_captions_that_give_none_are_refused():
    source = folder("uncaptioned")
    for name, text, said in (("none.jsonl", "", "it has no row"), ("none.csv", "file_name\n000.png\n", 'no row has a "text"')):
        (t.work / name).write_text(text)
        t.refused(4, [name, "gives no caption", said], "data", "prepare", source, "--out", t.work / "none-out", "--captions", t.work / name)


def test_links_and_folders_that_cannot_be_followed_are_said():
    source = t.work / "blocked"
    for name in ("a", "b"):
        (source / name).mkdir(parents=True)
        (source / name / "0.png").write_bytes(png(32, 32, 10, 200))
    os.symlink("gone.png", source / "a/link.png")
    done = t.run("data", "prepare", source, "--out", t.work / "blocked-out")
    t.check("left out: links that lead nowhere (1): a/link.png" in done.all, done.all)
    if os.geteuid() == 0:
        return  # who opens every folder
    (source / "b").chmod(0)
    t.refused(4, ["a folder cannot be read: b: "], "data", "prepare", source, "--out", t.work / "shut")
    done = t.run("data", "prepare", source, "--out", t.work / "shut", "--skip-bad")
    (source / "b").chmod(0o755)
    t.check("bad: b: this folder cannot be opened" in done.all, done.all)


def test_numbers_of_long_pictures_are_whole():
    source = folder("long")
    (source / "long.png").write_bytes(png(5000, 1, 10, 200))
    for fit, said in (("crop", "20 % to 99.98 % are cut off"), ("pad", "20 % to 94 % of its square is white"), ("stretch", "by 1.25 to 5000")):
        done = t.run("data", "prepare", source, "--out", t.work / f"long-{fit}", "--size", 16, "--fit", fit)
        t.check(said in done.all, done.all)


def test_masks_splits_and_captions_are_said():
    pairs = t.work / "pairs"
    pairs.mkdir()
    for i in range(3):
        (pairs / f"{i}.png").write_bytes(png(32, 32, 10, 200))
        (pairs / f"{i}_mask.png").write_bytes(png(32, 32, 0, 255))
        (pairs / f"{i}.txt").write_text("a kite")
    (pairs / "metadata.csv").write_text("file_name,split\n" + "".join(f"{i}.png,val\n" for i in range(3)))
    done = t.run("data", "prepare", pairs, "--out", t.work / "pairs-out")
    t.check("3 pictures look like masks of others (0_mask.png of 0.png)" in done.all, done.all)
    t.check('of 3 pictures a table has "split", which is not followed' in done.all, done.all)
    t.check("3 pictures have captions" in done.all, done.all)
    sides = t.work / "sides"
    for name in ("images", "masks"):
        (sides / name).mkdir(parents=True)
        for i in range(3):
            (sides / name / f"{i}.png").write_bytes(png(32, 32, 10, 200 if name == "images" else 255))
    done = t.run("data", "prepare", sides, "--out", t.work / "sides-out")
    t.check("3 pictures look like masks of others (masks/0.png of images/0.png)" in done.all, done.all)
    done = t.run("data", "prepare", folder("plain"), "--out", t.work / "plain-out")
    for word in ("mask", "split", "caption"):
        t.check(word not in done.all, done.all)


def test_a_run_says_the_disk_that_its_checkpoints_take():
    path = t.write_recipe("disk.toml", t.recipe(run=dict(steps=6, batch=4), data=t.synthetic(samples=16), checkpoint=dict(every=1, keep=2)))
    done = t.train(path, "disk")
    (line,) = (line for line in done.all.splitlines() if "checkpoints: " in line)
    t.check("each, of the 2 that are kept" in line, line)
    number, unit = line.split("checkpoints: ")[1].split(" ")[:2]
    said = float(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]
    files = sum(file.stat().st_size for file in t.latest("disk").glob("*.safetensors"))
    t.check(0.8 * files <= said <= 1.2 * files, f"{line}: the files have {files} bytes")
    two = t.train(path, "disk-two", "--local-ranks", 2)
    t.check(line[line.index("checkpoints: "):] in two.all, two.all)


if __name__ == "__main__":
    t.main(globals())
