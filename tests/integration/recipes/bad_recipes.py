"""What is wrong with a recipe is said once, with place, finding, expectation and remedy, ends with the right exit code, and
leaves nothing behind.

Claim (options): Every mistake in a recipe, a checkpoint or the data ends in one message with place, finding and remedy, and the
right exit code. Also: `bad_files.py`
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def check_text(name, text, code, *parts, commands=(["config", "check"], ["train"])):
    path = t.work / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for command in commands:
        t.refused(code, parts, *command, path)
    t.check(not (t.work / "runs").exists(), "a refused recipe left a run's folder")


def test_a_recipe_that_cannot_be_read_is_refused_with_its_place():
    t.refused(2, ["nowhere.toml", "no such recipe", "configs/"], "train", "nowhere.toml")
    check_text("bytes.toml", b"[run]\nname = \"\xff\xfe\x00\"\n", 2, "bytes.toml:2:9", "not UTF-8", "save the file as UTF-8")
    check_text("binary.toml", bytes(range(256)) * 4, 2, "binary.toml:2:118: ", "not UTF-8")
    check_text("open.toml", "[run]\nname = \"x\n", 2, "open.toml:2:", "this is not TOML")
    check_text("at.toml", "[@\n", 2, "at.toml:1:", "this is not TOML")
    check_text("twice.toml", "[run]\nseed = 1\nseed = 2\n", 2, "twice.toml:3:", "seed")
    (t.work / "folder.toml").mkdir()
    t.refused(2, ["folder.toml"], "train", t.work / "folder.toml")


def test_includes_that_are_missing_or_go_in_circles_are_refused():
    (t.work / "b.toml").write_text('include = "a.toml"\n')
    check_text("a.toml", 'include = "b.toml"\n', 2, "a.toml -> b.toml -> a.toml", "remove one of these includes")
    check_text("self.toml", 'include = ["self.toml"]\n', 2, "self.toml -> self.toml")
    check_text("lost.toml", '\ninclude = "nowhere.toml"\n', 2, "lost.toml:2:11", "nowhere.toml", "relative to the folder")
    check_text("number.toml", "include = 3\n", 2, "number.toml:1:11", "integer", "expected a file's name")


def test_every_kind_of_wrong_option_is_refused_with_place_finding_and_expectation():
    base = t.write_recipe("base.toml", t.recipe())
    wrong = [
        ("[run]\nname = \"\"", 2, ":3:8", "run.name is empty", "leave it out"),
        ("[run]\nstepss = 3", 2, ":3:10", 'no option "stepss"', 'did you mean "steps"?'),
        ("[run]\nsteps = \"x\"", 2, ":3:9", 'run.steps is "x", a string', "expected an integer"),
        ("[run]\nsteps = 1.5", 2, ":3:9", "run.steps is 1.5", "expected an integer"),
        ("[run]\nbatch = 0", 2, ":3:9", "run.batch is 0", "expected 1 to 16777216"),
        ("[run]\nprecision = \"fp8\"", 2, ":3:13", 'run.precision is "fp8"', "expected one of", '"bf16"'),
        ("[ema]\ndecay = 1.5", 2, ":3:9", "ema.decay is 1.5", "expected 0.0 to 1.0"),
        ("[optimizer]\nbeta1 = 1.0", 2, ":3:9", "optimizer.beta1 is 1", "below 1"),
        ("[optimizer]\nplugin = \"muon\"\nmomentum = 1.0", 2, ":4:12", "optimizer.momentum is 1", "below 1"),
        ("[optimizer]\nplugin = \"schedule_free\"\nbeta2 = 1.0", 2, ":4:9", "optimizer.beta2 is 1", "below 1"),
        ("[optimizer]\nplugin = \"lion\"\nbeta2 = 1.0", 2, ":4:9", "optimizer.beta2 is 1", "below 1"),
        ("[optimizer]\neps = 1e-50", 2, ":3:7", "optimizer.eps is 1e-50", "expected at least 1e-37"),
        ("[optimizer]\nplugin = \"adafactor\"\neps = 1e-20", 2, ":4:7", "optimizer.eps is so small", "1e-18"),
        ("[optimizer]\nplugin = \"schedule_free\"\npower = 1e3", 2, ":4:9", "optimizer.power is 1000", "expected 0.0 to 10.0"),
        ("[optimizer]\nplugin = \"schedule_free\"\nlr_power = 11.0", 2, ":4:12", "optimizer.lr_power is 11", "expected 0.0 to 10.0"),
        *((f"[optimizer]\nplugin = \"{plugin}\"\neps = 1e-50", 2, ":4:7", "optimizer.eps is 1e-50", "expected at least 1e-37")
          for plugin in ("adamw8bit", "muon", "schedule_free")),
        ("[ema]\ndecay = 1\nwarmup = false", 2, ":3:9", "ema.decay is 1 without warmup", "below 1"),
        ("[lr_schedule]\nlr = nan", 2, ":3:6", "lr_schedule.lr is nan", "expected at least"),
        ("[run]\nprecision = \"fp16\"\nloss_scale = 1e300", 2, ":4:14", "run.loss_scale is 1e+300", "expected 1"),
        ("[run]\nprecision = \"fp16\"\nloss_scale = inf", 2, ":4:14", "run.loss_scale is inf", "expected a finite number"),
        ("[lr_schedule]\nfinal_share = 0.5", 2, ":3:15", "is of a falling rate", 'kind = \"cosine\"'),
        ("[sampler]\nplugin = \"heun_edm\"\ns_churn = 1.0\ns_tmin = 5.0\ns_tmax = 1.0", 2, ":5:10", "lies above s_tmax", "smaller first"),
        ("[sampler]\nplugin = \"heun_edm\"\ns_noise = 1.1", 2, ":4:11", "sampler.s_noise changes nothing where s_churn is 0", "leave it out"),
        ("[scheduler]\nplugin = \"rectified_flow\"\nmean = 0.5", 2, ":4:8", 'is of times = \"logit_normal\"', "leave it out"),
        ("[parallel]\ntimeout_s = 1e10", 2, ":3:13", "parallel.timeout_s is 1e+10", "expected 0.0 to 1e+08"),
        ("[parallel]\nhang_s = 1e17", 2, ":3:10", "parallel.hang_s is 1e+17", "expected 0.0 to 1e+08"),
        ("[model]\ndepht = 3", 2, ":3:9", 'no option "depht"', 'did you mean "depth"?'),
        ("[model]\ndepth = \"two\"", 2, ":3:9", 'model.depth is "two", a string', "expected an integer"),
        ("[model]\ndepth = 0", 2, ":3:9", "model.depth is 0", "expected 1 to 4096"),
        ("[model]\nheads = 5", 2, ":3:9", "model.heads = 5 does not divide model.width = 32", "use 4 or 8"),
        ("[model]\npreset = \"S/3\"", 2, ":3:10", 'model.preset is "S/3"', 'did you mean "S/2"?'),
        ("[model]\nplugin = \"dot\"", 3, ":3:10", "no model 'dot'", "did you mean 'dit'?"),
        ("[model]\nplugin = \"mmdit\"\nrotary = [2, 2, 4]", 2, ":4:10", "model.rotary is not mmdit's", 'set model.plugin = "flux"'),
        ("[model]\nplugin = \"mmdit\"\npreset = \"Flux.1-dev\"", 2, ":4:10", 'model.preset = "Flux.1-dev" is not mmdit', 'plugin = "flux"'),
        ("[model]\nplugin = \"st_dit\"\npreset = \"Latte-1\"", 2, ":4:10", 'model.preset = "Latte-1" is not st_dit', 'plugin = "latte"'),
        ("[sampler]\nplugin = \"eula\"", 3, ":3:10", "no sampler 'eula'", "did you mean 'euler'?"),
        ("[sampler]\nsteps = 0", 2, ":3:9", "sampler.steps is 0", "expected 1 to 1000000"),
        ("[objective]\ncondition_dropout = 2", 2, ":3:21", "objective.condition_dropout is 2", "expected 0.0 to 1.0"),
        ("[data]\nsize = [8]", 2, ":3:8", "data.size is [8]", "expected [height, width]"),
        ("[data]\nsize = [8, \"x\"]", 2, ":3:8", "a list of mixed types"),
        ("[modl]\ndepth = 3", 2, ":2:1", 'no section "modl"', "did you mean [model]?"),
        ("[encoder]\nplugin = \"identity\"", 2, ":3:10", "encoder.plugin is string", "a section for each encoder, [encoder.NAME]"),
        ("[network]\nweights = \"x\"", 2, ":3:11", "network.weights is string", "a section for each network, [network.NAME]"),
        ("[tread]\nratio = 1.0", 2, ":3:9", "tread.ratio = 1 leaves no token", "a share below 1"),
        ("[tread]\nratio = -0.5", 2, ":3:9", "tread.ratio is -0.5", "expected 0.0 to 1.0"),
        ("[tread]\nfirst = 1", 2, ":3:9", 'no option "first"'),
        ("[parallel]\ntensor = 0", 2, ":3:10", "parallel.tensor is 0", "expected 1 to 1048576"),
        ("[plugins]\nkernels = [\"nope\"]", 3, "no kernels 'nope'"),
        ("[kernels]\nattention = \"fast\"", 2, ":3:13", "names no variant", "reference"),
        ("[kernels]\natention = \"reference\"", 2, ":3:12", "no op of this name"),
        ("[model]\ndepth = {x = 1}", 2, ":3:9", "model.depth is a table"),
        ("[scheduler]\nplugin = 3", 2, ":3:10", "scheduler.plugin is integer", "expected a plugin's id"),
    ]
    for number, (text, code, *parts) in enumerate(wrong):
        place = f"wrong-{number}.toml" if parts[0].startswith(":") else ""
        parts[0] = f"{place}{parts[0]}: " if place else parts[0]
        check_text(f"wrong-{number}.toml", f'include = "base.toml"\n{text}\n', code, *parts,
                   commands=(["train"],) if number % 2 else (["config", "check"],))
    t.refused(2, ["--set run.stepss=3", "did you mean"], "train", base, "--set", "run.stepss=3")
    t.refused(2, ["--set steps", "KEY=VALUE"], "train", base, "--set", "steps")
    t.refused(2, ["--set steps=3", "--set run.steps=3 or --set sampler.steps=3"], "train", base, "--set", "steps=3")
    t.refused(2, ["--set run=3", "is a section, not an option", "--set run.OPTION=VALUE"], "train", base, "--set", "run=3")
    t.refused(2, ["--set decya=3", "names no section", "--set SECTION.decya=3"], "train", base, "--set", "decya=3")


def test_a_section_that_is_needed_and_missing_is_named():
    for section in ("data", "model", "objective", "optimizer"):
        path = t.write_recipe(f"without-{section}.toml", t.recipe(**{section.replace(".", "__"): None}))
        for command in (["config", "check"], ["train"]):
            t.refused(2, [f"without-{section}.toml", f"no section [{section}]", "ditto plugins list"], *command, path)
    path = t.write_recipe("without-many.toml", t.recipe(scheduler=None, objective=None, optimizer=None, encoder__image=None, sampler=None))
    for command in (["config", "check"], ["train"]):
        t.refused(2, ["without-many.toml: has no sections [objective], [optimizer]", "add each, with plugin",
                      "and [scheduler] and [encoder.image], which most recipes have"], *command, path)
    path = t.write_recipe("without-encoder.toml", t.recipe(encoder__image=None))
    for command in (["config", "check"], ["train"]):
        t.refused(2, ["without-encoder.toml", 'nobody makes "clean"', 'image (data "webdataset"), label (data "webdataset")',
                      "[encoder.image]", "ditto plugins list"], *command, path)
    path = t.write_recipe("no-plugin.toml", t.recipe() | {"model": dict(depth=2)})
    t.refused(2, ["no-plugin.toml:", "[model] names no plugin"], "train", path)


def test_a_second_encoder_of_the_same_tensor_is_refused_with_what_the_first_has_left():
    path = t.write_recipe("twice-encoded.toml", t.recipe() | {"encoder.again": dict(plugin="identity")})
    for command in (["config", "check"], ["train"]):
        t.refused(2, ['encoder "identity"', 'no "image" to be encoded, only: label, clean'], *command, path)


def test_a_sampler_that_makes_no_sense_with_the_scheduler_is_refused_when_the_recipe_is_read():
    path = t.write_recipe("pair.toml", t.recipe(sampler=dict(plugin="ancestral", steps=4)))
    for command in (["config", "check"], ["train"]):
        t.refused(2, ["pair.toml:", 'sampler "ancestral" does not go with scheduler "rectified_flow"', "choose another sampler"],
                  *command, path)


def test_what_the_data_shows_to_be_wrong_is_refused():
    path = t.write_recipe("data.toml", t.recipe())
    wrong = [({"model.patch": 3}, 2, ["model.patch", "3 does not divide pictures of 8 x 8", "choose a patch"]),
             ({"data.shards": ["nowhere-*.tar"]}, 2, ["data.shards", "no file matches", "nowhere-*.tar", "check the path"]),
             ({"data.classes": 5}, 2, ["data.classes", "is 5", "labels are larger, up to 9", "train-000000.tar:"]),
             ({"run.init_from": "nowhere"}, 7, ["nowhere", "no such folder"]),
             ({"run.device": "tpu"}, 2, ["run.device", 'expected one of: "cpu", "cuda"']),
             ({"run.output": "/proc/here"}, 2, ["/proc/here", "set run.output"])]
    for options, code, parts in wrong:
        t.refused(code, parts, "train", path, *t.sets({"run.output": str(t.work / "never"), "loader.strict": True} | options))


def test_degrees_that_do_not_fit_the_ranks_or_the_model_are_refused_by_name():
    path = t.write_recipe("degrees.toml", t.recipe())
    t.refused(2, ["degrees tensor 2 = 2 do not divide the world size 3", "start 2 ranks"], "train", path, "--local-ranks", 3,
              "--set", "parallel.tensor=2")
    t.refused(2, ["degrees replicate 3 = 3 are not the world size 2", "start 3 ranks"], "train", path, "--local-ranks", 2,
              "--set", "parallel.replicate=3")
    t.refused(2, ["degrees tensor 2 = 2 do not divide the world size 1"], "train", path, "--set", "parallel.tensor=2")
    for options, code, parts in (
            ({"parallel.context": 2}, 2, ["parallel.context = 2, but no plugin serves this axis", "parallel.context_plugin"]),
            ({"parallel.tensor": 2, "model.heads": 1}, 2, ["heads"]),
            ({"parallel.tensor": 2, "parallel.tensor_plugin": "tensr"}, 3, ["no parallel 'tensr'", "did you mean 'tensor'?"]),
            ({"parallel.tensor": 2, "parallel.tensor_plugin": "ddp"}, 2, ["serves another axis"]),
            ({"parallel.replicate_plugin": "fsdp"}, 2, ["parallel.replicate_plugin", "serves another axis"]),
            ({"parallel.shard": 2, "parallel.shard_plugin": "ddp"}, 2, ["parallel.shard_plugin", "serves another axis"])):
        output = {"run.output": str(t.work / "never")}
        for command in (["train", path, "--local-ranks", 2], ["config", "check", path, "--ranks", 2]):
            done = t.run(*command, *t.sets(output | options), code=code)
            for part in parts:
                t.check(part in done.all, f"no \"{part}\" in {done.all}")


def test_config_check_sees_what_a_run_refuses_at_its_start():
    path = t.write_recipe("start.toml", t.recipe())
    for options, code, parts in (
            ({"run.init_from": "nowhere"}, 7, ["nowhere", "no such folder"]),
            ({"parallel.shard": 2}, 2, ["parallel.shard = 2, but no plugin serves this axis", "parallel.shard_plugin"]),
            ({"optimizer.plugin": "schedule_free", "ema.enabled": False}, 2, ["ema.enabled = false leaves it no place"]),
            ({"adapter.rank": 2, "adapter.layers": ["blocks.*"]}, 2, ["run.init_from", "is not given"])):
        for command in (["train", path, "--local-ranks", 2], ["config", "check", path, "--ranks", 2]):
            t.refused(code, parts, *command, *t.sets({"run.output": str(t.work / "never")} | options))
    t.refused(2, ["run.init_from", "is not given"], "train", path, "--dry-run", *t.sets({"adapter.rank": 2, "adapter.layers": ["blocks.*"]}))
    # On a machine without a GPU too: what there is of it only a run sees.
    done = t.run("config", "check", path, "--set", "run.device=cuda")
    t.check("fine on 1 rank" in done.all, done.all)


if __name__ == "__main__":
    t.main(globals())
