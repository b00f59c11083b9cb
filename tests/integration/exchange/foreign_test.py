"""Weights to and from facebookresearch/DiT and diffusers, both as those projects' own programs read and write them.

Claim (weights): Weights go to diffusers and back, bit for bit; DiT's `.pt` files come in, and nothing in them is run. Also:
`checkpoint_foreign_test.cpp`

Claim (weights): A training in the form that facebook's script saves (`{model, ema, opt}` in a `.pt`) goes on here with the bits
of the run that it was.

A trained run's export loads strictly in diffusers' DiTTransformer2DModel and predicts what `ditto forward` predicts;
it comes back bit for bit; a .pt as DiT's training script saves it imports. And at the weights of
tests/golden/dit/make.py, imported from a file that diffusers made, prediction and every entry of every gradient agree.

DITTO_FACEBOOK_DIT names a checkout of facebookresearch/DiT: its model is then compared in the same way. Without it,
DiT's names and shapes are checked (its values are in tests/golden/dit_test.cpp).
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from diffusers import DiTTransformer2DModel
from safetensors.torch import load_file, save_file

SOURCE = pathlib.Path(os.environ["DITTO_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "tests/golden/dit"))
import make as golden  # noqa: E402

DITTO = os.environ["DITTO"]
FACEBOOK = os.environ.get("DITTO_FACEBOOK_DIT")
WORK = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(WORK.name)
TOLERANCE = 1e-5
torch.set_num_threads(1)

LAYERS = {
    "facebook-dit": {"patches.map": "x_embedder.proj", "time.in": "t_embedder.mlp.0", "time.out": "t_embedder.mlp.2",
                     "final_modulation": "final_layer.adaLN_modulation.1", "out": "final_layer.linear",
                     "label.table": "y_embedder.embedding_table.weight", "modulation": "adaLN_modulation.1",
                     "qkv": "attn.qkv", "proj": "attn.proj", "up": "mlp.fc1", "down": "mlp.fc2"},
    "diffusers": {"patches.map": "pos_embed.proj",
                  "time.in": "transformer_blocks.0.norm1.emb.timestep_embedder.linear_1",
                  "time.out": "transformer_blocks.0.norm1.emb.timestep_embedder.linear_2",
                  "final_modulation": "proj_out_1", "out": "proj_out_2",
                  "label.table": "transformer_blocks.0.norm1.emb.class_embedder.embedding_table.weight",
                  "modulation": "norm1.linear", "proj": "attn1.to_out.0", "up": "ff.net.0.proj", "down": "ff.net.2"},
}


def ditto(*arguments):
    done = subprocess.run([DITTO, *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, f"ditto {' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def recipe(name, case, form):
    channels, side, _ = case["x"]
    learned = case["out_channels"] == 2 * channels
    path = FOLDER / f"{name}.toml"
    path.write_text(f"""
