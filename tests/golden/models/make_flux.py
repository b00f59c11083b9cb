"""flux against diffusers' FluxTransformer2DModel, unmodified: reference.py says how.

    .deps/peers/bin/python tests/golden/models/make_flux.py
"""

import torch
from diffusers import FluxPipeline, FluxTransformer2DModel

import reference

POOLED = 10


def needs(x, text_width=12, pooled=POOLED):
    return reference.needs(x=x, out_channels=x[0], text_width=text_width, more=[reference.tensor("text_pooled", [pooled])])


def flux(depth, single, heads, axes, channels, guidance):
    return FluxTransformer2DModel(
        patch_size=1, in_channels=4 * channels, num_layers=depth, num_single_layers=single,
        attention_head_dim=sum(axes), num_attention_heads=heads, joint_attention_dim=12, pooled_projection_dim=POOLED,
        guidance_embeds=guidance, axes_dims_rope=axes)


def flux_forward(tokens, guidance=None):
    """Its pictures come in packed patches, its times from 0 to 1, and its texts padded to so many tokens."""

    def forward(module, batch):
        text = torch.nn.functional.pad(batch["text"], (0, 0, 0, tokens - batch["text"].shape[1]))
        samples, channels, rows, columns = batch["x"].shape
        packed = FluxPipeline._pack_latents(batch["x"], samples, channels, rows, columns)
        ids = FluxPipeline._prepare_latent_image_ids(samples, rows // 2, columns // 2, "cpu", torch.float64)
        scale = None if guidance is None else torch.full([samples], guidance, dtype=torch.float64)
        made = module(packed, text, batch["text_pooled"], batch["t"].double() / 1000, ids,
                      torch.zeros(tokens, 3).double(), guidance=scale).sample
        return FluxPipeline._unpack_latents(made, 8 * rows, 8 * columns, 8)

    return forward


X, SIZES = [4, 6, 8], dict(depth=2, width=48, heads=3, rotary=[4, 6, 6])
INPUTS = dict(x=reference.drawn(2, *X), t=reference.floats([17.5, 250.0]), text=reference.drawn(2, 5, 12),
              text_pooled=reference.drawn(2, POOLED))

# Distilled from guidance, as Flux.1 dev; a text's mask hides nothing here.
reference.case("flux_guidance", model="flux", options=SIZES | dict(patch=2, single_depth=2, guidance_embed=True, guidance=2.5,
                                                                   null_text="empty"),
               needs=needs(X), inputs=INPUTS | dict(text_mask=reference.mask([5, 5])), module=flux(2, 2, 3, (4, 6, 6), 4, True),
               forward=flux_forward(5, 2.5))

# As Flux.1 schnell: padding of texts is seen.
reference.case("flux_plain", model="flux", options=SIZES | dict(single_depth=1, text_mask=False, text_tokens=7), needs=needs(X),
               inputs=INPUTS, module=flux(2, 1, 3, (4, 6, 6), 4, False), forward=flux_forward(7))

for name, preset in (("flux1_dev", "Flux.1-dev"), ("flux1_schnell", "Flux.1-schnell")):
    reference.count(name, model="flux", options=dict(preset=preset, text_tokens=512), needs=needs([16, 128, 128], 4096, 768),
                    module=lambda: FluxTransformer2DModel(guidance_embeds=preset.endswith("dev")))
