"""Weights out and in again without data: the file, its folder and its notes say what model they are of. And a training that
starts from a model which is not quite its own.

Claim (weights): An import needs no data and no recipe: file and config.json say which model it is, and a recipe that says
otherwise is refused. Also: `foreign_needs_test.cpp`

Claim (weights): A training starts from a model of other classes, blocks or size, on any layout alike, and says what was new,
skipped, interpolated. Also: `checkpoint_fit_test.cpp`
"""

import json
import pathlib
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
from unets import UNETS  # noqa: E402

_made = []


def exported():
    """The folder that diffusers would read, of a run whose recipe says everything."""
    if not _made:
        path = t.write_recipe("taught.toml", t.recipe(run=dict(name="taught", steps=6), model=dict(convention="diffusers"),
                                                      lr_schedule=dict(lr=3e-3, warmup=0)))
        t.train(path, "taught")
        t.run("checkpoint", "export", t.work / "taught", "--format", "diffusers", "--out", t.work / "folder")
        _made.append(t.work / "folder")
    return _made[0]


def copy_of(folder, name):
    return shutil.copytree(folder, t.work / name)


def bare_recipe(name, **sections):
    """Of the model alone: no data, no encoder."""
    return t.write_recipe(name, t.recipe(data=None, encoder__image=None, **sections))


def import_from(path, out, *words):
    t.run("checkpoint", "import", path, "--format", "diffusers", "--out", t.work / out, *words)
    return t.work / out


def weights_of(checkpoint, section):
    return {name: tensor for (kind, name), tensor in t.tensors_of(checkpoint).items() if kind == section}


def test_a_folder_is_as_diffusers_keeps_it():
    folder = exported()
    t.equal(sorted(path.name for path in folder.iterdir()),
            ["README.md", "config.json", "diffusion_pytorch_model.safetensors", "scheduler_config.json"], "files")
    config = json.loads((folder / "config.json").read_text())
    expected = dict(_class_name="DiTTransformer2DModel", num_attention_heads=4, attention_head_dim=8, in_channels=1, out_channels=1,
                    num_layers=2, sample_size=8, patch_size=2, num_embeds_ada_norm=10, norm_eps=1e-5)
    t.equal({key: config[key] for key in expected}, expected, "config.json")
    t.equal(json.loads((folder / "scheduler_config.json").read_text()),
            dict(_class_name="FlowMatchEulerDiscreteScheduler", invert_sigmas=False, num_train_timesteps=1000, shift=1.0),
            "scheduler_config.json")


def test_a_card_says_what_the_weights_are():
    folder = copy_of(exported(), "card")
    card = (folder / "README.md").read_text()
    for part in ("---\nlicense: \"unknown\"\n", "library_name: diffusers\n", "# taught\n", "average of step 6", "| samples learned from | 96 |", "| data | ",
                 "```toml\n", "[model]\n"):
        t.check(part in card, f"the card lacks {part!r}:", card)
    t.check(str(t.work) not in card, "the card says where things lie:", card)
    export = ["checkpoint", "export", t.work / "taught", "--format", "diffusers", "--out", folder]
    t.run(*export, "--license", "cc0-1.0")
    t.check("license: \"cc0-1.0\"" in (folder / "README.md").read_text(), "the license that was said")
    (folder / "README.md").write_text("# Mine\n")
    done = t.run(*export)
    t.check("README.md is there and stays" in done.all, done.all)
    t.equal((folder / "README.md").read_text(), "# Mine\n", "a card that somebody wrote")
    (t.work / "taught/samples").mkdir(exist_ok=True)
    (t.work / "taught/samples/step_00000006.png").write_bytes(b"a picture")
    (t.work / "taught/samples/step_00000007.png").write_bytes(b"of later")
    t.run("checkpoint", "export", t.work / "taught", "--format", "diffusers", "--out", t.work / "one.safetensors")
    t.check("![samples](one-samples.png)" in (t.work / "one.md").read_text(), "the card of a file")
    t.equal((t.work / "one-samples.png").read_bytes(), b"a picture", "the sheet of that step")


