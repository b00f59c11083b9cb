"""Encoders with weights: frozen networks that are cut as the model is, in training and in sampling; and what is refused of
them."""

import functools
import io
import json
import pathlib
import random
import shutil
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import dry_run  # noqa: E402

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
LAYOUTS = {
    "ddp": (2, {}),
    "fsdp": (2, {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}),
    "tensor": (2, {"parallel.tensor": 2, "parallel.sequence": True}),
    "ring": (2, {"parallel.context": 2, "parallel.context_plugin": "ring"}),
    "pipeline": (2, {"parallel.pipeline": 2}),
}


@functools.cache
def plugins():
    folder = t.work / "plugins"
    folder.mkdir()
    for name in ("bytes_text.so", "shifted.so", "shifted_model.so", "half_decoded.so"):
        shutil.copy(t.build / "tests/fixture_plugins" / name, folder)
    t.environment["DITTO_PLUGIN_PATH"] = str(folder)


@functools.cache
def captioned():
    """Digits, each with a sentence of another length."""
    path = t.work / "captioned.tar"
    with tarfile.open(t.digits / "train-000000.tar") as there, tarfile.open(path, "w") as here:
        members = there.getmembers()[:64]
        for member in members:
            data = there.extractfile(member).read()
            here.addfile(member, io.BytesIO(data))
            if member.name.endswith(".cls"):
                number = int(data)
                text = ("a " + WORDS[number] + " " + "!" * (int(member.name[:6]) % 5)).encode()
                info = tarfile.TarInfo(member.name[:-3] + "txt")
                info.size = len(text)
                here.addfile(info, io.BytesIO(text))
    return str(path)


@functools.cache
def held_out():
    """The same ones: what is compared are layouts."""
    return str(shutil.copy(captioned(), t.work / "captioned-held-out.tar"))


def tensors(width=12, seed=1, depth=2):
    """Of bytes_text, by its own names."""
    shapes = {"bytes.table": [256, width]}
    for i in range(depth):
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in {
            "norm.weight": [width], "attn.q.weight": [width, width], "attn.q.bias": [width], "attn.kv.weight": [2 * width, width],
            "attn.kv.bias": [2 * width], "attn.proj.weight": [width, width], "attn.proj.bias": [width],
            "mlp.up.weight": [4 * width, width], "mlp.up.bias": [4 * width], "mlp.down.weight": [width, 4 * width],
            "mlp.down.bias": [width]}.items()}
    draw = random.Random(seed)
    return {name: ("F32", shape, [draw.gauss(0, 0.3) for _ in range(t.product(shape))]) for name, shape in shapes.items()}


@functools.cache
def weights(name="text", width=12, seed=1):
    path = t.work / f"{name}.safetensors"
    t.write_tensors(path, tensors(width, seed))
    return str(path)


def recipe(name, precision="fp64", encoder=None, **sections):
    plugins()
    own = dict(plugin="bytes_text", noise=0.1, weights=weights()) | (encoder or {})
    tree = t.recipe(run=dict(name=name, steps=3, precision=precision, batch=8, micro_batch=4),
                    data=dict(shards=[captioned()], validation_shards=[held_out()], caption="txt"),
                    model=dict(plugin="dit_text", depth=2, width=32, heads=4, patch=2), encoder__text=own,
                    validate=dict(every=3, samples=12), **sections)
    return t.write_recipe(f"{name}.toml", {key: {k: v for k, v in options.items() if v is not None} for key, options in tree.items()})


def near(a, b, what):
    t.check(abs(a - b) <= 1e-12 * max(1, abs(a), abs(b)), f"{what}: {a!r} and {b!r}")


# --- training ----------------------------------------------------------------------------------------------------------


def test_a_model_learns_alike_on_every_layout_that_its_encoder_is_cut_by():
    path = recipe("alike")
    t.train(path, "one")
    one = t.tensors_of(t.latest("one"))
    t.check(not any("bytes" in name for _, name in one), "a checkpoint holds the encoder's weights")
    for layout, (ranks, sets) in LAYOUTS.items():
        t.train(path, layout, "--local-ranks", ranks, *t.sets(sets))
        for mine, other in zip(t.metrics("one"), t.metrics(layout)):
            for key in ("loss", "grad_norm"):
                near(float(mine[key]), float(other[key]), f"{layout}, step {mine['step']}: {key}")
        there = t.tensors_of(t.latest(layout))
        t.equal(sorted(there), sorted(one), f"tensors under {layout}")
        for key, tensor in one.items():
            worst = max((abs(a - b) for a, b in zip(t.numbers(tensor), t.numbers(there[key]))), default=0)
            t.check(worst <= 1e-12, f"{layout}: {key} differs by {worst}")


