"""Adapters: learned beside frozen weights alike on every layout, saved alone, found again with their base, merged, written
and read as peft does; and what is refused of them.

Claim (networks): An adapter (LoRA) learns alike on ddp, zero1, zero2, fsdp, tensor with and without sequence, ring, fastseq,
pipeline, recompute and offload, to 1e-12 in fp64; frozen weights keep every bit; its checkpoint is under 5 % of the model's
weights; it resumes with the same bits, and is sampled from its run, from peft's files and merged. Also: all of it in
`adapter.py --slow`, `low_rank_test.cpp`
"""

import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

WIDE = dict(plugin="dit", depth=2, width=32, heads=4, patch=2)
LAYOUTS = {
    "ddp": (2, {}),
    "zero1": (2, {"parallel.shard": 2, "parallel.shard_plugin": "zero1"}),
    "zero2": (2, {"parallel.shard": 2, "parallel.shard_plugin": "zero2"}),
    "fsdp": (2, {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}),
    "tensor": (2, {"parallel.tensor": 2}),
    "sequence": (2, {"parallel.tensor": 2, "parallel.sequence": True}),
    "ring": (2, {"parallel.context": 2, "parallel.context_plugin": "ring"}),
    "fastseq": (2, {"parallel.context": 2, "parallel.context_plugin": "fastseq"}),
    "pipeline": (2, {"parallel.pipeline": 2}),
    "recompute": (1, {"parallel.recompute": "blocks"}),
    "offload": (1, {"parallel.offload": "optimizer"}),
}
QUICK = ("fsdp", "sequence", "fastseq", "pipeline", "offload")  # without --slow
_runs = {}


def base(name="base", precision="fp64", model=WIDE, **run):
    """A run of a whole model, and its folder."""
    if name not in _runs:
        path = t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=6, precision=precision) | run, model=model,
                                                       lr_schedule=dict(lr=3e-3, warmup=0)))
        t.train(path, name)
        _runs[name] = t.work / name
    return _runs[name]


def recipe(name, of=None, run={}, adapter={}, **sections):
    tree = t.recipe(run=dict(name=name, steps=4, precision="fp64", batch=8, micro_batch=4, init_from=str(of or base())) | run,
                    model=WIDE, adapter=dict(rank=4, alpha=8, layers=["*"]) | adapter,
                    lr_schedule=dict(lr=3e-3, warmup=0), **sections)
    return t.write_recipe(f"{name}.toml", tree)


def learned(name, **more):
    """A run of an adapter on the base."""
    if name not in _runs:
        t.train(recipe(name, **more), name)
        _runs[name] = t.work / name
    return _runs[name]


def near(a, b, what, most=1e-12):
    t.check(abs(a - b) <= most * max(1, abs(a), abs(b)), f"{what}: {a!r} and {b!r}")


def far(a, b):
    return max((abs(x - y) for x, y in zip(t.numbers(a), t.numbers(b))), default=0)


def check_alike(path, name, layouts):
    t.train(path, f"{name}-one")
    one = t.tensors_of(t.latest(f"{name}-one"))
    for layout in layouts:
        ranks, sets = LAYOUTS[layout]
        folder = f"{name}-{layout}"
        t.train(path, folder, *(("--local-ranks", ranks) if ranks > 1 else ()), *t.sets(sets))
        for mine, other in zip(t.metrics(f"{name}-one"), t.metrics(folder)):
            for key in ("loss", "grad_norm"):
                near(float(mine[key]), float(other[key]), f"{layout}, step {mine['step']}: {key}")
        there = t.tensors_of(t.latest(folder))
        t.equal(sorted(there), sorted(one), f"tensors under {layout}")
        for key, tensor in one.items():
            t.check(far(tensor, there[key]) <= 1e-12, f"{layout}: {key} differs by {far(tensor, there[key])}")
        shutil.rmtree(t.work / folder)
    return one


# --- learning ------------------------------------------------------------------------------------------------------------


