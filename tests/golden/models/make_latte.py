"""Cases of latte: diffusers' LatteTransformer3DModel, unmodified."""

import torch

import reference


def latte(layers, heads, head_width, side, frames, channels=4, out_channels=8, caption=12, patch=2):
    from diffusers import LatteTransformer3DModel

    return LatteTransformer3DModel(
        num_attention_heads=heads, attention_head_dim=head_width, in_channels=channels, out_channels=out_channels,
        num_layers=layers, cross_attention_dim=heads * head_width, attention_bias=True, sample_size=side,
        patch_size=patch, activation_fn="gelu-approximate", norm_type="ada_norm_single", norm_elementwise_affine=False,
        norm_eps=1e-6, caption_channels=caption, video_length=frames)


def exact_tables(module):
    """Places and frames before they were rounded to float32."""
    from diffusers.models.embeddings import get_1d_sincos_pos_embed_from_grid

    reference.with_exact_positions(module)
    frames, width = module.temp_pos_embed.shape[-2:]
    table = get_1d_sincos_pos_embed_from_grid(width, torch.arange(frames, dtype=torch.float64).unsqueeze(1),
                                              output_type="pt").double()
    assert (module.temp_pos_embed[0] - table).abs().max() < 1e-6
    module.temp_pos_embed = table.unsqueeze(0)


def latte_case(name, frames, side, options, empty):
    def forward(module, batch):
        is_null = ~batch["text_mask"].any(1, keepdim=True)
        text, mask = batch["text"], batch["text_mask"]
        if empty:
            text = torch.where(is_null.unsqueeze(-1), batch["text_empty"], text)
            mask = mask | (is_null & batch["text_empty_mask"])
        else:
            text, mask = torch.where(is_null.unsqueeze(-1), 0.0, text), mask | is_null
        bias = ((1 - mask.double()) * -10000.0).unsqueeze(1).repeat_interleave(batch["x"].shape[2], 0)
        return module(batch["x"], batch["t"], text, bias).sample

    more = [reference.tensor("text_empty", [-1, 12]), reference.tensor("text_empty_mask", [-1], "Bool")]
    inputs = dict(x=reference.drawn(3, 4, frames, side, side), t=reference.floats([0.0, 250.25, 999.0]),
                  text=reference.drawn(3, 6, 12), text_mask=reference.mask([6, 0, 3]))
    if empty:
        inputs |= dict(text_empty=reference.drawn(3, 6, 12), text_empty_mask=reference.mask([2, 6, 6]))
        inputs["text_empty_mask"] = reference.flags([[place < 2 for place in range(6)]] * 3)
    reference.case(
        name, model="latte", inputs=inputs, forward=forward, prepare=exact_tables,
        options=dict(depth=4, width=48, heads=4, adaln="single", null_text="empty" if empty else "zero") | options,
        needs=reference.needs([4, frames, side, side], 8, text_width=12, more=more if empty else ()),
        module=latte(2, 4, 12, side, frames, patch=options.get("patch", 2)))


def main():
    latte_case("latte_small", frames=3, side=8, options=dict(mlp_ratio=4), empty=True)
    latte_case("latte_picture", frames=1, side=8, options={}, empty=False)
    latte_case("latte_large", frames=2, side=128, options=dict(patch=16, base_side=64), empty=False)
    reference.count(
        "latte_1", model="latte", options=dict(preset="Latte-1"),
        needs=reference.needs([4, 16, 64, 64], 8, text_width=4096, more=[
            reference.tensor("text_empty", [-1, 4096]), reference.tensor("text_empty_mask", [-1], "Bool")]),
        module=lambda: latte(28, 16, 72, 64, 16, caption=4096))


if __name__ == "__main__":
    main()