def test_the_encoder_counts():
    """Other texts, other draws: another training."""
    path = recipe("counts")
    t.train(path, "quiet", encoder__text__noise=0.0)
    t.train(path, "other-text", encoder__text__weights=weights("other", 12, 2))
    losses = [t.metrics(folder)[-1]["loss"] for folder in ("one", "quiet", "other-text")]
    t.equal(len(set(losses)), 3, f"different losses of {losses}")


def test_all_bits_are_one_ranks_where_fsdp_cuts_it():
    path = recipe("bits", "fp32")
    for name, sets in (("same", {}), ("bf16", {"encoder.text.precision": "bf16"})):
        t.train(path, f"{name}-one", *t.sets(sets))
        t.train(path, f"{name}-fsdp", "--local-ranks", 2, *t.sets(LAYOUTS["fsdp"][1] | sets))
        t.same_metrics(f"{name}-one", f"{name}-fsdp")
        t.same_state(f"{name}-one", f"{name}-fsdp")
    weights_of = {name: t.tensors_of(t.latest(f"{name}-one")) for name in ("same", "bf16")}
    t.check(weights_of["same"] != weights_of["bf16"], "bf16 makes no difference")
    t.train(path, "whole", "--local-ranks", 2, *t.sets(LAYOUTS["tensor"][1] | {"encoder.text.parallel.tensor": 1}))


def test_ranks_without_a_micro_batch_keep_in_step():
    path = recipe("uneven", "fp32")
    sets = {"run.batch": 9, "run.micro_batch": 3}
    t.train(path, "uneven-one", *t.sets(sets))
    t.train(path, "uneven-fsdp", "--local-ranks", 2, *t.sets(LAYOUTS["fsdp"][1] | sets))
    t.same_metrics("uneven-one", "uneven-fsdp")


def test_a_run_goes_on_bit_for_bit():
    path = recipe("goes-on", "fp32")
    t.goes_on_bit_for_bit(path)


