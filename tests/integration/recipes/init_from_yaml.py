"""`ditto init --from`: recipes of YAML files that NeMo's Imagen is trained by.

Claim (options): Every field of a YAML file of NeMo's Imagen becomes an option, is noted with the reason why it needs none, or is
refused with its line: files of our own with the same fields, and NeMo's 14 where DITTO_NEMO_YAML says a folder with them.
"""

import os
import pathlib
import sys
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

HERE = pathlib.Path(__file__).parent / "nemo_yaml"

SHARED = {
    "run": dict(name="kites", output="runs/kites", steps=700, seed=77, device="cpu", precision="bf16", batch=24, micro_batch=4, clip_norm=0.75),
    "data": dict(plugin="webdataset", shards=["/pictures/kites/*.tar", "/pictures/more/part-{000..003}.tar"], label="none", size=[16, 16],
                 resize="bicubic", channels=3),
    "encoder": dict(image=dict(plugin="identity")),
    "loader": dict(threads=3, flip=True),
    "conditioning": dict(embed_dim=64, token_length=12, drop_rate=0.2, precached_key="words", out_key="told"),
    "guidance": dict(plugin="cfg"),
    "objective": dict(plugin="diffusion"),
    "parallel": dict(recompute="blocks"),
    "optimizer": dict(plugin="adamw", beta1=0.8, beta2=0.95, eps=1e-7, weight_decay=0.05),
    "lr_schedule": dict(lr=0.0003, warmup=91),  # NeMo's WarmupPolicy of 90 steps: (s + 1) / 91 of the rate in step s
    "ema": dict(enabled=True, decay=0.995, warmup=False),
    "checkpoint": dict(every=350, keep=2),
    "log": dict(tensorboard=True, tensorboard_every=4),
}
UNET = dict(embed_dim=32, channel_mult=[1, 2], attention_type="stacked", feature_pooling_type="mean", learned_sinu_pos_emb_dim=0,
            use_null_token=False, init_conv_kernel_size=3, scale_shift_norm=True, token_length=12)
BASE = SHARED | {
    "run": SHARED["run"] | dict(memory_format="channels_last"),
    "model": UNET | dict(plugin="imagen_unet", per_head_channels=16, attention_resolutions=[8], cond_dim=64, resblock_updown=False,
                         resample_with_conv=True, num_res_blocks=[2], image_size=16),
    "scheduler": dict(plugin="ddpm_continuous", prediction="x0", log_snr="linear", loss="huber"),
    "sampler": dict(plugin="ancestral", steps=60, clip="dynamic"),
}
SR = SHARED | {
    "run": SHARED["run"] | dict(memory_format="channels_first"),
    "encoder": dict(image=dict(plugin="pyramid", size=[4, 4]), low=dict(plugin="noise_condition", sigma_data=0.4, mean=-0.7, std=1.3)),
    "model": UNET | dict(plugin="imagen_efficient_unet", per_head_channels=-1, num_attn_heads=4, num_resblocks=[1, 2], atnn_enabled_at=[0, 1],
                         stride=2, skip_connection_scaling=True, noise_cond_aug=True),
    "scheduler": dict(plugin="edm", sigma_data=0.4, mean=-0.7, std=1.3, loss="l1"),
    "sampler": dict(plugin="heun", steps=50, clip="dynamic"),
}


def made(path, name):
    out = t.work / f"{name}.toml"
    done = t.run("init", "--from", path, "--out", out)
    return tomllib.loads(out.read_text()), out.read_text(), done


def test_every_field_becomes_an_option_or_is_noted():
    for name, expected in (("base", BASE), ("sr", SR)):
        recipe, text, done = made(HERE / f"{name}.yaml", name)
        for section in sorted(set(expected) | set(recipe)):
            t.equal(recipe.get(section), expected.get(section), f"[{section}] of {name}")
        noted = ["allow_tf32", "trainer.benchmark", "model.inductor", "model.ddp_overlap", "model.unet.flash_attention", "trainer.devices",
                 "exp_manager.checkpoint_callback_params.filename", "model.data.webdataset.infinite_sampler"]
        noted += ["model.unet.num_attn_heads"] if name == "base" else []
        for field in noted:
            t.check(f"# - {field}" in text and f"note: {field}" in done.stderr, f"{field} is not noted: {text}")
        t.check("6 there" in text, text)
    t.refused(2, ["base.toml", "is there already"], "init", "--from", HERE / "base.yaml", "--out", t.work / "base.toml")


