"""A model that was trained here, in diffusers' own programs: the folder of an export loads by from_pretrained as it is, and a
loop or a pipeline of theirs makes what `ditto sample` makes from the same noise. A folder of theirs is imported as it is.

Claim (weights): An exported folder loads by `from_pretrained` as it is, and diffusers' loop and DiTPipeline make the same
samples from the same noise.
"""

import os
import pathlib
import subprocess
import tempfile

import numpy as np
import torch
from diffusers import (AutoencoderKL, DDIMScheduler, DDPMScheduler, DiTPipeline, DiTTransformer2DModel,
                       FlowMatchEulerDiscreteScheduler)
from PIL import Image
from safetensors.torch import load_file, save_file

SOURCE = pathlib.Path(os.environ["DITTO_SOURCE_DIR"])
DITTO = os.environ["DITTO"]
WORK = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(WORK.name)
torch.set_num_threads(1)


def ditto(*arguments):
    done = subprocess.run([DITTO, *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, f"ditto {' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}{done.stderr}"


def export(run):
    ditto("checkpoint", "export", f"runs/{run}", "--format", "diffusers", "--out", f"{run}-diffusers")
    return FOLDER / f"{run}-diffusers"


def sample(run, noise, labels, *words):
    save_file({"noise": noise}, FOLDER / "noise.safetensors")
    ditto("sample", f"runs/{run}", "--out", f"{run}-pictures", "--noise", "noise.safetensors", "--seeds", f"0-{len(noise) - 1}",
          "--classes", ",".join(map(str, labels)), "--save-latents", "latents.safetensors", "--overwrite", *words)
    return load_file(FOLDER / "latents.safetensors")["latents"]


# --- the digits, by a loop of twenty lines ------------------------------------------------------------------


@torch.no_grad()
def loop(folder, x, labels, steps, guidance):
    model = DiTTransformer2DModel.from_pretrained(folder).eval()
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(folder)
    scheduler.set_timesteps(steps)
    labels = torch.tensor(labels + [model.config.num_embeds_ada_norm] * len(labels))
    for t in scheduler.timesteps:
        velocity = model(torch.cat([x, x]), timestep=t.expand(len(labels)), class_labels=labels).sample
        given, null = velocity.chunk(2)
        x = scheduler.step(null + guidance * (given - null), t, x).prev_sample
    return ((x.clamp(-1, 1) + 1) * 127.5).round()[:, 0].numpy()


def the_digits_are_drawn_by_diffusers():
    ditto("train", SOURCE / "configs/digits.toml", "--set", "run.steps=60", "--set", "validate.grid_every=0", "--set",
          "validate.every=0", "--set", "log.progress='none'")
    folder, labels = export("digits"), list(range(10))
    noise = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    sample("digits", noise, labels, "--steps", 20, "--guidance", 2, "--set", "scheduler.grid=diffusers")
    theirs = loop(folder, noise, labels, 20, 2)
    ours = [np.asarray(Image.open(FOLDER / f"digits-pictures/{seed:06}.png"), dtype=float) for seed in range(10)]
    difference = np.abs(np.stack(ours) - theirs).max()
    print(f"digits: {difference:.0f}/255 between our pictures and diffusers'")
    assert theirs.std() > 20, "the pictures show something"
    assert difference <= 1


# --- a thousand classes, by their pipeline ------------------------------------------------------------------

# It drives schedules as DDIM's; of flow matching's scheduler it asks for what that has not.

def train_on_thousand_classes():
    (FOLDER / "thousand.toml").write_text("""
[run]
name = "thousand"
steps = 200
batch = 16
threads = 1
[data]
plugin = "synthetic"
classes = 1000
channels = 4
height = 8
width = 8
[encoder.image]
plugin = "identity"
[model]
plugin = "dit"
convention = "diffusers"
depth = 2
width = 64
heads = 4
[scheduler]
plugin = "iddpm"
spacing = "ddim"
[sampler]
plugin = "ddim"
[objective]
plugin = "diffusion"
condition_dropout = 0.1
[optimizer]
plugin = "adamw"
[lr_schedule]
lr = 3e-3
[ema]
decay = 0.9
""")
    ditto("train", "thousand.toml", "--set", "log.progress='none'")


def small_autoencoder():
    torch.manual_seed(0)
    return AutoencoderKL(in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(8,), norm_num_groups=4,
                         sample_size=8).eval()


def decoded_by_the_pipeline(folder, labels, seed, steps, guidance):
    """What DiTPipeline gives its autoencoder to decode, in the scale of the transformer."""
    vae = small_autoencoder()
    pipeline = DiTPipeline(DiTTransformer2DModel.from_pretrained(folder).eval(), vae, DDIMScheduler.from_pretrained(folder))
    pipeline.set_progress_bar_config(disable=True)
    caught, decode = [], vae.decode
    vae.decode = lambda latents, *more, **named: caught.append(latents) or decode(latents, *more, **named)
    pipeline(class_labels=labels, guidance_scale=guidance, generator=torch.Generator().manual_seed(seed),
             num_inference_steps=steps, output_type="np")
    return caught[0] * vae.config.scaling_factor


def the_pipeline_decodes_our_latents():
    train_on_thousand_classes()
    folder, labels, steps = export("thousand"), [207, 0, 999], 20
    for guidance in (1, 4):
        noise = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(2))
        ours = sample("thousand", noise, labels, "--steps", steps, "--guidance", guidance)
        theirs = decoded_by_the_pipeline(folder, labels, 2, steps, guidance)
        difference = (ours - theirs).abs().max().item()
        print(f"DiTPipeline, guidance {guidance}: latents up to {theirs.abs().max():.3g} differ by {difference:.2g}")
        assert (theirs[0] - theirs[1]).abs().max() > 0.1
        assert difference <= 1e-4
    return folder


def their_ancestral_sampler_finds_the_variance(folder):
    config = DDPMScheduler.from_pretrained(folder).config
    assert (config.variance_type, config.clip_sample, config.prediction_type) == ("learned_range", False, "epsilon")
    assert (config.beta_start, config.beta_end, config.beta_schedule) == (1e-4, 0.02, "linear")


# --- and back -----------------------------------------------------------------------------------------------


def a_folder_of_theirs_is_imported_as_it_is():
    torch.manual_seed(3)
    model = DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2,
                                  sample_size=8, num_embeds_ada_norm=7).eval()
    # One set of embedders, as of every model that was trained: diffusers makes one a block, and uses the first for its end.
    for block in model.transformer_blocks[1:]:
        block.norm1.emb.load_state_dict(model.transformer_blocks[0].norm1.emb.state_dict())
    model.save_pretrained(FOLDER / "theirs")
    ditto("checkpoint", "import", "theirs", "--format", "diffusers", "--set", "model.plugin=dit", "--out", "imported")
    x, t, label = torch.randn(3, 4, 8, 8), torch.tensor([3.0, 500.5, 999.0]), torch.tensor([0, 6, 7])
    save_file({"x": x, "t": t, "label": label}, FOLDER / "in.safetensors")
    ditto("forward", "imported", "--in", "in.safetensors", "--out", "out.safetensors")
    with torch.no_grad():
        theirs = model(x, timestep=t, class_labels=label).sample
    difference = (load_file(FOLDER / "out.safetensors")["prediction"] - theirs).abs().max() / theirs.abs().max()
    print(f"a folder of diffusers, imported: predictions differ by {difference:.2g}")
    assert difference <= 1e-5


the_digits_are_drawn_by_diffusers()
their_ancestral_sampler_finds_the_variance(the_pipeline_decodes_our_latents())
a_folder_of_theirs_is_imported_as_it_is()
