"""`ditto encode` keeps what encoders make, and loader.encoded trains on it.

Claim (data): Losses on what encoders made before are those of encoding at every step: to 1e-12 in fp64, bit for bit with
run.numerics = "one", over epochs, draws, mirrored pictures, blends, ranks, sizes that differ and samples that do not decode; other
data, weights, tensors, numerics, tokenizers, shards of another cache and half a cache are refused with both values.

Claim (data): `ditto encode` that was killed at any of 20 moments goes on, on one rank or two, to the bytes of one go.
"""

import io
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import encoders as e  # noqa: E402
import imagen_texts as imagen  # noqa: E402

KILLS = 20


def encode(path, folder, *words, code=0, **options):
    given = {key.replace("__", "."): value for key, value in options.items()}
    return t.run("encode", path, "--out", t.work / folder, "--batch", 4, "--shard-samples", 24, *words, *t.sets(given), code=code)


def on(folder):
    return {"loader__encoded": str(t.work / folder)}


def notes(folder):
    return json.loads((t.work / folder / "encoded.json").read_text())


def files_of(folder):
    root = t.work / folder
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def losses(folder):
    validation = t.work / folder / "validation.jsonl"
    validated = t.lines_of(validation) if validation.exists() else []
    return [float(line["loss"]) for line in t.metrics(folder)] + [float(line["validation_loss"]) for line in validated]


def near(a, b, what):
    a, b = losses(a), losses(b)
    t.equal(len(a), len(b), f"{what}: lines")
    for x, y in zip(a, b):
        t.check(abs(x - y) <= 1e-12 * max(1, abs(x)), f"{what}: {x!r} and {y!r}")


def test_losses_are_those_of_encoding_at_every_step():
    """Two epochs and more: what is drawn differs from epoch to epoch, as online."""
    path = e.recipe("online")
    encode(path, "cache")
    t.equal(sorted(notes("cache")["encoders"]), ["encoder.image", "encoder.text"], "encoders")
    t.equal(sorted(one["name"] for one in notes("cache")["made"]), ["clean", "text_mask", "text_mean"], "what is kept")
    t.check("CrudeWebdataset" in (t.work / "cache/.nv-meta/dataset.yaml").read_text(), "Energon's kind of set")
    split = (t.work / "cache/.nv-meta/split.yaml").read_text()
    t.equal((split.count("train-"), split.count("validation-")), (2, 2), "shards of Energon's split")
    t.train(path, "online", run__steps=20, validate__every=10)
    t.train(path, "cached", run__steps=20, validate__every=10, **on("cache"))
    near("online", "cached", "losses")
    t.train(path, "undrawn", run__steps=20, validate__every=10, encoder__text__noise_in=[])
    t.check(losses("undrawn") != losses("online"), "nothing is drawn")
    t.run("evaluate", t.work / "cached", "--weights", "weights")
    for name in ("fsdp", "tensor", "pipeline"):
        ranks, sets = e.LAYOUTS[name]
        t.train(path, f"cached-{name}", "--local-ranks", ranks, run__steps=20, validate__every=10, **on("cache"),
                **{key.replace(".", "__"): value for key, value in sets.items()})
        near("online", f"cached-{name}", name)


def test_texts_are_the_same_bit_for_bit_where_numbers_are_one():
    path = e.recipe("one", "fp32")
    options = dict(run__numerics="one", run__token_leaf=8, run__steps=12)
    encode(path, "cache-one", run__numerics="one", run__token_leaf=8)
    t.train(path, "online-one", **options)
    t.train(path, "cached-one", **options, **on("cache-one"))
    t.same_metrics("online-one", "cached-one")
    t.same_state("online-one", "cached-one")
    for given, found in (({}, "fast here"), ({"run.numerics": "one", "run.token_leaf": 16}, "leaves of 16 tokens here")):
        t.refused(2, ["loader.encoded", "run.numerics is one, leaves of 8 tokens there and", found], "train", path,
                  *t.sets({"run.output": str(t.work / "never"), "loader.encoded": str(t.work / "cache-one")} | given))


