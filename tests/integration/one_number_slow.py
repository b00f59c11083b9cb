"""run.numerics = "one" at length: digits of width 192 on 46 layouts, each with every number of threads, micro-batch and kernel
set; and models of text and of video on twelve layouts each. Plain kernels are slow, and run two of the steps."""

import support as t
from one_number import has_avx2, hash_of, train
from one_number_models import pinned

STEPS, FEW = 10, 2
# threads, micro-batch, kernels, steps
SETTINGS = [(1, 1, "exact_avx512", STEPS), (2, 5, "exact_avx2", STEPS), (1, 16, "exact_plain", FEW), (2, 128, "", STEPS)]


def layout(ranks, **options):
    return ranks, {f"parallel__{key}": value for key, value in options.items()}


def shard(plugin, degree=2):
    return dict(shard=degree, shard_plugin=plugin)


def context(plugin, degree=2):
    return dict(context=degree, context_plugin=plugin)


DIGITS = {
    "one rank": layout(1),
    "ddp 2": layout(2), "ddp 3": layout(3), "ddp 8": layout(8),
    "zero1": layout(2, **shard("zero1")), "zero1 4": layout(4, **shard("zero1", 4)),
    "zero2": layout(2, **shard("zero2")), "zero2 3": layout(3, **shard("zero2", 3)),
    "fsdp": layout(2, **shard("fsdp")), "fsdp 4": layout(4, **shard("fsdp", 4)),
    "hsdp 2 x 2": layout(4, replicate=2, **shard("fsdp")), "hsdp 2 x 3": layout(6, replicate=2, **shard("fsdp", 3)),
    "tensor 2": layout(2, tensor=2), "tensor 3": layout(3, tensor=3), "tensor 4": layout(4, tensor=4), "tensor 6": layout(6, tensor=6),
    "tensor 2, sequence": layout(2, tensor=2, sequence=True), "tensor 3, sequence": layout(3, tensor=3, sequence=True),
    "tensor 4, sequence": layout(4, tensor=4, sequence=True), "tensor 6, sequence": layout(6, tensor=6, sequence=True),
    "ring 2": layout(2, **context("ring")), "ring 3": layout(3, **context("ring", 3)), "ring 5": layout(5, **context("ring", 5)),
    "ulysses 2": layout(2, **context("ulysses")), "ulysses 3": layout(3, **context("ulysses", 3)),
    "ulysses 4": layout(4, **context("ulysses", 4)),
    "pipeline 2": layout(2, pipeline=2), "pipeline 3": layout(3, pipeline=3),
    "pipeline 2, interleaved": layout(2, pipeline=2, virtual_stages=2),
    "pipeline 3, interleaved": layout(3, pipeline=3, virtual_stages=2),
    "recompute": layout(1, recompute="blocks"), "recompute attention": layout(1, recompute="attention"),
    "offload": layout(1, offload="optimizer"), "offload, fsdp": layout(2, offload="optimizer", **shard("fsdp")),
    # Compositions.
    "tensor 2 x fsdp 2": layout(4, tensor=2, **shard("fsdp")),
    "tensor 2 x zero2 2 x ddp 2": layout(8, tensor=2, replicate=2, **shard("zero2")),
    "tensor 2, sequence x ring 2": layout(4, tensor=2, sequence=True, **context("ring")),
    "tensor 3, sequence x ulysses 2": layout(6, tensor=3, sequence=True, **context("ulysses")),
    "tensor 2 x ulysses 2 x fsdp 2": layout(8, tensor=2, **context("ulysses"), **shard("fsdp")),
    "tensor 2 x pipeline 2": layout(4, tensor=2, pipeline=2),
    "tensor 2, sequence x pipeline 2 x ddp 2": layout(8, tensor=2, sequence=True, pipeline=2, replicate=2),
    "ring 2 x pipeline 2": layout(4, pipeline=2, **context("ring")),
    "ring 3 x zero1 2": layout(6, **context("ring", 3), **shard("zero1")),
    "ulysses 2 x pipeline 2 x fsdp 2": layout(8, pipeline=2, **context("ulysses"), **shard("fsdp")),
    "ring 2 x fsdp 2, recompute": layout(4, recompute="blocks", **context("ring"), **shard("fsdp")),
    "pipeline 2, interleaved x fsdp 2, recompute, offload":
        layout(4, pipeline=2, virtual_stages=2, recompute="blocks", offload="optimizer", **shard("fsdp")),
}


