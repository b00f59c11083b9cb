"""Some forty hostile files of each kind that Ditto reads from elsewhere: each is refused within a second and 512 MiB, with
the right exit code and one message that names the file, what was found and what was expected.

All of them go through one process (tests/hostile/main.cpp), which calls the readers as the program does; two of each kind
go through `ditto` itself."""

import gzip
import json
import os
import pathlib
import struct
import subprocess
import sys
import zipfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

MOST_SECONDS, MOST_MIB = 1, 512
program = str(pathlib.Path(os.environ.get("DITTO_BUILD_DIR", t.source / "build/release")) / "tests/ditto_hostile")


def refused(kind, code, suffix, cases):
    """`cases`: (bytes, words of the message, …) each; the file's name is always one of the words."""
    t.check(len(cases) >= 40, f"{len(cases)} files of kind {kind}, 40 or more are promised")
    folder = t.work / kind
    folder.mkdir(exist_ok=True)
    paths = []
    for number, (data, *_) in enumerate(cases):
        paths.append(folder / f"{kind}-{number:02}{suffix}")
        paths[-1].write_bytes(data if isinstance(data, bytes) else data.encode())
    done = subprocess.run([program], input="".join(f"{kind} {path}\n" for path in paths), capture_output=True, text=True,
                          timeout=t.patient(120), env=t.environment)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    t.check(done.returncode == 0 and len(outcomes) == len(paths),
            f"the reader ended with {done.returncode} at {paths[min(len(outcomes), len(paths) - 1)]}: {done.stderr[-2000:]}")
    wrong = []
    for path, (_, *words), found in zip(paths, cases, outcomes):
        missing = [word for word in [path.name, *words] if word not in found["message"]]
        if found["code"] != code or missing or len(found["message"]) > 1500 or "\n" in found["message"] or \
                found["seconds"] > MOST_SECONDS or found["peak_mib"] > MOST_MIB:
            wrong.append(f"{path.name}: expected {code} and {words}, found {found}")
    t.check(not wrong, "\n".join(wrong))
    return paths


# --- recipes -----------------------------------------------------------------------------------------------------------


def test_recipes():
    many = "\n".join(f"k{i} = 1" for i in range(1500))
    paths = refused("recipe", 2, ".toml", [
        (b"\x00", ":1:1", "0x00", "control character"),
        (b"[run]\nname = \"\xff\"", ":2:9", "0xFF is not UTF-8", "save the file as UTF-8"),
        (b"[run]\nname = \"\xc0\x80\"", ":2:9", "not UTF-8"),
        (b"[run]\nname = \"\xed\xa0\x80\"", "not UTF-8"),
        (b"[run]\r", ":1:6", "carriage return stands alone"),
        ("[run]\nname = \"a\x1b[31m\"", ":2:10", "0x1B", "control character"),
        ("[run]\nnáme = 1", ":2:2", "not ASCII", "put the text in quotes"),
        (bytes(range(256)) * 8, "not UTF-8"),
        ("[@", ":1:", "not TOML"),
        ("[run", "not TOML"),
        ("run = {", "not TOML"),
        ("[run]\nname = \"x", "not TOML"),
        ("[run]\nname = '''x", "not TOML"),
        ("[run]\nseed = 1\nseed = 2", ":3:", "not TOML"),
        ("[run]\n[run]", ":2:", "not TOML"),
        ("[run]\nseed = 99999999999999999999", ":2:", "not TOML"),
        ("[run]\nseed = 0x", ":2:", "not TOML"),
        ("[run]\nname = \"\\uD800\"", ":2:", "not TOML"),
        ("[run]\nname = 1979-05-27", ":2:8", "date or time", "write it as a string"),
        ("a = " + "[" * 100 + "]" * 100, "not TOML"),
        ("a = " + "{b = " * 100 + "1" + "}" * 100, "not TOML"),
        (".".join("a" * 100) + " = 1", ":1:", "more than 64 parts"),
        ("[" + ".".join("a" * 100) + "]", ":1:", "more than 64 parts"),
        ("a = [" + "0," * 200_000 + "]", "over 100,000 values"),
        ("a = [" + "[]," * 100_000 + "]", "over 100,000 values"),
        ("\n".join("[" + ".".join(f"a{i}_{j}" for j in range(50)) + "]" for i in range(3000)), "over 100,000 values"),
        ("# " + "x" * (5 << 20), "5242882 bytes", "at most 4194304", "check the path"),
        ("[kernels]\n" + many, "over 1000 keys"),
        (many, "over 1000 keys"),
        ("[model]\n" + "\n".join(f"[model.t{i}]" for i in range(1001)), "over 1000 keys"),
        ("model = 3", ":1:9", "model is integer", "[model]"),
        ("[model]\nplugin = 3", ":2:10", "expected a plugin's id"),
        ("[model]\nplugin = \"\"", "expected a plugin's id"),
        ("[run]\nsteps = -1", ":2:9", "run.steps is -1", "at least 0"),
        ("[run]\nthreads = 1000000", ":2:11", "run.threads is 1000000", "0 to 4096"),
        ("[run]\nbatch = 4611686018427387904", ":2:9", "run.batch is 4611686018427387904", "1 to 16777216"),
        ("[run]\nname = [1, \"a\"]", ":2:8", "a list of mixed types"),
        ("[run]\nname = {a = 1}", "run.name is a table"),
        ("[run]\nclip_norm = nan", ":2:13", "run.clip_norm is nan"),
        ("[parallel]\ntensor = 9223372036854775807", ":2:10", "1 to 1048576"),
        ("[loader]\nthreads = 1000000", ":2:11", "0 to 256"),
        ("[validate]\ngrid = 1000000", ":2:8", "1 to 4096"),
        ("[evil]\nx = 1", ":1:1", "no section \"evil\""),
        ("include = 3", ":1:11", "include is integer", "expected a file's name"),
        ("include = [\"/nowhere/x.toml\"]", ":1:", "which is not at"),
        ("include = [[]]", "include is list"),
    ])
    t.refused(2, [paths[0].name, "control character"], "config", "check", paths[0])
    t.refused(2, [paths[23].name, "over 100,000 values"], "train", paths[23])


