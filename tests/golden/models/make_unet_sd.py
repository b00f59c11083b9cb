"""unet_sd against diffusers' UNet2DConditionModel.

    make_unet_sd.py     makes unet_sd_*.json beside this file; needs diffusers (./dev peers)

Stable Diffusion 1, 2 and XL, shrunk; and what their relatives have: an upscaler's classes and levels that see the text
alone, unCLIP's numbers beside the time. Texts are padded with zeros, which the class sees as it sees text.
"""

import torch
from diffusers import UNet2DConditionModel

import reference

DOWN, DOWN_TEXT, UP, UP_TEXT = "DownBlock2D", "CrossAttnDownBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"
OWN = ("preset", "pixels", "text_tokens", "text_mask", "null_text")  # options that are none of the class's
TEXT = 12
TIMES = reference.floats([0.0, 250.25, 999.0])


def module(options, needs):
    """As a list of one number for all stands in a configuration: without the list."""
    given = {spec["name"]: spec for spec in needs["inputs"]}
    config = {key: value[0] if isinstance(value, list) and len(value) == 1 and key != "block_out_channels" else value
              for key, value in options.items() if key not in OWN and value != "none"}
    if "addition_time_embed_dim" in config:  # six of these where nothing else is said
        config.setdefault("projection_class_embeddings_input_dim",
                          given["text_pooled"]["shape"][-1] + 6 * config["addition_time_embed_dim"])
    flags = config.get("only_cross_attention", 0)
    config["only_cross_attention"] = [flag == 1 for flag in flags] if isinstance(flags, list) else flags == 1
    return UNet2DConditionModel(in_channels=given["x"]["shape"][0], out_channels=needs["out_channels"],
                                cross_attention_dim=given["text"]["shape"][-1], **config)


def case(name, options, needs, inputs):
    tokens, is_masked = options["text_tokens"], options.get("text_mask", False)

    def padded(tensor):
        pad = (0, 0) * (tensor.dim() - 2) + (0, tokens - tensor.shape[1])
        return torch.nn.functional.pad(tensor, pad)

    def forward(model, batch):
        added = None
        if "text_pooled" in batch:
            rows, columns = batch["x"].shape[2:]
            whole = [rows * options["pixels"], columns * options["pixels"]] if "time_ids" not in batch else []
            ids = batch["time_ids"] if not whole else torch.tensor([[*whole, 0.0, 0.0, *whole]] * len(batch["x"]))
            added = {"text_embeds": batch["text_pooled"], "time_ids": ids}
        mask = padded(batch["text_mask"]).double() if is_masked else None
        return model(batch["x"], batch["t"], padded(batch["text"]), class_labels=batch.get("label"),
                     added_cond_kwargs=added, encoder_attention_mask=mask).sample

    text = dict(text=reference.drawn(3, 6, TEXT), text_mask=reference.mask([6, 1, 3]))
    reference.case(name, model="unet_sd", options=options, needs=needs, inputs=dict(t=TIMES, **text, **inputs),
                   module=module(options, needs), forward=forward, entries=8)


def shrunk():
    """Of all: widths, and tokens of text. The last of Stable Diffusion 1 and 2 has no transformers, the first of XL."""
    sizes = dict(norm_num_groups=8, text_tokens=9)
    two = sizes | dict(block_out_channels=[16, 32], down_block_types=[DOWN_TEXT, DOWN], up_block_types=[UP, UP_TEXT],
                       layers_per_block=[1], attention_head_dim=[4])
    xl = sizes | dict(block_out_channels=[16, 24, 32], down_block_types=[DOWN, DOWN_TEXT, DOWN_TEXT],
                      up_block_types=[UP_TEXT, UP_TEXT, UP], layers_per_block=[1], attention_head_dim=[2, 3, 4],
                      transformer_layers_per_block=[1, 2, 3], use_linear_projection=True)
    return two, xl


