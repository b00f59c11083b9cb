"""Sets of Megatron-Energon in Ditto, and Ditto's in Megatron-Energon.

Claim (data): A set that `energon prepare` made trains as it is; of ours `energon info` and `energon lint` find nothing wrong,
Energon's loader gives the same keys and picture bytes (1,797 samples), and our index is the one that it makes of the same
shards. Also: `data.md`
"""

import contextlib
import hashlib
import io
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

peer = pathlib.Path(os.environ.get("DITTO_PEERS_ENERGON", t.source / ".deps/peers_energon/bin/python"))


def energon(*words):
    done = subprocess.run([str(peer), str(pathlib.Path(__file__).with_name("energon_peer.py")), *map(str, words)],
                          capture_output=True, text=True, timeout=300)
    t.check(done.returncode == 0, f"energon {words}: {done.stdout}{done.stderr}")
    return done.stdout


def members(shards):
    """[(key, extension, bytes)] of tar files."""
    found = []
    for shard in shards:
        with tarfile.open(shard) as tar:
            for member in tar:
                key, extension = member.name.split(".", 1)
                found.append((key, extension, tar.extractfile(member).read()))
    return found


def pictures(shards):
    return sorted([key, hashlib.sha256(data).hexdigest()] for key, extension, data in members(shards)
                  if extension in ("png", "jpg", "webp"))


def captioned(folder):
    """The digits' shards again, in subfolders, with captions inside of JSON texts."""
    number = 0
    for shard in sorted(t.digits.glob("*.tar")):
        out = folder / f"part_{number}" / f"shard_{number:06}.tar"
        out.parent.mkdir(parents=True)
        with tarfile.open(out, "w") as tar:
            for key, extension, data in members([shard]):
                if extension == "cls":
                    extension, data = "json", json.dumps({"caption": {"en": f"a {int(data)}"}, "label": int(data)}).encode()
                info = tarfile.TarInfo(f"{shard.stem}/{key}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        number += 1
    return folder


def test_a_set_that_energon_prepared_trains_as_it_is():
    folder = captioned(t.work / "captioned")
    energon("prepare", folder, "2,1,0", "CaptioningSample", json.dumps({"image": "png", "caption": "json[caption][en]"}))
    data = dict(plugin="webdataset", path=str(folder), channels=1)
    path = t.write_recipe("captioned.toml", t.recipe(data=None) | {"data": data, "validate": dict(every=4, samples=16)})
    t.train(path, "captioned-run")
    t.equal(len(t.metrics("captioned-run")), 8, "steps")
    # The same set, of which the recipe says more than the set does.
    path = t.write_recipe("labelled.toml", t.recipe(data=None) | {"data": data | dict(label="json[label]", classes=10)})
    t.train(path, "labelled-run")
    t.refused(2, ["data.split", '"dev" is no part', "it has: test, train, val"], "config", "check", path,
              *t.sets({"data.split": "dev"}))


def test_energon_reads_the_same_samples_of_the_set_that_unit_tests_read():
    found = json.loads(energon("look", t.source / "tests/golden/energon/set", "train", "val").splitlines()[-1])
    keys = {part: [int(key.rsplit("/", 1)[1]) for key, _ in samples] for part, samples in found.items()}
    t.equal(sorted(keys["train"]), [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13], "samples to learn from")
    t.equal(sorted(keys["val"]), [5, 6], "samples held out")


def test_energon_takes_and_reads_what_ditto_prepared():
    pictures_folder = t.work / "pictures"
    shards = sorted(t.digits.glob("*.tar"))
    labels = {key: data.decode().strip() for key, extension, data in members(shards) if extension == "cls"}
    for key, extension, data in members(shards):
        if extension == "png":
            file = pictures_folder / labels[key] / f"{key}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    for name, captions in (("classes", False), ("captions", True)):
        if captions:
            for file in pictures_folder.glob("*/*.png"):
                file.with_suffix(".txt").write_text(f"a {file.parent.name}")
        out = t.work / f"prepared-{name}"
        t.run("data", "prepare", pictures_folder, "--out", out, "--shard-samples", 50, "--validation", "0.1")
        told = energon("look", out, "train", "val")
        for part in ("ImageClassificationSample" if not captions else "CaptioningSample", "train", "val"):
            t.check(part in told, f"no {part} in what energon says: {told}")
        found = json.loads(told.splitlines()[-1])
        t.equal(found["train"], pictures(sorted(out.glob("train-*.tar"))), "pictures to learn from")
        t.equal(found["val"], pictures(sorted(out.glob("validation-*.tar"))), "pictures held out")
        print(f"{name}: {len(found['train'])} and {len(found['val'])} samples, alike in megatron-energon's loader")


def index_of(folder):
    """Everything that an index of the set says, whoever made it."""
    with contextlib.closing(sqlite3.connect(folder / ".nv-meta/index.sqlite")) as database:
        rows = {table: database.execute(f"SELECT * FROM {table} ORDER BY 1, 3, 4").fetchall() for table in ("samples", "sample_parts")}
        shape = sorted(row for row in database.execute("SELECT type, name, tbl_name FROM sqlite_master"))
    offsets = {path.name: path.read_bytes() for path in folder.glob("*.tar.idx")}
    counts = json.loads((folder / ".nv-meta/.info.json").read_text())["shard_counts"]
    return rows, shape, offsets, counts


def test_dittos_index_is_the_one_that_energon_makes_of_the_same_shards():
    folder = t.work / "indexed"
    t.run("data", "prepare", t.source / "tests/support/table.csv.gz", "--shape", "2x2", "--largest", "16", "--out", folder,
          "--shard-samples", 7)
    ours = index_of(folder)
    shutil.rmtree(folder / ".nv-meta")
    for path in folder.glob("*.idx"):
        path.unlink()
    energon("prepare", folder, "1,0,0", "ImageClassificationSample", json.dumps({"image": "png", "label": "cls"}))
    theirs = index_of(folder)
    for name, one, other in zip(("rows", "tables and indices", "offsets", "counts"), ours, theirs):
        t.equal(one, other, f"{name} of the index")
    print(f"{len(ours[0]['samples'])} samples and {len(ours[0]['sample_parts'])} parts indexed alike")


if __name__ == "__main__":
    if not peer.exists():
        print("not run: needs megatron-energon (./dev peers)")
        sys.exit(77)
    t.main(globals())
