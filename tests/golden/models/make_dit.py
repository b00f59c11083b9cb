"""dit of videos against OpenDiT's DiT, and of pictures against SiT's; ../dit has those of facebookresearch/DiT and of
diffusers.

    make_dit.py --opendit DIR --sit DIR     makes dit_*.json beside this file

DIR are checkouts of NUS-HPC-AI-Lab/VideoSys at 9ca5472 (OpenDiT, March 2024) and of willisma/SiT, of which models.py is
run. OpenDiT's class holds a frozen CLIP of transformers', which reads the texts: here a small one, saved as published ones
are, with weights of the formula. What it makes of the texts is the case's pooled text; our models are given that.
"""

import argparse
import copy
import importlib
import sys
import tempfile
from unittest import mock

import torch

import reference

SIZES = dict(depth=2, width=48, heads=4, patch=2, mlp_ratio=4)
TIMES = reference.floats([0.0, 250.25, 999.0])
E = 12  # of a pooled text


PROMPTS = ["a cat", "rain on a window", ""]


def small_clip(folder, width):
    """A CLIPTextModel and its CLIPTokenizer as from_pretrained() reads them; its words are letters."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[]).save_pretrained(folder)
    config = CLIPTextConfig(vocab_size=len(words), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=2,
                            num_attention_heads=4, bos_token_id=words.index("<|startoftext|>"),
                            eos_token_id=words.index("<|endoftext|>"), pad_token_id=words.index("<|endoftext|>"))
    text_model = CLIPTextModel(config)
    reference.fill(text_model, {})
    text_model.save_pretrained(folder)
    return folder


def pooled(model):
    """Of PROMPTS, what the frozen CLIP of a model makes."""
    with torch.no_grad(), reference.OnProcessor(), reference.KeepDouble():
        return copy.deepcopy(model.y_embedder.text_encoder).double()(PROMPTS)[1]


def opendit(folder):
    with mock.patch.object(sys, "path", [folder, *sys.path]):
        return importlib.import_module("opendit.models.dit").DiT, importlib.import_module("opendit.embed.pos_emb")


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
    (VDiT, positions), SiT = opendit(folders.opendit), sit(folders.sit)

    def video(options, x, learn_sigma, clip):
        channels, frames, side, _ = x
        return VDiT(input_size=(frames, side, side), patch_size=(options["patch_frames"], options["patch"],
                                                                 options["patch"]),
                    in_channels=channels, hidden_size=options["width"], depth=options["depth"],
                    num_heads=options["heads"], mlp_ratio=options["mlp_ratio"], learn_sigma=learn_sigma,
                    use_video=True, text_encoder=clip)

    def text(width):
        return reference.tensor("text_pooled", [width])

    common = dict(model="dit", format="opendit", reference="OpenDiT DiT")
    with tempfile.TemporaryDirectory() as folder:
        clip = small_clip(f"{folder}/{E}", E)
        for name, frames, learn_sigma in (("dit_video_222", 2, True), ("dit_video_122", 1, False)):
            options, x = SIZES | dict(patch_frames=frames, convention="facebook"), [3, 4, 8, 8]
            tables = dict(
                pos_embed_spatial=positions.get_2d_sincos_pos_embed(options["width"], x[2] // options["patch"]),
                pos_embed_temporal=positions.get_1d_sincos_pos_embed(options["width"], x[1] // frames))
            model = video(options, x, learn_sigma, clip)
            reference.case(
                name, options=options, needs=reference.needs(x, 6 if learn_sigma else 3, more=[text(E)]),
                inputs=dict(x=reference.drawn(3, *x), t=TIMES, text_pooled=reference.doubles(pooled(model).tolist())),
                module=model, prepare=exact(tables), beside="y_embedder.text_encoder.",
                forward=lambda model, batch: model(batch["x"], batch["t"], PROMPTS), **common)
        clip = small_clip(f"{folder}/1024", 1024)
        for name, preset, frames in (("dit_vdit_xl222", "vDiT-XL/222", 2), ("dit_vdit_xl122", "vDiT-XL/122", 1)):
            options = dict(depth=28, width=1152, heads=16, patch=2, patch_frames=frames, mlp_ratio=4)
            reference.count(name, options=dict(preset=preset),
                            needs=reference.needs([4, 16, 32, 32], 8, more=[text(1024)]),
                            module=lambda: video(options, [4, 16, 32, 32], True, clip), device="cpu", **common)

    module = sys.modules[SiT.__module__]
    common = dict(model="dit", format="sit", reference="SiT SiT")
    options = SIZES | dict(spare_variance=True, convention="facebook")
    model = SiT(input_size=8, patch_size=2, in_channels=3, hidden_size=48, depth=2, num_heads=4, num_classes=10)
    reference.case("dit_sit", options=options, needs=reference.needs([3, 8, 8], 3, classes=10),
                   inputs=dict(x=reference.drawn(3, 3, 8, 8), t=reference.floats([0.0, 0.375, 1.0]),
                               label=reference.integers([0, 7, 10])), module=model,
                   prepare=exact(dict(pos_embed=module.get_2d_sincos_pos_embed(48, 4))),
                   forward=lambda model, batch: model(batch["x"], batch["t"], batch["label"]), **common)
    reference.count("dit_sit_xl2", options=dict(preset="XL/2", spare_variance=True),
                    needs=reference.needs([4, 32, 32], 4, classes=1000), module=module.SiT_XL_2, **common)


if __name__ == "__main__":
    main()
