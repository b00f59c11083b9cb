"""Shards, prepared sets and tables as people have them: nothing in them is taken for something else without a word."""

import io
import json
import re
import tarfile

import bad_files
import support as t

ROWS = ("cat", "dog")


def tar(path, members):
    """[(name, bytes)], in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def samples(count, label=b"%d", extra=()):
    for i in range(count):
        yield f"{i:04}.png", bad_files.png(i)
        if label:
            yield f"{i:04}.cls", label % (i % 2) if b"%" in label else label
        yield from ((f"{i:04}.{extension}", data) for extension, data in extra)


def recipe(name, data, **sections):
    data = dict(plugin="webdataset", channels=1) | data
    return t.write_recipe(f"{name}.toml", t.recipe(data=None, run=dict(steps=3, batch=8), **sections) | {"data": data})


def train(path, name, **how):
    return t.run("train", path, *t.sets({"run.output": str(t.work / name)}), **how)


def parameters(name):
    return sum(len(tensor[2]) for key, tensor in t.tensors_of(t.latest(name)).items() if key[0] == "model")


def captioned_set():
    """A folder with two classes and a caption beside each picture, prepared."""
    folder = t.work / "captioned"
    if not folder.exists():
        for i in range(12):
            place = t.work / "pictures" / ROWS[i % 2] / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bad_files.png(i))
            place.with_suffix(".txt").write_text(f"a {ROWS[i % 2]}")
        t.run("data", "prepare", t.work / "pictures", "--out", folder)
    return folder


def test_classes_without_labels_are_refused():
    folder = str(captioned_set())
    t.refused(2, ["data.classes: is 2", "no labels are read", "the set of data.path names none", "data.label"], "train",
              recipe("unread", dict(path=folder, classes=2)))
    t.refused(2, ["data.classes: is 2", 'data.label is "none"'], "train", recipe("none", dict(path=folder, classes=2, label="none")))
    train(recipe("read", dict(path=folder, label="cls")), "read")
    train(recipe("without", dict(path=folder)), "without")
    t.check(parameters("read") > parameters("without"), "data.label = \"cls\" brings no classes")


def test_run_toml_starts_the_same_run():
    """What the recipe leaves open the set says, in the run that run.toml starts too."""
    for name in ("read", "without"):
        again = t.run("train", t.work / name / "run.toml", *t.sets({"run.output": str(t.work / f"{name}-again")}))
        t.check("changed" not in again.all, again.all)
        t.same_metrics(name, f"{name}-again")
        t.same_state(name, f"{name}-again")


def test_shards_of_other_classes_are_not_mixed():
    one, other = (tar(t.work / f"classes-{name}/x.tar", samples(12)) for name in "ab")
    for shard, names in ((one, ROWS), (other, ROWS[::-1])):
        (shard.parent / "classes.json").write_text(json.dumps(names))
    differ = ["classes-b/classes.json", "names other classes than", "classes-a/classes.json"]
    for name, shards, held_out in (("both", [one, other], []), ("held", [one], [other]), ("glob", [t.work / "classes-[ab]/*.tar"], [])):
        path = recipe(name, dict(shards=[str(shard) for shard in shards], validation_shards=[str(shard) for shard in held_out]))
        t.refused(4, differ, "train", path, *t.sets({"run.output": str(t.work / name)}))
    t.refused(4, differ, "data", "split", one, other, "--validation", 0.25, "--out", t.work / "mixed")
    (other.parent / "classes.json").write_text(json.dumps(ROWS))
    train(recipe("alike", dict(shards=[str(t.work / "classes-[ab]/*.tar")])), "alike")


def test_a_folder_is_what_it_is_called():
    tar(t.work / "g1/x.tar", samples(8))
    for name in ("g[1]", "g{1,2}", "g*"):
        tar(t.work / name / "x.tar", samples(12))
        path = t.work / name / "r.toml"
        path.write_text(recipe("named", dict(shards=["x.tar"], classes=2)).read_text())
        done = train(path, f"named-{name}")
        t.check("12 samples to learn from" in done.all, done.all)


def test_a_step_without_a_sample_is_skipped_and_several_end_the_run():
    shard = tar(t.work / "unlabelled.tar", samples(8, label=b"x"))
    path = recipe("unlabelled", dict(shards=[str(shard)], classes=2))
    done = train(path, "few")
    t.equal(done.all.count("none of its samples can be learned from: skipped"), 3, "steps that were skipped")
    for line in t.metrics("few"):
        t.check(line["loss"] is None and line["skipped"] is True, f"a step without samples is {line}")
    for ranks in (1, 2):
        t.refused(4, ["step 4", "none of its samples can be learned from, for the 4th time in a row"], "train", path,
                  *(["--local-ranks", 2] if ranks > 1 else []), *t.sets({"run.output": str(t.work / f"many{ranks}"), "run.steps": 9}))


def test_hidden_members_are_no_samples():
    """macOS writes ._NAME beside NAME, and archives have notes."""
    members = [("README", b"notes"), ("__index__/x.json", b"{}")]
    for name, data in samples(12):
        members += [(f"./._{name}", b"\0\5\26\7"), (f"./{name}", data)]
    shard = tar(t.work / "mac.tar", members)
    done = train(recipe("mac", dict(shards=[str(shard)], classes=2)), "mac")
    t.check("12 samples to learn from" in done.all and "left out" not in done.all, done.all)
    told = t.run("data", "verify", shard).all
    t.check("12 samples" in told and "no part of a sample: ./._0000.cls (1), " in told and "problem" not in told, told)


def test_the_first_place_that_a_sample_has_is_taken_in_listed_shards_too():
    members = []
    for i in range(16):
        members += [(f"{i:04}.png", bad_files.png(i)), (f"{i:04}.json", b'{"a": 1}' if i % 2 else b'{"b": 1}'), (f"{i:04}.cls", b"0")]
    shard = tar(t.work / "places.tar", members)
    done = train(recipe("places", dict(shards=[str(shard)], classes=2, label="json:a,cls")), "places")
    t.check("left out" not in done.all, done.all)


def test_extensions_are_taken_in_any_case():
    shard = tar(t.work / "upper.tar", [(name.replace("png", "PNG"), data) for name, data in samples(12)])
    train(recipe("upper", dict(shards=[str(shard)], classes=2, image=["PNG"])), "upper")


def frames(name, extension=".png", shift=0):
    folder = t.work / "frames" / name
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(4):
        (folder / f"{i}{extension}").write_bytes(bad_files.png(i + shift))
    return folder


def table(name, rows):
    path = t.work / f"{name}.csv"
    path.write_text("path,frames,interval\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return recipe(name, dict(plugin="table", table=str(path), path="path", frames="frames", interval="interval", size=[8, 8]))


def test_frames_that_are_not_read_and_counts_that_are_none_are_named():
    for i in range(8):
        frames(f"v{i}")
    (frames("mixed") / "0.tiff").write_bytes(b"II*\0")
    rows = [(f"frames/v{i}", 4, 1) for i in range(8)]
    done = train(table("named-rows", [*rows, ("frames/v0", 0, 1), ("frames/v0", 4, 0), ("frames/mixed", 4, 1)]), "named-rows")
    for part in ("frames is 0; expected a whole number, 1 to", "interval is 0; expected a whole number, 1 to"):
        t.check(part in done.all, f"no \"{part}\" in {done.all}")
    done = t.run("train", table("mixed", [("frames/mixed", 4, 1)] * 8), *t.sets({"run.output": str(t.work / "mixed-frames")}))
    t.check("holds 0.tiff, a picture that is not read as a frame" in done.all, done.all)


def test_a_resume_sees_other_frames():
    path = table("changed", [(f"frames/v{i}", 4, 1) for i in range(8)])
    train(path, "changed")
    for i in range(8):
        (t.work / f"frames/v{i}/2.png").write_bytes(bad_files.png(200 + i, side=12))
    t.refused(2, ["learned from other data", "--allow-change data"], "train", path, *t.sets({"run.output": str(t.work / "changed"), "run.steps": 5}))


def test_verify_reads_tensors_too():
    latent = (t.source / "tests/golden/formats/saved_latent.pth").read_bytes()
    shard = tar(t.work / "latents.tar", [(f"{i:04}.pth", latent) for i in range(3)])
    done = t.run("data", "verify", shard)
    t.check(re.search(r"latents and embedded texts: [0-9 x]+ \(3\)", done.all) and "problem" not in done.all, done.all)
    cut = tar(t.work / "cut-latents.tar", [("0000.png", bad_files.png(0)), ("0000.pth", latent[:-200])])
    t.check("cut-latents.tar:0000.pth" in t.run("data", "verify", cut, code=4).all, "a cut latent")


if __name__ == "__main__":
    t.main(globals())
