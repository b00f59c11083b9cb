"""run.numerics = "one" at length: digits of width 192 on 52 layouts, each with every number of threads, micro-batch and kernel
set that the processor has for ten steps (plain kernels are slow, and run two of them), and with one of each for a hundred; and
models of text, of video and of experts on twelve layouts each.

    one_number_slow.py digits 0/4      the first of four parts of the layouts, each a quarter of an hour at most;
    one_number_slow.py hundred 3/4     every layout is in one part, and printed with its hash: one of all parts
"""
# Parts: "digits 0/4" "digits 1/4" "digits 2/4" "digits 3/4" "hundred 0/4" "hundred 1/4" "hundred 2/4" "hundred 3/4" "experts" "text" "video"

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
from one_number import has, hash_of, train  # noqa: E402
from one_number_models import pinned  # noqa: E402

STEPS, FEW, HUNDRED = 10, 2, 100
# threads, micro-batch, kernels
SETTINGS = [(1, 1, "exact_avx512"), (2, 5, "exact_avx2"), (1, 16, "exact_plain"), (2, 128, "")]


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
    "fastseq 2": layout(2, **context("fastseq")), "fastseq 3": layout(3, **context("fastseq", 3)),
    "fastseq 4": layout(4, **context("fastseq", 4)),
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
    "tensor 2 x fastseq 3": layout(6, tensor=2, **context("fastseq", 3)),
    "tensor 2, sequence x fastseq 2": layout(4, tensor=2, sequence=True, **context("fastseq")),
    "tensor 2 x pipeline 2": layout(4, tensor=2, pipeline=2),
    "tensor 2, sequence x pipeline 2 x ddp 2": layout(8, tensor=2, sequence=True, pipeline=2, replicate=2),
    "ring 2 x pipeline 2": layout(4, pipeline=2, **context("ring")),
    "ring 3 x zero1 2": layout(6, **context("ring", 3), **shard("zero1")),
    "ulysses 2 x pipeline 2 x fsdp 2": layout(8, pipeline=2, **context("ulysses"), **shard("fsdp")),
    "fastseq 2 x fsdp 2, recompute": layout(4, recompute="blocks", **context("fastseq"), **shard("fsdp")),
    "ring 2 x fsdp 2, recompute": layout(4, recompute="blocks", **context("ring"), **shard("fsdp")),
    "pipeline 2, interleaved x fsdp 2, recompute, offload":
        layout(4, pipeline=2, virtual_stages=2, recompute="blocks", offload="optimizer", **shard("fsdp")),
}


def part_of(layouts):
    """[(number, layout)] of those that the word "i/n" leaves: every n-th from i on; all of them without it."""
    words = [re.fullmatch(r"(\d+)/(\d+)", word) for word in sys.argv[1:]]
    part, parts = next(((int(word[1]), int(word[2])) for word in words if word), (0, 1))
    t.check(part < parts, f"there is no part {part} of {parts}")
    return [(number, one) for number, one in enumerate(layouts.items()) if number % parts == part]


def different_layouts(path, layouts, settings, name):
    """Those whose hash is not that of one rank after as many steps. `settings` of a layout's number: (threads, micro-batch,
    kernels, steps) of each of its trainings."""
    expected = {}

    def hash_of_one_rank(steps):
        if steps not in expected:
            train(path, f"{name}-{steps}", timeout=3600, run__steps=steps)
            expected[steps] = hash_of(f"{name}-{steps}")
            print(f"{name}, {steps} steps: {expected[steps]}", flush=True)
        return expected[steps]

    different = []
    for number, (title, (ranks, options)) in part_of(layouts):
        found = set()
        for threads, micro_batch, variant, steps in settings(number):
            one_rank = hash_of_one_rank(steps)
            folder = f"{name}{number}-{threads}-{micro_batch}-{variant}"
            given = pinned(variant) if variant and has(variant) else {}
            train(path, folder, ranks, timeout=3600, run__steps=steps, run__threads=threads, run__micro_batch=micro_batch, **options, **given)
            found.add(hash_of(folder))
            if hash_of(folder) != one_rank:
                different.append((title, threads, micro_batch, variant))
        print(f"  {title}: {', '.join(sorted(found))}", flush=True)
    return different


def digits():
    run = dict(name="digits", batch=16, numerics="one", token_leaf=8, clip_norm=0.5)
    t.equal(len(DIGITS), 52, "layouts")
    return t.write_recipe("digits.toml", t.recipe(run=run, model=dict(depth=6, width=192, heads=12, patch=1)))


def test_digits():
    steps = {"exact_plain": FEW}
    settings = [(*setting, steps.get(setting[2], STEPS)) for setting in SETTINGS]
    t.equal(different_layouts(digits(), DIGITS, lambda number: settings, "digits"), [], "layouts with another hash")