def test_an_optimizers_weight_decay_that_is_not_said_is_that_of_its_class():
    text = (HERE / "base.yaml").read_text().replace("    weight_decay: 0.05\n", "")
    for name, decay in (("adamw", 0.01), ("fused_adam", 0.0), ("adam", 0.0)):
        path = t.work / f"decay-{name}.yaml"
        path.write_text(text.replace("name: fused_adam", f"name: {name}"))
        t.equal(made(path, f"decay-{name}")[0]["optimizer"]["weight_decay"], decay, name)


def test_recipes_are_taken_by_their_plugins():
    for name in ("base", "sr"):
        path = t.work / f"taken-{name}.toml"
        t.run("init", "--from", HERE / f"{name}.yaml", "--out", path)
        t.check("null_text" not in t.run("config", "show", path).all, "an option that no UNet of Imagen has")
        t.run("train", path, "--dry-run")


def test_an_encoder_that_nemo_downloads_is_named_and_noted():
    path, text = t.work / "online.yaml", (HERE / "base.yaml").read_text()
    old = "".join(line for line in text.splitlines(True) if line.strip().startswith(("precached_key", "out_key")))
    t.check(old in text and old.count("\n") == 2, old)
    path.write_text(text.replace(old, "    online_encoding: True\n    encoder_path: null\n"))
    recipe, text, _ = made(path, "online")
    t.equal(recipe["conditioning"], dict(embed_dim=64, token_length=12, drop_rate=0.2, encoder_path="t5-11b", online_encoding=True), "[conditioning]")
    t.check("conditioning.encoder_path: NeMo downloads" in text, "no note")


def test_what_enlarges_learns_from_parts_of_pictures():
    path = t.work / "parts.yaml"
    text = (HERE / "sr.yaml").read_text()
    for old, new in (("resize_smallest_side: 16", "resize_smallest_side: 64"), ("image_size: 16", "image_size: 64")):
        t.equal(text.count(old), 1, old)
        text = text.replace(old, new)
    path.write_text(text)
    recipe, text, _ = made(path, "parts")
    t.equal((recipe["data"]["size"], recipe["encoder"]["image"]), ([64, 64], dict(plugin="pyramid", size=[4, 4], crop=[16, 16])), "pictures and parts of them")
    t.check("center_crop_h_w: parts" in text, "no note on where parts are cut")
    t.run("train", t.work / "parts.toml", "--dry-run")


# What is changed in a file, and what is said of the line.
REFUSED = [
    ("base", "    embed_dim: 32\n", "    embed_dims: 32\n", "embed_dims: 32", ["model.unet.embed_dims", "is no field"]),
    ("base", "    embed_dim: 32\n", "    embed_dim: many\n", "embed_dim: many", ["model.unet.embed_dim", "expected a whole number"]),
    ("base", "attention_type: stacked", "attention_type: linear", "attention_type: linear", ["model.unet.attention_type does not do", "stacked"]),
    ("base", "global_batch_size: 24", "global_batch_size: 0", "global_batch_size: 0", ["model.global_batch_size does not do"]),
    ("sr", "atnn_enabled_at: [ 0, 1 ]", "atnn_enabled_at: [ 0 ]", "atnn_enabled_at: [ 0 ]", ["model.unet.atnn_enabled_at does not do"]),
    ("base", "timesteps: 60", "steps: 60", "steps: 60", ["model.preconditioning.steps", "is no field"]),
    ("base", "dropout: False", "dropout: True", "dropout: True", ["is no rate"]),
    ("base", "max_steps: 700", "max_steps: many", "max_steps: many", ["expected a whole number"]),
    ("base", "precision: bf16", "precision: 8", "precision: 8", ["expected one of"]),
    ("base", "accumulate_grad_batches: 1", "accumulate_grad_batches: 2", "accumulate_grad_batches: 2", ["NeMo refuses"]),
    ("base", "center_crop_h_w: 16, 16", "center_crop_h_w: 8, 8", "center_crop_h_w: 8, 8", ["learns from parts"]),
    ("sr", "center_crop_h_w: 16, 16", "center_crop_h_w: 16, 8", "center_crop_h_w: 16, 8", ["no square"]),
    ("sr", "center_crop_h_w: 16, 16", "center_crop_h_w: 32, 32", "center_crop_h_w: 32, 32", ["smallest side is 16"]),
    ("base", "image_size: 16", "image_size: 32", "image_size: 32", ["let both be the same"]),
    ("base", "filterings: null", "filterings: { resolution: { method: larger, value: 16 } }", "filterings: {", ["set null"]),
    ("base", "pred_objective: x_start", "pred_objective: v", "pred_objective: v", ["noise, x_start"]),
    ("base", "name: fused_adam", "name: adam", "name: adam", ["weight_decay"]),
    ("base", "  seed: 77\n", "  seed: 77\n  noise_cond_aug: True\n", "noise_cond_aug: True", ["unet_type is base"]),
    ("base", "create_wandb_logger: False", "create_wandb_logger: True", "create_wandb_logger: True", ["Weights & Biases"]),
    ("base", "${trainer.precision}", "${trainer.precisions}", "${trainer.precisions}", ["there is no such field"]),
    ("sr", "target_resolutions: [ 4, 16 ]", "corruption_aug: { target_resolution: [ 4, 16 ] }", "corruption_aug", ["no code", "target_resolutions"]),
    ("sr", "target_resolutions: [ 4, 16 ]", "target_resolutions: [ 4, 8 ]", "target_resolutions", ["[LOW, 16]"]),
]


