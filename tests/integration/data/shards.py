"""Claim (data): Shards, prepared sets and tables as people have them: nothing in them is taken for something else without a
word."""

import io
import json
import pathlib
import re
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import bad_files  # noqa: E402

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
    done = t.refused(4, ["none of the samples of 3 steps can be learned from"], "train", path, *t.sets({"run.output": str(t.work / "few")}))
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
    done = t.run("train", table("mixed", [("frames/mixed", 4, 1)] * 8), *t.sets({"run.output": str(t.work / "mixed-frames")}), code=4)
    t.check("holds 0.tiff, a picture that is not read as a frame" in done.all, done.all)


def test_frames_may_be_avif():
    """A picture is a video of one frame: what a frame's file holds is what the same file by itself is."""
    golden = t.source / "tests/golden/formats"
    for i, (name, extension) in enumerate((("rgb", ".avif"), ("grey", ".avif"), ("rgb", ".AVIF"), ("rgba", ".avif"))):
        folder = t.work / f"frames/avif{i}"
        folder.mkdir(parents=True)
        (folder / f"0{extension}").write_bytes((golden / f"{name}.avif").read_bytes())
        (t.work / f"frames/alone{i}.avif").write_bytes((golden / f"{name}.avif").read_bytes())
    for name, of in (("avif-frames", "frames/avif{}"), ("avif-alone", "frames/alone{}.avif")):
        done = train(table(name, [(of.format(i % 4), 1, 1) for i in range(8)]), name)
        t.check("left out" not in done.all and "8 samples to learn from" in done.all, done.all)
    t.same_metrics("avif-frames", "avif-alone")
    t.same_state("avif-frames", "avif-alone")


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


def test_verify_holds_labels_against_the_names_of_classes():
    folder = t.work / "labels"
    members = list(samples(6))
    members[7] = ("0003.cls", b"7")
    shard = tar(folder / "x.tar", members)
    t.run("data", "verify", shard)  # nobody says how many there are
    (folder / "classes.json").write_text(json.dumps(ROWS))
    done = t.run("data", "verify", folder, code=4)
    t.check("x.tar:0003.cls: is 7, and classes.json beside the shard names 2 classes: 0 to 1" in done.all, done.all)
    t.equal(done.all.count("problem: "), 1, f"problems in {done.all}")
    (folder / "classes.json").write_text('{"cat": 0}')
    t.check("classes.json: is no list of names" in t.run("data", "verify", folder, code=4).all, "no word of classes.json")


def test_verify_decodes_all_frames_of_videos():
    if not (t.build / "lib/ditto/plugins/decoders/libffmpeg.so").exists():
        raise t.NotRun("the plugin ffmpeg was not built, for lack of FFmpeg's libraries")
    golden = t.source / "tests/golden/videos"
    whole, none = ((golden / name).read_bytes() for name in ("h264.mp4", "no_frames.mp4"))
    shard = tar(t.work / "videos.tar", [(f"{i:04}.mp4", whole) for i in range(3)])
    done = t.run("data", "verify", shard)
    t.check("videos, frames x height x width: 24 x 24 x 32 (3)" in done.all and "problem" not in done.all, done.all)
    t.equal(json.loads(t.run("data", "verify", shard, "--json").stdout)[0]["videos"], {"24 x 24 x 32": 3}, "videos")
    damaged = whole[:1200] + bytes(400) + whole[1600:]
    shard = tar(t.work / "bad-videos.tar", [("0000.mp4", whole), ("0001.mp4", damaged), ("0002.mp4", whole[:2000]), ("0003.mp4", none)])
    done = t.run("data", "verify", shard, code=4)
    for part in ("0001.mp4: frame 5 is damaged", "0002.mp4: cannot be read as MP4", "0003.mp4: has no video", "3 problems were found"):
        t.check(part in done.all, f"no \"{part}\" in {done.all}")


