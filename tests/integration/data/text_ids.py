"""Tokenizers by themselves, against what transformers made of the same texts (tests/golden/tokenizers/make.py), and in plugins.

Claim (data): CLIP's, BERT's and SentencePiece's tokenizers give transformers' ids on 500 texts in 40 languages, with emoji, marks,
hidden characters, tabs and words of 10,000 bytes, in rows that are trimmed and padded as there; a flipped byte of their files is another
fingerprint. Also: `tokenizers_test.py`

Claim (plugins): A plugin with SentencePiece, which brings another Protocol Buffers than the host's, and plugins without are in one
process in either order while the host writes TensorBoard's events; neither the program nor any library of the tree shows or lacks a
name of Protocol Buffers.
"""

import base64
import functools
import gzip
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

KINDS = ("clip", "bert", "sentencepiece")
WITH_SENTENCEPIECE = ("pieces_text", "libt5")  # plugins


@functools.cache
def golden():
    return json.loads(gzip.decompress((t.source / "tests/golden/tokenizers/tokenizers.json.gz").read_bytes()))


@functools.cache
def folder(kind):
    """The golden's files, as a tokenizer's folder."""
    path = t.work / kind
    path.mkdir()
    for name, data in golden()["files"][kind].items():
        (path / name).write_bytes(base64.b64decode(data))
    return path


def other(kind, name, change):
    """That folder with one file changed."""
    path = t.work / name
    shutil.copytree(folder(kind), path)
    change(path)
    return path


def asked(kind, path, *options, lines=(), code=0):
    program = t.build / "tests/ditto_tokens"
    done = subprocess.run([str(program), kind, str(path), *map(str, options)], input="".join(line + "\n" for line in lines).encode(),
                          capture_output=True, timeout=t.patient(60))
    t.check(done.returncode == code, f"{kind} {path} {options}: exit code {done.returncode}, expected {code}: {done.stderr[-2000:]}")
    return done


def made(kind, path, texts, *options):
    lines = asked(kind, path, *options, lines=[json.dumps(text) for text in texts]).stdout.splitlines()
    t.equal(len(lines), len(texts), f"{kind}: lines")
    return [json.loads(line) for line in lines]


def about(kind, path, *options):
    return json.loads(asked(kind, path, "--about", 1, *options).stdout)


def refused(kind, path, parts, *options, lines=(), code=2):
    error = asked(kind, path, *options, lines=lines, code=code).stderr.decode()
    t.check(error.count("error: ") == 1, f"{kind} {path}: one error is expected: {error}")
    for part in parts:
        t.check(part in error, f"no {part!r} in {error}")


def alike(what, texts, found, expected):
    for text, a, b in zip(texts, found, expected):
        t.check(a == b, f"{what}: of {ascii(text[:200])} it makes {str(a)[:300]}, and transformers {str(b)[:300]}")


# --- against transformers ------------------------------------------------------------------------------------------------


def test_pieces_are_transformers():
    texts = golden()["texts"]
    t.equal(len(texts), 500, "texts")
    t.check(max(len(text.encode()) for text in texts) >= 10_000 and "" in texts, "long texts and the empty one are among them")
    for kind in KINDS:
        alike(kind, texts, made(kind, folder(kind), texts), golden()["pieces"][kind])


def test_rows_are_trimmed_and_padded_as_transformers_are():
    tokens = golden()["tokens"]
    for kind in KINDS:
        expected = golden()["rows"][kind]
        t.check(any(row["length"] < tokens for row in expected) and any(row["length"] == tokens for row in expected), "of both sorts")
        texts = golden()["texts"][:len(expected)]
        alike(kind, texts, made(kind, folder(kind), texts, "--tokens", tokens), expected)


def test_cleaned_texts_are_cut_as_transformers_cuts_them():
    for cleaning, expected in golden()["cleaned"].items():
        for kind in KINDS:
            texts = golden()["texts"][:len(expected[kind])]
            alike(f"{kind}, {cleaning}", texts, made(kind, folder(kind), texts, "--cleaning", cleaning), expected[kind])
    spaced = made("sentencepiece", folder("sentencepiece"), ["\u00c9A  b\t"], "--cleaning", "none")
    t.check(spaced != made("sentencepiece", folder("sentencepiece"), ["\u00c9A  b\t"], "--cleaning", "clip"), "cleaning does nothing")


# --- files ---------------------------------------------------------------------------------------------------------------


