"""Golden outputs and gradients of DiT, by its two published definitions, at weights made by a formula from their names.

    make.py --facebook DIR   makes facebook-dit_*.json and diffusers_*.json beside this file

DIR is a checkout of facebookresearch/DiT, of which models.py is run; diffusers and timm come with ./dev peers. Everything runs
in float64, so that a comparison sees the other side's roundings alone. Time features are of float32, as both define
them; PyTorch's exponentials, cosines and sines in float32 depend on the processor by a unit in the last place, so each
is replaced by the nearest float32, and it is checked that theirs are no further off than that.
Of each tensor a file keeps shape, largest entry, sum, a product with a vector of the formula, and 64 entries at places
of the formula. A gradient is that of sum(prediction * grad_output). tests/golden/dit_test.cpp has the same formula.
"""

import argparse
import importlib
import json
import pathlib
import re
import sys
from unittest import mock

import numpy as np
import torch

HERE = pathlib.Path(__file__).parent
ENTRIES = 64
CASES = {
    "s2": dict(depth=12, width=384, heads=6, patch=2, x=[4, 32, 32], out_channels=8, classes=1000, t=[17.5, 999.0],
               label=[207, 1000]),
    "small2": dict(depth=2, width=64, heads=4, patch=2, x=[3, 8, 8], out_channels=6, classes=10, t=[0.0, 250.25, 999.0],
                   label=[0, 7, 10]),
    "small4": dict(depth=3, width=96, heads=3, patch=4, x=[3, 16, 16], out_channels=3, classes=5, t=[0.5, 20.0, 701.0],
                   label=[4, 5, 1]),
}
FORMATS = ("facebook-dit", "diffusers")
FIXED = ("pos_embed", "pos_embed.pos_embed")  # position tables: no parameters


# --- the formula: a number of a tensor depends on the tensor's name, its shape and the number's place -------


def fnv1a(text):
    hashed = 0xCBF29CE484222325
    for byte in text.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    return hashed