def different_layouts(path, layouts, settings, name):
    """Those whose hash is not that of one rank after as many steps."""
    expected = {}
    for steps in sorted({setting[3] for setting in settings}):
        train(path, f"{name}-{steps}", run__steps=steps)
        expected[steps] = hash_of(f"{name}-{steps}")
        print(f"{name}, {steps} steps: {expected[steps]}", flush=True)
    different = []
    for number, (title, (ranks, options)) in enumerate(layouts.items()):
        for threads, micro_batch, variant, steps in settings:
            folder = f"{name}{number}-{threads}-{micro_batch}-{variant}"
            given = pinned(variant) if variant and (variant != "exact_avx2" or has_avx2()) else {}
            train(path, folder, ranks, timeout=3600, run__steps=steps, run__threads=threads, run__micro_batch=micro_batch, **options, **given)
            if hash_of(folder) != expected[steps]:
                different.append((title, threads, micro_batch, variant))
        print(f"  {title}: {'another hash' if different and different[-1][0] == title else 'the hash'}", flush=True)
    return different


def test_digits():
    run = dict(name="digits", batch=16, numerics="one", token_leaf=8, clip_norm=0.5)
    path = t.write_recipe("digits.toml", t.recipe(run=run, model=dict(depth=6, width=192, heads=12, patch=1)))
    t.check(len(DIGITS) >= 40, f"only {len(DIGITS)} layouts")
    t.equal(different_layouts(path, DIGITS, SETTINGS, "digits"), [], "layouts with another hash")


TWELVE = {
    "ddp 2": layout(2), "fsdp 2": layout(2, **shard("fsdp")), "zero2 3": layout(3, **shard("zero2", 3)),
    "pipeline 2": layout(2, pipeline=2), "tensor 2": layout(2, tensor=2), "tensor 4": layout(4, tensor=4),
    "tensor 2, sequence": layout(2, tensor=2, sequence=True), "ulysses 2": layout(2, **context("ulysses")),
    "ulysses 2 x tensor 2": layout(4, tensor=2, **context("ulysses")), "tensor 2 x fsdp 2": layout(4, tensor=2, **shard("fsdp")),
    "ulysses 2 x pipeline 2": layout(4, pipeline=2, **context("ulysses")), "recompute": layout(1, recompute="blocks"),
}


# What cuts the hidden width of experts is refused.
OF_EXPERTS = {
    "ddp 2": layout(2), "fsdp 2": layout(2, **shard("fsdp")), "hsdp 2 x 2": layout(4, replicate=2, **shard("fsdp")),
    "zero1": layout(2, **shard("zero1")), "zero2 3": layout(3, **shard("zero2", 3)), "pipeline 2": layout(2, pipeline=2),
    "ring 2": layout(2, **context("ring")), "ring 3": layout(3, **context("ring", 3)),
    "ulysses 2": layout(2, **context("ulysses")), "ulysses 2 x fsdp 2": layout(4, **context("ulysses"), **shard("fsdp")),
    "ring 2 x pipeline 2": layout(4, pipeline=2, **context("ring")), "recompute": layout(1, recompute="blocks"),
}


def test_experts():
    for router in ("token_choice", "expert_choice"):
        run = dict(name=router, batch=8, micro_batch=2, threads=1, numerics="one", token_leaf=8, clip_norm=0.5)
        model = dict(plugin="dit_moe", depth=2, width=48, heads=4, patch=1, experts=4, router=router, shared_ratio=1, qk_norm=True)
        path = t.write_recipe(f"{router}.toml", t.recipe(run=run, model=model))
        settings = [(1, 4, "", 4), (2, 1, "exact_plain", 4)]
        t.equal(different_layouts(path, OF_EXPERTS, settings, router), [], f"{router}: layouts with another hash")


def check_model(name, data, **model):
    run = dict(name=name, batch=8, micro_batch=2, threads=1, numerics="one", token_leaf=4, clip_norm=0.5)
    path = t.write_recipe(f"{name}.toml", t.recipe(run=run, data=t.synthetic(**data),
                                                   model=dict(plugin=name, depth=2, width=48, heads=4, patch=2, qk_norm=True, **model)))
    layouts = dict(TWELVE)
    if name == "st_dit":
        layouts["spatiotemporal 2"] = layout(2, **context("spatiotemporal"))
    else:
        layouts["ring 2"] = layout(2, **context("ring"))
    t.equal(different_layouts(path, layouts, [(1, 4, "", 4), (2, 1, "exact_plain", 4)], name), [], f"{name}: layouts with another hash")


def test_text():
    check_model("dit_text", dict(channels=3, height=8, width=8, text_tokens=6, text_width=12), rotary=True)


def test_video():
    check_model("st_dit", dict(channels=3, frames=4, height=8, width=8, text_tokens=6, text_width=12), rotary="temporal", full=True)


if __name__ == "__main__":
    t.main(globals())
