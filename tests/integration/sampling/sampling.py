"""A seed is a picture: the same one on any number of ranks and in any order of seeds.

Claim (sampling): Under one number a sampling request has the same bytes in any batch, order and number of ranks: 24 of 24, with
`--slow` 1000 of 1000.

Claim (sampling): A seed gives the same picture on any number of ranks and in any order, bit for bit at one batch.
"""

import array
import json
import os
import pathlib
import random
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

HOSTS = {"clip": "none", "percentile": "0.995"}  # of [sampler], besides steps, as lines_of reads it
_trained = []


def trained():
    if not _trained:
        path = t.write_recipe("sampled.toml", t.recipe(run=dict(name="sampled", steps=12), lr_schedule=dict(lr=3e-3, warmup=0)))
        t.train(path, "sampled")
        _trained.append(t.work / "sampled")
    return _trained[0]


def sample(folder, seeds, *arguments, classes="0-9", batch=8, code=0):
    """{seed: class} of seeds as "0-7": the pictures are in work/folder."""
    return t.run("sample", trained(), "--out", t.work / folder, "--seeds", seeds, "--classes", classes, "--batch", batch,
                 "--steps", 4, "--guidance", 2, *arguments, code=code)


def picture(folder, seed):
    width, height, channels, pixels, _ = t.read_png(t.work / folder / f"{seed:06}.png")
    t.equal((width, height, channels, len(pixels)), (8, 8, 1, 64), f"size of seed {seed}'s picture")
    return pixels


def latents(folder):
    return t.read_tensors(t.work / f"{folder}.safetensors")["latents"]


def save(folder):
    return "--save-latents", t.work / f"{folder}.safetensors"


def test_the_pictures_are_the_same_on_one_rank_and_on_several():
    sample("one", "0-20", *save("one"))
    for ranks in (2, 3) if t.slow else (2,):
        sample(f"ranks-{ranks}", "0-20", "--local-ranks", ranks, *save(f"ranks-{ranks}"))
        t.equal(latents("one") == latents(f"ranks-{ranks}"), True, f"all bits of the samples of {ranks} ranks")
        for seed in range(21):
            t.equal(picture(f"ranks-{ranks}", seed), picture("one", seed), f"seed {seed} on {ranks} ranks")
    t.equal(len({picture("one", seed) for seed in range(21)}), 21, "different pictures of 21 seeds")
    t.check((t.work / "one/grid.png").exists(), "no grid.png")


def test_the_pictures_are_the_same_where_the_weights_lie_elsewhere():
    sample("whole", "0-7", *save("whole"))
    for name, ranks, sets in (("zero1", 2, {"parallel.shard": 2, "parallel.shard_plugin": "zero1"}),
                              ("fsdp", 2, {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}),
                              ("offload", 1, {"parallel.offload": "optimizer"})):
        sample(name, "0-7", "--local-ranks", ranks, *t.sets(sets), *save(name))
        t.equal(latents(name) == latents("whole"), True, f"all bits of the samples under {name}")


def test_a_picture_alone_has_the_bits_that_it_has_among_others():
    sample("by-one", "0-4", *save("by-one"), classes="3", batch=1)
    sample("alone-3", "3", *save("alone-3"), classes="3", batch=1)
    sample("alone-16", "3", *save("alone-16"), classes="3", batch=16)  # one picture is one computation
    size = 64 * 4
    t.equal(latents("alone-3")[2] == latents("by-one")[2][3 * size:4 * size], True, "the bits of seed 3 at batch 1")
    t.equal(latents("alone-3") == latents("alone-16"), True, "the bits of one picture, whatever batch is allowed")


def test_the_pictures_are_the_same_in_any_order_of_seeds():
    # The i-th seed takes class i modulo the count: one class, so that a seed keeps its own.
    sample("forward", "0-10", classes="3", batch=1)
    sample("backward", "10,9,8,7,6,5,4,3,2,1,0", classes="3", batch=1)
    sample("alone", "7", classes="3")
    for seed in range(11):
        t.equal(picture("backward", seed), picture("forward", seed), f"seed {seed}, backwards")
    t.equal(picture("alone", 7), picture("forward", 7), "seed 7 alone")
    sample("other-class", "7", classes="4")
    t.check(picture("other-class", 7) != picture("forward", 7), "seed 7 is the same picture in two classes")