def test_one_file_of_transformers_5_is_read_like_the_older_ones():
    """tokenizer.json, as save_pretrained writes it today."""
    texts = golden()["texts"]

    def clip_in_one(path):
        vocabulary = json.loads((path / "vocab.json").read_text())
        merges = [line.split(" ") for line in (path / "merges.txt").read_text().splitlines()[1:]]
        model = {"type": "BPE", "end_of_word_suffix": "</w>", "vocab": vocabulary, "merges": merges}
        (path / "tokenizer.json").write_text(json.dumps({"model": model}))
        (path / "vocab.json").unlink()
        (path / "merges.txt").unlink()

    def bert_in_one(path):
        words = (path / "vocab.txt").read_text().splitlines()
        model = {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": {word: i for i, word in enumerate(words)}}
        normaliser = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None, "handle_chinese_chars": True}
        (path / "tokenizer.json").write_text(json.dumps({"model": model, "normalizer": normaliser}))
        (path / "vocab.txt").unlink()

    for kind, change in (("clip", clip_in_one), ("bert", bert_in_one)):
        alike(kind, texts, made(kind, other(kind, f"{kind}_in_one", change), texts), golden()["pieces"][kind])
    refused("clip", t.work / "bert_in_one", ["tokenizer.json", "is no tokenizer of CLIP's"])
    refused("bert", t.work / "clip_in_one", ["tokenizer.json", "is no tokenizer of BERT's"])


def test_settings_beside_the_vocabulary_count():
    def cased(path):
        (path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "tokenize_chinese_chars": False}))

    path = other("bert", "cased", cased)
    words = (path / "vocab.txt").read_text().splitlines()
    unknown = words.index("[UNK]")
    t.check(made("bert", folder("bert"), ["XQ"]) != [[unknown]] and made("bert", path, ["XQ"]) == [[unknown]], "upper case is kept")

    def padded(path):
        (path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<|endoftext|>"}))
        (path / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "!"}}))

    path = other("clip", "padded", padded)
    begin, end = (about("clip", path)[key] for key in ("begin", "end"))
    t.equal(made("clip", path, [""], "--tokens", 4), [{"ids": [begin, end, 0, 0], "length": 2}], "a row padded with \"!\"")
    t.equal(made("clip", path, [""], "--tokens", 4, "--pad", "<|endoftext|>")[0]["ids"], [begin, end, end, end], "by option")


