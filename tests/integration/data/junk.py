"""Claim (data): What macOS, Windows, NAS systems and editors leave in people's folders and archives: every command and every
source takes what it takes without them."""

import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import bad_files  # noqa: E402
import odd_tars  # noqa: E402

APPLE_DOUBLE = b"\0\5\x16\7\0\2\0\0Mac OS X        " + bytes(4072)
FILES = ["._NAME", ".DS_Store", "Thumbs.db", "THUMBS.DB", "desktop.ini", "Desktop.ini", "ehthumbs.db", "Icon\r", ".nfs0000000001", ".~lock.NAME#",
         ".NAME.swp"]
FOLDERS = ["@eaDir", "__MACOSX", "$RECYCLE.BIN", "#recycle", "@Recycle", "System Volume Information", "lost+found", ".Trashes",
           ".ipynb_checkpoints", "__pycache__", ".AppleDouble", "#snapshot"]
KINDS = FILES + FOLDERS


def leave(kind, folder, name, data=APPLE_DOUBLE):
    """Junk of a kind in a folder, as it lies beside a file called `name`."""
    place = folder / kind.replace("NAME", name)
    if kind in FOLDERS:
        place.mkdir(exist_ok=True)
        place = place / name
    place.write_bytes(data)


def pictures(name):
    folder = t.work / name
    for i in range(8):
        place = folder / f"{'cat' if i % 2 else 'dog'}/{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bad_files.png(i))
    return folder


def kinds():
    return KINDS if t.slow else ["._NAME", "@eaDir"]


def prepared():
    folder = t.work / "prepared"
    if not folder.exists():
        t.run("data", "prepare", pictures("clean"), "--out", folder, "--shard-samples", 4)
    return folder


def contents(*recipes):
    return [(one["samples"], one["contents"], one["problems"]) for one in json.loads(t.run("data", "verify", "--json", *recipes).stdout)]


def recipe(name, data):
    return t.write_recipe(f"{name}.toml", t.recipe(data=None, run=dict(steps=1, batch=2), validate=dict(every=0)) | {"data": data})


def listed(name, pattern):
    return recipe(name, dict(plugin="webdataset", shards=[pattern], classes=2, channels=1))


def test_beside_shards_every_command_takes_what_it_took():
    clean, folders = prepared(), []
    for number, kind in enumerate(kinds()):
        folder = t.work / f"set{number}/shards"
        shutil.copytree(clean, folder)
        for name in ("train-000000.tar", "unknown.tar"):
            leave(kind, folder, name)
            leave(kind, folder.parent, name, (clean / "train-000000.tar").read_bytes())  # whole, so that it could be learned from
            leave(kind, folder / ".nv-meta", name)
        folders.append(folder)
    shards = ["train-000000.tar", "train-000001.tar"]
    found = json.loads(t.run("data", "inspect", "--json", *folders).stdout)
    t.equal([one["path"] for one in found], [str(folder / shard) for folder in folders for shard in shards], "shards")
    t.run("data", "verify", *folders)
    expected = contents(listed("clean", str(clean / "*.tar")))[0]
    for one in contents(*(listed(f"set{number}-{i}", str(t.work / f"set{number}" / form)) for number in range(len(folders))
                          for i, form in enumerate(("*/*.tar", "shards/[!o]*.tar")))):
        t.equal(one, expected, "what a pattern stands for")
    for number, folder in enumerate(folders):
        t.run("data", "split", folder, "--validation", 0.25, "--seed", 1, "--out", t.work / f"split{number}")
        t.equal((t.work / f"split{number}/SHA256SUMS").read_bytes(), (t.work / "split0/SHA256SUMS").read_bytes(), f"shards that were dealt out of {kinds()[number]}")
    for number in range(len(folders) if t.slow else 1):
        if number % 6 == 0:
            done = t.run("init", folders[number], "--out", t.work / f"init{number}.toml", "--json")
            t.equal(json.loads(done.stdout)["samples"], 8, f"samples of {kinds()[number]}")
    t.refused(4, ["AppleDouble"], "data", "inspect", t.work / "set0/shards/._train-000000.tar")


def test_among_pictures_nothing_is_taken():
    expected = (prepared() / "train-000000.tar").read_bytes() + (prepared() / "train-000001.tar").read_bytes()
    for number, kind in enumerate(kinds()):
        folder = pictures(f"pictures{number}")
        for place in (folder, folder / "cat"):
            leave(kind, place, "1.png", bad_files.png(99))
        done = t.run("data", "prepare", folder, "--out", t.work / f"out{number}", "--shard-samples", 4)
        t.check("hidden, or left behind by a system or tool" in done.all, done.all)
        made = b"".join((t.work / f"out{number}/train-00000{i}.tar").read_bytes() for i in (0, 1))
        t.check(made == expected, f"{kind} makes other shards")


def test_in_an_archive_nothing_is_taken():
    plain = [(f"./{i:04}.{suffix}", data) for i in range(4) for suffix, data in (("png", bad_files.png(i)), ("cls", b"%d" % (i % 2)))]
    recipes = []
    for number, kind in enumerate(["none", *kinds()]):
        members = list(plain)
        if kind != "none":
            inside = "/0001.png" if kind in FOLDERS else ""
            for place, folder in ((2, "./"), (0, ""), (5, "./")):
                members.insert(place, (folder + kind.replace("NAME", "0001.png") + inside, bad_files.png(99)))
        shard = t.work / f"junk{number}.tar"
        shard.write_bytes(b"".join(odd_tars.member(name, data) for name, data in members) + odd_tars.END)
        recipes.append(listed(f"junk{number}", str(shard)))
    clean, *others = contents(*recipes)
    for kind, one in zip(kinds(), others, strict=True):
        t.equal(one, clean, f"what is learned from beside {kind}")
    reports = json.loads(t.run("data", "inspect", "--json", *(t.work / f"junk{i}.tar" for i in range(1, len(recipes)))).stdout)
    for kind, report in zip(kinds(), reports, strict=True):
        t.equal((report["samples"], sum(report["others"].values()), report["problems"]), (4, 3, []), f"samples, others and problems beside {kind}")


def test_among_frames_and_plugins_nothing_is_taken():
    rows = "path,frames\n" + "".join(f"frames{i},3\n" for i in range(2))
    table = t.work / "frames.csv"
    table.write_text(rows)
    for i in range(2):
        (t.work / f"frames{i}").mkdir()
        for frame in range(3):
            (t.work / f"frames{i}/{frame}.png").write_bytes(bad_files.png(10 * i + frame))
    path = recipe("frames", dict(plugin="table", table=str(table), frames="frames", size=[8, 8], channels=1))
    before = contents(path)
    plugins = t.work / "plugins"
    plugins.mkdir()
    listed_before = t.run("plugins", "list", "--plugin-path", plugins).stdout
    for kind in kinds():
        leave(kind, t.work / "frames0", "1.png", bad_files.png(99))
        leave(kind, plugins, "libx.so")
    t.equal(contents(path), before, "frames")
    t.equal(t.run("plugins", "list", "--plugin-path", plugins).stdout, listed_before, "plugins")


if __name__ == "__main__":
    t.main(globals())
