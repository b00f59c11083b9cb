"""Several networks in a run: guidance by another model, learning from a frozen one or with one that learns too; and what
is refused of them.

Claim (networks): Autoguidance is two `ditto forward` calls a step combined by hand, whole, and with model and guide cut by
tensor, fsdp and pipeline.

Claim (networks): `distill` and `repa` learn alike on ddp, fsdp, tensor with sequence, ring and pipeline, to 1e-12 in fp64
(losses, norms, weights, the projector); a resume has the same bits; the frozen network's files stay as they are.

Claim (networks): Two networks that learn from one another in a run learn alike on ddp, fsdp, tensor with sequence and ring, to
1e-12 in fp64, and along the data axes with the same bits in fp32; a resume has the same bits.
"""

import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

LAYOUTS = {
    "ddp": (2, {}),
    "fsdp": (2, {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}),
    "tensor": (2, {"parallel.tensor": 2, "parallel.sequence": True}),
    "ring": (2, {"parallel.context": 2, "parallel.context_plugin": "ring"}),
    "pipeline": (2, {"parallel.pipeline": 2}),
}
WIDE = dict(depth=2, width=32, heads=4, patch=2)
_runs = {}


def trained(name, model, steps):
    """A run of the digits, to take weights from."""
    if name not in _runs:
        path = t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=steps), model=dict(plugin="dit") | model,
                                                       lr_schedule=dict(lr=3e-3, warmup=0)))
        t.train(path, name)
        _runs[name] = t.work / name
    return _runs[name]


def guide():
    return trained("guide", dict(depth=1, width=16, heads=2, patch=2), 4)


def main_model():
    return trained("main", WIDE, 10)


# --- autoguidance --------------------------------------------------------------------------------------------------------


def guided(folder, *arguments, ranks=1, steps=2, **more):
    """Latents of four digits, guided by the smaller run."""
    sets = {"guidance.plugin": "autoguidance", "guidance.scale": 3.0, "network.guide.weights": str(guide())} | more
    where = t.work / f"{folder}.safetensors"
    t.run("sample", main_model(), "--out", t.work / folder, "--seeds", "0-3", "--classes", "3,1,4,1", "--steps", steps,
          "--save-latents", where, *(("--local-ranks", ranks) if ranks > 1 else ()),
          *t.sets(sets), *arguments)
    return where


def forward(run, x, time, labels, name):
    t.write_tensors(t.work / f"{name}.safetensors", {"x": ("F32", [4, 1, 8, 8], x), "t": ("F32", [4], [time] * 4),
                                                     "label": ("I64", [4], labels)})
    t.run("forward", run, "--in", t.work / f"{name}.safetensors", "--out", t.work / f"{name}-out.safetensors")
    return t.numbers(t.read_tensors(t.work / f"{name}-out.safetensors")["prediction"])


def test_autoguidance_is_two_forwards_combined_by_hand():
    labels = [3, 1, 4, 1]
    t.write_tensors(t.work / "noise.safetensors", {"noise": ("F32", [4, 1, 8, 8], [((37 * i) % 101 - 50) / 25 for i in range(256)])})
    found = t.numbers(t.read_tensors(guided("guided", "--noise", t.work / "noise.safetensors"))["latents"])
    x = [((37 * i) % 101 - 50) / 25 for i in range(256)]
    for time, dt in ((1.0, 0.5), (0.5, 0.5)):  # x_t = (1 - t) x_0 + t eps, velocity eps - x_0, in two steps of Euler's
        c, g = (forward(run, x, 1000 * time, labels, "step") for run in (main_model(), guide()))
        x = [value - dt * (b + 3 * (a - b)) for value, a, b in zip(x, c, g)]
    worst = max(abs(a - b) for a, b in zip(found, x))
    t.check(worst < 1e-6, f"sampling differs by {worst} from two forwards a step")


def test_a_guided_sample_is_the_same_where_model_and_guide_are_cut():
    one = t.numbers(t.read_tensors(guided("whole"))["latents"])
    for name in ("tensor", "fsdp", "pipeline"):
        ranks, sets = LAYOUTS[name]
        if name == "tensor":  # the guide whole on each rank
            sets = sets | {"network.guide.parallel.tensor": 1}
        other = t.numbers(t.read_tensors(guided(f"cut-{name}", ranks=ranks, **sets))["latents"])
        worst = max(abs(a - b) for a, b in zip(one, other))
        t.check(worst < 1e-5, f"under {name} samples differ by {worst}")
        if name == "fsdp":
            t.equal(list(other), list(one), "all bits under fsdp")


# --- learning from a frozen network --------------------------------------------------------------------------------------


