"""Cases of st_dit: Open-Sora's STDiT3.

    make_st_dit.py --open-sora DIR     DIR: a checkout of hpcaitech/Open-Sora at v1.2.0

The class is unmodified, but where a case says so. What Open-Sora's packages import around it, and nothing calls (colossalai,
its encoders and VAEs), is empty; xformers' attention of texts one after another, which only a GPU has, is PyTorch's of each.
"""

import argparse
import importlib
import sys
import types
from unittest import mock

import numpy as np
import torch
from torch import nn

import reference

def padded(batch, null):
    """The null text in the place of one whose mask is false everywhere, and the mask then."""
    is_null = ~batch["text_mask"].any(1, keepdim=True)
    return torch.where(is_null.unsqueeze(-1), null, batch["text"]), batch["text_mask"] | is_null


def attention_of_texts(q, k, v, p=0.0, attn_bias=None):
    """xformers' memory_efficient_attention [1, T, N, K] under BlockDiagonalMask.from_seqlens."""
    queries, keys = attn_bias
    parts = [nn.functional.scaled_dot_product_attention(*(x[0].transpose(0, 1) for x in part)).transpose(0, 1)
             for part in zip(q.split(queries, 1), k.split(keys, 1), v.split(keys, 1))]
    return torch.cat(parts).unsqueeze(0)


def module_of(name, **names):
    made = types.ModuleType(name)
    made.__path__ = []
    for key, value in names.items():
        setattr(made, key, value)
    return made


def open_sora(folder):
    """stdit3.py of a checkout, by itself: the packages around it import encoders and VAEs."""
    nothing = lambda *_, **__: None  # noqa: E731
    register = types.SimpleNamespace(register_module=lambda *_, **__: lambda made: made)
    stand_ins = {
        "xformers": module_of("xformers"),
        "xformers.ops": module_of("xformers.ops", memory_efficient_attention=attention_of_texts, fmha=types.SimpleNamespace(
            BlockDiagonalMask=types.SimpleNamespace(from_seqlens=lambda queries, keys: (queries, keys)))),
        "opensora.acceleration": module_of("opensora.acceleration"),
        "opensora.acceleration.checkpoint": module_of(
            "opensora.acceleration.checkpoint", auto_grad_checkpoint=lambda module, *given: module(*given)),
        "opensora.acceleration.communications": module_of(
            "opensora.acceleration.communications", all_to_all=nothing, gather_forward_split_backward=nothing,
            split_forward_gather_backward=nothing),
        "opensora.acceleration.parallel_states": module_of(
            "opensora.acceleration.parallel_states", get_sequence_parallel_group=nothing),
        "opensora.registry": module_of("opensora.registry", MODELS=register),
        "opensora.utils": module_of("opensora.utils"),
        "opensora.utils.ckpt_utils": module_of("opensora.utils.ckpt_utils", load_checkpoint=nothing),
        "opensora": module_of("opensora"), "opensora.models": module_of("opensora.models"),
        "opensora.models.layers": module_of("opensora.models.layers"),
        "opensora.models.stdit": module_of("opensora.models.stdit"),
    }
    stand_ins["xformers"].ops = stand_ins["xformers.ops"]
    for name in ("opensora", "opensora.models", "opensora.models.layers", "opensora.models.stdit"):
        stand_ins[name].__path__ = [f"{folder}/{name.replace('.', '/')}"]
    with mock.patch.dict(sys.modules, stand_ins):
        return importlib.import_module("opensora.models.stdit.stdit3")


def stdit3(module, **config):
    made = module.STDiT3(module.STDiT3Config(**config))
    made.y_embedder.y_embedding.requires_grad_()  # a buffer, which training does not change; ours learns it
    return made


def without_numbers(module, **config):
    """On the meta device; its rates of dropped paths are numbers."""
    real = torch.linspace
    with mock.patch.object(torch, "linspace", lambda *given: real(*given, device="cpu")):
        return stdit3(module, **config)


def exact_stdit3(module):
    """Places, and angles of frames as the nearest float32, before they were rounded on the way."""
    half = module.pos_embed.dim // 2
    module.pos_embed.inv_freq = 10000.0 ** (-torch.arange(0, half, 2, dtype=torch.float64) / half)
    theirs = module.rope.forward
    K = 2 * module.rope.freqs.numel()
    frequency = 10000.0 ** (-torch.arange(0, K, 2, dtype=torch.float64) / K)

    def angles(t, **given):
        angle = (t.double().unsqueeze(-1) * frequency).numpy().astype(np.float32)
        made = torch.from_numpy(angle).double().repeat_interleave(2, -1)
        assert (theirs(t, **given) - made).abs().max() < 1e-5
        return made

    module.rope.forward = angles
    for embedder in (module.t_embedder, module.fps_embedder):
        embedder.timestep_embedding = lambda t, dim, own=embedder.timestep_embedding: reference.nearest(
            own(t, dim), reference.time_features(t, dim), t).double()