def test_parts_of_pictures_and_their_noise_are_drawn_at_every_step():
    """Pictures are in fp32, and what is kept of them in an fp64 run in fp64: both give one small picture and one noise of it."""
    import cascades
    path = cascades.stage("sr8", run=dict(name="parts", steps=6, batch=8, micro_batch=4), validate=dict(every=3),
                          data=dict(height=16, width=16, samples=16, validation_samples=8), encoder__image=dict(crop=[8, 8]),
                          encoder__low=dict(plugin="noise_condition"), model=dict(noise_cond_aug=True))
    for name, options in dict(parts=dict(run__precision="fp64"), parts_one=dict(run__numerics="one", run__token_leaf=8)).items():
        encode(path, f"cache-{name}", **options)
        t.equal([one["name"] for one in notes(f"cache-{name}")["made"]], ["clean_whole"], f"{name}: what is kept")
        t.train(path, name, **options)
        t.train(path, f"{name}-cached", **options, **on(f"cache-{name}"))
        near(name, f"{name}-cached", name)
    t.same_state("parts_one", "parts_one-cached")
    t.train(path, "parts-silent", run__precision="fp64", encoder__low__std=0.0)
    t.check(losses("parts-silent") != losses("parts"), "no level is drawn")


def test_mirrored_pictures_are_encoded_and_learned_from():
    path = e.recipe("mirrored")
    encode(path, "one-side")
    t.refused(2, ["loader.flip", "--flip"], "train", path, *t.sets({"run.output": str(t.work / "never"), "loader.flip": True, "loader.encoded": str(t.work / "one-side")}))
    encode(path, "two-sides", "--flip")
    members = tarfile.open(t.work / "two-sides/train-000000.tar").getnames()
    t.check("000000.flipped.safetensors" in members, members[:4])
    t.train(path, "flipped", loader__flip=True, run__steps=10)
    t.train(path, "flipped-cached", loader__flip=True, run__steps=10, **on("two-sides"))
    near("flipped", "flipped-cached", "mirrored")
    t.train(path, "straight", run__steps=10)
    t.check(losses("straight") != losses("flipped"), "nothing is mirrored")
    t.train(path, "straight-cached", run__steps=10, **on("two-sides"))
    near("straight", "straight-cached", "both sides, of which one is taken")


def test_a_blend_keeps_its_order_and_a_bad_sample_stays_one():
    import blend
    path = blend.recipe("blended.toml", run=dict(name="blend", precision="fp64", batch=8, micro_batch=4))
    encode(path, "cache-blend")
    t.train(path, "blend-online", run__steps=12)
    t.train(path, "blend-cached", run__steps=12, **on("cache-blend"))
    near("blend-online", "blend-cached", "a blend")
    heavier = t.work / "heavier.toml"
    heavier.write_text(path.read_text().replace("weight = 2", "weight = 3"))
    t.refused(2, ["loader.encoded", "data.part.0.weight is"], "train", heavier,
              *t.sets({"run.output": str(t.work / "never"), "loader.encoded": str(t.work / "cache-blend")}))

    damaged = t.work / "damaged.tar"
    with tarfile.open(e.captioned()) as there, tarfile.open(damaged, "w") as here:
        for member in there.getmembers():
            data = there.extractfile(member).read()
            if member.name.endswith(".png") and int(member.name[:6]) == 5:
                data = data[:-20]
                member.size = len(data)
            here.addfile(member, io.BytesIO(data))
    path = e.recipe("damaged")
    path.write_text(path.read_text().replace(e.captioned(), str(damaged)))
    done = encode(path, "cache-damaged")
    t.check("damaged.tar" in done.stderr, done.all)
    t.check("1 of 64 samples did not decode" in done.all, done.all)
    none = t.work / "none.tar"
    with tarfile.open(e.captioned()) as there, tarfile.open(none, "w") as here:
        for member in there.getmembers():
            data = there.extractfile(member).read()
            data = b"nothing".ljust(len(data), b".") if member.name.endswith(".png") else data
            here.addfile(member, io.BytesIO(data))
    sets = {"data.shards": [str(none)], "validate.every": 0, "loader.max_bad": 100}
    t.refused(4, ["none of 32 samples decoded"], "encode", path, "--out", t.work / "cache-of-none", *t.sets(sets))
    names = tarfile.open(t.work / "cache-damaged/train-000000.tar").getnames()
    t.equal([name for name in names if name.startswith("000005.")], ["000005.bad.safetensors"], "the bad sample's members")
    t.train(path, "damaged-online", run__steps=10)
    t.train(path, "damaged-cached", run__steps=10, **on("cache-damaged"))
    near("damaged-online", "damaged-cached", "a bad sample")


