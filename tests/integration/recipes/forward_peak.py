"""What `ditto train RECIPE --dry-run --forward` says of one forward, held against what the forward takes.

Claim (machine): The peak memory of one forward that a dry run finds on shapes alone is within 15 % of what `ditto forward --memory`
measures: of transformers and UNets of every kind of map. Also: `forward_peak.py --slow`, each of NeMo Imagen's presets at full size
"""

import json
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

NEAR = 0.15
EFFICIENT = dict(plugin="imagen_efficient_unet", embed_dim=32, channel_mult=[1, 2], num_resblocks=[1, 2], atnn_enabled_at=[0, 1],
                 per_head_channels=16, noise_cond_aug=True, token_length=8, feature_pooling_type="mean")
REGULAR = dict(plugin="imagen_unet", embed_dim=32, channel_mult=[1, 2], num_res_blocks=[2], attention_resolutions=[16],
               attention_type="fused", per_head_channels=16, token_length=8, feature_pooling_type="mean", cond_dim=32)
# Model, side of x, of a smaller picture (0: none), tokens and width of texts, samples.
SMALL = {
    "dit": (dict(plugin="dit", depth=4, width=128, heads=4, patch=2), 32, 0, None, 4),
    "joined": (dict(plugin="dit", depth=2, width=64, heads=4, patch=2, joins=["low"]), 32, 16, None, 2),
    "regular": (REGULAR, 32, 0, (8, 32), 2),
    "efficient": (EFFICIENT, 64, 16, (8, 32), 1),
}
PRESETS = {
    "500m_res_64": (dict(plugin="imagen_unet", preset="500m_res_64"), 64, 0, (128, 1024), 1),
    "2b_res_64": (dict(plugin="imagen_unet", preset="2b_res_64"), 64, 0, (128, 1024), 1),
    "400m_res_256": (dict(plugin="imagen_unet", preset="400m_res_256"), 256, 64, (128, 1024), 1),
    "600m_res_256": (dict(plugin="imagen_efficient_unet", preset="600m_res_256"), 256, 64, (128, 1024), 1),
    "400m_res_1024": (dict(plugin="imagen_efficient_unet", preset="400m_res_1024"), 256, 64, (128, 1024), 1),
}


def recipe_of(name, model, side, low, text):
    sections = dict(run=dict(name=name), model=model, ema=dict(enabled=False), objective=dict(plugin="diffusion", condition_dropout=0.0),
                    data=t.synthetic(samples=2, channels=3, height=side, width=side, content="noise",
                                     **(dict(classes=0, text_tokens=text[0], text_width=text[1]) if text else {})))
    if low:
        sections["encoder.image"] = dict(plugin="pyramid", size=[low, low])
        if "imagen" in model["plugin"]:
            sections["encoder.low"] = dict(plugin="noise_condition")
    return t.write_recipe(f"{name}.toml", t.recipe(**sections))


def inputs_of(name, side, low, text, samples):
    d = random.Random(7)
    tensors = {}

    def add(key, *shape):
        tensors[key] = ("F32", [samples, *shape], [d.gauss(0, 1) for _ in range(samples * t.product(shape))])

    add("x", 3, side, side)
    add("t")
    if low:
        add("low", 3, low, low), add("low_t")
    if text:
        add("text", *text)
        tensors["text_mask"] = ("BOOL", [samples, text[0]], [1] * (samples * text[0]))
    else:
        tensors["label"] = ("I64", [samples], [3] * samples)
    file = t.work / f"{name}.safetensors"
    t.write_tensors(file, tensors)
    return file


def check(name, model, side, low, text, samples):
    path = recipe_of(name, model, side, low, text)
    said = json.loads(t.run("train", path, "--dry-run", "--forward", samples, "--json").stdout)
    t.equal(said["samples"], samples, f"{name}: samples")
    done = t.run("forward", path, "--in", inputs_of(name, side, low, text, samples), "--out", t.work / f"{name}-out.safetensors",
                 "--memory", timeout=900)
    took = int(re.search(r"memory: (\d+) bytes", done.all).group(1))
    print(f"{name}: {said['parameters']} numbers, {said['peak']} bytes by shapes, {took} taken ({said['peak'] / took - 1:+.1%})", flush=True)
    t.check(said["weights"] < said["peak"], f"{name}: weights take {said['weights']} bytes of {said['peak']}")
    t.check(abs(said["peak"] / took - 1) <= NEAR, f"{name}: {said['peak']} bytes by shapes, and {took} taken")


def test_a_forward_takes_what_its_shapes_say():
    for name, case in (PRESETS if t.slow else SMALL).items():
        check(name, *case)


def test_one_sample_is_meant_where_no_number_is_given_and_ranks_are_of_a_training():
    path = recipe_of("one", *SMALL["dit"][:4])
    t.equal(json.loads(t.run("train", path, "--dry-run", "--json", "--forward").stdout)["samples"], 1, "samples")
    t.check("one forward of 1 sample on one rank" in t.run("train", path, "--dry-run", "--forward").stdout, "nothing is said for people")
    for ranks in ("--ranks", "--local-ranks"):
        t.refused(2, [ranks], "train", path, "--dry-run", "--forward", ranks, 8)
    t.refused(2, ["--dry-run"], "train", path, "--forward")
    t.refused(2, ["--forward", "whole number"], "train", path, "--dry-run", "--forward", 0)
    t.refused(2, ["--forward", "is empty"], "train", path, "--dry-run", "--forward", "")


def test_a_text_is_as_long_as_the_model_takes():
    path = recipe_of("text", *SMALL["regular"][:4])
    said = json.loads(t.run("train", path, "--dry-run", "--forward", "--json", "--text-length", 255, *t.sets({"data.text_tokens": 8})).stdout)
    t.equal(said["text_length"], 8, "tokens of a text")


if __name__ == "__main__":
    t.main(globals())
