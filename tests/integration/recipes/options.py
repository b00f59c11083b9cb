"""Options that cannot take effect are said, those that are left idle by others go along, and what a run would refuse in its
first step or its first sheet is refused before it starts.

Claim (options): What `ditto config check` calls fine takes its first steps and draws its first sheet.
"""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

STEPS = 6


# --- later than the run ------------------------------------------------------------------------------------------------------

# The option that is named, what is set, and other values of it under which the same is learned, or None.
LATE = [("lr_schedule.lr", {"lr_schedule.warmup": warmup}, None) for warmup in (7, 10, 1000)] + [
    ("lr_schedule.kind", {"lr_schedule.warmup": warmup, "lr_schedule.kind": kind}, {"lr_schedule.kind": "constant"})
    for warmup, kind in ((6, "linear"), (6, "cosine"), (9, "cosine"))] + [
    (key, beside | {key: every}, {key: every + 5})
    for key, beside in (("validate.every", {}), ("log.tensorboard_every", {"log.tensorboard": True}),
                        ("record.average_every", {"record.receipts": True}), ("run.loss_scale_every", {"run.precision": "fp16"}),
                        ("checkpoint.every", {}), ("checkpoint.keep_every", {"checkpoint.every": 2}))
    for every in (7, 100)] + [
    ("validate.grid_every", {"validate.grid_every": 7, "validate.grid": 1}, None),
    ("checkpoint.keep_every", {"checkpoint.every": 4, "checkpoint.keep_every": 5}, {"checkpoint.keep_every": 9})]


def said_of(done, option):
    return [line for line in done.all.splitlines() if f"warning: {option} takes no effect in run.steps = {STEPS}: " in line]


def test_an_option_that_cannot_take_effect_in_the_steps_of_the_run_is_said():
    path = t.write_recipe("late.toml", t.recipe(run=dict(steps=STEPS), data=t.synthetic(samples=16), checkpoint=dict(every=3)))
    for warmup in (1, STEPS):
        done = t.run("config", "check", path, *t.sets({"lr_schedule.warmup": warmup}))
        t.check("takes no effect" not in done.all, done.all)
    t.check(len(LATE) >= 20, "too few variants")
    for number, (option, sets, others) in enumerate(LATE if t.slow else [LATE[0], LATE[6]]):
        for done in (t.run("config", "check", path, *t.sets(sets)), t.train(path, f"late-{number}", *t.sets(sets))):
            t.equal(len(said_of(done, option)), 1, f"lines about {option} with {sets}: {done.all}")
        if others:
            t.train(path, f"later-{number}", *t.sets(sets | others))
            t.same_metrics(f"late-{number}", f"later-{number}")


# --- idle --------------------------------------------------------------------------------------------------------------------

