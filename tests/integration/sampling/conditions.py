"""Samples of every model by what it takes: classes by name, texts from files; pictures, videos, arrays and latents."""

import array
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

_trained = {}
WIDTH, LONGEST = 12, 6  # of the tiny recipes' texts


def trained(name, **options):
    """A recipe of configs/, trained for a few steps."""
    if name not in _trained:
        given = {"run__steps": 3, "run__threads": 1, "data__samples": 32} | options
        t.train(t.source / f"configs/{name}.toml", name, "--set", 'sampler.plugin="euler"', "--set", "sampler.steps=3", **given)
        _trained[name] = t.work / name
    return _trained[name]


def texts(file, rows, lengths=None, seed=0, width=WIDTH, dtype="F32"):
    """A condition file of so many texts; row i is of lengths[i] tokens."""
    draw, path = random.Random(seed), t.work / f"{file}.safetensors"
    numbers = [draw.gauss(0, 1) for _ in range(rows * LONGEST * width)]
    tensors = {"text": (dtype, [rows, LONGEST, width], numbers)}
    if lengths:
        tensors["text_mask"] = ("BOOL", [rows, LONGEST], [place < length for length in lengths for place in range(LONGEST)])
    t.write_tensors(path, tensors)
    return path


def sample(run, folder, *arguments, batch=2):
    return t.run("sample", run, "--out", t.work / folder, "--batch", batch, *arguments)


def latents(folder):
    return t.read_tensors(t.work / f"{folder}.safetensors")["latents"]


def save(folder):
    return "--save-latents", t.work / f"{folder}.safetensors"


def on_one_and_two_ranks(run, name, *arguments):
    """The samples' bits on one rank and on two; the folder of the first."""
    sample(run, name, *save(name), *arguments)
    sample(run, f"{name}-2", *save(f"{name}-2"), "--local-ranks", 2, *arguments)
    t.equal(latents(name) == latents(f"{name}-2"), True, f"all bits of {name} on two ranks")
    return t.work / name