def test_a_hundred_steps():
    fast = [setting for setting in SETTINGS if setting[2] != "exact_plain"]
    settings = lambda number: [(*fast[number % len(fast)], HUNDRED)]
    t.equal(different_layouts(digits(), DIGITS, settings, "hundred"), [], "layouts with another hash")


TWELVE = {
    "ddp 2": layout(2), "fsdp 2": layout(2, **shard("fsdp")), "zero2 3": layout(3, **shard("zero2", 3)),
    "pipeline 2": layout(2, pipeline=2), "tensor 2": layout(2, tensor=2), "tensor 4": layout(4, tensor=4),
    "tensor 2, sequence": layout(2, tensor=2, sequence=True), "ulysses 2": layout(2, **context("ulysses")),
    "ulysses 2 x tensor 2": layout(4, tensor=2, **context("ulysses")), "tensor 2 x fsdp 2": layout(4, tensor=2, **shard("fsdp")),
    "ulysses 2 x pipeline 2": layout(4, pipeline=2, **context("ulysses")), "recompute": layout(1, recompute="blocks"),
    "fastseq 2": layout(2, **context("fastseq")),
}
OF_EXPERTS = {
    "ddp 2": layout(2), "fsdp 2": layout(2, **shard("fsdp")), "hsdp 2 x 2": layout(4, replicate=2, **shard("fsdp")),
    "zero1": layout(2, **shard("zero1")), "zero2 3": layout(3, **shard("zero2", 3)), "pipeline 2": layout(2, pipeline=2),
    "ring 2": layout(2, **context("ring")), "ring 3": layout(3, **context("ring", 3)),
    "ulysses 2": layout(2, **context("ulysses")), "ulysses 2 x fsdp 2": layout(4, **context("ulysses"), **shard("fsdp")),
    "ring 2 x pipeline 2": layout(4, pipeline=2, **context("ring")), "recompute": layout(1, recompute="blocks"),
    "fastseq 2": layout(2, **context("fastseq")),
    "expert 2": layout(2, expert=2), "expert 4": layout(4, expert=4), "expert 2 x ddp 2": layout(4, expert=2, replicate=2),
    "expert 2 x fsdp 2": layout(4, expert=2, **shard("fsdp")), "expert 4 x zero2 2": layout(8, expert=4, **shard("zero2")),
    "expert 2 x pipeline 2": layout(4, expert=2, pipeline=2), "expert 2, offload": layout(2, expert=2, offload="optimizer"),
    "tensor 2": layout(2, tensor=2), "tensor 3": layout(3, tensor=3), "tensor 4, sequence": layout(4, tensor=4, sequence=True),
    "expert 2 x tensor 2": layout(4, expert=2, tensor=2), "expert 2 x ring 2": layout(4, expert=2, **context("ring")),
    "expert 4 x ring 2": layout(8, expert=4, **context("ring")),
    "expert 2 x tensor 2, sequence x ring 2": layout(8, expert=2, tensor=2, sequence=True, **context("ring")),
}
BOTH = lambda number: [(1, 4, "", 4), (2, 1, "exact_plain", 4)]


def test_experts():
    for router in ("token_choice", "expert_choice"):
        run = dict(name=router, batch=8, micro_batch=2, threads=1, numerics="one", token_leaf=8, clip_norm=0.5)
        model = dict(plugin="dit_moe", depth=2, width=48, heads=12, patch=1, experts=4, router=router, shared_ratio=1, qk_norm=True)
        path = t.write_recipe(f"{router}.toml", t.recipe(run=run, model=model))
        t.equal(different_layouts(path, OF_EXPERTS, BOTH, router), [], f"{router}: layouts with another hash")


def check_model(name, data, **model):
    run = dict(name=name, batch=8, micro_batch=2, threads=1, numerics="one", token_leaf=4, clip_norm=0.5)
    path = t.write_recipe(f"{name}.toml", t.recipe(run=run, data=t.synthetic(**data),
                                                   model=dict(plugin=name, depth=2, width=48, heads=4, patch=2, qk_norm=True, **model)))
    layouts = dict(TWELVE)
    if name == "st_dit":
        layouts["spatiotemporal 2"] = layout(2, **context("spatiotemporal"))
    else:
        layouts["ring 2"] = layout(2, **context("ring"))
    t.equal(different_layouts(path, layouts, BOTH, name), [], f"{name}: layouts with another hash")


def test_text():
    check_model("dit_text", dict(channels=3, height=8, width=8, text_tokens=6, text_width=12), rotary=True)


def test_video():
    check_model("st_dit", dict(channels=3, frames=4, height=8, width=8, text_tokens=6, text_width=12), rotary="temporal", full=True)


if __name__ == "__main__":
    t.main(globals())
