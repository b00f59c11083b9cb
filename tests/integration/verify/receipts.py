"""Receipts of a run: the same on every layout and over a resume; replayed on another layout they show at which step a run
was made otherwise than its recipe says, and which of its parts differs.

Claim (again): With receipts on, a run that learned from another batch, scaled a gradient, changed a weight or skipped a step is
found at that step, by `ditto replay` or `ditto bisect`, on another layout than it was made on.
"""

import hashlib
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

STEPS, BATCH = 10, 8
# Runs that are tampered with; without a number each kind once.
RUNS = next((int(word.split("=")[1]) for word in sys.argv if word.startswith("--runs=")), 100 if t.slow else 0)
PLUGINS = ("tampered_source", "tampered_objective", "tampered_optimizer")
# The part that differs first, by what was done to a step.
TAMPERED = {"swapped batch": "samples", "scaled gradient": "gradient", "changed weight": "weights", "skipped step": "weights"}
LAYOUTS = {
    "fsdp 2": (2, dict(parallel__shard=2, parallel__shard_plugin="fsdp")),
    "pipeline 2": (2, dict(parallel__pipeline=2, run__micro_batch=4)),
    "replicate 2": (2, dict(run__micro_batch=1)),
    "tensor 2": (2, dict(parallel__tensor=2)),
    "threads 2, micro-batch 4": (1, dict(run__threads=2, run__micro_batch=4)),
}
DIFFERS = 8  # exit code


def recipe(name="receipts.toml", **run):
    folder = t.work / "plugins"
    folder.mkdir(exist_ok=True)
    for plugin in PLUGINS:
        shutil.copy(t.build / f"tests/fixture_plugins/{plugin}.so", folder)
    return t.write_recipe(name, t.recipe(
        run=dict(steps=STEPS, batch=BATCH, micro_batch=2, numerics="one", clip_norm=0.5) | run,
        data=dict(plugin="tampered_source", batch=BATCH), loader=dict(shuffle=False),
        objective=dict(plugin="tampered_objective", batch=BATCH), optimizer=dict(plugin="tampered_optimizer"),
        lr_schedule=dict(lr=1e-2), model=dict(depth=2, width=32, heads=4, patch=2),
        checkpoint=dict(every=4, keep=9), record=dict(receipts=True, average_every=1)))


def words(ranks, options):
    given = {key.replace("__", "."): value for key, value in options.items()}
    return ["--plugin-path", t.work / "plugins", *t.sets(given), *(["--local-ranks", ranks] if ranks > 1 else [])]


def train(path, folder, layout=(1, {}), tamper=None, *more):
    return t.train(path, folder, *words(*layout), *more, env={"DITTO_TAMPER": tamper} if tamper else None)


def replayed(command, folder, layout=(1, {}), code=0, *more):
    return t.run(command, t.work / folder, *more, *words(*layout), code=code).stdout.strip().splitlines()[-1]


def lines_of(folder):
    return (t.work / folder / "receipts.jsonl").read_text().splitlines(keepends=True)


def test_every_layout_writes_the_same_receipts():
    path = recipe()
    train(path, "honest")
    lines = lines_of("honest")
    t.equal([json.loads(line)["step"] for line in lines], list(range(STEPS + 1)), "steps that have a line")
    t.equal(list(json.loads(lines[3])), ["step", "samples", "loss", "gradient", "norm", "weights", "average", "sha256"],
            "what a line has")
    for part in ("samples", "loss", "gradient", "norm", "weights", "average"):
        t.equal(len({json.loads(line)[part] for line in lines[1:]}), STEPS, f"different {part} of steps")
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        train(path, f"layout{number}", layout)
        t.check(lines_of(f"layout{number}") == lines, f"{name} has other receipts")


