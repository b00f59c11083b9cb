"""Folders of Stable Diffusion 1, 2 and XL as diffusers saves whole pipelines, shrunk and with random weights: what a user types to
sample from one, to train it on and to give it back; and single files in the names of latent-diffusion.

Claim (sampling): `ditto sample` of a Stable Diffusion folder makes the latents of StableDiffusionPipeline and StableDiffusionXLPipeline,
unmodified, from the same noise, prompts and DDIMScheduler with guidance 7.5 (1e-4), of noise and of v predicted.

Claim (weights): A folder of Stable Diffusion is trained on here and goes back into its pipeline; a single file in `ldm` names gives
the same UNet as the folder, and diffusers reads what is written in those names.
"""

import dataclasses
import pathlib
import shutil
import sys
import tomllib

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint
from PIL import Image
from safetensors.torch import load_file, save_file
# Before `support`, which has another tokenizers.py on its path.
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

torch.set_num_threads(1)
TOKENIZER = t.source / "tests/golden/text_encoders/clip"
PROMPTS = ["a red apple", "two apples !"]
STEPS, GUIDANCE, TOKENS, SIDE = 20, 7.5, 9, 8  # SIDE: of latents; 64 pixels
TOLERANCE = 1e-4
CLIP = dict(vocab_size=521, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=TOKENS,
            eos_token_id=520, bos_token_id=519, pad_token_id=520)
