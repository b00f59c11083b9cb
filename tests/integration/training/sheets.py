"""Sheets that a training draws: of classes a column each and no empty cell, of [[validate.picture]] what it says, with the request
in the PNG; what the model does not take is refused before the run.

Claim (options): A picture of [[validate.picture]] has the same pixels whatever else the list has, on one rank and on two, and they are
those of `ditto sample` with the same seed, class, guidance, size and steps.
"""

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import encoders  # noqa: E402

GAP = 2
CELL = 64
GREY = 128


def tiny(pictures=(), steps=2, **sections):
    base = dict(run=dict(steps=steps, batch=4, micro_batch=2), lr_schedule=dict(lr=0.05, warmup=0), data=t.synthetic(samples=16), validate=dict(grid_every=2), checkpoint=dict(every=0),
                model=dict(plugin="dit", depth=1, width=32, heads=4, patch=2))
    tree = {name: base.get(name, {}) | sections.get(name, {}) for name in base | sections}
    if pictures:
        tree["validate"]["picture"] = list(pictures)
    return t.recipe(**tree)


def sheet_of(folder):
    (path,) = (t.work / folder / "samples").glob("*.png")
    width, height, channels, pixels, texts = t.read_png(path)
    return width, height, channels, pixels, json.loads(texts["ditto"]), path.read_bytes()


def cells(sheet, size=(CELL, CELL)):
    """The cells' pixels, row by row. `size`: height and width of a cell."""
    width, height, channels, pixels = sheet[:4]
    columns, rows = (width - GAP) // (size[1] + GAP), (height - GAP) // (size[0] + GAP)
    t.equal((width, height), (GAP + columns * (size[1] + GAP), GAP + rows * (size[0] + GAP)), "size of a sheet")
    found = []
    for place in range(rows * columns):
        top, left = GAP + place // columns * (size[0] + GAP), GAP + place % columns * (size[1] + GAP)
        found.append(b"".join(pixels[((top + y) * width + left) * channels:((top + y) * width + left + size[1]) * channels]
                              for y in range(size[0])))
    return columns, rows, found


def test_classes_have_a_column_each_and_no_cell_is_empty():
    # of 10 classes: what grid says, and columns and rows of it; of more classes than pictures as near to a square as whole rows are
    for grid, columns, rows in ((40, 10, 4), (16, 10, 2), (10, 10, 1), (6, 3, 2), (4, 2, 2)):
        name = f"columns-{grid}"
        done = t.train(t.write_recipe("columns.toml", tiny()), name, validate__grid=grid)
        sheet = sheet_of(name)
        found = cells(sheet)
        t.equal(found[:2], (columns, rows), f"columns and rows of {grid} pictures of ten classes")
        t.check(all(set(cell) != {GREY} for cell in found[2]), f"an empty cell of {grid}")
        pictures = sheet[4]["pictures"]
        t.equal([(one["seed"], one["class"]) for one in pictures], [(i, i % 10) for i in range(columns * rows)], "what they are of")
        t.check(f"sheets: {columns * rows} pictures" in done.all, done.all)
        t.check(("a column a class" in done.all) == (columns == 10), done.all)
    t.train(t.work / "columns.toml", "chosen", validate__grid=16, log__grid_columns=4)
    t.equal(cells(sheet_of("chosen"))[:2], (4, 4), "columns and rows that are chosen")


def test_a_sheet_of_texts_says_which_they_are():
    sections = dict(model=dict(plugin="dit_text", depth=1, width=32, heads=4, patch=2),
                    data=t.synthetic(samples=16, text_tokens=3, text_width=8))
    done = t.train(t.write_recipe("texts.toml", tiny(**sections, validate=dict(grid_every=2, grid=6))), "texts")
    t.check("sheets: 6 pictures, of what the first samples to learn from have as conditions" in done.all, done.all)
    sheet = sheet_of("texts")
    t.equal(cells(sheet)[:2], (3, 2), "columns and rows")
    t.equal([one["sample"] for one in sheet[4]["pictures"]], list(range(6)), "samples whose texts they have")


PICTURES = [dict(seed=7, **{"class": 3}), dict(guidance=3.0, **{"class": "5"}), dict(steps=2, seed=7, **{"class": 3}), dict(seed=7)]