def test_samples_of_several_sizes_are_those_of_the_same_sizes_of_the_data():
    """Latents have half the sides, and 8x8 is the larger of them and the smaller of the pictures."""
    import autoencoder
    path = t.write_recipe("mixed.toml", t.recipe(
        run=dict(name="mixed", steps=4, precision="fp64", batch=8, micro_batch=4), data=t.synthetic(sizes=["8x8", "16x16"], samples=24),
        encoder__image=dict(plugin="autoencoder_kl", weights=str(autoencoder.trained())), batch=dict(plan="buckets"),
        model=dict(plugin="dit", depth=1, width=32, heads=4, patch=2), validate=dict(every=0, grid_every=0)))
    encode(path, "cache-mixed")
    for name, options in {"all": {}, "small": dict(batch__sizes=["8x8"]), "large": dict(batch__sizes=["16x16"]),
                          "tokens": dict(batch__weigh_by="tokens")}.items():
        done = [t.train(path, f"mixed-{name}", **options), t.train(path, f"mixed-{name}-cached", **options, **on("cache-mixed"))]
        t.equal(*[[line.split("sizes: ")[1] for line in one.all.splitlines() if "sizes: " in line] for one in done], f"{name}: sizes")
        near(f"mixed-{name}", f"mixed-{name}-cached", name)
    t.check(losses("mixed-small") != losses("mixed-large"), "sizes change nothing")
    few = {"run.output": str(t.work / "never"), "batch.tokens": 40, "run.micro_batch": 8}
    for more in ({}, {"loader.encoded": str(t.work / "cache-mixed")}):
        t.refused(2, ["64 tokens"], "train", path, *t.sets(few | more))

    encode(path, "latents-mixed", "--format", "nemo")
    bad = t.work / "bad-latent.tar"
    with tarfile.open(t.work / "latents-mixed/train-000000.tar") as there, tarfile.open(bad, "w") as here:
        for member in there.getmembers():
            data = there.extractfile(member).read()
            if member.name == "000005.pth":
                numbers = zipfile.ZipFile(io.BytesIO(data)).read("archive/data/0")
                data = data.replace(numbers, b"\xff" * len(numbers))  # no numbers
            here.addfile(member, io.BytesIO(data))
    tree = t.recipe(run=dict(name="one-bad", steps=4, precision="fp64", batch=8, micro_batch=4), batch=dict(plan="buckets"),
                    objective=dict(plugin="diffusion", condition_dropout=0.0), model=dict(plugin="dit", depth=1, width=32, heads=4, patch=2),
                    validate=dict(every=0, grid_every=0))
    tree["data"] = dict(plugin="webdataset", shards=[str(bad)], image=["pth"], latent=[2, -1, -1], label="json:label", classes=10)
    path = t.write_recipe("one-bad.toml", tree)
    done = encode(path, "cache-one-bad")
    t.check("1 of 24 samples did not decode" in done.all, done.all)
    for plan in ("buckets", "contiguous"):
        t.train(path, f"one-bad-{plan}", batch__plan=plan)
        t.train(path, f"one-bad-{plan}-cached", batch__plan=plan, **on("cache-one-bad"))
        near(f"one-bad-{plan}", f"one-bad-{plan}-cached", plan)


def test_a_shard_of_another_set_and_one_without_mirrored_pictures_are_refused():
    path = e.recipe("tied", "fp32")
    encode(path, "of-this", "--flip")
    encode(path, "of-another", "--flip", encoder__text__noise=0.0)
    never = {"run.output": str(t.work / "never"), "loader.encoded": str(t.work / "of-this"), "loader.flip": True}
    for shard in (t.work / "of-another").glob("train-*.tar"):
        shutil.copy(shard, t.work / "of-this" / shard.name)
    t.refused(2, ["is of encoding", "and encoded.json beside it of"], "train", path, *t.sets(never))
    never["loader.encoded"] = str(t.work / "of-another")
    for shard in list((t.work / "of-another").glob("train-*.tar")):
        with tarfile.open(shard) as there, tarfile.open(t.work / "plain.tar", "w") as here:
            for member in there.getmembers():
                if ".flipped." not in member.name:
                    here.addfile(member, there.extractfile(member))
        shutil.move(t.work / "plain.tar", shard)
    t.refused(2, ["lacks", "mirrored samples"], "train", path, *t.sets(never | {"encoder.text.noise": 0.0}))