def test_another_batch_changes_at_most_one_level_in_one_pixel_of_a_thousand():
    sample("batch-8", "0-49")
    for batch in (1, 3, 50):
        sample(f"batch-{batch}", "0-49", batch=batch)
        at_most_a_level(50, "batch-8", f"batch-{batch}")


def at_most_a_level(count, one, other):
    """In one pixel of a thousand; how many it is."""
    apart = [abs(a - b) for seed in range(count) for a, b in zip(picture(one, seed), picture(other, seed))]
    t.check(max(apart) <= 1, f"{other}: {max(apart)} levels from {one}")
    different = sum(level > 0 for level in apart)
    t.check(different <= len(apart) / 1000, f"{other}: {different} of {len(apart)} pixels are others than in {one}")
    return f"{different} of {len(apart)} pixels"


_one_number = []


def one_number():
    """A run with run.numerics = "one": small, or the digits' own model."""
    if not _one_number:
        model = dict(depth=6, width=128) if t.slow else {}
        path = t.write_recipe("one.toml", t.recipe(run=dict(name="one", steps=12, numerics="one"), model=model,
                                                   lr_schedule=dict(lr=3e-3, warmup=0), guidance=dict(plugin="cfg", scale=2.0)))
        t.train(path, "one")
        _one_number.append(t.work / "one")
    return _one_number[0]


def test_one_number_gives_each_request_its_bytes_in_any_batch_order_and_company():
    (count, together), draws = (1000, 40) if t.slow else (24, 6), random.Random(5)
    requests = [(draws.randrange(10**9), draws.randrange(10)) for _ in range(count)]

    def sampled(name, asked, batch, ranks):
        seeds, classes = (",".join(str(request[i]) for request in asked) for i in (0, 1))
        t.run("sample", one_number(), "--out", t.work / name, "--seeds", seeds, "--classes", classes, "--batch", batch,
              "--steps", 2, *(["--local-ranks", ranks] if ranks > 1 else []), *save(name))
        dtype, shape, data = latents(name)
        t.equal((dtype, shape), ("F32", [len(asked), 1, 8, 8]), "latents")
        return [bytes(data[i * 256:(i + 1) * 256]) for i in range(len(asked))]

    expected = dict(zip(requests, sampled("one-by-one", requests, 1, 1)))
    t.equal(len(set(expected.values())), len(set(requests)), "different samples")
    order, same, number = draws.sample(requests, count), 0, 0
    while order:
        asked, order = order[:together], order[together:]
        number += 1
        batch, ranks = draws.randint(1, 16), draws.choice((1, 2))
        found = sampled(f"company-{number}", asked, batch, ranks)
        same += sum(expected[request] == data for request, data in zip(asked, found))
    t.equal(same, count, f"requests with the same bytes, of {count}")
    print(f"{same} of {count} requests have the same bytes", flush=True)


SAMPLERS = [("heun_edm", dict(s_churn=2.0)), ("dpmpp_2m_sde", {}), ("unipc", dict(order=3)), ("rk4", {}), ("sde_euler", {}),
            ("euler", dict(clip="dynamic", percentile=0.9))]
MORE_SAMPLERS = [("euler", {}), ("heun", {}), ("ddim", dict(eta=1.0)), ("dpmpp_2m", {}), ("unipc", dict(variant="bh1")),
                 ("dpmpp_2m_sde", dict(solver="heun", s_noise=0.9)), ("euler", dict(clip="static")),
                 ("sde_euler", dict(diffusion="linear", last_step_size=0.1))]


def bits_at(run, name, *arguments):
    """The latents of seeds at --batch 1, 7 and 16, which must be the same; and what the command said of one."""
    batches, seeds = (1, 7, 16), "0-16" if t.slow else "0-15"
    said = [t.run("sample", run, "--seeds", seeds, "--batch", batch, "--json", *arguments, *save(f"{name}-{batch}"))
            for batch in batches]
    for batch in batches[1:]:
        t.check(latents(f"{name}-{batch}") == latents(f"{name}-1"), f"{name}: --batch {batch} gives other bits than --batch 1")
    return latents(f"{name}-1"), json.loads(said[0].stdout)


