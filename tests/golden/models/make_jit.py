"""jit against LTH14/JiT's JiT.

    make_jit.py --jit DIR     makes jit_*.json beside this file

DIR is a checkout of github.com/LTH14/JiT at 869190a, of which model_jit.py is run.
"""

import argparse
import importlib
import sys

import numpy as np
import torch

import reference

SIZES = dict(depth=3, width=48, heads=4, patch=4, mlp_ratio=4, bottleneck=8, context_tokens=3, context_start=1)


def checkout(folder):
    sys.path.insert(0, folder)
    return importlib.import_module("model_jit").JiT


def made(JiT, options, side, classes):
    return JiT(input_size=side, patch_size=options["patch"], in_channels=3, hidden_size=options["width"],
               depth=options["depth"], num_heads=options["heads"], mlp_ratio=options["mlp_ratio"], num_classes=classes,
               bottleneck_dim=options["bottleneck"], in_context_len=options["context_tokens"],
               in_context_start=options["context_start"])


def turned(rotary, side, width, first):
    """Angles as ours: float32 of a place times a frequency in double; theirs are no further off than that."""
    pairs = width // 4
    angle = (np.arange(side)[:, None] * 10000.0 ** (-np.arange(pairs) / pairs)).astype(np.float32).repeat(2, 1)
    rows, columns = angle[:, None].repeat(side, 1), angle[None].repeat(side, 0)
    table = torch.from_numpy(np.concatenate([rows, columns], 2).reshape(side * side, width)).double()
    for name, values in (("freqs_cos", table.cos()), ("freqs_sin", table.sin())):
        pad = torch.full((first, width), float(name == "freqs_cos"), dtype=torch.float64)
        ours = torch.cat([pad, values])
        assert (getattr(rotary, name) - ours).abs().max() < 1e-5
        setattr(rotary, name, ours)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jit", required=True, metavar="DIR", help="a checkout of LTH14/JiT")
    JiT = checkout(parser.parse_args().jit)
    tables = importlib.import_module("util.model_util")
    common = dict(model="jit", format="jit", reference="LTH14 JiT")

    def prepare(model):
        theirs = model.t_embedder.timestep_embedding
        model.t_embedder.timestep_embedding = lambda t, dim: reference.nearest(
            theirs(t, dim), reference.time_features(t, dim), t).double()
        side, width = 16 // SIZES["patch"], SIZES["width"]
        model.pos_embed.data = torch.from_numpy(tables.get_2d_sincos_pos_embed(width, side)).double().unsqueeze(0)
        for rotary, first in ((model.feat_rope, 0), (model.feat_rope_incontext, SIZES["context_tokens"])):
            turned(rotary, side, width // SIZES["heads"], first)

    with reference.OnProcessor():
        reference.case("jit_class", options=SIZES, needs=reference.needs([3, 16, 16], 3, classes=10),
                       inputs=dict(x=reference.drawn(3, 3, 16, 16), t=reference.floats([0.0, 0.375, 1.0]),
                                   label=reference.integers([0, 7, 10])),
                       module=made(JiT, SIZES, 16, 10), prepare=prepare,
                       forward=lambda model, batch: model(batch["x"], batch["t"], batch["label"]), **common)
        for name, preset, size in (("jit_b16", "B/16", (12, 768, 12, 16, 128, 4)),
                                   ("jit_h32", "H/32", (32, 1280, 16, 32, 256, 10))):
            keys = ("depth", "width", "heads", "patch", "bottleneck", "context_start")
            options = dict(zip(keys, size)) | dict(mlp_ratio=4, context_tokens=32)
            reference.count(name, options=dict(preset=preset), needs=reference.needs([3, 256, 256], 3, classes=1000),
                            module=lambda: made(JiT, options, 256, 1000), **common)


if __name__ == "__main__":
    main()
