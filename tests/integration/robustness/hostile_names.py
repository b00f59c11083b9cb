"""Claim (failures): Names in files are not obeyed: no terminal's escapes, no forged lines, no message by the megabyte, whatever
a recipe, a shard, a table, a folder of pictures, a checkpoint or a plugin's file is called or holds."""

import gzip
import io
import json
import pathlib
import struct
import subprocess
import sys
import tarfile
import unicodedata
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import bad_files  # noqa: E402

# Each would do something to a terminal, forge a line of ours, or fill a screen.
names = ["a\nerror: forged\r\x1b[2J\x1b]0;owned\x07\u009b31m\u0085\u202egnp\u2066\u2028error: forged\x7f\x08"]
raw_names = [b"b\xff\xfe\x9b2J\xc0\xaf"]
endless = "n" * 1_000_000


def check_words(text, what):
    """What was printed or logged is one line a line, without anything that a terminal obeys, and short."""
    t.check("\ufffd" not in text, f"{what}: bytes that are no UTF-8: {text[:300]!r}")
    for c in text:
        t.check(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp"), f"{what}: {c!r} in {text[:2000]!r}")
    for line in text.splitlines():
        t.check(not line.startswith("error: forged"), f"{what}: a forged line: {text[:2000]!r}")
        t.check(len(line) < 10000, f"{what}: a line of {len(line)} letters")
    t.check(len(text) < 60000, f"{what}: {len(text)} letters")


def said(*words, code=None, env=None):
    """Runs ditto, and checks all that it says."""
    done = subprocess.run([t.ditto, *(w if isinstance(w, bytes) else str(w) for w in words)], capture_output=True,
                          timeout=t.patient(240), cwd=t.work, env=t.environment | (env or {}))
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    what = " ".join(repr(word)[:60] for word in words)
    check_words(text, what)
    if code is not None:
        t.equal(done.returncode, code, f"exit code of {what}: {text[:3000]}")
    t.check(done.returncode >= 0, f"{what}: died of signal {-done.returncode}")
    return text


def tar_of(path, members):
    """[(name, bytes)], names of any kind and length."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name if isinstance(name, str) else name.decode("utf-8", "surrogateescape"))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def safetensors(path, header, data=b""):
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogateescape") if isinstance(header, dict) else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


# --- data -------------------------------------------------------------------------------------------------------------


def test_members_of_shards():
    good = bad_files.good(16)
    for number, name in enumerate(names + raw_names + [endless]):
        key = name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")
        members = []
        for sample, picture, label in good:
            members += [(f"{sample}.png", picture), (f"{sample}.cls", str(label).encode())]
        bad = tar_of(t.work / f"member-{number}.tar", members + [(key + b".png", b"no picture"), (key + b".cls", b"3")])
        said("data", "inspect", bad)
        said("data", "inspect", bad, "--json")
        # The archive's own limit cuts the longest name off before its extension: a file that is no part of a sample.
        said("data", "verify", bad, code=0 if name is endless else 4)
        output = t.work / f"member-{number}"
        said("train", bad_files.data_recipe(f"member-{number}.toml", [bad]), *t.sets({"run.output": str(output), "run.steps": 4}),
             "--local-ranks", 2)
        if output.exists():
            check_words((output / "log.txt").read_text(), f"log.txt with {name[:40]!r}")
        missing = tar_of(t.work / f"missing-{number}.tar", members + [(key + b".png", bad_files.png(1))])
        said("train", bad_files.data_recipe(f"missing-{number}.toml", [missing]), *t.sets({"run.output": str(output) + "-m"}))
        label = tar_of(t.work / f"label-{number}.tar", members + [(b"x.png", bad_files.png(1)), (b"x.cls", key)])
        said("data", "verify", label, code=4)
        twice = tar_of(t.work / f"twice-{number}.tar", [(key + b".png", bad_files.png(1)), (b"x.png", b""), (key + b".cls", b"1")])
        said("data", "verify", twice)
        extension = tar_of(t.work / f"extension-{number}.tar", [(b"x." + key, b"1"), (b"x.png", bad_files.png(1))])
        said("data", "inspect", extension)
        cut = t.work / f"cut-{number}.tar"
        cut.write_bytes(tar_of(t.work / "whole.tar", members + [(key + b".png", b"1" * 4000)]).read_bytes()[:-13000])
        said("data", "inspect", cut)


def test_files_and_folders_of_pictures_and_tables():
    for number, name in enumerate(names + raw_names):
        folder = t.work / f"pictures-{number}"
        name = name if isinstance(name, bytes) else name.encode()
        inner = bytes(folder) + b"/" + name
        pathlib.Path(inner.decode("utf-8", "surrogateescape")).mkdir(parents=True)
        for file in (name + b".png", name + b".weird", name + b".jpg"):
            with open(inner + b"/" + file, "wb") as out:
                out.write(bad_files.png(3) if file.endswith(b".png") else b"no picture")
        said("data", "prepare", folder, "--out", t.work / f"prepared-{number}")
        for file in (inner, inner + b"/" + name + b".png"):
            for words in (["data", "verify"], ["train"], ["checkpoint", "inspect"], ["plugins", "verify"]):
                said(*words, file)
            said("sample", file, "--out", "x")
            said("data", "prepare", file, "--out", t.work / f"prepared-{number}-b", "--shape", "8x8")


def test_tables():
    for number, name in enumerate(names + [endless]):
        row = ",".join(["1"] * 64)
        quoted = '"' + name.replace('"', "") + '"'
        tables = {"header": f"{quoted}," + ",".join(f"p{i}" for i in range(63)) + f",label\n{row},1\n",
                  "cell": f"{row},1\n{quoted},{row[2:]},1\n", "label": f"{row},{quoted}\n", "plain": f"{name}\n{row},1\n"}
        for kind, text in tables.items():
            path = t.work / f"{kind}-{number}.csv.gz"
            path.write_bytes(gzip.compress(text.encode()))
            said("data", "prepare", path, "--shape", "8x8", "--out", t.work / f"table-{kind}-{number}")
        said("data", "prepare", path, "--shape", name[:100000], "--out", "x", code=2)
        said("data", "prepare", path, "--shape", "8x8", "--label", name[:100000], "--out", t.work / "x")


# --- recipes ----------------------------------------------------------------------------------------------------------


def toml(text):
    return json.dumps(text).replace("\x7f", "\\u007f")


def test_recipes():
    base = t.write_recipe("base.toml", t.recipe()).read_text()
    for number, name in enumerate(names + [endless]):
        q = toml(name)
        recipes = {"section": f"[{q}]\na = 1\n", "key": base.replace("[model]", f"[model]\n{q} = 1"),
                   "host-key": base.replace("[run]", f"[run]\n{q} = 1"), "value": base.replace('plugin = "dit"', f"plugin = {q}"),
                   "choice": base.replace("[run]", f"[run]\nprecision = {q}"), "parallel": base + f"[parallel]\n{q} = 1\n",
                   "kernels": base + f"[kernels]\n{q} = {q}\n", "encoder": base + f"[encoder.{q}]\nplugin = 'x'\n",
                   "include": f"include = {q}\n", "path": base + f"[plugins]\npath = [{q}]\n",
                   "shard": base.replace("shards = [", f"shards = [{q}, ", 1), "raw": f"[run]\nname = '{name}'\n",
                   "output": base.replace("[run]", f"[run]\noutput = \"/proc/\" \n#"), "json": name}
        for kind, text in recipes.items():
            path = t.work / f"{kind}-{number}.toml"
            path.write_text(text)
            said("config", "check", path)
        path = t.work / f"name-{number}.toml"
        path.write_text(base.replace('name = "tiny"', f"name = {q}"))
        if name != endless:
            shown = said("config", "show", path, code=0)
            (t.work / "shown.toml").write_text(shown)
            once, again = (sorted(said("config", "show", file, *t.sets({"run.folder": "/x"}), code=0).splitlines())
                           for file in (path, "shown.toml"))
            t.equal(once, again, "a recipe that was shown")
            output = t.work / f"name-{number}"
            said("train", path, *t.sets({"run.output": str(output), "run.steps": 2, "checkpoint.every": 1}), code=0)
            check_words((output / "log.txt").read_text(), "log.txt")
            said("sample", output, "--out", t.work / f"samples-{number}", "--seeds", 1, code=0)
            said("checkpoint", "inspect", output, code=0)
            said("checkpoint", "inspect", output, "--json", code=0)
            (output / "checkpoints" / f"step_00000009.tmp-{name}").mkdir()
            said("train", path, *t.sets({"run.output": str(output), "run.steps": 3}), code=0)
            check_words((output / "log.txt").read_text(), "log.txt")
        argument = name[:100000]
        said("train", base, "--set", f"{argument}=1")
        said("train", t.work / "base.toml", "--set", f"run.{argument}=1", code=2)
        said("train", t.work / "base.toml", "--set", argument, code=2)
        said(argument)
        said("train", t.work / "base.toml", f"--{argument}")
        said("plugins", "show", f"model/{argument}", code=3)
        said("plugins", "show", argument, code=2)


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_files_of_tensors():
    path, _ = bad_files.trained("tensors")
    run = t.work / "tensors"
    for number, name in enumerate(names + [endless]):
        one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        headers = {"name": {name: one}, "twice": f'{{{toml(name)}: {json.dumps(one)}, {toml(name)}: {json.dumps(one)}}}'.encode(),
                   "dtype": {"x": one | {"dtype": name}}, "field": {"x": one | {name: 1}}, "metadata": {"__metadata__": {name: 1}},
                   "shape": {name: one | {"shape": [2]}}, "raw": name.encode(), "noise": {"noise": one, name: one}}
        for kind, header in headers.items():
            file = safetensors(t.work / f"{kind}-{number}.safetensors", header, b"\0" * 4)
            said("checkpoint", "import", file, "--format", "diffusers", "--recipe", path, "--out", t.work / "imported")
        said("sample", run, "--out", "s", "--seeds", 1, "--noise", file)
        said("forward", run, "--in", file, "--out", "f.safetensors")
        pickle = t.work / f"{number}.pt"
        body = b"\x80\x02}q\x00X" + struct.pack("<I", len(name.encode())) + name.encode() + b"K\x01s."
        called = b"\x80\x02c" + name.encode().replace(b"\n", b"") + b"\nrun\n)R."
        for data in (body, called, b"\x80\x02c" + b"os\nsystem\n" + body[2:]):
            with zipfile.ZipFile(pickle, "w") as archive:
                archive.writestr(f"{name[:60000]}/data.pkl", data)
                archive.writestr(f"{name[:60000]}/version", "3")
            said("checkpoint", "import", pickle, "--format", "facebook-dit", "--recipe", path, "--out", t.work / "imported")
        said("checkpoint", "import", pickle, "--format", name[:100000], "--recipe", path, "--out", t.work / "imported")


def test_checkpoints():
    bad_files.trained("named")
    step = t.latest("named")
    for number, name in enumerate(names + [endless]):
        for file in ("index.json", "manifest.json", "state.json", "recipe.toml"):
            text = (step / file).read_text()
            for damaged in (name, text.replace('"', toml(name)[:-1], 1), text.replace("00000", toml(name)[1:-1], 1),
                            text.replace("{", "{" + toml(name) + ": 1, ", 1)):
                (step / file).write_text(damaged)
                said("checkpoint", "inspect", step)
            said("checkpoint", "verify", step)
            (step / file).write_text(text)
        said("sample", t.work / "named", "--out", "s", "--seeds", 1, "--sampler", name[:100000])


# --- plugins ----------------------------------------------------------------------------------------------------------


def test_plugins():
    folder = t.work / "libraries"
    folder.mkdir()
    for name in [name.encode() for name in names] + raw_names:
        with open(bytes(folder) + b"/" + name + b".so", "wb") as out:
            out.write(b"not a library")
    said("plugins", "list", "--plugin-path", folder, code=0)
    said("plugins", "list", "--plugin-path", folder, "--json", code=0)
    said("plugins", "verify", folder, code=3)
    said("doctor", env={"DITTO_PLUGIN_PATH": str(folder), "OMP_NUM_THREADS": names[0]})
    said("doctor", "--json", env={"DITTO_PLUGIN_PATH": names[0], "MALLOC_": names[0]})


if __name__ == "__main__":
    t.main(globals())
