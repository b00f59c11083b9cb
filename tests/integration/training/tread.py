"""Token routing, [tread]: samples of several sizes, features for an objective, resume, operations, and what is refused. Layouts
of ranks are in the matrix and in one_number_models.py."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
from sizes import BUCKETS, LAYOUTS, PACKS, check_same, learned, mixed  # noqa: E402

ROUTE = {"tread.ratio": 0.4, "tread.start": 1, "tread.end": 2}


def test_samples_of_several_sizes_keep_the_tokens_that_each_keeps_by_itself():
    path, sets = mixed("dit_text")
    sets |= ROUTE | {"model.depth": 3}
    alone = learned(path, "alone", sets | {"run.micro_batch": 1})
    for name in ("ring", "pipeline"):
        ranks, layout = LAYOUTS[name]
        check_same(alone, learned(path, f"packs-{name}".replace(" ", "-"), sets | PACKS | layout, ranks), f"packs, {name}")
    check_same(alone, learned(path, "buckets", sets | BUCKETS, 2), "buckets on two ranks")
    plain = learned(path, "plain", {key: value for key, value in sets.items() if not key.startswith("tread.")})
    # Blocks begin as the identity, and learn from the second step on.
    t.check(abs(float(plain[0][-1]["loss"]) - float(alone[0][-1]["loss"])) > 1e-6, "a route that changes nothing")


def small(name, **sections):
    return t.write_recipe(f"{name}.toml", t.recipe(**dict(run=dict(name=name, steps=3), model=dict(depth=4),
                                                        tread=dict(start=1, end=-1)) | sections))


def test_a_run_goes_on_bit_for_bit_and_not_with_another_route():
    path = small("goes-on")
    t.goes_on_bit_for_bit(path)
    other = ["train", path, *t.sets({"run.output": str(t.work / "in-two"), "run.steps": 7, "tread.ratio": 0.25})]
    t.refused(2, ["tread.ratio", "--allow-change"], *other)
    done = t.run(*other, "--allow-change", "tread.ratio", "--allow-change", "tread.ration")
    t.check("--allow-change tread.ration names no option" in done.all and "--allow-change tread.ratio names" not in done.all, done.all)


def test_a_checkpoint_is_that_of_the_model_alone():
    t.train(small("routed"), "routed")
    whole = small("whole", tread=None)
    t.train(whole, "whole")
    names = [sorted(t.tensors_of(t.latest(folder))) for folder in ("routed", "whole")]
    t.equal(names[0], names[1], "tensors of a checkpoint")
    t.train(whole, "from-routed", run__init_from=str(t.work / "routed"))


def test_operations_are_those_of_the_tokens_that_are_kept():
    said = [json.loads(t.run("train", small(name, model=dict(depth=4, width=32, heads=4, patch=1, mlp_ratio=4), tread=route), "--dry-run",
                             "--json").stdout)["flops"]["blocks"]
            for name, route in (("all", None), ("half", dict(start=1, end=3)))]
    B, D, T = 16, 32, 64
    linear, attention = [6.0 * B * 12 * t_ * D * D for t_ in (T, T // 2)], [6.0 * B * 2 * t_ * t_ * D for t_ in (T, T // 2)]
    of_condition = said[0]["linear"] - 4 * linear[0]
    t.equal(said[1]["linear"], 2 * linear[0] + 2 * linear[1] + of_condition, "operations of layers")
    t.equal(said[1]["attention"], 2 * attention[0] + 2 * attention[1], "operations of attention")


def test_features_of_whole_samples_go_beside_a_route_and_others_are_refused():
    t.train(small("main", run=dict(steps=1), tread=None), "main")
    repa = dict(run=dict(steps=2, precision="fp64", batch=8, micro_batch=4), network__features=dict(weights=str(t.work / "main"), precision="fp64"))
    for block, name in ((0, "ring"), (2, "pipeline")):  # before the route, and behind its last block
        path = small(f"repa-{block}", objective=dict(plugin="repa", block=block, hidden=16), **repa)
        one = learned(path, f"repa-{block}", {})
        ranks, layout = LAYOUTS[name]
        check_same(one, learned(path, f"repa-{block}-{name}", layout, ranks), f"features of block {block}, {name}")
    path = small("repa-1", objective=dict(plugin="repa", block=1, hidden=16), **repa)
    t.refused(2, ["features of block 1", "[tread]"], "train", path)


def test_what_cannot_lose_tokens_is_refused_by_name():
    for end in (9, 1):
        t.refused(2, ["tread", "the model has 4"], "train", small("blocks", tread=dict(start=1, end=end)))
    videos = ["train", t.source / "configs/st_dit_tiny.toml", *t.sets({"run.output": str(t.work / "videos"), "tread.start": 0, "tread.end": 1})]
    t.refused(2, ["st_dit", "attend in space or in time"], *videos)
    skips = small("skips", model=dict(plugin="uvit", depth=4, width=32, heads=4, patch=2))
    t.refused(2, ["tread", "\"skip.", "end = -start"], "train", skips, "--set", "tread.end=3")
    t.train(skips, "skips")


if __name__ == "__main__":
    t.main(globals())
