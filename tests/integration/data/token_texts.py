"""Texts that tokenizers may differ on, of tokenizers_test.py and of tests/golden/tokenizers/make.py. Run by Python with Babel,
which has CLDR's names in PyPI."""

import random
import unicodedata

from babel import Locale

LANGUAGES = ("am ar bg bn cs da de el en es et fa fi fr gu he hi hu hy id it ja ka km kn ko lo ml mr my nb pl ru sv ta te th tr vi zh").split()
# Spelled in a text they are text here, and the special words of a vocabulary to transformers.
SPECIAL = ("<|startoftext|>", "<|endoftext|>", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", "</s>", "<pad>", "<unk>", "<extra_id_",
           "\u2581")
SKIN = [chr(c) for c in range(0x1F3FB, 0x1F400)]
PEOPLE = [chr(c) for c in [*range(0x1F466, 0x1F46A), *range(0x1F9D1, 0x1F9DE), 0x1F385, 0x1F46E, 0x1F575, 0x1F3C3]]
THINGS = [chr(c) for c in [0x2764, 0x1F4BB, 0x1F33E, 0x2695, 0x2696, 0x2708, 0x1F52C, 0x1F692, 0x1F680, 0x1F9AF, 0x2640, 0x2642, 0x27A1]]
SIGNS = [chr(c) for c in [*range(0x1F300, 0x1F650), *range(0x1F680, 0x1F6D3), *range(0x2600, 0x27C0), *range(0x2190, 0x2200)]]
SPACES = [chr(c) for c in [9, 10, 11, 12, 13, 32, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]]
HIDDEN = [chr(c) for c in [0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF, 0xAD, 0x61C, 0x180E, 0x202A, 0x202E, 0x2066, 0x2069,
                           0, 1, 7, 0x1B, 0x7F, 0x80, 0x9F, 0xFFFD, 0xE000, 0xF8FF, 0xFE0F, 0xFE0E, 0xE0067, 0xE007F]]
# Letters, the marks that go with them, and how many at most. transformers' SentencePiece composes no letter of six bytes and more
# with its marks, so where marks compose one is the rule.
SCRIPTS = [("aeiouncEOsz", range(0x300, 0x345), 1), ("\u03b1\u03b7\u03c9\u0399", [0x300, 0x301, 0x313, 0x314, 0x342, 0x345], 1),
           ("\u0435\u0438\u0443", [0x300, 0x301, 0x306, 0x308, 0x483, 0x487], 1), ("\u05d0\u05d1\u05e9", range(0x591, 0x5BE), 3),
           ("\u0627\u0628\u0644\u06cc", range(0x64B, 0x660), 1), ("\u0628\u0644", range(0x64B, 0x653), 3),
           ("\u0915\u0916\u0930", [*range(0x93E, 0x94E), 0x901, 0x902], 3), ("\u0995\u09b0", [*range(0x9BE, 0x9C5), 0x981, 0x9CD], 3),
           ("\u0b95\u0bae", [*range(0xBBE, 0xBC3), 0xBCD], 3), ("\u0e01\u0e2d", [*range(0xE34, 0xE3B), *range(0xE47, 0xE4F)], 3),
           ("\u0f40\u0f51", [0xF71, 0xF72, 0xF74, *range(0xF7A, 0xF7E)], 2), ("\u1780\u179f", range(0x17B6, 0x17D4), 3),
           ("\u1000\u101e", range(0x102B, 0x1039), 3)]
ENDINGS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "\u2019s", "''s", "'", "'x", "!'s", "'re'd", "'sd"]


def is_old(text):
    """All of its characters have the class that they had in Unicode 3.2. The tables of transformers' tokenizers are of Unicode 8 to
    13, ours of 15."""
    return all(unicodedata.ucd_3_2_0.category(character) == unicodedata.category(character) for character in text)


def mostly_old(characters):
    """One in twenty of any age."""
    old = [character for character in characters if is_old(character)]
    return old * round(19 * len(characters) / len(old)) + characters