# --- safetensors -------------------------------------------------------------------------------------------------------


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(**fields):
    return {"w": dict(dtype="F32", shape=[2], data_offsets=[0, 8]) | fields}


def test_safetensors():
    def bad(data=b"\0" * 8, **fields):
        return safetensors({"w": {key: value for key, value in one(**fields)["w"].items() if value is not None}}, data)
    huge = 1 << 62
    paths = refused("safetensors", 7, ".safetensors", [
        (b"", "has 0 bytes", "8 or more"),
        (b"\0" * 7, "has 7 bytes"),
        (b"\0" * 8, "does not start with '{'"),
        (b"\xff" * 64, "over 100,000,000"),
        (struct.pack("<Q", 1 << 40) + b"{}", "length 1099511627776 is over 100,000,000"),
        (struct.pack("<Q", 99_999_999) + b"{}", "only 2 bytes follow"),
        (struct.pack("<Q", 3) + b"{}", "only 2 bytes follow"),
        (safetensors("[]"), "does not start with '{'"),
        (safetensors("{"), "not JSON"),
        (safetensors('{"w"'), "not JSON"),
        (safetensors('{"w": {}}{'), "no dtype"),
        (safetensors(b'{"\xff": 1}'), "not JSON"),
        (safetensors(b'{"a\0": 1}'), "NUL"),
        (safetensors('{"w": ' + "[" * 200), "stands where an object"),
        (safetensors('{"w": {"x": ' + "[" * 200 + "]" * 200 + "}}"), "deeper than 128"),
        (safetensors('{"w": {"x": ' + '{"a":' * 200), "deeper than 128"),
        (safetensors({"w": 1}), "'w'", "a number stands where"),
        (safetensors({"w": None}), "null stands where"),
        (bad(dtype=None), "no dtype"),
        (bad(shape=None), "no shape"),
        (bad(data_offsets=None), "data_offsets must be two numbers"),
        (bad(dtype="F33"), "dtype 'F33' is unknown"),
        (bad(dtype=7), "'dtype' is a number"),
        (bad(shape=8), "'shape' is a number"),
        (bad(shape=[2.5]), "whole numbers are expected"),
        (bad(shape=[-2]), "a negative number"),
        (bad(shape=["2"]), "a string"),
        (bad(shape=[1] * 65), "more than 64 dims"),
        (bad(shape=[huge, huge]), "does not fit 64 bits"),
        (bad(shape=[huge]), "does not fit 64 bits"),
        (bad(shape=[1 << 63]), "does not fit 63 bits"),
        (bad(shape=[1 << 64]), "a number that is no 64-bit integer"),
        (bad(shape=[3]), "has 8 bytes", "need 12"),
        (bad(dtype="F4", shape=[3], data_offsets=[0, 1]), "do not fill whole bytes"),
        (bad(data_offsets=[0]), "must be two numbers"),
        (bad(data_offsets=[0, 8, 16]), "more than two numbers"),
        (bad(data_offsets=[8, 0]), "ends before it begins"),
        (bad(data_offsets=[8, 16]), "begins at byte 8"),
        (bad(data=b"\0" * 7), "need 8 bytes", "the file has 7", "cut off"),
        (bad(data=b"\0" * 9), "1 bytes at the end belong to no tensor"),
        (safetensors('{"w":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"w":{}}', b"\0"), "'w' is there twice"),
        (safetensors('{"w":{"dtype":"U8","dtype":"U8"}}'), "field 'dtype' is there twice"),
        (safetensors({"a": dict(dtype="U8", shape=[2], data_offsets=[0, 2]), "b": dict(dtype="U8", shape=[2], data_offsets=[1, 3])},
                     b"\0" * 3), "'b'", "begins at byte 1"),
        (safetensors({"a\x1b[2J": 1}), "control character"),
        (safetensors({"__metadata__": 3}), "__metadata__ is a number"),
        (safetensors({"__metadata__": {"a": 3}}), "a number at 'a'", "a string is expected"),
        (safetensors('{"__metadata__": {"a": "1", "a": "2"}}'), "twice in __metadata__"),
        (safetensors({"__metadata__": {f"k{i}": "" for i in range(70_000)}}), "over 65,536 entries"),
        (safetensors("{" + ",".join(f'"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(260_000)) + "}"),
         "over 250,000 tensors"),
    ])
    recipe = t.write_recipe("import.toml", t.recipe(data=t.synthetic(), run=dict(output=str(t.work / "imported"))))
    for number in (4, 48):
        t.refused(7, [paths[number].name], "checkpoint", "import", paths[number], "--recipe", recipe, "--format", "facebook-dit", "--out", t.work / "never")


# --- a checkpoint's index ------------------------------------------------------------------------------------------------


def index(shape=(2, 3), dtype="F32", start=(0, 0), size=(2, 3), **changes):
    piece = {"file": "model-00000.safetensors", "tensor": "w", "start": start, "size": size} | changes.pop("piece", {})
    tensor = {"dtype": dtype, "shape": shape, "pieces": [{key: value for key, value in piece.items() if value is not None}]}
    tensor |= changes.pop("tensor", {})
    root = {"format": 1, "tensors": {"model": {"w": {key: value for key, value in tensor.items() if value is not None}}}}
    return json.dumps(root | changes)


def test_an_honest_index_of_40000_tensors_is_read_within_a_second():
    tensors = {f"blocks.{i // 40}.some_layer_{i % 40}.weight": {
        "dtype": "F32", "shape": [1152, 4608], "pieces": [{"file": f"model-{i % 8:05}.safetensors",
                                                           "tensor": f"blocks.{i // 40}.some_layer_{i % 40}.weight",
                                                           "start": [0, 0], "size": [1152, 4608]}]} for i in range(40_000)}
    path = t.work / "large-index.json"
    path.write_text(json.dumps({"format": 1, "tensors": {"model": tensors}}))
    done = subprocess.run([program], input=f"index {path}\n", capture_output=True, text=True, timeout=t.patient(120), env=t.environment)
    found = json.loads(done.stdout)
    t.check(found["code"] == 0 and found["seconds"] < MOST_SECONDS and found["peak_mib"] < MOST_MIB, found)


def test_indexes():
    paths = refused("index", 7, ".json", [
        ("", "not JSON"),
        ("{", "not JSON", "line 1"),
        ("nul", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ("[1,]", "not JSON"),
        ("// x\n{}", "not JSON"),
        ("1 2", "not JSON"),
        (b"1\0", "NUL byte"),
        (b'"\xff"', "not JSON"),
        (b"\xfe\xff\0{", "NUL byte"),
        ("[" * 100_000, "deeper than 128"),
        ('{"a":' * 100_000, "deeper than 128"),
        ('{"a": 1, "a": 2}', "'a' is there twice"),
        ('{"tensors": {"model": {"w": {}, "w": {}}}}', "'w' is there twice"),
        ("1e999", "not JSON"),
        ("[" + '{"":0},' * 800_000 + "0]", "takes more memory"),
        ("[" + "[[[]]]," * 800_000 + "0]", "takes more memory"),
        ("[]", "not an index"),
        ("{}", "not an index", "format"),
        ("7", "not an index"),
        (index(format=2), "has format 2", "reads format 1"),
        (index(format="1"), 'has format "1"'),
        (index(format=True), "has format true"),
        (index(format=1.5), "has format 1.5"),
        (index(tensors=7), "not an index"),
        (index(tensors={"model": 7}), "not an index"),
        (index(tensors={"model": {"w": 7}}), "not an index"),
        (index(tensor=dict(dtype=None)), "dtype"),
        (index(tensor=dict(dtype=7)), "not an index"),
        (index(tensor=dict(shape=None)), "shape"),
        (index(tensor=dict(pieces=None)), "pieces"),
        (index(shape=(-2, 3)), "'w'", "[-2, 3]", "no tensor has"),
        (index(shape=(1 << 40, 1 << 40)), "no tensor has"),
        (index(shape=(1,) * 65), "no tensor has"),
        (index(shape=(2.5, 3)), "2.5 is not a whole number"),
        (index(shape=("2", 3)), "is not a whole number"),
        (index(shape=(1 << 63, 3)), "'w'"),
        (index(start=(0,)), "not inside"),
        (index(size=(2,)), "not inside"),
        (index(start=(-1, 0)), "not inside"),
        (index(start=(1, 0)), "piece at [1, 0] of size [2, 3] is not inside [2, 3]"),
        (index(size=(0, 3)), "not inside"),
        (index(size=(1 << 62, 3)), "not inside"),
        (index(start=(1 << 62, 0)), "not inside"),
        (index(piece=dict(file=None)), "file"),
        (index(piece=dict(file=7)), "not an index"),
        (index(piece=dict(tensor=None)), "tensor"),
        (index(piece=dict(size=None)), "size"),
        (index(piece=dict(start=None)), "start"),
    ])
    # In a checkpoint the manifest's checksum comes first; nothing of such an index is read.
    run = t.write_recipe("trained.toml", t.recipe(data=t.synthetic(), run=dict(steps=1, output=str(t.work / "trained"))))
    t.run("train", run)
    checkpoint = t.latest("trained")
    for number in (10, 15):
        (checkpoint / "index.json").write_bytes(paths[number].read_bytes())
        done = t.run("checkpoint", "verify", checkpoint, code=7)
        t.check("index.json: has" in done.all and "the manifest says" in done.all, done.all)


# --- tables ------------------------------------------------------------------------------------------------------------


def test_tables():
    packed = gzip.compress(b"1,2,3\n" * 1000, mtime=0)
    def bomb(text, times):
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join([packer.compress(text) for _ in range(times)]) + packer.flush()
    million = b"0" * (1 << 20)
    paths = refused("table", 4, ".csv", [
        ("", "no row of numbers"),
        ("\n\n\n", "no row of numbers"),
        ("a,b,c\n", "no row of numbers"),
        ("a,b\nc,d\n", ":2:1", 'found "c"', "expected a number"),
        ("1,2\n3\n", ":2", "found 1 fields", "the first line has 2"),
        ("1,2\n3,4,5\n", ":2", "found 3 fields"),
        ("1,2\n3,\n", ":2:2", 'found ""'),
        ("1,x\n", ":1:2", 'found "x"'),
        ("1,inf\n", ":1:2", 'found "inf"'),
        ("nan,1\n", ":1:1", 'found "nan"'),
        ("1,1e999\n", ":1:2", "1e999"),
        ("1,0x10\n", ":1:2", "0x10"),
        ("1,1_000\n", ":1:2"),
        ("1,--2\n", ":1:2"),
        ("1,+-2\n", ":1:2"),
        ("1,2 3\n", ":1:2"),
        ("1,1.2.3\n", ":1:2"),
        ("1;2;3,4\n", ":1:3", "3,4"),
        ("1\t2\n3,4\n", ":2", "found 1 fields"),
        (b"1,\0\n", ":1:2", 'found "'),
        (b"1,\x1b[31m\n", ":1:2", "expected a number"),
        (b"1,\xff\n", ":1:2", "expected a number"),
        ("1," + "9" * 100_000 + "\n", ":1:2", "expected a number"),
        ("1," + "x" * 1_000_000 + "\n", ":1:2", "expected a number"),
        (b"1\0,\x002\0\n\0", "is UTF-16"),
        (b"7," + bytes(range(256)) * 16, ":2:1"),
        (b"1\n" + b"\x00" * 100_000, ":2:1"),
        ("," * 5_000_000, ":1", "over 4000000 fields"),
        (";" * 5_000_000, ":1", "over 4000000 fields"),
        ("1\n" + "," * 5_000_000, ":2", "over 4000000 fields"),
        (packed[:-1], "cannot be read", "cut off"),
        (packed[:-8], "cannot be read"),
        (packed[:30], "cannot be read"),
        (packed[:-8] + b"\0" * 8, "cannot be read", "damaged"),
        (packed[:20] + b"\xff" * 20 + packed[40:], "cannot be read"),
        (gzip.compress(b"1,2\n3\n", mtime=0), ":2", "found 1 fields"),
        (gzip.compress(packed, mtime=0), "no row of numbers"),
        (bomb(million, 50), "unpack to", "over 100 times as many", "unpack it first"),
        (bomb(b"\0" * (1 << 20), 50), "over 100 times as many"),
        (bomb(b"\n" * (1 << 20), 50), "over 100 times as many"),
        (bomb(b"0," * (1 << 19), 50), "over 100 times as many"),
        (bomb(b"0,1\n" * (1 << 18), 50), "over 100 times as many"),
    ])
    for number in (7, 37):
        t.refused(4, [paths[number].name], "data", "prepare", paths[number], "--out", t.work / "shards", "--shape", "1x2", "--label",
                  "none")


# --- shards ------------------------------------------------------------------------------------------------------------


def tar_header(name=b"0001.png", size=0, kind=b"0", checksum=None, magic=b"ustar\x0000", **fields):
    block = bytearray(512)
    def put(at, data):
        block[at:at + len(data)] = data
    put(0, name[:100])
    put(100, b"0000644\0")
    put(108, b"0000000\0")
    put(116, b"0000000\0")
    put(124, fields.get("raw_size", b"%011o\0" % size))
    put(136, b"00000000000\0")
    put(156, kind)
    put(157, fields.get("link", b""))
    put(257, magic)
    put(148, b" " * 8)
    put(148, b"%06o\0 " % (sum(block) if checksum is None else checksum))
    return bytes(block)


def member(name, data=b"", **fields):
    return tar_header(name, len(data), **fields) + data + b"\0" * (-len(data) % 512)


def pax(records, kind=b"x"):
    text = b""
    for key, value in records:
        length = len(key) + len(value) + 3
        while len(str(length)) + len(key) + len(value) + 3 != length:
            length = len(str(length)) + len(key) + len(value) + 3
        text += b"%d %s=%s\n" % (length, key, value)
    return member(b"PaxHeader", text, kind=kind)


def test_tars():
    end, good = b"\0" * 1024, member(b"0001.png", b"p" * 100)
    whole = good + member(b"0001.cls", b"3") + end
    def flipped(at, mask=1):
        return whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1:]
    paths = refused("tar", 4, ".tar", [
        (b"", "the file is empty"),
        (b"\0" * 511, "not a tar archive"),
        (b"hello" * 200, "not a tar archive"),
        (b"PK\3\4" + b"\0" * 600, "not a tar archive"),
        (gzip.compress(whole, mtime=0), "compressed", "unpack it"),
        (b"BZh9" + b"x" * 600, "compressed"),
        (b"\xfd7zXZ\0" + b"x" * 600, "compressed"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 600, "compressed"),
        (b"\xff" * 512 + end, "not a tar archive"),
        (tar_header(checksum=1) + end, "not a tar archive"),
        (flipped(0), "not a tar archive"),
        (flipped(124), "not a tar archive"),
        (flipped(1024), "header is damaged", "at byte 1024"),
        (flipped(1024 + 124), "at byte 1024"),
        (flipped(1024 + 150), "at byte 1024"),
        (whole[:100], "not a tar archive"),
        (whole[:512], "cut off", "0001.png"),
        (whole[:600], "cut off", "0001.png"),
        (whole[:1024], "no end mark"),
        (whole[:1100], "header is damaged", "at byte 1024"),
        (whole[:1536], "cut off"),
        (whole[:2048], "no end mark"),
        (good + end[:511], "header is damaged", "at byte 1024"),
        (tar_header(size=1 << 30) + end, "'0001.png' of 1073741824 bytes is cut off"),
        (tar_header(size=8589934591) + end, "is cut off"),
        (tar_header(raw_size=b"\x80" + b"\xff" * 11) + end, "at byte"),
        (tar_header(raw_size=b"\xff" * 12) + end, "at byte"),
        (tar_header(raw_size=b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7) + end, "at byte"),
        (pax([(b"size", b"99999999999999999999")]) + good + end, "at byte"),
        (pax([(b"size", b"1000000")]) + good + end, "is cut off"),
        (pax([(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"1000")]) + good + end, "at byte"),
        (tar_header(b"PaxHeader", 1 << 29, kind=b"x") + good + end, "at byte"),
        (tar_header(b"PaxHeader", 1 << 33, kind=b"x", raw_size=b"\x80" + b"\0" * 6 + b"\2" + b"\0" * 4) + good + end, "at byte"),
        (tar_header(b"././@LongLink", 1 << 29, kind=b"L") + good + end, "at byte"),
        (tar_header(b"././@LongLink", 1 << 29, kind=b"K") + good + end, "at byte"),
        (good + b"garbage" * 100 + end, "header is damaged"),
        (good + b"x" * 512 + end, "header is damaged", "at byte 1024"),
        (whole[:2048] + member(b"0001.png", b"q") + end, "0001.png", "there twice"),
        (member(b"a.png", b"1") + member(b"b.png", b"2") + member(b"a.cls", b"3") + end, '"a" stands in two places'),
        (member(b"a.png", b"1") + member(b"a.PNG", b"2") + end, "there twice"),
        (member(b"x" * 99 + b".", b"1") + member(b"x" * 99 + b".", b"1") + end, "twice"),
    ])
    t.run("data", "verify", paths[12], code=4)
    done = t.run("data", "verify", paths[23], code=4)
    t.check("1073741824 bytes is cut off" in done.all, done.all)


# --- pictures ----------------------------------------------------------------------------------------------------------


def chunk(kind, body, length=None, checksum=None):
    checksum = zlib.crc32(kind + body) if checksum is None else checksum
    return struct.pack(">I", len(body) if length is None else length) + kind + body + struct.pack(">I", checksum)


def png(width=4, height=4, depth=8, colour=2, rows=None, before=b"", after=b"", interlace=0, compression=0, end=True):
    rows = (b"\0" + bytes(12)) * 4 if rows is None else rows
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, compression, 0, interlace)) + \
        before + chunk(b"IDAT", zlib.compress(rows, 9)) + after + (chunk(b"IEND", b"") if end else b"")