def mixed(name, count):
    """The first `count` of the 64-bit numbers that belong to a name: splitmix64 from the name's FNV-1a hash."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(fnv1a(name))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(name, count):
    """Numbers in (-1, 1), none of them zero, float64."""
    return ((mixed(name, count) >> np.uint64(40)).astype(np.float64) + 0.5) / 2**23 - 1


def scale(name, shape):
    if len(shape) == 1:
        return 0.25
    if name.endswith("embedding_table.weight"):
        return 1.0
    return float(np.sqrt(3.0 * shape[0] / np.prod(shape)))


def values(name, shape, bound=None):
    """The tensor of this name, rounded to float32."""
    bound = scale(name, shape) if bound is None else bound
    return torch.from_numpy((bound * uniform(name, int(np.prod(shape)))).astype(np.float32)).reshape(shape)


def inputs(case):
    """x, t, label and grad_output, as `ditto forward` takes them."""
    samples = len(case["t"])
    return {
        "x": values("x", [samples, *case["x"]], 1.75),
        "t": torch.tensor(case["t"], dtype=torch.float32),
        "label": torch.tensor(case["label"]),
        "grad_output": values("grad_output", [samples, case["out_channels"], *case["x"][1:]], 1.75),
    }


# --- time features, the same on every machine ---------------------------------------------------------------


def time_features(t, divisor=128, half=128):
    """Cosines and sines of t * 10000^(-i / divisor) as both definitions compute them, each function's value the nearest
    float32 (from 64 bits of mantissa)."""
    exponent = np.arange(half, dtype=np.float32) * np.float32(-np.log(10000)) / np.float32(divisor)
    frequency = np.exp(exponent.astype(np.longdouble)).astype(np.float32)
    angle = (t.numpy()[:, None].astype(np.float32) * frequency).astype(np.longdouble)
    return torch.from_numpy(np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(np.float32))


def checked(theirs, t, divisor=128):
    """The nearest features in the place of theirs, which differ from them by a unit in the last place of frequency,
    angle and function at most."""
    ours = time_features(t, divisor)
    largest_angle = t.abs().unsqueeze(1).double()
    assert ((theirs.double() - ours.double()).abs() <= 2**-22 * (largest_angle + 1)).all()
    return ours


def with_nearest_features(model):
    """A model of either definition, its time features replaced."""
    for module in model.modules():
        if type(module).__name__ == "TimestepEmbedder":  # facebookresearch/DiT's
            theirs = module.timestep_embedding
            module.timestep_embedding = lambda t, dim: checked(theirs(t, dim), t)
        if type(module).__name__ == "Timesteps":  # diffusers'
            module.register_forward_hook(
                lambda module, t, made: checked(made, t[0], 128 - module.downscale_freq_shift))
    return model


def canonical(name):
    """diffusers keeps the embedders once a block; all copies are the first."""
    return re.sub(r"^transformer_blocks\.\d+\.norm1\.emb\.", "transformer_blocks.0.norm1.emb.", name)


def fill(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in FIXED:
                parameter.copy_(values(canonical(name), parameter.shape))
    return model


# --- the definitions ----------------------------------------------------------------------------------------


def facebook_module(folder):
    """models.py of a checkout."""
    with mock.patch.object(sys, "path", [str(folder), *sys.path]):
        return importlib.import_module("models")


def facebook_model(case, folder):
    module = facebook_module(folder)
    channels, side, _ = case["x"]
    model = module.DiT(input_size=side, patch_size=case["patch"], in_channels=channels, hidden_size=case["width"],
                       depth=case["depth"], num_heads=case["heads"], num_classes=case["classes"],
                       learn_sigma=case["out_channels"] == 2 * channels)
    table = module.get_2d_sincos_pos_embed(case["width"], side // case["patch"])
    return fill(model).eval(), torch.from_numpy(table)


def diffusers_model(case):
    from diffusers import DiTTransformer2DModel
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    channels, side, _ = case["x"]
    model = DiTTransformer2DModel(
        num_attention_heads=case["heads"], attention_head_dim=case["width"] // case["heads"], in_channels=channels,
        out_channels=case["out_channels"], num_layers=case["depth"], sample_size=side, patch_size=case["patch"],
        num_embeds_ada_norm=case["classes"])
    grid = side // case["patch"]
    return fill(model).eval(), get_2d_sincos_pos_embed(case["width"], grid, base_size=grid)


def make(form, case, facebook=None):
    """The model in float32, filled, and its position table before it was rounded to float32."""
    return diffusers_model(case) if form == "diffusers" else facebook_model(case, facebook)


def predict(form, model, batch):
    if form == "diffusers":
        return model(batch["x"], batch["t"], batch["label"]).sample
    return model(batch["x"], batch["t"], batch["label"])


def in_double(form, model, table):
    model = with_nearest_features(model.double())
    with torch.no_grad():
        (model.pos_embed.pos_embed if form == "diffusers" else model.pos_embed).copy_(table.unsqueeze(0))
    if form == "facebook-dit":  # its time features come as float32; diffusers converts them itself
        model.t_embedder.mlp.register_forward_pre_hook(lambda _, args: (args[0].double(),))
    return model


def reference(form, case, facebook=None):
    """prediction, and grad.NAME of every parameter (of copies: the sum), in float64."""
    model, table = make(form, case, facebook)
    model = in_double(form, model, table)
    batch = inputs(case)
    prediction = predict(form, model, batch | {"x": batch["x"].double()})
    (prediction * batch["grad_output"]).sum().backward()
    result = {"prediction": prediction.detach()}
    for name, parameter in model.named_parameters():
        if name in FIXED:
            continue
        name = "grad." + canonical(name)
        result[name] = result[name] + parameter.grad if name in result else parameter.grad.clone()
    return result


# --- the files ----------------------------------------------------------------------------------------------


def digest(name, tensor, digits=15):
    flat = tensor.flatten().double().numpy()
    places = np.arange(len(flat)) if len(flat) <= ENTRIES else mixed("places/" + name, ENTRIES) % np.uint64(len(flat))
    short = lambda number: float(f"{number:.{digits}g}")
    return {"shape": list(tensor.shape), "largest": short(np.abs(flat).max()), "sum": short(flat.sum()),
            "product": short(flat @ uniform("product/" + name, len(flat))),
            "entries": [short(number) for number in flat[places.astype(np.int64)]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facebook", required=True, metavar="DIR", help="a checkout of facebookresearch/DiT")
    options = parser.parse_args()
    for name, case in CASES.items():
        for form in FORMATS:
            tensors = {n: digest(n, tensor) for n, tensor in reference(form, case, options.facebook).items()}
            lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(d)}" for n, d in tensors.items())
            path = HERE / f"{form}_{name}.json"
            path.write_text(f'{{"case": {json.dumps(case)},\n"tensors": {{\n{lines}\n}}}}\n')
            print(path.name, len(tensors), "tensors", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