UNET = dict(sample_size=SIDE, in_channels=4, out_channels=4, norm_num_groups=8, cross_attention_dim=24,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
SCHEDULE = dict(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, clip_sample=False, set_alpha_to_one=False,
                steps_offset=1)
PREDICTED = {"epsilon": "epsilon", "v_prediction": "v"}


@dataclasses.dataclass
class Kind:
    unet: dict
    encoders: list  # of text: name of its folder, class, configuration, what fills a text's places
    prediction: str = "epsilon"
    pipeline: type = StableDiffusionPipeline
    more: dict = dataclasses.field(default_factory=dict)  # of the pipeline


KINDS = {
    "sd1": Kind(UNET | dict(block_out_channels=(16, 32), attention_head_dim=4, layers_per_block=2),
                [("text_encoder", CLIPTextModel, CLIP | dict(hidden_size=24), None)]),
    "sd2": Kind(UNET | dict(block_out_channels=(16, 24), attention_head_dim=(2, 3), layers_per_block=1, use_linear_projection=True,
                            upcast_attention=True),
                [("text_encoder", CLIPTextModel, CLIP | dict(hidden_size=24, hidden_act="gelu"), "!")], prediction="v_prediction"),
    "sdxl": Kind(UNET | dict(block_out_channels=(16, 32), attention_head_dim=(2, 4), layers_per_block=1, use_linear_projection=True,
                             down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
                             transformer_layers_per_block=(1, 2), addition_embed_type="text_time", addition_time_embed_dim=6,
                             projection_class_embeddings_input_dim=10 + 6 * 6),
                 [("text_encoder", CLIPTextModel, CLIP | dict(hidden_size=8), None),
                  ("text_encoder_2", CLIPTextModelWithProjection, CLIP | dict(hidden_size=16, hidden_act="gelu", projection_dim=10), "!")],
                 pipeline=StableDiffusionXLPipeline, more=dict(force_zeros_for_empty_prompt=True, add_watermarker=False)),
}


def filled(model):
    """No weight is zero, as some are when a model is made."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape) * parameter[0].numel() ** -0.5)
            else:
                parameter.copy_(torch.randn(parameter.shape) * 0.1 + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
    return model.eval()


def pipeline_of(kind):
    torch.manual_seed(5)
    unet = filled(UNet2DConditionModel(**kind.unet))
    unet.conv_out.weight.data *= 0.2  # guidance of what predicts no noise makes latents of 70, and their last places 1e-4
    parts = dict(unet=unet, scheduler=DDIMScheduler(prediction_type=kind.prediction, **SCHEDULE),
                 vae=filled(AutoencoderKL(block_out_channels=(8, 8, 8, 8), down_block_types=("DownEncoderBlock2D",) * 4,
                                          up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=1, norm_num_groups=4,
                                          latent_channels=4, sample_size=8 * SIDE)))
    for name, model, config, pad in kind.encoders:
        parts[name] = filled(model(CLIPTextConfig(**config)))
        parts[name.replace("text_encoder", "tokenizer")] = CLIPTokenizer.from_pretrained(
            TOKENIZER, model_max_length=TOKENS, **(dict(pad_token=pad) if pad else {}))
    if kind.pipeline is StableDiffusionPipeline:
        parts |= dict(safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    made = kind.pipeline(**parts, **kind.more)
    made.set_progress_bar_config(disable=True)
    return made


def saved(name):
    """The folder of a kind, and its pipeline as it is read from there."""
    folder = t.work / name
    if not folder.exists():
        pipeline_of(KINDS[name]).save_pretrained(folder)
    made = KINDS[name].pipeline.from_pretrained(folder, **(dict(safety_checker=None) if name != "sdxl" else {}))
    made.set_progress_bar_config(disable=True)
    return folder, made


def recipe_of(name, **sections):
    """As a user writes one for such a folder: docs/models.md has it."""
    kind, folder = KINDS[name], t.work / name
    texts = {}
    for part, model, _, pad in kind.encoders:
        own = dict(plugin="clip_text", weights=str(folder / part), tokens=TOKENS,
                   format="transformers" if model is CLIPTextModelWithProjection else "transformers5")
        if pad:
            own["pad"] = pad
        if len(kind.encoders) > 1:
            own |= dict(layer=-2, final_norm=False, name=part)
        texts["encoder__" + ("text" if len(kind.encoders) == 1 else part)] = own
    if len(texts) > 1:
        names = [part for part, *_ in kind.encoders]
        texts["encoder__text"] = dict(plugin="join_text", wide=names, pooled=names[1:])
    tree = dict(encoder__image=dict(plugin="autoencoder_kl", weights=str(folder), format="diffusers"), **texts,
                model=dict(plugin="unet_sd", text_tokens=TOKENS, null_text="zero" if name == "sdxl" else "empty"),
                scheduler=dict(plugin="iddpm", betas="scaled_linear", beta_start=0.00085, beta_end=0.012, variance="fixed_small",
                               prediction=PREDICTED[kind.prediction], spacing="leading"),
                sampler=dict(plugin="ddim", steps=STEPS), guidance=dict(plugin="cfg", scale=GUIDANCE))
    return t.write_recipe(f"{name}.toml", t.recipe(**(dict(data=None) | tree | sections)))


def imported(name):
    folder, made = saved(name)
    out = t.work / f"{name}-imported"
    if not out.exists():
        t.run("checkpoint", "import", folder, "--format", "diffusers", "--recipe", recipe_of(name), "--out", out)
    return out, made


def noise():
    return torch.randn(len(PROMPTS), 4, SIDE, SIDE, generator=torch.Generator().manual_seed(3))


def sampled(name, checkpoint, *words):
    save_file({"noise": noise()}, t.work / "noise.safetensors")
    (t.work / "prompts.txt").write_text("".join(prompt + "\n" for prompt in PROMPTS))
    latents = t.work / "latents.safetensors"
    t.run("sample", checkpoint, "--prompts", t.work / "prompts.txt", "--noise", t.work / "noise.safetensors", "--save-latents", latents,
          "--out", t.work / f"{name}-pictures", "--overwrite", *words)
    pictures = [np.asarray(Image.open(t.work / f"{name}-pictures/{i:06}.png"), dtype=float) for i in range(len(PROMPTS))]
    return load_file(latents)["latents"], np.stack(pictures)


def theirs_of(pipeline, **more):
    made = pipeline(PROMPTS, guidance_scale=GUIDANCE, num_inference_steps=STEPS, latents=noise(), output_type="latent", **more).images
    with torch.no_grad():
        pictures = pipeline.vae.decode(made / pipeline.vae.config.scaling_factor).sample
    return made, ((pictures / 2 + 0.5).clamp(0, 1) * 255).permute(0, 2, 3, 1).numpy()


def compare(what, ours, theirs):
    difference = (ours[0] - theirs[0]).abs().max().item()
    print(f"{what}: latents up to {theirs[0].abs().max():.3g} differ by {difference:.2g}")
    t.check((theirs[0][0] - theirs[0][1]).abs().max() > 0.1, "the prompts show")
    t.check(difference <= TOLERANCE, f"{what}: latents differ by {difference}")
    t.check(theirs[1].std() > 5, "the pictures show something")
    t.check(np.abs(ours[1] - theirs[1]).max() <= 1, f"{what}: pictures differ by {np.abs(ours[1] - theirs[1]).max()}")


def test_samples_of_a_folder_are_the_pipelines():
    for name in KINDS:
        checkpoint, pipeline = imported(name)
        compare(name, sampled(name, checkpoint), theirs_of(pipeline))
        negative = "a green apple"
        compare(f"{name}, a negative prompt", sampled(name, checkpoint, "--negative-prompt", negative),
                theirs_of(pipeline, negative_prompt=[negative] * len(PROMPTS)))


def test_a_folder_is_trained_on_and_goes_back_into_its_pipeline():
    for name in KINDS:
        checkpoint, pipeline = imported(name)
        # The options that the import read in the folder; a user of a published size writes `preset` and no more.
        model = tomllib.loads((checkpoint / "recipe.toml").read_text())["model"]
        path = recipe_of(name, run=dict(name=f"{name}-tuned", steps=2, batch=2, init_from=str(checkpoint)), model=model,
                         data=t.synthetic(samples=8, channels=3, height=8 * SIDE, width=8 * SIDE, classes=3, captions=True),
                         objective=dict(plugin="diffusion", condition_dropout=0.5), optimizer=dict(plugin="adamw"),
                         lr_schedule=dict(lr=1e-3), ema=dict(enabled=False))
        t.train(path, f"{name}-tuned")
        back = shutil.copytree(t.work / name, t.work / f"{name}-back")
        shutil.rmtree(back / "unet")
        t.run("checkpoint", "export", t.work / f"{name}-tuned", "--format", "diffusers", "--out", back / "unet")
        unet = UNet2DConditionModel.from_pretrained(back / "unet").eval()
        moved = max((one - other).abs().max().item() for one, other in zip(unet.parameters(), pipeline.unet.parameters()))
        t.check(1e-4 < moved < 0.1, f"{name}: weights moved by {moved}")
        pipeline.unet = unet
        compare(f"{name}, trained", sampled(f"{name}-tuned", t.work / f"{name}-tuned"), theirs_of(pipeline))


def test_single_files_in_ldm_names_are_what_the_folder_is():
    for name in KINDS:
        checkpoint, pipeline = imported(name)
        file = t.work / f"{name}.safetensors"
        t.run("checkpoint", "export", checkpoint, "--format", "ldm", "--out", file)
        theirs, ours = load_file(file), pipeline.unet.state_dict()
        back = convert_ldm_unet_checkpoint(dict(theirs), pipeline.unet.config)
        t.equal(sorted(back), sorted(ours), f"{name}: names that diffusers makes of it")
        for key, tensor in back.items():
            t.check(torch.equal(tensor, ours[key]), f"{name}: {key} is another")
        # The whole of it in one file, as it was published; of the autoencoder some names do.
        save_file(theirs | {"first_stage_model.encoder.conv_in.weight": torch.zeros(2), "cond_stage_model.transformer.w": torch.zeros(2),
                            "betas": torch.zeros(2)}, file)
        said = dict(attention_head_dim=list(np.atleast_1d(KINDS[name].unet["attention_head_dim"]).tolist()), norm_num_groups=8)
        if name == "sdxl":  # whose texts are known by their width, which is another here
            said |= dict(addition_embed_type="text_time", class_embed_type="none", addition_time_embed_dim=6)
        words = [word for key, value in said.items() for word in t.sets({f"model.{key}": value})]
        done = t.run("checkpoint", "import", file, "--format", "ldm", "--recipe", recipe_of(name), *words, "--out", t.work / f"{name}-single")
        t.check("left out: 1 tensor of first_stage_model" in done.all, done.all)
        t.run("checkpoint", "export", t.work / f"{name}-single", "--format", "ldm", "--out", t.work / "again.safetensors")
        again = load_file(t.work / "again.safetensors")
        t.equal(sorted(again), sorted(theirs), f"{name}: names")
        t.check(all(torch.equal(again[key], theirs[key]) for key in theirs), f"{name}: other weights")


def test_what_a_folder_is_named_for_is_said():
    folder, _ = saved("sd1")
    import_it = f"ditto checkpoint import {folder}"
    t.refused(7, [str(folder), "holds no checkpoint", import_it], "sample", folder, "--out", t.work / "never")
    for place in (folder, folder / "unet"):
        t.refused(7, ["ditto checkpoint import"], "train", recipe_of("sd1", data=t.synthetic(captions=True, channels=3, height=64, width=64),
                                                                   run=dict(name="never", steps=1, init_from=str(place))))
    v, _ = saved("sd2")
    t.refused(2, ["scheduler_config.json", "prediction_type", "v_prediction"], "checkpoint", "import", v, "--format", "diffusers", "--recipe",
              recipe_of("sd2"), "--set", "scheduler.prediction=epsilon", "--out", t.work / "never")
    words = ["checkpoint", "import", folder, "--format", "diffusers", "--out", t.work / "by-set", "--set"]
    t.check("unet/diffusion_pytorch_model.safetensors" in t.run(*words, "model.plugin=unet_sd").all, "the folder of its class")
    t.refused(7, ["is a folder without", "unet/", "vae/"], *words[:-1])


if __name__ == "__main__":
    t.main(globals())
