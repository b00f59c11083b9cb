"""run.numerics = "one" for what one_number.py does not train: experts of either router, a learned variance, adapters, and each
exact optimizer (two with --slow alone), alone and in groups. Each recipe has one hash on a handful of layouts, and another than its neighbours."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
from one_number import has, hash_of, train  # noqa: E402

STEPS = 2
OPS = ("linear", "linear_gelu_tanh", "silu", "gelu", "rms_norm", "layer_norm", "norm_modulate", "gated_residual", "attention",
       "embedding_rows", "add_row", "sample_mean", "adamw", "softmax", "row_total", "expert_balance", "token_rows",
       "combine_rows", "experts", "add_expert_rows", "exp", "log", "tanh", "sin", "cos")
FSDP = dict(parallel__shard=2, parallel__shard_plugin="fsdp")
OPS_OF_MAPS = ("conv", "conv_transposed", "group_norm", "resample", "add_channels")


def pinned(variant):
    return {f"kernels__{op}": variant for op in OPS + OPS_OF_MAPS}


LAYOUTS = {
    "micro-batch 1, threads 2": (1, dict(run__micro_batch=1, run__threads=2)),
    "micro-batch 16, recompute": (1, dict(run__micro_batch=16, parallel__recompute="blocks")),
    "plain kernels": (1, pinned("exact_plain")),
    "replicate 2": (2, dict(run__micro_batch=8)),
    "fsdp": (2, FSDP | dict(run__micro_batch=2)),
    "pipeline": (2, dict(parallel__pipeline=2, run__micro_batch=2)),
    "tensor 2": (2, dict(parallel__tensor=2)),
    "ring 2": (2, dict(parallel__context=2, parallel__context_plugin="ring")),
}
OF_EXPERTS = LAYOUTS | {
    "expert 2": (2, dict(parallel__expert=2)),
    "expert 2, replicate 2": (4, dict(parallel__expert=2, parallel__replicate=2, run__micro_batch=2)),
    "tensor 2, sequence": (2, dict(parallel__tensor=2, parallel__sequence=True)),
    "expert 2, ring 2": (4, dict(parallel__expert=2, parallel__context=2, parallel__context_plugin="ring")),
}
SMALL = dict(depth=2, width=48, heads=6, patch=1)
EXPERTS = dict(SMALL, plugin="dit_moe", experts=4, top_k=2, qk_norm=True)
_hashes = {}


def recipe(name, **sections):
    run = dict(name=name, steps=STEPS, batch=16, micro_batch=4, threads=1, numerics="one", token_leaf=8, clip_norm=0.5)
    return t.write_recipe(f"{name}.toml", t.recipe(**{"run": run | sections.pop("run", {}), "model": SMALL} | sections))


def check_one_hash(name, without=(), layouts=LAYOUTS, **sections):
    path = recipe(name, **sections)
    train(path, name)
    expected = _hashes[name] = hash_of(name)
    layouts = {layout: given for layout, given in layouts.items() if layout not in without}
    if has("exact_avx2"):
        layouts["AVX2 kernels"] = (1, pinned("exact_avx2"))
    different = []
    for layout, (ranks, options) in layouts.items():
        train(path, f"{name}-{layout}", ranks, **options)
        if hash_of(f"{name}-{layout}") != expected:
            different.append(layout)
    t.equal(different, [], f"layouts with another hash than {name} on one rank")
    print(f"  {name}: {expected}, on {len(layouts) + 1} layouts", flush=True)


# --- models --------------------------------------------------------------------------------------------------------------


def test_experts_chosen_by_tokens():
    check_one_hash("tokens_choose", layouts=OF_EXPERTS, model=dict(EXPERTS, normalise=True, shared_ratio=1, balance=0.05))
    losses = t.metrics("tokens_choose")[0]
    t.check("auxiliary.balance" in str(losses), f"no balance loss in {losses}")


def test_experts_that_choose():  # on more layouts: one_number_slow.py
    few = ("micro-batch 1, threads 2", "plain kernels", "pipeline", "tensor 2", "expert 2, replicate 2", "expert 2, ring 2")
    check_one_hash("experts_choose", layouts={name: OF_EXPERTS[name] for name in few}, model=dict(EXPERTS, router="expert_choice", moe_every=2))


def test_a_learned_variance():
    check_one_hash("variance", scheduler=dict(plugin="iddpm", timesteps=4, beta_end=2e-3), sampler=dict(plugin="ancestral", steps=2))
    t.check("vb" in str(t.metrics("variance")[0]), f"no variational bound in {t.metrics('variance')[0]}")


def test_an_adapter():
    train(recipe("base"), "base")
    check_one_hash("adapter", adapter=dict(rank=4, alpha=8, layers=["*"]), run=dict(init_from=str(t.work / "base")))


def test_tokens_that_go_around_blocks():
    few = ("micro-batch 1, threads 2", "plain kernels", "pipeline", "tensor 2", "ring 2")
    check_one_hash("routed", layouts={name: LAYOUTS[name] for name in few}, model=dict(SMALL, depth=3),
                   tread=dict(ratio=0.4, start=1, end=2))


# --- optimizers ----------------------------------------------------------------------------------------------------------


def test_sgd():
    t.only_slow()
    check_one_hash("sgd", optimizer=dict(plugin="sgd", nesterov=True, weight_decay=0.01))


def test_lion():
    t.only_slow()
    check_one_hash("lion", optimizer=dict(plugin="lion", weight_decay=0.1))


def test_adamw8bit():
    check_one_hash("adamw8bit", ["tensor 2"], optimizer=dict(plugin="adamw8bit", weight_decay=0.1))


def test_muon_and_groups():
    check_one_hash("muon", optimizer=dict(plugin="muon", weight_decay=0.1, group=[
        dict(match=["patches.*", "label.*"], plugin="adamw", weight_decay=0.1, lr_scale=0.5),
        dict(match="*.bias", plugin="sgd", lr_scale=10.0)]))


def test_frames_that_ranks_share():
    path = t.source / "configs/st_dit_tiny.toml"
    for name, ranks, options in (("one", 1, {}), ("shared", 2, dict(parallel__context=2, parallel__context_plugin="spatiotemporal"))):
        train(path, f"frames-{name}", ranks, run__steps=1, run__numerics="one", **options)
    t.equal(hash_of("frames-shared"), hash_of("frames-one"), "hash")


def test_every_recipe_has_a_hash_of_its_own():
    t.equal(len(set(_hashes.values())), len(_hashes), f"different hashes of {_hashes}")


def test_what_is_not_exact_is_refused_by_name():
    path = recipe("refused")
    for options, what in (({"optimizer.plugin": "adafactor"}, 'optimizer "adafactor" of [optimizer]'),
                          ({"optimizer.plugin": "muon", "optimizer.precision": "bf16"}, 'optimizer "muon" of [optimizer]')):
        t.refused(2, ["run.numerics", what], "train", path, *t.sets(options))
    experts = recipe("ranks", model=EXPERTS)
    t.refused(2, ["run.numerics", "parallel.expert = 3"], "config", "check", experts, *t.sets({"parallel.expert": 3}))
    classes = recipe("classes", model=dict(plugin="jit"))  # whose tokens lie beside the picture's
    t.refused(2, ["run.numerics", "several sequences side by side"], "train", classes, "--local-ranks", 2,
              *t.sets({"parallel.context": 2, "parallel.context_plugin": "ring"}))


if __name__ == "__main__":
    t.main(globals())
