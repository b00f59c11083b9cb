"""Claim (failures): A disk that cannot read: whichever read of a resume fails, the step before is taken or the error is named,
and no signal ends the program."""

import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

library = t.pathlib.Path(os.environ.get("DITTO_BUILD_DIR", t.source / "build/release")) / "tests/libbad_disk.so"


def resume(path, read=0, **options):
    """Goes on from a copy of the run, on a disk whose read number `read` fails."""
    folder = f"read-{read}"
    shutil.copytree(t.work / "run", t.work / folder, symlinks=True)
    env = dict(LD_PRELOAD=str(library), BAD_DISK_UNDER=f"{folder}/checkpoints/", BAD_DISK_AT=str(read),
               BAD_DISK_COUNT=str(t.work / "count"))
    words = [t.ditto, "train", str(path), *t.sets({"run.output": str(t.work / folder), "run.steps": 5} | options)]
    done = t.subprocess.run(words, capture_output=True, text=True, timeout=t.patient(240), cwd=t.work, env=t.environment | env)
    done.all, done.reads = done.stdout + done.stderr, int((t.work / "count").read_text())
    shutil.rmtree(t.work / folder)
    return done


def test_any_read_of_a_resume_may_fail():
    if not library.exists() or "asan" in str(library) or "tsan" in str(library):
        raise t.NotRun("a sanitizer is loaded before everything else, or the library was not built")
    path = t.write_recipe("run.toml", t.recipe(run=dict(steps=4), checkpoint=dict(every=2)))
    t.train(path, "run")
    whole = resume(path)
    t.equal(whole.returncode, 0, f"exit code of the resume without a bad read: {whole.all}")
    t.check("step_00000004 (step 4)" in whole.all, whole.all)
    t.check(whole.reads > 15, f"only {whole.reads} reads were counted")
    few = sorted(t.seed_of("reads that fail").sample(range(2, whole.reads), 3))
    before = 0
    for read in range(1, whole.reads + 1) if t.slow else [1, *few, whole.reads]:
        done = resume(path, read)
        if done.returncode == 0:
            before += 1
            t.check("not resumed from skipped step_00000004: " in done.all and "Input/output error" in done.all
                    and "step_00000002 (step 2)" in done.all, f"read {read}: {done.all}")
        else:
            t.equal(done.returncode, 7, f"exit code after read {read} failed: {done.all}")
            errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            t.check(len(errors) == 1 and "step_00000004/" in errors[0] and "Input/output error" in errors[0],
                    f"read {read}: {done.all}")
    t.check(before > 0, "no resume went on from the step before")


def test_a_file_that_is_cut_while_it_is_verified_is_named():
    if not library.exists() or "asan" in str(library) or "tsan" in str(library):
        raise t.NotRun("a sanitizer is loaded before everything else, or the library was not built")
    if not (t.work / "run").exists():
        t.train(t.write_recipe("run.toml", t.recipe(run=dict(steps=4), checkpoint=dict(every=2))), "run")
    whole = t.latest("run")

    def verify(read, name):
        folder = shutil.copytree(whole, t.work / "cut" / f"step_{read:08}")
        env = dict(LD_PRELOAD=str(library), BAD_DISK_UNDER="/cut/", BAD_DISK_AT=str(read), BAD_DISK_COUNT=str(t.work / "count"))
        if name:
            env["BAD_DISK_CUT"] = str(folder / name)
        done = t.subprocess.run([t.ditto, "checkpoint", "verify", str(folder)], capture_output=True, text=True,
                                timeout=t.patient(60), env=t.environment | env)
        shutil.rmtree(t.work / "cut")
        return done, int((t.work / "count").read_text())

    done, reads = verify(0, None)
    t.check(done.returncode == 0 and "every byte is as it was saved" in done.stdout and reads >= 7, done.stdout + done.stderr, reads)
    names = sorted(file.name for file in whole.iterdir())
    chosen = t.seed_of("files that are cut").sample([(read, name) for read in range(1, reads + 1) for name in names], 6)
    for read, name in [(read, name) for read in range(1, reads + 1) for name in names] if t.slow else [*chosen, (reads, names[0])]:
        done, _ = verify(read, name)
        text = done.stdout + done.stderr
        t.check(done.returncode == 7 and name in text and "every byte is" not in text,
                f"{name} cut after read {read} of {reads}: exit code {done.returncode}\n{text}")


if __name__ == "__main__":
    t.main(globals())