def test_an_adapter_learns_alike_on_every_layout():
    before = {file.name: file.read_bytes() for file in t.latest(base().name).iterdir()}
    one = check_alike(recipe("alike"), "alike", LAYOUTS if t.slow else QUICK)
    names = {name for _, name in one}
    t.check(all(name.split("/")[-1].endswith((".lora_A.weight", ".lora_B.weight")) for name in names), f"saved: {sorted(names)}")
    t.equal(len([name for section, name in one if section == "model"]), 2 * len(linear_layers()), "terms")
    t.check(any(any(t.numbers(tensor)) for (section, name), tensor in one.items()
                if section == "model" and name == "blocks.0.qkv.lora_B.weight"), "nothing was learned")
    t.equal({file.name: file.read_bytes() for file in t.latest(base().name).iterdir()}, before, "the base's checkpoint")


def linear_layers():
    """Of WIDE, by their weights of two dims that are no table."""
    return sorted(name[:-len(".weight")] for (section, name), (_, shape, _) in t.tensors_of(t.latest(base().name)).items()
                  if section == "model" and name.endswith(".weight") and len(shape) == 2 and "label" not in name)


def test_a_stage_of_a_pipeline_may_have_nothing_to_learn():
    for block in (0, 1):
        path = recipe(f"block-{block}", adapter=dict(layers=[f"blocks.{block}.*"]))
        check_alike(path, f"block-{block}", ("pipeline", "fsdp") if t.slow else ("pipeline",))
    both = {"parallel.pipeline": 2} | LAYOUTS["fsdp"][1]
    t.train(recipe("both", adapter=dict(layers=["blocks.1.qkv"])), "both", "--local-ranks", 4, *t.sets(both))


def test_frozen_weights_are_those_of_the_base_after_twenty_steps_and_a_run_goes_on_bit_for_bit():
    for layout in ("fsdp", "tensor"):
        ranks, sets = LAYOUTS[layout]
        path = recipe(f"on-{layout}", of=base("base32", precision="fp32"), run=dict(steps=24, precision="fp32"),
                      checkpoint=dict(every=20, keep=3))
        words = ("--local-ranks", ranks, *t.sets(sets))
        t.train(path, f"on-{layout}", *words)
        # What goes on has read the base anew, and every loss depends on it to the last bit.
        shutil.copytree(t.work / f"on-{layout}", t.work / f"again-{layout}", symlinks=True)
        shutil.rmtree(t.latest(f"again-{layout}"))
        t.train(path, f"again-{layout}", *words)
        t.same_metrics(f"on-{layout}", f"again-{layout}")
        t.same_state(f"on-{layout}", f"again-{layout}")


def test_low_precision_learns_beside_weights_that_are_kept_in_it():
    for layout in ("fsdp", "zero2") if t.slow else ("fsdp",):
        ranks, sets = LAYOUTS[layout]
        path = recipe("low", of=base("base32", precision="fp32"), run=dict(steps=4, precision="bf16"))
        t.train(path, "low-one")
        t.train(path, f"low-{layout}", "--local-ranks", ranks, *t.sets(sets))
        t.same_metrics("low-one", f"low-{layout}")
        t.same_state("low-one", f"low-{layout}")


def test_a_checkpoint_holds_the_adapter_alone():
    wide = dict(plugin="dit", depth=2, width=256, heads=4, patch=2)
    of = base("large", precision="fp32", model=wide, steps=1)
    path = t.write_recipe("small.toml", t.recipe(run=dict(name="small", steps=1, init_from=str(of)), model=wide,
                                                 adapter=dict(rank=2, layers=["blocks.*"])))
    t.train(path, "small")
    model = sum(len(data) for (section, _), (_, _, data) in t.tensors_of(t.latest("large")).items() if section == "model")
    saved = sum(file.stat().st_size for file in t.latest("small").iterdir())
    print(f"an adapter's checkpoint, with its average and optimizer: {saved} bytes, {saved / model:.2%} of the model's weights")
    t.check(saved < 0.05 * model, f"{saved} bytes beside {model}")


