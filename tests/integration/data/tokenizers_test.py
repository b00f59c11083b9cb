"""Tokenizers against transformers', with vocabularies as published and on 5,000 texts.

Claim (data): On 5,000 texts CLIP's and BERT's tokenizers (CLIP's merges, MiniLM's vocabulary) and SentencePiece models of 8,000 and 32,000
pieces give transformers' ids, but for at most 0.3 %, each printed: BERT's and CLIP's where a character is younger than transformers'
tables, SentencePiece's where these have not the original's own ids.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

peer = pathlib.Path(os.environ.get("DITTO_PEERS_TOKENIZERS", t.source / ".deps/peers_tokenizers/bin/python"))
if not peer.exists():
    print("not run: needs the peers of cmake/peers_tokenizers.txt (./dev peers)")
    sys.exit(77)
if os.environ.get("DITTO_IN_PEER") != str(peer):
    os.execve(peer, [str(peer), *sys.argv], os.environ | {"DITTO_IN_PEER": str(peer), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})

import token_files  # noqa: E402
import token_texts  # noqa: E402
import text_ids as ours  # noqa: E402
from sentencepiece import SentencePieceProcessor  # noqa: E402

COUNT, MOST = 5_000, 0.003
MADE = {"clip": token_files.clip_as_published, "bert": token_files.bert_as_published,
        "sentencepiece_8k": lambda folder: token_files.train_sentencepiece(folder, 8_000),
        "sentencepiece_32k": lambda folder: token_files.train_sentencepiece(folder, 32_000)}
KNOWN = {"clip": ("a photo of a cat", [320, 1125, 539, 320, 2368]), "bert": ("a photo of a cat", [1037, 6302, 1997, 1037, 4937])}
_texts = []


def texts():
    _texts[:] = _texts or token_texts.texts(COUNT)
    return _texts


def of_kind(name):
    folder = t.work / name
    if not folder.exists():
        MADE[name](folder)
    return name.split("_")[0], folder


def parted(name, found, expected):
    """The texts of which the ids are others, each printed."""
    apart = [(text, a, b) for text, a, b in zip(texts(), found, expected) if a != b]
    for text, a, b in apart:
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        print(f"{name}: of {ascii(text[:120])} piece {at} is {a[at:at + 3]}, and transformers' {b[at:at + 3]}")
    t.check(len(apart) <= MOST * COUNT, f"{name}: {len(apart)} of {COUNT} texts have other ids than transformers'")
    return [text for text, _, _ in apart]


def test_the_texts_are_what_they_are_said_to_be():
    every = texts()
    t.equal(len(every), COUNT, "texts")
    t.check(len(set(every)) > 0.98 * COUNT and len(token_texts.LANGUAGES) == 40, "they are different, and of 40 languages")
    longest = [text for text in every if len(text.encode()) >= 10_000]
    t.check(len(longest) >= 9 and "" in every and any("\t" in text for text in every), "long ones, the empty one, tabs")
    t.check(sum("\u200d" in text for text in every) > 300 and sum(not text.isascii() for text in every) > 3_000, "emoji, other scripts")


def test_clip_and_bert():
    for name in ("clip", "bert"):
        kind, folder = of_kind(name)
        text, ids = KNOWN[name]
        t.equal(ours.made(kind, folder, [text]), [ids], f"{name}: known ids")
        apart = parted(name, ours.made(kind, folder, texts()), token_files.pieces(token_files.open_peer(kind, folder), texts()))
        t.check(not any(map(token_texts.is_old, apart)), f"{name}: other ids of old characters")


def test_sentencepiece():
    for name in ("sentencepiece_8k", "sentencepiece_32k"):
        kind, folder = of_kind(name)
        found = ours.made(kind, folder, texts())
        parted(name, found, token_files.pieces(token_files.open_peer(kind, folder), texts()))
        original = SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        apart = [text for text, ids in zip(texts(), found) if ids != original.encode(text)]
        # Of two ways to cut a text of thousands of letters the scores may be equal but for rounding.
        t.check(len(apart) <= 2 and all(len(text) >= 10_000 for text in apart), f"{name}: other ids than the original's: {len(apart)}")


def test_what_transformers_saves_today_is_read():
    """One tokenizer.json."""
    for kind in ("clip", "bert"):
        _, folder = of_kind(kind)
        saved = t.work / f"{kind}_saved"
        token_files.open_peer(kind, folder).save_pretrained(saved)
        t.check(not (saved / "vocab.txt").exists() and not (saved / "vocab.json").exists(), "the older files are there as well")
        some = texts()[:500]
        ours.alike(kind, some, ours.made(kind, saved, some), ours.made(kind, folder, some))


def test_rows():
    """77 places, of texts of which transformers makes the same pieces."""
    some = texts()[:500]
    for name in ("clip", "bert", "sentencepiece_8k"):
        kind, folder = of_kind(name)
        peer_of_it = token_files.open_peer(kind, folder)
        pieces = zip(some, ours.made(kind, folder, some), token_files.pieces(peer_of_it, some))
        same = [text for text, a, b in pieces if a == b]
        t.check(len(same) >= 490, f"{name}: {len(same)} of 500 texts have the same pieces")
        ours.alike(name, same, ours.made(kind, folder, same, "--tokens", 77), token_files.rows(peer_of_it, same, 77))


if __name__ == "__main__":
    t.main(globals())