[run]
name = "{name}"
steps = 5
batch = 8
threads = 1
[data]
plugin = "synthetic"
classes = {case["classes"]}
channels = {channels}
height = {side}
width = {side}
[encoder.image]
plugin = "identity"
[model]
plugin = "dit"
convention = "{form.removesuffix('-dit')}"
depth = {case["depth"]}
width = {case["width"]}
heads = {case["heads"]}
patch = {case["patch"]}
[scheduler]
plugin = "{'iddpm' if learned else 'rectified_flow'}"
{'variance = "learned_range"' if learned else ''}
[objective]
plugin = "diffusion"
[optimizer]
plugin = "adamw"
[lr_schedule]
lr = 1e-2
[ema]
decay = 0.5
""")
    return path


def difference(ours, theirs):
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()).item()


def assert_same_bits(a, b):
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), name


def forward(checkpoint, case, *more):
    save_file(golden.inputs(case), FOLDER / "in.safetensors")
    ditto("forward", checkpoint, "--in", "in.safetensors", "--out", "out.safetensors", *more)
    return load_file(FOLDER / "out.safetensors")


def export(checkpoint, form, out, *more):
    ditto("checkpoint", "export", checkpoint, "--format", form, "--out", out, *more)
    return load_file(FOLDER / out)


def import_from(file, form, recipe_file, out, *more):
    ditto("checkpoint", "import", file, "--format", form, "--recipe", recipe_file, "--out", out, *more)
    return FOLDER / out


# --- a trained run out and back -----------------------------------------------------------------------------

CASE = golden.CASES["small2"] | {"out_channels": 3}


def trained_run(form):
    name = f"trained_{form}"
    toml = recipe(name, CASE, form)
    ditto("train", toml, "--set", "log.progress='none'")
    return toml, FOLDER / "runs" / name


def there_and_back(form, toml, run):
    exported = export(run, form, f"{form}.safetensors")
    assert all(tensor.any() for tensor in exported.values()), "training has moved every tensor"
    prediction = forward(run, CASE)["prediction"]
    back = import_from(f"{form}.safetensors", form, toml, f"{form}_back")
    assert torch.equal(forward(back, CASE)["prediction"], prediction), form
    assert_same_bits(export(back, form, "again.safetensors"), exported)
    return exported, prediction


def check_prediction(form, model, prediction):
    with torch.no_grad():
        d = difference(prediction, golden.predict(form, model.eval(), golden.inputs(CASE)))
    print(f"{form}: a trained run's prediction differs by {d:.2g}")
    assert d <= TOLERANCE


def diffusers_loads_an_export():
    toml, run = trained_run("diffusers")
    exported, prediction = there_and_back("diffusers", toml, run)
    model = golden.make("diffusers", CASE)[0]
    model.load_state_dict(exported, strict=True)
    check_prediction("diffusers", model, prediction)

    ditto("checkpoint", "export", run, "--format", "diffusers", "--out", "pretrained")  # as a user of diffusers keeps it
    check_prediction("diffusers", DiTTransformer2DModel.from_pretrained(FOLDER / "pretrained"), prediction)


def facebook_loads_an_export():
    form = "facebook-dit"
    toml, run = trained_run(form)
    exported, prediction = there_and_back(form, toml, run)
    stored = json.loads((SOURCE / "tests/golden/dit/facebook-dit_small2.json").read_text())["tensors"]
    expected = {name.removeprefix("grad."): tensor["shape"] for name, tensor in stored.items() if name != "prediction"}
    half = {"final_layer.linear.weight": 12, "final_layer.linear.bias": 12}  # no learned variance here
    expected = {name: [half.get(name, shape[0]), *shape[1:]] for name, shape in expected.items()}
    expected["pos_embed"] = [1, 16, 64]
    assert {name: list(tensor.shape) for name, tensor in exported.items()} == expected
    if FACEBOOK:
        model = golden.make(form, CASE, FACEBOOK)[0]
        model.load_state_dict(exported, strict=True)
        check_prediction(form, model, prediction)
    training_script_file(form, toml, run, exported)
    a_training_goes_on_from_its_file(form, toml, run, exported)


def training_script_file(form, toml, run, average):
    """A .pt as DiT's train.py saves it: weights, average, an optimizer's state, and a Namespace; nothing is run."""
    weights = export(run, form, "weights.safetensors", "--weights", "weights")
    assert not torch.equal(weights["blocks.0.attn.qkv.weight"], average["blocks.0.attn.qkv.weight"])
    learned = [torch.nn.Parameter(tensor.clone()) for name, tensor in weights.items() if name != "pos_embed"]
    optimizer = torch.optim.AdamW(learned)
    sum(tensor.sum() for tensor in learned).backward()
    optimizer.step()
    torch.save({"model": weights, "ema": average, "opt": optimizer.state_dict(),
                "args": argparse.Namespace(model="DiT-S/2", image_size=256)}, FOLDER / "0000005.pt")
    ema_set = import_from("0000005.pt", form, toml, "from_pt_ema")
    assert_same_bits(export(ema_set, form, "again.safetensors"), average)
    weight_set = import_from("0000005.pt", form, toml, "from_pt_weights", "--weights", "weights")
    assert_same_bits(export(weight_set, form, "again.safetensors"), weights)


def file_of_a_training(form, run, average, steps):
    """A .pt as torch.save writes a training that our own run was: its AdamW's moments by number, in the order of `model`."""
    weights = export(run, form, "weights.safetensors", "--weights", "weights")
    weights = {name: weights[name] for name in ["pos_embed", *sorted(weights.keys() - {"pos_embed"})]}
    ours = load_file(run / f"checkpoints/step_{steps:08}/optimizer-00000.safetensors")
    moments = {}
    for place, tensor in ours.items():
        kind, name = place.split("/")
        name = their_name(form, name)
        moments.setdefault(name, {})[kind] = tensor.reshape(weights[name].shape)
    assert weights.keys() == moments.keys() | {"pos_embed"}
    state = {number: moments[name] | {"step": torch.tensor(float(steps)) if number % 2 else steps}  # old torch: a plain number
             for number, name in enumerate(weights) if name != "pos_embed"}
    groups = [{"lr": 1e-2, "betas": (0.9, 0.999), "params": list(range(len(weights)))}]
    return {"model": weights, "ema": average, "opt": {"state": state, "param_groups": groups}}