def test_a_dry_run_counts_what_is_learned():
    of, alone = (json.loads(t.run("train", path, "--dry-run", "--json").stdout)
                 for path in (t.work / "base.toml", recipe("paper")) if base())
    t.equal(alone["frozen_parameters"]["model"], of["parameters"], "frozen numbers")
    t.equal(alone["parameters"], sum(4 * sum(shape) for shape in shapes_of_layers()), "learned numbers")
    for share in ("gradients", "optimizer", "ema"):
        t.check(alone["first"]["bytes"][share] < of["first"]["bytes"][share], f"{share}: {alone['first']['bytes']}")


def shapes_of_layers():
    tensors = t.tensors_of(t.latest(base().name))
    return [tensors["model", name + ".weight"][1] for name in linear_layers()]


# --- using it ------------------------------------------------------------------------------------------------------------


def latents(name, *arguments):
    t.run("sample", *arguments, "--out", t.work / f"{name}-pictures", "--seeds", "0-3", "--classes", "3,1,4,1", "--steps", 2,
          "--save-latents", t.work / f"{name}.safetensors", "--progress", "none", "--overwrite")
    return t.read_tensors(t.work / f"{name}.safetensors")["latents"]


def peft():
    """The run's adapter in peft's files."""
    if not (t.work / "peft").exists():
        t.run("checkpoint", "export", learned("learned"), "--out", t.work / "peft")
    return t.work / "peft"


def test_samples_are_the_same_from_its_run_from_peft_files_and_from_the_merged_model():
    of = base()
    run = learned("learned")
    found = latents("run", run)
    t.check(far(found, latents("base-alone", of)) > 1e-3, "the adapter changes nothing")
    t.equal(sorted(file.name for file in peft().iterdir()), ["README.md", "adapter_config.json", "adapter_model.safetensors"], "files")
    t.equal(json.loads((peft() / "adapter_config.json").read_text())["r"], 4, "rank")
    t.equal(latents("by-files", of, "--adapter", peft()), found, "latents by peft's files")
    said = [[line.get("adapter") for line in t.lines_of(t.work / f"{name}-pictures" / "samples.jsonl")] for name in ("by-files", "base-alone")]
    t.equal([sorted(set(map(str, names))) for names in said], [[str(peft())], ["None"]], "adapters that samples.jsonl names")
    t.equal(latents("by-run", of, "--adapter", run), found, "latents by the run")
    t.equal(latents("two", run, "--local-ranks", 2, *t.sets(LAYOUTS["fsdp"][1])), found, "latents on two ranks")
    t.run("checkpoint", "export", run, "--merge", "--format", "facebook-dit", "--out", t.work / "merged.safetensors")
    t.run("checkpoint", "import", t.work / "merged.safetensors", "--format", "facebook-dit", "--recipe", t.work / "base.toml",
          "--out", t.work / "merged")
    worst = far(found, latents("merged", t.work / "merged"))
    t.check(worst <= 1e-12, f"merged, samples differ by {worst}")


def test_names_of_diffusers_split_a_fused_layer_and_come_back():
    theirs = dict(plugin="dit", depth=2, width=32, heads=4, patch=2, convention="diffusers")
    of = base("theirs", model=theirs)
    path = t.write_recipe("split.toml", t.recipe(run=dict(name="split", steps=3, precision="fp64", init_from=str(of)), model=theirs,
                                                 adapter=dict(rank=3, alpha=6, layers=["blocks.*.qkv", "blocks.*.proj"]),
                                                 lr_schedule=dict(lr=3e-3, warmup=0)))
    t.train(path, "split")
    found = latents("split-run", t.work / "split")
    t.run("checkpoint", "export", t.work / "split", "--format", "diffusers", "--out", t.work / "split-peft")
    names = t.read_tensors(t.work / "split-peft/adapter_model.safetensors")
    t.check("base_model.model.transformer_blocks.0.attn1.to_q.lora_A.weight" in names, sorted(names))
    t.equal(latents("split-files", of, "--adapter", t.work / "split-peft"), found, "latents")
    # Trained there, query, key and value have maps of their own: side by side they are one of three times the rank.
    for name in list(names):
        if ".to_k.lora_A" in name:
            names[name] = (names[name][0], names[name][1], t.array.array("d", [2 * x for x in t.numbers(names[name])]).tobytes())
        if ".to_k.lora_B" in name:
            names[name] = (names[name][0], names[name][1], t.array.array("d", [x / 2 for x in t.numbers(names[name])]).tobytes())
    t.write_tensors(t.work / "split-peft/adapter_model.safetensors",
                    {name: (tensor[0], tensor[1], list(t.numbers(tensor))) for name, tensor in names.items()})
    worst = far(latents("split-apart", of, "--adapter", t.work / "split-peft", "--set", "adapter.format=diffusers"), found)
    t.check(worst <= 1e-12, f"with maps of their own samples differ by {worst}")