def test_data_that_is_there_is_the_data_that_was_encoded():
    grown = t.work / "grown"
    grown.mkdir()
    shutil.copy(e.captioned(), grown / "a.tar")
    path = e.recipe("grown", "fp32")
    path.write_text(path.read_text().replace(e.captioned(), str(grown / "*.tar")))
    encode(path, "cache-grown")
    t.train(path, "as-it-was", **on("cache-grown"))
    never = {"run.output": str(t.work / "never"), "loader.encoded": str(t.work / "cache-grown")}
    shutil.copy(e.held_out(), grown / "b.tar")
    t.refused(2, ["loader.encoded", "their fingerprint is"], "train", path, *t.sets(never))
    shutil.rmtree(grown)
    t.train(path, "without-it", **on("cache-grown"))
    t.same_metrics("as-it-was", "without-it")

    paths = [t.work / name / "relative.toml" for name in ("here", "elsewhere")]
    for one in paths:
        one.parent.mkdir()
        shutil.copy(e.captioned(), one.parent / "d.tar")
        one.write_text(e.recipe("relative", "fp32").read_text().replace(e.captioned(), "d.tar"))
    encode(paths[0], "cache-here")
    t.train(paths[0], "relative", **on("cache-here"))
    t.refused(2, ["data.shards is", "/here/d.tar", "/elsewhere/d.tar"], "train", paths[1],
              *t.sets(never | {"loader.encoded": str(t.work / "cache-here")}))


def test_other_data_encoders_and_halves_are_refused_with_both_values():
    path = e.recipe("refusing", "fp32")
    encode(path, "held")
    before = files_of("held")
    never = {"run.output": str(t.work / "never"), "loader.encoded": str(t.work / "held")}

    def refused(parts, folder="held", **options):
        sets = never | {"loader.encoded": str(t.work / folder)} | {key.replace("__", "."): value for key, value in options.items()}
        t.refused(2, ["loader.encoded", *parts], "train", path, *t.sets(sets))

    refused(["data.size is", "8, 8", "there and", "16, 16"], data__size=[16, 16])
    refused(["encoder.text.precision is", "there and"], encoder__text__precision="bf16")
    refused(["encoder.text.caches is", '"text_mean" Float', '"text_mean" Double'], run__precision="fp64", encoder__text__precision="fp32", encoder__image__precision="fp32")
    refused(["encoder.text.makes is", '"text"', '"text2"'], encoder__text__name="text2", model__plugin="dit")
    other = t.work / "one-byte.safetensors"
    data = bytearray(pathlib.Path(e.weights()).read_bytes())
    data[-3] ^= 1
    other.write_bytes(data)
    fingerprint = notes("held")["encoders"]["encoder.text"]["fingerprint"]
    t.check("weights " in fingerprint, fingerprint)
    refused(["encoder.text.fingerprint is " + fingerprint + " there and bytes_text 1, weights "], encoder__text__weights=str(other))
    t.refused(2, ["--out", "encoded otherwise", "batch is 4 there and 8 here"], "encode", path, "--out", t.work / "held", "--batch", 8, "--shard-samples", 24)
    t.check(files_of("held") == before, "a refused command changed something")

    half = t.work / "half"
    shutil.copytree(t.work / "held", half)
    (half / "encoded.json").rename(half / "encoded.json.unfinished")
    t.refused(2, ["half", "is half-written"], "train", path, *t.sets(never | {"loader.encoded": str(half)}))
    encode(path, "half")
    t.check(files_of("half") == before, "what was made of a half")
    t.refused(2, ["holds no encoded.json"], "train", path, *t.sets(never | {"loader.encoded": str(t.work)}))
    stranger = t.work / "stranger"
    stranger.mkdir()
    (stranger / "train-000000.tar").write_text("mine")
    t.refused(2, ["holds train-000000.tar"], "encode", path, "--out", stranger, "--batch", 4, "--shard-samples", 24)
    t.equal((stranger / "train-000000.tar").read_text(), "mine", "a file of somebody")


