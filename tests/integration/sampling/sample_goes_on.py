"""`ditto sample` writes as it goes: what a kill leaves is whole, and the same command makes the rest.

Claim (sampling): Samples that were killed at any moment and gone on with on any number of ranks are the bytes of one go: no half
file has its name, and nothing that is listed is made twice; with `--slow` 500 of them, killed 20 times.

Claim (sampling): The memory of sampling does not grow with the number of samples: with `--slow` 50,000 in under 400 MiB.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

_trained = []


def trained():
    if not _trained:
        path = t.write_recipe("goes_on.toml", t.recipe(run=dict(name="goes_on", steps=2), model=dict(depth=1, width=16, heads=2)))
        t.train(path, "goes_on")
        _trained.append(t.work / "goes_on")
    return _trained[0]


def words(name, count, *more):
    return ["sample", trained(), "--out", t.work / name, "--npz", t.work / f"{name}.npz", "--save-latents",
            t.work / f"{name}.safetensors", "--seeds", f"0-{count - 1}", "--steps", 4, "--batch", 4, *more]


def bytes_of(name):
    """Of all that a command leaves."""
    files = [file for file in (t.work / name).rglob("*") if file.is_file()]
    files += [t.work / f"{name}.npz", t.work / f"{name}.safetensors"]
    return {file.name.replace(name, "x"): file.read_bytes() for file in files}


def listed(name):
    """{file: what tells whether it was written anew}; every line has its file, whole, and every file but one a rank its line."""
    path, found = t.work / name / "samples.jsonl", {}
    for line in path.read_text().splitlines() if path.exists() else []:
        file = t.work / name / json.loads(line)["file"]
        t.read_png(file)
        found[file.name] = (file.stat().st_ino, file.stat().st_mtime_ns)
    for file in (t.work / name).glob("0*.png"):
        t.read_png(file)  # a final name, so a whole picture
    return found


def killed(name, count, after, *more, signal_=signal.SIGKILL):
    """Ends the command, with its ranks, once so many more samples are listed. Whether it was over before."""
    log = open(t.work / "killed.log", "w")
    process = subprocess.Popen([t.ditto, *map(str, words(name, count, *more))], env=t.environment, stdout=log, stderr=log,
                               start_new_session=True)
    path = t.work / name / "samples.jsonl"
    lines = lambda: path.read_bytes().count(b"\n") if path.exists() else 0
    aim, began = lines() + after, time.monotonic()
    while process.poll() is None and lines() < aim and time.monotonic() - began < t.patient(60):
        time.sleep(0.001)
    over = process.poll() is not None
    if not over:
        os.killpg(process.pid, signal_)
    process.wait()
    t.check(not over or process.returncode == 0, pathlib.Path(t.work / "killed.log").read_text())
    return over


def test_what_was_killed_goes_on_to_the_bytes_of_one_go():
    count, kills = (500, 20) if t.slow else (60, 4)
    t.run(*words("whole", count))
    draws, before, most = random.Random(7), {}, max(1, count // kills - 1)
    for kill in range(kills):
        ranks = (1, 3, 2)[kill % 3]
        over = killed("parts", count, draws.randint(0, most), *(["--local-ranks", ranks] if ranks > 1 else []))
        now = listed("parts")
        t.equal({file: mark for file, mark in now.items() if file in before}, before, f"files of before kill {kill}")
        before = now
        t.check(over or not (t.work / "parts/grid.png").exists() or len(now) == count, "a sheet of a part")
    t.run(*words("parts", count, "--local-ranks", 2))
    t.equal({file: mark for file, mark in listed("parts").items() if file in before}, before, "files of before the end")
    found, expected = bytes_of("parts"), bytes_of("whole")
    t.equal(sorted(found), sorted(expected), "files")
    t.equal([file for file in expected if found[file] != expected[file]], [], "files of other bytes")


def test_the_same_command_again_makes_nothing_and_another_is_refused():
    t.run(*words("again", 6))
    before = bytes_of("again")
    marks = listed("again")
    done = t.run(*words("again", 6))
    t.check("all are there already" in done.stderr, done.all)
    by_link = words("again", 6)
    by_link[1] = trained() / "checkpoints/latest"
    t.check("all are there already" in t.run(*by_link).stderr, "the same checkpoint by another name")
    t.equal(listed("again"), marks, "files")
    t.check(bytes_of("again") == before, "other bytes")
    only = ["sample", trained(), "--out", t.work / "again", "--batch", 4]
    for more, parts in ((["--seeds", "0-5", "--steps", 5], ["sampler.steps is 4 there and 5 here"]),
                        (["--seeds", "0-6", "--steps", 4], ["are others"])):
        t.refused(2, ["samples from before", "--overwrite", *parts], *only, *more)
        t.check(bytes_of("again") == before, "a refused command changed something")
    t.run(*only, "--seeds", "7", "--steps", 4, "--overwrite")
    t.equal(sorted(os.listdir(t.work / "again")), ["000007.png", "grid.png", "samples.jsonl"], "files")


def test_pictures_that_are_not_what_was_written_are_refused():
    ask = ["sample", trained(), "--out", t.work / "own", "--seeds", "0-3", "--steps", 2]
    t.run(*ask)
    picture, whole = t.work / "own/000002.png", (t.work / "own/000002.png").read_bytes()
    for bytes_ in (whole[:40], (t.work / "own/000001.png").read_bytes()):  # cut off; another one
        picture.write_bytes(bytes_)
        t.refused(4, ["000002.png", "damaged", "--overwrite"], *ask)
        t.run(*ask, "--overwrite")
        t.check(picture.read_bytes() == whole, "made again")
    for words in (["--npz", t.work / "own"], ["--npz", t.work / "x.npz", "--save-latents", t.work / "here/../x.npz"]):
        t.refused(2, ["is the place of", "give each its own"], *ask, *words)


def test_ctrl_c_and_sigterm_keep_what_is_written():
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        name = f"by-{signal_.name}"
        killed(name, 40, 5, signal_=signal_)
        kept = listed(name)
        t.check(len(kept) >= 5, f"{len(kept)} pictures are kept")
        done = t.run(*words(name, 40))
        t.check("are there already" in done.stderr, done.all)
        t.equal({file: mark for file, mark in listed(name).items() if file in kept}, kept, "what was kept")


def test_an_npz_that_another_program_changed_is_refused():
    npz = t.work / "changed.npz"
    ask = ["sample", trained(), "--npz", npz, "--seeds", "0-3", "--steps", 2]
    t.run(*ask)
    whole = npz.read_bytes()
    at = zipfile.ZipFile(npz).getinfo("arr_0.npy").header_offset + 250
    npz.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
    t.refused(4, ["changed.npz", "another program has changed it"], *ask)
    t.run(*ask, "--overwrite")
    t.check(npz.read_bytes() == whole, "other bytes than before")
    npz.write_text("mine")
    t.refused(2, ["changed.npz", "not of this request"], *ask)
    t.equal(npz.read_text(), "mine", "a file of somebody")


def test_grey_arrays_have_three_channels_where_that_is_asked_for():
    shapes, pixels = {}, {}
    for channels in (1, 3):
        npz = t.work / f"grey-{channels}.npz"
        done = t.run("sample", trained(), "--npz", npz, "--seeds", "0-3", "--steps", 2, *(["--npz-channels", 3] if channels == 3 else []))
        t.equal("--npz-channels 3" in done.stdout, channels == 1, done.stdout)
        data = zipfile.ZipFile(npz).read("arr_0.npy")
        head = 10 + int.from_bytes(data[8:10], "little")
        shapes[channels], pixels[channels] = eval(data[10:head])["shape"], data[head:]
    t.equal(shapes, {1: (4, 8, 8, 1), 3: (4, 8, 8, 3)}, "shapes")
    t.equal(pixels[3], bytes(value for value in pixels[1] for _ in range(3)), "pixels")
    t.refused(2, ["grey-3.npz", "not of this request"], "sample", trained(), "--npz", t.work / "grey-3.npz", "--seeds", "0-3", "--steps", 2)
    t.refused(2, ["--npz-channels 3", "no --npz"], "sample", trained(), "--out", t.work / "never", "--npz-channels", 3)


def test_a_list_that_was_deleted_is_said():
    ask = ["sample", trained(), "--out", t.work / "listless", "--steps", 2, "--overwrite"]
    t.run(*ask, "--seeds", "0-3")
    (t.work / "listless/samples.jsonl").unlink()
    t.refused(2, ["000000.png", "no list of samples names"], *ask, "--seeds", "0-1")
    t.refused(2, ["grid.png", "no list of samples names"], *ask, "--seeds", "8-9")
    (t.work / "listless/grid.png").unlink()
    done = t.run(*ask, "--seeds", "8-9")
    t.check("holds 4 pictures already that no samples.jsonl names (000000.png)" in done.stderr, done.all)


def peak_mib(count):
    words = [t.ditto, "sample", str(trained()), "--npz", str(t.work / f"many-{count}.npz"), "--out", str(t.work / f"many-{count}"),
             "--seeds", f"0-{count - 1}", "--steps", "4", "--batch", "64", "--progress", "none"]
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=-3); " \
           "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", code, *words], env=t.environment, capture_output=True, text=True)
    t.equal(done.returncode, 0, done.stderr)
    return int(done.stdout) / 1024


def test_memory_does_not_grow_with_the_number_of_samples():
    few, many = (1000, 50_000) if t.slow else (100, 2000)
    first, second = peak_mib(few), peak_mib(many)
    print(f"{few} samples: {first:.0f} MiB, {many}: {second:.0f} MiB", flush=True)
    t.check(second < 400, f"{many} samples take {second:.0f} MiB")
    t.check(second - first < 32, f"{many} samples take {second - first:.0f} MiB more than {few}")


if __name__ == "__main__":
    t.main(globals())