def learning(objective):
    tree = t.recipe(run=dict(name=objective, steps=3, precision="fp64", batch=8, micro_batch=4), model=dict(plugin="dit") | WIDE,
                    objective=dict(plugin=objective), validate=dict(every=3, samples=16))
    if objective == "repa":
        tree["objective"] |= dict(block=0, network="features", hidden=24)
        tree["network.features"] = dict(weights=str(main_model()), precision="fp64")
    else:
        tree["objective"] |= dict(data=0.25)
        tree["network.teacher"] = dict(weights=str(main_model()), precision="fp64")
    return t.write_recipe(f"{objective}.toml", tree)


def near(a, b, what):
    t.check(abs(a - b) <= 1e-12 * max(1, abs(a), abs(b)), f"{what}: {a!r} and {b!r}")


def check_layouts(objective):
    path = learning(objective)
    before = {file.name: file.read_bytes() for file in t.latest("main").iterdir()}
    one = check_alike(path, objective, LAYOUTS)
    t.equal({file.name: file.read_bytes() for file in t.latest("main").iterdir()}, before, "the frozen network's checkpoint")
    return one


def check_alike(path, objective, layouts):
    """Trains on one rank and on each of the layouts; all tensors of the one."""
    t.train(path, f"{objective}-one")
    one = t.tensors_of(t.latest(f"{objective}-one"))
    for layout, (ranks, sets) in layouts.items():
        folder = f"{objective}-{layout}"
        t.train(path, folder, "--local-ranks", ranks, *t.sets(sets))
        for mine, other in zip(t.metrics(f"{objective}-one"), t.metrics(folder)):
            for key in ("loss", "grad_norm"):
                near(float(mine[key]), float(other[key]), f"{objective}, {layout}, step {mine['step']}: {key}")
        there = t.tensors_of(t.latest(folder))
        t.equal(sorted(there), sorted(one), f"tensors under {layout}")
        for key, tensor in one.items():
            worst = max((abs(a - b) for a, b in zip(t.numbers(tensor), t.numbers(there[key]))), default=0)
            t.check(worst <= 1e-12, f"{objective}, {layout}: {key} differs by {worst}")
        shutil.rmtree(t.work / folder)
    return one


def test_a_student_learns_alike_on_every_layout():
    check_layouts("distill")


def test_features_are_aligned_alike_on_every_layout_with_a_projector_that_learns():
    one = check_layouts("repa")
    projector = [key for key in one if key[1].startswith("objective.")]
    t.check(any(key[0] == "model" for key in projector) and any(key[0] == "ema" for key in projector), f"projector saved as {projector}")
    t.run("sample", t.work / "repa-one", "--out", t.work / "repa-samples", "--seeds", "0-1", "--classes", "0-1")


def test_a_run_with_a_projector_goes_on_bit_for_bit():
    path = learning("repa")
    t.goes_on_bit_for_bit(path)


def test_a_run_does_not_go_on_with_another_teacher():
    path = learning("distill")
    t.train(path, "taught", run__steps=2)
    other = ["train", path, *t.sets({"run.output": str(t.work / "taught"), "run.steps": 3,
                                     "network.teacher.weights": str(trained("other", WIDE, 3))})]
    t.refused(7, ["network \"teacher\"", "other weights"], *other)
    t.run(*other, "--allow-change", "network.teacher.weights")


# --- learning with another network ----------------------------------------------------------------------------------------


def mutual(name="mutual", **peer):
    """Two networks that learn from the data and from one another; the objective is in tests/fixture_plugins."""
    plugins = t.work / "plugins"
    plugins.mkdir(exist_ok=True)
    shutil.copy(t.build / "tests/fixture_plugins/mutual.so", plugins)
    t.environment["DITTO_PLUGIN_PATH"] = str(plugins)
    tree = t.recipe(run=dict(name=name, steps=10, precision="fp64", batch=8, micro_batch=4, clip_norm=1.0), model=dict(plugin="dit") | WIDE,
                    objective=dict(plugin="mutual"), validate=dict(every=5, samples=16))
    tree["network.peer"] = dict(trains=True, plugin="dit", depth=1, width=16, heads=2, patch=4) | peer
    return t.write_recipe(f"{name}.toml", tree)


def of_peer(tensors, section="model"):
    return {name.removeprefix("network.peer."): tensor for (kind, name), tensor in tensors.items()
            if kind == section and name.startswith("network.peer.")}


