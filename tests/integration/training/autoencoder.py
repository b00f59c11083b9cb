"""An autoencoder is trained, on any layout alike, and another training learns from its latents.

Claim (networks): An autoencoder learns to make pictures, alike to 1e-12 on one rank and cut by every strategy that may cut it,
and validations say its PSNR; with its weights, as a run or as a file of diffusers' names, the encoder of its name makes latents,
of which samples become pictures.
"""

import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

LAYOUTS = {
    "ddp": (2, {}),
    "fsdp": (2, {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}),
    "tensor": (2, {"parallel.tensor": 2}),
    "tensor-fsdp": (4, {"parallel.tensor": 2, "parallel.shard": 2, "parallel.shard_plugin": "fsdp"}),
    "pipeline": (2, {"parallel.pipeline": 2}),
}
SIZE = dict(channels=[8, 16], groups=4, layers=1, latent=2)


def recipe(name, run=None, model=None, objective=None, **sections):
    tree = t.recipe(run=dict(name=name, steps=4, batch=8, micro_batch=4) | (run or {}), model=dict(plugin="autoencoder_kl") | SIZE | (model or {}),
                    objective=dict(plugin="autoencoder") | (objective or {}), scheduler=None, sampler=None,
                    validate=dict(every=2, samples=12), **sections)
    return t.write_recipe(f"{name}.toml", tree)


def trained():
    if not (t.work / "learned").exists():
        t.train(recipe("learned", run=dict(steps=60, batch=16), objective=dict(kl=1e-4)), "learned", lr_schedule__lr=3e-3)
    return t.work / "learned"


def validations(folder):
    return t.lines_of(t.work / folder / "validation.jsonl")


def near(a, b, what):
    t.check(abs(float(a) - float(b)) <= 1e-12 * max(1, abs(float(a)), abs(float(b))), f"{what}: {a!r} and {b!r}")


def test_it_learns_alike_on_every_layout():
    path = recipe("alike", run=dict(precision="fp64"), objective=dict(kl=0.01))
    t.train(path, "one")
    one = t.tensors_of(t.latest("one"))
    for layout, (ranks, sets) in LAYOUTS.items():
        t.train(path, layout, "--local-ranks", ranks, *t.sets(sets))
        for mine, other in zip(t.metrics("one"), t.metrics(layout)):
            for key in ("loss", "grad_norm"):
                near(mine[key], other[key], f"{layout}, step {mine['step']}: {key}")
        for mine, other in zip(validations("one"), validations(layout)):
            near(mine["validation_loss"], other["validation_loss"], f"{layout}: validation loss")
            near(mine["measures"]["psnr"], other["measures"]["psnr"], f"{layout}: PSNR")
        there = t.tensors_of(t.latest(layout))
        t.equal(sorted(there), sorted(one), f"tensors under {layout}")
        for key, tensor in one.items():
            worst = max((abs(a - b) for a, b in zip(t.numbers(tensor), t.numbers(there[key]))), default=0)
            t.check(worst <= 1e-12, f"{layout}: {key} differs by {worst}")


def test_a_run_goes_on_bit_for_bit():
    t.goes_on_bit_for_bit(recipe("goes-on"))


def test_validations_say_psnr_which_no_loss_has():
    trained()
    first, *_, last = validations("learned")
    for line in (first, last):
        t.equal(sorted(line["losses"]), ["kl", "l1"], "losses")
        parts, whole = (float(line["losses"][name]) for name in ("kl", "l1")), float(line["validation_loss"])
        t.check(abs(sum(parts) - whole) < 1e-9, f"PSNR is a part of the loss: {line}")
        t.check(math.isfinite(float(line["measures"]["psnr"])) and float(line["measures"]["latent_rms"]) > 0, line["measures"])
    t.check(float(last["measures"]["psnr"]) > float(first["measures"]["psnr"]) + 1, f"PSNR: {first['measures']}, {last['measures']}")
    t.check(float(last["losses"]["l1"]) < 0.8 * float(first["losses"]["l1"]), f"l1: {first['losses']}, {last['losses']}")
    t.check("psnr" in (t.work / "learned/log.txt").read_text(), "log.txt: psnr")
    t.check(all("measures" not in line for line in t.lines_of(t.work / "learned/metrics.jsonl")), "metrics.jsonl has measures")