# A recipe's sections, what is set over it, and the options that go along.
OVERRIDDEN = [
    (dict(ema=dict(decay=0.9, warmup=False)), {"ema.enabled": False}, ["ema.decay", "ema.warmup"]),
    (dict(run=dict(precision="fp16", loss_scale=256.0)), {"run.precision": "fp32"}, ["run.loss_scale"]),
    (dict(sampler=dict(clip="dynamic", percentile=0.9)), {"sampler.clip": "none"}, ["sampler.percentile"]),
    (dict(sampler=dict(clip="dynamic", percentile=0.9)), {"sampler.clip": "static"}, ["sampler.percentile"]),
    (dict(lr_schedule=dict(kind="cosine", final_share=0.1)), {"lr_schedule.kind": "constant"}, ["lr_schedule.final_share"]),
    (dict(validate=dict(every=2, samples=8)), {"validate.every": 0}, ["validate.samples"]),
    (dict(validate=dict(grid_every=2, grid=2)), {"validate.grid_every": 0}, ["validate.grid"]),
    (dict(record=dict(receipts=True, average_every=2)), {"record.receipts": False}, ["record.average_every"]),
    (dict(run=dict(numerics="one", token_leaf=8)), {"run.numerics": "fast"}, ["run.token_leaf"]),
    (dict(log=dict(tensorboard=True, tensorboard_every=2)), {"log.tensorboard": False}, ["log.tensorboard_every"]),
    (dict(scheduler=dict(times="logit_normal", mean=0.5, std=2.0)), {"scheduler.times": "uniform"},
     ["scheduler.mean", "scheduler.std"]),
    (dict(scheduler=dict(shift_by="area", shift_base=64)), {"scheduler.shift_by": "nothing"}, ["scheduler.shift_base"]),
    (dict(scheduler=dict(shift_by="linear", base_tokens=4, max_shift=2.0)), {"scheduler.shift_by": "area"},
     ["scheduler.base_tokens", "scheduler.max_shift"]),
    (dict(scheduler=dict(plugin="iddpm", weight="min_snr", gamma=3.0, variance="fixed_small")), {"scheduler.weight": "none"},
     ["scheduler.gamma"]),
    (dict(scheduler=dict(plugin="iddpm", beta_end=0.01)), {"scheduler.betas": "cosine"}, ["scheduler.beta_end"]),
    (dict(scheduler=dict(plugin="gvp", prediction="noise", train_eps=0.01, sample_eps=0.01)), {"scheduler.prediction": "velocity"},
     ["scheduler.train_eps", "scheduler.sample_eps"]),
    (dict(scheduler=dict(plugin="ddpm_continuous", weight="min_snr", gamma=3.0)), {"scheduler.weight": "debiased"},
     ["scheduler.gamma"]),
    (dict(sampler=dict(plugin="dpmpp_2m_sde", steps=4, s_noise=1.01)), {"sampler.eta": 0.0}, ["sampler.s_noise"]),
    (dict(optimizer=dict(weight_decay=0.1, decay_vectors=False)), {"optimizer.weight_decay": 0.0}, ["optimizer.decay_vectors"]),
    (dict(data=t.synthetic(content="clusters", mean=0.6, spread=0.2)), {"data.content": "noise"}, ["data.mean", "data.spread"]),
    (dict(data=t.synthetic(), batch=dict()), {"data.sizes": ["8x8", "8x4"], "validate.every": 0}, []),
]


def test_options_that_others_leave_idle_go_along_where_those_are_overridden_and_are_refused_elsewhere():
    t.check(len(OVERRIDDEN) >= 20, "too few variants")
    base = dict(run=dict(steps=1), data=t.synthetic(samples=16))
    for number, (sections, sets, options) in enumerate(OVERRIDDEN if t.slow else OVERRIDDEN[:1] + OVERRIDDEN[13:14]):
        tree = t.recipe(**{name: base.get(name, {}) | more for name, more in (base | sections).items()})
        path = t.write_recipe(f"over-{number}.toml", tree)
        t.run("config", "check", path)
        done = t.train(path, f"over-{number}", *t.sets(sets))
        for option in options:
            said = [line for line in done.all.splitlines() if "left out: " in line and f"{path}:" in line and f": {option} " in line]
            t.equal(len(said), 1, f"lines about {option} in {done.all}")
        again = t.train(t.work / f"over-{number}/run.toml", f"again-{number}")
        t.check("left out" not in again.all, again.all)
        t.same_metrics(f"over-{number}", f"again-{number}")
        for key, value in sets.items():  # in the file itself
            section, name = key.rsplit(".", 1)
            tree[section.replace("__", ".")] = tree.get(section, {}) | {name: value}
        if options:
            path = t.write_recipe(f"said-{number}.toml", tree)
            for command in (["config", "check"], ["train"]):
                done = t.refused(2, [f"said-{number}.toml:", "leave it out"], *command, path)
                t.check(any(f"{option} " in done.stderr for option in options), done.stderr)
    groups = [dict(match="*.bias", weight_decay=0.0)]  # inherits what decay is of, and has none
    done = t.run("config", "check", t.write_recipe("group.toml", t.recipe(**base, optimizer=dict(
        weight_decay=0.1, decay_vectors=False, group=groups))))
    t.check("left out" not in done.all, done.all)
    including = t.work / "including.toml"
    t.write_recipe("included.toml", t.recipe(**base))
    including.write_text('include = "included.toml"\n[ema]\nenabled = false\n')
    t.check("left out: " in t.run("config", "check", including).all, "the including file does not override")
    outermost = t.work / "outermost.toml"  # whatever else it says
    outermost.write_text(f'include = "{including.name}"\n[run]\nsteps = 2\n')
    t.check("left out: " in t.run("config", "check", outermost).all, "of an include's include")