def test_a_run_starts_from_an_adapter():
    run = learned("learned")
    for place in (peft(), run):
        name = f"started-{place.name}"
        tree = t.recipe(run=dict(name=name, steps=0, precision="fp64", init_from=str(base())), model=WIDE,
                        adapter=dict(weights=str(place)))
        t.train(t.write_recipe(f"{name}.toml", tree), name)
        t.equal(latents(name, t.work / name), latents("run", run), f"latents of a run that starts from {place}")


def test_another_network_of_a_run_may_be_an_adapter():
    run = learned("learned")
    guided = {"guidance.plugin": "autoguidance", "guidance.scale": 2.0, "network.guide.weights": str(run)}
    t.check(far(latents("guided", base(), *t.sets(guided)), latents("not-guided", base())) > 1e-3, "the guide changes nothing")


# --- refusals ------------------------------------------------------------------------------------------------------------


def refused(code, parts, name, **how):
    t.refused(code, parts, "train", recipe(name, **how), "--set", f"run.output={json.dumps(str(t.work / name))}")


def test_what_cannot_be_is_refused():
    config = 2
    refused(config, ["run.init_from", "[adapter]"], "no-base", run=dict(init_from=""))
    refused(config, ['"blocks.*.qvk" matches no layer', "blocks.*.qkv"], "no-layer", adapter=dict(layers=["blocks.*.qvk"]))
    refused(config, ["no place for"], "no-place", adapter=dict(layers=["label"]))
    refused(config, ["adapter.layers", "names no layer"], "none", adapter=dict(layers=[]))
    refused(config, ["run.init_missing"], "unlike", run=dict(init_missing="new"))
    run = learned("learned")
    checkpoint = 7
    refused(checkpoint, ["is an adapter alone", "adapter.weights"], "on-adapter", of=run)
    refused(checkpoint, ["is of a whole model"], "whole", adapter=dict(weights=str(base())))
    t.refused(config, ["has no adapter"], "checkpoint", "export", base(), "--merge", "--format", "facebook-dit", "--out", t.work / "x.safetensors")
    t.refused(config, ["--format"], "checkpoint", "export", base(), "--out", t.work / "x")
    t.refused(config, ["is an adapter itself"], "sample", run, "--adapter", run, "--out", t.work / "x")
    t.refused(config, ["is an adapter of peft's", "--adapter"], "checkpoint", "import", peft(), "--format", "facebook-dit", "--out", t.work / "x")
    for key, value in {"rank": 5, "alpha": 3, "layers": ["blocks.*"]}.items():
        t.refused(config, [f"adapter.{key}", "--allow-change"], "train", recipe("learned"), *t.sets({
            "run.output": str(run), "run.steps": 6, f"adapter.{key}": value}))


def test_a_base_that_is_gone_or_another_is_named():
    of = base("lost", steps=2)
    run = learned("of-lost", of=of)
    moved = t.work / "moved"
    found = latents("of-lost-before", run)
    of.rename(moved)
    t.refused(7, ["is an adapter alone", "is not there", "run.init_from"], "sample", run, "--out", t.work / "x")
    t.equal(latents("of-lost-after", run, "--set", f"run.init_from={moved}"), found, "latents from the base where it lies now")
    t.refused(7, ["is another one now"], "sample", run, "--out", t.work / "x", "--set", f"run.init_from={base()}")
    t.refused(7, ["its adapter was learned on", "--set run.init_from="], "train", recipe("of-lost", of=base()), *t.sets({
        "run.output": str(run), "run.steps": 6}))
    t.train(recipe("of-lost", of=moved), "of-lost", "--set", "run.steps=6")



if __name__ == "__main__":
    t.main(globals())