def test_settings_that_nothing_here_does_are_refused():
    def beside(kind, name, config=None, one_file=None):
        def change(path):
            for file, text in (("tokenizer_config.json", config), ("tokenizer.json", one_file)):
                if text is not None:
                    (path / file).write_text(json.dumps(text))
        return other(kind, name, change)

    for kind in KINDS:
        for side in ("padding_side", "truncation_side"):
            refused(kind, beside(kind, f"{kind} {side}", {side: "left"}), ["tokenizer_config.json", f'"{side}" is "left"'])
        made(kind, beside(kind, f"{kind} right", dict(padding_side="right", truncation_side="right")), ["a"])
    refused("bert", beside("bert", "no basic", dict(do_basic_tokenize=False)), ['"do_basic_tokenize" is false'])
    two_ways = "cuts texts otherwise than tokenizer_config.json says"
    normaliser = dict(type="BertNormalizer", lowercase=False)
    refused("bert", beside("bert", "two cases", dict(do_lower_case=True), dict(normalizer=normaliser)), [two_ways])
    refused("bert", beside("bert", "two words", None, dict(model=dict(max_input_chars_per_word=3))), [two_ways])
    same = beside("bert", "same", dict(do_lower_case=False), dict(normalizer=normaliser, model=dict(max_input_chars_per_word=100)))
    made("bert", same, ["a"])

    words = {word: i for i, word in enumerate((folder("bert") / "vocab.txt").read_text().splitlines())}
    model = {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": words, "max_input_chars_per_word": 3}
    one = beside("bert", "short words", None, {"model": model, "normalizer": normaliser | {"lowercase": True}})
    (one / "vocab.txt").unlink()
    short = next(word for word in words if word.isascii() and word.isalpha() and word.islower() and len(word) <= 3)
    t.equal(made("bert", one, [f"{short} abcd"]), [[words[short], words["[UNK]"]]], "a word of four characters, of at most three")
    t.check(words["[UNK]"] not in made("bert", folder("bert"), ["abcd"])[0], "by default it is known")
    (one / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    refused("bert", one, [two_ways])


def test_words_that_were_added_to_a_vocabulary_are_refused():
    """At which transformers cuts a text before all else."""
    word = dict(content="<cat-toy>", lstrip=False, rstrip=False, normalized=True, single_word=False)

    def folders(kind, special):
        one = word | {"special": special}
        for name, text in (("tokenizer_config.json", {"added_tokens_decoder": {"99999": one}}),
                           ("tokenizer.json", {"added_tokens": [one | {"id": 99999}]})):
            yield other(kind, f"{kind} {name} {special}", lambda path: (path / name).write_text(json.dumps(text)))

    for kind in KINDS:
        for path in folders(kind, special=False):
            refused(kind, path, ["adds the word '<cat-toy>'", "without added words"])
        for path in folders(kind, special=True):
            t.equal(made(kind, path, ["a cat"]), made(kind, folder(kind), ["a cat"]), f"{path}: a special word alone")
    for names, is_refused in (([], True), (["<cat-toy>"], False)):

        def older(path):
            (path / "added_tokens.json").write_text(json.dumps({"<cat-toy>": 99999}))
            (path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": names}))

        path = other("clip", f"older {is_refused}", older)
        if is_refused:
            refused("clip", path, ["adds the word '<cat-toy>'"])
        else:
            made("clip", path, ["a cat"])


def test_the_fingerprint_is_what_sha256sum_says_of_the_files():
    for kind, names in (("clip", ["vocab.json", "merges.txt"]), ("bert", ["vocab.txt"]), ("sentencepiece", ["spiece.model"])):
        sums = "".join(f"{hashlib.sha256((folder(kind) / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
        t.equal(about(kind, folder(kind))["fingerprint"], hashlib.sha256(sums.encode()).hexdigest(), f"fingerprint of {kind}")
        flipped = other(kind, f"{kind}_flipped", lambda path: flip(path / names[-1]))
        t.check(about(kind, flipped)["fingerprint"] != about(kind, folder(kind))["fingerprint"], f"{kind}: a flipped byte is not seen")


def flip(path):
    """A bit of the last piece's name or score, or the end of the last pair's line, so that it can be read."""
    data = bytearray(path.read_bytes())
    data[-1 if path.name == "merges.txt" else -2] ^= 7 if path.name == "merges.txt" else 1
    path.write_bytes(data)


def test_what_is_wrong_is_said_in_a_sentence():
    refused("clip", t.work / "nowhere", ["nowhere", "is not there"])
    for kind, name in (("clip", "vocab.json"), ("bert", "vocab.txt"), ("sentencepiece", "spiece.model")):
        size = about(kind, folder(kind))["vocabulary"]
        for rows in (size, size + 128):  # tables are padded
            asked(kind, folder(kind), "--rows", rows)
        refused(kind, folder(kind), [f"{size - 1} pieces", f"has {size}", "trained with"], "--rows", size - 1)
        refused(kind, folder(kind), [f"{size + 256} pieces"], "--rows", size + 256)
        refused(kind, folder(kind), ["has no piece 'nothing'"], "--pad", "nothing")
        refused(kind, folder(kind), ["no place for text"], "--tokens", 1)
        refused(kind, other(kind, f"{kind}_without", lambda path: (path / name).unlink()), [name])

    def only_json(path):
        (path / "spiece.model").rename(path / "tokenizer.json")

    refused("sentencepiece", other("sentencepiece", "only_json", only_json), ["tokenizer.json and no spiece.model", "copy spiece.model"])
    refused("sentencepiece", other("sentencepiece", "torn", lambda path: (path / "spiece.model").write_bytes(b"\xff" * 64)),
            ["spiece.model: is no model of SentencePiece"])
    damages = {
        "a pair": ("merges.txt", lambda text: text + "a b c\n", ["merges.txt:", "not two pieces"]),
        "a piece": ("merges.txt", lambda text: text + "\u2603 b\n", ["needs the piece '\u2603'"]),
        "an id": ("vocab.json", lambda text: text.replace('"!": 0', '"!": 1'), ["the id 1, which another word has"]),
        "an id too high": ("vocab.json", lambda text: text.replace('"!": 0', '"!": 99999'), ["the id 99999"]),
        "a byte": ("vocab.json", lambda text: text.replace('"!": 0', '"!!!!": 0'), ["has no piece '!'"]),
        "no JSON": ("vocab.json", lambda text: text[:-1], ["vocab.json", "not JSON"]),
    }
    for what, (name, change, parts) in damages.items():
        path = other("clip", f"damaged {what}", lambda path: (path / name).write_text(change((path / name).read_text())))
        refused("clip", path, parts)


def test_a_text_that_is_no_utf8_is_refused_at_its_place():
    for kind in KINDS:
        done = subprocess.run([str(t.build / "tests/ditto_tokens"), kind, str(folder(kind))], input=b'"a"\n#a\xffb\n', capture_output=True)
        t.equal((done.returncode, done.stderr.decode()), (4, "error: line 2: is no UTF-8 at byte 1; save it as UTF-8\n"), kind)


# --- in plugins ----------------------------------------------------------------------------------------------------------


@functools.cache
def recipe():
    """Of digits with names. Encoders stand in the recipe's order, and are opened in it."""
    import encoders  # its captioned digits
    encoders.t.work = t.work
    plugins = t.work / "plugins"
    plugins.mkdir()
    shutil.copy(t.build / "tests/fixture_plugins/pieces_text.so", plugins)
    t.environment["DITTO_PLUGIN_PATH"] = str(plugins)
    return dict(run=dict(name="words", steps=3, batch=8),
                data=dict(shards=[encoders.captioned()], validation_shards=[encoders.held_out()], caption="txt"),
                model=dict(plugin="dit_text", depth=1, width=32, heads=4, patch=2))


def written(name, order, kind="sentencepiece"):
    sections = recipe()
    one = {"encoder.text": dict(plugin="pieces_text", tokenizer=str(folder(kind)), kind=kind), "encoder.image": dict(plugin="identity")}
    tree = t.recipe(**sections)
    tree = {key: options for key, options in tree.items() if not key.startswith("encoder.")} | {key: one[key] for key in order}
    return t.write_recipe(f"{name}.toml", tree)


def test_sentencepiece_and_the_host_are_in_one_process_in_either_order():
    for name, order in (("first", ["encoder.text", "encoder.image"]), ("last", ["encoder.image", "encoder.text"])):
        t.train(written(name, order), name, log__tensorboard=True)
        events = b"".join(path.read_bytes() for path in (t.work / name).rglob("events.out.tfevents.*"))
        t.check(b"train/loss" in events, f"{name}: no loss among TensorBoard's events")
    t.same_metrics("first", "last")


def test_no_library_of_the_tree_shows_a_name_of_protocol_buffers():
    files = [pathlib.Path(t.ditto), t.build / "lib/libditto_sdk.so", *(t.build / "lib/ditto").rglob("*.so"),
             *(t.build / "tests/fixture_plugins").glob("*.so")]
    t.check(len(files) > 60, files)
    for file in files:
        names = subprocess.run(["nm", "-D", str(file)], capture_output=True, text=True, check=True).stdout
        found = [line for line in names.splitlines() if "google8protobuf" in line]
        t.check(not found, f"{file}: {found[:3]}")
        needed = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True, check=True).stdout
        t.check("libprotobuf" not in needed, f"{file} loads Protocol Buffers of its own")
        t.equal("libsentencepiece" in needed, file.stem in WITH_SENTENCEPIECE, f"{file} loads SentencePiece")


def test_ditto_tokenize_prints_what_the_encoder_sees():
    path = written("tokenize", ["encoder.image", "encoder.text"])
    row = made("sentencepiece", folder("sentencepiece"), ["a red apple"], "--tokens", 16)[0]
    t.equal(json.loads(t.run("tokenize", path, "a red apple", "--json").stdout),
            [{"encoder": "text", "text": "a red apple", **row}], "ditto tokenize --json")
    ids = " ".join(map(str, row["ids"][:row["length"]]))
    t.equal(t.run("tokenize", path, "a red apple", "--encoder", "text").stdout,
            f"text \"a red apple\": {row['length']} of 16 tokens: {ids}\n", "ditto tokenize")
    t.equal(len(t.run("tokenize", path, "a", "b", "c").stdout.splitlines()), 3, "lines of three texts")
    empty = made("sentencepiece", folder("sentencepiece"), [""], "--tokens", 16)[0]
    t.equal(json.loads(t.run("tokenize", path, "", "--json").stdout), [{"encoder": "text", "text": "", **empty}], "of the empty text")
    t.train(path, "tokenized")
    t.equal(t.run("tokenize", t.work / "tokenized", "a red apple", "--json").stdout,
            t.run("tokenize", path, "a red apple", "--json").stdout, "of a run's folder")
    t.refused(2, ["no encoder 'image' of it has a vocabulary", "image, text"], "tokenize", path, "a", "--encoder", "image")
    t.refused(4, ["is no UTF-8"], "tokenize", path, b"\xff".decode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    t.main(globals())