def test_a_run_that_was_begun_with_an_idle_option_goes_on_being_read():
    path = t.write_recipe("old.toml", t.recipe(run=dict(steps=1), data=t.synthetic(samples=16),
                                               scheduler=dict(plugin="ddpm_continuous", weight="min_snr", gamma=3.0)))
    t.train(path, "old")
    text = (t.work / "old/run.toml").read_text()
    idle = t.work / "idle.toml"
    idle.write_text(text.replace('weight = "min_snr"', 'weight = "none"'))
    t.check("gamma = 3.0" in idle.read_text() and 'weight = "none"' in idle.read_text(), text)
    done = t.train(idle, "older")
    t.check("left out: " in done.all and "scheduler.gamma" in done.all, done.all)
    t.check("gamma = 5.0" in (t.work / "older/run.toml").read_text(), "run.toml has an option that does nothing")


# --- before anything starts --------------------------------------------------------------------------------------------------

GRID = dict(every=0, grid_every=1, grid=2)
DDIM = dict(plugin="iddpm", spacing="ddim")
FALSELY_FINE = {
    "strides": (dict(scheduler=DDIM, sampler=dict(plugin="ddim", steps=300), validate=GRID), "no integer stride takes 300 of 1000"),
    "times": (dict(scheduler=dict(plugin="iddpm"), sampler=dict(plugin="ddim", steps=2000), validate=GRID),
              "cannot choose 2000 of 1000 times"),
    "positions": (dict(model=dict(plugin="mmdit", depth=2, width=32, heads=4, patch=2, position_side=2),
                       data=t.synthetic(samples=16, text_tokens=3, text_width=8, text_pooled=6)), "has 2 x 2 places"),
}


def tiny(**sections):
    base = dict(run=dict(steps=2, batch=4), data=t.synthetic(samples=16))
    return t.recipe(**{name: base.get(name, {}) | more for name, more in (base | sections).items()})


def test_what_the_first_step_or_sheet_would_refuse_is_refused_before_the_run():
    for name, (sections, what) in FALSELY_FINE.items():
        path = t.write_recipe(f"{name}.toml", tiny(**sections))
        t.refused(2, [what], "config", "check", path)
        t.refused(2, [what], "train", path, *t.sets({"run.output": str(t.work / name)}))
        t.equal(t.lines_in(name), 0, f"steps of {name}")


def test_a_sheet_that_fails_is_a_warning_and_changes_nothing_of_the_training():
    few = dict(sampler=dict(plugin="dopri5", steps=2, rtol=1e-9, atol=1e-12), validate=dict(grid_every=1, grid=3))
    path = t.write_recipe("sheet.toml", tiny(run=dict(steps=4, batch=4), checkpoint=dict(every=1, keep=9), **few))
    without = t.write_recipe("no-sheet.toml", tiny(run=dict(steps=4, batch=4), checkpoint=dict(every=1, keep=9)))
    t.run("config", "check", path)
    for ranks in ([], ["--local-ranks", 2]):
        names = f"sheet{len(ranks)}", f"no-sheet{len(ranks)}"
        done = t.train(path, names[0], *ranks)
        t.equal(done.all.count("warning: no grid of step"), 4, done.all)
        t.check("is not done after 2 steps of dopri5" in done.all, done.all)
        t.train(without, names[1], *ranks)
        t.same_metrics(*names)
        t.same_state(*names)


