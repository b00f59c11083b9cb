"""Weights of diffusers' own models in and out again, by files: a folder of random weights as save_pretrained writes it is
imported, `ditto forward` predicts what the class predicts (1e-5), the export has every tensor's SHA-256 and the same config.json
as JSON, and from_pretrained loads it. A file with one tensor renamed, missing, extra or transposed is refused by its name.

Claim (weights): Random weights that diffusers saved predict the same here (1e-5), and come out with every tensor's SHA-256 and
the same `config.json`; a file with one tensor renamed, missing, extra or transposed is refused by its name.

A family is one row of FAMILIES, each at two sizes or three.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import typing

import torch
from diffusers import (AutoencoderKL, DiTTransformer2DModel, FluxPipeline, FluxTransformer2DModel, LatteTransformer3DModel,
                       PixArtTransformer2DModel, SD3Transformer2DModel, UNet2DConditionModel, WanTransformer3DModel)
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint, convert_ldm_vae_checkpoint
from safetensors.torch import load_file, save_file

SOURCE = pathlib.Path(os.environ["DITTO_SOURCE_DIR"])
DITTO = os.environ["DITTO"]
WORK = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(WORK.name)
TOLERANCE = 1e-5
torch.set_num_threads(1)


@dataclasses.dataclass
class Family:
    name: str
    plugin: str  # ours
    model: type  # theirs
    sizes: list  # of the constructor's arguments, from small to large
    inputs: typing.Callable  # config -> a batch as `ditto forward` takes it
    forward: typing.Callable  # model, batch -> prediction
    prepare: typing.Callable = lambda model: None  # of weights that are one in every model that was trained
    options: dict = dataclasses.field(default_factory=dict)  # of ours, that a file does not say


def one_embedder(model):
    """diffusers makes DiT's embedders once a block, and uses the first for its end."""
    for block in model.transformer_blocks[1:]:
        block.norm1.emb.load_state_dict(model.transformer_blocks[0].norm1.emb.state_dict())


TIMES = torch.tensor([3.0, 500.5, 999.0])
DIT = dict(attention_head_dim=16, in_channels=4, out_channels=8, num_embeds_ada_norm=7)
TEXT = 12  # width of texts
PIXART = dict(attention_head_dim=16, in_channels=4, out_channels=8, caption_channels=TEXT)
LATTE = PIXART | dict(patch_size=2, attention_bias=True, activation_fn="gelu-approximate", norm_type="ada_norm_single",
                      norm_elementwise_affine=False, norm_eps=1e-6)
SD3 = dict(in_channels=4, out_channels=4, joint_attention_dim=TEXT, pooled_projection_dim=10)
FLUX = dict(joint_attention_dim=TEXT, pooled_projection_dim=10)
WAN = dict(in_channels=4, out_channels=4, text_dim=TEXT)


def vae(*channels, **more):
    stages = len(channels)
    return dict(down_block_types=("DownEncoderBlock2D",) * stages, up_block_types=("UpDecoderBlock2D",) * stages, block_out_channels=channels,
                **more)


def texts(samples, tokens=6, pooled=0):
    text = dict(text=torch.randn(samples, tokens, TEXT), text_mask=torch.ones(samples, tokens, dtype=torch.bool))
    return text | (dict(text_pooled=torch.randn(samples, pooled)) if pooled else {})


def pictures_with_texts(c):
    batch = dict(x=torch.randn(3, c.in_channels, c.sample_size, c.sample_size), t=TIMES, **texts(3))
    batch["text_mask"][1, 2:] = False
    return batch


def latte(model, batch):
    bias = (1 - batch["text_mask"].float()).mul(-10000.0).unsqueeze(1).repeat_interleave(batch["x"].shape[2], 0)
    return model(batch["x"], batch["t"], batch["text"], bias).sample


