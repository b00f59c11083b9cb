"""Small files, and slips of the finger, that would have cost gigabytes or minutes: each ends at once and within half a GiB,
children included, with an error that names the file or the option and the limit.

Claim (options): Small files and sizes that would cost gigabytes or minutes are refused within a second and 512 MiB. Also:
`reliability.md`
"""

import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tarfile
import time
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import odd_tars  # noqa: E402
from hostile_files import chunk, named, png, pt, tensor, text  # noqa: E402

MOST_SECONDS = 1.0  # of the processor: other tests run beside this one
MOST_WAIT = 100.0
MOST_MIB = 512


def measured(code, words, *arguments, most_seconds=MOST_SECONDS):
    """Runs ditto and checks exit code, the error's words, time and memory; what it wrote."""
    command = [t.ditto, *(str(word) for word in arguments)]
    with open(t.work / "said", "w+b") as said:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=t.work, env=t.environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall, busy, peak = time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        said.seek(0)
        output = said.read().decode(errors="replace")
    told = f"{busy:.2f} s of the processor, {wall:.2f} s in all, {peak:.0f} MiB: ditto {' '.join(command[1:])[:200]}"
    print("  ", told, flush=True)
    t.equal(process.returncode, code, f"exit code of {told}\n{output[:3000]}\nexit code")
    t.check(busy <= most_seconds and wall <= MOST_WAIT and peak <= MOST_MIB, "too slow or too large:", told, output[:3000])
    for word in words:
        t.check(word in output, f"no \"{word}\" in: {output[:3000]}")
    return output


def packed(part, times, form=zlib.MAX_WBITS):
    """`part` many times over, compressed piece by piece: a child's peak of memory counts what this process held."""
    packer = zlib.compressobj(9, zlib.DEFLATED, form)
    return b"".join([packer.compress(part) for _ in range(times)]) + packer.flush()


def shard(name, picture):
    path = t.work / name
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for member, data in (("0.png", picture), ("0.cls", b"1")):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_a_picture_takes_memory_for_its_pixels_only():
    claims = png(before=chunk(b"tEXt", b"a\0b" * 40, length=1 << 30), end=False)
    measured(4, ["claims.tar:0.png", "claims 1073741824 bytes"], "data", "verify", shard("claims.tar", claims))
    unpacks = chunk(b"zTXt", b"k\0\0" + packed(b"\0" * (1 << 20), 8))
    measured(0, [], "data", "verify", shard("texts.tar", png(before=unpacks * 250)))  # what is not needed is not unpacked
    profile = chunk(b"iCCP", b"k\0\0" + packed(b"\0" * (1 << 20), 256))
    measured(0, [], "data", "verify", shard("profile.tar", png(before=profile)))
    measured(4, ["large.tar:0.png"], "data", "verify", shard("large.tar", png(width=8192, height=8192, colour=6)))


def test_a_file_with_holes_is_not_read_into_memory():
    folder = t.work / "holes"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(png())
    os.truncate(folder / "b.png", 1 << 40)
    measured(4, ["b.png", "1099511627776 bytes", "at most 268435456"], "data", "prepare", folder, "--out", t.work / "shards")
    hole = t.work / "hole.tar"
    with open(hole, "wb") as file:
        header = tarfile.TarInfo("0.png")
        header.size = 1 << 40
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate((1 << 40) + 512 + 1024)
    measured(4, ["hole.tar:0.png", "1099511627776 bytes", "at most 268435456"], "data", "verify", hole)
    weights = t.work / "hole.safetensors"
    header = json.dumps({"x_embedder.proj.weight": dict(dtype="F32", shape=[1 << 38], data_offsets=[0, 1 << 40])}).encode()
    weights.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(weights, 8 + len(header) + (1 << 40))
    recipe = t.write_recipe("holes.toml", t.recipe(data=t.synthetic(), run=dict(output=str(t.work / "imported"))))
    measured(7, ["hole.safetensors"], "checkpoint", "import", weights, "--recipe", recipe, "--format", "facebook-dit", "--out", t.work / "never")


def test_a_sample_may_have_a_hundred_thousand_members():
    head, key = odd_tars.member("folder/0000.x000000"), len("folder/")
    with open(t.work / "many.tar", "wb") as file:
        for i in (1, 0):
            file.write(b"".join(odd_tars.sample(i, tarfile.USTAR_FORMAT)[1]))
        for i in range(100_000):
            block, digits = bytearray(head), b"%06d" % i
            block[key + 6:key + 12] = digits
            block[148:155] = b"%06o\0" % (int(head[148:154], 8) + sum(digits) - sum(b"000000"))
            file.write(block)
        file.write(odd_tars.END)
    shard = t.work / "many.tar"
    data = dict(plugin="webdataset", shards=["many.tar"], classes=2, channels=1)
    path = t.write_recipe("many.toml", t.recipe(data=None, run=dict(steps=1, batch=1), validate=dict(every=0)) | {"data": data})
    for command in (["inspect", shard], ["verify", shard], ["verify", path], ["split", shard, "--validation", 0, "--out", t.work / "many"]):
        measured(0, ["2 samples"], "data", *command, most_seconds=3.0)


