"""Samples of several sizes in one run: packs and buckets against every sample by itself, on one rank and on several; what
is left out, and what is refused.

Claim (layouts): Samples of several sizes, pictures and videos, in packs, in buckets or by themselves learn alike, to 1e-12 in
fp64, on 1 to 3 ranks, fsdp, tensor with sequence, ring, pipeline and recompute, of UNets in buckets; a resume has the same bits,
and under `run.numerics = "one"` all of them. Also: `batch_plan_test.cpp`
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import bad_files  # noqa: E402
from unets import UNETS  # noqa: E402

PICTURES = ["8x8", "4x8", "12x8", "8x4", "12x12"]
VIDEOS = ["8x8", "2x4x8", "4x8x4", "1x12x8", "3x4x4"]
LAYOUTS = {
    "one rank": (1, {}),
    "two": (2, {}),
    "three": (3, {}),
    "fsdp": (2, {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}),
    "tensor": (2, {"parallel.tensor": 2, "parallel.sequence": True}),
    "ring": (2, {"parallel.context": 2, "parallel.context_plugin": "ring"}),
    "ulysses": (2, {"parallel.context": 2, "parallel.context_plugin": "ulysses"}),
    "expert": (2, {"parallel.expert": 2}),
    "pipeline": (2, {"parallel.pipeline": 2}),
    "recompute": (1, {"parallel.recompute": "blocks"}),
}
OF_MAPS = {"two": (2, {}), "tensor": (2, {"parallel.tensor": 2}), "pipeline": (2, {"parallel.pipeline": 2})}
PACKS = {"batch.plan": "packs", "batch.tokens": 60}
BUCKETS = {"batch.plan": "buckets"}


def mixed(model):
    """A tiny recipe of the tree, with samples of five sizes."""
    videos = model in ("st_dit", "nemo_dit")
    of = "st_dit" if videos else "dit_text" if model in UNETS else model
    text = (t.source / f"configs/{of}_tiny.toml").read_text()
    if model == "nemo_dit":
        text = re.sub(r"\[model\][^[]*", "[model]\nplugin = \"nemo_dit\"\ndepth = 2\nwidth = 48\nheads = 4\n\n", text)
    if model in UNETS:
        text = re.sub(r"\[model\][^[]*", "\n".join(t.table("[model]", dict(plugin=model) | UNETS[model])) + "\n", text)
    path = t.work / f"{model}.toml"
    path.write_text(text)
    return path, {"data.sizes": VIDEOS if videos else PICTURES, "run.precision": "fp64", "run.steps": 4, "run.batch": 12, "run.micro_batch": 12,
                  "validate.every": 4, "validate.samples": 10, "validate.grid_every": 0, "run.threads": 1, "data.samples": 30}


def without_validation(sets):
    """Whose options would be said to do nothing."""
    return {key: value for key, value in sets.items() if key != "validate.samples"} | {"validate.every": 0}


def near(a, b, what):
    t.check(abs(a - b) <= 1e-12 * max(1, abs(a), abs(b)), f"{what}: {a!r} and {b!r}")


def learned(path, folder, sets, ranks=1):
    t.train(path, folder, *(("--local-ranks", ranks) if ranks > 1 else ()), *t.sets(sets))
    return t.metrics(folder), t.tensors_of(t.latest(folder))


def check_same(one, other, what):
    for mine, theirs in zip(one[0], other[0], strict=True):
        for key in {"loss", "grad_norm"} & set(mine):
            near(float(mine[key]), float(theirs[key]), f"{what}, step {mine['step']}: {key}")
    t.equal(sorted(other[1]), sorted(one[1]), f"tensors, {what}")
    for key, tensor in one[1].items():
        worst = max((abs(a - b) for a, b in zip(t.numbers(tensor), t.numbers(other[1][key]))), default=0)
        t.check(worst <= 1e-12, f"{what}: {key} differs by {worst}")


def check_plans(model, layouts):
    path, sets = mixed(model)
    alone = learned(path, f"{model}-alone", sets | {"run.micro_batch": 1})
    for name in layouts:
        ranks, layout = LAYOUTS[name]
        folder = f"{model}-packs-{name}".replace(" ", "-")
        check_same(alone, learned(path, folder, sets | PACKS | layout, ranks), f"{model}, packs, {name}")
    for plan in ({}, BUCKETS):
        folder = f"{model}-{plan.get('batch.plan', 'contiguous')}"
        check_same(alone, learned(path, folder, sets | plan, 2), f"{folder} on two ranks")


def test_packs_of_pictures_learn_what_every_picture_by_itself_does():
    check_plans("dit_text", [name for name in LAYOUTS if name not in ("ulysses", "expert")])


def test_ddp_sums_the_steps_in_which_each_rank_has_a_pack_and_the_host_the_others():
    path, sets = mixed("dit_text")
    sets = without_validation(sets) | {"run.batch": 4, "run.steps": 6}  # of 1 to 3 packs
    alone = learned(path, "few-alone", sets | {"run.micro_batch": 1})
    check_same(alone, learned(path, "few-packs", sets | PACKS | {"run.micro_batch": 4}, 2), "a few packs on two ranks")


def test_packs_of_pictures_and_videos_learn_what_every_one_by_itself_does():
    check_plans("st_dit", ["one rank", "two", "three", "ring", "pipeline"])
    check_plans("nemo_dit", ["one rank", "two", "three"])


def test_maps_in_buckets_learn_what_every_picture_by_itself_does():
    for model in UNETS if t.slow else ["unet_sd"]:
        path, sets = mixed(model)
        sets |= {"optimizer.plugin": "sgd", "optimizer.momentum": 0.9, "lr_schedule.lr": 0.05}
        alone = learned(path, f"{model}-alone", sets | {"run.micro_batch": 1})
        for name, (ranks, layout) in OF_MAPS.items():
            check_same(alone, learned(path, f"{model}-buckets-{name}", sets | BUCKETS | layout, ranks), f"{model}, buckets, {name}")


def test_a_unet_is_refused_by_name_where_tokens_or_experts_are_meant():
    no_tokens = "this model does not say that"
    for model in UNETS:
        path, sets = mixed(model)
        sets |= {"run.output": str(t.work / "none"), "data.sizes": []}
        for more, part in (({"parallel.tensor": 2, "parallel.sequence": True}, "parallel.sequence"),
                           ({"parallel.context": 2, "parallel.context_plugin": "ring"}, "parallel.context"),
                           ({"parallel.context": 2, "parallel.context_plugin": "ulysses"}, "parallel.context"),
                           ({"parallel.expert": 2}, "parallel.expert")):
            parts = [f"model '{model}'", part, "has no experts" if "expert" in part else no_tokens]
            t.refused(2, parts, "train", path, "--local-ranks", 2, *t.sets(sets | more))
        t.refused(2, [f"model '{model}'", "tread", no_tokens], "train", path,
                  *t.sets(sets | {"tread.ratio": 0.5, "tread.start": 0, "tread.end": 2}))
        t.refused(2, [f"model '{model}'", "batch.plan", "maps, which have none", "buckets"], "train", path,
                  *t.sets(sets | PACKS | {"data.sizes": PICTURES} | {"batch.tokens": 150}))


def check_one_number(model, layouts, more=None):
    path, sets = mixed(model)
    sets = sets | {"run.precision": "fp32", "run.numerics": "one", "run.token_leaf": 8, "run.steps": 2, "validate.every": 2} | (more or {})
    t.train(path, f"{model}-one", *t.sets(sets | {"run.micro_batch": 4}))
    for name in layouts:
        ranks, layout = LAYOUTS[name]
        plan = BUCKETS if name == "fsdp" else PACKS
        folder = f"{model}-one-{name}".replace(" ", "-")
        said = t.train(path, folder, *(("--local-ranks", ranks) if ranks > 1 else ()), *t.sets(sets | plan | layout)).all
        t.check(f"micro-batches of 1 sample where {plan['batch.plan']} were asked for" in said, said)
        t.same_metrics(f"{model}-one", folder)
        t.same_state(f"{model}-one", folder)


def test_one_number_of_pictures_and_videos_whatever_the_plan():
    check_one_number("st_dit", ["two", "three", "ulysses"] + (["one rank", "fsdp", "tensor", "pipeline"] if t.slow else []))
    check_one_number("nemo_dit", ["one rank", "three"] + (["two", "fsdp", "tensor", "ulysses", "pipeline"] if t.slow else []))


def test_one_number_of_experts_whose_rows_are_of_pictures_of_several_sizes():
    # Leaves of 8 tokens begin elsewhere in 36 of them than in three times 12.
    check_one_number("dit_moe", ["expert"], {"batch.weigh_by": "tokens", "data.sizes": ["12x12", "4x12", "8x4", "12x20"]})


def test_a_time_for_each_frame_learns_alike_everywhere():
    path, sets = mixed("st_dit")
    # Times that are all one: of frames as of samples.
    one_time = sets | {"scheduler.times": "logit_normal", "scheduler.std": 1e-30}
    frames = {"objective.time_per": "frame"}
    check_same(learned(path, "one-time-samples", one_time), learned(path, "one-time-frames", one_time | frames), "times that are one")
    alone = learned(path, "frames-alone", sets | frames | {"run.micro_batch": 1})
    for name in ("one rank", "tensor", "ring", "pipeline"):
        ranks, layout = LAYOUTS[name]
        check_same(alone, learned(path, f"frames-{name}".replace(" ", "-"), sets | frames | PACKS | layout, ranks), f"frames, packs, {name}")
    samples = learned(path, "times-of-samples", sets | {"run.micro_batch": 1})
    norms = [float(run[0][0]["grad_norm"]) for run in (alone, samples)]
    t.check(abs(norms[0] - norms[1]) > 1e-6, f"times of frames that change nothing: {norms}")
    path, sets = mixed("dit_text")
    t.refused(2, ["objective.time_per", "one time for each sample"], "train", path, *t.sets(sets | frames | {"run.output": str(t.work / "none")}))


def test_losses_weigh_by_tokens_where_the_recipe_says_so():
    path, sets = mixed("dit_text")
    by_tokens = sets | {"batch.weigh_by": "tokens"}
    alone = learned(path, "tokens-alone", by_tokens | {"run.micro_batch": 1})
    check_same(alone, learned(path, "tokens-packs", by_tokens | PACKS, 2), "by tokens, packs on two ranks")
    others = learned(path, "samples-alone", sets | {"run.micro_batch": 1})
    t.check(abs(float(alone[0][0]["loss"]) - float(others[0][0]["loss"])) > 1e-6, "weights that change nothing")


def test_a_run_of_packs_goes_on_bit_for_bit():
    path, sets = mixed("dit_text")
    sets = sets | PACKS | {"run.precision": "fp32", "run.steps": 6}
    learned(path, "in-one-go", sets)
    learned(path, "in-two", sets | {"run.steps": 3})
    learned(path, "in-two", sets)
    t.same_metrics("in-one-go", "in-two")
    t.same_state("in-one-go", "in-two")


def test_sizes_that_are_not_learned_from_are_counted_and_named():
    path, sets = mixed("dit_text")
    said = t.train(path, "fewer", *t.sets(sets | BUCKETS | {"batch.sizes": ["8x8", "12x8", "4x8"]})).all
    t.check("12x8" in said and "left out" in said and "8x4" in said, said)
    t.check(all(n < 12 for n in t.learned_of("fewer")) and sum(t.learned_of("fewer")) > 0, f"the rate counts {t.learned_of('fewer')} of 12 samples a step")
    t.train(path, "all-in-packs", *t.sets(sets | PACKS))
    t.equal(t.learned_of("all-in-packs"), [12] * 4, "samples in packs that the rate counts")


def test_steps_of_other_sizes_alone_are_skipped():
    """As they are stored, one in five samples is of 8x8: of the first twelve steps of two samples these have none."""
    without = [1, 3, 4, 6, 8, 9, 10, 12]
    path, sets = mixed("dit_text")
    sets = without_validation(sets) | {"batch.sizes": ["8x8"], "run.precision": "fp32", "run.batch": 2, "run.micro_batch": 1, "run.steps": 12,
                                       "run.max_skipped": 3, "loader.shuffle": False, "record.receipts": True}
    done = t.train(path, "some", *t.sets(sets))
    t.equal([line["step"] for line in t.metrics("some") if line["skipped"]], without, "steps that were skipped")
    t.equal([step for step, n in enumerate(t.learned_of("some"), 1) if n == 0], without, "steps whose rate is 0")
    t.check(set(t.learned_of("some")) == {0, 1}, f"samples of two that the rate counts: {t.learned_of('some')}")
    for line in t.metrics("some"):
        t.equal(line["loss"] is None, line["step"] in without, f"no loss in {line}")
    t.equal(done.all.count("none of its samples can be learned from: skipped"), len(without), "lines that say so")
    t.check("[record.kernels]" in (t.work / "some/run.toml").read_text(), "run.toml has no kernels")
    t.train(path, "some-ranks", "--local-ranks", 2, *t.sets(sets))
    t.same_metrics("some", "some-ranks")
    t.train(path, "some-on", *t.sets(sets | {"run.steps": 9}))
    t.train(path, "some-on", *t.sets(sets))
    t.same_metrics("some", "some-on")
    t.same_state("some", "some-on")
    one = sets | {"run.numerics": "one"}
    t.train(path, "some-one", *t.sets(one))
    for name, more in (("fsdp", {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}), ("pipeline", {"parallel.pipeline": 2}),
                       ("audit", {"parallel.replicate": 2, "run.audit": 1.0})):
        t.train(path, f"some-{name}", "--local-ranks", 2, *t.sets(one | more))
        t.same_metrics("some-one", f"some-{name}")
        t.same_state("some-one", f"some-{name}")
    for ranks in ([], ["--local-ranks", 2]):
        t.refused(4, ["step 10", "none of its samples can be learned from", "batch.sizes"], "train", path, *ranks,
                  *t.sets(sets | {"run.max_skipped": 2, "run.output": str(t.work / f"three{len(ranks)}")}))


def test_a_sheet_and_samples_of_a_model_of_many_sizes():
    path, sets = mixed("dit_text")
    t.train(path, "sheets", *t.sets(sets | BUCKETS | {"validate.grid_every": 4, "sampler.plugin": "euler", "sampler.steps": 2}))
    t.check(any((t.work / "sheets/samples").glob("*.png")), "no sheet")
    t.write_tensors(t.work / "text.safetensors", {"text": ("F32", [1, 2, 12], [0.1] * 24)})
    text = ("--condition", t.work / "text.safetensors", "--seeds", "0", "--out")
    t.refused(2, ["--size", "several sizes"], "sample", t.work / "sheets", *text, t.work / "none")
    t.run("sample", t.work / "sheets", *text, t.work / "wide", "--size", "4x12", "--save-latents", t.work / "wide.safetensors")
    t.equal(t.read_tensors(t.work / "wide.safetensors")["latents"][1], [1, 3, 4, 12], "shape of a sample of another size")


def test_what_cannot_be_is_refused():
    path, sets = mixed("dit_text")
    for more, parts in (({"batch.plan": "packs", "batch.tokens": 8}, ["batch.tokens", "has", "tokens"]),
                        ({"batch.plan": "packs"}, ["batch.tokens"]),
                        ({"batch.tokens": 100}, ["batch.tokens", "contiguous"]),
                        ({"batch.sizes": ["99x99"]}, ["batch.sizes", "held-out samples, of which 10 are read"]),
                        ({"batch.sizes": ["99x99"], "validate.every": 0}, ["batch.sizes", "none of the sizes", "of 8x8"]),
                        ({"batch.sizes": ["8x8"], "validate.samples": 1}, ["batch.sizes", "held-out samples, of which 1 are read"]),
                        ({"batch.sizes": ["8x8"], "data.sizes": [], "validate.every": 0}, ["batch.sizes", "have one"]),
                        ({"batch.sizes": ["8 by 8"]}, ["batch.sizes", "no size"]),
                        ({"data.sizes": ["8"]}, ["data.sizes", "no size"]),
                        ({"data.sizes": ["8x7"]}, ["patch"]),
                        # Before it comes to the first such sample, which may be late.
                        ({"data.sizes": [*["8x8"] * 9, "8x7"], "run.batch": 1, "run.steps": 1, "validate.every": 0}, ["8 x 7", "patch"])):
        given = without_validation(sets) if "validate.every" in more else sets
        for command in (["train"], ["config", "check"]):
            t.refused(2, parts, *command, path, *t.sets(given | {"run.output": str(t.work / "none")} | more))


def test_pictures_that_no_patch_divides_are_scaled_by_the_first_recipe():
    folder = t.work / "of-13"
    folder.mkdir()
    bad_files.shard("of-13/train-000000.tar", [(f"{i:04}", bad_files.png(i, 13), i % 10) for i in range(12)])
    t.run("init", folder, "--out", folder / "first.toml")
    text = (folder / "first.toml").read_text()
    t.check("size = [12, 12]" in text, f"they are not scaled: {text}")


if __name__ == "__main__":
    t.main(globals())