def test_the_average_and_the_weights_themselves_are_told_apart():
    import autoencoder
    path = t.write_recipe("averaged.toml", t.recipe(run=dict(name="averaged", steps=2, batch=8), encoder__image=dict(
        plugin="autoencoder_kl", weights=str(autoencoder.trained())), validate=dict(every=0, grid_every=0)))
    encode(path, "of-the-average")
    fingerprint = notes("of-the-average")["encoders"]["encoder.image"]["fingerprint"]
    t.refused(2, [f"encoder.image.fingerprint is {fingerprint} there and {fingerprint}, not averaged here"], "train", path, *t.sets(
        {"run.output": str(t.work / "never"), "loader.encoded": str(t.work / "of-the-average"), "encoder.image.which": "weights"}))


def test_one_byte_of_a_tokenizer_is_refused_with_both_hashes():
    import text_ids
    e.plugins()
    shutil.copy(t.build / "tests/fixture_plugins/pieces_text.so", t.work / "plugins")
    path = e.recipe("pieces", "fp32", dict(plugin="pieces_text", noise=None, weights=None, tokenizer=str(text_ids.folder("bert")), kind="bert"))
    t.run("encode", path, "--out", t.work / "pieces-cache")
    sets = {"run.output": str(t.work / "never"), "loader.encoded": str(t.work / "pieces-cache")}
    t.train(path, "pieces-cached", **on("pieces-cache"))
    other = t.work / "another-tokenizer"
    shutil.copytree(text_ids.folder("bert"), other)
    vocabulary = other / "vocab.txt"
    data = bytearray(vocabulary.read_bytes())
    last = max(i for i, byte in enumerate(data) if byte in b"abcdefgh")
    data[last] ^= 0x10
    vocabulary.write_bytes(data)
    fingerprint = notes("pieces-cache")["encoders"]["encoder.text"]["fingerprint"]
    t.refused(2, ["loader.encoded", f"encoder.text.fingerprint is {fingerprint} there and pieces_text 1"], "train", path,
              *t.sets(sets | {"encoder.text.tokenizer": str(other)}))


