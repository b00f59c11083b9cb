"""Tokenizers of the published encoders' sizes, and texts that fill every place: what makes a text costs no more than of real words, and
nothing has to be fetched."""
import io
import itertools
import json
import string
import struct
import tarfile
import zlib

LETTERS = string.ascii_lowercase


def number(value):
    """A varint of protocol buffers."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(written + bytes([value]))


def field(tag, data):
    return number(tag << 3 | 2) + number(len(data)) + data


def piece(text, score, kind):
    return field(1, field(1, text.encode()) + number(2 << 3 | 5) + struct.pack("<f", score) + number(3 << 3) + number(kind))


def words_of_t5():
    """Each a piece: three or four letters."""
    return ("".join(letters) for length in (3, 4) for letters in itertools.product(LETTERS, repeat=length))


def write_t5(folder, pieces=32100):
    """A model of SentencePiece (unigram): padding, end and unknown, then words with a space before them."""
    normal, unknown, control = 1, 2, 3
    model = piece("<pad>", 0, control) + piece("</s>", 0, control) + piece("<unk>", 0, unknown)
    for i, word in enumerate(itertools.islice(words_of_t5(), pieces - 3)):
        model += piece("\u2581" + word, -1 - i / pieces, normal)
    ids = {40: 2, 41: 2**64 - 1, 42: 1, 43: 0}  # unknown, beginning (none), end, padding
    model += field(2, number(3 << 3) + number(1) + b"".join(number(tag << 3) + number(value) for tag, value in ids.items()))
    model += field(3, field(1, b"identity"))
    (folder / "spiece.model").write_bytes(model)


def letters_of_clip():
    """How CLIP's files write bytes, those first that print."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in printed] + [chr(256 + i) for i in range(256 - len(printed))]


def write_clip(folder, pieces=49408):
    """Bytes, bytes at a word's end, and words of two."""
    letters = letters_of_clip()
    merges = list(itertools.islice(itertools.product(letters, letters), pieces - 2 * len(letters) - 2))
    words = letters + [letter + "</w>" for letter in letters] + [a + b + "</w>" for a, b in merges] + ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(f"{a} {b}</w>" for a, b in merges), ""]))


def png(side):
    """A black picture."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes(3 * side)) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write_texts(path, kind, samples, words=130):
    """A tar of small pictures with texts of more words than an encoder has places."""
    each = list(itertools.islice(words_of_t5(), 900)) if kind == "t5" else [a + b for a, b in itertools.product(LETTERS, LETTERS)]
    with tarfile.open(path, "w") as tar:
        for i in range(samples):
            text = " ".join(each[(17 * i + 7 * k) % len(each)] for k in range(words))
            for name, data in (("png", png(8)), ("txt", text.encode())):
                info = tarfile.TarInfo(f"{i:06}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
