"""Claim (data): What data means to those who made it: names that are numbers, folders that are parts of a set, lists that must
not meet, names of classes that disagree, several pictures in a sample. Each is taken as its makers mean it, or refused, or
said: never met with something else. Each kind in generated variants, two of them in the quick run.
"""

import json
import os
import pathlib
import random
import re
import shutil
import struct
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import bad_files  # noqa: E402
import shards as s  # noqa: E402

def some(variants):
    """Of a list of variants the whole in the slow run, else the first and the last."""
    return variants if t.slow else [variants[0], variants[-1]]


def place(name, make=None):
    folder = t.work / name
    if not folder.exists():
        folder.mkdir(parents=True)
        if make:
            make(folder)
    return folder


def recipe(name, data, steps=1, **sections):
    sections = dict(validate=dict(every=0, grid_every=0)) | sections
    return t.write_recipe(f"{name}.toml", t.recipe(data=None, run=dict(name=name, steps=steps, batch=4), **sections) |
                          {"data": dict(plugin="webdataset", channels=1, size=[8, 8]) | data})


def fine(path, *said):
    done = t.run("config", "check", path)
    for part in said:
        t.check(part in done.all, f"no \"{part}\" in: {done.all}")
    return done


# --- names that are numbers --------------------------------------------------------------------------------------------


def lists_of_names():
    lists = [["1", "2", "3"],
             [str(i) for i in range(1, 11)],
             sorted(str(i) for i in range(1, 12)),  # as folders are numbered: 1, 10, 11, 2
             [f"{i:02}" for i in range(1, 9)],
             [f"{i:03}" for i in range(4)][::-1],
             [f"{i}.0" for i in range(1, 5)],
             ["cat", "2", "1", "dog"],
             ["10", "20", "30"],
             [str(2020 + i) for i in range(5)],
             ["99999999999999999999999", "1", "0"],
             ["-1", "0", "1"],
             ["7"],
             ["3", "1", "2", "0"],
             ["1", "1-2", "3"],
             ["1, 2", "1", "3"]]
    draw = random.Random(34)
    for _ in range(8):
        names = [str(n) for n in draw.sample(range(12), draw.randint(2, 6))]
        if draw.random() < 0.4:
            names[draw.randrange(len(names))] = draw.choice(["cat", "1st", "x2"])
        lists.append(names)
    return lists


def value(name):
    try:
        return float(name) if re.fullmatch(r"[-0-9.]+", name) else None
    except ValueError:
        return None


def classes_of(run, words, count):
    out = t.work / "drawn"
    shutil.rmtree(out, ignore_errors=True)
    t.run("sample", run, "--out", out, "--classes", words, "--seeds", f"0-{count - 1}", "--steps", "1", "--progress", "none")
    return [line["class"] for line in map(json.loads, (out / "samples.jsonl").read_text().splitlines())]


def longest_range(names):
    """Names in a row, each the number after that before it."""
    numbers = {int(name): i for i, name in enumerate(names) if name.isdigit()}
    best = []
    for first in numbers:
        row = [first]
        while row[-1] + 1 in numbers:
            row.append(row[-1] + 1)
        best = max(best, row, key=len)
    return [names[numbers[n]] for n in best], [numbers[n] for n in best]


def test_words_that_are_names_and_numbers_are_names():
    for number, names in enumerate(some(lists_of_names())):
        folder = place(f"numbers-{number}")
        s.tar(folder / "a.tar", [x for i in range(2 * len(names)) for x in
                                 ((f"{i:03}.png", bad_files.png(i)), (f"{i:03}.cls", b"%d" % (i % len(names))))])
        run = f"numbers-run-{number}"
        t.train(recipe(run, dict(shards=[f"{folder}/a.tar"], classes=len(names), names=names)), run, run__steps=0)
        run, count = t.work / run, len(names)
        in_list = [name for name in names if "," not in name]
        if in_list:
            t.equal(classes_of(run, ",".join(in_list), len(in_list)), [names.index(name) for name in in_list], f"{names}, by name")
        for name in set(names) - set(in_list):
            t.equal(classes_of(run, name, 1), [names.index(name)], name)
        t.equal(classes_of(run, f"number:0-{count - 1}", count), list(range(count)), f"{names}, by number")
        words, expected = longest_range(names)
        if len(words) > 1 and f"{words[0]}-{words[-1]}" not in names:
            t.equal(classes_of(run, f"{words[0]}-{words[-1]}", len(words)), expected, f"{names}, by a range of names")
        others = [i for i in range(count) if not any(value(name) == i for name in names)]
        if others and any(value(name) is not None for name in names):
            done = t.run("sample", run, "--out", t.work / "none", "--classes", str(others[0]), code=2)
            t.check(f"number:{others[0]}" in done.all, done.all)


