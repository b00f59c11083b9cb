"""What is wrong with data or with a checkpoint is said once, with place, finding, expectation and remedy, ends with the
right exit code, and costs nothing that was there."""

import io
import json
import pathlib
import shutil
import struct
import sys
import tarfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

# --- data --------------------------------------------------------------------------------------------------------------


def png(value, side=8):
    """A square grey PNG."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    rows = b"".join(b"\0" + bytes((value * 7 + 3 * x + 5 * y) % 256 for x in range(side)) for y in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def shard(name, samples):
    """[(key, png or None, label or None)] as a tar."""
    path = t.work / name
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for key, picture, label in samples:
            for extension, data in (("png", picture), ("cls", None if label is None else str(label).encode())):
                if data is None:
                    continue
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def good(count):
    return [(f"{i:04}", png(i), i % 10) for i in range(count)]


def data_recipe(name, shards, **loader):
    return t.write_recipe(name, t.recipe(data=dict(shards=[str(path) for path in shards]), run=dict(steps=6, batch=8),
                                         loader=dict(threads=1) | loader))


def test_a_shard_that_was_cut_off_keeps_the_samples_before_the_cut_or_ends_a_strict_run():
    whole, cut = shard("whole.tar", good(24)), shard("cut.tar", good(24))
    cut.write_bytes(cut.read_bytes()[:30000])
    done = t.train(data_recipe("cut.toml", [whole, cut]), "cut")
    t.check("cut.tar: " in done.all and "samples before it kept" in done.all, "no word of the cut:", done.all)
    t.equal(len(t.metrics("cut")), 6, "steps")
    t.refused(4, ["cut.tar", "loader.strict = false"], "train", data_recipe("cut-strict.toml", [whole, cut], strict=True),
              *t.sets({"run.output": str(t.work / "cut-strict")}))
    whole.write_bytes(b"not a tar at all")
    t.refused(4, ["whole.tar"], "train", data_recipe("no-tar.toml", [whole]), *t.sets({"run.output": str(t.work / "no-tar")}))


def test_a_picture_that_does_not_decode_is_named_counted_and_left_out_up_to_the_limit():
    samples = good(24)
    for number, damage in ((3, b"not a png"), (9, png(9)[:60]), (17, png(17)[:-20] + b"\0" * 8)):
        samples[number] = (samples[number][0], damage, samples[number][2])
    path = shard("bad.tar", samples)
    done = t.train(data_recipe("bad.toml", [path]), "bad")
    for name in ("bad.tar:0003.png", "bad.tar:0009.png", "bad.tar:0017.png"):
        t.equal(done.all.count(f"sample left out: {name}"), 1, f"messages that name {name}")
        t.check(name in (t.work / "bad/log.txt").read_text(), f"log.txt does not name {name}")
    t.equal(len(t.metrics("bad")), 6, "steps")
    t.equal(sum(t.learned_of("bad")), 2 * 21, "samples that the rates of two epochs count")
    for line in t.metrics("bad"):
        t.check(line["loss"] is not None and float(line["loss"]) > 0, f"loss {line['loss']}")

    bench = t.run("bench", "step", t.work / "bad.toml", "--json", "--steps", 1, "--warmup", 0, *t.sets({"run.batch": 24}))
    found = json.loads(bench.stdout)
    t.equal(round(found["samples_per_s"] * found["median_s"], 6), 21, "samples that the rate of bench step counts")

    # An empty place moves no other sample: with weights that stay, the loss of a step without one is the same.
    still = dict(run__batch=4, run__micro_batch=2, run__steps=12, lr_schedule__lr=0.0)  # two passes over the shard
    t.train(data_recipe("bad.toml", [path]), "bad-still", **still)
    t.train(data_recipe("good.toml", [shard("good.tar", good(24))]), "good-still", **still)
    same = [a["loss"] == b["loss"] for a, b in zip(t.metrics("bad-still"), t.metrics("good-still"))]
    t.check(6 <= sum(same) < 12, f"three empty places a pass changed {12 - sum(same)} steps of 12")
    done = t.train(data_recipe("bad.toml", [path]), "bad-ranks", "--local-ranks", 2, **still)
    t.same_metrics("bad-still", "bad-ranks")
    for name in ("bad.tar:0003.png", "bad.tar:0009.png", "bad.tar:0017.png"):
        t.check(f"sample left out: {name}" in done.all, f"no rank names {name}: {done.all}")

    t.train(data_recipe("limit.toml", [path], max_bad=3), "limit")
    t.refused(4, ["3 samples could not be decoded, loader.max_bad is 2", "bad.tar:00", "ditto data verify"], "train",
              data_recipe("over.toml", [path], max_bad=2), *t.sets({"run.output": str(t.work / "over")}))
    t.refused(4, ["bad.tar:00"], "train", data_recipe("strict.toml", [path], strict=True),
              *t.sets({"run.output": str(t.work / "strict")}))
    t.run("train", data_recipe("strict.toml", [path], strict=True), "--local-ranks", 2,
          *t.sets({"run.output": str(t.work / "strict-ranks")}), code=4)
    done = t.run("data", "verify", path, code=4)
    for name in ("0003.png", "0009.png", "0017.png"):
        t.check(name in done.all, f"`ditto data verify` does not name {name}: {done.all}")


def test_a_run_that_can_learn_from_none_of_its_samples_ends_as_one_that_failed():
    path = data_recipe("none.toml", [shard("none.tar", [(key, b"not a png", label) for key, _, label in good(24)])])
    how = {"run.output": str(t.work / "none"), "run.steps": 2, "run.batch": 4}
    t.refused(4, ["none of the samples of 2 steps can be learned from", "ditto data verify"], "train", path, *t.sets(how))


def test_max_bad_counts_the_samples_of_the_run_over_its_resumes():
    samples = good(24)
    for number in (3, 9, 17):  # one in each of an epoch's steps
        samples[number] = (samples[number][0], b"not a png", 0)
    path = data_recipe("resumed.toml", [shard("resumed.tar", samples)], shuffle=False, max_bad=2)
    t.train(path, "resumed", run__steps=2)
    t.equal(json.loads((t.latest("resumed") / "state.json").read_text())["extra"].get("left_out"), "3,9", "what the checkpoint notes")
    for folder in ("again", "other"):
        shutil.copytree(t.work / "resumed", t.work / folder, symlinks=True)
    more = ["3 samples could not be decoded, loader.max_bad is 2", "resumed.tar:0017.png"]
    for ranks in ([], ["--local-ranks", 2]):
        t.refused(4, more, "train", path, *ranks, *t.sets({"run.output": str(t.work / "resumed"), "run.steps": 3}))
    # The same samples, epochs later, are no others.
    t.train(path, "again", run__steps=12, loader__max_bad=3)
    # Samples of other data are others.
    samples[3], samples[9] = good(24)[3], good(24)[9]
    shard("resumed.tar", samples)
    t.train(path, "other", "--allow-change", "data", run__steps=12, loader__max_bad=1)


def test_a_validation_none_of_whose_samples_decode_has_no_loss():
    held_out = [(key, b"not a png", label) for key, _, label in good(4)]
    done = t.train(data_recipe("no-loss.toml", [shard("no-loss.tar", good(24))]), "no-loss", run__steps=1, validate__every=1,
                   data__validation_shards=[str(shard("none.tar", held_out))], data__size=[8, 8])
    t.check("no validation loss" in done.all, done.all)
    line = t.lines_of(t.work / "no-loss/validation.jsonl")[-1]
    t.equal((line["validation_loss"], line["samples"]), (None, 0), "loss and samples")


def test_validation_reads_the_first_samples_that_it_is_to_and_no_others():
    samples = good(12)
    for number in (0, 3, 4):
        samples[number] = (samples[number][0], b"not a png", samples[number][2])
    path = data_recipe("validated.toml", [shard("validated.tar", good(24))])
    done = t.train(path, "validated", run__steps=1, data__validation_shards=[str(shard("seen.tar", samples))],
                   validate__every=1, validate__samples=4)
    t.equal([f"seen.tar:000{number}.png" in done.all for number in (0, 3, 4)], [True, True, False], f"samples named in {done.all}")


def test_of_samples_that_are_left_out_a_validation_says_nothing():
    samples, damaged = good(16), good(16)
    damaged[11] = ("0011", b"not a png", 1)
    path = data_recipe("strata.toml", [shard("strata.tar", good(24))])
    found = {}
    for name, held_out in (("whole", samples), ("without", damaged)):
        t.train(path, f"strata-{name}", run__steps=1, data__validation_shards=[str(shard(f"{name}.tar", held_out))],
                validate__every=1, validate__strata="one")
        found[name] = t.lines_of(t.work / f"strata-{name}/validation.jsonl")[-1]
    whole, without = found["whole"], found["without"]
    t.equal((whole["samples"], without["samples"]), (16, 15), "samples that counted")
    t.equal([a == b for a, b in zip(whole["strata"], without["strata"])], [k != 3 for k in range(8)], "strata that are the same")
    for line, counts in ((whole, [2] * 8), (without, [1 if k == 3 else 2 for k in range(8)])):
        mean = sum(n * float(stratum) for n, stratum in zip(counts, line["strata"])) / sum(counts)
        t.check(abs(mean - float(line["validation_loss"])) < 1e-6, f"the strata's mean is {mean} in {line}")
    few = dict(run__steps=1, validate__every=1, validate__samples=3)
    t.train(path, "strata-few", data__validation_shards=[str(t.work / "whole.tar")], validate__strata="one", **few)
    line = t.lines_of(t.work / "strata-few/validation.jsonl")[-1]
    t.equal([stratum is None for stratum in line["strata"]], [k > 2 for k in range(8)], f"strata without samples in {line}")
    t.check("not_finite" not in line, line)
    first = [("0000", b"not a png", 0), *good(16)[1:]]
    for name, held_out, count in (("each", good(16), 3), ("each-bad", first, 2)):
        t.train(path, f"strata-{name}", data__validation_shards=[str(shard(f"{name}.tar", held_out))], **few)
        line = t.lines_of(t.work / f"strata-{name}/validation.jsonl")[-1]
        t.equal((line["samples"], None in line["strata"]), (count, False), f"samples that counted, and strata without any, in {line}")
        mean = sum(float(stratum) for stratum in line["strata"]) / 8
        t.check(abs(mean - float(line["validation_loss"])) < 1e-6, f"the strata's mean is {mean} in {line}")


def test_a_strict_run_names_a_sample_of_its_validation_on_every_layout():
    samples = good(16)
    samples[5] = ("0005", b"not a png", 5)
    path = data_recipe("strict-validation.toml", [shard("learned.tar", good(24))], strict=True)
    for plugin in ("zero1", "zero2", "fsdp"):
        t.refused(4, ["held-out.tar:0005.png"], "train", path, "--local-ranks", 2, *t.sets({
            "run.output": str(t.work / f"strict-{plugin}"), "data.validation_shards": [str(shard("held-out.tar", samples))],
            "validate.every": 1, "parallel.shard": 2, "parallel.shard_plugin": plugin}))


def test_data_ranks_share_a_validation_by_the_micro_batches_of_the_training():
    """Who reads what is seen by what is left out: of 16 samples by four, ranks 0 and 1 read every other four."""
    samples = good(16)
    for number in (2, 6):
        samples[number] = (samples[number][0], b"not a png", 0)
    path = data_recipe("shared.toml", [shard("shared.tar", good(24))])
    done = t.train(path, "shared", "--local-ranks", 2, run__steps=1, validate__every=1,
                   data__validation_shards=[str(shard("read.tar", samples))])
    lines = [line for line in done.all.splitlines() if "sample left out: " in line]
    t.equal([("rank 1: " in line, name in line) for line in sorted(lines, key=lambda line: "0006" in line)
             for name in ("read.tar:0002.png", "read.tar:0006.png") if name in line], [(False, True), (True, True)], f"who read what: {lines}")


def test_a_picture_without_a_label_ends_the_run_before_it_begins():
    samples = good(12)
    samples[5] = ("0005", png(5), None)
    path = data_recipe("unlabelled.toml", [shard("unlabelled.tar", samples)])
    t.refused(4, ["unlabelled.tar:0005.png", 'no member "0005.cls"', 'data.label', '"none"'], "train", path,
              *t.sets({"run.output": str(t.work / "unlabelled")}))
    t.check(not t.checkpoints("unlabelled"), "a refused run left a checkpoint")
    samples[5] = ("0005", png(5), 77)


def test_a_label_beyond_the_classes_ends_the_run_before_it_begins_instead_of_leaving_samples_out():
    samples = good(12)
    samples[5] = ("0005", png(5), 77)
    path = data_recipe("wrong-label.toml", [shard("wrong-label.tar", samples)])
    for ranks in ([], ["--local-ranks", 2]):
        t.refused(2, ["data.classes", "is 10", "1 of 12 labels", "wrong-label.tar:0005.cls is 77"], "train", path, *ranks,
                  *t.sets({"run.output": str(t.work / "wrong-label")}))
    t.check(not t.checkpoints("wrong-label"), "a refused run left a checkpoint")


# --- checkpoints -------------------------------------------------------------------------------------------------------


def trained(folder):
    path = t.write_recipe(f"{folder}.toml", t.recipe(run=dict(steps=9, micro_batch=8, output=str(t.work / folder)),
                                                     checkpoint=dict(every=3, keep=5)))
    t.run("train", path)
    return path, (t.work / folder / "metrics.jsonl").read_text()


def flip(path, share):
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it():
    damages = [("model-00000.safetensors", 0.7), ("optimizer-00000.safetensors", 0.5), ("ema-00000.safetensors", 0.01),
               ("index.json", 0.5), ("state.json", 0.5), ("manifest.json", 0.5), ("recipe.toml", 0.5),
               ("model-00000.safetensors", None), ("manifest.json", None)]
    path, _ = trained("whole")
    for number, (name, share) in enumerate(damages):
        folder = f"damaged-{number}"
        shutil.copytree(t.work / "whole", t.work / folder, symlinks=True)
        victim = t.work / folder / "checkpoints/step_00000009" / name
        flip(victim, share) if share is not None else victim.unlink()
        done = t.run("checkpoint", "verify", victim.parent, code=7)
        t.check(name in done.all, f"`ditto checkpoint verify` does not name {name}: {done.all}")
        for words in (["sample", t.work / folder, "--seeds", "0", "--steps", "1", "--out", t.work / f"sampled-{number}"],
                      ["checkpoint", "export", t.work / folder, "--format", "facebook-dit", "--out", t.work / f"out-{number}.safetensors"]):
            told = t.run(*words).stderr
            t.equal(told.count("warning: skipped step_00000009"), 1, f"warnings of {words[0]}: {told}")
        done = t.train(path, folder, *(["--local-ranks", 2] if number % 3 == 1 else []))
        t.check("not resumed from skipped step_00000009" in done.all and name in done.all, f"no word of {name}:", done.all)
        t.check("step_00000006 (step 6)" in done.all, "not resumed from the step before:", done.all)
        t.same_metrics("whole", folder)
        t.same_state("whole", folder)
        t.check((t.work / folder / "checkpoints/abandoned-step_00000009").is_dir(), "the damaged checkpoint is gone")


def test_a_run_none_of_whose_checkpoints_can_be_used_is_not_started_over_unasked():
    path, metrics = trained("ruined")
    for name in t.checkpoints("ruined"):
        flip(t.work / "ruined/checkpoints" / name / "model-00000.safetensors", 0.9)
    t.refused(7, ["ruined/checkpoints", "none that can be used", "--resume never"], "train", path)
    t.equal((t.work / "ruined/metrics.jsonl").read_text(), metrics, "metrics.jsonl")
    t.equal(t.checkpoints("ruined"), ["step_00000003", "step_00000006", "step_00000009"], "checkpoints")
    t.refused(7, ["ruined", "no checkpoint that can be used"], "sample", t.work / "ruined", "--out", t.work / "no-pictures")
    done = t.run("train", path, "--resume", "never")
    t.check("abandoned-step_00000009" in done.all, done.all)


def test_a_checkpoint_that_is_named_and_cannot_be_used_ends_the_command():
    path, metrics = trained("named")
    broken = t.work / "named/checkpoints/step_00000006"
    flip(broken / "model-00000.safetensors", 0.8)
    t.refused(7, ["step_00000006/model-00000.safetensors"], "train", path, "--resume", broken)
    t.refused(7, ["step_00000006/model-00000.safetensors"], "sample", broken, "--out", t.work / "no-pictures", "--weights", "weights")
    t.refused(7, ["nowhere", "no such folder"], "train", path, "--resume", t.work / "nowhere")
    t.refused(7, ["nowhere", "no such folder"], "sample", t.work / "nowhere", "--out", t.work / "no-pictures")
    t.equal((t.work / "named/metrics.jsonl").read_text(), metrics, "metrics.jsonl")
    t.run("checkpoint", "verify", t.work / "named/checkpoints/step_00000009")


def test_weights_of_one_convention_are_neither_exported_nor_imported_as_the_others():
    recipes = {form: t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=1), model=dict(convention=name)))
               for name, form in (("facebook", "facebook-dit"), ("diffusers", "diffusers"))}
    for (own, path), (other, others) in (recipes.items(), reversed(recipes.items())):
        run, file, made = t.work / f"run-{own}", t.work / f"{own}.safetensors", t.work / f"imported-{own}"
        t.train(path, run)
        t.refused(2, [f'model.convention = "{own[:8]}', f'format "{other}"', f"--format {own}"], "checkpoint", "export", run,
                  "--format", other, "--out", file)
        t.check(not file.exists(), f"a refused export left {file}")
        t.run("checkpoint", "export", run, "--format", own, "--out", file)
        t.refused(2, ["model.convention", f'is "{other[:8]}', f"format {own}", f'it is "{own[:8]}'], "checkpoint", "import",
                  file, "--format", own, "--recipe", others, "--out", made)
        t.refused(2, [f"--format {other}", f"in the format {own}"], "checkpoint", "import", file, "--format", other,
                  "--recipe", others, "--out", made)
        t.without_notes(file)  # another program's: its tensors and config.json say what it is
        t.refused(2, ["model.convention", f'is "{other[:8]}', f"format {own}", f'it is "{own[:8]}'], "checkpoint", "import",
                  file, "--format", own, "--recipe", others, "--out", made)
        t.refused(7, ["has no tensor", f"format {other}"], "checkpoint", "import", file, "--format", other, "--recipe", others,
                  "--out", made)
        t.check(not made.exists(), f"a refused import left {made}")
        t.run("checkpoint", "import", file, "--format", own, "--recipe", path, "--out", made)


def test_another_models_shapes_are_refused_with_both_of_them():
    path, metrics = trained("narrow")
    wide = t.write_recipe("wide.toml", t.recipe(model=dict(width=48), run=dict(steps=1)))
    t.refused(7, ["patches.map.weight", "F32 [32, 4] there", "F32 [48, 4] here", "recipe.toml in it"], "train", wide,
              *t.sets({"run.init_from": str(t.work / "narrow"), "run.output": str(t.work / "wide")}))
    deep = t.write_recipe("deep.toml", t.recipe(model=dict(depth=3), run=dict(steps=1)))
    t.refused(7, ["blocks.2.", "is not there"], "train", deep,
              *t.sets({"run.init_from": str(t.work / "narrow"), "run.output": str(t.work / "deep")}))
    t.refused(7, ["patches.map.weight", "F32 [32, 4] there", "F32 [48, 4] here"], "train", path, "--set", "model.width=48", "--allow-change", "model")
    t.equal((t.work / "narrow/metrics.jsonl").read_text(), metrics, "metrics.jsonl")
    t.run("checkpoint", "verify", t.latest("narrow"))


def test_a_resume_that_would_learn_something_else_is_refused_unless_allowed():
    path, metrics = trained("changed")
    saved = json.loads((t.latest("changed") / "manifest.json").read_text())
    recipe = (t.work / "changed/run.toml").read_text()
    for key, value, before in (("model.mlp_ratio", 3, "4"), ("run.seed", 1, "0"), ("run.batch", 8, "16"),
                               ("objective.condition_dropout", 0.2, "0.1"), ("scheduler.shift", 2.0, "1.0"),
                               ("loader.shuffle", False, "true"), ("data.resize", "bicubic", '"bilinear"')):
        t.refused(2, [f"{key}: was {before} in the run to be resumed, and is {t.json.dumps(value)} now", f"--allow-change {key}",
                      "--resume never"], "train", path, *t.sets({key: value, "run.steps": 12}))
    few = f"{t.digits}/train-000003.tar"
    t.refused(2, ["learned from other data", "--allow-change data"], "train", path, *t.sets({"data.shards": [few]}),
              "--allow-change", "data.shards")
    t.equal((t.work / "changed/metrics.jsonl").read_text(), metrics, "metrics.jsonl")
    t.equal((t.work / "changed/run.toml").read_text(), recipe, "run.toml")
    t.equal(json.loads((t.latest("changed") / "manifest.json").read_text()), saved, "the manifest")
    t.run("checkpoint", "verify", t.latest("changed"))
    done = t.run("train", path, *t.sets({"run.seed": 1, "run.steps": 10}), "--allow-change", "run.seed")
    t.check("changed since: run.seed: 0 -> 1 (allowed)" in done.all, done.all)
    t.equal(len(t.metrics("changed")), 10, "steps")


if __name__ == "__main__":
    t.main(globals())