def main():
    two, xl = shrunk()
    square = reference.needs([4, 8, 8], 4, text_width=TEXT)
    case("unet_sd_1", two | dict(layers_per_block=[2], null_text="zero"), square, dict(x=reference.drawn(3, 4, 8, 8)))
    case("unet_sd_2", two | dict(attention_head_dim=[2, 8], use_linear_projection=True, upcast_attention=True,
                                 dropout=0.25, norm_eps=1e-3, flip_sin_to_cos=False, freq_shift=1),
         reference.needs([9, 4, 8], 4, text_width=TEXT), dict(x=reference.drawn(3, 9, 4, 8)))

    sized = dict(addition_embed_type="text_time", addition_time_embed_dim=6)
    pooled = [reference.tensor("text_pooled", [10])]
    case("unet_sd_xl", xl | sized | dict(pixels=16), reference.needs([4, 8, 12], 4, text_width=TEXT, more=pooled),
         dict(x=reference.drawn(3, 4, 8, 12), text_pooled=reference.drawn(3, 10)))
    # As XL's refiner: five numbers, that the data says.
    case("unet_sd_refiner", two | sized | dict(projection_class_embeddings_input_dim=10 + 5 * 6, freq_shift=2),
         reference.needs([4, 8, 8], 4, text_width=TEXT, more=[*pooled, reference.tensor("time_ids", [5])]),
         dict(x=reference.drawn(3, 4, 8, 8), text_pooled=reference.drawn(3, 10),
              time_ids=reference.floats([[512.0, 768.0, 0.0, 16.5, 6.0], [64.0] * 5, [1024.0, 1000.0, 3.0, 0.0, 2.5]])))

    # As the upscaler of Stable Diffusion 2: levels of other depths, of which some see the text alone; classes.
    case("unet_sd_classes", xl | dict(layers_per_block=[1, 2, 1], only_cross_attention=[0, 1, 0], num_class_embeds=7,
                                      text_mask=True),
         reference.needs([7, 8, 8], 4, classes=7, text_width=TEXT),
         dict(x=reference.drawn(3, 7, 8, 8), label=reference.integers([0, 6, 3])))

    label = reference.tensor("label", [10])
    case("unet_sd_unclip", two | dict(class_embed_type="projection", projection_class_embeddings_input_dim=10,
                                      resnet_time_scale_shift="scale_shift", only_cross_attention=[1]),
         reference.needs([4, 8, 8], 4, text_width=TEXT, more=[label]),
         dict(x=reference.drawn(3, 4, 8, 8), label=reference.drawn(3, 10)))
    label = reference.tensor("label", [])
    case("unet_sd_moment", two | dict(class_embed_type="timestep"),
         reference.needs([4, 8, 8], 4, text_width=TEXT, more=[label]),
         dict(x=reference.drawn(3, 4, 8, 8), label=reference.floats([20.0, 350.5, 0.0])))
    label = reference.tensor("label", [64])
    case("unet_sd_identity", two | dict(class_embed_type="identity"),
         reference.needs([4, 8, 8], 4, text_width=TEXT, more=[label]),
         dict(x=reference.drawn(3, 4, 8, 8), label=reference.drawn(3, 64)))

    two_on = dict(use_linear_projection=True)
    last = dict(down_block_types=[DOWN, DOWN_TEXT, DOWN_TEXT], up_block_types=[UP_TEXT, UP_TEXT, UP],
                block_out_channels=[320, 640, 1280], attention_head_dim=[5, 10, 20], transformer_layers_per_block=[1, 2, 10],
                addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816)
    for name, preset, side, text, more, config in (
            ("unet_sd1", "sd1", 64, 768, [], {}),
            ("unet_sd2", "sd2", 96, 1024, [], two_on | dict(attention_head_dim=[5, 10, 20, 20], upcast_attention=True)),
            ("unet_sdxl", "sdxl", 128, 2048, [reference.tensor("text_pooled", [1280])], two_on | last)):
        config = dict(attention_head_dim=8) | config
        reference.count(name, model="unet_sd", options=dict(preset=preset),
                        needs=reference.needs([4, side, side], 4, text_width=text, more=more),
                        module=lambda: UNet2DConditionModel(cross_attention_dim=text, **config))


if __name__ == "__main__":
    main()