def test_one_number_gives_every_sampler_its_bits_at_any_batch():
    found = {}
    for name, options in SAMPLERS + (MORE_SAMPLERS if t.slow else []):
        words = "-".join(map(str, (name, *options.values())))
        sets = t.sets({f"sampler.{key}": value for key, value in options.items()})
        found[words] = bits_at(one_number(), words, "--sampler", name, "--steps", 6 if t.slow else 3, *sets)[0]
    found["dopri5"], said = bits_at(one_number(), "dopri5", "--sampler", "dopri5", "--steps", 200)
    taken = said["decisions"]
    t.equal(taken["evaluations"], 2 * said["count"] + 6 * (taken["steps"] + taken["steps rejected"]), "evaluations of dopri5")
    alike = [(a, b) for a in found for b in found if a < b and found[a] == found[b]]
    t.equal(alike, [], "samplers that make the same samples")
    if not t.slow:
        return
    path = t.write_recipe("chain.toml", t.recipe(run=dict(name="chain", steps=4, numerics="one"),
                                                 scheduler=dict(plugin="iddpm", variance="fixed_small", prediction="v")))
    t.train(path, "chain")
    bits_at(t.work / "chain", "ancestral", "--sampler", "ancestral", "--steps", 4)


def test_every_sampler_keeps_to_a_level_at_any_batch_with_a_cache_too():
    if not t.slow:
        return
    many = 100
    for name, options in [*SAMPLERS, *MORE_SAMPLERS, ("dopri5", {})]:
        for cache in ("", "first_block") if name != "dopri5" else ("",):
            words, said = "-".join(map(str, ("fast", name, *options.values(), cache))), []
            sets = {f"sampler.{key}": value for key, value in options.items()} | ({"cache.threshold": 0.1} if cache else {})
            for batch in (1, 7, 16):
                done = t.run("sample", trained(), "--out", t.work / f"{words}-{batch}", "--seeds", f"0-{many - 1}", "--classes", "0-9",
                             "--batch", batch, "--guidance", 2, "--sampler", name, "--steps", 200 if name == "dopri5" else 10, "--json",
                             *(["--cache", cache] if cache else []), *t.sets(sets))
                said.append(json.loads(done.stdout).get("decisions", {}))
            apart = [at_most_a_level(many, f"{words}-1", f"{words}-{batch}") for batch in (7, 16)]
            flipped = [sum(abs(one.get(key, 0) - said[0].get(key, 0)) for key in one | said[0]) for one in said[1:]]
            t.check(not cache or said[0]["blocks skipped"] > 0, f"{cache} skips nothing: {said[0]}")
            print(f"{words}: at batch 7 and 16 {' and '.join(apart)} are others, and {flipped} counts of decisions", flush=True)