def known():
    """Letters, marks, numbers and signs up to U+32000."""
    return mostly_old([chr(c) for c in range(0x20, 0x32000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co", "Cc")])


def marks():
    return mostly_old([chr(c) for c in range(0x300, 0x1E95A) if unicodedata.category(chr(c)) in ("Mn", "Mc", "Me")])


def names(draw, count):
    """Names of languages, lands, scripts and coins; of each language the same number."""
    every = []
    for language in LANGUAGES:
        locale = Locale.parse(language)
        kinds = [*locale.languages.values(), *locale.territories.values(), *locale.scripts.values(), *locale.currencies.values()]
        every += [(language, name) for name in draw.sample(sorted(set(kinds)), count)]
    return every


def sentences(draw, count):
    """As captions are: some names of a language between words, numbers and signs."""
    out = []
    for language, name in names(draw, count):
        words = [draw.choice(["a photo of", "A painting:", "the", "\u00bb", "(", "No.", "2 x", ""]), name,
                 draw.choice(["", ".", "!", ", 4k", "; 3.14\u20ac", ")", "\u3002", "\u061f", "'s"])]
        out.append(draw.choice([" ", "  ", ""]).join(words) if draw.random() < 0.7 else name.upper() if draw.random() < 0.5 else name)
    return out


def emoji(draw):
    kind = draw.randrange(5)
    if kind == 0:
        return "\u200d".join(draw.choice(PEOPLE) + draw.choice(["", *SKIN]) for _ in range(draw.randint(1, 4)))
    if kind == 1:
        return draw.choice(PEOPLE) + draw.choice(SKIN) + "\u200d" + draw.choice(THINGS) + draw.choice(["", "\ufe0f"])
    if kind == 2:
        return "".join(chr(0x1F1E6 + draw.randrange(26)) for _ in range(draw.randint(1, 5)))
    if kind == 3:
        return "\U0001F3F4" + "".join(chr(0xE0061 + draw.randrange(26)) for _ in range(5)) + "\U000E007F"
    return draw.choice("0123456789#*") + "\ufe0f\u20e3" + draw.choice(SIGNS) + draw.choice(["", "\ufe0f", "\ufe0e"])


def hostile(draw, letters, combining):
    """Pieces of every kind, one after the other, with and without spaces. Rare are those of which is known that transformers'
    SentencePiece takes them otherwise than the original: U+0085, letters with marks of any script, jamo and kana taken apart."""
    def piece():
        kind = draw.randrange(10)
        if kind == 0:
            return draw.choice(SPACES) * draw.randint(1, 3)
        if kind == 1:
            return draw.choice(HIDDEN) if draw.randrange(1000) else "\u0085"
        if kind == 2:
            return emoji(draw)
        if kind == 3:
            rare = ("aeioun\u05d0\u0e01\u0915\uac00\u1780", combining, 3)
            letters_of, marks_of, most = draw.choice(SCRIPTS) if draw.randrange(200) else rare
            return draw.choice(letters_of) + "".join(
                mark if isinstance(mark, str) else chr(mark) for mark in draw.choices(marks_of, k=draw.randint(1, most)))
        if kind == 4:
            return "".join(draw.choice(letters) for _ in range(draw.randint(1, 6)))
        if kind == 5:
            return draw.choice(["it", "WE", "don", "\u0130stanbul", "\u03a3\u03a3"]) + draw.choice(ENDINGS)
        if kind == 6:
            return str(draw.randrange(10 ** draw.randint(1, 12)))
        if kind == 7:
            return "".join(draw.choice("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(draw.randint(1, 5)))
        if kind == 8:
            if draw.randrange(400) == 0:
                return unicodedata.normalize("NFD", draw.choice(["\uac00\ub098\ub2e4", "\u3061\u3099\u30d7\u309a"]))
            return unicodedata.normalize(draw.choice(["NFC", "NFD", "NFKC", "NFKD"]), draw.choice(
                ["\u00e9\u00e0\u00fc\u00f1\u00e7", "\ufb01\u00df\u1e9e", "\u212b\u2126\u00bd\u2460", "\uff21\uff42\uff10",
                 "\u0958\u0a36", "\u01c5\u01f0"]))
        return draw.choice(["Red", "apple", "UNBELIEVABLE", "antidisestablishmentarianism", "\u4e2d\u6587", "\u043c\u0438\u0440"])
    return "".join(piece() for _ in range(draw.randint(1, 12)))


def long_ones(draw, letters):
    """Of 10,000 bytes and a little more: one word, one letter, many words, no letter."""
    yield "a" * 10_000
    yield "ab" * 5_000
    yield "!" * 10_000
    yield " " * 10_000
    yield "\u4e2d" * 3_334
    yield "\U0001F600" * 2_500
    yield "e\u0301" * 3_334
    yield "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(10_000))
    yield " ".join("".join(draw.choice("etaoinshrdlu") for _ in range(draw.randint(1, 9))) for _ in range(1_700))
    yield "".join(draw.choice(letters) for _ in range(3_500))


def texts(count=5_000, seed=37):
    draw = random.Random(seed)
    letters, combining = known(), marks()
    every = ["", " ", "\t", "\n\n", "\u3000", "\u200b", "\u0301", "\ufeffa", "a\0b", "'", "a photo of a cat", *long_ones(draw, letters)]
    every += sentences(draw, count // 80)
    every += [emoji(draw) + draw.choice(["", " ", "x"]) for _ in range(count // 10)]
    while len(every) < count:
        text = hostile(draw, letters, combining)
        if not any(word in text for word in SPECIAL):
            every.append(text)
    draw.shuffle(every)
    return every[:count]
