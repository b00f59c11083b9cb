"""dit of videos against OpenDiT's DiT, and of pictures against SiT's; ../dit has those of facebookresearch/DiT and of
diffusers.

    make_dit.py --opendit DIR --sit DIR     makes dit_*.json beside this file

DIR are checkouts of NUS-HPC-AI-Lab/VideoSys at 9ca5472 (OpenDiT, March 2024), which needs einops from PyPI, and of
willisma/SiT, of which models.py is run. Where timm is missing, the layers they take from it are those of ../dit/make.py.
OpenDiT's frozen text encoder is replaced by what hands on a pooled embedding as it is given: what CLIP makes of a text.
"""

import argparse
import importlib
import sys
import types
from unittest import mock

import torch
from torch import nn

import reference
from reference import formula

SIZES = dict(depth=2, width=48, heads=4, patch=2, mlp_ratio=4)
TIMES = reference.floats([0.0, 250.25, 999.0])
TIMM = "timm.models.vision_transformer"
LAYERS = "timm's layers as in ../dit/make.py"
E = 12  # of a pooled text


class GivenText(nn.Module):
    """In the place of FrozenCLIPEmbedder."""

    def __init__(self, path):
        super().__init__()
        self.transformer = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=path))

    def forward(self, pooled):
        return None, pooled


def need_timm():
    try:
        importlib.import_module(TIMM)
    except ImportError:
        layers = types.ModuleType(TIMM)
        layers.PatchEmbed, layers.Attention, layers.Mlp = formula.PatchEmbed, formula.Attention, formula.Mlp
        sys.modules |= {"timm": types.ModuleType("timm"), "timm.models": types.ModuleType("timm.models"), TIMM: layers}


def opendit(folder):
    with mock.patch.object(sys, "path", [folder, *sys.path]):
        module = importlib.import_module("opendit.models.dit")
        importlib.import_module("opendit.embed.clip_text_emb").FrozenCLIPEmbedder = GivenText
        return module.DiT, importlib.import_module("opendit.embed.pos_emb")


def sit(folder):
    with mock.patch.object(sys, "path", [folder, *sys.path]):
        return importlib.import_module("models").SiT


def exact(tables):
    """prepare() of a model whose TimestepEmbedder makes the nearest features; its tables before they were rounded."""
    def prepare(model):
        theirs = model.t_embedder.timestep_embedding
        model.t_embedder.timestep_embedding = lambda t, dim: reference.nearest(
            theirs(t, dim), reference.time_features(t, dim), t).double()
        for name, table in tables.items():
            table = torch.from_numpy(table).double().unsqueeze(0)
            assert (getattr(model, name) - table).abs().max() < 1e-6
            getattr(model, name).data = table
    return prepare


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opendit", required=True, metavar="DIR", help="a checkout of NUS-HPC-AI-Lab/VideoSys")
    parser.add_argument("--sit", required=True, metavar="DIR", help="a checkout of willisma/SiT")
    folders = parser.parse_args()
    need_timm()
    (VDiT, positions), SiT = opendit(folders.opendit), sit(folders.sit)

    def video(options, x, learn_sigma, text_width, **more):
        channels, frames, side, _ = x
        return VDiT(input_size=(frames, side, side), patch_size=(options["patch_frames"], options["patch"],
                                                                 options["patch"]),
                    in_channels=channels, hidden_size=options["width"], depth=options["depth"],
                    num_heads=options["heads"], mlp_ratio=options["mlp_ratio"], learn_sigma=learn_sigma,
                    use_video=True, text_encoder=text_width, **more)

    def text(width):
        return reference.tensor("text_pooled", [width])

    common = dict(model="dit", format="opendit", reference="OpenDiT DiT")
    for name, frames, learn_sigma in (("dit_video_222", 2, True), ("dit_video_122", 1, False)):
        options, x = SIZES | dict(patch_frames=frames, convention="facebook"), [3, 4, 8, 8]
        tables = dict(pos_embed_spatial=positions.get_2d_sincos_pos_embed(options["width"], x[2] // options["patch"]),
                      pos_embed_temporal=positions.get_1d_sincos_pos_embed(options["width"], x[1] // frames))
        reference.case(name, options=options, needs=reference.needs(x, 6 if learn_sigma else 3, more=[text(E)]),
                       inputs=dict(x=reference.drawn(3, *x), t=TIMES, text_pooled=reference.drawn(3, E)),
                       module=video(options, x, learn_sigma, E), prepare=exact(tables),
                       forward=lambda model, batch: model(batch["x"], batch["t"], batch["text_pooled"]), **common,
                       changes="its frozen CLIP hands on the embedding that it is given; " + LAYERS)
    for name, preset, frames in (("dit_vdit_xl222", "vDiT-XL/222", 2), ("dit_vdit_xl122", "vDiT-XL/122", 1)):
        options = dict(depth=28, width=1152, heads=16, patch=2, patch_frames=frames, mlp_ratio=4)
        reference.count(name, options=dict(preset=preset), needs=reference.needs([4, 16, 32, 32], 8, more=[text(1024)]),
                        module=lambda: video(options, [4, 16, 32, 32], True, 1024), **common)

    module = sys.modules[SiT.__module__]
    common = dict(model="dit", format="sit", reference="SiT SiT")
    options = SIZES | dict(spare_variance=True, convention="facebook")
    model = SiT(input_size=8, patch_size=2, in_channels=3, hidden_size=48, depth=2, num_heads=4, num_classes=10)
    reference.case("dit_sit", options=options, needs=reference.needs([3, 8, 8], 3, classes=10),
                   inputs=dict(x=reference.drawn(3, 3, 8, 8), t=reference.floats([0.0, 0.375, 1.0]),
                               label=reference.integers([0, 7, 10])), module=model,
                   prepare=exact(dict(pos_embed=module.get_2d_sincos_pos_embed(48, 4))),
                   forward=lambda model, batch: model(batch["x"], batch["t"], batch["label"]), **common, changes=LAYERS)
    reference.count("dit_sit_xl2", options=dict(preset="XL/2", spare_variance=True),
                    needs=reference.needs([4, 32, 32], 4, classes=1000), module=module.SiT_XL_2, **common)


if __name__ == "__main__":
    main()