def test_what_cannot_be_a_recipe_is_refused_with_its_line():
    for number, (name, old, new, mark, parts) in enumerate(REFUSED):
        text = (HERE / f"{name}.yaml").read_text()
        t.check(text.count(old) == 1, f"{old} stands there {text.count(old)} times")
        path = t.work / f"refused-{number}.yaml"
        path.write_text(text.replace(old, new, 1))
        line = next(i for i, row in enumerate(path.read_text().splitlines(), 1) if mark in row)
        out = t.work / f"refused-{number}.toml"
        t.refused(2, [f"refused-{number}.yaml:{line}: ", *parts], "init", "--from", path, "--out", out)
        t.check(not out.exists(), "a recipe of a file that is refused")


def test_files_that_are_no_trainings_are_refused_by_what_they_are():
    for text, parts in (("customized_model:\n  base_ckpt: null\nsamplings:\n  - step: 3\n", ["customized_model", "samples or scores"]),
                        ("trainer:\n  devices: 1\n", ["model.unet"]), ("- 1\n", ["no map"]), ("a: [1\n", ["not YAML"])):
        path = t.work / "other.yaml"
        path.write_text(text)
        t.refused(2, ["other.yaml", *parts], "init", "--from", path, "--out", t.work / "other.toml")
    t.refused(2, ["--from"], "init")


# NeMo's files: what each becomes, or the field that it is refused by.
THEIRS = {
    "base64-500m": "imagen_unet", "base64-2b": "imagen_unet", "base64-500m-edm": "imagen_unet", "base64-500m_online_encoding": "imagen_unet",
    "sr256-400m": "model.data.train.filterings", "sr256-600m": "model.data.train.filterings",
    "sr1024-600m": "model.data.train.filterings", "sr256-400m-edm": "model.data.train.corruption_aug",
    "sr256-450m-edm": "model.data.train.corruption_aug", "sr256-600m-edm": "model.data.train.corruption_aug", "sr256-600m-edm-noise": "model.data.train.corruption_aug",
    "fid_inference": "customized_model", "imagen_fid_images": "infer", "inference_pipeline": "customized_model",
}


def test_nemos_own_files_convert_or_are_refused_by_line():
    folder = os.environ.get("DITTO_NEMO_YAML")
    if not folder:
        print("not run: NeMo's own files, which lie in the folder that DITTO_NEMO_YAML names")
        return
    for name, becomes in THEIRS.items():
        path = pathlib.Path(folder) / f"{name}.yaml"
        if becomes.startswith("imagen_"):
            t.equal(made(path, name)[0]["model"]["plugin"], becomes, name)
            continue
        t.refused(2, [f"{name}.yaml:", becomes], "init", "--from", path, "--out", t.work / f"{name}.toml")


t.main(globals())