def test_verify_decodes_by_the_only_decoder_there_is_and_chooses_none_of_two():
    shard = tar(t.work / "any-videos.tar", [("0000.mp4", b"of any decoder")])
    other = "--plugin-path", t.build / "tests/fixture_plugins/grey_frames.so"
    if (t.build / "lib/ditto/plugins/decoders/libffmpeg.so").exists():
        t.refused(3, ["videos in shards", "several plugins decode them: ffmpeg, grey_frames", "verify a recipe"],
                  "data", "verify", shard, *other)
    else:
        t.refused(3, ["videos in shards", "no plugin decodes them"], "data", "verify", shard)
        t.check("2 x 2 x 2 (1)" in t.run("data", "verify", shard, *other).all, "not by the other decoder")


def test_verify_reads_a_recipes_samples_as_a_run_does():
    for i in range(4):
        frames(f"w{i}")
    (frames("cut") / "2.png").write_bytes(bad_files.png(2)[:40])
    rows = [(f"frames/w{i}", 4, 1) for i in range(4)]
    done = t.run("data", "verify", table("verified", rows))
    t.check("verified.toml: 4 samples to learn from" in done.all and "problem" not in done.all, done.all)
    path = table("unverified", [*rows, ("frames/cut", 4, 1), ("frames/w0", 4, 2), ("frames/w0", 0, 1)])
    for threads in (0, 3):
        done = t.run("data", "verify", path, *t.sets({"loader.threads": threads}), code=4)
        for part in ("6 samples to learn from", "frames/cut/2.png", "has 4 frames; 4 of them, each 2 further", "frames is 0; expected"):
            t.check(part in done.all, f"no \"{part}\" in {done.all}")
    problems = json.loads(t.run("data", "verify", path, "--json", code=4).stdout)[0]["problems"]
    t.equal([any(part in problem for problem in problems) for part in ("unverified.csv:6:", "unverified.csv:7:", "unverified.csv:8:")],
            [True] * 3, f"rows that are named in {problems}")
    # Held out where a run reads them, and labels by the recipe's own places.
    samples_of = [(name, data) for i in range(4) for name, data in ((f"{i:04}.png", bad_files.png(i)), (f"{i:04}.json", b'{"kind": %d}' % i))]
    tar(t.work / "kinds.tar", samples_of)
    tar(t.work / "held.tar", [*samples_of[:-2], ("0003.png", b"not a png"), ("0003.json", b'{"kind": 0}')])
    data = dict(shards=["kinds.tar"], validation_shards=["held.tar"], label="json:kind", size=[8, 8])
    done = t.run("data", "verify", recipe("kinds", data | dict(classes=4), validate=dict(every=1)), code=4)
    t.check("4 samples held out" in done.all and "held.tar:0003.png" in done.all and "1 problem was found" in done.all, done.all)
    t.run("data", "verify", recipe("kinds-alone", data | dict(classes=4), validate=dict(every=0)))


def test_a_name_of_two_classes_is_asked_for_by_number():
    """ImageNet has two cranes."""
    shard = tar(t.work / "twice/x.tar", samples(12))
    (shard.parent / "classes.json").write_text(json.dumps(["crane", "crane"]))
    train(recipe("twice", dict(shards=[str(shard)])), "twice-run")
    t.refused(2, ["--classes crane", "more than one class", "0 or 1"], "sample", t.work / "twice-run", "--classes", "crane",
              "--out", t.work / "twice-sample")
    (t.work / "twice.csv").write_text("path,kind\n" + "".join(f"frames/alone{i % 4}.avif,crane\n" for i in range(8)))
    t.refused(4, ["twice.csv:2", "crane", "data.names has more than once"], "train", recipe("twice-table", dict(
        plugin="table", table=str(t.work / "twice.csv"), label="kind", names=["crane", "dog", "crane"], size=[8, 8])))



if __name__ == "__main__":
    t.main(globals())
