"""Claim (data): Captions that people's editors saved, under the names that their programs give them: generated, and held
against what Python's own codecs and universal newlines make of them."""

import collections
import io
import json
import pathlib
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import bad_files  # noqa: E402

ENDS = ("\n", "\r\n", "\r")
BLANKS = ("", " ", "\n", "\t \n\n", "  ")
TEXTS = ("a red kite", "ein Kätzchen\nauf dem Dach", "猫が寝ている", "the dog’s ball\n\nand more", "naïve café")
# Encodings of editors, and whether they are taken. utf-8-sig and utf-16 begin with a mark.
ENCODINGS = {"utf-8": True, "utf-8-sig": True, "utf-16": False, "utf-16-le": False, "utf-16-be": False, "utf-32": False,
             "cp1252": False, "latin-1": False, "shift_jis": False, "gb18030": False}
NAMES = ("{stem}.txt", "{stem}.TXT", "{stem}.Txt", "{stem}.caption", "{stem}.CAPTION", "{stem}.png.txt", "{stem}.PNG.TXT",
         "{stem}.png.caption")


def variants(draw, count):
    """(encoding, name of the file, its bytes, the caption or None where it is refused)"""
    while count > 0:
        encoding = draw.choice([*ENCODINGS, "utf-8", "utf-8-sig"])
        text = draw.choice(BLANKS) + draw.choice(TEXTS) + draw.choice(BLANKS)
        try:
            data = text.replace("\n", draw.choice(ENDS)).encode(encoding)
        except UnicodeEncodeError:
            continue  # that encoding has no such letters
        try:
            read = data.decode("utf-8-sig")
            expected = None if "\0" in read else io.StringIO(read, newline=None).read().strip(" \t\n")
        except UnicodeDecodeError:
            expected = None
        t.check(expected is not None or not ENCODINGS[encoding], encoding)
        count -= 1
        yield encoding, draw.choice(NAMES), data, expected


def samples(out):
    """Of every picture its caption, by its file's name."""
    found = collections.defaultdict(dict)
    for shard in sorted(out.glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                key, extension = member.name.split(".", 1)
                found[shard, key][extension] = tar.extractfile(member).read()
    return {json.loads(parts["json"])["file"]: parts.get("txt", b"").decode() for parts in found.values()}


def prepared(folder, made):
    """Writes a folder of such pictures; all is either learned from as it was meant, or refused by the caption's name."""
    for number, (_, name, data, _) in enumerate(made):
        (folder / f"{number}.png").write_bytes(bad_files.png(number))
        (folder / name.format(stem=number)).write_bytes(data)
    (folder / "plain.png").write_bytes(bad_files.png(0))
    out = folder.parent / f"{folder.name}_shards"
    said = t.run("data", "prepare", folder, "--out", out, "--skip-bad").all
    found = samples(out)
    report = {line["file"]: line for line in t.lines_of(out / "report.jsonl")}
    for number, (encoding, name, data, expected) in enumerate(made):
        what = f"{encoding} {name} {data!r}"
        if expected is None:
            t.check(f"{number}.png" not in found, what)
            reason = report[f"{number}.png"]["reason"]
            t.check(name.format(stem=number) in reason and "save it as UTF-8" in reason, what, reason)
        else:
            t.equal(found.get(f"{number}.png"), expected, what)
        t.equal(report[name.format(stem=number)]["outcome"], "caption", what)
    t.check("not PNG" not in said, said)
    t.equal(found["plain.png"], "", "a picture without a caption")


def test_captions_of_editors_are_as_they_were_meant_or_refused_by_name():
    draw = t.seed_of("captions")
    for round in range(8 if t.slow else 1):
        folder = t.work / f"editors{round}"
        folder.mkdir()
        prepared(folder, list(variants(draw, 40 if t.slow else 6)))


def test_tables_of_captions_are_read_in_every_form_that_editors_save():
    draw = t.seed_of("tables of captions")
    forms = [(mark, end, name) for mark in ("utf-8", "utf-8-sig") for end in ENDS for name in ("metadata.jsonl", "Metadata.JSONL", "metadata.csv")
             if not (end == "\r" and name.endswith("csv"))]
    for number, (mark, end, name) in enumerate(forms if t.slow else draw.sample(forms, 2)):
        folder = t.work / f"table{number}"
        folder.mkdir()
        texts = {f"{i}.png": text.replace("\n", " ") for i, text in enumerate(TEXTS)}
        for i, picture in enumerate(texts):
            (folder / picture).write_bytes(bad_files.png(i))
        lines = [json.dumps({"file_name": picture, "text": f" {text}\n"}) for picture, text in texts.items()] if name.lower().endswith("jsonl") else \
            ["file_name,text", *(f'{picture},"{text} "' for picture, text in texts.items())]
        (folder / name).write_bytes((end.join(lines) + end).encode(mark))
        t.run("data", "prepare", folder, "--out", t.work / f"table{number}_shards")
        t.equal(samples(t.work / f"table{number}_shards"), texts, f"{mark} {end!r} {name}")


def test_a_caption_elsewhere_is_said_and_never_taken_for_no_picture():
    folder = t.work / "elsewhere"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(bad_files.png(1))
    for name in ("a.txt", "a.TXT", "a.caption", "c.txt", "notes.TXT", "metadata.json"):
        (folder / name).write_text(name)
    done = t.run("data", "prepare", folder, "--out", t.work / "elsewhere_shards")
    t.equal(samples(t.work / "elsewhere_shards"), {"a.png": "a.txt", "b.png": ""}, "captions")
    for name in ("a.TXT", "a.caption", "c.txt", "notes.TXT", "metadata.json"):
        t.check(name in done.all, name, done.all)
    t.check("caption" in done.all and "not PNG" not in done.all, done.all)


t.main(globals())