def test_two_networks_learn_from_one_another_alike_on_every_layout():
    layouts = {name: layout for name, layout in LAYOUTS.items() if name != "pipeline"}
    layouts["tensor-alone"] = (2, {"parallel.tensor": 2, "network.peer.parallel.tensor": 1})
    layouts["recompute"] = (1, {"parallel.recompute": "blocks", "parallel.offload": "optimizer"})
    one = check_alike(mutual(), "mutual", layouts)
    first = t.train(mutual(), "untrained", run__steps=0)
    t.check("learned numbers" in first.all, first.all)
    before, after = of_peer(t.tensors_of(t.latest("untrained"))), of_peer(one)
    t.check(before and sorted(before) == sorted(after), f"the peer's tensors: {sorted(after)}")
    t.check(all(before[name] != after[name] for name in after if name.endswith("weight")), "a weight of the peer stayed as it was")
    for section in ("ema", "optimizer"):
        t.check(any("network.peer." in name for kind, name in one if kind == section), f"no {section} of the peer")


def test_data_ranks_and_recomputation_leave_both_networks_their_bits():
    path = mutual("bits")
    fast = {"run.precision": "fp32", "run.steps": 4}
    t.train(path, "bits-one", *t.sets(fast))
    for name, ranks, sets in (("ddp", 2, {}), ("fsdp", 2, LAYOUTS["fsdp"][1]), ("recompute", 1, {"parallel.recompute": "blocks"})):
        t.train(path, f"bits-{name}", *(("--local-ranks", ranks) if ranks > 1 else ()), *t.sets(fast | sets))
        t.same_metrics("bits-one", f"bits-{name}")
        t.same_state("bits-one", f"bits-{name}")


def test_two_networks_go_on_bit_for_bit():
    path = mutual()
    t.goes_on_bit_for_bit(path, "both-")
    shown = t.run("checkpoint", "inspect", t.work / "both-in-two").all
    t.check("network peer: " in shown, shown)
    t.run("checkpoint", "verify", t.latest("both-in-two"))


def test_what_blocks_of_the_other_network_add_to_the_loss_is_learned_too():
    path = mutual("experts", plugin="dit_moe", patch=2, experts=2)
    t.train(path, "experts", run__steps=2)
    for line in t.metrics("experts"):
        t.check(float(line["losses"].get("auxiliary.peer.balance", 0)) > 0, f"losses {line['losses']}")


def test_another_network_starts_from_weights():
    path = mutual("started", weights=str(main_model()), **WIDE)
    t.train(path, "started", run__steps=0)
    source = {name: t.numbers(tensor) for (section, name), tensor in t.tensors_of(t.latest("main")).items() if section == "ema"}
    found = {name: t.numbers(tensor) for name, tensor in of_peer(t.tensors_of(t.latest("started"))).items()}
    t.equal(sorted(found), sorted(source), "the peer's tensors")
    for name in source:
        t.equal(list(found[name]), list(source[name]), name)
    t.train(path, "started", run__steps=2)
    # A sample needs no weights but the checkpoint's.
    shutil.move(main_model(), t.work / "moved")
    try:
        t.run("sample", t.work / "started", "--out", t.work / "started-samples", "--seeds", "0", "--classes", "0", "--network", "peer")
    finally:
        shutil.move(t.work / "moved", main_model())


def test_a_checkpoint_of_two_networks_gives_samples_and_files_of_each():
    t.train(mutual("exchanged"), "exchanged", run__steps=2)
    run = t.work / "exchanged"

    def latents(name, *arguments):
        t.run("sample", run, "--out", t.work / name, "--seeds", "0-1", "--classes", "0-1", "--steps", 2,
              "--save-latents", t.work / f"{name}.safetensors", *arguments)
        return list(t.numbers(t.read_tensors(t.work / f"{name}.safetensors")["latents"]))

    guided = {"guidance.plugin": "autoguidance", "guidance.network": "peer", "guidance.scale": 0.0}
    main, peer = latents("of-main"), latents("of-peer", "--network", "peer")
    t.check(main != peer, "both networks make the same samples")
    said = [[line.get("network") for line in t.lines_of(t.work / name / "samples.jsonl")] for name in ("of-main", "of-peer")]
    t.equal(said, [[None] * 2, ["peer"] * 2], "networks that samples.jsonl names")
    t.equal(latents("by-peer", *t.sets(guided)), peer, "guided by the other network alone")
    t.equal(latents("by-main", *t.sets(guided | {"guidance.scale": 1.0})), main, "guided by none")
    for name, arguments in (("main", ()), ("peer", ("--network", "peer"))):
        out = t.work / f"{name}.safetensors"
        t.run("checkpoint", "export", run, "--format", "facebook-dit", "--out", out, "--weights", "weights", *arguments)
    widths = [t.read_tensors(t.work / f"{name}.safetensors")["t_embedder.mlp.0.weight"][1][0] for name in ("main", "peer")]
    t.equal(widths, [32, 16], "widths of the exported networks")
    t.refused(2, ["no network \"other\"", "has trained"], "checkpoint", "export", run, "--format", "facebook-dit", "--out", t.work / "x", "--network", "other")