def frames(path):
    """(width, height, durations) of a WebP: RIFF's chunks, and what each ANMF says."""
    data = path.read_bytes()
    t.equal((data[:4], data[8:12], struct.unpack("<I", data[4:8])[0]), (b"RIFF", b"WEBP", len(data) - 8), f"head of {path}")
    at, size, durations = 12, None, []
    while at < len(data):
        name, length = struct.unpack("<4sI", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if name == b"VP8X":
            size = tuple(1 + int.from_bytes(body[begin:begin + 3], "little") for begin in (4, 7))
        if name == b"ANMF":
            durations.append(int.from_bytes(body[12:15], "little"))
        at += 8 + length + length % 2
    if shutil.which("webpmux"):
        told = subprocess.run(["webpmux", "-info", str(path)], capture_output=True, text=True, check=True).stdout
        t.check(f"Number of frames: {len(durations)}" in told, told)
    return size[0], size[1], durations


def arrays(path):
    """{name: (dtype, shape, bytes)} of an npz, as NumPy reads it."""
    result = {}
    with zipfile.ZipFile(path) as archive:
        t.equal(archive.testzip(), None, f"damage in {path}")
        for entry in archive.infolist():
            t.equal(entry.compress_type, zipfile.ZIP_STORED, f"compression of {entry.filename}")
            data = archive.read(entry)
            t.equal(data[:8], b"\x93NUMPY\x01\x00", f"head of {entry.filename}")
            length = struct.unpack("<H", data[8:10])[0]
            head = eval(data[10:10 + length], {"__builtins__": {}})
            t.equal(head["fortran_order"], False, "order")
            result[entry.filename] = head["descr"], head["shape"], data[10 + length:]
    return result


# --- every model --------------------------------------------------------------------------------------------------------


def test_texts_from_a_file_make_pictures_with_the_same_bits_on_two_ranks():
    run = trained("dit_text_tiny")
    five = texts("five", 5, [6, 1, 3, 2, 5])
    folder = on_one_and_two_ranks(run, "texts", "--condition", five, "--guidance", 3)
    t.equal(sorted(os.listdir(folder)), [f"00000{i}.png" for i in range(5)] + ["grid.png", "samples.jsonl"], "a picture a row")
    lines = t.lines_of(folder / "samples.jsonl")
    t.equal([(line["seed"], line["row"], line["condition"]) for line in lines],
            [(i, i, "five.safetensors") for i in range(5)], "rows")

    # The third row alone is the third text; one row is for all samples.
    rows = t.numbers(t.read_tensors(five)["text"])
    third = t.work / "third.safetensors"
    one = {"text": ("F32", [1, LONGEST, WIDTH], rows[2 * LONGEST * WIDTH:3 * LONGEST * WIDTH]),
           "text_mask": ("BOOL", [1, LONGEST], [1, 1, 1, 0, 0, 0])}
    t.write_tensors(third, one)
    size = 3 * 8 * 8 * 4
    sample(run, "by-one", *save("by-one"), "--condition", five, "--guidance", 3, batch=1)
    sample(run, "third-alone", *save("third-alone"), "--condition", third, "--guidance", 3, "--seeds", "2,3", batch=1)
    t.check(latents("third-alone")[2][:size] == latents("by-one")[2][2 * size:3 * size], "the third text by itself")
    t.check(latents("third-alone")[2][size:] != latents("by-one")[2][3 * size:4 * size], "seed 3 with another text")
    sample(run, "sixteen", "--condition", third)
    t.equal(len(t.lines_of(t.work / "sixteen/samples.jsonl")), 16, "samples of one text, without --seeds")


def test_a_mask_that_is_left_out_is_true_everywhere():
    run = trained("dit_text_tiny")
    sample(run, "unmasked", *save("unmasked"), "--condition", texts("unmasked-texts", 2))
    sample(run, "all-there", *save("all-there"), "--condition", texts("masked-texts", 2, [LONGEST] * 2))
    t.check(latents("unmasked") == latents("all-there"), "the mask that is left out is another one")


def test_negative_conditions_stand_in_the_place_of_the_null_condition():
    run = trained("dit_text_tiny")
    five, other = texts("negated", 3, [6, 1, 3]), texts("away", 1, [4], seed=9)
    ask = ["--condition", five, "--guidance", 3]
    folder = on_one_and_two_ranks(run, "away-from", *ask, "--negative", other)
    t.equal(t.lines_of(folder / "samples.jsonl")[0]["negative"], "away.safetensors", "the settings")
    sample(run, "null", *save("null"), *ask)
    t.check(latents("null") != latents("away-from"), "--negative changed nothing")
    # An empty text is the null condition; c + 3 (c - c) is c.
    sample(run, "empty", *save("empty"), *ask, "--negative", texts("empty-text", 1, [0]))
    t.check(latents("empty") == latents("null"), "the empty text is not the null condition")
    sample(run, "itself", *save("itself"), *ask, "--negative", five)
    sample(run, "plain", *save("plain"), "--condition", five, "--guidance", 1)
    apart = max(abs(a - b) for a, b in zip(t.numbers(latents("itself")), t.numbers(latents("plain"))))
    t.check(apart < 1e-4, f"guided away from its own text a sample is {apart} from itself")
    t.refused(2, ["--negative", "not used by this guidance"], "sample", run, "--out", t.work / "never", "--condition", five,
              "--negative", other, "--steps", 1_000_000, timeout=60)


def forward(run, x, time, text, name):
    """What `ditto forward` predicts for two samples with these texts: (numbers, mask) of so many tokens each."""
    numbers, mask = text
    t.write_tensors(t.work / f"{name}.safetensors",
                    {"x": ("F32", [2, 3, 8, 8], x), "t": ("F32", [2], [1000 * time] * 2),
                     "text": ("F32", [2, len(mask) // 2, WIDTH], numbers), "text_mask": ("BOOL", [2, len(mask) // 2], mask)})
    t.run("forward", run, "--in", t.work / f"{name}.safetensors", "--out", t.work / f"{name}-out.safetensors")
    return t.numbers(t.read_tensors(t.work / f"{name}-out.safetensors")["prediction"])


def test_text_and_negative_of_other_lengths_are_two_forwards_combined_by_hand():
    run = trained("dit_text_tiny")
    draw = random.Random(4)
    noise = [draw.gauss(0, 1) for _ in range(2 * 3 * 8 * 8)]
    t.write_tensors(t.work / "start.safetensors", {"noise": ("F32", [2, 3, 8, 8], noise)})

    def text(name, lengths, tokens):
        mask = [place < length for length in lengths for place in range(tokens)]
        numbers = [draw.gauss(0, 1) for _ in range(2 * tokens * WIDTH)]
        t.write_tensors(t.work / f"{name}.safetensors", {"text": ("F32", [2, tokens, WIDTH], numbers),
                                                         "text_mask": ("BOOL", [2, tokens], mask)})
        return numbers, mask

    long, short = text("long", [6, 3], 6), text("short", [4, 2], 4)
    for name, given, away in (("long-short", long, short), ("short-long", short, long)):
        one, other = name.split("-")
        sample(run, name, *save(name), "--condition", t.work / f"{one}.safetensors", "--negative", t.work / f"{other}.safetensors",
               "--guidance", 3, "--steps", 2, "--noise", t.work / "start.safetensors", "--seeds", "0-1")
        x = noise
        for time, dt in ((1.0, 0.5), (0.5, 0.5)):  # a velocity, in two steps of Euler's
            a, b = forward(run, x, time, given, "given"), forward(run, x, time, away, "away")
            x = [value - dt * (without + 3 * (there - without)) for value, there, without in zip(x, a, b)]
        apart = max(abs(a - b) for a, b in zip(t.numbers(latents(name)), x))
        t.check(apart < 1e-5, f"{name}: sampling differs by {apart} from two forwards a step")


def test_videos_are_animated_webp_with_the_same_bits_on_two_ranks():
    run = trained("st_dit_tiny")
    three = texts("three", 3, [2, 6, 4])
    folder = on_one_and_two_ranks(run, "videos", "--condition", three, "--seeds", "4,4,5", "--fps", 10)
    names = ["000004.webp", "000004-1.webp", "000005.webp"]
    t.equal(sorted(os.listdir(folder)), sorted([*names, "grid.webp", "samples.jsonl"]), "files")
    for name in names:
        t.equal(frames(folder / name), (8, 8, [100] * 4), f"size and times of {name}")
    t.equal(frames(folder / "grid.webp")[2], [100] * 4, "times of the sheet")
    t.equal([(line["file"], line["fps"], line["size"]) for line in t.lines_of(folder / "samples.jsonl")],
            [(name, "10.0", [4, 8, 8]) for name in names], "samples.jsonl")
    t.equal(latents("videos")[:2], ("F32", [3, 3, 4, 8, 8]), "latents")

    sample(run, "larger", "--condition", three, "--size", "6x4x16", *save("larger"), "--npz", t.work / "videos.npz")
    t.equal(frames(t.work / "larger/000000.webp"), (16, 4, [125] * 6), "a video of another size")
    t.equal(latents("larger")[1], [3, 3, 6, 4, 16], "its latents")
    t.equal(arrays(t.work / "videos.npz")["arr_0.npy"][:2], ("|u1", (3, 6, 4, 16, 3)), "videos as arrays")


def test_experts_make_the_same_bits_on_two_ranks():
    on_one_and_two_ranks(trained("dit_moe_tiny"), "experts", "--classes", "2,0,1", "--seeds", "0-4", "--guidance", 2)


def test_sheets_while_training_show_every_model():
    tiny = ["run.steps=2", "run.threads=1", "data.samples=32", "validate.grid_every=1", "validate.grid=3",
            'sampler.plugin="euler"', "sampler.steps=2"]
    words = [word for one in tiny for word in ("--set", one)]
    for name in ("dit_text_tiny", "st_dit_tiny", "dit_moe_tiny"):
        t.run("train", t.source / f"configs/{name}.toml", *words, "--set", f'run.output="{t.work}/sheets-{name}"')
        suffix = "webp" if name == "st_dit_tiny" else "png"
        folder = t.work / f"sheets-{name}/samples"
        t.equal(sorted(os.listdir(folder)), [f"step_0000000{step}.{suffix}" for step in (1, 2)], f"sheets of {name}")
        if suffix == "webp":
            t.equal(len(frames(folder / "step_00000002.webp")[2]), 4, "frames of a sheet")
        t.check((folder / f"step_00000001.{suffix}").read_bytes() != (folder / f"step_00000002.{suffix}").read_bytes(),
                f"{name}: two steps have one sheet")
    path = t.write_recipe("digits.toml", t.recipe(run=dict(steps=2), validate=dict(grid_every=1, grid=4)))
    t.train(path, "sheets-dit")
    t.equal(sorted(os.listdir(t.work / "sheets-dit/samples")), ["step_00000001.png", "step_00000002.png"], "sheets of dit")


# --- classes, names, sizes, files ---------------------------------------------------------------------------------------


def digits():
    if "digits" not in _trained:
        names = ["nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
        path = t.write_recipe("named.toml", t.recipe(run=dict(name="named", steps=3), data=dict(names=names)))
        t.train(path, "named")
        _trained["digits"] = t.work / "named"
    return _trained["digits"]


def test_classes_are_asked_for_by_number_and_by_name():
    sample(digits(), "named-classes", "--classes", "seven,2-3,nought", "--seeds", "0-4")
    lines = t.lines_of(t.work / "named-classes/samples.jsonl")
    t.equal([(line["class"], line["class_name"]) for line in lines],
            [(7, "seven"), (2, "two"), (3, "three"), (0, "nought"), (7, "seven")], "classes")
    t.refused(2, ['"sevn" is not a class', 'did you mean "seven"?'], "sample", digits(), "--out", t.work / "never",
              "--classes", "sevn")
    label = t.work / "labels.safetensors"
    t.write_tensors(label, {"label": ("I64", [3], [7, 2, 3])})
    sample(digits(), "file-classes", "--condition", label, *save("file-classes"))
    sample(digits(), "word-classes", "--classes", "7,2,3", "--seeds", "0-2", *save("word-classes"))
    t.check(latents("file-classes") == latents("word-classes"), "a file's classes are not those of --classes")
    t.refused(2, ['gives "label"', "given already"], "sample", digits(), "--out", t.work / "never", "--condition", label,
              "--classes", "7")


def test_files_have_the_names_that_are_asked_for():
    sample(digits(), "patterns", "--name", "{class}/x-{seed}-{index}", "--classes", "3,4", "--seeds", "5,5,6")
    files = sorted(str(path.relative_to(t.work / "patterns")) for path in (t.work / "patterns").rglob("*.png"))
    t.equal(files, ["000003/x-000005-000000.png", "000003/x-000006-000002.png", "000004/x-000005-000001.png", "grid.png"],
            "files")


def test_another_size_is_sampled_or_refused_naming_the_patch():
    sample(digits(), "wide", "--size", "4x12", "--seeds", "0-2", *save("wide"))
    t.equal(t.read_png(t.work / "wide/000001.png")[:3], (12, 4, 1), "size of a picture")
    t.equal(latents("wide")[1], [3, 1, 4, 12], "latents")
    t.refused(2, ["--size 9x8", "9 x 8", "patches of 2"], "sample", digits(), "--out", t.work / "never", "--size", "9x8")
    text = texts("for-sizes", 1)
    t.refused(2, ["--size 4x8x9", "patches of"], "sample", trained("st_dit_tiny"), "--out", t.work / "never", "--condition",
              text, "--size", "4x8x9")
    t.refused(2, ["--size 8x8", "makes videos", "FRAMESxHEIGHTxWIDTH"], "sample", trained("st_dit_tiny"), "--out",
              t.work / "never", "--condition", text, "--size", "8x8")


def test_arrays_hold_all_samples_and_their_classes():
    npz = t.work / "all.npz"
    done = t.run("sample", digits(), "--npz", npz, "--seeds", "0-4", "--classes", "3,1", "--batch", 2)
    t.check("5 samples as arrays" in done.stdout, done.stdout)
    sample(digits(), "as-pictures", "--seeds", "0-4", "--classes", "3,1", "--npz", t.work / "again.npz")
    t.check(npz.read_bytes() == (t.work / "again.npz").read_bytes(), "the same samples make other arrays")
    found = arrays(npz)
    t.equal({name: value[:2] for name, value in found.items()},
            {"arr_0.npy": ("|u1", (5, 8, 8, 1)), "arr_1.npy": ("<i8", (5,))}, "arrays")
    pictures = b"".join(t.read_png(t.work / f"as-pictures/00000{seed}.png")[3] for seed in range(5))
    t.check(found["arr_0.npy"][2] == pictures, "arr_0 is not the pictures")
    classes = array.array("q")
    classes.frombytes(found["arr_1.npy"][2])
    t.equal(list(classes), [3, 1, 3, 1, 3], "classes")
    try:
        import numpy
    except ImportError:
        return
    with numpy.load(npz) as loaded:
        t.equal((loaded["arr_0"].shape, str(loaded["arr_1"].dtype)), ((5, 8, 8, 1), "int64"), "what NumPy reads")


def test_json_is_all_that_stands_on_the_standard_output():
    for ranks in ([], ["--local-ranks", 2]):
        done = sample(digits(), "json", "--seeds", "3,3", "--classes", "five", "--json", "--npz", t.work / "j.npz", *save("json"),
                      "--overwrite", *ranks)
        told = json.loads(done.stdout)
        t.equal([(one["file"], one["seed"], one["class"]) for one in told["samples"]],
                [("000003.png", 3, 5), ("000003-1.png", 3, 5)], "samples")
        t.equal((told["count"], told["grid"], told["latents"], told["npz"]),
                (2, "grid.png", str(t.work / "json.safetensors"), str(t.work / "j.npz")), "files")
        t.equal(told["settings"]["sampler"]["plugin"], "euler", "settings")


# --- what is refused ------------------------------------------------------------------------------------------------------


def test_wrong_condition_files_end_with_one_error_each_before_anything_is_computed():
    run, never = trained("dit_text_tiny"), ["--out", t.work / "never", "--steps", 1_000_000]
    def file(name, **tensors):
        path = t.work / f"bad-{name}.safetensors"
        t.write_tensors(path, {key: (dtype, shape, values) for key, (dtype, shape, values) in tensors.items()})
        return path
    numbers = [0.5] * (2 * LONGEST * WIDTH)
    text, mask = ("F32", [2, LONGEST, WIDTH], numbers), ("BOOL", [2, LONGEST], [1] * 2 * LONGEST)
    for name, tensors, seeds, parts in (
            ("rows", dict(text=text), "0-2", ["has 2 rows", "3 samples"]),
            ("width", dict(text=("F32", [2, 8, 9], numbers)), "0-1", ["[2, 8, 9]", "[any, any, 12]"]),
            ("dims", dict(text=("F32", [24, 6], numbers)), "0-1", ["[24, 6]", "[any, any, 12]"]),
            ("dtype", dict(text=("I64", [2, LONGEST, WIDTH], [1] * len(numbers))), "0-1", ["Long", "Float"]),
            ("nan", dict(text=("F32", [2, LONGEST, WIDTH], [math.nan] + numbers[1:])), "0-1", ["\"text\"", "not finite"]),
            ("mask-dtype", dict(text=text, text_mask=("F32", [2, LONGEST], [1.0] * 2 * LONGEST)), "0-1", ["text_mask", "Bool"]),
            ("mask-length", dict(text=text, text_mask=("BOOL", [2, 4], [1] * 8)), "0-1", ["lengths must agree"]),
            ("uneven", dict(text=text, text_mask=("BOOL", [3, LONGEST], [1] * 18)), "0-1", ["rows"]),
            ("name", dict(text=text, words=mask), "0-1", ["has \"words\"", "does not take", "\"text\""])):
        path = file(name, **tensors)
        t.refused(4, [path.name, *parts], "sample", run, *never, "--condition", path, "--seeds", seeds, timeout=60)
        if name in ("rows", "nan"):
            t.refused(4, [path.name, *parts], "sample", run, *never, "--condition", texts("good-one", 1), "--negative", path,
                      "--seeds", seeds, "--guidance", 2, timeout=60)
    t.refused(4, ["nowhere.safetensors"], "sample", run, *never, "--condition", t.work / "nowhere.safetensors", timeout=60)
    t.refused(2, ['takes "text"', "nobody gave it", "--condition"], "sample", run, *never, timeout=60)
    t.refused(2, ['takes "text"', "--condition"], "sample", run, *never, "--condition",
              file("mask-alone", text_mask=mask), timeout=60)
    t.refused(2, ["--classes", "no classes"], "sample", run, *never, "--classes", "1", "--condition", texts("good-one", 1), timeout=60)
    t.refused(2, ["--prompts", "no encoder", "--condition"], "sample", run, *never, "--prompts", "a cat", timeout=60)
    t.refused(4, ["holds 10", "0 to 9"], "sample", digits(), *never, "--condition",
              file("label", label=("I64", [2], [3, 10])), timeout=60)
    t.check(not (t.work / "never").exists(), "a refused command left a folder")


if __name__ == "__main__":
    t.main(globals())
