"""Groups of parameters: several optimizers in one run learn alike on every layout, go on bit for bit, and say what is wrong.

Claim (networks): Muon for matrices and AdamW for the rest, by groups, learn as on one rank on fsdp and tensor, to 1e-12 in
fp64, and resume with the same bits.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import dry_run  # noqa: E402

LAYOUTS = {
    "fsdp": {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"},
    "tensor": {"parallel.tensor": 2},
    "pipeline": {"parallel.pipeline": 2},
}
# Muon for the matrices between, AdamW for the first and the last layer, and biases that do not decay. On a stage of a
# pipeline one of the groups has no parameters.
GROUPS = [
    dict(match=["patches.*", "label.*"], plugin="adamw", weight_decay=0.1, lr_scale=0.5),
    dict(match=["out.*", "final_modulation.*"], plugin="adafactor"),
    dict(match="*.bias", weight_decay=0.0),
]


def recipe(name, precision="fp32", groups=GROUPS, optimizer=None, **run):
    return t.write_recipe(f"{name}.toml", t.recipe(
        run=dict(name=name, steps=4, precision=precision, micro_batch=8) | run, checkpoint=dict(every=2, keep=9),
        optimizer=(optimizer or dict(plugin="muon", weight_decay=0.1)) | (dict(group=groups) if groups else {})))


def near(a, b, what):
    t.check(abs(a - b) <= 1e-12 * max(1, abs(a), abs(b)), f"{what}: {a!r} and {b!r}")


def test_several_optimizers_learn_alike_on_every_layout():
    path = recipe("alike", "fp64")
    t.train(path, "one")
    one = t.tensors_of(t.latest("one"))
    kinds = {name.split("/")[0] for section, name in one if section == "optimizer"}
    t.equal(kinds, {"momentum", "exp_avg", "exp_avg_sq", "second", "second_rows", "second_columns"}, "kinds of states")
    for layout, sets in LAYOUTS.items():
        t.train(path, layout, "--local-ranks", 2, *t.sets(sets))
        for mine, other in zip(t.metrics("one"), t.metrics(layout)):
            for key in ("loss", "grad_norm"):
                near(float(mine[key]), float(other[key]), f"{layout}, step {mine['step']}: {key}")
        there = t.tensors_of(t.latest(layout))
        t.equal(sorted(there), sorted(one), f"tensors under {layout}")
        worst = 0
        for key, tensor in one.items():
            apart = max((abs(a - b) for a, b in zip(t.numbers(tensor), t.numbers(there[key]))), default=0)
            largest = max(map(abs, t.numbers(tensor)), default=0)
            t.check(apart <= 1e-12 * largest, f"{layout}: {key} differs by {apart}, and its largest number is {largest}")
            worst = max(worst, apart / largest if largest else 0)
        print(f"  {layout}: weights, averages and states within {worst:.1e} of the largest of each")
        states = [json.loads((t.latest(folder) / "state.json").read_text())["counters"] for folder in ("one", layout)]
        t.equal(states[0], {"steps": 4, "group.0.steps": 4, "group.1.steps": 4, "group.2.steps": 4}, "counters")
        t.equal(states[1], states[0], f"counters under {layout}")


def test_a_group_counts():
    losses = []
    for name, change in (("all", {}), ("slower", {"optimizer.group.0.lr_scale": 0.1}), ("none", {"optimizer.group": []})):
        t.train(recipe("counts"), f"counts-{name}", *t.sets(change))
        losses.append(t.metrics(f"counts-{name}")[-1]["loss"])
    t.equal(len(set(losses)), 3, f"different losses of {losses}")


def test_a_group_that_repeats_the_section_changes_no_bit():
    own = dict(plugin="adamw", weight_decay=0.1)
    t.train(recipe("plain", groups=[], optimizer=own), "plain")
    t.train(recipe("repeats", groups=[dict(match="*.bias")], optimizer=own), "repeats", "--local-ranks", 2, *t.sets(LAYOUTS["fsdp"]))
    t.same_metrics("plain", "repeats")
    plain, repeats = t.tensors_of(t.latest("plain")), t.tensors_of(t.latest("repeats"))
    t.check(plain == repeats, "weights, averages or states differ")


def test_a_run_goes_on_bit_for_bit_also_on_other_ranks_and_from_its_own_record():
    path = recipe("goes-on")
    t.train(path, "in-one-go")
    for name, first, then in (("same", None, None), ("wider", None, "fsdp"), ("narrower", "fsdp", None),
                              ("from-stages", "pipeline", None)):
        for layout, steps in ((first, 2), (then, 4)):
            ranks = ("--local-ranks", 2, *t.sets(LAYOUTS[layout])) if layout else ()
            from_record = steps == 4 and not first
            t.train(t.work / name / "run.toml" if from_record else path, name, *ranks, run__steps=steps)
        t.same_metrics("in-one-go", name)
        t.same_state("in-one-go", name)


def test_a_resume_names_what_has_changed_and_refuses_other_groups():
    path = recipe("changes")
    t.train(path, "changes", run__steps=2)
    done = t.train(path, "changes", run__steps=3, **{"optimizer.group.0.weight_decay": 0.5, "optimizer.group.2.lr_scale": 2.0})
    for line in ("changed since: optimizer.group.0.weight_decay: 0.1 -> 0.5", "changed since: optimizer.group.2.lr_scale: 1.0 -> 2.0"):
        t.check(line in done.all, f"no \"{line}\" in\n{done.all}")
    others = recipe("others", groups=GROUPS[:2])
    t.refused(7, ["holds another optimizer's state", "group.2.steps", "init_from"], "train", others,
              *t.sets({"run.output": str(t.work / "changes"), "run.steps": 4}))


def test_what_is_wrong_with_a_group_is_said_before_anything_runs():
    wrong = [
        ([dict(match="*.bais")], ["optimizer.group.0.match", '"*.bais" matches no parameter', 'did you mean "*.bias"?']),
        ([dict(match="*.bias"), dict(match=["out.*", "*.qkv.bias"])],
         ['optimizer.group.1.match: "*.qkv.bias" matches 2 parameters', "optimizer.group.0 has taken them all"]),
        ([dict(match="*.bias", momentun=0.5)], ["optimizer.group.0", 'no option "momentun"', 'did you mean "momentum"?']),
        ([dict(match="*.bias", plugin="adamw", momentum=0.5)], ["optimizer.group.0", 'no option "momentum"']),
        ([dict(weight_decay=0.0)], ["optimizer.group.0 names no parameters"]),
        ([dict(match=3)], ["optimizer.group.0.match is 3", "expected an array of strings"]),
    ]
    for i, (groups, parts) in enumerate(wrong):
        path = recipe(f"wrong-{i}", groups=groups)
        for command in (["config", "check"], ["train"]):
            t.refused(2, [f"wrong-{i}.toml:", *parts], *command, path)
    t.refused(3, ["no optimizer 'adamv'", "did you mean 'adamw'?"], "config", "check",
              recipe("no-plugin", groups=[dict(match="*.bias", plugin="adamv")]))
    path = recipe("set")
    t.refused(2, ["group is a list of 3", "numbered from 0"], "config", "check", path, *t.sets({"optimizer.group.3.lr_scale": 1.0}))
    shown = t.run("config", "show", path).stdout
    t.equal(shown.count("[[optimizer.group]]"), 3, "groups that are shown")
    (t.work / "shown.toml").write_text(shown)
    again = t.run("config", "show", "shown.toml").stdout
    t.equal([sorted(part.splitlines()) for part in again.split("\n\n")],
            [sorted(part.splitlines()) for part in shown.split("\n\n")], "what is shown of what was shown")


def test_groups_of_an_adapter_are_of_what_it_learns():
    t.train(recipe("base", groups=[]), "base")
    tree = t.recipe(run=dict(steps=2, init_from=str(t.work / "base")), adapter=dict(rank=2, layers=["blocks.*"]),
                    optimizer=dict(plugin="adamw", group=[dict(match="*.lora_B.weight", lr_scale=16.0)]))
    path = t.write_recipe("adapter.toml", tree)
    losses = []
    for scale in (16.0, 1.0):
        t.train(path, f"adapter-{scale}", *t.sets({"optimizer.group.0.lr_scale": scale}))
        losses.append(t.metrics(f"adapter-{scale}")[-1]["loss"])
    t.check(losses[0] != losses[1], "lr_scale of the second maps makes no difference")
    t.refused(2, ['"blocks.*.qkv.weight" matches no parameter that is trained', "lora_A.weight"], "config", "check", path,
              *t.sets({"optimizer.group.0.match": "blocks.*.qkv.weight"}))


def test_a_dry_run_says_what_states_of_groups_take():
    path = recipe("bytes")
    for ranks, layout in ((1, {}), (2, dict(shard=2, shard_plugin="fsdp"))):
        options = {"parallel__" + key: value for key, value in layout.items()}
        said = dry_run.dry(path, "--ranks", str(ranks), **options)[0]["first"]
        found = dry_run.measured(path, f"bytes-{ranks}", ranks, **options)[said["rank"]]
        for share in dry_run.kept:
            t.equal(said["bytes"][share], found[share], f"bytes of {share} on {ranks} ranks")


if __name__ == "__main__":
    t.main(globals())
