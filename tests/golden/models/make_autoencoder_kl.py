"""autoencoder_kl against diffusers' AutoencoderKL, unmodified: reference.py says how. The picture is made of the mean
of its latents; tests/golden/encoders has moments, tiles and what training draws.

    .deps/peers/bin/python tests/golden/models/make_autoencoder_kl.py
"""

from diffusers import AutoencoderKL

import reference

# What the presets are beside Stable Diffusion's: diffusers' config.json of each.
PRESETS = {
    "sd": dict(latent=4, quant=True, post_quant=True),
    "sdxl": dict(latent=4, quant=True, post_quant=True),
    "sd3": dict(latent=16, quant=False, post_quant=False),
    "flux": dict(latent=16, quant=False, post_quant=False),
}


def autoencoder(options, pictures=3):
    o = dict(channels=[128, 256, 512, 512], layers=2, groups=32, middle_attention=True) | PRESETS[options["preset"]] | options
    stages = len(o["channels"])
    return AutoencoderKL(
        in_channels=pictures, out_channels=pictures, down_block_types=("DownEncoderBlock2D",) * stages,
        up_block_types=("UpDecoderBlock2D",) * stages, block_out_channels=o["channels"], layers_per_block=o["layers"],
        latent_channels=o["latent"], norm_num_groups=o["groups"], use_quant_conv=o["quant"],
        use_post_quant_conv=o["post_quant"], mid_block_add_attention=o["middle_attention"])


# With every option of its shape; sides of which one is odd among the latents. Of such sizes that the class in fp32 is within 5e-6 of
# itself in fp64, gradients too: with more stages and layers gradients of norms cancel, and it is 2e-5 away.
CASES = {
    "autoencoder_sd": (3, dict(preset="sd", channels=[4, 8, 12], groups=2, layers=1), [12, 8]),
    "autoencoder_sdxl": (3, dict(preset="sdxl", channels=[6, 12], groups=3, layers=1, quant=False), [8, 6]),
    "autoencoder_sd3": (3, dict(preset="sd3", channels=[4, 8], groups=2, layers=1, latent=5), [12, 8]),
    "autoencoder_flux": (1, dict(preset="flux", channels=[8], groups=4, layers=3, middle_attention=False, post_quant=True), [5, 4]),
}


def main():
    for name, (pictures, options, sides) in CASES.items():
        reference.case(name, model="autoencoder_kl", options=options | dict(draws=False),
                       needs=reference.needs([pictures, *sides], pictures), inputs=dict(x=reference.drawn(2, pictures, *sides)),
                       module=autoencoder(options, pictures), forward=lambda module, batch: module(batch["x"]).sample)
    for name, preset in (("autoencoder_sd_whole", "sd"), ("autoencoder_flux_whole", "flux")):
        reference.count(name, model="autoencoder_kl", options=dict(preset=preset), needs=reference.needs([3, 64, 64], 3),
                        module=lambda: autoencoder(dict(preset=preset)))


if __name__ == "__main__":
    main()