def a_training_goes_on_from_its_file(form, toml, run, average):
    file = file_of_a_training(form, run, average, 5)
    torch.save(file, FOLDER / "training.pt")
    import_from("training.pt", form, toml, "training", "--optimizer")
    for place, out in ((run, "went_on"), ("training", "went_on_from_file")):
        ditto("train", toml, "--resume", place, "--set", "run.steps=8", "--set", f"run.output={out}", "--set",
              "log.progress='none'")
    for section in ("model", "ema", "optimizer"):
        a, b = (load_file(FOLDER / out / f"checkpoints/step_00000008/{section}-00000.safetensors")
                for out in ("went_on", "went_on_from_file"))
        assert_same_bits(a, b)
        first = load_file(run / f"checkpoints/step_00000005/{section}-00000.safetensors")
        assert any(not torch.equal(first[name], a[name]) for name in a), "three steps have moved something"
    print(f"{form}: a training of {{model, ema, opt}} goes on with the bits of the run it was")

    def refused(change, *parts):
        torch.save(change(file), FOLDER / "other.pt")
        words = ["checkpoint", "import", "other.pt", "--format", form, "--recipe", str(toml), "--out", "never", "--optimizer"]
        done = subprocess.run([DITTO, *words], cwd=FOLDER, capture_output=True, text=True)
        assert done.returncode != 0 and not (FOLDER / "never").exists(), done.stdout
        for part in parts:
            assert part in done.stderr, (part, done.stderr)

    opt = file["opt"]
    refused(lambda f: f | {"opt": opt | {"param_groups": opt["param_groups"] * 2}}, "several groups")
    refused(lambda f: {name: f[name] for name in ("model", "ema")}, "no state of torch's Adam")
    state = {number: dict(one) for number, one in opt["state"].items()}
    del state[3]["exp_avg"]
    refused(lambda f: f | {"opt": opt | {"state": state}}, f"'{list(file['model'])[3]}' is missing")


# --- every entry of every gradient --------------------------------------------------------------------------


def their_name(form, ours):
    layers = LAYERS[form]
    if ours == "label.table":
        return layers[ours]
    layer, leaf = ours.rsplit(".", 1)
    if not layer.startswith("blocks."):
        return f"{layers[layer]}.{leaf}"
    _, block, part = layer.split(".")
    return f"{'transformer_blocks' if form == 'diffusers' else 'blocks'}.{block}.{layers[part]}.{leaf}"


def as_theirs(form, gradients):
    result = {}
    for name, tensor in gradients.items():
        name = name.removeprefix("grad.")
        if form == "diffusers" and ".qkv." in name:
            block, leaf = name.split(".")[1], name.split(".")[-1]
            for letter, part in zip("qkv", tensor.chunk(3)):
                result[f"transformer_blocks.{block}.attn1.to_{letter}.{leaf}"] = part
        else:
            result[their_name(form, name)] = tensor
    return result


def compare_all(form, name):
    case = golden.CASES[name]
    theirs = golden.reference(form, case, FACEBOOK)
    model = golden.make(form, case, FACEBOOK)[0]
    folder = FOLDER / f"{form}_{name}"
    folder.mkdir()
    if form == "diffusers":
        model.save_config(folder)
    file = folder / "weights.safetensors"
    save_file({n: tensor.contiguous() for n, tensor in model.state_dict().items()}, file)
    checkpoint = import_from(file, form, recipe(f"{form}_{name}_recipe", case, form), f"imported_{form}_{name}")
    ours = forward(checkpoint, case, "--grad")
    worst = {"prediction": difference(ours.pop("prediction"), theirs.pop("prediction"))}
    gradients = as_theirs(form, ours)
    assert {"grad." + n for n in gradients} == theirs.keys()
    for n, gradient in gradients.items():
        reference = theirs["grad." + n]
        if n.endswith("to_k.bias"):  # truly zero: rounding on both sides
            assert gradient.abs().max() <= TOLERANCE * gradients[n.replace("to_k", "to_q")].abs().max(), n
        else:
            worst[n] = difference(gradient.reshape(reference.shape), reference)
    at = max(worst, key=worst.get)
    print(f"{form} {name}: {len(worst)} tensors, largest difference {worst[at]:.2g} (of {at})")
    assert worst[at] <= TOLERANCE


diffusers_loads_an_export()
facebook_loads_an_export()
for name in golden.CASES:
    for form in golden.FORMATS:
        if form == "facebook-dit" and not FACEBOOK:
            continue
        compare_all(form, name)
if not FACEBOOK:
    print("not run: facebook-dit, every gradient: DITTO_FACEBOOK_DIT names no checkout of facebookresearch/DiT")
