"""A cascade samples by one command: every stage from the pictures of the one before it.

Claim (sampling): What a cascade of three stages draws are the bits of its runs sampled by hand one after another, on one rank and on two,
with numerics "one", all stages written or the last alone, one after another or all in memory; the same seed gives two stages other noise; its
texts are encoded once; it begins with a small picture that it is given; and after it was killed the same command makes the rest.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import cascades as c  # noqa: E402
import encoders as e  # noqa: E402

PROMPTS = ["a seven", "an eight !", "no number"]
STEPS, GUIDANCE = (3, 2, 4), (2.0, 1.5, 1.0)
LAST = "--steps", "3,2,4", "--guidance", "2,1.5,1"


def trained(name="tiny", words_of_sr8=None):
    """Its stages take the bytes of a caption, and the enlarging ones noise on what they enlarge."""
    folder = t.work / name
    if folder.exists():
        return folder
    e.plugins()
    words = dict(plugin="bytes_text", weights=e.weights("wide", 32), width=32, takes="caption", name="words")
    enlarging = {name: dict(encoder__low=dict(plugin="noise_condition"), model=dict(noise_cond_aug=True)) for name in c.STAGES[1:]}
    path = c.cascade(name, run=dict(steps=2, numerics="one", token_leaf=4), data=dict(text_tokens=None, text_width=None, classes=3, captions=True),
                     encoder__words=words, encoder__text=dict(plugin="fit_text", takes="words", tokens=4),
                     objective=dict(plugin="diffusion", condition_dropout=0.25), **enlarging)
    t.run(*c.words(path, name))
    if words_of_sr8:  # trained again, by itself: a cascade's training refuses it
        sets = t.sets({f"encoder.words.{key}": value for key, value in words_of_sr8.items()})
        t.refused(2, ['"sr8"', 'encodes "words" with'], *c.words(path, "refused"), *t.sets(
            {f"sr8.encoder.words.{key}": value for key, value in words_of_sr8.items()}))
        shutil.rmtree(folder / "sr8")
        t.run("train", t.work / "sr8.toml", *sets, *t.sets({"run.output": str(folder / "sr8")}))
    return folder


def prompts(*texts):
    path = t.work / "prompts.txt"
    path.write_text("".join(text + "\n" for text in texts or PROMPTS))
    return path


def sampled(out, *words, run=None):
    return t.run("sample", run or trained(), "--prompts", prompts(), "--out", t.work / out, *words)


def bits(folder):
    return {path.name: t.read_png(path) for path in sorted((t.work / folder).glob("0*.png"))}


def pixels(folder):
    """Without what a picture says of its making."""
    return {name: made[:4] for name, made in bits(folder).items()}


def by_hand():
    """Three commands: pictures of each stage."""
    made = {}
    for i, name in enumerate(c.STAGES):
        words = ["--steps", STEPS[i], "--guidance", GUIDANCE[i], "--series", i, "--pass", f"low={t.work}/{name}.safetensors"]
        if i > 0:
            words += ["--condition", t.work / f"{c.STAGES[i - 1]}.safetensors"]
        sampled(f"by-hand-{name}", *words, run=trained() / name)
        made[name] = bits(f"by-hand-{name}")
    return made


def test_a_cascade_draws_what_its_runs_do_one_after_another():
    theirs = by_hand()
    t.equal(len(theirs["sr16"]), len(PROMPTS), "pictures")
    t.check(len({str(picture) for picture in theirs["sr16"].values()}) == len(PROMPTS), "prompts and seeds show")
    done = sampled("all", *LAST, "--all")
    for name in c.STAGES:
        t.equal(bits(f"all/{name}"), theirs[name], f"pictures of {name}")
    t.equal([line for line in done.all.splitlines() if line.startswith("texts:")],
            [f"texts: {len(PROMPTS)} encoded, 0 found encoded"] + [f"texts: 0 encoded, {len(PROMPTS)} found encoded"] * 2, "texts")
    sampled("last", *LAST)
    t.equal(bits("last"), theirs["sr16"], "the last stage's alone")
    t.check(not (t.work / "last/base").exists(), "another stage's were written")
    sampled("ranks", *LAST, "--local-ranks", 2)
    t.equal(bits("ranks"), theirs["sr16"], "on two ranks")
    sampled("until", "--steps", "3,2,4", "--guidance", "2,1.5,1", "--until", 8)
    t.equal(bits("until"), theirs["sr8"], "until 8 pixels")


def test_ranks_that_share_encoders_or_have_a_launcher_draw_the_same():
    """With a sample a batch, so that ranks have texts of their own, of which one is kept and the others are not."""
    sampled("alone", *LAST)
    kept = t.work / "kept"
    one = sampled("one-alone", "--kept-texts", kept, "--guidance", "2", "--batch", 1, run=trained() / "base")
    files = sorted(path for path in kept.rglob("*") if path.is_file())
    t.check(len(files) >= len(PROMPTS), f"texts are kept in {files}: {one.all}")
    files[0].unlink()
    sampled("one-shared", "--kept-texts", kept, "--guidance", "2", "--batch", 1, "--local-ranks", 2,
            *t.sets({"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}), run=trained() / "base")
    t.equal(pixels("one-shared"), pixels("one-alone"), "one stage by FSDP")
    shared = {f"{name}.parallel.{key}": value for name in c.STAGES for key, value in (("shard", 2), ("shard_plugin", "fsdp"))}
    sampled("shared", *LAST, "--batch", 1, "--local-ranks", 2, *t.sets(shared))
    t.equal(pixels("shared"), pixels("alone"), "by FSDP")
    port = t.free_port()
    ranks = [subprocess.Popen(
        [t.ditto, "sample", str(trained()), "--prompts", str(prompts()), "--out", str(t.work / "launched"), "--batch", "1", *LAST],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=t.environment | dict(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))) for rank in (0, 1)]
    said = [rank.communicate(timeout=t.patient(120))[0] for rank in ranks]
    t.equal([rank.returncode for rank in ranks], [0, 0], f"exit codes: {said}")
    t.equal(pixels("launched"), pixels("alone"), "of a launcher's ranks")


def test_a_negative_prompt_is_for_the_stages_that_are_guided():
    led = "--steps", "3,2,4", "--negative-prompt", "a one"
    sampled("led", *led, "--guidance", "2,1,1", "--all")
    sampled("straight", *LAST[:2], "--guidance", "2,1,1", "--all")
    passed = [t.read_tensors(t.work / name / ".cascade/base.safetensors") for name in ("led", "straight")]
    t.check(passed[0] != passed[1], "the first stage is not led away")
    t.refused(2, ["--negative-prompt", "is not used by this guidance"], "sample", trained(), "--prompts", prompts(), "--out", t.work / "unled",
              *led, "--guidance", "1,1,1")


def test_drafts_need_no_stage_behind_them():
    path = t.work / "drafts"
    shutil.copytree(trained(), path)
    shutil.rmtree(path / "sr16")
    sampled("drafts-until", *LAST, "--until", 8, run=path)
    sampled("all-until", *LAST, "--until", 8)
    t.equal(pixels("drafts-until"), pixels("all-until"), "pictures of 8 pixels")
    t.refused(7, ['"sr16"', "has no checkpoint"], "sample", path, "--prompts", prompts(), "--out", t.work / "none", *LAST)


def test_all_stages_in_memory_draw_the_same():
    """A sample a batch, so that each goes through all stages before the next one begins."""
    whole = sampled("apart", *LAST, "--all", "--batch", 1)
    done = sampled("kept", *LAST, "--all", "--batch", 1, "--keep")
    for name in c.STAGES:
        t.equal(bits(f"kept/{name}"), bits(f"apart/{name}"), f"pictures of {name}")
    told = [[line for line in one.all.splitlines() if line.startswith("texts:")] for one in (whole, done)]
    t.equal(*told, "texts")
    written = {name: [(t.work / name / path).stat().st_mtime_ns for path in ("base/000002.png", "sr16/000000.png")] for name in ("apart", "kept")}
    t.check(written["kept"][1] < written["kept"][0] and written["apart"][0] < written["apart"][1],
            "the first sample is whole before the last one begins, and only with --keep", written)
    sampled("kept-ranks", *LAST, "--batch", 1, "--keep", "--local-ranks", 2)
    t.equal(bits("kept-ranks"), bits("apart/sr16"), "on two ranks")
    for goes_on in ((), ("--keep",)):  # what one of the two was killed in, either goes on with
        shutil.rmtree(t.work / "part", ignore_errors=True)
        shutil.copytree(t.work / "kept", t.work / "part")
        for gone in ("sr8/000001.png", "sr16/000001.png", "sr16/000002.png", ".cascade/sr8.safetensors"):
            (t.work / "part" / gone).unlink()
        done = sampled("part", *LAST, "--all", "--batch", 1, *goes_on)
        t.check("of which 1 are there already" in done.all, done.all)
        t.equal(bits("part/sr16"), bits("apart/sr16"), f"the rest, with {goes_on}")
    other = ["sample", trained(), "--prompts", prompts("another", *PROMPTS[1:]), *LAST, "--all", "--batch", 1]
    t.run(*other, "--out", t.work / "other")
    t.refused(2, ["not of this request"], *other, "--out", t.work / "part", "--keep")
    t.run(*other, "--out", t.work / "part", "--keep", "--overwrite")
    t.equal(bits("part/sr16"), bits("other/sr16"), "in the place of another request's")
    prompts()
    said = sampled("object-kept", *LAST, "--keep", "--json")
    t.check(isinstance(json.loads(said.stdout), dict), said.stdout)


def killed_on_its_way(out, *words):
    """It is, once the last stage has a picture."""
    process = t.start("sample", trained(), "--prompts", prompts(), "--out", t.work / out, *words)
    t.wait_for(lambda: bits(out) if (t.work / out).is_dir() else process.poll() is not None, "a first picture")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_killed_with_all_stages_in_memory_the_same_command_makes_the_rest():
    sampled("undisturbed-kept", "--steps", "3,2,150", *LAST[2:], "--batch", 1)
    killed_on_its_way("killed-kept", "--steps", "3,2,150", *LAST[2:], "--batch", 1, "--keep")
    t.check(0 < len(bits("killed-kept")) < len(PROMPTS), "it ended before it was killed")
    sampled("killed-kept", "--steps", "3,2,150", *LAST[2:], "--batch", 1)
    t.equal(bits("killed-kept"), bits("undisturbed-kept"), "pictures")


def test_a_cascade_begins_with_the_small_picture_it_is_given():
    sampled("from-words", *LAST, "--all")
    low = t.work / "from-words/.cascade/base.safetensors"
    for name, words in (("from-low", ()), ("from-low-kept", ("--keep",))):
        sampled(name, *LAST, "--all", "--condition", low, *words)
        t.check(not (t.work / name / "base").exists(), "the first stage sampled")
        for stage in c.STAGES[1:]:
            t.equal(bits(f"{name}/{stage}"), bits(f"from-words/{stage}"), f"pictures of {stage}")
    middle = t.work / "from-words/.cascade/sr8.safetensors"
    sampled("from-middle", *LAST, "--condition", middle)
    t.equal(bits("from-middle"), bits("from-words/sr16"), "from the second stage's picture")
    shape, values = [3, 1, 4, 4], t.numbers(t.read_tensors(low)["low"])
    t.write_tensors(t.work / "bytes.safetensors", {"low": ("F32", shape, [127.5 * (value + 1) for value in values])})
    done = sampled("from-bytes", *LAST, "--condition", t.work / "bytes.safetensors")
    t.check('"low" reaches' in done.all and "in -1 … 1" in done.all, done.all)
    both = {"low": ("F32", shape, values), "image": ("F32", [3, 1, 8, 8], [0.0] * 192)}
    t.write_tensors(t.work / "both.safetensors", both)
    t.refused(4, ['has "image"', "nothing is made"], "sample", trained() / "sr8", "--prompts", prompts(), "--condition", t.work / "both.safetensors",
              "--out", t.work / "of-both")
    before = (t.work / "bytes.safetensors").read_bytes()
    t.refused(2, ["--save-latents", "is the place of --condition too"], "sample", trained(), "--prompts", prompts(), "--out", t.work / "of-both",
              "--condition", t.work / "bytes.safetensors", "--save-latents", t.work / "bytes.safetensors", "--overwrite")
    t.equal((t.work / "bytes.safetensors").read_bytes(), before, "what was to be read")
    done = sampled("from-words", *LAST, "--all", "--until", 8)
    t.check("from-words/sr16 is of another request" in done.all, done.all)
    noise = low.read_bytes()
    changed = t.work / "changed.safetensors"
    changed.write_bytes(noise[:-1] + bytes([noise[-1] ^ 1]))
    t.write_tensors(t.work / "other.safetensors", {"low": ("F32", [1, 1, 6, 6], [0.0] * 36)})
    t.write_tensors(t.work / "extra.safetensors", {"extra": ("F32", [1, 2], [0.0] * 2)})
    for file, words, code, said in [(t.work / "other.safetensors", (), 4, ['has "low" of 6x6', "no stage of tiny takes", "4x4, 8x8"]),
                                    (middle, ("--until", 8), 4, ['has "low" of 8x8', "until 8", "one of 4x4"]),
                                    (low, ("--until", 4), 4, ['has "low" of 4x4', "until 4", "leave it, or --until, out"]),
                                    (t.work / "extra.safetensors", (), 4, ['has "extra"', "the model does not take"]),
                                    (changed, (), 4, ["was changed since"]),
                                    (low, ("--negative-prompt", "a one", "--guidance", "2,1,1"), 2, ["--negative-prompt", "is not used"])]:
        t.refused(code, said, "sample", trained(), "--prompts", prompts(), "--out", t.work / "none-of-it", *LAST[:2], "--condition", file, *words)


def test_conditions_of_a_file_are_for_all_stages():
    """Texts that are embedded already, of a cascade without encoders of text."""
    path = c.cascade("plain", run=dict(steps=2))
    t.run(*c.words(path, "plain-run"))
    values = [0.25 * (i % 7) - 0.5 for i in range(2 * 4 * 32)]
    text = t.work / "text.safetensors"
    t.write_tensors(text, {"text": ("F32", [2, 4, 32], values)})
    words = ["sample", t.work / "plain-run", "--condition", text, "--steps", "3,2,4", "--all"]
    t.run(*words, "--out", t.work / "of-text")
    t.run(*words, "--out", t.work / "of-text-kept", "--keep")
    low = []
    for series, name in enumerate(c.STAGES):
        t.equal(len(bits(f"of-text/{name}")), 2, f"pictures of {name}, a row each")
        t.equal(bits(f"of-text-kept/{name}"), bits(f"of-text/{name}"), f"with all in memory, {name}")
        both = t.work / f"both-{name}.safetensors"
        t.write_tensors(both, {"text": ("F32", [2, 4, 32], values)} | dict(low))
        made = t.work / f"made-{name}.safetensors"
        t.run("sample", t.work / "plain-run" / name, "--condition", both, "--steps", words[words.index("--steps") + 1].split(",")[series],
              "--series", series, "--pass", f"low={made}", "--out", t.work / f"one-{name}")
        t.equal(pixels(f"one-{name}"), pixels(f"of-text/{name}"), f"as {name} by itself")
        tensor = t.read_tensors(made)["low"]
        low = [("low", (*tensor[:2], t.numbers(tensor)))]
    t.write_tensors(t.work / "text-33.safetensors", {"text": ("F32", [2, 4, 33], [0.0] * 264)})
    t.refused(4, ['has "text"', "33"], *words[:3], t.work / "text-33.safetensors", *words[4:], "--out", t.work / "none-of-text")


def test_a_stage_that_sees_no_class_is_told_of_none():
    dit = {key: None for key in [*c.UNET, "attention_resolutions", "image_size", "low_res_cond"]} | dict(
        plugin="dit", depth=1, width=32, heads=2, patch=2)
    stages = {name: dict(model=dit | dict(joins=["low"])) for name in c.STAGES[1:]} | dict(base=dict(model=dit, data=dict(classes=3)))
    path = c.cascade("classes", run=dict(steps=2), data=dict(text_tokens=None, text_width=None), **stages)
    t.run(*c.words(path, "classes-run"))
    words = ["sample", t.work / "classes-run", "--classes", "2,1", "--seeds", "0-3", "--steps", "3,2,4", "--all"]
    t.run(*words, "--out", t.work / "of-classes")
    t.run(*words, "--out", t.work / "of-classes-kept", "--keep")
    for name in c.STAGES:
        t.equal((len(bits(f"of-classes/{name}")), bits(f"of-classes-kept/{name}")), (4, bits(f"of-classes/{name}")), f"pictures of {name}")
    t.refused(2, ['"sr8"', "sampler"], *words, "--set", "sr8.sampler.plugin=ancestral", "--out", t.work / "none-of-classes")
    t.refused(2, ['"sr16"', "tensor"], *words, "--set", "sr16.parallel.tensor=3", "--local-ranks", 2, "--out", t.work / "none-of-classes")
    t.check(not (t.work / "none-of-classes").exists(), "a stage sampled before a later one was refused")


def test_the_same_seed_is_other_noise_in_another_stage():
    one, other = (sampled(f"series-{series}", "--series", series, run=trained() / "base") and bits(f"series-{series}") for series in (0, 1))
    t.check(one != other, "another series is the same noise")


def test_after_a_stop_the_same_command_makes_the_rest():
    sampled("whole", *LAST)
    for gone in ("0*.png", ".cascade/sr8.safetensors", ".cascade/texts/*"):
        folder = t.work / "stopped"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(t.work / "whole", folder)
        removed = list(folder.glob(gone))
        t.check(removed, f"nothing is {gone}")
        for path in removed:
            path.unlink()
        sampled("stopped", *LAST)
        t.equal(bits("stopped"), bits("whole"), f"without {gone}")
    t.refused(2, ["not of this request"], "sample", trained(), "--prompts", prompts(*PROMPTS[:2], "another"), "--out", t.work / "whole", *LAST)
    prompts()


def test_killed_between_its_stages_the_same_command_makes_the_rest():
    sampled("undisturbed", *LAST)
    out = t.work / "killed"
    for stage in c.STAGES[:-1]:  # each command is killed once one stage more has passed its pictures on
        passed = out / f".cascade/{stage}.safetensors"
        t.check(not passed.exists(), f"{passed} is there before it is made")
        process = t.start("sample", trained(), "--prompts", prompts(), "--out", out, *LAST)
        t.wait_for(lambda: passed.exists() or process.poll() is not None, passed)
        os.killpg(process.pid, signal.SIGKILL)
        t.equal(process.wait(), -signal.SIGKILL, f"the end of a command killed behind {stage}")
    t.equal(bits("killed"), {}, "pictures before the last stage")
    done = sampled("killed", *LAST)
    t.equal(bits("killed"), bits("undisturbed"), "pictures")
    t.check("texts: 0 encoded" in done.all and "0 found" not in done.all, "texts were encoded again", done.all)
    t.equal(done.all.count("all are there already"), len(c.STAGES) - 1, "stages that are found made")


def test_texts_of_other_weights_earlier_in_a_chain_are_encoded_again():
    run = trained("chained", dict(weights=e.weights("other", 32, 2)))
    done = sampled("chain", "--steps", "2,2,2", "--guidance", "2,2,2", "--until", 8, "--all", run=run)
    t.equal(done.all.count(f"texts: {len(PROMPTS)} encoded, 0 found encoded"), 2, "stages that encode")
    sampled("chain-by-hand", "--steps", 2, "--guidance", 2, "--series", 1, "--condition", t.work / "chain/.cascade/base.safetensors",
            run=run / "sr8")
    t.equal(bits("chain/sr8"), bits("chain-by-hand"), "pictures of the stage with other weights")


def test_kept_texts_that_are_damaged_are_made_again_and_one_object_is_said():
    done = sampled("object", *LAST, "--all", "--json")
    t.check(isinstance(json.loads(done.stdout), dict), done.stdout)
    file = next((t.work / "object/.cascade/texts").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-4] ^= 1
    file.write_bytes(data)
    before = pixels("object/sr16")
    for name in ("sr8", "sr16"):
        shutil.rmtree(t.work / "object" / name)
        (t.work / f"object/.cascade/{name}.safetensors").unlink(missing_ok=True)
    done = sampled("object", *LAST, "--all")
    t.check("texts: 3 encoded" in done.all, done.all)
    t.equal(pixels("object/sr16"), before, "pictures of texts that were made again")


def test_what_a_cascade_does_not_take_is_refused():
    run, out = trained(), t.work / "refused"
    cases = [
        (("--steps", "3,2"), ["--steps", "has 2 values, and the cascade has 3 stages", "base, sr8, sr16"]),
        (("--guidance", "3"), ["--guidance", "has 1 value, and the cascade has 3 stages"]),
        (("--until", "12"), ["--until 12", "no stage of tiny makes that size", "4x4, 8x8, 16x16"]),
        (("--size", "8x8"), ["--size", "is a cascade"]),
        (("--noise", "noise.safetensors"), ["--noise", "is of one run", "tiny/base"]),
        (("--set", "run.seed=3"), ["does not say which stage"]),
    ]
    for words, said in cases:
        t.refused(2, said, "sample", run, "--prompts", prompts(), "--out", out, *words)
    t.refused(2, ["--steps", "a run takes one"], "sample", run / "base", "--prompts", prompts(), "--out", out, "--steps", "3,2")
    for option in ("--all", "--keep"):
        t.refused(2, [option, "is of a cascade"], "sample", run / "base", "--prompts", prompts(), "--out", out, option)
    t.refused(2, ["--pass", "NAME=FILE"], "sample", run / "base", "--prompts", prompts(), "--out", out, "--pass", "low")
    t.refused(2, ['takes "low"', "nobody gave it"], "sample", run / "sr8", "--prompts", prompts(), "--out", out)
    t.write_tensors(t.work / "large.safetensors", {"low": ("F32", [3, 1, 6, 6], [0.0] * 108)})
    t.refused(4, ['has "low"', "6", "the model takes"], "sample", run / "sr8", "--prompts", prompts(), "--out", out, "--condition",
              t.work / "large.safetensors")
    t.write_tensors(t.work / "few.safetensors", {"low": ("F32", [2, 1, 4, 4], [0.0] * 32)})
    t.refused(4, ["has 2 rows"], "sample", run / "sr8", "--prompts", prompts(), "--out", out, "--condition", t.work / "few.safetensors")
    (t.work / "sized.jsonl").write_text('{"prompt": "a seven", "size": "8x8"}\n')
    t.refused(2, ['"size" in', "sized.jsonl", "is a cascade"], "sample", run, "--prompts", t.work / "sized.jsonl", "--out", out)
    t.refused(2, ["--out", "is the cascade's own folder"], "sample", run, "--prompts", prompts(), "--out", run, "--all")
    t.check(not out.exists(), "something was written")
    gone = t.work / "sr8-gone"
    (run / "sr8").rename(gone)
    t.refused(7, ['stage 2 of tiny, "sr8", has no checkpoint', "--stage sr8"], "sample", run, "--prompts", prompts(), "--out", out)
    gone.rename(run / "sr8")


if __name__ == "__main__":
    t.main(globals())
