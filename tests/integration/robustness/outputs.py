"""Where a command cannot write what it was asked for, it says so once and ends with the right code, and nothing that is
half-written bears its final name: on a full disk, on one without room for another name, on one that is read-only, and in a
folder that was deleted.

Claim (failures): Where `data prepare`, `sample` or `checkpoint export|import` cannot write (a full disk, no names left,
read-only, deleted) one message says so, and nothing half-written bears its final name.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

_made = {}


def run_folder():
    if "run" not in _made:
        path = t.write_recipe("written.toml", t.recipe(run=dict(name="written", steps=1), model=dict(width=64)))
        t.train(path, "written")
        t.run("checkpoint", "export", t.work / "written", "--format", "facebook-dit", "--out", t.work / "whole.safetensors")
        _made.update(run=t.work / "written", recipe=path)
    return _made["run"]


def photos():
    folder = t.work / "photos"
    if not folder.exists():
        folder.mkdir()
        with tarfile.open(t.digits / "train-000000.tar") as tar:
            for member in tar.getmembers()[:200]:
                if member.name.endswith(".png"):
                    (folder / member.name).write_bytes(tar.extractfile(member).read())
    return folder


def commands(out):
    """(exit code where it is full, command) of everything that writes into the folder `out`; each writes over 64 KiB."""
    run, table = run_folder(), t.source / "tests/support/table.csv.gz"
    return {
        "prepare": (4, "data", "prepare", table, "--shape", "2x2", "--largest", 16, "--validation", 0.5, "--out", out),
        "folder": (4, "data", "prepare", photos(), "--validation", 0.5, "--out", out),
        "sample": (4, "sample", run, "--out", out, "--steps", 1, "--seeds", "0-99"),
        "latents": (4, "sample", run, "--out", t.work / "pictures", "--steps", 1, "--seeds", "0-299", "--overwrite", "--save-latents",
                    f"{out}/latents.safetensors"),
        "export": (7, "checkpoint", "export", run, "--format", "facebook-dit", "--out", f"{out}/out.safetensors"),
        "import": (7, "checkpoint", "import", t.work / "whole.safetensors", "--format", "facebook-dit", "--recipe",
                   _made["recipe"], "--out", f"{out}/imported"),
    }


def run_on_disk(options, command):
    """Runs ditto with a file system of its own under work/disk; the finished process, and the files that are left there."""
    disk, left = t.work / "disk", t.work / "left"
    disk.mkdir(exist_ok=True)
    script = 'mount -t tmpfs -o "$1" none "$2" || exit 99; shift; cd "$1/.."; "${@:3}"; code=$?; (cd "$1" && find . -type f) >"$2"; exit $code'
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    words = [str(word) for word in command]
    done = subprocess.run(["unshare", "--mount", *root, "bash", "-c", script, "bash", options, str(disk), str(left), t.ditto, *words],
                          capture_output=True, text=True, timeout=t.patient(240), env=t.environment)
    if done.returncode in (1, 99) and ("unshare" in done.stderr or "mount" in done.stderr):
        raise t.NotRun(f"no file system of one's own here: {done.stderr.strip()}")
    return done, left.read_text().split() if left.exists() else []


def says_once(name, done, code, *parts):
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    t.check(done.returncode == code and len(errors) == 1,
            f"{name}: exit code {done.returncode}, expected {code}, and {len(errors)} errors:\n{done.stdout}{done.stderr}")
    for part in parts:
        t.check(part in errors[0], f"{name}: no \"{part}\" in: {errors[0]}")


def test_a_disk_that_is_full_leaves_nothing_half_written():
    for name, (code, *command) in commands(t.work / "disk").items():
        done, left = run_on_disk("size=16k", command)
        says_once(name, done, code, "disk/", "No space left on device")
        pictures = [file for file in left if file.endswith(".png")]
        goes_on = {"sample": ["samples.jsonl"], "latents": ["latents.safetensors.part", "latents.safetensors.part.jsonl"]}
        rest = [file for file in left if file not in pictures and pathlib.Path(file).name not in goes_on.get(name, [])]
        t.equal(rest, [], f"files that {name} left")
        t.check(not pictures or name == "sample", f"{name} left {pictures}")
        whole, left = run_on_disk("size=4m", command)
        t.check(whole.returncode == 0 and left, f"{name} fails with room, too: {whole.stdout}{whole.stderr}")
        t.check(not [file for file in left if ".tmp" in file or "unfinished" in file], f"{name} left {left}")


def test_a_disk_without_room_for_another_name_is_no_other_case():
    for name, (code, *command) in commands(t.work / "disk").items():
        done, left = run_on_disk("nr_inodes=1", command)
        says_once(name, done, code, "disk/", "No space left on device")
        t.equal(left, [], f"files that {name} left")


def test_a_disk_that_is_read_only_is_said_before_anything_is_computed():
    for name, (code, *command) in commands(t.work / "disk").items():
        done, _ = run_on_disk("ro", command)
        says_once(name, done, {"export": 7, "import": 7}.get(name, 2), "disk", "Read-only file system")


def test_a_folder_that_is_deleted_meanwhile_is_said_like_any_other_mistake():
    out = t.work / "deleted"
    words = [t.ditto, "sample", str(run_folder()), "--out", str(out), "--steps", "500", "--seeds", "0-1", "--batch", "1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=t.environment)
    first = [process.stderr.readline() for _ in range(2)]  # what is to be made, and the first of two
    t.check("1/2" in first[1], f"no sign of the first sample: {first}")
    shutil.rmtree(out)
    stdout, stderr = process.communicate(timeout=t.patient(240))
    says_once("sample", subprocess.CompletedProcess(words, process.returncode, stdout, stderr), 4, "deleted/000001.png",
              "No such file or directory")
    there = commands(t.work / "nowhere")
    for name, code in (("export", 7), ("latents", 2)):  # the others make their folder
        says_once(name, t.run(*there[name][1:], code=code), code, "nowhere", "No such file or directory")


def test_what_is_there_is_replaced_where_it_is_alike_alone():
    (t.work / "kept.toml").write_text("kept = 1\n")
    os.symlink("gone", t.work / "link.toml")
    for name in ("kept.toml", "link.toml"):
        t.refused(2, [name], "init", t.digits, "--out", name)
        t.refused(2, [f"--sheet {name}"], "data", "inspect", t.digits, "--sheet", name)
    t.check((t.work / "kept.toml").read_text() == "kept = 1\n" and os.readlink(t.work / "link.toml") == "gone", "they stay as they are")
    for _ in range(2):
        t.run("data", "inspect", t.digits, "--sheet", "sheet.png")


def test_a_value_that_is_empty_is_refused():
    for option in ("--classes", "--seeds", "--prompts", "--npz"):
        t.refused(2, [option, "is given an empty value"], "sample", run_folder(), "--out", t.work / "empty-value", option, "")
    t.refused(2, ["is given an empty value"], "train", "")
    t.check(not (t.work / "empty-value").exists(), "nothing is made")


def test_a_run_writes_what_tensorboard_shows():
    path = t.write_recipe("board.toml", t.recipe(run=dict(steps=2)))
    for name, asked in (("shown", True), ("silent", False)):
        t.train(path, name, log__tensorboard=asked)
        events = b"".join(file.read_bytes() for file in (t.work / name).rglob("events.out.tfevents*"))
        t.equal([word in events for word in (b"loss", b"recipe")], [asked, asked], f"log.tensorboard = {asked}")


if __name__ == "__main__":
    t.main(globals())