def test_names_with_commas_stand_in_a_list():
    folder = place("commas")
    names = ["tench, Tinca tinca", "goldfish", "white shark, man-eater, man-eating shark"]
    s.tar(folder / "a.tar", [x for i in range(3) for x in ((f"{i}.png", bad_files.png(i)), (f"{i}.cls", b"%d" % i))])
    t.train(recipe("commas", dict(shards=[f"{folder}/a.tar"], classes=3, names=names)), "commas", run__steps=0)
    t.equal(classes_of(t.work / "commas", f"goldfish,{names[2]},{names[0]},1", 4), [1, 2, 0, 1], "names with commas in a list")
    t.refused(2, ['"tench" is not a class of this model', f'did you mean "{names[0]}"?'], "sample", t.work / "commas", "--out", t.work / "none", "--classes", "goldfish,tench")


def test_a_word_of_two_meanings_is_asked_about():
    folder = place("two-meanings")
    names = ["1", "1-2", "2", "1,2", "3"]
    s.tar(folder / "a.tar", [x for i in range(5) for x in ((f"{i}.png", bad_files.png(i)), (f"{i}.cls", b"%d" % i))])
    done = t.train(recipe("two-meanings", dict(shards=[f"{folder}/a.tar"], classes=5, names=names)), "two-meanings", run__steps=0)
    t.check("labels are numbers of classes" in done.all and "0 is the class called \"1\"" in done.all, done.all)
    for words, remedy in (("1-2", "number:1"), ("1,2", "number:3")):
        t.refused(2, ["--classes", remedy], "sample", t.work / "two-meanings", "--out", t.work / "none", "--classes", words)
    t.write_tensors(t.work / "labels.safetensors", {"label": ("I64", [2], [0, 2])})
    done = t.run("sample", t.work / "two-meanings", "--out", t.work / "given", "--condition", t.work / "labels.safetensors",
                 "--seeds", "0-1", "--steps", "1")
    t.check("numbers of classes, and no names: 0 is the class called \"1\"" in done.all, done.all)


# --- folders that are parts of a set ------------------------------------------------------------------------------------

LEARNED = ["train", "training", "Train", "TRAIN", "train2017", "train_set", "images-train", "TrainImages", "trainval"]
HELD_OUT = ["val", "test", "validation", "valid", "Test", "VAL", "val2017", "dev", "test_images", "held_out", "images-test", "eval"]


def lay_out(folder, paths):
    for number, path in enumerate(paths):
        at = folder / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(bad_files.png(number))
    return folder


