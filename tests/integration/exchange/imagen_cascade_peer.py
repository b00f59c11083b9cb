"""A cascade of NeMo's Imagen, run by imagen_cascade_test.py with the Python of .deps/peers_nemo.

    imagen_cascade_peer.py save FOLDER WIDTH    base.pt and sr.pt, UNets of random weights, by the names that a file of theirs has;
                                            WIDTH: of texts
    imagen_cascade_peer.py sample FOLDER        given.safetensors -> theirs.safetensors, as imagen_pipeline.py goes from model to model

nets.py, precond.py and sampler.py are nemo-toolkit's, unmodified; its pipeline imports what is not here, and its loop is a call a stage: the
next one is given the pictures of the one before. Two names are supplied: Apex's GroupNorm, which is PyTorch's, and `randn_like`. The
latter's draws are those that are given for the picture to enlarge, the same at every evaluation of the network.
"""

import contextlib
import importlib
import importlib.util
import pathlib
import sys
import types

import torch
from safetensors.torch import load_file, save_file

BASE, SIDE = 64, 128
UNETS = {
    "base": dict(embed_dim=32, image_size=BASE, channel_mult=[1, 1, 1], num_attn_heads=2, per_head_channels=16, cond_dim=32, num_res_blocks=1,
                 attention_type="fused", attention_resolutions=[16], feature_pooling_type="attention", learned_sinu_pos_emb_dim=0,
                 use_null_token=False, init_conv_kernel_size=3, scale_shift_norm=True, resblock_updown=False, resample_with_conv=True,
                 dropout=False),
    "sr": dict(embed_dim=32, image_size=SIDE, channel_mult=[1, 1, 2], num_attn_heads=2, per_head_channels=16, num_resblocks=[1, 1, 1],
               atnn_enabled_at=[0, 0, 1], attention_type="stacked", feature_pooling_type="attention", stride=2, learned_sinu_pos_emb_dim=0,
               use_null_token=False, init_conv_kernel_size=3, scale_shift_norm=True, skip_connection_scaling=True, noise_cond_aug=True),
}
PLACE = "nemo.collections.multimodal"


def nemo():
    """nets, precond, sampler, and the module whose randn_like is supplied."""
    utils = types.ModuleType(f"{PLACE}.parts.utils")
    utils.randn_like = torch.randn_like
    sys.modules[utils.__name__] = utils
    # Of packages whose __init__ imports what only trainings need, no more than where they lie.
    folder = pathlib.Path(importlib.util.find_spec("nemo").origin).parent
    for name in ("", ".collections", ".collections.multimodal", ".collections.multimodal.modules", ".collections.multimodal.modules.imagen",
                 ".collections.multimodal.modules.imagen.sampler", ".collections.multimodal.modules.imagen.diffusionmodules",
                 ".collections.multimodal.models", ".collections.multimodal.models.text_to_image",
                 ".collections.multimodal.models.text_to_image.imagen"):
        sys.modules[f"nemo{name}"] = types.ModuleType(f"nemo{name}")
        sys.modules[f"nemo{name}"].__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
    layers, nets, precond, sampler = (importlib.import_module(f"{PLACE}.{name}") for name in (
        "modules.imagen.diffusionmodules.layers", "modules.imagen.diffusionmodules.nets", "models.text_to_image.imagen.precond",
        "modules.imagen.sampler.sampler"))
    layers.GroupNorm = lambda groups, channels, act="": torch.nn.GroupNorm(groups, channels)
    return nets, precond, sampler


nets, precond, sampler = nemo()


def unet(name, width):
    kinds = {"base": nets.UNetModel, "sr": nets.EfficientUNetModel}
    return kinds[name](channels=3, text_embed_dim=width, **UNETS[name])


def filled(model, seed):
    """No weight is zero, as the last layer's are when a model is made; pictures stay within reason."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            numbers = torch.randn(parameter.shape, generator=draw)
            scale = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.05
            parameter.copy_(scale * numbers + (parameter.dim() == 1 and name.endswith("weight") and not name.endswith("W.weight")))
    return model.eval()


def save(folder, width):
    for seed, name in enumerate(UNETS):
        held = {f"model.model.unet.{key}": tensor for key, tensor in filled(unet(name, width), seed).state_dict().items()}
        torch.save({"state_dict": held}, folder / f"{name}.pt")


def model_of(folder, name, width):
    net = unet(name, width)
    held = torch.load(folder / f"{name}.pt", weights_only=True)["state_dict"]
    net.load_state_dict({key.removeprefix("model.model.unet."): tensor for key, tensor in held.items()})
    model = precond.EDMPrecond(net.eval(), noise_cond_aug=name == "sr")
    model.set_inference_mode(True)
    return model


@torch.no_grad()
def sample(folder):
    given = load_file(folder / "given.safetensors")
    text, mask, numbers = given["text"], given["text_mask"].float(), given["steps_and_guidance"]
    calls = []

    def randn_like(like, generator=None):
        calls.append(like.shape)
        assert generator is None and like.shape == given["low_noise"].shape
        return given["low_noise"]

    precond.randn_like = randn_like
    low, made = None, {}
    for (name, kind), (steps, scale) in zip((("base", "base"), ("sr", "sr")), numbers.tolist()):
        walk = sampler.EDMSampler(kind)
        with contextlib.redirect_stdout(None):
            low = walk(model_of(folder, name, text.shape[-1]), given[f"noise.{name}"], text, mask, low, scale, int(steps), "dynamic")
        made[name] = low.contiguous()
    assert calls, "the picture to enlarge got no noise"
    save_file(made, folder / "theirs.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[2])
    if sys.argv[1] == "save":
        save(folder, int(sys.argv[3]))
    else:
        sample(folder)