# --- what is refused -----------------------------------------------------------------------------------------------------


def test_networks_that_cannot_be_used_are_refused_by_name():
    path = learning("distill")

    def refused(code, parts, **sets):
        t.refused(code, parts, "train", path, *t.sets({"run.output": str(t.work / "refused")} | {key.replace("__", "."): value for key, value in sets.items()}))

    refused(2, ["no network \"master\"", "the recipe has: teacher"], objective__network="master")
    refused(2, ["[network.spare]", "used by nobody"], network__spare__weights=str(main_model()))
    refused(2, ["network.teacher.parallel.tensor", "1:"], network__teacher__parallel__tensor=2)
    refused(7, ["nowhere"], network__teacher__weights="nowhere")
    empty = t.work / "without-checkpoints"
    (empty / "checkpoints").mkdir(parents=True)
    refused(7, [str(empty), "no checkpoint"], network__teacher__weights=str(empty))
    cut = t.work / "without-weights"
    shutil.copytree(main_model(), cut, symlinks=True)
    for file in cut.glob("checkpoints/step_*/model-*.safetensors"):
        file.unlink()
    refused(7, ["model-00000.safetensors", "is missing"], network__teacher__weights=str(cut), network__teacher__which="weights")
    wide = dict(network__teacher__plugin="dit", network__teacher__depth=2, network__teacher__heads=4, network__teacher__patch=2)
    refused(7, ["does not fit", "patches.map.weight", "[32, 4] there", "[64, 4] here"], **wide, network__teacher__width=64)
    refused(7, ["blocks.2"], **wide | dict(network__teacher__width=32, network__teacher__depth=3))
    refused(2, ["teacher", "scheduler.shift = 1.0", "2.0"], scheduler__shift=2.0)
    refused(2, ["[network.teacher] trains", "no plugin"], network__teacher__trains=True)
    refused(2, ["teacher", "trains", "frozen"], network__teacher__trains=True, **{f"network__teacher__{key}": value for key, value in WIDE.items()},
            network__teacher__plugin="dit")


def test_networks_that_cannot_train_are_refused_by_name():
    path = mutual("odd")

    def refused(code, parts, *arguments, **sets):
        t.refused(code, parts, "train", path, *t.sets({"run.output": str(t.work / "odd"), "run.steps": 1} | {key.replace("__", "."): value for key, value in sets.items()}), *arguments)

    refused(2, ["\"peer\" trains", "parallel.pipeline = 2"], "--local-ranks", 2, parallel__pipeline=2)
    refused(2, ["[network.peer]", "used by nobody"], objective__plugin="diffusion")
    refused(2, ["\"peer\" trains", "\"diffusion\" does not ask for it"], objective__plugin="diffusion",
            guidance__plugin="autoguidance", guidance__network="peer")
    refused(2, ["network.peer.precision = \"fp32\"", "fp64"], network__peer__precision="fp32")
    refused(2, ["2 does not divide", "3 attention heads", "network.peer.blocks"], "--local-ranks", 2, parallel__tensor=2, network__peer__heads=3, network__peer__width=24)
    frozen = dict(network__peer__trains=False, network__peer__weights=str(main_model()), **{f"network__peer__{key}": value for key, value in WIDE.items()})
    refused(2, ["\"peer\" is frozen", "one that learns", "network.peer.trains = true"], **frozen)
    refused(2, ["\"peer\" is frozen", "\"x\"", "gradient"], objective__through=True, **frozen)
    refused(3, ["handed over 2 times"], "--local-ranks", 2, parallel__shard=2, parallel__shard_plugin="fsdp", objective__runs=2)


def test_a_run_does_not_go_on_without_a_networks_tensors():
    t.train(mutual("alone", trains=False, weights=str(main_model()), **WIDE), "alone", run__steps=1, objective__plugin="distill",
            objective__network="peer")
    other = ["train", mutual("alone"), *t.sets({"run.output": str(t.work / "alone"), "run.steps": 2})]
    t.refused(2, ["network.peer.", "--allow-change"], *other)
    t.refused(7, ["'network.peer.", "is not there"], *other, "--allow-change", "network", "--allow-change", "objective")


if __name__ == "__main__":
    t.main(globals())
