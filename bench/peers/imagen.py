"""Imagen's Efficient UNet of nemo-toolkit at 64 x 64, as a peer of `imagen_efficient_unet`; with the Python of .deps/peers_nemo. unets.py
says how it is called.

The model is that of NeMo's sr256-600m.yaml at half its width. NeMo's takes a smaller picture besides the noisy one; its first convolution
leaves that out here, as no data of this benchmark has one. Apex's GroupNorm, which NeMo cannot do without, is PyTorch's; of a module that imports what only its
trainings need there is the one function that is used.
"""
import sys
import types

import torch

import unets

SIDES, TEXT, BATCH = (3, 64, 64), (128, 1024), 4
MAPS = [(64, 32), (128, 16), (256, 8), (512, 8)]  # channels, side
CONFIG = dict(embed_dim=64, image_size=64, channels=3, text_embed_dim=1024, channel_mult=[1, 2, 4, 8, 8], num_attn_heads=8,
              per_head_channels=64, attention_type="fused", atnn_enabled_at=[0, 0, 0, 1, 1], feature_pooling_type="attention", stride=2,
              num_resblocks=[2, 4, 8, 8, 8], learned_sinu_pos_emb_dim=0, use_null_token=False, init_conv_kernel_size=3,
              scale_shift_norm=True, stable_attention=True, flash_attention=False, skip_connection_scaling=True, noise_cond_aug=False)


class OfNoisyAlone(torch.nn.Conv2d):
    def forward(self, both):
        return super().forward(both[:, :self.in_channels])


def made(checkpointed=False):
    utils = types.ModuleType("nemo.collections.multimodal.parts.utils")
    utils.randn_like = torch.randn_like
    sys.modules[utils.__name__] = utils
    from nemo.collections.multimodal.modules.imagen.diffusionmodules import layers, nets
    layers.GroupNorm = lambda groups, channels, act="": torch.nn.GroupNorm(groups, channels)
    model = nets.EfficientUNetModel(**CONFIG, gradient_checkpointing=checkpointed)
    first = model.init_conv
    model.init_conv = OfNoisyAlone(SIDES[0], first.out_channels, first.kernel_size, padding=first.padding)
    return model


def predicted(network, x, t, text):
    return network(x, t, text, torch.ones(text.shape[:2]), x)


def versions():
    import importlib.metadata
    return f"nemo-toolkit {importlib.metadata.version('nemo-toolkit')}, PyTorch {torch.__version__}"


if __name__ == "__main__":
    unets.main(sys.modules[__name__])
