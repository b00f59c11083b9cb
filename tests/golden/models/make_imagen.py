"""imagen_unet and imagen_efficient_unet against NeMo's UNetModel and EfficientUNetModel: reference.py says how.

    make_imagen.py    with the Python of .deps/peers_nemo

nemo-toolkit is of PyPI, and unmodified. Apex's GroupNorm, which it cannot do without, is PyTorch's; of a module that imports what
only trainings need there is the one function that is used. UNetModel takes two types of attention of the four whose blocks NeMo
has: with the others it is given these blocks in the place of one of the two. Its numbers of parameters are those of its YAML files (its
documents say 524, 2100, 429, 646 and 427 millions: no file of theirs makes 429 or 427).
"""

import sys
import types
from unittest import mock

import torch

import reference

TEXT = 64  # its width, of which the groups of its norms are a half


def nemo():
    utils = types.ModuleType("nemo.collections.multimodal.parts.utils")
    utils.randn_like = torch.randn_like
    sys.modules[utils.__name__] = utils
    from nemo.collections.multimodal.modules.imagen.diffusionmodules import blocks, embs, layers, nets

    layers.GroupNorm = lambda groups, channels, act="": torch.nn.GroupNorm(groups, channels)
    return blocks, embs, nets


blocks, embs, nets = nemo()


def attention(type, heads):
    """Of UNetModel a block of this type, with heads where it says -1 for them."""
    classes = {"self": blocks.SelfAttentionBlock, "cross": blocks.CrossAttentionBlock,
               "fused": blocks.FusedCrossAttentionBlock, "stacked": blocks.StackedCrossAttentionBlock}

    def made(num_heads, context_dim, **named):
        if type != "self":
            named["context_dim"] = context_dim
        return classes[type](num_heads=heads if num_heads == -1 else num_heads, **named)

    return mock.patch.object(nets, "FusedCrossAttentionBlock", made)


class Held(torch.nn.Module):
    """As imagen.py's models hold a UNet, by its name in their files: model.model.unet."""

    def __init__(self, unet):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.model = torch.nn.Module()
        self.model.model.unet = unet

    def forward(self, *arguments):
        return self.model.model.unet(*arguments)


def ours_alone(options, *names):
    return {name: value for name, value in options.items() if name not in ("preset", "token_length", *names)}


def regular(options, x):
    o = ours_alone(options)
    numbers = o.pop("num_res_blocks")
    o.setdefault("image_size", x[1])
    if o["attention_type"] in ("self", "cross"):
        o["attention_type"] = "fused"
    with attention(options["attention_type"], o["num_attn_heads"]):
        return Held(nets.UNetModel(channels=x[0], text_embed_dim=TEXT, num_res_blocks=numbers[0] if len(numbers) == 1 else numbers, **o))


def efficient(options, x):
    return Held(nets.EfficientUNetModel(image_size=x[1], channels=x[0], text_embed_dim=TEXT, **ours_alone(options, "low_res_cond")))


def with_nearest_times(module):
    for part in module.modules():
        if isinstance(part, embs.UnLearnedSinusoidalPosEmb):
            part.register_forward_hook(lambda part, t, made: reference.nearest(
                made, reference.time_features(t[0], part.dim), t[0]).double())


def forward(places):
    def run(module, batch):
        text, mask = batch["text"], batch["text_mask"] if "text_mask" in batch else torch.ones(batch["text"].shape[:2])
        missing = places - text.shape[1]
        text = torch.nn.functional.pad(text, (0, 0, 0, missing))
        mask = torch.nn.functional.pad(mask.double(), (0, missing))
        t, low_t = batch["t"].double(), batch["low_t"].double() if "low_t" in batch else None
        return module(batch["x"], t, text, mask, batch.get("low"), low_t)

    return run


def case(name, model, make, options, x, lengths, low=None, changes="", copies=None):
    """lengths: of the texts."""
    samples, noisy = len(lengths), options.get("noise_cond_aug")
    places = max(1, max(lengths))
    inputs = dict(x=reference.drawn(samples, *x), t=reference.floats([0.25, -1.5, 0.75][:samples]),
                  text=reference.drawn(samples, places, TEXT))
    if options["attention_type"] != "self":
        inputs["text_mask"] = reference.flags([[place < length for place in range(places)] for length in lengths])
    more = []
    if low:
        inputs["low"] = reference.drawn(samples, *low)
        more.append(reference.tensor("low", low))
    if noisy:
        inputs["low_t"] = reference.floats([-0.5, 2.25, 0.125][:samples])
        more.append(reference.tensor("low_t", []))
    reference.case(name, model=model, options=options, needs=reference.needs(x, x[0], text_width=TEXT, more=more), inputs=inputs,
                   module=make(options, x), forward=forward(options["token_length"]), prepare=with_nearest_times, format="nemo",
                   reference="nemo UNetModel" if make is regular else "nemo EfficientUNetModel", changes=changes, copies=copies)


UNET = "model.model.unet."
# The first convolution has two names.
TWICE = {f"{UNET}input_blocks.0.0.{end}": f"{UNET}init_conv.0.{end}" for end in ("weight", "bias")}
BASE = dict(embed_dim=64, channel_mult=[1, 2], num_attn_heads=2, per_head_channels=16, num_res_blocks=[1], cond_dim=64,
            attention_resolutions=[4], init_conv_kernel_size=3, learned_sinu_pos_emb_dim=0, token_length=5)
