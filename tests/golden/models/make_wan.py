"""wan against diffusers' WanTransformer3DModel, unmodified: reference.py says how.

    .deps/peers/bin/python tests/golden/models/make_wan.py
"""

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

import reference


def wan(patch, heads, head, hidden, depth):
    return WanTransformer3DModel(patch_size=patch, num_attention_heads=heads, attention_head_dim=head, in_channels=4,
                                 out_channels=4, text_dim=12, ffn_dim=hidden, num_layers=depth, rope_max_seq_len=32)


def with_exact_angles(module):
    """Its table of angles before it was rounded to float32."""
    with reference.KeepDouble():
        rope = WanRotaryPosEmbed(module.config.attention_head_dim, module.config.patch_size, 32)
    assert (rope.freqs_cos - module.rope.freqs_cos).abs().max() < 1e-6
    module.rope = rope


def forward(tokens):
    def run(module, batch):
        text = torch.nn.functional.pad(batch["text"], (0, 0, 0, tokens - batch["text"].shape[1]))
        return module(batch["x"], batch["t"], text).sample

    return run


for name, patch, heads, head, options, tokens, mask in (
        ("wan_small", (1, 2, 2), 2, 16, dict(text_mask=False, text_tokens=7), 7, {}),
        ("wan_frames", (2, 2, 2), 3, 12, dict(patch_frames=2, patch=2, null_text="empty"), 5,
         dict(text_mask=reference.mask([5, 5])))):
    reference.case(name, model="wan", options=dict(depth=2, width=heads * head, heads=heads, hidden=40, **options),
                   needs=reference.needs(x=[4, 4, 4, 6], out_channels=4, text_width=12),
                   inputs=dict(x=reference.drawn(2, 4, 4, 4, 6), t=reference.floats([17.5, 999.0]),
                               text=reference.drawn(2, 5, 12), **mask),
                   module=wan(patch, heads, head, 40, 2), forward=forward(tokens), prepare=with_exact_angles)

for name, preset, arguments in (
        ("wan_1_3b", "1.3B", dict(num_attention_heads=12, ffn_dim=8960, num_layers=30)), ("wan_14b", "14B", {})):
    reference.count(name, model="wan", options=dict(preset=preset),
                    needs=reference.needs(x=[16, 21, 60, 104], out_channels=16, text_width=4096),
                    module=lambda: WanTransformer3DModel(**arguments))