def flux(model, batch):
    """It takes packed patches of two by two, and times from 0 to 1."""
    samples, channels, rows, columns = batch["x"].shape
    packed = FluxPipeline._pack_latents(batch["x"], samples, channels, rows, columns)
    places = FluxPipeline._prepare_latent_image_ids(samples, rows // 2, columns // 2, "cpu", torch.float32)
    scale = torch.full([samples], 3.5) if model.config.guidance_embeds else None
    made = model(packed, batch["text"], batch["text_pooled"], batch["t"] / 1000, places, torch.zeros(batch["text"].shape[1], 3),
                 guidance=scale).sample
    return FluxPipeline._unpack_latents(made, 8 * rows, 8 * columns, 8)


def unet_inputs(c):
    batch = dict(x=torch.randn(3, c.in_channels, c.sample_size, c.sample_size), t=TIMES, **texts(3))
    if c.addition_embed_type:
        batch["text_pooled"] = torch.randn(3, c.projection_class_embeddings_input_dim - 6 * c.addition_time_embed_dim)
    return batch | (dict(label=torch.tensor([0, 6, 3])) if c.num_class_embeds else {})


def unet(model, batch):
    """Texts are padded with zeros to CLIP's 77 tokens, and a picture is all of itself, of 8 pixels each."""
    side = 8.0 * batch["x"].shape[-1]
    added = dict(text_embeds=batch["text_pooled"], time_ids=torch.tensor([[side, side, 0, 0, side, side]] * 3)) \
        if "text_pooled" in batch else None
    return model(batch["x"], batch["t"], torch.nn.functional.pad(batch["text"], (0, 0, 0, 77 - batch["text"].shape[1])),
                 class_labels=batch.get("label"), added_cond_kwargs=added).sample


DOWN, DOWN_TEXT, UP, UP_TEXT = "DownBlock2D", "CrossAttnDownBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"
UNET = dict(cross_attention_dim=TEXT, norm_num_groups=8, sample_size=8, layers_per_block=1)
UNET_XL = UNET | dict(block_out_channels=(16, 24, 32), down_block_types=(DOWN, DOWN_TEXT, DOWN_TEXT), up_block_types=(UP_TEXT, UP_TEXT, UP),
                      use_linear_projection=True, attention_head_dim=(2, 3, 4), transformer_layers_per_block=(1, 1, 2))
FAMILIES = [
    Family("DiT", "dit", DiTTransformer2DModel,
           [DIT | dict(num_attention_heads=2, num_layers=2, sample_size=8),
            DIT | dict(num_attention_heads=6, num_layers=5, sample_size=16, patch_size=4)],
           lambda c: dict(x=torch.randn(3, c.in_channels, c.sample_size, c.sample_size), t=TIMES,
                          label=torch.tensor([0, 6, 7])),
           lambda model, batch: model(batch["x"], timestep=batch["t"], class_labels=batch["label"]).sample,
           prepare=one_embedder),
    Family("PixArt", "pixart", PixArtTransformer2DModel,
           [PIXART | dict(num_attention_heads=2, num_layers=2, cross_attention_dim=32, sample_size=8),
            PIXART | dict(num_attention_heads=6, num_layers=3, cross_attention_dim=96, sample_size=128, patch_size=8)],
           pictures_with_texts,
           lambda model, batch: model(batch["x"], batch["text"], batch["t"], encoder_attention_mask=batch["text_mask"].float(),
                                      added_cond_kwargs=dict(resolution=torch.full([3, 2], 1024.0),
                                                             aspect_ratio=torch.ones(3))).sample,
           options={"model.null_text": "zero"}),
    Family("Latte", "latte", LatteTransformer3DModel,
           [LATTE | dict(num_attention_heads=2, num_layers=1, cross_attention_dim=32, sample_size=8, video_length=3),
            LATTE | dict(num_attention_heads=4, num_layers=3, cross_attention_dim=64, sample_size=16, video_length=2)],
           lambda c: pictures_with_texts(c) | dict(x=torch.randn(3, 4, c.video_length, c.sample_size, c.sample_size)),
           latte, options={"model.null_text": "zero"}),
    Family("SD3", "mmdit", SD3Transformer2DModel,
           [SD3 | dict(sample_size=8, num_layers=2, num_attention_heads=2, attention_head_dim=16, caption_projection_dim=32,
                       pos_embed_max_size=8),
            SD3 | dict(sample_size=16, num_layers=3, num_attention_heads=3, attention_head_dim=24, caption_projection_dim=72,
                       pos_embed_max_size=12, dual_attention_layers=(0, 1), qk_norm="rms_norm")],
           lambda c: dict(x=torch.randn(3, 4, c.sample_size, c.sample_size), t=TIMES, **texts(3, pooled=10)),
           lambda model, batch: model(batch["x"], batch["text"], batch["text_pooled"], batch["t"]).sample,
           options={"model.text_tokens": 6}),
    Family("Flux", "flux", FluxTransformer2DModel,
           [FLUX | dict(in_channels=8, num_layers=1, num_single_layers=1, num_attention_heads=2, attention_head_dim=16,
                        axes_dims_rope=(4, 6, 6)),
            FLUX | dict(in_channels=16, num_layers=2, num_single_layers=3, num_attention_heads=3, attention_head_dim=24,
                        axes_dims_rope=(4, 8, 12), guidance_embeds=True)],
           lambda c: dict(x=torch.randn(3, c.in_channels // 4, 8, 12), t=TIMES, **texts(3, pooled=10)), flux,
           options={"model.text_tokens": 6}),
    Family("Wan", "wan", WanTransformer3DModel,
           [WAN | dict(num_attention_heads=2, attention_head_dim=16, ffn_dim=40, num_layers=2),
            WAN | dict(num_attention_heads=4, attention_head_dim=24, ffn_dim=200, num_layers=3, patch_size=(2, 4, 4))],
           lambda c: dict(x=torch.randn(3, 4, 4, 8, 16), t=TIMES, **texts(3)),
           lambda model, batch: model(batch["x"], batch["t"], batch["text"]).sample, options={"model.text_tokens": 6}),
    Family("UNet", "unet_sd", UNet2DConditionModel,
           [UNET | dict(block_out_channels=(16, 32), down_block_types=(DOWN_TEXT, DOWN), up_block_types=(UP, UP_TEXT), attention_head_dim=4),
            UNET_XL | dict(addition_embed_type="text_time", addition_time_embed_dim=6, projection_class_embeddings_input_dim=46),
            UNET_XL | dict(in_channels=7, layers_per_block=(1, 2, 1), only_cross_attention=(False, True, False), num_class_embeds=7,
                           upcast_attention=True, sample_size=16)],
           unet_inputs, unet),
    Family("AutoencoderKL", "autoencoder_kl", AutoencoderKL,
           [vae(8, 16, norm_num_groups=4, layers_per_block=1, sample_size=16),
            vae(16, 32, 64, norm_num_groups=8, layers_per_block=2, latent_channels=8, sample_size=32, use_quant_conv=False,
                use_post_quant_conv=False, scaling_factor=1.5305, shift_factor=0.0609)],
           lambda c: dict(x=torch.randn(3, c.in_channels, c.sample_size, c.sample_size // 2)), lambda model, batch: model(batch["x"]).sample),
]


def run(*words):
    return subprocess.run([DITTO, *map(str, words)], cwd=FOLDER, capture_output=True, text=True)


def ditto(*words):
    done = run(*words)
    assert done.returncode == 0, f"ditto {' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}"


def random_model(family, size):
    """No weight is zero, as some are when a model is made."""
    torch.manual_seed(1)
    model = family.model(**size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (0.1 if parameter.dim() < 2 else parameter[0].numel() ** -0.5))
        family.prepare(model)
    return model


def tensors_in(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def hashes(folder):
    return {name: (str(tensor.dtype), list(tensor.shape),
                   hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest())
            for name, tensor in tensors_in(folder).items() if tensor.dim() > 0}


def import_words(family, path, out):
    sets = {"model.plugin": family.plugin} | family.options
    return ["checkpoint", "import", path, "--format", "diffusers", "--out", out,
            *(word for key, value in sets.items() for word in ("--set", f"{key}={value}"))]


def there_and_back(family, number, size):
    theirs, back = FOLDER / f"{family.name}{number}", FOLDER / f"{family.name}{number}-back"
    model = random_model(family, size)
    sharded = ["512KB"] if number else []
    model.save_pretrained(theirs, **({"max_shard_size": sharded[0]} if sharded else {}))
    checkpoint = f"{family.name}{number}-imported"
    ditto(*import_words(family, theirs, checkpoint))
    batch = family.inputs(model.config)
    save_file(batch, FOLDER / "in.safetensors")
    ditto("forward", checkpoint, "--in", "in.safetensors", "--out", "out.safetensors")
    with torch.no_grad():
        expected = family.forward(model, batch)
    found = load_file(FOLDER / "out.safetensors")["prediction"]
    assert found.shape == expected.shape, (found.shape, expected.shape)
    difference = ((found - expected).abs().max() / expected.abs().max()).item()
    ditto("checkpoint", "export", checkpoint, "--format", "diffusers", "--out", back,
          *(["--shard-size", *sharded] if sharded else []))
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{family.name}, {count} numbers{' in several files' if sharded else ''}: predictions differ by {difference:.2g}")
    assert difference <= TOLERANCE
    assert hashes(back) == hashes(theirs), [name for name, one in hashes(theirs).items() if hashes(back).get(name) != one]
    config = [json.loads((folder / "config.json").read_text()) for folder in (theirs, back)]
    assert config[0] == config[1], {key for key in config[0] | config[1] if config[0].get(key) != config[1].get(key)}
    with torch.no_grad():
        again = family.forward(family.model.from_pretrained(back).eval(), batch)
    assert torch.equal(again, expected)
    return theirs


def damaged(tensors):
    """What was done to one tensor of a block, the tensors, and the names that a refusal says."""
    wide = next(name for name, tensor in reversed(tensors.items())
                if "blocks." in name and tensor.dim() in (2, 4) and tensor.shape[0] != tensor.shape[1])
    others = {name: tensor for name, tensor in tensors.items() if name != wide}
    yield "renamed", others | {wide + "s": tensors[wide]}, [wide, wide + "s"]
    yield "missing", others, [wide]
    yield "extra", tensors | {"extra.weight": torch.zeros(3)}, ["extra.weight"]
    yield "transposed", tensors | {wide: tensors[wide].transpose(0, 1).contiguous()}, [wide]


def other_files_are_refused(family, folder):
    for what, tensors, names in damaged(tensors_in(folder)):
        other = shutil.copytree(folder, FOLDER / "other", dirs_exist_ok=True)
        save_file(tensors, other / "diffusion_pytorch_model.safetensors", {"format": "pt"})
        done = run(*import_words(family, other, "never"))
        assert done.returncode in (2, 7) and not (FOLDER / "never").exists(), f"{family.name}, {what}: {done.stdout}"
        for name in names:
            assert f"'{name}'" in done.stderr, f"{family.name}, {what}: {name} is not in\n{done.stderr}"
        shutil.rmtree(other)


def autoencoders_of_other_names(folder):
    """Of diffusers before its attention was called as elsewhere, and of latent-diffusion."""
    family, config = FAMILIES[-1], json.loads((folder / "config.json").read_text())
    tensors, before = tensors_in(folder), {}
    for name, tensor in tensors.items():
        for now, then in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")):
            name = name.replace(f".attentions.0.{now}.", f".attentions.0.{then}.")
        before[name] = tensor
    assert len(before.keys() - tensors.keys()) == 16
    older = shutil.copytree(folder, FOLDER / "older")
    save_file(before, older / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    ditto(*import_words(family, older, "older-imported"))
    ditto("checkpoint", "export", "older-imported", "--format", "diffusers", "--out", "older-back")
    assert hashes(FOLDER / "older-back") == hashes(folder)

    ditto("checkpoint", "export", "older-imported", "--format", "ldm", "--out", "ldm.safetensors")
    found = convert_ldm_vae_checkpoint(load_file(FOLDER / "ldm.safetensors"), config)
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
    there, alone = load_file(FOLDER / "ldm.safetensors"), FOLDER / "alone"
    alone.mkdir()
    zeros = torch.zeros(2)
    files = {"plain": there, "judged": there | {"loss.discriminator.weight": zeros},
             "whole": {f"first_stage_model.{name}": tensor for name, tensor in there.items()}
             | {"model.diffusion_model.out.weight": zeros, "cond_stage_model.weight": zeros + 1}}
    for name, tensors in files.items():
        save_file(tensors, alone / f"{name}.safetensors")
        ditto("checkpoint", "import", f"alone/{name}.safetensors", "--format", "ldm", "--out", f"{name}-imported", "--set",
              "model.plugin=autoencoder_kl", "--set", "model.groups=4")
        ditto("checkpoint", "export", f"{name}-imported", "--format", "diffusers", "--out", f"{name}-back")
        assert hashes(FOLDER / f"{name}-back") == hashes(folder), name


def unets_of_other_names(folder):
    """Of latent-diffusion, which says no heads: by diffusers' own conversion, and in again, alone and among others."""
    family, config = next(one for one in FAMILIES if one.model is UNet2DConditionModel), json.loads((folder / "config.json").read_text())
    model, tensors = random_model(family, family.sizes[0]), tensors_in(folder)
    ditto("checkpoint", "export", "UNet0-imported", "--format", "ldm", "--out", "unet-ldm.safetensors")
    there, alone = load_file(FOLDER / "unet-ldm.safetensors"), FOLDER / "unet-alone"
    found = convert_ldm_unet_checkpoint(dict(there), config)
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
    alone.mkdir()
    before = "model.diffusion_model."
    files = {"plain": {name.removeprefix(before): tensor for name, tensor in there.items()},
             "whole": there | {"first_stage_model.quant_conv.weight": torch.zeros(2), "cond_stage_model.weight": torch.ones(2)}}
    assert all(name.startswith(before) for name in there)
    batch = family.inputs(model.config)
    with torch.no_grad():
        expected = family.forward(model, batch)
    for name, tensors in files.items():
        save_file(tensors, alone / f"{name}.safetensors")
        words = ["checkpoint", "import", f"unet-alone/{name}.safetensors", "--format", "ldm", "--out", f"unet-{name}", "--set",
                 "model.plugin=unet_sd", "--set", "model.norm_num_groups=8"]
        done = run(*words)
        assert done.returncode == 2 and "attention_head_dim is not said" in done.stderr, done.stderr
        ditto(*words, "--set", "model.attention_head_dim=[4]")
        ditto("checkpoint", "export", f"unet-{name}", "--format", "diffusers", "--out", f"unet-{name}-back")
        assert hashes(FOLDER / f"unet-{name}-back") == hashes(folder), name
        with torch.no_grad():  # by the configuration that was written
            again = family.forward(UNet2DConditionModel.from_pretrained(FOLDER / f"unet-{name}-back").eval(), batch)
        assert torch.equal(again, expected)
    for key, value in (("time_cond_proj_dim", 8), ("act_fn", "gelu"), ("mid_block_type", "UNetMidBlock2D"), ("encoder_hid_dim", 12),
                       ("block_channels", [8]), ("attention_head_dim", 3), ("norm_num_groups", 5)):
        other = shutil.copytree(folder, FOLDER / "other", dirs_exist_ok=True)
        (other / "config.json").write_text(json.dumps(config | {key: value}))
        done = run(*import_words(family, other, "never"))
        named = "block_out_channels" if key == "norm_num_groups" else key
        assert done.returncode in (2, 7) and named in done.stderr and "config.json" in done.stderr, f"{key}: {done.stderr}"
        shutil.rmtree(other)


here = [one for one in FAMILIES if (SOURCE / "plugins/models" / one.plugin).is_dir()]
if sys.argv[1:]:  # of these names
    here = [one for one in here if one.name in sys.argv[1:]]
for one in here:
    small, *_ = [there_and_back(one, number, size) for number, size in enumerate(one.sizes)]
    other_files_are_refused(one, small)
    if one.model is AutoencoderKL:
        autoencoders_of_other_names(small)
    if one.model is UNet2DConditionModel:
        unets_of_other_names(small)
print(f"{len(here)} families, each at several sizes; damaged files refused")