def layouts():
    """(what is refused, the two names that the message has)"""
    def classes(part):
        return [f"{part}/{kind}/{i}.png" for kind in ("cat", "dog") for i in range(2)]
    pairs = [(LEARNED[i % len(LEARNED)], HELD_OUT[i % len(HELD_OUT)]) for i in range(max(len(LEARNED), len(HELD_OUT)))]
    all_of_them = [(classes(a) + classes(b), [a, b]) for a, b in pairs]
    all_of_them += [
        ([f"{part}/{i}.png" for part in ("train", "val") for i in range(3)], ["train", "val"]),
        ([f"{kind}/{part}/{i}.png" for kind in ("cat", "dog") for part in ("train", "test") for i in range(2)], ["train", "test"]),
        ([f"images/{part}/{kind}/{i}.png" for part in ("train", "val") for kind in "ab" for i in range(2)], ["train", "val"]),
        (classes("train") + classes("val") + classes("test"), ["train"]),
        (classes("train"), ["train"]),
        (classes("test"), ["test"]),
        (["cat/0.png", "dog/0.png"] + classes("test"), ["test"]),
        (["cat/0.png", "dog/0.png"] + classes("val2"), ["val2"]),
        ([f"train_{i}.png" for i in range(3)] + [f"val_{i}.png" for i in range(2)], ["train_0", "val_0"]),
        ([f"cat/{part}-{i}.png" for part in ("train", "test") for i in range(2)], ["train-0", "test-0"]),
        (classes("Training Data") + classes("Validation Data"), ["Training Data", "Validation Data"]),
        (classes("train (1)") + classes("test images"), ["train (1)", "test images"]),
        (classes("a/train") + classes("b/val"), ["a/train", "b/val"]),
        (classes("train") + ["unlabeled/0.png"], ["train"])]
    return all_of_them


def test_folders_that_are_parts_of_a_set_are_no_classes():
    for number, (paths, names) in enumerate(some(layouts())):
        folder = lay_out(place(f"parts-{number}"), paths)
        done = t.refused(2, names + ["--splits-as-classes"], "data", "prepare", folder, "--out", t.work / f"parts-out-{number}")
        t.check("--validation" in done.all or "folder of" in done.all, done.all)
        t.check(not list(t.work.glob(f"parts-out-{number}/*.tar")), "shards are there")
        done = t.run("data", "prepare", folder, "--out", t.work / f"parts-out-{number}", "--splits-as-classes")
        t.check(f"{len(paths)} samples to train on" in done.all, done.all)
    t.refused(2, ["--splits-as-classes"], "init", lay_out(place("parts-init"), layouts()[0][0]), "--out", t.work / "parts.toml")


def test_folders_whose_names_only_resemble_parts_are_classes():
    for number, kinds in enumerate(some([
            ["train", "car", "bus"], ["training ground", "test tube"], ["valley", "mountain"], ["trainer", "developer"],
            ["test", "other"], ["train station", "val"], ["evaluate", "contest"], ["cat", "dog"]])):
        folder = lay_out(place(f"kinds-{number}"), [f"{kind}/{i}.png" for kind in kinds for i in range(2)])
        t.run("data", "prepare", folder, "--out", t.work / f"kinds-out-{number}")
        t.equal(json.loads((t.work / f"kinds-out-{number}/classes.json").read_text()), sorted(kinds), "classes")


# --- lists that must not meet ------------------------------------------------------------------------------------------


def shard_set(folder):
    for number, name in enumerate(("a", "b", "held")):
        s.tar(folder / f"{name}.tar", [(f"{number}{i:03}.png", bad_files.png(20 * number + i)) for i in range(6)])
    (folder / "down").mkdir()
    os.symlink("a.tar", folder / "soft.tar")
    os.symlink(folder / "a.tar", folder / "down/absolute.tar")
    os.link(folder / "a.tar", folder / "hard.tar")
    os.symlink(".", folder / "round")
    shutil.copy(folder / "a.tar", folder / "down/copy.tar")


NAMES_OF_A = ["a.tar", "./a.tar", "down/../a.tar", "soft.tar", "hard.tar", "down/absolute.tar", "round/a.tar", "round/round/hard.tar",
              "[a].tar", "{a,held}.tar", "?.tar", "*.tar", "ABSOLUTE/a.tar", "round/soft.tar"]