def test_its_options_are_told_apart():
    path = recipe("told", run=dict(steps=2))
    for name, options in {"l1": {}, "l2": {"objective.loss": "l2"}, "huber": {"objective.loss": "huber"}, "kl": {"objective.kl": 0.5},
                          "mean": {"model.draws": False}}.items():
        t.train(path, f"told-{name}", *t.sets(options))
    last = {name: t.metrics(f"told-{name}")[-1]["loss"] for name in ("l1", "l2", "huber", "kl", "mean")}
    t.equal(len(set(last.values())), 5, f"different losses of {last}")


def latents(name, **encoder):
    """A training of the latents of what has learned, whose sides are half the pictures'."""
    own = dict(plugin="autoencoder_kl", scale=0.5) | encoder
    return t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=3, batch=8, micro_batch=4), encoder__image=own,
                                                   model=dict(plugin="dit", depth=2, width=32, heads=4, patch=1)))


def test_another_training_learns_its_latents_from_the_run_and_from_a_file():
    path = latents("latents", weights=str(trained()))
    t.train(path, "latents")
    text = (t.work / "latents/run.toml").read_text().split("[encoder.image]")[1].split("\n[", 1)[0]
    t.check("latent = 2" in text and "channels = [8, 16]" in text, f"run.toml: {text}")
    t.run("checkpoint", "export", trained(), "--format", "diffusers", "--out", t.work / "vae")
    config = json.loads((t.work / "vae/config.json").read_text())
    t.equal((config["_class_name"], config["block_out_channels"], config["latent_channels"]), ("AutoencoderKL", [8, 16], 2), "config.json")
    config["scaling_factor"] = 0.5
    (t.work / "vae/config.json").write_text(json.dumps(config))
    sets = t.sets({"encoder.image.weights": str(t.work / "vae"), "encoder.image.format": "diffusers"})
    t.train(path, "by-file", *sets)
    t.same_metrics("latents", "by-file")
    t.refused(2, ["scale", "is 0.5", "it is 0.25"], "train", path, *t.sets({"run.output": str(t.work / "never")}),
              *t.sets({"encoder.image.weights": other_scale(config), "encoder.image.format": "diffusers"}))
    t.train(path, "mean", *t.sets({"encoder.image.draw": "mean"}))
    t.check(t.metrics("mean") != t.metrics("latents"), "draw = \"mean\" changes nothing")
    for layout in ("fsdp", "tensor"):
        t.train(path, f"latents-{layout}", "--local-ranks", 2, *t.sets(LAYOUTS[layout][1]))
        first, other = t.metrics("latents")[0]["loss"], t.metrics(f"latents-{layout}")[0]["loss"]
        t.check(abs(float(first) - float(other)) < 1e-5, f"{layout}: {first}, {other}")
    t.run("sample", t.work / "latents", "--out", t.work / "pictures", "--classes", "1,2")
    sizes = {t.read_png(file)[:2] for file in (t.work / "pictures").rglob("*.png")}
    t.check((8, 8) in sizes, f"sizes of pictures: {sizes}")


def other_scale(config):
    folder = t.work / "vae-other"
    folder.mkdir()
    for file in (t.work / "vae").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"scaling_factor": 0.25}))
    return str(folder)


def test_what_cannot_be_is_refused_in_one_sentence():
    never = t.sets({"run.output": str(t.work / "never")})

    def refused(parts, path, **sets):
        t.refused(2, parts, "train", path, *never, *t.sets({key.replace("__", "."): value for key, value in sets.items()}))

    path = recipe("refused")
    refused(["discriminator", "twice a micro-batch"], path, objective__discriminator="critic")
    refused(["channels", "groups = 4"], path, model__channels=[8, 18])
    refused(["[1, 8, 8]", "multiples of 16"], path, model__channels=[8, 8, 8, 8, 8])
    refused(["moments", "autoencoder_kl"], t.write_recipe("dit.toml", t.recipe(objective=dict(plugin="autoencoder"), scheduler=None, sampler=None)))
    refused(["[scheduler]"], t.write_recipe("noisy.toml", t.recipe(model=dict(plugin="autoencoder_kl") | SIZE, objective=dict(plugin="autoencoder"))))
    refused(["latent", "is 4", "it is 2"], latents("other", weights=str(trained()), latent=4))
    refused(["run.numerics", "divergence"], path, run__numerics="one")


if __name__ == "__main__":
    t.main(globals())
