"""Stable Diffusion's UNet of diffusers at half its width, as a peer of `unet_sd`: unets.py says how it is called.

The configuration is runwayml/stable-diffusion-v1-5's unet/config.json but for the channels and the width of a text, of latents of 32 x 32.
"""
import sys

import torch

import unets

SIDES, TEXT, BATCH = (4, 32, 32), (77, 256), 4
MAPS = [(160, 32), (320, 16), (640, 8)]  # channels, side
CONFIG = dict(sample_size=32, in_channels=4, out_channels=4, layers_per_block=2, block_out_channels=(160, 320, 640, 640),
              down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",), up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
              attention_head_dim=8, cross_attention_dim=256, norm_num_groups=32, norm_eps=1e-5, freq_shift=0, flip_sin_to_cos=True)


def made(checkpointed=False):
    import diffusers
    model = diffusers.UNet2DConditionModel(**CONFIG)
    if checkpointed:
        model.enable_gradient_checkpointing()
    return model


def predicted(network, x, t, text):
    return network(x, t, text).sample


def versions():
    import diffusers
    return f"diffusers {diffusers.__version__}, PyTorch {torch.__version__}"


if __name__ == "__main__":
    unets.main(sys.modules[__name__])