def test_what_was_killed_goes_on_to_the_bytes_of_one_go():
    path = e.recipe("killed", "fp32")
    words = ["encode", path, "--out", t.work / "killed", "--batch", 2, "--shard-samples", 4, "--progress", "none"]
    began = time.monotonic()
    t.run("encode", path, "--out", t.work / "whole", "--batch", 2, "--shard-samples", 4, "--progress", "none")
    took = time.monotonic() - began
    draws, before = random.Random(11), {}
    for kill in range(KILLS):
        ranks = 1 + kill % 2
        more = ["--local-ranks", str(ranks)] if ranks > 1 else []
        process = subprocess.Popen([t.ditto, *map(str, words), *more], env=t.environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(took * draws.uniform(0.3, 1))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shards = {file.name: file.stat().st_ino for file in (t.work / "killed").glob("*.tar")}
        t.equal({name: shards.get(name) for name in before}, before, f"shards of before kill {kill}")
        before = shards
        t.check(not (t.work / "killed/encoded.json").exists() or len(shards) == 16, "a cache of a part")
    done = t.run(*words, "--local-ranks", 2)
    t.check("already" in done.stderr, done.all)
    found, expected = files_of("killed"), files_of("whole")
    t.equal(sorted(found), sorted(expected), "files")
    t.equal([name for name in expected if found[name] != expected[name]], [], "files of other bytes")
    again = t.run(*words)
    t.check("all are there already" in again.stderr, again.all)
    for name, (ranks, sets) in e.LAYOUTS.items():
        if name not in ("fsdp", "tensor"):
            continue
        t.run("encode", path, "--out", t.work / f"by-{name}", "--batch", 2, "--shard-samples", 4, "--local-ranks", ranks, *t.sets(sets))
        t.equal(sorted(files_of(f"by-{name}")), sorted(expected), f"files by {name}")


def test_nemo_parts_are_read_by_torchs_and_numpys_formats_and_trained_on():
    path = e.recipe("nemo", "fp32", dict(noise=0.0))
    encode(path, "nemo", "--format", "nemo")
    t.refused(2, ["--format nemo"], "train", path, *t.sets({"run.output": str(t.work / "never"), "loader.encoded": str(t.work / "nemo")}))
    shard = tarfile.open(t.work / "nemo/train-000000.tar")
    t.equal(shard.getnames()[:3], ["000000.pth", "000000.pickle", "000000.json"], "members")
    said = json.loads(shard.extractfile("000000.json").read())
    t.equal(sorted(said), ["caption", "label"], "notes")
    file = zipfile.ZipFile(io.BytesIO(shard.extractfile("000000.pth").read()))
    t.check(file.testzip() is None and len(file.read("archive/data/0")) == 64 * 4, "a latent's numbers")
    encode(path, "beside")
    header, kept = kept_of(t.work / "beside/train-000000.tar", "000000.safetensors")
    begin, end = header["clean"]["data_offsets"]
    t.equal(file.read("archive/data/0"), kept[begin:end], "the latent")
    begin, end = header["text"]["data_offsets"]
    t.check(kept[begin:end] in shard.extractfile("000000.pickle").read(), "the text's numbers")
    tree = t.recipe(run=dict(name="on-nemo", steps=2, batch=8), model=dict(plugin="dit_text", depth=1, width=32, heads=4, patch=2))
    tree["data"] = dict(plugin="webdataset", shards=[str(t.work / "nemo/train-*.tar")], image=["pth"], text="pickle", latent=[1, 8, 8], label="none")
    t.train(t.write_recipe("on-nemo.toml", tree), "on-nemo")


def test_an_encoder_of_what_another_makes_by_the_datas_name_runs_at_every_step():
    """Both take "raw"; the second one's is the first's, some of which is dropped."""
    first, second = dict(plugin="fit_text", takes="raw", name="raw", tokens=8, drop=0.5), dict(plugin="fit_text", takes="raw", tokens=8)
    path = imagen.recipe("chain", imagen.shard("chain"), data=dict(text="pickle", text_key=imagen.KEY, text_name="raw", text_width=imagen.WIDTH),
                         encoder__first=first, encoder__second=second)
    encode(path, "chain-cache")
    t.equal(sorted(notes("chain-cache")["encoders"]), ["encoder.first", "encoder.image"], "encoders of the data")
    t.train(path, "chain")
    t.train(path, "chain-cached", **on("chain-cache"))
    t.same_metrics("chain", "chain-cached")
    t.train(path, "chain-undropped", encoder__first__drop=0.0)
    t.check(t.metrics("chain") != t.metrics("chain-undropped"), "nothing is drawn")


def test_nemo_parts_of_a_picture_in_both_splits_are_two_draws():
    """The recipe holds the pictures out that it learns from."""
    path = e.recipe("both", "fp32", dict(noise=0.5))
    encode(path, "both", "--format", "nemo")
    drawn = [tarfile.open(t.work / f"both/{shard}").extractfile(name).read()
             for shard, name in (("train-000000.tar", "000000.pickle"), ("validation-000000.tar", "000032.pickle"))]
    t.equal(len(drawn[0]), len(drawn[1]), "bytes of a text")
    t.check(drawn[0] != drawn[1], "one draw for two samples")


def test_nemo_parts_hold_one_text_by_any_name_and_no_more_are_dropped():
    path = e.recipe("renamed", "fp32", dict(noise=0.0, name="t5_text"), encoder__fitted=dict(plugin="fit_text", takes="t5_text", name="words", tokens=8))
    path.write_text(path.read_text().replace('plugin = "dit_text"', 'plugin = "dit"'))
    encode(path, "renamed", "--format", "nemo")
    with tarfile.open(t.work / "renamed/train-000000.tar") as shard:
        t.equal(shard.getnames()[:3], ["000000.pth", "000000.pickle", "000000.json"], "members")
    for name, more, said in (("two", dict(encoder__other=dict(plugin="bytes_text", name="clip", weights=e.weights("other", 12, 2))), '"text", "clip"'),
                             ("pooled-too", dict(), '"text", "text_pooled"')):
        path = e.recipe(name, "fp32", dict(noise=0.0, pooled=name == "pooled-too"), **more)
        t.refused(2, ["--format nemo", said, "--format safetensors"], "encode", path, "--out", t.work / name, "--format", "nemo")
        t.check(not (t.work / name).exists(), "a refused command left a folder")


def kept_of(shard, name):
    data = tarfile.open(shard).extractfile(name).read()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


if __name__ == "__main__":
    t.main(globals())
