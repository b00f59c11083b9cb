"""A run that goes on from its checkpoints on other and other layouts of ranks is the run that one rank makes without a stop.

Claim (layouts): A run goes from layout to layout through its checkpoints, with one rank's losses.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

near = 1e-12
segment = 5 if t.slow else 2  # steps on a layout

_layouts = {
    "one": {},
    "ddp 2": dict(replicate=2),
    "zero1 2": dict(shard=2, shard_plugin="zero1"),
    "zero2 4": dict(shard=4, shard_plugin="zero2"),
    "fsdp 2": dict(shard=2, shard_plugin="fsdp"),
    "fsdp 3": dict(shard=3, shard_plugin="fsdp"),  # 3 divides no width here
    "hsdp 2x2": dict(replicate=2, shard=2, shard_plugin="fsdp"),
    "tensor 2": dict(tensor=2),
    "tensor 2 x fsdp 2": dict(tensor=2, shard=2, shard_plugin="fsdp"),
    "tensor 4, sequence": dict(tensor=4, sequence=True),
    "ring 2": dict(context=2, context_plugin="ring"),
    "ulysses 2 x zero1 2": dict(context=2, context_plugin="ulysses", shard=2, shard_plugin="zero1"),
    "fastseq 2": dict(context=2, context_plugin="fastseq"),
    "pipeline 2": dict(pipeline=2, pipeline_plugin="pipeline"),
    "pipeline 2 x fsdp 2": dict(pipeline=2, pipeline_plugin="pipeline", shard=2, shard_plugin="fsdp"),
    "pipeline 2 x tensor 2": dict(pipeline=2, pipeline_plugin="pipeline", tensor=2),
    "pipeline 2x2": dict(pipeline=2, pipeline_plugin="pipeline", virtual_stages=2),
    "recomputed": dict(recompute="blocks"),
}


def recipe(name, optimizer, width=64, **run):
    """It starts from weights none of which is zero any more: blocks that do nothing are equal on any layout."""
    tree = t.recipe(run=dict(name=name, batch=16, micro_batch=4, clip_norm=1.0) | run,
                    model=dict(depth=4, width=width, heads=4), optimizer=dict(plugin="adamw"),
                    lr_schedule=dict(lr=1e-2, warmup=0), checkpoint=dict(every=0, keep=2))
    t.train(t.write_recipe(name + "-start.toml", tree), name + "-start", run__steps=6)
    tree["run"] |= dict(init_from=str(t.work / (name + "-start")), init_weights="weights")
    tree["optimizer"], tree["lr_schedule"]["lr"] = dict(plugin=optimizer), 1e-3
    return t.write_recipe(name + ".toml", tree)


def ranks(layout):
    count = 1
    for axis in ("tensor", "context", "pipeline", "shard", "replicate"):
        count *= layout.get(axis, 1)
    return count


def chain(name, path, names):
    """`segment` steps on each of these layouts, each from the checkpoint of the one before; and as many on one rank."""
    steps = segment * len(names)
    t.train(path, name + "-one", run__steps=steps)
    for i, one in enumerate(names):
        layout = _layouts[one]
        done = t.train(path, name, "--local-ranks", ranks(layout), run__steps=segment * (i + 1),
                       **{f"parallel__{key}": value for key, value in layout.items()})
        t.check(i == 0 or f"(step {segment * i})" in done.all, f"{one} did not resume at step {segment * i}:", done.all)
        lines = t.metrics(name)
        t.equal(len(lines), segment * (i + 1), f"steps after {one}")
        worst = compare(name, names, lines)
    print(f"{name}: losses and norms at most {worst:.1e} apart", flush=True)


def compare(name, names, lines):
    worst = 0.0
    for line, whole in zip(lines, t.metrics(name + "-one")):
        i = (line["step"] - 1) // segment
        for what in ("loss", "grad_norm"):
            found, expected = float(line[what]), float(whole[what])
            worst = max(worst, abs(found - expected) / abs(expected))
            t.check(abs(found - expected) <= near * abs(expected),
                    f"{name}: {what} of step {line['step']}, on {names[i]}" + (f" after {names[i - 1]}" if i else "") +
                    f": {found}, on one rank {expected}")
    return worst


def same_bits(name):
    t.same_metrics(name + "-one", name)
    t.same_state(name + "-one", name)


def test_a_run_goes_on_from_layout_to_layout_in_fp64():
    names = ["tensor 2", "fsdp 2", "pipeline 2", "one"]
    if t.slow:
        names = ["one", "tensor 2 x fsdp 2", "ring 2", "pipeline 2", "fsdp 3", "tensor 4, sequence", "zero2 4", "ddp 2",
                 "pipeline 2 x tensor 2", "ulysses 2 x zero1 2", "pipeline 2x2", "fastseq 2", "hsdp 2x2", "tensor 2", "one"]
    chain("fp64", recipe("fp64", "adamw", precision="fp64"), names)


def test_muons_matrices_go_from_layout_to_layout():
    names = ["tensor 2 x fsdp 2", "pipeline 2 x tensor 2", "zero1 2", "one"] if t.slow else ["fsdp 2", "tensor 2"]
    chain("muon", recipe("muon", "muon", precision="fp64"), names)


def test_states_in_blocks_go_from_layout_to_layout():
    names = ["tensor 2", "fsdp 2"] + (["pipeline 2 x tensor 2", "tensor 2 x fsdp 2", "one"] if t.slow else [])
    chain("blocks", recipe("blocks", "adamw8bit", width=128, precision="fp64"), names)


def test_a_layout_that_cuts_a_block_is_refused_at_the_start():
    path = recipe("cut", "adamw8bit")
    done = t.train(path, "cut", "--local-ranks", 2, code=2, parallel__tensor=2)
    t.check("goes through a block of 64 numbers of the optimizer's state: 64 numbers in 2 pieces" in done.all, done.all)


def test_bits_stay_along_replicate_shard_and_pipeline():
    names = ["fsdp 2", "pipeline 2", "ddp 2"]
    if t.slow:
        names = ["fsdp 2", "pipeline 2", "zero2 4", "one", "pipeline 2 x fsdp 2", "recomputed", "hsdp 2x2", "zero1 2", "ddp 2"]
    chain("bits", recipe("bits", "adamw8bit"), names)  # states in blocks of 8 bits
    same_bits("bits")


if __name__ == "__main__":
    t.main(globals())
