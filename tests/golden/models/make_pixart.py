"""pixart against diffusers' PixArtTransformer2DModel.

    make_pixart.py     makes pixart_*.json beside this file; needs diffusers (./dev peers)

Its class keeps no null text and no compression of keys; pixart's learned null text is tests/golden/transformers'.
"""

from diffusers import PixArtTransformer2DModel

import reference

TIMES = reference.floats([0.0, 250.25, 999.0])


def module(options, needs, sample_size, **more):
    given = {spec["name"]: spec for spec in needs["inputs"]}
    width, patch = options["width"], options["patch"]
    return PixArtTransformer2DModel(
        num_attention_heads=options["heads"], attention_head_dim=width // options["heads"],
        in_channels=given["x"]["shape"][0], out_channels=needs["out_channels"], num_layers=options["depth"],
        cross_attention_dim=width, sample_size=sample_size, patch_size=patch,
        caption_channels=given["text"]["shape"][-1], **more)


def forward(model, batch):
    added = {"resolution": batch.get("resolution"), "aspect_ratio": batch.get("aspect_ratio")}
    return model(batch["x"], batch["text"], batch["t"], added_cond_kwargs=added,
                 encoder_attention_mask=batch["text_mask"].double()).sample


def empty(width):
    return [reference.tensor("text_empty", [-1, width]), reference.tensor("text_empty_mask", [-1], "Bool")]


def main():
    sizes = dict(depth=2, width=48, heads=4, patch=2, mlp_ratio=4)
    text = dict(text=reference.drawn(3, 6, 12), text_mask=reference.mask([6, 1, 3]))

    options = sizes | dict(null_text="zero")
    needs = reference.needs([3, 8, 8], 6, text_width=12)
    reference.case("pixart_alpha", model="pixart", options=options, needs=needs,
                   inputs=dict(x=reference.drawn(3, 3, 8, 8), t=TIMES, **text),
                   module=module(options, needs, 8), forward=forward, prepare=reference.with_exact_positions)

    # Places halved and micro-conditions, as alpha has at 1024: here of the pictures' own sides in pixels.
    options = sizes | dict(base_size=4, interpolation_scale=2.0, micro_conditions=True, pixels=8, null_text="zero")
    needs = reference.needs([3, 8, 8], 3, text_width=12)
    own = dict(resolution=reference.floats([[64.0, 64.0]] * 3), aspect_ratio=reference.floats([1.0] * 3))

    def forward_own(model, batch):
        return forward(model, batch | reference.batch_of(own))

    reference.case("pixart_micro", model="pixart", options=options, needs=needs,
                   inputs=dict(x=reference.drawn(3, 3, 8, 8), t=TIMES, **text),
                   module=module(options, needs, 8, interpolation_scale=2, use_additional_conditions=True),
                   forward=forward_own, prepare=reference.with_exact_positions)

    # Sizes that the data says, of pictures larger than the base of 2 x 2 patches and not square; sigma's scale at 256.
    options = sizes | dict(base_size=2, interpolation_scale=0.5, micro_conditions=True, null_text="empty")
    needs = reference.needs([3, 8, 12], 3, text_width=12, more=[
        *empty(12), reference.tensor("resolution", [2]), reference.tensor("aspect_ratio", [])])
    inputs = dict(x=reference.drawn(3, 3, 8, 12), t=TIMES, **text,
                  text_empty=reference.drawn(3, 2, 12), text_empty_mask=reference.mask([2, 2, 2]),
                  resolution=reference.floats([[512.0, 768.0], [300.0, 1024.0], [64.0, 96.0]]),
                  aspect_ratio=reference.floats([0.66, 0.29, 0.66]))
    reference.case("pixart_sigma_sizes", model="pixart", options=options, needs=needs, inputs=inputs,
                   module=module(options, needs, 4, interpolation_scale=0.5, use_additional_conditions=True),
                   forward=forward)

    for name, preset, sample_size, more in (
            ("pixart_xl2", "PixArt-XL/2", 32, {}),
            ("pixart_xl2_1024", "PixArt-XL/2-1024-MS", 128, {}),
            ("pixart_sigma_xl2_1024", "PixArt-Sigma-XL/2-1024-MS", 128, dict(use_additional_conditions=False))):
        reference.count(name, model="pixart", options=dict(preset=preset, null_text="zero"),
                        needs=reference.needs([4, sample_size, sample_size], 8, text_width=4096),
                        module=lambda: PixArtTransformer2DModel(sample_size=sample_size, caption_channels=4096, **more))


if __name__ == "__main__":
    main()