def test_shards_that_are_learned_from_and_held_out_are_refused():
    folder = place("meet", shard_set)
    def named(name):
        return f"{folder}/" + name if not name.startswith("ABSOLUTE") else name.replace("ABSOLUTE", str(folder.resolve()))
    def check_of(name, learned, held_out, **sections):
        return recipe(name, dict(shards=[named(one) for one in learned], validation_shards=[named(one) for one in held_out],
                                 label="none"), **sections)
    validates = dict(validate=dict(every=1, samples=4, grid_every=0))
    for number, name in enumerate(some(NAMES_OF_A)):
        path = check_of(f"meet-{number}", ["a.tar", "b.tar"], [name], **(validates if number % 2 else {}))
        t.refused(2, ["a.tar"], "config", "check", path)
        if number == 0:
            t.refused(2, ["learns from"], "train", path)
        if t.slow:
            t.refused(2, ["tar"], "config", "check", check_of(f"met-{number}", ["b.tar", name], ["a.tar"], **validates))
        if name not in ("{a,held}.tar", "?.tar", "*.tar"):
            t.refused(2, ["named twice"], "config", "check", check_of(f"twice-{number}", ["a.tar", name], ["held.tar"]))
    fine(check_of("apart", ["a.tar", "b.tar"], ["held.tar", "down/copy.tar"], **validates))
    # Dealt out anew, a sample of both would be learned from and held out.
    t.refused(2, ["named twice"], "data", "split", folder, "--validation", "0.5", "--out", t.work / "meet-split")
    for name in ("train-0.tar", "val-0.tar"):
        shutil.copy(folder / "b.tar", place("meet-parts") / name)
    fine(recipe("meet-parts", dict(shards=[f"{t.work}/meet-parts/*.tar"], label="none")), "held out by its name or its folder's")
    for part in ("train", "val"):
        shutil.copy(folder / "b.tar", place(f"meet-folders/{part}") / "0.tar")
    fine(recipe("meet-folders", dict(shards=[f"{t.work}/meet-folders/*/*.tar"], label="none")), "val/0.tar")
    one = s.tar(place("meet-keys") / "all.tar", [(f"{part}/{i}.png", bad_files.png(i)) for part in ("train", "val") for i in range(3)])
    fine(recipe("meet-keys", dict(shards=[str(one)], label="none")), '"val/0" is held out by its folder')


def test_parts_of_blends_and_sets_that_are_learned_from_and_held_out_are_refused():
    folder = place("meet", shard_set)
    def part(learned, held_out):
        return dict(plugin="webdataset", channels=1, size=[8, 8], label="none", shards=[f"{folder}/{learned}"],
                    validation_shards=[f"{folder}/{held_out}"])
    validates = dict(validate=dict(every=1, samples=4, grid_every=0))
    def blend(name, *parts):
        return t.write_recipe(f"{name}.toml", t.recipe(data=None, run=dict(name=name, steps=1, batch=4), **validates) |
                              {"data": dict(plugin="blend", part=list(parts))})
    t.refused(2, ["held out", "hard.tar"], "config", "check", blend("blend-meet", part("a.tar", "held.tar"), part("b.tar", "hard.tar")))
    s.tar(folder / "held2.tar", [(f"h{i:03}.png", bad_files.png(i)) for i in range(6)])
    fine(blend("blend-apart", part("a.tar", "held.tar"), part("b.tar", "held2.tar")))
    fine(blend("blend-both", part("a.tar", "held.tar"), part("soft.tar", "held2.tar")), "both read")
    pictures = lay_out(place("meet-pictures"), [f"{i:02}.png" for i in range(20)])
    t.run("data", "prepare", pictures, "--out", t.work / "meet-set", "--validation", "0.2", "--shard-samples", "4")
    split = t.work / "meet-set/.nv-meta/split.yaml"
    path = recipe("meet-set", dict(path=str(t.work / "meet-set"), label="none"), **validates)
    fine(path)
    t.refused(2, ["held out"], "config", "check", path, *t.sets({"data.validation_split": "train"}))
    text = split.read_text()
    split.write_text(text.replace("validation-000000.tar", "train-000000.tar"))
    t.refused(2, ["held out", "train-000000.tar"], "config", "check", path)
    split.write_text(text.replace("train-000001.tar", "train-000000.tar"))
    t.refused(4, ["twice"], "config", "check", path)


def rows(path, names):
    path.write_text("path\n" + "".join(f"{name}\n" for name in names))
    return path


