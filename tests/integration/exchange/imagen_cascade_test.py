"""A cascade of NeMo's Imagen, 64 and 128 pixels with random weights: its files, T5 as transformers saves it, and a prompt in, pictures of both
stages out.

Claim (sampling): A cascade of the weights of NeMo's UNetModel and EfficientUNetModel makes, stage by stage, the pictures of NeMo's own EDM samplers,
unmodified, from the same noise, prompts, steps and guidance, the noise of the picture to enlarge drawn once in both (1e-4).
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
# Before `support`, which has another tokenizers.py on its path.
from transformers import T5Config, T5EncoderModel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

torch.set_num_threads(1)
PEERS = pathlib.Path(os.environ.get("DITTO_PEERS_NEMO", t.source / ".deps/peers_nemo/bin/python"))
PEER = pathlib.Path(__file__).with_name("imagen_cascade_peer.py")
GOLDEN = t.source / "tests/golden/text_encoders/t5"
PROMPTS = ["a red apple", "two apples !"]
WIDTH, TOKENS, SEED = 64, 12, 31
STEPS, GUIDANCE, SIDES = {"base": 8, "sr": 5}, {"base": 3.0, "sr": 1.5}, {"base": 64, "sr": 128}
TOLERANCE = 1e-4
T5 = dict(vocab_size=61, d_model=WIDTH, d_kv=16, d_ff=48, num_layers=2, num_heads=4)
UNETS = {
    "base": dict(plugin="imagen_unet", embed_dim=32, image_size=64, channel_mult=[1, 1, 1], per_head_channels=16, cond_dim=32,
                 num_res_blocks=[1, 1, 1], attention_type="fused", attention_resolutions=[16]),
    "sr": dict(plugin="imagen_efficient_unet", embed_dim=32, channel_mult=[1, 1, 2], per_head_channels=16, num_resblocks=[1, 1, 1],
               atnn_enabled_at=[0, 0, 1], attention_type="stacked", stride=2, skip_connection_scaling=True, noise_cond_aug=True),
}


# --- draws, by sdk/include/ditto/math/random.h's words ----------------------------------------------------------------------------


def philox(counter, key):
    """Ten rounds of Philox4x32 on rows of four 32-bit words."""
    c, k = [word.astype(np.uint64) for word in counter], [np.uint64(word) for word in key]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(second >> np.uint64(32)) ^ c[1] ^ k[0], second & low, (first >> np.uint64(32)) ^ c[3] ^ k[1], first & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return c


def key_of(seed, purpose):
    every = (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15 * (purpose + 1)) & every
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & every
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & every
    z ^= z >> 31
    return z & 0xFFFFFFFF, z >> 32


def number_of(name):
    number = 0xCBF29CE484222325
    for byte in name.encode():
        number = ((number ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return number


def normals(seed, purpose, ids, shape, series=0):
    blocks = np.arange((t.product(shape) + 3) // 4)
    rows = []
    for id in ids:
        words = philox([np.full_like(blocks, id & 0xFFFFFFFF), np.full_like(blocks, id >> 32), blocks, np.full_like(blocks, series)],
                       key_of(seed, purpose))
        radius_a, turn_a, radius_b, turn_b = ((word + 0.5) * 2.0**-32 for word in words)
        pairs = [np.sqrt(-2 * np.log(radius)) * wave(2 * np.pi * turn) for radius, turn in ((radius_a, turn_a), (radius_b, turn_b))
                 for wave in (np.cos, np.sin)]
        rows.append(np.stack(pairs, 1).reshape(-1)[:t.product(shape)].reshape(shape))
    return torch.from_numpy(np.stack(rows)).float()


ENCODING, START = 11, 8  # Purpose::encoding and ::start_noise


def low_noise():
    """An encoder's seed is the run's and its section's name, that of a cascade's second stage another of these; noise_condition's noise is its
    draws' series 1."""
    seed = SEED ^ number_of("encoder.low") ^ number_of("series 1")
    return normals(seed, ENCODING, range(len(PROMPTS)), [3, SIDES["base"], SIDES["base"]], 1)


def start_noise():
    """By stages, whose number is the seed."""
    return {f"noise.{name}": normals(stage, START, range(len(PROMPTS)), [3, side, side]) for stage, (name, side) in enumerate(SIDES.items())}


# --- both sides -------------------------------------------------------------------------------------------------------------------


def peer(what, *words):
    done = subprocess.run([PEERS, PEER, what, t.work, *map(str, words)], capture_output=True, text=True, timeout=t.patient(400))
    t.equal(done.returncode, 0, f"exit code of {PEER.name} {what}: {done.stdout}{done.stderr}")