def test_the_average_stands_where_it_is_due():
    path = recipe()
    lines = [json.loads(line) for line in lines_of("honest")]
    for name, layout in (("alone", (1, {})), ("cut", LAYOUTS["tensor 2"])):
        train(path, f"seldom-{name}", (layout[0], layout[1] | dict(record__average_every=3)))
        seldom = [json.loads(line) for line in lines_of(f"seldom-{name}")]
        t.equal([line["step"] for line in seldom if "average" in line], [0, 3, 4, 6, 8, 9, 10], "steps with an average")
        for one, other in zip(seldom, lines):
            one.pop("sha256"), t.check(one.items() <= other.items(), f"{one} is not of {other}")
    said = replayed("replay", "seldom-alone", LAYOUTS["fsdp 2"])
    t.equal(said, f"the same: steps 1 to {STEPS} are what their receipts say", "a replay")


def test_a_replay_on_another_layout_says_the_same():
    for name, layout in LAYOUTS.items():
        said = replayed("replay", "honest", layout, 0, "--from", 5, "--to", 9)
        t.equal(said, "the same: steps 5 to 9 are what their receipts say", name)
    said = replayed("replay", "honest")
    t.equal(said, f"the same: steps 1 to {STEPS} are what their receipts say", "from the beginning")
    t.equal(replayed("bisect", "honest", LAYOUTS["fsdp 2"]), said, "bisect")
    t.check(len(list((t.work / "honest/checkpoints").glob("step_*"))) == 3, "a replay saved something")
    t.check(not list((t.work / "honest/replay/checkpoints").glob("step_*")), "a replay saved something")


def test_receipts_go_on_after_a_resume():
    path = recipe()
    expected = lines_of("honest")
    for name, keep, said in (("whole", len(expected), None),
                             ("cut", 4, "receipts begin anew after step 4: the receipts before end after step 3"),
                             ("gone", 0, "receipts begin anew after step 4: there are no receipts of the steps before")):
        folder = t.work / f"resumed-{name}"
        shutil.copytree(t.work / "honest", folder)
        for later in ("step_00000008", "step_00000010"):
            shutil.rmtree(folder / "checkpoints" / later)
        (folder / "receipts.jsonl").write_text("".join(expected[:keep]))
        done = train(path, folder.name, LAYOUTS["replicate 2"])
        lines = lines_of(folder.name)
        if said is None:
            t.check(lines == expected, "other receipts after a resume")
            continue
        t.check(said in done.all, done.all)
        first = json.loads(lines[0])
        t.equal((first["step"], first["why"]), (4, said.split(": ")[1]), "the first line")
        t.check([json.loads(line)["weights"] for line in lines[1:]] ==
                [json.loads(line)["weights"] for line in expected[5:]], "other weights after a resume")
        t.equal(replayed("replay", folder.name, (1, {}), 0, "--from", 4),
                f"the same: steps 5 to {STEPS} are what their receipts say", name)
        t.refused(7, ["there is none of step 0 or before, and the receipts begin after step 4"], "replay", folder, *words(1, {}))


def test_what_was_written_into_receipts_is_named():
    lines = lines_of("honest")
    shutil.copytree(t.work / "honest", t.work / "written")
    lines[6] = lines[6].replace('"loss":"', '"loss":"3', 1)
    (t.work / "written/receipts.jsonl").write_text("".join(lines))
    for command in ("replay", "bisect"):
        said = replayed(command, "written", (1, {}), DIFFERS)
        t.check("the chain is broken at line 7, after step 5: its SHA-256" in said, said)


def test_a_checkpoint_of_another_run_is_found():
    path = recipe()
    train(path, "other", (1, {}), "changed weight 2")
    for step in (4, 8):
        shutil.copytree(t.work / "honest", t.work / f"exchanged{step}")
        for later in [one for one in (4, 8, 10) if one >= step]:
            name = f"checkpoints/step_{later:08}"
            shutil.rmtree(t.work / f"exchanged{step}" / name)
            shutil.copytree(t.work / "other" / name, t.work / f"exchanged{step}" / name)
        said = replayed("bisect", f"exchanged{step}", LAYOUTS["replicate 2"], DIFFERS)
        t.check(said.startswith(f"the checkpoint of step {step} does not hold what the receipt"), said)
        said = replayed("replay", f"exchanged{step}", (1, {}), DIFFERS, "--from", step)
        t.equal(said, f"what step {step + 1} begins with is not what the receipts say: other weights, average", "a replay")


