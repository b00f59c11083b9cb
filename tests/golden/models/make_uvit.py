"""uvit against baofff/U-ViT's UViT.

    make_uvit.py --u-vit DIR     makes uvit_*.json beside this file

DIR is a checkout of github.com/baofff/U-ViT, of which libs/uvit.py is run. Of its three ways to compute attention the
plain one is chosen, by its own switch, since the others compute in float32. diffusers' UTransformer2DModel is another
function (norms on the sum, none before the first block), and is not the reference.
"""

import argparse
import importlib
import sys

import reference

SIZES = dict(depth=4, width=32, heads=4, patch=2, mlp_ratio=4)
TIMES = reference.floats([0.0, 250.25, 999.0])


def checkout(folder):
    sys.path.insert(0, folder)
    module = importlib.import_module("libs.uvit")
    module.ATTENTION_MODE = "math"
    theirs = module.timestep_embedding
    module.timestep_embedding = lambda t, dim: reference.nearest(
        theirs(t, dim), reference.time_features(t, dim), t).double()
    return module.UViT


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--u-vit", required=True, metavar="DIR", help="a checkout of baofff/U-ViT")
    UViT = checkout(parser.parse_args().u_vit)

    def module(options, side, channels=4, classes=-1):
        return UViT(img_size=side, patch_size=options["patch"], in_chans=channels, embed_dim=options["width"],
                    depth=options["depth"], num_heads=options["heads"], mlp_ratio=options["mlp_ratio"],
                    mlp_time_embed=options.get("time_mlp", False), conv=options.get("convolution", True),
                    num_classes=classes)

    common = dict(model="uvit", format="u-vit", reference="baofff UViT")
    inputs = dict(x=reference.drawn(3, 4, 8, 8), t=TIMES)
    reference.case("uvit_class", options=SIZES, needs=reference.needs([4, 8, 8], 4, classes=10), module=module(
        SIZES, 8, classes=11), inputs=inputs | dict(label=reference.integers([0, 7, 10])),
        forward=lambda model, batch: model(batch["x"], batch["t"], batch["label"]), **common)
    options = SIZES | dict(time_mlp=True, convolution=False, depth=2, patch=4, mlp_ratio=2)
    reference.case("uvit_time", options=options, needs=reference.needs([4, 8, 8], 4), module=module(options, 8),
                   inputs=inputs, forward=lambda model, batch: model(batch["x"], batch["t"]), **common)

    for name, preset, side, channels, classes, more, size in (
            ("uvit_s2", "S/2", 32, 3, -1, {}, (12, 512, 8, 2)),
            ("uvit_m4", "M/4", 64, 3, 1000, {}, (16, 768, 12, 4)),
            ("uvit_l2", "L/2", 32, 4, 1001, {}, (20, 1024, 16, 2)),
            ("uvit_h2", "H/2", 32, 4, 1001, dict(convolution=False), (28, 1152, 16, 2))):
        depth, width, heads, patch = size
        options = dict(depth=depth, width=width, heads=heads, patch=patch, mlp_ratio=4) | more
        reference.count(name, options=dict(preset=preset) | more,
                        needs=reference.needs([channels, side, side], channels, classes=max(classes - 1, 0)),
                        module=lambda: module(options, side, channels, classes), **common)


if __name__ == "__main__":
    main()