def text_encoder():
    torch.manual_seed(4)
    model = T5EncoderModel(T5Config(**T5)).eval()
    model.save_pretrained(t.work / "t5")
    for file in GOLDEN.iterdir():
        shutil.copy(file, t.work / "t5")
    return model


def encoded(model):
    """As NeMo has it: TOKENS places, zeros behind a text. Ids are Ditto's, which tokenizers' own tests hold against SentencePiece."""
    told = json.loads(t.run("tokenize", t.work / "base.toml", *PROMPTS, "--encoder", "t5", "--json").stdout)
    rows = [one["ids"][:one["length"]] for one in told]
    mask = torch.tensor([[float(place < len(row)) for place in range(TOKENS)] for row in rows])
    ids = torch.tensor([row + [0] * (TOKENS - len(row)) for row in rows])
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    t.check(1 < mask.sum(1).min() < TOKENS, "the prompts fill their places")
    return states * mask[..., None], mask


def recipes():
    for name, unet in UNETS.items():
        side = SIDES[name]
        encoders = dict(encoder__image=dict(plugin="identity"))
        if name == "sr":
            encoders = dict(encoder__image=dict(plugin="pyramid", size=[side // 2, side // 2]), encoder__low=dict(plugin="noise_condition"))
        tree = t.recipe(run=dict(name=name, steps=1, batch=2, seed=SEED, init_from=str(t.work / f"{name}-imported")),
                        data=t.synthetic(samples=4, channels=3, height=side, width=side, captions=True),
                        conditioning=dict(embed_dim=WIDTH, token_length=TOKENS, drop_rate=0.1, online_encoding=True, encoder_path=str(t.work / "t5")),
                        encoder__t5=dict(format="transformers"),
                        model=dict(token_length=TOKENS, learned_sinu_pos_emb_dim=0, init_conv_kernel_size=3) | unet,
                        scheduler=dict(plugin="edm"), sampler=dict(plugin="heun", steps=STEPS[name], clip="dynamic"),
                        guidance=dict(plugin="cfg", scale=1.0), objective=dict(plugin="diffusion"),
                        optimizer=dict(plugin="sgd", momentum=0.0), lr_schedule=dict(lr=1e-30), ema=dict(enabled=False), **encoders)
        t.write_recipe(f"{name}.toml", tree)
        # Weights are read without data, and so without what makes small pictures of them.
        plain = {key: value for key, value in tree.items() if key not in ("encoder__low", "encoder.low", "run")} | {
            "encoder.image": dict(plugin="identity"), "run": {key: value for key, value in tree["run"].items() if key != "init_from"}}
        t.run("checkpoint", "import", t.work / f"{name}.pt", "--format", "nemo", "--recipe", t.write_recipe(f"{name}-plain.toml", plain), "--out",
              t.work / f"{name}-imported")
    return t.write_recipe("pictures.toml", dict(cascade=dict(stages=["base.toml", "sr.toml"], passes="low", output=str(t.work / "pictures"))))


def test_pictures_of_both_stages_are_nemos():
    if not PEERS.exists():
        raise t.NotRun("needs nemo-toolkit's environment (./dev peers)")
    model = text_encoder()
    peer("save", WIDTH)
    t.run("train", recipes())
    (t.work / "prompts.txt").write_text("".join(prompt + "\n" for prompt in PROMPTS))
    text, mask = encoded(model)
    numbers = torch.tensor([[STEPS[name], GUIDANCE[name]] for name in UNETS])
    save_file(start_noise() | dict(text=text, text_mask=mask, low_noise=low_noise(), steps_and_guidance=numbers), t.work / "given.safetensors")
    peer("sample")
    theirs = load_file(t.work / "theirs.safetensors")
    words = ["--prompts", t.work / "prompts.txt", "--steps", ",".join(map(str, STEPS.values())), "--guidance", ",".join(map(str, GUIDANCE.values()))]
    ours = sampled(words)
    for name, pictures in theirs.items():
        difference = (ours[name] - pictures).abs().max().item()
        print(f"{name}: pictures up to {pictures.abs().max():.3g} differ by {difference:.2g}")
        t.check(pictures.std() > 0.05 and (pictures[0] - pictures[1]).abs().max() > 0.1, f"{name}: the pictures show hardly anything")
        t.check(difference <= TOLERANCE, f"{name}: pictures differ by {difference}")


def sampled(words):
    """{stage: its pictures}, without rounding to a PNG's numbers: what is passed on, and the last one's."""
    out = t.work / "samples"
    t.run("sample", t.work / "pictures", *words, "--batch", len(PROMPTS), "--all", "--save-latents", t.work / "last.safetensors", "--out", out)
    return {"base": load_file(out / ".cascade/base.safetensors")["low"], "sr": load_file(t.work / "last.safetensors")["latents"]}


if __name__ == "__main__":
    t.main(globals())