def drawn(d):
    """A recipe that may be fine or not."""
    model = d.choice(["dit", "uvit", "mmdit", "dit_text", "jit"])
    side = d.choice([8, 12, 16])
    text = dict(text_tokens=3, text_width=8, text_pooled=6) if model in ("mmdit", "dit_text") else {}
    options = dict(plugin=model, depth=2, width=32, heads=4, patch=2)
    if model == "mmdit":
        options["position_side"] = d.choice([2, 4, 6, 8])
    if model == "jit":
        options["bottleneck"] = 6
    scheduler = d.choice([dict(plugin="rectified_flow"), dict(plugin="edm"), dict(plugin="iddpm", timesteps=d.choice([100, 1000])),
                          DDIM, dict(plugin="vp"), dict(plugin="gvp")])
    sampler = d.choice(["euler", "ddim", "heun", "dpmpp_2m", "ancestral", "sde_euler", "unipc"])
    return tiny(run=dict(steps=2, batch=4, numerics=d.choice(["fast", "fast", "one"])), model=options,
                data=t.synthetic(samples=16, height=side, width=side, **text), scheduler=scheduler,
                sampler=dict(plugin=sampler, steps=d.choice([3, 7, 30, 120])), validate=dict(grid_every=d.choice([0, 1, 1, 2]), grid=2))


def test_config_check_says_of_recipes_what_training_them_does():
    d = random.Random(34)
    fine, wrong = 0, 0
    for number in range(26 if t.slow else 2):
        path = t.write_recipe(f"drawn-{number}.toml", drawn(d))
        words = [t.ditto, "config", "check", str(path)]
        code = t.subprocess.run(words, cwd=t.work, env=t.environment, capture_output=True).returncode
        t.check(code in (0, 2), f"{path.read_text()}\nconfig check ends with {code}")
        done = t.train(path, f"drawn-{number}", code=code)
        t.check("no grid of step" not in done.all, done.all)
        t.equal(t.lines_in(f"drawn-{number}"), 2 if code == 0 else 0, "steps")
        fine, wrong = fine + (code == 0), wrong + (code != 0)
    t.check(not t.slow or (fine >= 8 and wrong >= 5), f"{fine} are fine and {wrong} are not: draw others")


# --- what options of a run's folder do ---------------------------------------------------------------------------------------


def test_options_of_what_is_kept_and_shown_do_what_they_say():
    path = t.write_recipe("kept.toml", tiny(
        run=dict(steps=7, batch=4), checkpoint=dict(every=1, keep=1, keep_every=3), validate=dict(grid_every=7, grid=3),
        sampler=dict(plugin="euler", steps=1), log=dict(tensorboard=False, peak_tflops=0.5, grid_columns=3, grid_cell=16)))
    t.train(path, "kept")
    t.equal(t.checkpoints("kept"), ["step_00000003", "step_00000006", "step_00000007"], "checkpoints")
    for line in t.lines_of(t.work / "kept/metrics.jsonl"):
        t.check(abs(float(line["mfu"]) - float(line["tflops"]) / 0.5) < 1e-9, f"mfu in {line}")
    sizes = {}
    for columns, cell in ((3, 16), (1, 16), (3, 40)):
        name = f"sheet-{columns}-{cell}"
        t.train(path, name, **{"log__grid_columns": columns, "log__grid_cell": cell})
        (sheet,) = (t.work / name / "samples").glob("*.png")
        sizes[columns, cell] = t.struct.unpack(">II", sheet.read_bytes()[16:24])
    wide, tall, large = sizes[3, 16], sizes[1, 16], sizes[3, 40]
    t.check(wide[0] > 2 * wide[1] and tall[1] > 2 * tall[0], f"sheets of 3 columns and of 1: {wide}, {tall}")
    t.check(wide[0] >= 3 * 16 and large[0] >= 3 * 40, f"cells of 16 and of 40 pixels at least: {wide}, {large}")


if __name__ == "__main__":
    t.main(globals())