def test_weights_come_by_other_names_and_in_several_files():
    apart, width = {}, 12
    for name, (dtype, shape, values) in tensors().items():
        if "kv." in name:
            half = len(values) // 2
            for key, part in (("k.", values[:half]), ("v.", values[half:])):
                apart["encoder." + name.replace("kv.", key)] = (dtype, [shape[0] // 2, *shape[1:]], part)
        else:
            apart["encoder." + name] = (dtype, shape, values)
    folder = t.work / "in-files"
    folder.mkdir()
    names = sorted(apart)
    map_of = {}
    for i in range(2):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        t.write_tensors(folder / file, {name: apart[name] for name in names[i::2]})
        map_of |= {name: file for name in names[i::2]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": map_of}))
    path = recipe("named")
    t.train(path, "named-one", *t.sets({"run.precision": "fp32"}))
    for layout in ("fsdp", "tensor"):
        sets = {"encoder.text.weights": str(folder), "encoder.text.format": "apart", "run.precision": "fp32"} | LAYOUTS[layout][1]
        t.train(path, f"named-{layout}", "--local-ranks", 2, *t.sets(sets))
        first, other = t.metrics("named-one")[0]["loss"], t.metrics(f"named-{layout}")[0]["loss"]
        t.check(first == other if layout == "fsdp" else abs(float(first) - float(other)) < 1e-6, f"{layout}: {first}, {other}")

    def refused(parts, change):
        index = {"metadata": {}, "weight_map": dict(map_of)}
        change(index["weight_map"])
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        t.refused(7, parts, "train", path, *t.sets({"run.output": str(t.work / "never"), "encoder.text.weights": str(folder),
                                                    "encoder.text.format": "apart"}))

    name = names[0]
    refused(["no file of weights beside it"], lambda of: of.update({name: "../text.safetensors"}))
    refused(["holds tensor", "it does not"], lambda of: of.update({"nobody": "model-00001-of-00002.safetensors"}))
    refused(["does not say that", name], lambda of: of.pop(name))


# --- memory ------------------------------------------------------------------------------------------------------------


def test_an_encoder_that_is_cut_holds_its_share_and_a_dry_run_says_it():
    path = recipe("wide", "fp32", dict(width=64, weights=weights("wide", 64)))
    one = dry_run.measured(path, "wide-one", 1)[0]["frozen"]
    said, _, _ = dry_run.dry(path)
    count = sum(t.product(shape) for _, shape, _ in tensors(64).values())
    t.equal(said["frozen_parameters"], {"encoder.text": count}, "frozen numbers")
    t.equal((said["first"]["bytes"]["frozen"], one), (4 * count, 4 * count), "bytes of a whole encoder")
    for name, sets in (("fsdp", {}), ("tensor", {}), ("fsdp", {"encoder.text.precision": "bf16"})):
        sets = LAYOUTS[name][1] | sets
        bytes_of = 2 if "encoder.text.precision" in sets else 4
        options = {key.replace(".", "__"): value for key, value in sets.items()}
        found = dry_run.measured(path, f"wide-{name}-{bytes_of}", 2, **options)
        said, _, _ = dry_run.dry(path, "--ranks", "2", **options)
        for which in ("first", "largest"):
            rank = said[which]["rank"]
            t.equal(said[which]["bytes"]["frozen"], found[rank]["frozen"], f"{name}: dry run's bytes of rank {rank}")
        held = [found[rank]["frozen"] for rank in (0, 1)]
        if name == "fsdp":
            t.equal(sum(held), bytes_of * count, "bytes of both ranks")
        t.check(max(held) < 0.53 * bytes_of * count or name == "tensor", f"{name}: {held} of {bytes_of * count} bytes")
        t.check(max(held) < 0.75 * bytes_of * count, f"{name}: {held} of {bytes_of * count} bytes")


# --- sampling ----------------------------------------------------------------------------------------------------------


def latents(run, folder, *words, ranks=1, sets=None, prompts="a seven"):
    where = t.work / f"{folder}.safetensors"
    t.run("sample", run, "--out", t.work / folder, "--prompts", prompts, "--seeds", "0-3", "--batch", 2, "--save-latents", where,
          *(("--local-ranks", ranks) if ranks > 1 else ()), *t.sets(sets or {}), *words)
    return t.read_tensors(where)["latents"]


@functools.cache
def trained():
    t.train(recipe("samples", "fp32"), "samples", validate__grid_every=3)
    t.check(list((t.work / "samples").rglob("*.png")), "no sheet of samples")
    return t.work / "samples"


def test_prompts_are_encoded_where_the_encoder_is_cut():
    one = latents(trained(), "prompted")
    t.check(latents(trained(), "prompted-2", prompts="a nine !!") != one, "another prompt, the same pictures")
    for name in ("ddp", "fsdp", "tensor", "pipeline"):
        other = latents(trained(), f"prompted-{name}", ranks=2, sets=LAYOUTS[name][1])
        if name != "tensor":
            t.equal(other == one, True, f"all bits under {name}")
        worst = max(abs(a - b) for a, b in zip(t.numbers(one), t.numbers(other)))
        t.check(worst < 1e-5, f"under {name} samples differ by {worst}")


def test_a_decoder_with_weights_is_run_by_all_ranks():
    plugins()
    t.write_tensors(t.work / "shift.safetensors", {"by.shift": ("F32", [1, 8, 8], [i / 64 for i in range(64)])})
    path = t.write_recipe("shifted.toml", t.recipe(run=dict(name="shifted", steps=2), validate=dict(every=0, grid_every=2, grid=4),
                                                   encoder__image=dict(plugin="shifted", weights="shift.safetensors")))
    t.train(path, "shifted")
    words = ["sample", t.work / "shifted", "--seeds", "0-4", "--batch", 2, "--classes", "3"]
    t.run(*words, "--out", t.work / "shifted-1")
    for name in ("ddp", "fsdp"):
        t.train(path, f"shifted-{name}", "--local-ranks", 2, *t.sets(LAYOUTS[name][1]))
        t.run(*words, "--out", t.work / f"shifted-{name}-2", "--local-ranks", 2, *t.sets(LAYOUTS[name][1]))
        for i in range(5):
            file = f"00000{i}.png"
            t.equal((t.work / f"shifted-{name}-2" / file).read_bytes() == (t.work / "shifted-1" / file).read_bytes(), True, f"{name}: {file}")


def test_weights_are_found_relative_to_the_recipe_that_named_them():
    folder = t.work / "there"
    folder.mkdir()
    shutil.copy(weights(), folder / "text.safetensors")
    path = recipe("relative", "fp32", dict(weights="text.safetensors")).rename(folder / "relative.toml")
    t.train(path, "relative")
    elsewhere = t.work / "elsewhere"
    elsewhere.mkdir()
    words = ["sample", t.work / "relative", "--prompts", "a one", "--seeds", "0", "--overwrite", "--out", t.work / "found"]
    t.run(*words, cwd=elsewhere)
    (folder / "text.safetensors").rename(folder / "moved.safetensors")
    t.refused(7, ["encoder.text.weights", "there/text.safetensors is not there", "--set encoder.text.weights=FILE"], *words, cwd=elsewhere)
    t.run(*words, *t.sets({"encoder.text.weights": str(folder / "moved.safetensors")}), cwd=elsewhere)
    t.refused(7, ["other weights than [encoder.text]"], *words, *t.sets({"encoder.text.weights": weights("other", 12, 2)}))
    t.run("checkpoint", "inspect", t.work / "relative")


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_are_refused_by_name():
    path = recipe("refused")

    def refused(code, parts, *words, **options):
        sets = {"run.output": str(t.work / "never")} | {"encoder.text." + key: value for key, value in options.items()}
        t.refused(code, parts, "train", path, *t.sets(sets), *words)

    def file(name, change):
        own = tensors()
        change(own)
        t.write_tensors(t.work / f"{name}.safetensors", own)
        return str(t.work / f"{name}.safetensors")

    refused(7, ["missing.safetensors", "tensor 'bytes.table' is missing"], weights=file("missing", lambda own: own.pop("bytes.table")))
    refused(7, ["surplus.safetensors", "tensor 'decoder.x' has no place"],
            weights=file("surplus", lambda own: own.update({"decoder.x": ("F32", [1], [1.0])})))
    refused(7, ["shape.safetensors", "tensor 'blocks.1.norm.weight' is [11] there and [12] here", "[encoder.text]"],
            weights=file("shape", lambda own: own.update({"blocks.1.norm.weight": ("F32", [11], [1.0] * 11)})))
    refused(7, ["nan.safetensors", "not finite"],
            weights=file("nan", lambda own: own.update({"blocks.1.norm.weight": ("F32", [12], [float("nan")] * 12)})))
    refused(7, ["few.safetensors", "'blocks.0."], "--local-ranks", "2", *t.sets(LAYOUTS["fsdp"][1]),
            weights=file("few", lambda own: [own.pop(name) for name in list(own) if name.startswith("blocks.0.")]))
    refused(7, ["encoder.text.weights", "nowhere is not there"], weights="nowhere")
    refused(2, ['no format "klingon"', "it has: apart"], format="klingon")
    refused(2, ["precision", "fp12"], precision="fp12")
    refused(2, ["weigths"], weigths="x")
    refused(2, ["encoder.text.parallel.tensor", "1:"], **{"parallel.tensor": 2})
    refused(2, ["encoder.text.parallel", 'no axis "tenser"'], **{"parallel.tenser": 1})
    t.equal(list((t.work / "never").glob("checkpoints/*")), [], "checkpoints that refused runs left")


def test_weights_stand_where_there_are_parameters_and_nowhere_else():
    path = recipe("bare", "fp64", dict(weights=None))
    t.refused(2, ['encoder "bytes_text" has parameters', "[encoder.text] names no weights"], "train", path,
              *t.sets({"run.output": str(t.work / "never")}))
    path = recipe("dressed")
    for key in ("weights", "format"):
        said = "has no parameters" if key == "weights" else "none are named"
        t.refused(2, ["encoder", said], "train", path,
                  *t.sets({"run.output": str(t.work / "never"), f"encoder.image.{key}": weights()}))


def test_a_run_does_not_go_on_with_another_encoder():
    path = recipe("kept", "fp32")
    t.train(path, "kept", run__steps=2)
    other = ["train", path, *t.sets({"run.output": str(t.work / "kept"), "run.steps": 3,
                                     "encoder.text.weights": weights("other", 12, 2)})]
    t.refused(7, ['its encoder "text" had other weights', "--allow-change encoder.text.weights"], *other)
    shutil.copy(weights(), t.work / "copied.safetensors")
    t.train(path, "kept", run__steps=3, encoder__text__weights=str(t.work / "copied.safetensors"))
    t.run(*other, "--set", "run.steps=4", "--allow-change", "encoder.text.weights")


def test_a_weight_that_is_used_outside_of_its_unit_is_refused_where_it_is_cut():
    path = recipe("careless", "fp32", dict(careless=True))
    done = t.run("train", path, *t.sets({"run.output": str(t.work / "never")} | LAYOUTS["fsdp"][1]), "--local-ranks", 2, code=3)
    t.check("encoder.text, encoding" in done.all and "inside of the unit" in done.all, done.all)


if __name__ == "__main__":
    t.main(globals())