def test_a_torch_file_takes_memory_in_proportion_to_its_size():
    proto, recipe = b"\x80\2", t.write_recipe("pt.toml", t.recipe(data=t.synthetic(), run=dict(output=str(t.work / "imported"))))
    values = proto + b"(" + b"N" * 400 + b"tq\0" + named("a", "b") + b"q\1(" + b"h\1h\0R" * 400_000 + b"l."
    names = proto + b"(" + text("k" * 1_000_000) + b"q\0}q\1(" + b"h\0K\1" * 3000 + b"ut."
    classes = proto + text("m" * 500_000) + b"q\0" + text("n" * 500_000) + b"q\1(" + b"h\0h\1\x93" * 5000 + b"l."
    ten_of_ten = proto + b"]" + text("x") + b"a" + b"".join(b"q" + bytes([i]) + b"]" + (b"h" + bytes([i]) + b"a") * 10 for i in range(9))
    expanded = tensor(sizes=b"J\0\0\0\x10\x85", strides=b"K\0\x85", name="x_embedder.proj.weight")
    for name, pickle, word in (("values", values, "values.pt"), ("names", names, "64 MiB"), ("classes", classes, "64 MiB"),
                               ("tree", ten_of_ten + b".", "64 MiB"), ("expanded", expanded, "expanded.pt")):
        path = t.work / f"{name}.pt"
        path.write_bytes(pt(pickle))
        measured(7, [path.name, word], "checkpoint", "import", path, "--recipe", recipe, "--format", "facebook-dit", "--out", t.work / "never")


def test_a_table_that_unpacks_without_end_is_no_table():
    bomb = t.work / "bomb.csv.gz"
    bomb.write_bytes(packed(b"0,1,2\n" * 200_000, 100, form=31))
    prepare = ["--out", t.work / "shards", "--shape", "1x2"]
    measured(4, ["bomb.csv.gz", "over 100 times as many"], "data", "prepare", bomb, *prepare)
    bomb.write_bytes(packed(b"0" * (1 << 20), 200, form=31))
    measured(4, ["bomb.csv.gz", "over 100 times as many"], "data", "prepare", bomb, *prepare)
    measured(4, ["/dev/zero", "not a regular file"], "data", "prepare", "/dev/zero", *prepare)


def test_a_recipe_is_small():
    values = t.work / "values.toml"
    values.write_text("a = [" + "0," * 2_000_000 + "]")
    measured(2, ["values.toml", "over 100,000 values"], "config", "check", values)
    values.write_text("a = [" + "0," * (1 << 24) + "]")
    measured(2, ["values.toml", "at most 4194304"], "config", "check", values)
    measured(2, ["/dev/zero", "is a pipe or a device"], "config", "check", "/dev/zero")
    for i in range(20_000):
        (t.work / f"chain-{i}.toml").write_text(f'include = "chain-{i + 1}.toml"\n')
    measured(2, ["chain-64.toml", "file number 65", "up to 64"], "config", "check", t.work / "chain-0.toml")
    for i in range(24):
        (t.work / f"twice-{i}.toml").write_text(f'include = ["twice-{i + 1}.toml", "twice-{i + 1}.toml"]\n')
    (t.work / "twice-24.toml").write_text("")
    measured(2, ["twice-", "file number 65", "up to 64"], "train", t.work / "twice-0.toml")
    for i in range(60):
        (t.work / f"keys-{i}.toml").write_text("[model]\n" + "\n".join(f"k{i}_{j} = 1" for j in range(900)))
    (t.work / "keys.toml").write_text(f"include = {t.json.dumps([f'keys-{i}.toml' for i in range(60)])}")
    measured(2, ["keys-1.toml", "over 1000 keys"], "config", "check", t.work / "keys.toml")


def test_sizes_in_a_recipe_have_limits():
    path = t.write_recipe("sizes.toml", t.recipe(data=t.synthetic()))
    never = ["--set", f"run.output={t.work / 'never'}"]
    huge = 1 << 62
    for option, value, limit in (
            ("model.depth", 10_000_000, "1 to 4096"), ("model.heads", huge, "1 to 4096"), ("model.width", huge, "4 to 65536"),
            ("model.patch", huge, "1 to 1024"), ("model.mlp_ratio", huge, "1 to 256"),
            ("run.threads", 1_000_000, "0 to 4096"), ("run.batch", huge, "1 to 16777216"), ("run.micro_batch", huge, "0 to 16777216"),
            ("data.height", huge, "1 to 16384"), ("data.height", 16_384, "134217728"), ("data.classes", huge, "0 to 1000000"),
            ("sampler.steps", huge, "1 to 1000000"), ("parallel.tensor", huge, "1 to 1048576")):
        extra = ["--set", "data.channels=16384"] if value == 16_384 else []
        measured(2, [f"--set {option}={value}", limit], "train", path, *never, "--set", f"{option}={value}", *extra)
    t.check(not (t.work / "never").exists(), "a refused recipe left a run's folder")


if __name__ == "__main__":
    t.main(globals())
