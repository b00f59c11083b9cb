"""Words at sampling: files of prompts, negatives, and where they stand afterwards.

Claim (sampling): A prompt's sample is the same in a file of many as alone or for many seeds, on one rank or two, also where its encoder
draws; prompts are encoded with the batch that they are of; what a sample was asked for in words stands in its list, its PNG and the
sheet.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import encoders as e  # noqa: E402

WORDS = ["a zero", "a one !!", "", "a three", "a four !"]
SIZE = 8 * 8


@functools.cache
def trained():
    path = e.recipe("worded", "fp32", dict(noise=0.5), guidance=dict(plugin="cfg", scale=3.0))
    t.train(path, "worded")
    return t.work / "worded"


def samples(name, *words, seeds=(), batch=1, ranks=1, run=None):
    where = t.work / f"{name}.safetensors"
    t.run("sample", run or trained(), "--out", t.work / name, "--save-latents", where, "--batch", batch, "--steps", 2,
          *(["--seeds", ",".join(map(str, seeds))] if seeds else []), *(["--local-ranks", ranks] if ranks > 1 else []), *words)
    numbers = list(t.numbers(t.read_tensors(where)["latents"]))
    return [numbers[i:i + SIZE] for i in range(0, len(numbers), SIZE)]


def listed(name):
    return t.lines_of(t.work / name / "samples.jsonl")


def texts_of(png):
    """{key: value} of what stands in a PNG beside its pixels."""
    data, found, at = pathlib.Path(png).read_bytes(), {}, 8
    while at < len(data):
        length, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + length]
        if kind == b"tEXt":
            key, value = body.split(b"\0", 1)
            found[key.decode()] = value.decode("latin-1")
        elif kind == b"zTXt":
            key, value = body.split(b"\0", 1)
            found[key.decode()] = zlib.decompress(value[1:]).decode("latin-1")
        elif kind == b"iTXt":
            key, rest = body.split(b"\0", 1)
            packed, rest = rest[0], rest[2:].split(b"\0", 2)[2]
            found[key.decode()] = (zlib.decompress(rest) if packed else rest).decode()
        at += 12 + length
    return found


def test_a_prompt_of_many_makes_what_it_makes_alone():
    file = t.work / "words.txt"
    file.write_text("\n".join(WORDS) + "\n")
    many = samples("many", "--prompts", file)
    t.equal(len(many), len(WORDS), "samples")
    t.equal([(one["seed"], one["prompt"]) for one in listed("many")], list(enumerate(WORDS)), "the list")
    for i, prompt in enumerate(WORDS):
        if prompt:
            t.equal(samples(f"alone-{i}", "--prompts", prompt, seeds=[i]), [many[i]], f"the sample of {prompt!r}")
    t.check(len({str(one) for one in many}) == len(many), "two prompts, one sample")
    t.equal(samples("many-2", "--prompts", file, ranks=2), many, "on two ranks")
    together = samples("many-together", "--prompts", file, batch=2)
    worst = max(abs(a - b) for one, other in zip(many, together) for a, b in zip(one, other))
    t.check(worst < 1e-4, f"batches of two are {worst} away")
    text = " ".join(texts_of(t.work / "many/000001.png").values())
    t.check("a one !!" in text, text)
    sheet = json.loads(texts_of(t.work / "many/grid.png")["ditto"])
    t.equal([one["prompt"] for one in sheet["pictures"]], WORDS, "the sheet")


def test_one_prompt_for_many_seeds_draws_by_each():
    """As the same prompt in a file does, a line a seed."""
    file = lines("same.txt", ["a one"] * 3)
    each = samples("each", "--prompts", file)
    t.equal(samples("of-all", "--prompts", "a one", seeds=[0, 1, 2]), each, "one text for three seeds")
    t.equal(samples("of-all-2", "--prompts", "a one", seeds=[0, 1, 2], ranks=2), each, "on two ranks")
    t.equal(samples("of-one", "--prompts", "a one", seeds=[2]), each[2:], "one text for the third seed")
    noise = t.work / "of_both.safetensors"
    t.write_tensors(noise, {"noise": ("F32", [2, 1, 8, 8], [0.5] * (2 * SIZE))})
    first, second = samples("alike", "--prompts", "a one", "--noise", noise, seeds=[0, 1])
    t.check(first != second, "two seeds, one draw of the encoder")


def test_json_lines_say_seeds_negatives_and_size():
    file = t.work / "words.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in (
        dict(prompt="a three", seed=3, negative="a one", size="8x8"), dict(prompt="a four", seed=14, negative="", size="8x8"))))
    made = samples("lines", "--prompts", file)
    t.equal([(one["file"], one["seed"], one["prompt"], one["negative_prompt"]) for one in listed("lines")],
            [("000003.png", 3, "a three", "a one"), ("000014.png", 14, "a four", "")], "the list")
    t.equal(samples("said", "--prompts", "a three", "--negative-prompt", "a one", seeds=[3]), made[:1], "the same in words")
    t.check(samples("unsaid", "--prompts", "a three", seeds=[3]) != made[:1], "a negative prompt changes nothing")
    t.equal(samples("empty", "--prompts", "a four", "--negative-prompt", "", seeds=[14]), made[1:], "the empty negative in words")
    t.equal(listed("empty")[0]["negative_prompt"], "", "the list")
    t.check(samples("null", "--prompts", "a four", seeds=[14]) != made[1:], "the empty negative prompt is the null condition")
    for lines, words, parts in (
            ([dict(prompt="a", seed=1), dict(prompt="b")], [], ['has "seed" in 1 of its 2 prompts']),
            ([dict(prompt="a", negative="n"), dict(prompt="b")], [], ['"negative" in 1 of its 2', "--negative-prompt"]),
            ([dict(prompt="a", size="8x8"), dict(prompt="b", size="16x16")], [], ["8x8 and of 16x16", "a file for each size"]),
            ([dict(prompt="a", sede=1)], [], [".jsonl:1", 'did you mean "seed"?'])):
        file.write_text("".join(json.dumps(one) + "\n" for one in lines))
        t.refused(4, parts, "sample", trained(), "--out", t.work / "never", "--prompts", file, *words)
    file.write_text(json.dumps(dict(prompt="a", seed=1)) + "\n")
    t.refused(2, ["--seeds", 'stands beside "seed"'], "sample", trained(), "--out", t.work / "never", "--prompts", file, "--seeds", 1)
    file.write_text(json.dumps(dict(prompt="a", negative="n")) + "\n" + json.dumps(dict(prompt="b")) + "\n")
    samples("others", "--prompts", file, "--negative-prompt", "all")
    t.equal([one["negative_prompt"] for one in listed("others")], ["n", "all"], "negatives of lines without one")


def test_the_same_words_go_on_and_other_words_are_refused():
    words = ["sample", trained(), "--out", t.work / "again", "--seeds", "0-3", "--steps", 2, "--prompts"]
    t.run(*words, "a one")
    t.check("all are there already" in t.run(*words, "a one").stderr, "made again")
    t.refused(2, ["another request", "prompt is a one there and a two here"], *words, "a two")
    t.refused(2, ["another request"], *words, "a one", "--negative-prompt", "a two")
    words[3], words[5] = t.work / "again-file", "0-1"
    t.run(*words, lines("again.txt", ["a one", "a two"]))
    t.refused(2, ["another request: its seeds, prompts"], *words, lines("again.txt", ["a one", "a three"]))


def test_a_model_of_pooled_texts_alone_is_asked_in_words():
    path = e.recipe("pooled", "fp32", dict(noise=0.0, pooled=True), guidance=dict(plugin="cfg", scale=2.0))
    text = path.read_text().replace('plugin = "dit_text"', 'plugin = "dit"')
    path.write_text(text)
    t.train(path, "pooled")
    one = samples("pooled-one", "--prompts", "one", seeds=[0, 1], run=t.work / "pooled")
    t.check(one != samples("pooled-two", "--prompts", "two", seeds=[0, 1], run=t.work / "pooled"), "another prompt, the same sample")


def test_memory_does_not_grow_with_the_number_of_prompts():
    """Of 12,000 texts of 200 bytes all encodings are 115 MB."""
    def peak(count):
        file = lines(f"{count}.txt", [f"{i} ".ljust(200, "a") for i in range(count)])
        words = [t.ditto, "sample", trained(), "--save-latents", t.work / f"{count}.safetensors", "--prompts", file, "--batch", 100,
                 "--steps", 1, "--guidance", 1, "--progress", "none"]
        process = subprocess.Popen([str(word) for word in words], env=t.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        t.equal(status, 0, f"how sampling of {count} ended")
        return used.ru_maxrss / 1024

    few, many = peak(400), peak(12_000)
    t.check(many - few < 60, f"{few:.0f} MiB for 400 prompts, {many:.0f} MiB for 12,000")


def test_words_that_could_not_be_meant_are_refused():
    never = ["sample", trained(), "--out", t.work / "never", "--steps", 1_000_000]
    latin = t.work / "latin.txt"
    latin.write_bytes(b"a cat\na caf\xe9\n")
    t.refused(4, ["latin.txt:2", "UTF-8"], *never, "--prompts", latin)
    t.refused(4, ["looks like a path", "words.jsonl"], *never, "--prompts", "nothere/words.jsonl")
    t.refused(4, ["words.json", "call it .jsonl"], *never, "--prompts", lines("words.json", ['{"prompt": "a"}']))
    t.refused(4, ["nul.jsonl:1", "NUL"], *never, "--prompts", lines("nul.jsonl", [json.dumps(dict(prompt="a\0b"))]))
    t.refused(4, ["has 5 rows", "2 samples"], *never, "--prompts", lines("five.txt", WORDS), "--seeds", "0-1")
    t.refused(2, ["--negative-prompt", "is not used by this guidance"], *never, "--prompts", "a", "--negative-prompt", "b",
              "--set", "guidance.plugin=none")
    t.check(not (t.work / "never").exists(), "a refused command left a folder")


def lines(name, texts):
    path = t.work / name
    path.write_text("\n".join(texts) + "\n")
    return path


if __name__ == "__main__":
    t.main(globals())
