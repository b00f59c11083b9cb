"""encoder autoencoder_kl against diffusers' AutoencoderKL, unmodified, in float64: moments, latents in their scale and
decoded pictures, whole and in tiles, and the divergence of the moments; and names of other projects' files.

    .deps/peers/bin/python tests/golden/encoders/make_autoencoder_kl.py     makes autoencoder_kl.json beside this file

Weights and inputs are those of tests/golden/models/reference.py's formula, by diffusers' names; of each tensor that is
made the file keeps what a digest there keeps.
"""

import json
import pathlib
import sys

import diffusers
import torch
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))
import make_autoencoder_kl as models  # noqa: E402
import reference  # noqa: E402

# scale, shift: as pipelines have them for the preset, of diffusers' config.json; mean and std: as SDXL's do.
CASES = {
    "sd": dict(options=dict(preset="sd", channels=[4, 8, 8], groups=2, layers=1), scale=0.18215, sides=[24, 16], tile=8, overlap=0.5),
    "sdxl": dict(options=dict(preset="sdxl", channels=[6, 12], groups=3, layers=1), scale=0.13025, sides=[18, 22], tile=8, overlap=0.25,
                 mean=[0.5, -1.25, 0.0, 2.0], std=[1.5, 0.5, 2.0, 1.0]),
    "sd3": dict(options=dict(preset="sd3", channels=[4, 8], groups=2, latent=3), scale=1.5305, shift=0.0609, sides=[12, 8], tile=4, overlap=0.0),
    "flux": dict(options=dict(preset="flux", channels=[4, 4, 4], groups=2, layers=1, middle_attention=False), scale=0.3611, shift=0.1159,
                 sides=[20, 44], tile=16, overlap=0.25),
}


def digests(vae, case, image, clean, prefix):
    factors = case["scale"] / torch.tensor(case.get("std", [1.0]), dtype=torch.float64).view(1, -1, 1, 1)
    offsets = torch.tensor(case.get("mean", [case.get("shift", 0.0)]), dtype=torch.float64).view(1, -1, 1, 1)
    posterior = vae.encode(image).latent_dist
    made = {"moments": torch.cat([posterior.mean, posterior.logvar], 1), "clean": (posterior.mode() - offsets) * factors,
            "picture": vae.decode(clean / factors + offsets).sample, "divergence": posterior.kl()}
    return {prefix + name: reference.digest(prefix + name, tensor, 32) for name, tensor in made.items()}


def case_of(name, case):
    torch.set_num_threads(1)
    vae = models.autoencoder(case["options"]).eval()
    reference.fill(vae, {})
    vae = vae.double()
    latent, factor = vae.config.latent_channels, 2 ** (len(vae.config.block_out_channels) - 1)
    image = reference.formula.values(f"{name} image", [2, 3, *case["sides"]], 1.0).double()
    clean = reference.formula.values(f"{name} clean", [2, latent, *(side // factor for side in case["sides"])], 1.5).double()
    with torch.no_grad():
        tensors = digests(vae, case, image, clean, "")
        vae.enable_tiling()
        vae.tile_sample_min_size, vae.tile_latent_min_size = case["tile"], case["tile"] // factor
        vae.tile_overlap_factor = case["overlap"]
        tensors |= digests(vae, case, image, clean, "tiled ")
    return case | {"tensors": tensors}


# --- names ----------------------------------------------------------------------------------------------------


def residual(at, into, out):
    shapes = {"norm1": [into], "conv1": [out, into, 3, 3], "norm2": [out], "conv2": [out, out, 3, 3]}
    return {f"{at}.{layer}": shape for layer, shape in (shapes | ({"nin_shortcut": [out, into, 1, 1]} if into != out else {})).items()}


def middle(at, width):
    return (residual(f"{at}.block_1", width, width) | residual(f"{at}.block_2", width, width) | {f"{at}.attn_1.norm": [width]}
            | {f"{at}.attn_1.{layer}": [width, width, 1, 1] for layer in ("q", "k", "v", "proj_out")})


def ldm(config):
    """Layers of CompVis' AutoencoderKL (github.com/CompVis/latent-diffusion, ldm/modules/diffusionmodules/model.py), and
    their weights' shapes."""
    channels, layers, latent = config.block_out_channels, config.layers_per_block, config.latent_channels
    last = len(channels) - 1
    all = {"encoder.conv_in": [channels[0], 3, 3, 3], "encoder.norm_out": [channels[-1]], "encoder.conv_out": [2 * latent, channels[-1], 3, 3],
           "decoder.conv_in": [channels[-1], latent, 3, 3], "decoder.norm_out": [channels[0]], "decoder.conv_out": [3, channels[0], 3, 3],
           "quant_conv": [2 * latent, 2 * latent, 1, 1], "post_quant_conv": [latent, latent, 1, 1]}
    all |= middle("encoder.mid", channels[-1]) | middle("decoder.mid", channels[-1])
    for stage, width in enumerate(channels):
        into, above = channels[max(stage - 1, 0)], channels[min(stage + 1, last)]
        for layer in range(layers):
            all |= residual(f"encoder.down.{stage}.block.{layer}", into if layer == 0 else width, width)
        for layer in range(layers + 1):
            all |= residual(f"decoder.up.{stage}.block.{layer}", above if layer == 0 else width, width)
        if stage < last:
            all[f"encoder.down.{stage}.downsample.conv"] = [width, width, 3, 3]
        if stage > 0:
            all[f"decoder.up.{stage}.upsample.conv"] = [width, width, 3, 3]
    return all


def same_names(vae):
    """ldm's name of each of diffusers', as its own converter has them: each tensor there has a number of its own."""
    there = {}
    for layer, shape in ldm(vae.config).items():
        there[f"{layer}.weight"], there[f"{layer}.bias"] = shape, [shape[0]]
    filled = {name: torch.full(shape, float(number)) for number, (name, shape) in enumerate(there.items())}
    here = convert_ldm_vae_checkpoint(dict(filled), dict(vae.config))
    state = vae.state_dict()
    assert set(here) == set(state), set(here) ^ set(state)
    assert all(here[name].shape == state[name].shape for name in state)
    names = list(there)
    return {name: {"name": names[int(tensor.flatten()[0])], "shape": there[names[int(tensor.flatten()[0])]]} for name, tensor in here.items()}


def former_names(vae):
    """Today's name of what diffusers reads by an older one."""
    layers = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    found = {}
    for number, name in enumerate(vae.state_dict()):
        for now, then in layers.items():
            if f".attentions.0.{now}." in name:
                state = {name.replace(f".{now}.", f".{then}."): number}
                before = next(iter(state))
                vae._fix_state_dict_keys_on_load(state)
                assert list(state) == [name]
                found[name] = before
    return found


def main():
    vae = models.autoencoder(dict(preset="sd", channels=[4, 8, 8], groups=2, layers=2))
    content = {"diffusers": diffusers.__version__, "names": {"options": dict(channels=[4, 8, 8], groups=2, layers=2),
                                                            "ldm": same_names(vae), "former": former_names(vae)},
               "cases": {name: case_of(name, case) for name, case in CASES.items()}}
    path = HERE / "autoencoder_kl.json"
    path.write_text(json.dumps(content, indent=0) + "\n")
    assert path.stat().st_size < reference.MOST_BYTES
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