def test_an_export_may_be_of_several_files_and_of_half_the_bits():
    folder = exported()
    whole = t.read_tensors(folder / "diffusion_pytorch_model.safetensors")
    export = ["checkpoint", "export", t.work / "taught", "--format", "diffusers", "--out"]
    t.run(*export, t.work / "sharded", "--shard-size", "40KB")
    index = json.loads((t.work / "sharded/diffusion_pytorch_model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    t.check(len(files) > 1, "one file of", files)
    parts = {}
    for file in files:
        t.check((t.work / "sharded" / file).stat().st_size < 50000, f"{file} is larger than asked for and its header")
        parts |= t.read_tensors(t.work / "sharded" / file)
    t.equal(parts == whole, True, "all bits of all files")
    made = import_from(t.work / "sharded", "from-sharded")
    t.equal(weights_of(made, "model") == weights_of(t.latest("taught"), "ema"), True, "all bits of the weights")
    t.run(*export, t.work / "half", "--dtype", "bf16")
    made = import_from(t.work / "half", "from-half")
    t.run("checkpoint", "export", made, "--format", "diffusers", "--out", t.work / "half-again", "--dtype", "bf16")
    name = "diffusion_pytorch_model.safetensors"
    t.equal(t.read_tensors(t.work / "half" / name) == t.read_tensors(t.work / "half-again" / name), True, "bits in bf16")
    large = copy_of(folder, "large") / name
    large.write_bytes(large.read_bytes()[:-4] + struct.pack("<f", 7e4))  # above what fp16 holds
    made = import_from(large.parent, "from-large")
    t.refused(7, ["too large for Half"], "checkpoint", "export", made, "--format", "diffusers", "--out", t.work / "never", "--dtype", "fp16")
    for size in ("0", "5XB", "GB", "-1GB"):
        t.refused(2, ["--shard-size", "no number of bytes"], *export, t.work / "never", f"--shard-size={size}")


def test_an_import_needs_no_data_whatever_the_recipe_says_of_it():
    ways = {"no-recipe": [], "bare": ["--recipe", bare_recipe("bare.toml")],
            "no-shards": ["--recipe", t.write_recipe("no-shards.toml", t.recipe(data=dict(shards=["nowhere-*.tar"])))]}
    taught = weights_of(t.latest("taught") if exported() else None, "ema")
    t.run("sample", t.work / "taught", "--out", t.work / "a", "--seeds", "0-3", "--save-latents", t.work / "a.safetensors")
    for name, words in ways.items():
        made = import_from(exported(), name, *words)
        t.equal(weights_of(made, "model") == taught, True, f"all bits of the weights, {name}")
        t.run("sample", made, "--out", t.work / f"{name}-pictures", "--seeds", "0-3", "--weights", "weights",
              "--save-latents", t.work / f"{name}.safetensors")
        t.equal(t.read_tensors(t.work / f"{name}.safetensors") == t.read_tensors(t.work / "a.safetensors"), True,
                f"all bits of samples, {name}")


def test_a_file_of_another_program_says_its_shapes_with_its_config():
    folder = copy_of(exported(), "theirs")
    t.without_notes(folder / "diffusion_pytorch_model.safetensors")
    made = import_from(folder, "from-theirs", "--set", "model.plugin=dit")
    t.equal(weights_of(made, "model") == weights_of(t.latest("taught"), "ema"), True, "all bits of the weights")
    (t.work / "pipeline").mkdir()
    folder = folder.rename(t.work / "pipeline/transformer")  # as a pipeline keeps it
    import_from(t.work / "pipeline", "from-pipeline", "--recipe", bare_recipe("bare.toml"))
    refuse = lambda code, parts, *words: t.refused(
        code, parts, "checkpoint", "import", folder, "--format", "diffusers", "--out", t.work / "never", *words)
    refuse(2, ["which model", "--set model.plugin=NAME"])
    refuse(2, ["model.depth is 3", "it is 2"], "--recipe", bare_recipe("deep.toml", model=dict(depth=3)))
    refuse(2, ["model.heads is 8", "it is 4"], "--recipe", bare_recipe("heads.toml", model=dict(heads=8)))
    refuse(2, ["iddpm", "learns 2 channels", "has 1"], "--recipe", bare_recipe("learned.toml", scheduler=dict(plugin="iddpm")))
    config = json.loads((folder / "config.json").read_text())
    for text, parts in (("{", ["config.json", "not JSON"]), ("[]", ["config.json", "no JSON object"]),
                        (json.dumps(config | {"num_layers": 3}), ["config.json", '"num_layers" is 3', "has 2"]),
                        (json.dumps(config | {"sample_size": None}), ["config.json", 'no "sample_size"'])):
        (folder / "config.json").write_text(text)
        refuse(7, parts, "--set", "model.plugin=dit")
    (folder / "config.json").unlink()
    refuse(7, ["no config.json beside it"], "--set", "model.plugin=dit")
    (folder / "diffusion_pytorch_model.safetensors").unlink()
    refuse(7, ["folder without diffusion_pytorch_model.safetensors"], "--set", "model.plugin=dit")
    t.check(not (t.work / "never").exists(), "a refused import left something")


def test_a_training_needs_its_recipe_and_its_moments():
    words = ["checkpoint", "import", exported(), "--format", "diffusers", "--optimizer", "--out", t.work / "never"]
    t.refused(2, ["--optimizer", "--recipe FILE"], *words)
    t.refused(7, ["no state of torch's Adam"], *words, "--recipe", t.write_recipe("training.toml", t.recipe(
        model=dict(convention="diffusers"))))
    t.refused(2, ["[optimizer]", "is not Adam's"], *words, "--recipe", t.write_recipe("sgd.toml", t.recipe(
        model=dict(convention="diffusers"), optimizer=dict(plugin="sgd"))))
    t.check(not (t.work / "never").exists(), "a refused import left something")


def test_what_a_facebook_file_does_not_say_has_to_be_said():
    path = t.write_recipe("facebook.toml", t.recipe(run=dict(name="facebook", steps=1)))
    t.train(path, "facebook")
    file = t.work / "facebook.safetensors"
    t.run("checkpoint", "export", t.work / "facebook", "--format", "facebook-dit", "--out", file)
    t.run("checkpoint", "import", file, "--format", "facebook-dit", "--out", t.work / "noted")
    t.without_notes(file)
    words = ["checkpoint", "import", file, "--format", "facebook-dit", "--set", "model.plugin=dit", "--out"]
    t.refused(2, ["model.heads is not said"], *words, t.work / "never")
    t.run(*words, t.work / "said", "--set", "model.heads=4")
    for name in ("noted", "said"):
        t.equal(weights_of(t.work / name, "model") == weights_of(t.latest("facebook"), "ema"), True, f"weights, {name}")
    t.refused(2, ["--out", "is a folder"], "checkpoint", "export", t.work / "facebook", "--format", "facebook-dit", "--out",
              t.work / "facebook-folder")
    t.check(not (t.work / "facebook-folder").exists(), "a refused export left a folder")


def test_no_export_replaces_another_models_configuration():
    folder = copy_of(exported(), "kept")
    export = ["checkpoint", "export", t.work / "taught", "--format", "diffusers", "--out"]
    t.run(*export, folder, "--weights", "weights")  # the same model again
    for name in ("config.json", "scheduler_config.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("8", "9").replace("1000", "999"))
        before = (folder / "diffusion_pytorch_model.safetensors").read_bytes()
        t.refused(2, [f"kept/{name}", "of another model"], *export, folder)
        t.refused(2, [f"kept/{name}", "of another model"], *export, folder / "beside.safetensors")
        t.equal((folder / "diffusion_pytorch_model.safetensors").read_bytes() == before, True, "weights that were there")
        t.check(not (folder / "beside.safetensors").exists(), "a refused export left weights")
        (folder / name).write_text(text)
    t.run(*export, folder / "beside.safetensors")


def test_a_model_that_diffusers_has_not_is_not_exported_as_its():
    path = t.write_recipe("wide-mlp.toml", t.recipe(run=dict(name="wide-mlp", steps=1),
                                                    model=dict(convention="diffusers", mlp_ratio=2)))
    t.train(path, "wide-mlp")
    t.refused(2, ["DiTTransformer2DModel", "4 times its width"], "checkpoint", "export", t.work / "wide-mlp", "--format",
              "diffusers", "--out", t.work / "never")


# --- starting from another model ---------------------------------------------------------------------------------------


def start(folder, *words, ranks=1, **options):
    """Three classes, three blocks and larger pictures, from a model of ten, two and small ones."""
    tree = t.recipe(run=dict(name="start", steps=3, batch=8, micro_batch=2), data=t.synthetic(classes=3, height=16, width=16),
                    model=dict(depth=3, convention="diffusers"))
    exported()
    given = {"run.init_from": str(t.work / "taught"), "run.output": str(t.work / folder)} | options
    return [t.write_recipe("start.toml", tree), *t.sets(given), *(["--local-ranks", ranks] if ranks > 1 else []), *words]


FIT = {"run.init_missing": "new", "run.init_other_shape": "skip"}


def test_a_training_starts_from_another_number_of_classes_and_blocks_and_another_size():
    done = t.run("train", *start("more", **FIT))
    t.check("skipped (1): label.table [11, 32] -> [4, 32]" in done.all, "no word of the label table:", done.all)
    new = next(line for line in done.all.splitlines() if "new (" in line)
    t.check("new (10): blocks.2.down.bias, " in new and "blocks.1." not in new, "the new block's tensors:", new)
    first = t.run("train", *start("start", **FIT, **{"run.steps": 0}))
    begun, taught = weights_of(t.latest("start"), "model"), weights_of(t.latest("taught"), "ema")
    for name, tensor in begun.items():
        taken = name != "label.table" and not name.startswith("blocks.2.")
        t.equal(tensor == taught.get(name), taken, f"{name} is the taught model's")
    t.check("into " in first.all, first.all)


def test_weights_of_another_function_are_told():
    path = t.write_recipe("heads.toml", t.recipe(run=dict(name="heads", steps=1), model=dict(heads=2, convention="diffusers")))
    exported()
    done = t.run("train", path, *t.sets({"run.init_from": str(t.work / "taught"), "run.output": str(t.work / "heads"),
                                         "scheduler.shift": 3.0}))
    t.check("they were learned with model.heads = 4 (here 2), scheduler.shift = 1.0 (here 3.0)" in done.all, done.all)


def test_a_forward_of_a_recipe_begins_with_what_the_run_would():
    exported()
    t.write_tensors(t.work / "in.safetensors", {"x": ("F32", [1, 1, 8, 8], [i / 64 for i in range(64)]),
                                                "t": ("F32", [1], [300.0]), "label": ("I64", [1], [3])})
    path = t.write_recipe("begun.toml", t.recipe(model=dict(convention="diffusers")))
    given = t.sets({"run.init_from": str(t.work / "taught")})
    for name, words in (("run", [t.work / "taught"]), ("recipe", [path, *given]), ("anew", [path])):
        t.run("forward", *words, "--in", t.work / "in.safetensors", "--out", t.work / f"{name}.safetensors")
    made = {name: t.read_tensors(t.work / f"{name}.safetensors")["prediction"] for name in ("run", "recipe", "anew")}
    t.equal(made["recipe"], made["run"], "a forward of the recipe")
    t.check(made["anew"] != made["run"], "weights that were taught make no difference")


def test_an_import_replaces_no_training():
    folder = exported()
    shutil.copytree(t.work / "taught", t.work / "kept-training", symlinks=True)
    place = t.latest("kept-training")
    before = t.tensors_of(place)
    t.refused(7, ["is the checkpoint of a training"], "checkpoint", "import", folder, "--format", "diffusers", "--out", place)
    t.equal(t.tensors_of(place) == before, True, "the checkpoint that was there")


def test_a_resume_needs_no_model_to_start_from():
    exported()
    base = copy_of(t.work / "taught", "base")
    begun = start("goes-on", **FIT, **{"run.init_from": str(base), "run.steps": 1})
    t.run("train", *begun)
    shutil.rmtree(base)
    done = t.run("train", *begun, "--set", "run.steps=2")
    t.check("resumed from" in done.all and "weights from" not in done.all, done.all)
    t.refused(7, ["base"], "train", *begun, "--resume", "never")


def test_it_starts_alike_on_every_layout():
    t.run("train", *start("one", **FIT))
    for name, ranks, options in (("ddp", 2, {}), ("fsdp", 2, {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}),
                                 ("pipeline", 2, {"parallel.pipeline": 2})):
        done = t.run("train", *start(name, ranks=ranks, **FIT, **options))
        t.check("new (10): blocks.2.down.bias, " in done.all and "skipped (1): label.table" in done.all, name, done.all)
        t.same_metrics(name, "one")


def test_fewer_blocks_leave_some_out_where_that_is_said():
    fewer = {"run.init_other_shape": "skip", "model.depth": 1}
    t.refused(7, ["blocks.1.", "no place here", 'run.init_extra = "skip"'], "train", *start("fewer", **fewer))
    done = t.run("train", *start("fewer", **fewer, **{"run.init_extra": "skip"}))
    t.check("left out (10): blocks.1.down.bias, " in done.all, done.all)


def test_what_does_not_fit_is_refused_unless_it_is_said():
    t.refused(7, ["tensor 'blocks.2.", "is not there", 'start from what fits: run.init_missing = "new"'], "train", *start("no", **{"run.init_other_shape": "skip"}))
    t.refused(7, ["tensor 'label.table' is F32 [11, 32] there and F32 [4, 32] here", 'run.init_other_shape = "skip"'], "train",
              *start("no", **{"run.init_missing": "new"}))
    t.refused(2, ["run.init_other_shape", '"positions"', "no learned table of positions"], "train",
              *start("no", **FIT | {"run.init_other_shape": "positions"}))
    t.refused(2, ["run.init_missing", "run.init_from names none"], "train", *start("no", **FIT | {"run.init_from": ""}))
    t.refused(2, ["run.init_extra", '"refuse"', '"skip"'], "train", *start("no", **{"run.init_extra": "new"}))


def test_nemos_unet_goes_in_by_the_recipe_it_was_trained_with():
    """One number stands for the blocks of all levels in a recipe, and a file without our notes tells each level's."""
    path = t.write_recipe("blocks.toml", t.recipe(run=dict(name="blocks", steps=1, batch=2), data=t.synthetic(text_tokens=6, text_width=64),
                                                  model=dict(plugin="imagen_unet") | UNETS["imagen_unet"]))
    t.train(path, "blocks")
    t.run("checkpoint", "export", t.work / "blocks", "--format", "nemo", "--out", t.work / "noted.safetensors")
    tensors = t.read_tensors(t.work / "noted.safetensors")
    t.write_tensors(t.work / "theirs.safetensors", {name: (*one[:2], t.numbers(one)) for name, one in tensors.items()})
    words = ["checkpoint", "import", t.work / "theirs.safetensors", "--format", "nemo", "--recipe", path]
    t.run(*words, "--out", t.work / "by-recipe")
    t.run("checkpoint", "export", t.work / "by-recipe", "--format", "nemo", "--out", t.work / "again.safetensors")
    t.equal(t.read_tensors(t.work / "again.safetensors"), tensors, "tensors")
    t.refused(2, ["num_res_blocks", "[1, 1]"], *words, "--set", "model.num_res_blocks=[2]", "--out", t.work / "other-blocks")


if __name__ == "__main__":
    t.main(globals())