def test_pictures_of_tables_that_are_learned_from_and_held_out_are_refused():
    folder = lay_out(place("meet-tables"), [f"{i:02}.png" for i in range(8)])
    if not (folder / "soft.png").exists():
        os.symlink("00.png", folder / "soft.png")
        os.link(folder / "00.png", folder / "hard.png")
        os.symlink(".", folder / "round")
        shutil.copy(folder / "00.png", folder / "copy.png")
    rows(folder / "learned.csv", [f"{i:02}.png" for i in range(6)])
    def held_out(name, names, **sections):
        rows(folder / f"{name}.csv", names)
        sections = dict(validate=dict(every=1, samples=4, grid_every=0)) | sections
        return t.write_recipe(f"{name}.toml", t.recipe(data=None, run=dict(name=name, steps=1, batch=4), **sections) | {
            "data": dict(plugin="table", table=f"{folder}/learned.csv", validation_table=f"{folder}/{name}.csv", channels=1, size=[8, 8])})
    for number, name in enumerate(some(["00.png", "./00.png", "round/00.png", "soft.png", str(folder / "00.png"), "hard.png"])):
        t.refused(2, ["held out", "00.png" if number < 3 else "png"], "config", "check",
                  held_out(f"table-{number}", ["06.png", "07.png", name]))
    fine(held_out("table-apart", ["06.png", "07.png", "copy.png"]))
    for part in ("train", "val"):
        lay_out(folder / part, ["0.png", "1.png"])
    rows(folder / "learned.csv", ["train/0.png", "val/1.png"])
    fine(held_out("table-parts", ["06.png", "07.png"]), '"val/1.png" is held out by its folder')
    (folder / "learned.csv").write_text("path,Split\n00.png,train\n01.png,test\n02.png,train\n")
    fine(held_out("table-column", ["06.png", "07.png"]), "the column Split says which rows are held out")
    rows(folder / "learned.csv", ["00.png", "01.png", "./00.png"])
    fine(held_out("table-twice", ["06.png", "07.png"]), "rows are the same")


# --- names that disagree ------------------------------------------------------------------------------------------------


def prepared(name, kinds):
    folder = t.work / name
    if not folder.exists():
        lay_out(place(f"{name}-pictures"), [f"{kind}/{i}.png" for kind in kinds for i in range(4)])
        t.run("data", "prepare", t.work / f"{name}-pictures", "--out", folder)
    return folder


def renamings(kinds):
    """(the recipe's names, whether they are refused, what is said else)"""
    yield list(kinds[::-1]), True, None
    yield list(kinds[1:] + kinds[:1]), True, None
    swapped = list(kinds)
    swapped[0], swapped[-1] = swapped[-1], swapped[0]
    yield swapped, True, None
    yield [kinds[1], "other"] + list(kinds[2:]), True, None
    yield [name.upper() for name in kinds[::-1]], True, None
    yield list(kinds), False, None
    yield [name.title() for name in kinds], False, None
    yield ["other"] + list(kinds[1:]), False, "\"other\""
    yield [f"class {i}" for i in range(len(kinds))], False, "\"class 0\""


def test_names_of_a_recipe_that_stand_at_other_numbers_are_refused():
    variants = [(number, kinds, *one) for number, kinds in enumerate((("cat", "dog"), ("ant", "bee", "cow"), ("1", "2", "3")))
                for one in renamings(kinds)]
    for number, kinds, names, is_refused, said in some(variants):
        folder = prepared(f"named-{number}", kinds)
        for data in (dict(shards=[f"{folder}/*.tar"]), dict(path=str(folder), label="cls"))[:2 if t.slow or number == 0 else 1]:
            path = recipe("named", data | dict(classes=len(names), names=names))
            if is_refused:
                t.refused(2, ["data.names", "classes.json"], "config", "check", path)
            else:
                fine(path, *([said] if said else []))
    # Without classes.json the samples' own notes say it.
    alone = place("named-alone")
    shutil.copy(prepared("named-0", ("cat", "dog")) / "train-000000.tar", alone / "one.tar")
    data = dict(shards=[f"{alone}/*.tar"], classes=2)
    t.refused(2, ["data.names", "json"], "config", "check", recipe("noted", data | dict(names=["dog", "cat"])))
    fine(recipe("noted", data | dict(names=["puma", "dog"])), "\"puma\"")
    s.tar(alone / "two.tar", [x for i in range(4) for x in ((f"{i}.png", bad_files.png(i)), (f"{i}.cls", b"%d" % (i % 2)),
                                                           (f"{i}.json", json.dumps({"class": ("dog", "cat")[i % 2]}).encode()))])
    t.refused(2, ["data.shards", "cat", "dog"], "config", "check", recipe("noted", data))
    t.check("classes.json" not in t.run("data", "verify", prepared("named-0", ("cat", "dog"))).all, "whole notes are a problem")
    (prepared("named-0", ("cat", "dog")) / "classes.json").write_text('["dog", "cat"]')
    done = t.run("data", "verify", t.work / "named-0/train-000000.tar", code=4)
    t.check("calls label 0 \"cat\", and classes.json beside the shard \"dog\"" in done.all, done.all)