def test_an_adaptive_sampler_says_its_steps_and_takes_the_same_on_several_ranks():
    few = ["--sampler", "dopri5", "--seeds", "0-4", "--batch", 3]
    ask = [*few, "--steps", 200]
    one = t.run("sample", trained(), *ask, *save("adaptive"))
    t.check("steps: " in one.stdout and "steps rejected: " in one.stdout, one.stdout)
    for name, sets in (("ranks", {}), ("fsdp", {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"})):
        done = t.run("sample", trained(), *ask, "--local-ranks", 2, *t.sets(sets), *save(f"adaptive-{name}"))
        t.check(latents(f"adaptive-{name}") == latents("adaptive"), f"other samples on two ranks ({name})")
        t.equal(done.stdout.replace(f"adaptive-{name}", "adaptive"), one.stdout, f"what is said on two ranks ({name})")
    t.refused(2, ["sampler.steps", "not done after 2 steps"], "sample", trained(), *few, "--steps", 2, *save("never"))


def test_one_number_does_not_depend_on_how_far_a_text_is_padded():
    text = [((i * 2654435761) % 1000003) / 500001.5 - 1 for i in range(3 * 12)]
    data = t.synthetic(classes=4, text_tokens=6, text_width=12)
    path = t.write_recipe("texts.toml", t.recipe(run=dict(name="texts", steps=6, batch=8, numerics="one"), data=data,
                                                 model=dict(plugin="dit_text", depth=2, width=32, heads=4, patch=2),
                                                 guidance=dict(plugin="cfg", scale=2.0)))
    t.train(path, "texts")
    for tokens in (3, 6):
        padded = array.array("f", text + [0.0] * ((tokens - 3) * 12))
        mask = bytes([1] * 3 + [0] * (tokens - 3))
        t.write_tensors(t.work / f"text-{tokens}", {"text": ("F32", [1, tokens, 12], padded),
                                                    "text_mask": ("BOOL", [1, tokens], mask)})
        t.run("sample", t.work / "texts", "--seeds", "0-4", "--batch", tokens, "--steps", 2, "--condition",
              t.work / f"text-{tokens}", *save(f"texts-{tokens}"))
    t.check(latents("texts-3") == latents("texts-6"), "the padding of a text shows in its sample")


def test_one_number_refuses_a_guidance_that_sums_otherwise():
    t.refused(2, ["run.numerics", "aten::std"], "sample", one_number(), "--out", t.work / "watched", "--steps", 2,
              *t.sets({"guidance.rescale": 0.5}))


def test_given_noise_is_what_the_pictures_start_from():
    noise = array.array("f", (((i * 2654435761) % 1000003) / 500001.5 - 1 for i in range(5 * 64)))
    file = t.work / "noise.safetensors"
    t.write_tensors(file, {"noise": ("F32", [5, 1, 8, 8], noise)})
    sample("given", "0-4", "--noise", file, *save("given"), classes="2", batch=1)
    sample("drawn", "0-4", *save("drawn"), classes="2", batch=1)
    t.check(latents("given") != latents("drawn"), "--noise changed nothing")
    sample("again", "100-104", "--noise", file, *save("again"), classes="2", batch=1)
    t.check(latents("again") == latents("given"), "with given noise the seeds still draw something")
    t.equal(latents("given")[:2], ("F32", [5, 1, 8, 8]), "the saved latents")

    # The third noise alone gives the third picture.
    t.write_tensors(t.work / "third_noise.safetensors", {"noise": ("F32", [1, 1, 8, 8], noise[128:192])})
    sample("third", "2", "--noise", t.work / "third_noise.safetensors", *save("third"), classes="2", batch=1)
    t.equal(latents("third")[2], latents("given")[2][2 * 256:3 * 256], "the third picture by itself")

    # Latents are what the pictures are made of: v / 127.5 - 1, rounded.
    for seed in range(5):
        values = t.numbers(latents("given"))[seed * 64:(seed + 1) * 64]
        levels = bytes(min(255, max(0, round((value + 1) * 127.5))) for value in values)
        apart = max(abs(a - b) for a, b in zip(levels, picture("given", seed)))
        t.check(apart <= 1, f"seed {seed}: the picture is {apart} levels from its latents")

    done = sample("wrong", "0-5", "--noise", file, code=4)
    for part in ("noise is [5, 1, 8, 8]", "expected [6, 1, 8, 8]"):
        t.check(part in done.all, f"no \"{part}\" in {done.all}")
    t.write_tensors(t.work / "nameless.safetensors", {"noize": ("F32", [1, 1, 8, 8], noise[:64])})
    done = sample("wrong", "0", "--noise", t.work / "nameless.safetensors", code=4)
    t.check('no tensor "noise"' in done.all, done.all)
    noise[7] = float("nan")
    t.write_tensors(t.work / "nan.safetensors", {"noise": ("F32", [1, 1, 8, 8], noise[:64])})
    done = sample("wrong", "0", "--noise", t.work / "nan.safetensors", code=4)
    t.check("nan.safetensors: holds numbers that are not finite" in done.all, done.all)


def test_samples_that_are_not_finite_are_none():
    """Noise that no weights bring down again: above what fp16 holds."""
    noise = array.array("f", [3e38] * 64)
    t.write_tensors(t.work / "huge.safetensors", {"noise": ("F32", [1, 1, 8, 8], noise)})
    done = sample("not-finite", "7", "--noise", t.work / "huge.safetensors", code=5)
    t.check("the sample of seed 7: holds numbers that are not finite" in done.all, done.all)
    t.check(not list((t.work / "not-finite").glob("*.png")), "a picture of it")


def test_every_picture_says_how_it_was_made():
    sample("said", "5,9,2", classes="1,0", batch=2)
    lines = [json.loads(line) for line in (t.work / "said/samples.jsonl").read_text().splitlines()]
    t.equal([(line["file"], line["seed"], line["class"]) for line in lines],
            [("000005.png", 5, 1), ("000009.png", 9, 0), ("000002.png", 2, 1)], "samples.jsonl")
    for line in lines:
        t.equal((line["sampler"], line["batch"], line["weights"], line["run"], line["step"], line["size"]),
                ({"plugin": "euler", "clip": "none", "percentile": 0.995, "steps": 4}, 2, "ema", "sampled", 12, [8, 8]), "settings")
        t.equal({key: line["guidance"][key] for key in ("plugin", "scale", "channels", "to")},
                {"plugin": "cfg", "scale": 2.0, "channels": "all", "to": "inf"}, "guidance")
        texts = t.read_png(t.work / "said" / line["file"])[4]
        settings = json.loads(texts["ditto"])
        t.equal(settings, {key: value for key, value in line.items() if key not in ("file", "crc32")}, f"the text in {line['file']}")
    t.equal(sorted(os.listdir(t.work / "said")), ["000002.png", "000005.png", "000009.png", "grid.png", "samples.jsonl"], "files")


def test_what_was_set_for_the_pictures_alone_is_said_with_them():
    done = sample("set", "1", "--set", "scheduler.shift=3.0", classes="1")
    t.check("the weights were learned with scheduler.shift = 1.0 (here 3.0)" in done.stderr, done.all)
    line, = t.lines_of(t.work / "set/samples.jsonl")
    t.equal(line["set"], ["scheduler.shift=3.0"], "what samples.jsonl says was set")
    for set in ("run.steps=3", "data.classes=3", "optimizer.beta1=0.5", "ema.enabled=false", "objective.plugin=edm"):
        done = sample("unset", "1", "--set", set, classes="1", code=2)
        t.check(f"--set {set}: is of the training, and this model has learned" in done.all, done.all)
    for command in (["checkpoint", "export", trained(), "--format", "facebook-dit", "--out", t.work / "unset.safetensors"],
                    ["forward", trained(), "--in", t.work / "nothing", "--out", t.work / "nothing"]):
        t.refused(2, ["--set run.steps=3", "is of the training"], *command, "--set", "run.steps=3")
    done = sample("unset", "1", "--set", f"run.init_from={trained()}", classes="1", code=2)
    t.check("run.init_from: is given, and" in done.all and "holds a whole model" in done.all, done.all)


def test_a_seed_that_is_asked_for_again_has_a_file_of_its_own():
    done = sample("again-and-again", "3,5,3,3", *save("again-and-again"), classes="1,2,4,1", batch=4)
    t.check("4 pictures" in done.stdout, done.stdout)
    names = ["000003.png", "000005.png", "000003-1.png", "000003-2.png"]
    lines = t.lines_of(t.work / "again-and-again/samples.jsonl")
    t.equal([(line["file"], line["seed"], line["class"]) for line in lines], list(zip(names, (3, 5, 3, 3), (1, 2, 4, 1))),
            "samples.jsonl")
    t.equal(sorted(os.listdir(t.work / "again-and-again")), sorted([*names, "grid.png", "samples.jsonl"]), "files")
    pictures = [t.read_png(t.work / "again-and-again" / name)[3] for name in names]
    t.check(pictures[0] == pictures[3] and pictures[0] != pictures[2], "seed 3 in classes 1, 4 and 1 again")


def test_a_model_of_latents_without_decoder_gives_its_latents_or_is_refused_before_it_computes():
    tree = dict(data=t.synthetic(channels=4), validate=dict(grid_every=1))
    path = t.write_recipe("latents.toml", t.recipe(run=dict(name="latents", steps=1), **tree))
    t.refused(2, ["makes latents of 4 channels", "validate.grid_every = 0", "--save-latents"], "train", path)
    t.train(path, "latents", validate__grid_every=0)
    ask = ["sample", t.work / "latents", "--out", t.work / "none", "--seeds", "0-3", "--steps"]
    t.refused(2, ["makes latents of 4 channels", "no decoder", "--save-latents"], *ask, 1_000_000, timeout=60)  # not in hours
    done = t.run(*ask, 2, *save("four"))
    t.check("no pictures" in done.stdout and "latents of 4 samples" in done.stdout, done.stdout)
    t.equal(latents("four")[:2], ("F32", [4, 4, 8, 8]), "the latents")
    t.check(not (t.work / "none").exists(), "a folder for no pictures")
    t.run(*ask, 2, "--local-ranks", 2, *save("four-2"))
    t.check(latents("four-2") == latents("four"), "two ranks give other latents")


def test_latents_are_there_when_the_pictures_cannot_be_written():
    out = t.work / "blocked"
    (out / "grid.png").mkdir(parents=True)  # where the sheet should go
    t.refused(2, ["grid.png", "no list of samples names"], "sample", trained(), "--out", out, "--seeds", "0-3", *save("blocked"))
    (out / "grid.png").rmdir()
    (out / "samples.jsonl").touch()  # as a command that was killed before its first picture leaves it
    (out / "grid.png").mkdir()
    done = sample("blocked", "0-3", *save("blocked"), code=4)
    t.check("grid.png" in done.stderr, done.stderr)
    t.equal(latents("blocked")[:2], ("F32", [4, 1, 8, 8]), "the latents")
    t.equal(sorted(os.listdir(out)), [f"00000{i}.png" for i in range(4)] + ["grid.png", "samples.jsonl"], "files")
    for where, part in ((t.work / "nowhere/x.safetensors", "nowhere"), (out, "is a folder")):
        t.refused(2, ["--save-latents", part], "sample", trained(), "--out", t.work / "never", "--save-latents", where,
                  "--steps", 1_000_000, timeout=60)


def test_the_largest_seed_is_a_seed_like_others():
    sample("largest", "9223372036854775806-9223372036854775807,9223372036854775807")
    t.equal(sorted(os.listdir(t.work / "largest")), ["9223372036854775806.png", "9223372036854775807-1.png",
                                                     "9223372036854775807.png", "grid.png", "samples.jsonl"], "files")


def test_ctrl_c_is_answered_at_once_and_ends_the_command_as_usual():
    for ignored in (False, True):
        out = t.work / f"interrupted-{ignored}"
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None
        process = subprocess.Popen([t.ditto, "sample", trained(), "--out", out, "--steps",
                                    "100" if ignored else "100000", "--seeds", "0-7"],
                                   stderr=subprocess.PIPE, text=True, env=t.environment)
        if ignored:
            signal.signal(signal.SIGINT, before)
        t.wait_for(out.is_dir, "the folder to be made")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=t.patient(120))[1]
        t.equal(process.returncode, 0 if ignored else -signal.SIGINT, f"what ended it: {said}")
        t.equal("SIGINT: ends at once; the same command goes on with what is not written yet" in said, not ignored, said)
        t.equal((out / "grid.png").exists(), ignored, "grid.png is there")


def test_guidance_samplers_steps_and_weights_matter():
    sample("plain", "0-3", *save("plain"))
    for name, arguments in (("guidance", ["--guidance", 1]), ("steps", ["--steps", 3]), ("sampler", ["--sampler", "heun"]),
                            ("weights", ["--weights", "weights"])):
        t.run("sample", trained(), "--out", t.work / name, "--seeds", "0-3", "--batch", 8,
              *(["--steps", 4] if name != "steps" else []), *(["--guidance", 2] if name != "guidance" else []), *arguments, *save(name))
        t.check(latents(name) != latents("plain"), f"{' '.join(map(str, arguments))} changed nothing")


def test_options_of_one_plugin_are_none_of_another_that_takes_its_place():
    path = t.write_recipe("etas.toml", t.recipe(run=dict(name="etas", steps=6), lr_schedule=dict(lr=3e-3, warmup=0),
                                                sampler=dict(plugin="ddim", steps=4, eta=0.5),
                                                guidance=dict(plugin="cfg", scale=3.0, rescale=0.5)))
    t.train(path, "etas")
    def ask(name, *arguments):
        t.run("sample", t.work / "etas", "--out", t.work / name, "--seeds", "0-1", *save(name), *arguments)
        return t.lines_of(t.work / name / "samples.jsonl")[0]
    t.equal(ask("as-trained")["sampler"], {"plugin": "ddim", "eta": "0.5", **HOSTS, "steps": 4}, "the recipe's sampler")
    t.equal(ask("eulers", "--sampler", "euler")["sampler"], {"plugin": "euler", **HOSTS, "steps": 4}, "another")
    t.equal(ask("ddims", "--sampler", "ddim")["sampler"]["eta"], "0.5", "the same")
    t.equal(ask("unguided", "--set", "guidance.plugin=none")["guidance"], {"plugin": "none"}, "no guidance")
    t.equal(ask("scaled", "--guidance", "2")["guidance"]["rescale"], "0.5", "another scale of the same guidance")
    t.check(len({str(latents(name)) for name in ("as-trained", "eulers", "unguided", "scaled")}) == 4, "two of them are alike")
    t.check(latents("as-trained") == latents("ddims"), "the same sampler makes other samples")


def test_wrong_classes_seeds_and_numbers_end_with_code_2():
    for arguments, parts in ((["--classes", "0-10"], ["--classes 0-10", "10 is not a class", "its classes are 0 to 9"]),
                             (["--classes", "3-1"], ["--classes 3-1", "write it as 0-9 or 1,4,7"]),
                             (["--seeds", "0-1", "--size", "8"], ["--size 8", "has 1 sizes", "HEIGHTxWIDTH"]),
                             (["--seeds", "0-1", "--size", "8x0"], ["--size 8x0", "\"0\" is not a size"]),
                             (["--seeds", "0-1", "--size", "2x8x8"], ["--size 2x8x8", "makes pictures"]),
                             (["--seeds", "0-1", "--size", "9x8"], ["--size 9x8", "patches of 2"]),
                             (["--prompts", "a cat"], ["--prompts a cat", "the model takes no text"]),
                             (["--name", "{sed}"], ["--name", "\"{sed}\" means nothing"]),
                             (["--name", "{class}", "--seeds", "0-10"], ["--name", "samples 0 and 10 both 000000.png"]),
                             (["--name", "../{seed}"], ["--name", "below --out"]),
                             (["--fps", 5], ["--fps 5", "makes pictures"]),
                             (["--classes", "one"], ["--classes one", "not a list of whole numbers"]),
                             (["--seeds", "a-b"], ["--seeds a-b", "write it as 0-9 or 1,4,7"]),
                             (["--seeds", "1,,2"], ["--seeds 1,,2", "not a list of whole numbers"]),
                             (["--seeds", "0-99999999999"], ["--seeds", "more than 1000000 numbers"]),
                             (["--seeds", "0-9223372036854775807"], ["--seeds", "more than 1000000 numbers"]),
                             (["--seeds", "0-999999,7"], ["--seeds", "more than 1000000 numbers"]),
                             (["--seeds", "9223372036854775808"], ["--seeds", "out of range", "from 0 to 9223372036854775807"]),
                             (["--sampler", "ancestral"], ['sampler "ancestral" does not go with', "choose another sampler"])):
        t.refused(2, parts, "sample", trained(), "--out", t.work / "never", *arguments)
    t.refused(3, ["no sampler 'eula'", "did you mean 'euler'?"], "sample", trained(), "--out", t.work / "never", "--sampler", "eula")
    t.refused(2, ["nothing would be written", "--npz"], "sample", trained())
    t.refused(2, ["--name", "no --out"], "sample", trained(), "--npz", t.work / "n.npz", "--name", "{seed}")
    for arguments in (["--steps", 0], ["--batch", 0], ["--fps", 0], ["--guidance", -1], ["--local-ranks", 0], ["--weights", "best"], ["--what"]):
        t.run("sample", trained(), "--out", t.work / "never", *arguments, code=2)
    t.refused(2, ["--out /proc/here", "name a folder"], "sample", trained(), "--out", "/proc/here")
    t.check(not (t.work / "never").exists(), "a refused command left a folder")


if __name__ == "__main__":
    t.main(globals())