def test_pictures():
    golden = t.source / "tests/golden/formats"
    jpeg, progressive, webp, alpha = (golden.joinpath(name).read_bytes() for name in
                                      ("rgb.jpg", "progressive.jpg", "rgb.webp", "rgba.webp"))
    def resized(data, marker, size):
        at = data.index(marker) + 5
        return data[:at] + struct.pack(">HH", *size) + data[at + 4:]
    def scans(data, times):
        """The last scan of a progressive file many times over."""
        at = data.rindex(b"\xff\xda")
        return data[:at] + data[at:-2] * times + data[-2:]
    def refined(width, height):
        """Grey, each of 63 coefficients in a scan a bit: 882 scans of few bytes, each of which visits all blocks."""
        blocks = -(-width // 8) * -(-height // 8)
        def segment(marker, body):
            return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body
        def scan(first, last, high, low, bits):
            bits += "1" * (-len(bits) % 8)
            data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
            return segment(0xDA, bytes([1, 1, 0, first, last, high << 4 | low])) + data
        nothing = ("0" + "1" * 14) * (blocks // 32767 + 1)  # for 32767 blocks at once
        def table(symbol):  # one code, of one bit
            return bytes([1]) + bytes(15) + symbol
        return b"\xff\xd8" + segment(0xDB, bytes([0]) + b"\1" * 64) + \
            segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + bytes([1, 0x11, 0])) + \
            segment(0xC4, b"\x00" + table(b"\0")) + segment(0xC4, b"\x10" + table(b"\xe0")) + \
            scan(0, 0, 0, 0, "0" * blocks) + \
            b"".join(scan(k, k, 0, 13, nothing) + b"".join(scan(k, k, bit, bit - 1, nothing) for bit in range(13, 0, -1))
                     for k in range(1, 64)) + \
            b"\xff\xd9"
    def lossless(width, height):
        bits = (width - 1) | (height - 1) << 14
        body = b"\x2f" + struct.pack("<I", bits) + b"\0" * 20
        return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBPVP8L" + struct.pack("<I", len(body)) + body
    plain = png()
    paths = refused("picture", 4, "", [
        (b"", "the picture is empty"),
        (b"GIF89a" + b"\0" * 100, "the GIF does not decode"),
        (b"BM" + b"\0" * 100, "not those of"),
        (b"II*\0" + b"\0" * 100, "the TIFF does not decode"),
        (b"<svg/>", "not those of"),
        (b"\x89PNG\r\n\x1a\n", "the PNG does not decode"),
        (plain[:30], "the PNG does not decode"),
        (plain[:50], "claims", "follow"),
        (plain[:-12], "the PNG does not decode", "cut off"),
        (png(width=0), "the PNG does not decode"),
        (png(width=1 << 31), "the PNG does not decode"),
        (png(width=100_000, height=100_000), "100000x100000 pixels"),
        (png(width=8193, height=8193), "8193x8193 pixels", "67108864"),
        (png(width=1 << 24, height=1 << 24), "pixels"),
        (png(width=1 << 23, height=1 << 23, colour=0, depth=1), "pixels"),
        (png(width=8192, height=8192, colour=6), "the PNG does not decode"),
        (png(width=4000, height=4000), "the PNG does not decode"),
        (png(depth=3), "the PNG does not decode"),
        (png(colour=5), "the PNG does not decode"),
        (png(compression=1), "the PNG does not decode"),
        (png(interlace=7), "the PNG does not decode"),
        (png(colour=3), "the PNG does not decode"),
        (png(rows=b"\0" * 10), "the PNG does not decode"),
        (png(rows=b"\7" + bytes(12) * 4), "the PNG does not decode"),
        (png(end=False), "the PNG does not decode"),
        (plain.replace(b"IDAT", b"IDAX"), "the PNG does not decode"),
        (png(before=chunk(b"ABCD", b"")), "the PNG does not decode"),
        (png(before=chunk(b"tEXt", b"a\0b", length=1 << 30)), "claims 1073741824 bytes"),
        (png(before=chunk(b"IDAT", b"", length=(1 << 31) - 1)), "claims 2147483647 bytes"),
        (png(before=chunk(b"zTXt", b"", length=0xFFFFFFFF)), "claims 4294967295 bytes"),
        (plain[:-5] + b"\0" * 5, "the PNG does not decode"),
        (plain[:60] + b"\xff" + plain[61:], "the PNG does not decode"),
        (jpeg[:20], "the JPEG does not decode"),
        (jpeg[:-2], "the JPEG does not decode"),
        (jpeg[:len(jpeg) // 2], "the JPEG does not decode"),
        (b"\xff\xd8\xff" + b"\0" * 100, "the JPEG does not decode"),
        (b"\xff\xd8\xff\xd9", "the JPEG does not decode"),
        (resized(jpeg, b"\xff\xc0", (0, 16)), "the JPEG does not decode"),
        (resized(jpeg, b"\xff\xc0", (65500, 65500)), "65500x65500 pixels"),
        (resized(jpeg, b"\xff\xc0", (8000, 8000)), "the JPEG does not decode"),
        (resized(progressive, b"\xff\xc2", (8000, 8000)), "8000x8000", "MiB of memory"),
        (scans(resized(progressive, b"\xff\xc2", (5000, 5000)), 400), "JPEG does not decode") ,
        (refined(8, 8), "too many scans: over 500"),
        (refined(5000, 5000), "too many scans: over 42 of 5000x5000"),
        (jpeg.replace(b"\xff\xda", b"\xff\xfe"), "the JPEG does not decode"),
        (webp[:16], "the WebP does not decode"),
        (webp[:-4], "the WebP does not decode"),
        (alpha[:len(alpha) // 2], "the WebP does not decode"),
        (webp[:20] + b"\xff" * (len(webp) - 20), "the WebP does not decode"),
        (lossless(16383, 16383), "16383x16383 pixels"),
        (lossless(8000, 8000), "8000x8000", "MiB of memory"),
        (lossless(4000, 4000), "the WebP does not decode"),
        (golden.joinpath("animated.webp").read_bytes(), "it is an animation"),
    ])
    shard = t.work / "pictures.tar"
    shard.write_bytes(b"".join(member(b"%04d.png" % i, path.read_bytes()) + member(b"%04d.cls" % i, b"1")
                               for i, path in enumerate(paths)) + b"\0" * 1024)
    done = t.run("data", "verify", shard, code=4)
    for number in range(len(paths)):
        t.check(f"pictures.tar:{number:04}.png" in done.all, f"no word of picture {number}: {done.all}")


# --- .pt files -----------------------------------------------------------------------------------------------------------


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return (b"\x8c" + bytes([len(value)]) if len(value) < 256 else b"X" + struct.pack("<I", len(value))) + value


def named(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def storage(kind="FloatStorage", count=4, key="0"):
    return b"(" + text("storage") + named("torch", kind) + text(key) + text("cpu") + b"J" + struct.pack("<i", count) + b"tQ"


def tensor(sizes=b"K\4\x85", strides=b"K\1\x85", offset=b"K\0", of=None, name="w"):
    return b"\x80\2}" + text(name) + named("torch._utils", "_rebuild_tensor_v2") + b"(" + (storage() if of is None else of) + \
        offset + sizes + strides + b"\x89" + named("collections", "OrderedDict") + b")RtRs."


def archive(*members, compression=zipfile.ZIP_STORED):
    path = t.work / "archive.zip"
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name), data, compress_type=compression)
    return path.read_bytes()


def pt(pickle, *more):
    return archive(("x/data.pkl", pickle), ("x/data/0", b"f" * 16), *more)


def test_torch_files():
    huge = b"\x8a\x08" + b"\xff" * 7 + b"\x7f"
    proto = b"\x80\2"
    ten_of_ten = proto + b"]" + text("x") + b"a" + b"".join(b"q" + bytes([i]) + b"]" + (b"h" + bytes([i]) + b"a") * 10 for i in range(12))
    long_name = text("k" * 1_000_000) + b"q\0"
    good = pt(tensor())
    paths = refused("pt", 7, ".pt", [
        (b"", "zip archive"),
        (b"PK\3\4", "zip archive"),
        (b"PK\5\6" + b"\0" * 18, "no data.pkl"),
        (proto + b"N.", "old form of torch.save", "save it again"),
        (good[:len(good) // 2], "zip archive"),
        (archive(("x/readme", b"")), "no data.pkl"),
        (archive(("x/data.pkl", proto + b"N."), ("y/data.pkl", b"")), "two data.pkl"),
        (archive(("x/data.pkl", proto + b"N" * 5000 + b"."), compression=zipfile.ZIP_DEFLATED), "compressed"),
        (archive(("x/data.pkl", b"\0" * 50_000_000), compression=zipfile.ZIP_DEFLATED), "compressed"),
        (pt(tensor(), ("x/byteorder", b"big")), "big-endian"),
        (pt(b""), "cut off"),
        (pt(proto), "cut off"),
        (pt(b"\x80\x09N."), "unknown protocol"),
        (pt(proto + b"."), "nothing on the stack"),
        (pt(proto + b"t."), "no mark"),
        (pt(proto + b"h\5."), "not stored"),
        (pt(proto + b"\x8d" + b"\xff" * 8), "cut off"),
        (pt(proto + b"X\xff\xff\xff\xffab"), "cut off"),
        (pt(proto + b"\x8c\1\xff."), "not UTF-8"),
        (pt(proto + b"cos\xff\nsystem\n."), "not UTF-8"),
        (pt(proto + b"cos\nsystem"), "cut off"),
        (pt(proto + b"i"), "0x69", "torch.save does not write"),
        (pt(proto + b"NN\x85R."), "not of a named function"),
        (pt(proto + b"NNa."), "no list"),
        (pt(proto + b"NNNs."), "no dict"),
        (pt(proto + b"}(Nu."), "no value"),
        (pt(proto + b"}]Ns."), "neither a string nor an integer"),
        (pt(proto + b"]q\0h\0a."), "deeper than 100"),
        (pt(proto + b"]" * 500 + b"a" * 499 + b"."), "deeper than 100"),
        (pt(ten_of_ten + b"."), "takes over 64 MiB"),
        (pt(proto + b"(" + long_name + b"}q\1(" + b"h\0K\1" * 3000 + b"ut."), "takes over 64 MiB"),
        (pt(proto + b"}" + long_name + b"](" + named("a", "b") + b"q\1" + b"h\1" * 3000 + b"es."), "takes over 64 MiB"),
        (pt(proto + b"N0" * 2_500_000 + b"N."), "over 4,000,000 opcodes"),
        (pt(proto + b"]" * 4_500_000), "over 4,000,000 opcodes"),
        (pt(proto + b"N" + b"\x94" * 4_500_000), "over 4,000,000 opcodes"),
        (pt(b"\x80\2" + b"N" * (65 << 20)), "up to 67108864 are read"),
        (pt(tensor(sizes=b"K\5\x85")), "'w'", "outside its storage"),
        (pt(tensor(strides=b"K\2\x85")), "outside its storage"),
        (pt(tensor(offset=b"K\1")), "outside its storage"),
        (pt(tensor(sizes=huge + huge + b"\x86", strides=b"K\1K\1\x86")), "63 bits"),
        (pt(tensor(strides=b")")), "not as many strides"),
        (pt(tensor(sizes=b"J\xff\xff\xff\xff\x85")), "no whole number"),
        (pt(tensor(sizes=b"J\0\0\0\x10\x85", strides=b"K\0\x85")), "repeats its storage of 16 bytes to 1073741824", "contiguous"),
        (pt(tensor(of=storage("QInt8Storage"))), "torch.QInt8Storage, which is not known"),
        (pt(tensor(of=storage(count=5))), "storage 0 has 16 bytes", "need 20"),
        (pt(tensor(of=storage(key="../0"))), "no member"),
        (pt(tensor(of=storage(key="1"))), "no member x/data/1"),
        (pt(proto + named("torch._utils", "_rebuild_tensor_v2") + b")R."), "too few arguments"),
        (pt(proto + long_name + named("torch._utils", "_rebuild_tensor_v2") + b")Rs."), "at byte"),
    ])
    recipe = t.write_recipe("import-pt.toml", t.recipe(data=t.synthetic(), run=dict(output=str(t.work / "imported"))))
    for number in (29, 42):
        t.refused(7, [paths[number].name], "checkpoint", "import", paths[number], "--recipe", recipe, "--format", "facebook-dit",
                  "--out", t.work / "never")


# --- plugins -------------------------------------------------------------------------------------------------------------


def elf(stamp, sections=None, filesz=None, **header):
    """A shared library that holds a stamp and nothing that could run."""
    names = b"\0.ditto.stamp\0.shstrtab\0"
    body = stamp + names
    at = 64 + 56
    stamp_section = (1, 1, 2, 0, at, len(stamp), 0, 0, 1, 0)
    strings = (14, 3, 0, 0, at + len(stamp), len(names), 0, 0, 1, 0)
    table = [(0,) * 10, stamp_section, strings] if sections is None else sections(stamp_section, strings)
    fields = dict(ident=b"\x7fELF\2\1\1" + b"\0" * 9, type=3, machine=62, version=1, entry=0, phoff=64, shoff=at + len(body), flags=0,
                  ehsize=64, phentsize=56, phnum=1, shentsize=64, shnum=len(table), shstrndx=len(table) - 1) | header
    head = fields.pop("ident") + struct.pack("<HHIQQQIHHHHHH", *(fields[key] for key in (
        "type", "machine", "version", "entry", "phoff", "shoff", "flags", "ehsize", "phentsize", "phnum", "shentsize", "shnum", "shstrndx")))
    segment = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, filesz or at + len(body), at + len(body), 4096)
    return head + segment + body + b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in table)


def real_stamp():
    """Of a plugin of this build."""
    data = (pathlib.Path(t.ditto).parent.parent / "lib/ditto/plugins/samplers/libeuler.so").read_bytes()
    at, size, count, names = (struct.unpack_from("<" + kind, data, place)[0] for kind, place in (("Q", 40), ("H", 58), ("H", 60), ("H", 62)))
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + size * i) for i in range(count)]
    for row in sections:
        if data[sections[names][4] + row[0]:].startswith(b".ditto.stamp\0"):
            return data[row[4]:row[4] + row[5]]


def test_plugins():
    stamp = real_stamp()
    def changed(at, data):
        return elf(stamp[:at] + data + stamp[at + len(data):])
    def sections(change):
        return elf(stamp, sections=lambda *rows: [(0,) * 10, *change(*rows)])
    def stamp_row(**places):
        order = ["name", "type", "flags", "addr", "offset", "size"]
        def change(row, strings):
            row = list(row)
            for key, value in places.items():
                row[order.index(key)] = value
            return [tuple(row), strings]
        return sections(change)
    magic, size, abi, torch, cxx11, compiler, cuda, mode, kind, name, version, licence, summary = \
        0, 8, 12, 16, 32, 36, 40, 56, 60, 76, 108, 124, 156
    good = elf(stamp)
    def said(data):
        path = t.work / "good.so"
        path.write_bytes(data)
        return subprocess.run([program], input=f"plugin {path}\n", capture_output=True, text=True, env=t.environment).stdout
    t.check('"code":0' in said(good), "the file that the others are made of is refused:", said(good))
    paths = refused("plugin", 3, ".so", [
        (b"", "the file is empty"),
        (b"\x7fELF", "cut off"),
        (b"#!/bin/sh\necho", "not an ELF file"),
        (good[:63], "cut off"),
        (good[:100], "cut off"),
        (good[:-1], "cut off"),
        (good[:200], "cut off"),
        (elf(stamp, ident=b"\x7fELF\1\1\1" + b"\0" * 9), "not 64-bit little-endian"),
        (elf(stamp, ident=b"\x7fELF\2\2\1" + b"\0" * 9), "not 64-bit little-endian"),
        (elf(stamp, machine=40), "built for machine 40"),
        (elf(stamp, machine=183), "built for aarch64"),
        (elf(stamp, type=2), "no shared library"),
        (elf(stamp, type=1), "no shared library"),
        (elf(stamp, shoff=0), "no table of sections"),
        (elf(stamp, shnum=0), "no table of sections"),
        (elf(stamp, shoff=(1 << 64) - 64), "table of sections", "should lie at byte"),
        (elf(stamp, shnum=65535), "should lie at byte"),
        (elf(stamp, shentsize=63), "entries of a wrong size"),
        (elf(stamp, shstrndx=3), "section names is missing"),
        (elf(stamp, shstrndx=1), "section names is none"),
        (elf(stamp, phnum=0), "nothing to load"),
        (elf(stamp, phentsize=8), "entries of a wrong size"),
        (elf(stamp, phnum=65535), "table of segments"),
        (elf(stamp, phoff=1 << 63), "table of segments"),
        (elf(stamp, filesz=1 << 20), "a segment", "should lie at byte"),
        (elf(stamp, filesz=(1 << 64) - 1), "a segment"),
        (stamp_row(name=0), "no section .ditto.stamp", "no Ditto plugin"),
        (stamp_row(name=1 << 31), "no section .ditto.stamp"),
        (sections(lambda row, strings: [row, row, strings]), "two sections .ditto.stamp"),
        (stamp_row(type=8), "is empty"),
        (stamp_row(size=0), "is empty"),
        (stamp_row(flags=2048), "is compressed"),
        (stamp_row(size=(1 << 20) + 1), "over 1 MiB"),
        (stamp_row(size=1 << 19), "should lie at byte"),
        (stamp_row(offset=(1 << 64) - 8), "should lie at byte"),
        (sections(lambda row, strings: [row, strings[:4] + (1 << 40,) + strings[5:]]), "section names", "should lie at byte"),
        (elf(b"DITTO"), "it has 5 bytes"),
        (elf(stamp[:200]), "should have"),
        (elf(stamp + b"\0" * 8), "should have"),
        (changed(magic, b"DITTOPLX"), "does not begin with"),
        (changed(size, b"\xff\xff\xff\xff"), "should have 4294967295 bytes"),
        (changed(abi, struct.pack("<I", 9999)), "ABI 9999"),
        (changed(torch, b"x" * 16), "LibTorch's version is not a text"),
        (changed(torch, b"1.0.0\0"), "LibTorch"),
        (changed(cxx11, struct.pack("<I", 7)), "_GLIBCXX_USE_CXX11_ABI=7"),
        (changed(compiler, struct.pack("<I", 7)), "compiler ABI 7"),
        (changed(cuda, b"\xff" * 4), "CUDA's version is not a text"),
        (changed(mode, struct.pack("<I", 2)), "AddressSanitizer"),
        (changed(kind, b"\x1b[2J"), "the kind is not a text"),
        (changed(name, b"../../x"), "the id is not a text"),
        (changed(name, b"\0" * 32), "the id is not a text"),
        (changed(version, b"\n"), "the version is not a text"),
        (changed(licence, b"x" * 32), "the licence is not a text"),
        (changed(summary, b"error: \r\n"), "the summary is not a text"),
        (changed(summary, b"\xff"), "the summary is not a text"),
    ])
    for number in (24, 49):
        folder = t.work / f"plugins-{number}"
        folder.mkdir()
        (folder / "libx.so").write_bytes(paths[number].read_bytes())
        t.refused(3, ["libx.so"], "plugins", "verify", folder / "libx.so")


if __name__ == "__main__":
    t.main(globals())