def test_names_that_a_checkpoint_has_at_other_numbers_are_refused():
    folder = place("renumbered")
    s.tar(folder / "a.tar", [x for i in range(8) for x in ((f"{i}.png", bad_files.png(i)), (f"{i}.cls", b"%d" % (i % 2)))])
    data = dict(shards=[f"{folder}/a.tar"], classes=2)
    def write(names):
        (folder / "classes.json").write_text(json.dumps(names))
    write(["cat", "dog"])
    path = recipe("renumbered", data)
    t.train(path, "renumbered-run")
    again = ("train", path, *t.sets({"run.output": str(t.work / "renumbered-run"), "run.steps": 2}))
    fresh = ("train", path, *t.sets({"run.output": str(t.work / "renumbered-new"), "run.init_from": str(t.work / "renumbered-run")}))
    write(["dog", "cat"])
    for words in (again, fresh):
        t.refused(2, ["\"label\" 0 is called \"cat\" in", "and \"dog\" in today's data", "--allow-change data.names"], *words)
    t.train(path, "renumbered-other")
    t.refused(2, ["network \"guide\"", "\"label\" 0 is called \"cat\" there", "and \"dog\" in the run's data"], "sample", t.work / "renumbered-other",
              "--out", t.work / "renumbered-out", *t.sets({"guidance.plugin": "autoguidance", "network.guide.weights": str(t.work / "renumbered-run")}))
    write(["cat", "wolf"])
    done = t.run(*again)
    t.check("\"label\" 1 is called \"dog\" in" in done.all and "\"wolf\" in today's data" in done.all, done.all)
    write(["dog", "cat"])
    t.run(*fresh, "--allow-change", "data.names")


# --- several pictures in a sample ---------------------------------------------------------------------------------------

KINDS = ["png", "jpg", "jpeg", "webp", "avif"]


def test_which_of_several_pictures_is_meant_has_to_be_said():
    pairs = [(a, b) for a in KINDS for b in KINDS if a != b] + [("png", "tif"), ("jpg", "gif"), ("webp", "bmp")]
    for number, (a, b) in enumerate(some(pairs)):
        folder = place(f"several-{number}")
        # Some samples alone have two; and nothing is decoded before it is known.
        members = [x for i in range(6) for x in ((f"{i}.{a}", bad_files.png(i)), *([(f"{i}.{b}", bad_files.png(9))] if i % 2 or number % 2 else []))]
        s.tar(folder / "a.tar", members)
        path = recipe(f"several-{number}", dict(shards=[f"{folder}/a.tar"], label="none"))
        t.refused(2, ["data.image", f".{a}", f".{b}"], "config", "check", path)
        if number == 0:
            t.refused(2, ["data.image"], "train", path)
            t.train(path, "several-run", data__image=[a])
        fine(recipe(f"several-{number}-said", dict(shards=[f"{folder}/a.tar"], label="none", image=[a])))
    s.tar(place("beside") / "a.tar", [x for i in range(4) for x in ((f"{i}.png", bad_files.png(i)), (f"{i}.mp4", b"no video"))])
    fine(recipe("beside", dict(shards=[f"{t.work}/beside/a.tar"], label="none")), "0.mp4", "data.image")


