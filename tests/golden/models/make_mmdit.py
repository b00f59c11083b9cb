"""mmdit against diffusers' SD3Transformer2DModel, unmodified: reference.py says how.

    .deps/peers/bin/python tests/golden/models/make_mmdit.py
"""

import torch
from diffusers import SD3Transformer2DModel

import reference

POOLED = 10


def needs(x, text_width=12, pooled=POOLED):
    return reference.needs(x=x, out_channels=x[0], text_width=text_width, more=[reference.tensor("text_pooled", [pooled])])


def inputs(x, samples, tokens, text_width=12, **more):
    return dict(x=reference.drawn(samples, *x), t=reference.floats([17.5, 250.0, 999.0][:samples]),
                text=reference.drawn(samples, tokens, text_width), text_pooled=reference.drawn(samples, POOLED), **more)


def sd3(depth, heads, head, side, base, **more):
    return SD3Transformer2DModel(
        sample_size=2 * base, patch_size=2, in_channels=4, num_layers=depth, attention_head_dim=head,
        num_attention_heads=heads, joint_attention_dim=12, caption_projection_dim=heads * head,
        pooled_projection_dim=POOLED, out_channels=4, pos_embed_max_size=side, **more)


def padded(text, tokens):
    return torch.nn.functional.pad(text, (0, 0, 0, tokens - text.shape[1]))


def sd3_forward(tokens):
    return lambda module, batch: module(batch["x"], padded(batch["text"], tokens), batch["text_pooled"],
                                        batch["t"]).sample


# Stable Diffusion 3: padding of texts is seen, and the picture is a middle part of the table of positions.
reference.case("mmdit_sd3", model="mmdit", options=dict(depth=2, width=32, heads=2, patch=2, position_side=8,
                                                        position_base=4, text_mask=False, text_tokens=7),
               needs=needs([4, 8, 12]), inputs=inputs([4, 8, 12], 2, 5), module=sd3(2, 2, 16, 8, 4),
               forward=sd3_forward(7), prepare=reference.with_exact_positions)

# 3.5: norms of queries and keys, and a second attention in the first blocks.
reference.case("mmdit_sd35", model="mmdit", options=dict(depth=3, width=24, heads=3, qk_norm=True, dual_attention=2,
                                                         position_side=6, position_base=4, null_text="empty"),
               needs=needs([4, 12, 8]), inputs=inputs([4, 12, 8], 3, 4, text_mask=reference.mask([4, 4, 4])),
               module=sd3(3, 3, 8, 6, 4, dual_attention_layers=(0, 1), qk_norm="rms_norm"), forward=sd3_forward(4),
               prepare=reference.with_exact_positions)

for name, preset, arguments in (
        ("mmdit_sd3_medium", "SD3-medium", dict(num_layers=24, num_attention_heads=24, caption_projection_dim=1536,
                                                pos_embed_max_size=192)),
        ("mmdit_sd35_medium", "SD3.5-medium", dict(num_layers=24, num_attention_heads=24, caption_projection_dim=1536,
                                                   pos_embed_max_size=384, dual_attention_layers=tuple(range(13)),
                                                   qk_norm="rms_norm")),
        ("mmdit_sd35_large", "SD3.5-large", dict(num_layers=38, num_attention_heads=38, caption_projection_dim=2432,
                                                 pos_embed_max_size=192, qk_norm="rms_norm"))):
    reference.count(name, model="mmdit", options=dict(preset=preset, text_tokens=333), needs=needs([16, 128, 128], 4096, 2048),
                    module=lambda: SD3Transformer2DModel(sample_size=128, joint_attention_dim=4096, pooled_projection_dim=2048,
                                                         **arguments))
