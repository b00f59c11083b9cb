"""What docs/config.md ("Resuming") says to give the same bits does: one run goes on through a change of each such option.

Claim (again): Options that are to keep the same bits on a resume do; what each option declares is what the docs say. Also:
`option_effects_test.cpp`
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

# The run's legs, a step each: what is set besides the recipe, and on how many ranks.
legs = [
    ({}, 1),
    ({"parallel.replicate": 2}, 2),
    ({"parallel.shard": 2, "parallel.shard_plugin": "zero1"}, 2),
    ({"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}, 2),
    ({"parallel.shard": 2, "parallel.shard_plugin": "fsdp", "parallel.prefetch": False}, 2),
    ({"parallel.shard": 2, "parallel.shard_plugin": "zero2"}, 2),
    ({"parallel.pipeline": 2}, 2),
    ({"parallel.pipeline": 2, "parallel.virtual_stages": 2}, 2),
    ({"parallel.pipeline": 2, "parallel.pipeline_cut": "number"}, 2),
    ({"parallel.recompute": "attention"}, 1),
    ({"parallel.recompute": "blocks"}, 1),
    ({"parallel.recompute": "blocks", "parallel.recompute_every": 2}, 1),
    ({"parallel.offload": "optimizer"}, 1),
    ({"parallel.offload": "optimizer", "parallel.offload_bytes": 4096}, 1),
]
# Of the training these change nothing: all at once.
others = {
    "run.name": "other", "run.init_weights": "weights", "run.init_missing": "new", "run.init_extra": "skip",
    "run.init_other_shape": "skip", "guidance.plugin": "cfg", "cache.plugin": "first_block", "loader.threads": 0, "loader.prefetch": 1,
    "loader.max_bad": 3, "loader.strict": True, "loader.stall_s": 5.0, "loader.encode_ahead": 1, "data.store_timeout_s": 5.0, "data.store_retries": 3,
    "data.store_region": "eu-west-1", "parallel.timeout_s": 50.0, "parallel.hang_s": 20.0, "sampler.steps": 3,
    "checkpoint.keep": 5, "validate.every": 1, "validate.samples": 8, "log.progress": "none",
    "record.receipts": True, "run.audit": 1.0, "run.audit_policy": "redo", "run.read_results": "late",
}


def documented(kind):
    for line in (t.source / "docs/config.md").read_text().splitlines():
        if line.startswith(f"| {kind} |"):
            return re.findall("`([^`]+)`", line.split("|")[2])
    raise t.Failed(f"docs/config.md has no row \"{kind}\"")


def recipe():
    return t.write_recipe("bits.toml", t.recipe(
        run=dict(steps=len(legs) + 1, batch=8, micro_batch=2), model=dict(depth=4), loader=dict(flip=True)))


def test_each_option_that_is_to_give_the_same_bits_does():
    path = recipe()
    t.train(path, "straight")
    before, seen = {}, set()
    for step, (options, ranks) in enumerate(legs, 1):
        seen |= {key for key in before | options if before.get(key) != options.get(key)}
        done = t.train(path, "legs", *(["--local-ranks", ranks] if ranks > 1 else []), "--set", f"run.steps={step}",
                       **{key.replace(".", "__"): value for key, value in options.items()})
        for key in options if step > 1 else ():
            if before.get(key) != options[key]:
                t.check(f"changed since: {key}: " in done.all and "(bit for bit with the same" in done.all, done.all)
        before = options
    t.equal(sorted(seen), sorted(documented("the same bits if the micro-batches stay the same")), "options that legs change")
    places = {"run.output": str(t.work / "last"), "run.folder": str(t.work), "run.init_from": str(t.work / "straight")}
    t.run("train", path, "--resume", t.work / "legs", *t.sets(others | places))
    missing = [key for key in documented("nothing of the training") if key != "plugins.path"  # which no recipe has any more
               and not key.startswith(("network.", "encoder.", "adapter."))  # which this one has not
               and not any(one == key or key.endswith(".*") and one.startswith(key[:-1]) for one in others | places)]
    t.equal(missing, [], "options that the last leg leaves as they were")
    metrics = t.metrics("legs") + [t.lines_of(t.work / "last" / "metrics.jsonl")[-1]]
    for one, other in zip(metrics, t.metrics("straight")):
        t.equal({name: one.get(name) for name in other}, other, "metrics")
    t.equal(len(metrics), len(legs) + 1, "steps")
    t.same_state("last", "straight")


if __name__ == "__main__":
    t.main(globals())
