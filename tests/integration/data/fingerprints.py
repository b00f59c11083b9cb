"""What data a run learned from, and whether it is there again: each file's, and each member's, size, first and last bytes count
whatever the source; a checkpoint that noted less resumes; what no such note sees `ditto data verify` tells apart.

Claim (data): A fingerprint of data sees the size, the first and the last bytes of each of 100 samples, of folders, tables and
shards. Also: `plugins_test.cpp`
"""

import io
import json
import pathlib
import random
import shutil
import struct
import sys
import tarfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import agreement  # noqa: E402

SAMPLES = 100
CHANGES = ("size", "head", "tail")


def noise_png(seed, side=100):
    """A grey picture that does not compress: more than twice 4 KiB."""
    rng = random.Random(seed)
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    rows = b"".join(b"\0" + rng.randbytes(side) for _ in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")


def bmp(seed, side=64):
    """A picture of which every byte behind the header is a pixel's."""
    pixels = random.Random(seed).randbytes(3 * side * side)
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, len(pixels), 0, 0, 0, 0) + pixels


def changed(data, change, rng):
    if change == "size":
        return data + b"\0"
    at = rng.randrange(64, 1024) if change == "head" else len(data) - rng.randrange(1, 1024)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


class Files:
    """A folder of files, each a sample: of a table, or a table of folders of frames."""

    def __init__(self, name, frames=False):
        self.folder = t.work / name
        self.paths = []
        rows = "path,frames\n" if frames else "path\n"
        for i in range(SAMPLES):
            path = self.folder / (f"v{i}/0.png" if frames else f"{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(noise_png(i))
            self.paths.append(path)
            rows += f"v{i},1\n" if frames else f"{i}.png\n"
        (self.folder / "t.csv").write_text(rows)
        self.data = dict(plugin="table", table=str(self.folder / "t.csv"), size=[8, 8], channels=1) | (dict(frames="frames") if frames else {})

    def change(self, i, change, rng):
        self.spoiled = self.paths[i], self.paths[i].read_bytes()
        self.paths[i].write_bytes(changed(self.spoiled[1], change, rng))

    def restore(self):
        self.spoiled[0].write_bytes(self.spoiled[1])


class Shard:
    """A shard of over 1 MiB, listed, or prepared with an index."""

    def __init__(self, name, is_prepared=False):
        self.folder = t.work / name
        self.folder.mkdir()
        if is_prepared:
            for i in range(SAMPLES):
                place = t.work / f"{name}-pictures/{'ab'[i % 2]}/{i:03}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(noise_png(i))
            t.run("data", "prepare", t.work / f"{name}-pictures", "--out", self.folder)
        else:
            with tarfile.open(self.folder / "train-000000.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for i in range(SAMPLES):
                    for suffix, data in (("png", noise_png(i)), ("cls", b"%d" % (i % 2))):
                        info = tarfile.TarInfo(f"{i:03}.{suffix}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
        self.path = self.folder / "train-000000.tar"
        t.check(self.path.stat().st_size > 1 << 20, "a small shard")
        with tarfile.open(self.path) as tar:
            self.places = [(one.offset_data, one.size) for one in tar if one.name.endswith(".png")]
        where = dict(path=str(self.folder), label="cls") if is_prepared else dict(shards=[str(self.path)], classes=2)
        self.data = dict(plugin="webdataset", size=[8, 8], channels=1) | where

    def change(self, i, change, rng):
        self.whole = self.path.read_bytes()
        at, size = self.places[i]
        if change == "size":  # of the shard: its last record is longer
            self.path.write_bytes(self.whole + bytes(512))
        else:
            self.path.write_bytes(self.whole[:at] + changed(self.whole[at:at + size], change, rng) + self.whole[at + size:])

    def restore(self):
        self.path.write_bytes(self.whole)


class Blend:
    """Of two tables, of which one has its files changed."""

    def __init__(self, name):
        self.files, self.more = Files(f"{name}-files"), Files(f"{name}-more")
        self.data = dict(plugin="blend", part=[dict(weight=1, **self.files.data), dict(weight=1, **self.more.data)])

    def change(self, *how):
        self.files.change(*how)

    def restore(self):
        self.files.restore()


SOURCES = {"table": Files, "frames": lambda name: Files(name, frames=True), "listed": Shard, "prepared": lambda name: Shard(name, is_prepared=True),
           "blend": Blend}


def recipe(name, data):
    return t.write_recipe(f"{name}.toml", t.recipe(data=None, run=dict(steps=1, batch=4), validate=dict(every=0)) | {"data": data})


def on(name):
    return "train", t.work / f"{name}.toml", *t.sets({"run.output": str(t.work / f"{name}-run"), "run.steps": 2})


def test_a_resume_refuses_other_bytes_in_any_one_sample():
    rng = random.Random(0)
    for name in SOURCES if t.slow else ("table", "listed"):
        source = SOURCES[name](name)
        t.train(recipe(name, source.data), f"{name}-run")
        for change in CHANGES if t.slow else rng.sample(CHANGES[1:], 1):
            for i in rng.sample(range(SAMPLES), 2 if t.slow else 1):
                source.change(i, change, rng)
                t.refused(2, ["learned from other data", "--allow-change data"], *on(name))
                source.restore()
        t.run(*on(name))


def test_a_resume_says_that_what_is_held_out_has_changed():
    learned, held_out = Shard("learns"), Shard("holds")
    path = recipe("held", learned.data | {"validation_shards": [str(held_out.path)]})
    how = {"run.output": str(t.work / "held-run"), "validate.every": 1, "validate.samples": 8, "validate.grid_every": 0}
    t.run("train", path, *t.sets(how))
    t.check("what is held out" not in t.run("train", path, *t.sets(how | {"run.steps": 2})).all, "a change of nothing is said")
    held_out.change(50, "tail", random.Random(0))
    said = t.run("train", path, *t.sets(how | {"run.steps": 3})).all
    t.check("changed since: what is held out" in said, said)


def renote(checkpoint, change):
    """Another note of the data in a checkpoint that is whole, of no more bytes."""
    state, manifest = checkpoint / "state.json", checkpoint / "manifest.json"
    before = state.read_bytes()
    tree = json.loads(before)
    tree["extra"]["source"] = change(tree["extra"]["source"])
    after = json.dumps(tree).encode()
    t.check(len(after) <= len(before), "the note grew")
    after += b" " * (len(before) - len(after))
    state.write_bytes(after)
    text, last, _ = manifest.read_text().partition(',\n"xxh3_128_of_the_text_above": "')
    t.check(agreement.checksum(before) in text, "the manifest has another checksum of state.json")
    text = text.replace(agreement.checksum(before), agreement.checksum(after))
    manifest.write_text(text + last + agreement.checksum(text.encode()) + '"\n}\n')


def test_a_checkpoint_that_noted_less_of_its_data_resumes_and_says_so():
    for name, part in (("table", ", files "), ("listed", ", ends "), ("blend", ", files ")) if t.slow else (("table", ", files "),):
        source = SOURCES[name](f"old-{name}")
        t.train(recipe(f"old-{name}", source.data), f"old-{name}-run")
        checkpoint = t.latest(f"old-{name}-run")

        def former(note):
            t.check(part in note, f"no \"{part}\" in {note}")
            return ")".join(one.split(part)[0] for one in note.split(")")) if name == "blend" else note.split(part)[0]

        renote(checkpoint, former)
        whole = t.work / f"old-{name}-kept"
        shutil.copytree(t.work / f"old-{name}-run", whole, symlinks=True)
        t.check("the data is as far the same as this checkpoint noted" in t.run(*on(f"old-{name}")).all, "no word of it")
        shutil.rmtree(t.work / f"old-{name}-run")
        whole.rename(t.work / f"old-{name}-run")
        renote(checkpoint, lambda note: note.replace("contents ", "contents 0")[:len(note)] if "contents" in note else note[1:])
        t.refused(2, ["learned from other data"], *on(f"old-{name}"))


def test_verify_tells_apart_what_no_fingerprint_sees():
    """One pixel in the middle of one of a hundred files, which is not among those that are read whole."""
    folder = t.work / "middle"
    folder.mkdir()
    for i in range(SAMPLES):
        (folder / f"{i}.bmp").write_bytes(bmp(i))
    (folder / "t.csv").write_text("path\n" + "".join(f"{i}.bmp\n" for i in range(SAMPLES)))
    path = recipe("middle", dict(plugin="table", table=str(folder / "t.csv"), size=[64, 64]))
    t.train(path, "middle-run")
    said = [json.loads(t.run("data", "verify", path, "--json").stdout)[0]["contents"]]
    data = bytearray((folder / "2.bmp").read_bytes())
    data[len(data) // 2] ^= 0x80
    (folder / "2.bmp").write_bytes(data)
    for threads in (0, 3):
        said.append(json.loads(t.run("data", "verify", path, "--json", *t.sets({"loader.threads": threads})).stdout)[0]["contents"])
    t.check(said[0] != said[1] and said[1] == said[2] and len(said[0]) == 32, f"contents: {said}")
    t.check(said[1] in t.run("data", "verify", path).all, "not said")
    t.run(*on("middle"))  # as docs/data.md says


if __name__ == "__main__":
    t.main(globals())