def test_a_checkpoint_that_was_changed_before_whole_ones_is_found():
    shutil.copytree(t.work / "honest", t.work / "middle")
    shutil.rmtree(t.work / "middle/checkpoints/step_00000004")
    shutil.copytree(t.work / "other/checkpoints/step_00000004", t.work / "middle/checkpoints/step_00000004")
    said = replayed("bisect", "middle", (1, {}), DIFFERS)
    t.check(said.startswith("the checkpoint of step 4 does not hold what the receipt"), said)


def test_runs_that_were_tampered_with_are_found_at_their_step():
    path = recipe()
    draw = t.seed_of("tampered")
    cases = [(how, step) for step in range(1, STEPS + 1) for how in TAMPERED]
    cases = [draw.choice(cases) for _ in range(RUNS)] if RUNS else [(how, draw.randint(1, STEPS)) for how in TAMPERED]
    for number, (how, step) in enumerate(cases):
        # The last batch has none to be exchanged with.
        step = min(step, STEPS - 1) if how == "swapped batch" else step
        shutil.rmtree(t.work / "tampered", ignore_errors=True)
        train(path, "tampered", (1, {}), f"{how} {step}")
        name = list(LAYOUTS)[number % len(LAYOUTS)]
        said = replayed("bisect", "tampered", LAYOUTS[name], DIFFERS)
        t.check(said.startswith(f"step {step} is not what its receipt says: other {TAMPERED[how]}"),
                f"{how} {step}, replayed with {name}: {said}")
    print(f"{len(cases)} of {len(cases)} runs found", flush=True)


def test_fast_kernels_are_replayed_as_they_ran():
    path = recipe("fast.toml", numerics="fast", steps=4)
    train(path, "fast")
    t.equal(replayed("replay", "fast"), "the same: steps 1 to 4 are what their receipts say", "the same layout")
    t.equal(replayed("replay", "fast", (2, dict(parallel__shard=2, parallel__shard_plugin="fsdp"))),
            "the same: steps 1 to 4 are what their receipts say", "data ranks with the same micro-batches")
    for options, what in ((dict(run__micro_batch=4), "run.micro_batch was 2 in the run, and is 4 now"),
                          (dict(run__threads=2), "threads was 1 in the run, and is 2 now")):
        t.refused(2, [what, "that may make other bits"], "replay", t.work / "fast", *words(1, options))
    t.refused(2, ["variables was none in the run, and is MKL_CBWR=COMPATIBLE now"], "replay", t.work / "fast", *words(1, {}),
              env={"MKL_CBWR": "COMPATIBLE"})
    # Receipts of before LibTorch's build, libraries and variables were noted.
    said, lines = "", []
    for line in map(json.loads, lines_of("fast")):
        line.pop("sha256")
        for name in [name for name in line.get("begins", {}) if name in ("torch_build", "variables") or name.startswith("library.")]:
            line["begins"].pop(name)
        text = json.dumps(line, separators=(",", ":"))[:-1]
        said = hashlib.sha256((said + text).encode()).hexdigest()
        lines.append(f'{text},"sha256":"{said}"}}')
    t.check("torch_build" not in lines[0], lines[0])
    (t.work / "fast/receipts.jsonl").write_text("\n".join(lines) + "\n")
    replayed("replay", "fast")


def test_what_cannot_be_replayed_is_refused():
    t.refused(2, ["another recipe, as far as it says what is learned"], "replay", t.work / "honest",
              *words(1, dict(run__seed=1)))
    t.refused(2, ["--to", "the receipts end after step 10"], "replay", t.work / "honest", "--to", 11, *words(1, {}))
    t.refused(2, ["--from", "no step follows it"], "replay", t.work / "honest", "--from", 10, *words(1, {}))
    path = recipe("none.toml")
    train(path, "none", (1, dict(record__receipts=False, record__average_every=10, run__steps=1)))
    t.check(not (t.work / "none/receipts.jsonl").exists(), "receipts that nobody asked for")
    t.refused(4, ["receipts.jsonl"], "replay", t.work / "none", *words(1, {}))
    t.refused(2, ["record.receipts"], "config", "check", path, "--set", "record.receipts=\"yes\"", "--plugin-path",
              t.work / "plugins")


if __name__ == "__main__":
    t.main(globals())