# Few levels: with more the gradients of norms cancel, and the class in fp32 is 1e-5 away from itself in fp64.
REGULAR = {
    "imagen_unet_fused": (BASE | dict(
        attention_type="fused", feature_pooling_type="attention", learned_sinu_pos_emb_dim=6, use_null_token=True,
        init_conv_kernel_size=5, num_res_blocks=[1, 2], attention_resolutions=[4, 8], low_res_cond=True, noise_cond_aug=True,
        dropout=0.1), [3, 8, 8], [3, 1], [3, 4, 4], ""),
    "imagen_unet_stacked": (BASE | dict(
        attention_type="stacked", feature_pooling_type="mean", scale_shift_norm=False, resblock_updown=True, image_size=16,
        attention_resolutions=[8]), [3, 8, 8], [5, 2], None, ""),
    "imagen_unet_cross": (BASE | dict(
        attention_type="cross", feature_pooling_type="attention", resample_with_conv=False, per_head_channels=-1, num_attn_heads=4,
        low_res_cond=True, cond_dim=128), [4, 8, 8], [4, 0], [4, 3, 5],
        "NeMo's cross-attention in the place of the fused, and heads as many as num_attn_heads on the way up too"),
    "imagen_unet_self": (BASE | dict(
        attention_type="self", feature_pooling_type="mean", channel_mult=[1, 1, 2], attention_resolutions=[2], token_length=3),
        [3, 8, 4], [3, 2], None, "NeMo's self-attention in the place of the fused"),
}
EFFICIENT_BASE = dict(embed_dim=64, channel_mult=[1, 2], num_attn_heads=2, per_head_channels=16, num_resblocks=[1, 1],
                      atnn_enabled_at=[0, 1], init_conv_kernel_size=3, learned_sinu_pos_emb_dim=0, token_length=5, low_res_cond=True)
EFFICIENT = {
    "imagen_efficient_fused": (EFFICIENT_BASE | dict(
        attention_type="fused", feature_pooling_type="attention", learned_sinu_pos_emb_dim=6, use_null_token=True,
        init_conv_kernel_size=5, num_resblocks=[2, 1], atnn_enabled_at=[1, 1], noise_cond_aug=True,
        skip_connection_scaling=True), [3, 8, 8], [3, 1], [3, 4, 4], ""),
    "imagen_efficient_stacked": (EFFICIENT_BASE | dict(
        attention_type="stacked", feature_pooling_type="mean", scale_shift_norm=False, num_resblocks=[2, 1],
        atnn_enabled_at=[1, 0]), [3, 8, 4], [5, 2], [3, 4, 2], ""),
    "imagen_efficient_cross": (EFFICIENT_BASE | dict(
        attention_type="cross", feature_pooling_type="attention", per_head_channels=-1, num_attn_heads=4, stride=3,
        skip_connection_scaling=True), [4, 8, 8], [4, 0], [4, 8, 8], ""),
    "imagen_efficient_self": (EFFICIENT_BASE | dict(
        attention_type="self", feature_pooling_type="mean", noise_cond_aug=True, token_length=3), [3, 8, 8], [3, 2], [3, 2, 2], ""),
}

PUBLISHED = dict(channel_mult=[1, 2, 3, 4], num_attn_heads=4, per_head_channels=64, num_res_blocks=[3], attention_type="fused",
                 attention_resolutions=[8, 16, 32], learned_sinu_pos_emb_dim=0)
ENLARGING = dict(embed_dim=128, channel_mult=[1, 2, 4, 8, 8], num_attn_heads=8, per_head_channels=64, num_resblocks=[2, 4, 8, 8, 8],
                 atnn_enabled_at=[0, 0, 0, 1, 1], learned_sinu_pos_emb_dim=0, skip_connection_scaling=True, noise_cond_aug=True)
PRESETS = (
    ("500m_res_64", regular, 64, PUBLISHED | dict(embed_dim=256, cond_dim=512)),
    ("2b_res_64", regular, 64, PUBLISHED | dict(embed_dim=512, cond_dim=2048)),
    ("400m_res_256", regular, 256, PUBLISHED | dict(
        embed_dim=128, cond_dim=512, channel_mult=[1, 2, 4, 6, 6], num_res_blocks=[2, 2, 3, 4, 3], attention_resolutions=[32, 16],
        low_res_cond=True, noise_cond_aug=True)),
    ("600m_res_256", efficient, 256, ENLARGING | dict(attention_type="fused")),
    ("400m_res_1024", efficient, 1024, ENLARGING | dict(attention_type="cross")),
)


def published(preset, make, side, options):
    global TEXT
    shrunk, TEXT = TEXT, 1024
    more = [reference.tensor("low", [3, 64, 64]), reference.tensor("low_t", [])] if options.get("noise_cond_aug") else []
    reference.count(f"imagen_{preset}", model="imagen_unet" if make is regular else "imagen_efficient_unet", options=dict(preset=preset),
                    needs=reference.needs([3, side, side], 3, text_width=1024, more=more), module=lambda: make(options, [3, side, side]),
                    format="nemo", reference="nemo UNetModel" if make is regular else "nemo EfficientUNetModel")
    TEXT = shrunk


def main():
    for name, (options, x, lengths, low, changes) in REGULAR.items():
        case(name, "imagen_unet", regular, options, x, lengths, low, changes, TWICE)
    for name, (options, x, lengths, low, changes) in EFFICIENT.items():
        case(name, "imagen_efficient_unet", efficient, options, x, lengths, low, changes)
    for preset in PRESETS:
        published(*preset)


if __name__ == "__main__":
    main()
