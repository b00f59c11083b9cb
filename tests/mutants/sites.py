"""Where a line of C++ can be wrong, and how: the sites of mutants in a source file.

Each mutant is an expression that is the original one unless its number was chosen (mutant.h). The patterns rely on the
layout that clang-format gives (binary operators stand between blanks, template brackets do not). What does not compile
is found by compiling, and is no mutant.
"""

import collections
import dataclasses
import hashlib
import re


@dataclasses.dataclass(frozen=True)
class Site:
    file: str  # relative to the source folder
    line: int  # from 1
    begin: int  # columns of what is replaced
    end: int
    kind: str
    what: str  # one line for people
    text: str  # the replacement; NUMBER stands for the mutant's number
    nth: int  # of those of this file whose kind and line read the same

    @property
    def key(self):
        """The same for as long as the line reads the same, wherever in the file it stands."""
        return f"{self.file}|{self.kind}|{self.nth}|{self.what}"


NUMBER = "@@"
COLLECTIVES = "all_reduce|all_gather|reduce_scatter|all_to_all|exchange|broadcast|begin_all_gather|begin_exchange"
OTHER_AXIS = dict(pipeline="tensor", replicate="shard", shard="replicate", context="tensor", expert="shard", tensor="context")
# Lines that make messages, constants of the compiler and declarations change no training, or cannot be switched.
LEFT_OUT = re.compile(r"\b(throw|Error|Error::|TORCH_CHECK|static_assert|constexpr|template|typename|operator|using|case|enum|to_string|#\w+"
                      r"|fmt::|say|c10::str)\b|^\s*(//|#)|\bnearest\(|std::string\b")


def masked(line):
    """The line with the insides of strings and its comment made blank: columns stay."""
    out, i, quote = list(line), 0, None
    while i < len(line):
        if quote:
            if line[i] == "\\":
                out[i : i + 2] = "  "[: len(line) - i]
                i += 1
            elif line[i] == quote:
                quote = None
            else:
                out[i] = " "
        elif line[i] in "\"'" and not (line[i] == "'" and i and line[i - 1].isalnum()):
            quote = line[i]
        elif line.startswith("//", i):
            return "".join(out[:i]) + " " * (len(line) - i)
        i += 1
    return "".join(out)


def closing(text, open_at):
    """The place of the bracket that closes the one at `open_at`, or -1 where it is on a later line."""
    depth = 0
    for i in range(open_at, len(text)):
        depth += text[i] in "([{"
        depth -= text[i] in ")]}"
        if depth == 0:
            return i
    return -1


def receiver(text, end):
    """Where the expression begins whose member is called at text[end:] ('.' or '->' stands there), or -1."""
    i = end
    while i > 0:
        c = text[i - 1]
        if c in ")]":
            depth, i = 0, i
            while i > 0:
                i -= 1
                depth += text[i] in ")]"
                depth -= text[i] in "(["
                if depth == 0:
                    break
            else:
                return -1
        elif c.isalnum() or c in "_.":
            i -= 1
        elif text.startswith(("->", "::"), i - 2):
            i -= 2
        else:
            break
    return i if i < end and (text[i].isalpha() or text[i] == "_") else -1


CALL = re.compile(r"[A-Za-z_][\w:]*((\.|->|::)\w+|\([^;]*\)|\[[^\]]*\])*\(")
KEYWORDS = re.compile(r"(return|throw|const|auto|if|for|while|switch|delete|else|co_return|new|goto|do|static|struct|class)\b")


def is_call(statement):
    """A statement that only calls something: nothing is declared or assigned by it."""
    if not statement.endswith(");") or KEYWORDS.match(statement) or not CALL.match(statement):
        return False
    depth = 0
    for i, c in enumerate(statement):
        depth += c in "([{"
        depth -= c in ")]}"
        if depth == 0 and c in " =<>" and not statement.startswith("->", i - (c == ">")):
            return False
    return True


def calls(line, text, before):
    """`f(x);` left out."""
    start = len(text) - len(text.lstrip())
    if before and not re.search(r"[;{}:]$|^\s*(if|for|while) \(.*\)$|^\s*else$|^$", before):
        return
    prefix = re.match(r"\s*(else )?(if|for) \(", text)
    if prefix:
        end = closing(text, prefix.end() - 1)
        if end < 0 or end + 2 >= len(text):
            return
        start = end + 2
    statement = text[start:].rstrip()
    if is_call(statement):
        original = line[start : start + len(statement) - 1]
        yield start, start + len(statement) - 1, "call left out", f"ditto_mutant::on({NUMBER}) ? (void)0 : (void)({original})"