def test_pictures_of_the_list_are_those_that_sample_makes():
    path = t.write_recipe("list.toml", tiny(PICTURES))
    done = t.train(path, "list")
    t.check("sheets: the pictures of [[validate.picture]], 4 in all" in done.all, done.all)
    sheet = sheet_of("list")
    t.equal([(one["seed"], one["class"], one["steps"], one.get("guidance")) for one in sheet[4]["pictures"]],
            [(7, 3, 4, None), (1, 5, 4, 3.0), (7, 3, 2, None), (7, 3, 4, None)], "what stands in the PNG")
    columns, rows, found = cells(sheet)
    t.equal((columns, rows), (2, 2), "columns and rows of four")
    t.check(found[0] == found[3] and len(set(found)) == 3, "pictures of one request, and of others")  # the fourth's class is 3 too
    for place, words in ((0, ["--seeds", 7, "--classes", 3]), (1, ["--seeds", 1, "--classes", 5, "--guidance", 3]),
                         (2, ["--seeds", 7, "--classes", 3, "--steps", 2])):
        folder = f"sampled-{place}"
        t.run("sample", t.work / "list", "--out", t.work / folder, *words)
        (picture,) = (one for one in (t.work / folder).glob("0*.png"))
        width, height, _, pixels, _ = t.read_png(picture)
        larger = b"".join(bytes(pixels[y // 8 * width + x // 8] for x in range(8 * width)) for y in range(8 * height))
        t.check(found[place] == larger, f"picture {place} is another one than `ditto sample` makes")
    # whatever else the list has, on two ranks, and by the run's own recipe
    others = [dict(seed=9), *[{key: one[key] for key in ("seed", "class", "steps", "guidance") if key in one}
                              for one in reversed(sheet[4]["pictures"])]]
    t.train(t.write_recipe("more.toml", tiny([*others, dict(seed=11)])), "more")
    t.equal(cells(sheet_of("more"))[2][1:5], found[::-1], "the same in another order, behind another picture")
    t.train(path, "two", "--local-ranks", 2)
    t.train(t.work / "list/run.toml", "again")
    for other in ("again", "two"):
        t.check(sheet_of(other)[5] == sheet[5], f"{other}: another sheet")
    t.train(path, "none", validate__picture=[])
    t.equal(len(sheet_of("none")[4]["pictures"]), 20, "pictures without the list")


def test_sizes_and_conditions_are_those_of_each_picture():
    draw = random.Random(36)
    (t.work / "given").mkdir()
    t.write_tensors(t.work / "given/kite.safetensors", {"text": ("F32", [1, 3, 8], [draw.gauss(0, 1) for _ in range(24)])})
    t.write_tensors(t.work / "given/two.safetensors", {"text": ("F32", [2, 3, 8], [draw.gauss(0, 1) for _ in range(48)])})
    sections = dict(model=dict(plugin="dit_text", depth=1, width=32, heads=4, patch=2, rotary=True),
                    data=t.synthetic(samples=16, text_tokens=3, text_width=8), log=dict(grid_cell=8))
    pictures = [dict(condition="kite.safetensors"), dict(condition="kite.safetensors", seed=0, size="8x16")]
    path = t.write_recipe("given/sizes.toml", tiny(pictures, **sections))
    t.train(path, "sizes")
    sheet = sheet_of("sizes")
    t.equal([(one["condition"], one.get("size")) for one in sheet[4]["pictures"]],
            [("kite.safetensors", None), ("kite.safetensors", [8, 16])], "what stands in the PNG")
    columns, rows, found = cells(sheet, (8, 16))
    t.equal((columns, rows), (2, 1), "columns and rows")
    t.equal([cell.count(GREY) >= 64 for cell in found], [True, False], "the smaller one stands in the middle of its cell")
    several = t.write_recipe("given/several.toml", tiny([dict(condition="two.safetensors")], **sections))
    t.refused(2, ["several.toml:", "validate.picture.0.condition names a file of 2 rows"], "config", "check", several)
    nothing = t.write_recipe("given/nothing.toml", tiny([dict(seed=3)], **sections))
    t.refused(2, ["validate.picture.0 gives no \"text\"", "add condition"], "config", "check", nothing)


def test_a_prompt_is_encoded_for_its_picture():
    path = encoders.recipe("prompts", "fp32", lr_schedule=dict(lr=0.05, warmup=0))
    path.write_text(path.read_text() + '[[validate.picture]]\nprompt = "a seven"\n[[validate.picture]]\nprompt = "a nine !!"\nseed = 0\n')
    t.train(path, "prompts", validate__grid_every=3)
    sheet = sheet_of("prompts")
    t.equal([one["prompt"] for one in sheet[4]["pictures"]], ["a seven", "a nine !!"], "what stands in the PNG")
    found = cells(sheet)[2]
    t.check(found[0] != found[1], "two prompts, one picture")


REFUSED = [
    (dict(**{"class": 10}), ["validate.picture.0.class is \"10\"", "its classes are 0 to 9"], {}),
    (dict(**{"class": "cat"}), ["validate.picture.0.class is \"cat\""], {}),
    (dict(prompt="a cat"), ["validate.picture.0.prompt is a text", "does not take"], {}),
    (dict(prompt="a\0b"), ["validate.picture.0.prompt holds a NUL"], {}),
    (dict(size="8"), ["validate.picture.0.size is \"8\"", "HEIGHTxWIDTH"], {}),
    (dict(size="9x9"), ["9"], {}),
    (dict(steps=2000), ["cannot choose 2000 of 1000 times"], dict(scheduler=dict(plugin="iddpm"), sampler=dict(plugin="ddim", steps=4))),
    (dict(guidance=3.0), ["validate.picture.0.guidance would have no effect"], dict(data=t.synthetic(samples=16, classes=0))),
    (dict(**{"class": 1}), ["takes no class"], dict(data=t.synthetic(samples=16, classes=0))),
]


def test_what_the_model_does_not_take_is_refused_before_the_run():
    for number, (picture, parts, sections) in enumerate(REFUSED):
        path = t.write_recipe(f"refused-{number}.toml", tiny([picture], **sections))
        t.refused(2, parts, "config", "check", path)
        t.refused(2, parts, "train", path, *t.sets({"run.output": str(t.work / f"refused-{number}")}))
        t.equal(t.lines_in(f"refused-{number}"), 0, "steps")
    t.write_tensors(t.work / "pixels.safetensors", {"pixels": ("F32", [1, 2], [0.0, 1.0])})
    path = t.write_recipe("other.toml", tiny([dict(condition="pixels.safetensors")]))
    t.refused(4, ["has \"pixels\", which the model does not take"], "config", "check", path)
    path = t.write_recipe("missing.toml", tiny([dict(condition="none.safetensors")]))
    t.refused(4, ["none.safetensors"], "config", "check", path)


if __name__ == "__main__":
    t.main(globals())