def test_a_folder_with_photos_and_masks_of_one_name_is_said():
    folder = lay_out(place("masked"), [f"{i}.{end}" for i in range(3) for end in ("png", "jpg")])
    done = t.run("data", "prepare", folder, "--out", t.work / "masked-out")
    t.check("3 pictures differ from another's by the suffix alone (0.jpg and 0.png)" in done.all, done.all)
    os.symlink("0.png", folder / "again.png")
    done = t.run("data", "prepare", folder, "--out", t.work / "linked-out")
    t.check("1 picture is the same file as another (0.png and again.png)" in done.all, done.all)


# --- a request that is met with something else --------------------------------------------------------------------------


def test_captions_that_nobody_takes_are_said():
    path = recipe("captions", dict(shards=[f"{s.captioned_set()}/*.tar"], caption="txt"))
    said = '"caption" is not used'
    fine(path, said)
    done = t.train(path, "captions")
    t.check(said in done.all, done.all)
    t.check("is not used" not in fine(recipe("no-captions", dict(shards=[f"{s.captioned_set()}/*.tar"]))).all, "what is not there")


def test_what_falls_away_of_pictures_that_are_not_square_is_said():
    folder = place("sides")
    from_sides = {f"{i}.png": sides for i, sides in enumerate([(8, 8), (8, 16), (20, 8), (8, 10), (12, 12)])}
    for name, (height, width) in from_sides.items():
        (folder / name).write_bytes(grey_png(height, width))
    shares = sorted(1 - min(sides) / max(sides) for sides in from_sides.values() if sides[0] != sides[1])
    done = t.run("data", "prepare", folder, "--out", t.work / "sides-out", "--size", "8")
    t.check(f"{len(shares)} of {len(from_sides)} pictures are not square" in done.all, done.all)
    t.check(f"{100 * shares[0]:.2g} % to {100 * shares[-1]:.2g} % are cut off" in done.all, done.all)
    done = t.run("data", "prepare", folder, "--out", t.work / "sides-whole", "--validation", "0.1")
    t.check("not square" not in done.all and "no sample is held out" in done.all, done.all)


def grey_png(height, width):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    rows_of = b"".join(b"\0" + bytes([(7 * y) % 256]) * width for y in range(height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) + \
        chunk(b"IDAT", zlib.compress(rows_of)) + chunk(b"IEND", b"")


def test_init_holds_out_a_sample_for_each_level_or_none():
    t.only_slow()
    for pictures, kinds, held_out in ((31, 1, 0), (32, 1, 8), (60, 1, 8), (60, 20, 8), (200, 2, 10)):
        name = f"held-{pictures}-{kinds}"
        lay_out(place(name), [f"{i % kinds}/{i}.png" if kinds > 1 else f"{i}.png" for i in range(pictures)])
        done = t.run("init", t.work / name, "--out", t.work / f"{name}.toml")
        t.check(f"{pictures - held_out} pictures to train on, {held_out} held out" in done.all, done.all)
        t.equal("validation_shards" in (t.work / f"{name}.toml").read_text(), held_out > 0, "whether it validates")


def test_init_learns_from_no_shard_that_is_held_out_by_its_name():
    t.only_slow()
    folder = place("other-names")
    for number, name in enumerate(("set-train-000000", "set-train-000001", "set-val-000000", "set-test-000000")):
        s.tar(folder / f"{name}.tar", [(f"{number}{i:03}.png", bad_files.png(i)) for i in range(10)])
    done = t.run("init", folder, "--out", t.work / "other-names.toml")
    text = (t.work / "other-names.toml").read_text()
    t.check('shards = ["other-names/set-train-*.tar"]' in text, text)
    t.check('validation_shards = ["other-names/set-val-*.tar"]' in text, text)
    t.check("set-test-000000.tar" in done.all and "20 pictures to train on, 10 held out" in done.all, done.all)


t.main(globals())