def patterns(line, text):
    for match in re.finditer(rf"(\.|->)({COLLECTIVES})\(", text):
        begin = receiver(text, match.start())
        if begin >= 0:
            group = line[begin : match.start()]
            if match[1] == "->":
                group = f"*{group}"
            yield begin, match.start() + len(match[1]), "collective dropped", f"ditto_mutant::alone({NUMBER}, {group})."
            if match[2] in ("all_reduce",):
                yield begin, match.end(), "collective doubled", f"ditto_mutant::all_reduce({NUMBER}, {group}, "
    for match in re.finditer(rf"transposed::({COLLECTIVES})\(([^,()]+), ([\w.>()-]+?)([,)])", text):
        begin, end = match.span(3)
        yield begin, end, "collective dropped", f"ditto_mutant::alone({NUMBER}, {line[begin:end]})"
    for match in re.finditer(r"\bAxis::(\w+)\b", text):
        if match[1] in OTHER_AXIS:
            other = OTHER_AXIS[match[1]]
            yield *match.span(), "other axis", f"(ditto_mutant::on({NUMBER}) ? Axis::{other} : Axis::{match[1]})"
    for match in re.finditer(r"\b(data_group|world)\(\)", text):
        begin = receiver(text, match.start() - 1) if text[match.start() - 1] == "." else -1
        if begin >= 0:
            mesh, other = line[begin : match.start() - 1], "world" if match[1] == "data_group" else "data_group"
            yield begin, match.end(), "other group", f"(ditto_mutant::on({NUMBER}) ? {mesh}.{other}() : {line[begin:match.end()]})"
    for match in re.finditer(r"(\.|->)rank\(\)", text):
        begin = receiver(text, match.start())
        if begin >= 0:
            group = line[begin : match.end() - len("rank()")]
            yield begin, match.end(), "other rank", f"(({group}rank() + ditto_mutant::one({NUMBER})) % {group}size())"
    for match in re.finditer(r" ([+-]) (?=[\w(])", text):
        yield match.end(), match.end(), "other sign", f"ditto_mutant::sign({NUMBER}) * "
    for match in re.finditer(r" ([*/]) (?=[\w(])", text):
        yield match.end(), match.end(), "other scale", f"ditto_mutant::scale({NUMBER}) {match[1]} "
    for match in re.finditer(r" (<|<=|>|>=) (?=[\w(])", text):
        yield match.end(), match.end(), "other bound", f"-ditto_mutant::one({NUMBER}) + "
    for match in re.finditer(r"(?<![\w.])([01])(?![\w.'])", text):
        if not re.search(r"(\{|<)$", text[: match.start()]):
            yield *match.span(), "other number", f"({match[1]} + ditto_mutant::one({NUMBER}))"
    for match in re.finditer(r"\bif \(", text):
        end = closing(text, match.end() - 1)
        inside = line[match.end() : end]
        if end > 0 and ";" not in inside and not re.search(r"[^=!<>]=[^=]", inside):
            yield match.end(), end, "condition turned round", f"ditto_mutant::on({NUMBER}) != static_cast<bool>({inside})"
    for match in re.finditer(r"\breturn (true|false);", text):
        yield *match.span(1), "condition turned round", f"ditto_mutant::on({NUMBER}) != {match[1]}"
    for match in re.finditer(r"\b(mul_|div_)\(", text):
        yield match.end(), match.end(), "other scale", f"ditto_mutant::scale({NUMBER}) * "


def sites(file, lines):
    found, before, in_message, alike = [], "", False, collections.Counter()
    for number, line in enumerate(lines, 1):
        text = masked(line)
        # A message goes on to the end of its statement.
        starts = bool(LEFT_OUT.search(text))
        skipped = starts or in_message
        in_message = skipped and not text.rstrip().endswith((";", "{", "}"))
        if not skipped:
            for begin, end, kind, replacement in [*calls(line, text, before), *patterns(line, text)]:
                what = line.strip()
                found.append(Site(file, number, begin, end, kind, what, replacement, alike[kind, what]))
                alike[kind, what] += 1
        if text.strip():
            before = text.rstrip()
    return found


def draw(found, count, seed):
    """As many of each kind as there are, in turn, so that rare kinds are not lost among frequent ones; none overlap. A line that
    changes leaves the others drawn."""
    by_kind, drawn, taken = collections.defaultdict(list), [], collections.defaultdict(list)
    for site in sorted(found, key=lambda site: hashlib.sha256(f"{seed}|{site.key}".encode()).digest()):
        by_kind[site.kind].append(site)
    while len(drawn) < count and any(by_kind.values()):
        for some in by_kind.values():
            if not some:
                continue
            site = some.pop()
            spans = taken[site.file, site.line]
            if all(site.end < begin or end < site.begin for begin, end in spans) and len(drawn) < count:
                spans.append((site.begin, site.end))
                drawn.append(site)
    return drawn


def numbered(drawn):
    """{number: site}. A site keeps its number, so that what is compiled with it can be kept."""
    found = {}
    for site in drawn:
        number = int.from_bytes(hashlib.sha256(site.key.encode()).digest()[:8], "big") % (1 << 20)
        while number in found:
            number = (number + 1) % (1 << 20)
        found[number] = site
    return found


def mutated(lines, chosen):
    """The file's lines with the sites of `chosen` {number: site} switched in. Sites of one line may not overlap."""
    lines = list(lines)
    for number, site in sorted(chosen.items(), key=lambda item: (item[1].line, item[1].begin), reverse=True):
        line = lines[site.line - 1]
        lines[site.line - 1] = line[: site.begin] + site.text.replace(NUMBER, str(number)) + line[site.end :]
    return lines
