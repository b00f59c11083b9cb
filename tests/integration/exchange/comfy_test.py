"""Claim (weights): Single files of Stable Diffusion 3, Flux and Wan as their projects gave them out and ComfyUI loads them:
what diffusers' class saved is imported and exported as such a file, which diffusers' own converter makes the same tensors of,
bit for bit; and the file, imported again, is exported as the first folder.
"""

import os
import pathlib
import subprocess
import tempfile
from unittest import mock

import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel, WanTransformer3DModel
from diffusers.loaders import single_file_utils as converters
from safetensors.torch import load_file

DITTO = os.environ["DITTO"]
WORK = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(WORK.name)
split = torch.split
torch.set_num_threads(1)

SD3 = dict(sample_size=8, in_channels=4, out_channels=4, attention_head_dim=64, num_attention_heads=1, joint_attention_dim=12,
           caption_projection_dim=64, pooled_projection_dim=10, pos_embed_max_size=8, num_layers=3)
FLUX = dict(in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=32, num_attention_heads=2,
            joint_attention_dim=12, pooled_projection_dim=10, axes_dims_rope=(4, 14, 14))
WAN = dict(num_attention_heads=1, attention_head_dim=128, in_channels=4, out_channels=4, text_dim=12, ffn_dim=40, num_layers=2)


def flux_converter(checkpoint):
    """It knows one width, of which it splits the fused maps of a single block."""
    def of_this_width(tensor, sizes, dim=0):
        width = tensor.shape[0] // 7
        return split(tensor, [width, width, width, 4 * width] if len(sizes) == 4 else sizes, dim)

    with mock.patch.object(converters.torch, "split", of_this_width):
        return converters.convert_flux_transformer_checkpoint_to_diffusers(checkpoint)


FAMILIES = {
    "sd3": ("mmdit", SD3Transformer2DModel, SD3, converters.convert_sd3_transformer_checkpoint_to_diffusers),
    "sd35": ("mmdit", SD3Transformer2DModel, SD3 | dict(dual_attention_layers=(0, 1), qk_norm="rms_norm"),
             converters.convert_sd3_transformer_checkpoint_to_diffusers),
    "flux_dev": ("flux", FluxTransformer2DModel, FLUX | dict(guidance_embeds=True), flux_converter),
    "flux_schnell": ("flux", FluxTransformer2DModel, FLUX, flux_converter),
    "wan": ("wan", WanTransformer3DModel, WAN, converters.convert_wan_transformer_to_diffusers),
}


def ditto(*words):
    done = subprocess.run([DITTO, *map(str, words)], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, f"ditto {' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}"


def same(found, expected, what):
    assert found.keys() == expected.keys(), f"{what}: {found.keys() ^ expected.keys()}"
    for name, tensor in expected.items():
        assert torch.equal(found[name].reshape(tensor.shape), tensor), f"{what}: {name}"


for name, (plugin, model, arguments, convert) in FAMILIES.items():
    torch.manual_seed(1)
    made = model(**arguments)
    made.save_pretrained(FOLDER / name)
    expected = load_file(FOLDER / name / "diffusion_pytorch_model.safetensors")
    words = ["--set", f"model.plugin={plugin}"]
    ditto("checkpoint", "import", name, "--format", "diffusers", "--out", f"{name}-there", *words)
    ditto("checkpoint", "export", f"{name}-there", "--format", "comfy", "--out", f"{name}.safetensors")
    file = load_file(FOLDER / f"{name}.safetensors")
    same(convert(dict(file)), expected, f"{name}, as diffusers converts it")
    ditto("checkpoint", "import", f"{name}.safetensors", "--format", "comfy", "--out", f"{name}-back", *words)
    ditto("checkpoint", "export", f"{name}-back", "--format", "diffusers", "--out", f"{name}-again")
    same(load_file(FOLDER / f"{name}-again" / "diffusion_pytorch_model.safetensors"), expected, f"{name}, there and back")
    print(f"{name}: {len(file)} tensors of a single file, {len(expected)} of diffusers'")