def with_last_of_tokens(module):
    """Frames that are given: their last modulation is of their tokens. STDiT3's own takes what the noisy frames' has made
    of them, in frames whose prediction nobody reads."""
    theirs = module.final_layer.forward

    def forward(x, t, x_mask, t0, T, S):
        is_noisy = x_mask.repeat_interleave(S, 1).unsqueeze(-1)
        return torch.where(is_noisy, theirs(x, t), theirs(x, t0))

    module.final_layer.forward = forward


def stdit3_case(name, module, options, config, frames, sides, t, lengths, mask=None, side_of_one=64):
    """t of each sample; `mask`: of each of its frames, whether it is noisy (STDiT3's x_mask, our t = 0)."""
    samples, tokens = len(t), config["model_max_length"]
    times = t if mask is None else [[time * given for given in of_sample] for time, of_sample in zip(t, mask)]
    inputs = dict(x=reference.drawn(samples, 4, frames, *sides), t=reference.floats(times),
                  text=reference.drawn(samples, tokens, 12), text_mask=reference.flags(
                      [[place < length for place in range(tokens)] for length in lengths]),
                  fps=reference.floats([24.0, 8.0, 30.0][:samples]))

    def forward(made, batch):
        text, text_mask = padded(batch, made.y_embedder.y_embedding)
        pixels = [torch.full([samples], 8.0 * side, dtype=torch.float64) for side in sides]
        theirs = made.get_dynamic_size(batch["x"])
        assert theirs == (frames // config["patch_size"][0], sides[0] // 2, sides[1] // 2)
        with mock.patch.object(torch, "float32", torch.float64):  # of tables, norms and the prediction
            return made(batch["x"], torch.tensor(t), text.unsqueeze(1), text_mask.long().unsqueeze(1).unsqueeze(1),
                        x_mask=None if mask is None else torch.tensor(mask).bool(), fps=batch["fps"],
                        height=pixels[0], width=pixels[1])

    def prepare(made):
        exact_stdit3(made)
        if mask is not None:
            with_last_of_tokens(made)

    torch.set_default_dtype(torch.float64)
    try:
        reference.case(
            name, model="st_dit", format="open-sora", inputs=inputs, forward=forward, prepare=prepare,
            changes="" if mask is None else "given frames' last modulation is of their own tokens",
            options=dict(width=48, heads=4, arrangement="alternating", adaln="single", cross="all", rotary="temporal",
                         fps=24.0, base_side=side_of_one, null_tokens=tokens) | options,
            needs=reference.needs([4, frames, *sides], 8, text_width=12, more=[reference.tensor("fps", [])]),
            module=stdit3(module, hidden_size=48, num_heads=4, caption_channels=12, in_channels=4,
                          input_sq_size=8 * side_of_one, **config))
    finally:
        torch.set_default_dtype(torch.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open-sora", required=True, metavar="DIR", help="a checkout of hpcaitech/Open-Sora, v1.2.0")
    folder = parser.parse_args().open_sora
    module = open_sora(folder)
    small = dict(depth=2, patch_size=(1, 2, 2), model_max_length=6)
    stdit3_case("stdit3_small", module, dict(depth=4, qk_norm=True, null_text="learned"), small | dict(qk_norm=True), 3, [8, 12],
                [17.5, 250.25, 999.0], [6, 0, 3])
    stdit3_case("stdit3_frames", module, dict(depth=4), small | dict(qk_norm=False), 3, [8, 8], [17.5, 999.0], [6, 2],
                mask=[[0, 1, 1], [1, 1, 0]], side_of_one=4)
    stdit3_case("stdit3_patches", module, dict(depth=2, patch=2, patch_frames=2, mlp_ratio=2), small | dict(
        depth=1, patch_size=(2, 2, 2), qk_norm=False, mlp_ratio=2.0), 4, [8, 8], [17.5, 999.0], [6, 2])
    for name, width, heads in (("STDiT3-XL/2", 1152, 16), ("STDiT3-3B/2", 1872, 26)):
        reference.count(
            name.lower().replace("/", "_").replace("-", "_"), model="st_dit", format="open-sora",
            options=dict(preset=name), needs=reference.needs([4, 16, 64, 64], 8, text_width=4096),
            module=lambda: without_numbers(module, depth=28, hidden_size=width, num_heads=heads, caption_channels=4096,
                                           qk_norm=True))


if __name__ == "__main__":
    main()
