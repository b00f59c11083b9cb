"""Claim (machine): `./dev demo` builds the program and the plugins that its recipe opens, and no others: with these alone it trains,
draws a sheet and samples.
"""

import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def demo_build():
    """The program and the plugins of the demo's target, in a folder of their own."""
    folder = t.work / "demo"
    shutil.copytree(t.build / "bin", folder / "bin")
    (folder / "lib/ditto/plugins").mkdir(parents=True)
    shutil.copy(t.build / "lib/libditto_sdk.so", folder / "lib")
    os.symlink((t.build / "lib/torch").resolve(), folder / "lib/torch")
    names = (t.build / "demo_plugins.txt").read_text().split()
    for name in names:
        kind, plugin = name.split("/")
        (folder / "lib/ditto/plugins" / kind).mkdir(exist_ok=True)
        shutil.copy(t.build / f"lib/ditto/plugins/{kind}/lib{plugin}.so", folder / f"lib/ditto/plugins/{kind}")
    return folder, names


def run(folder, *words):
    done = subprocess.run([folder / "bin/ditto", *map(str, words)], cwd=t.work, env=t.environment, text=True, capture_output=True, timeout=t.patient(240))
    t.equal(done.returncode, 0, f"exit code of {words}: {done.stdout}{done.stderr}")


def test_the_demo_runs_with_the_plugins_that_it_builds():
    folder, names = demo_build()
    options = t.sets({"run.output": str(t.work / "run"), "run.steps": 2, "run.batch": 16, "run.threads": 1, "validate.every": 2, "validate.samples": 16,
                      "validate.grid_every": 2, "sampler.steps": 2, "lr_schedule.warmup": 1, "checkpoint.every": 0})
    run(folder, "train", t.source / "configs/digits.toml", *options)
    run(folder, "sample", t.work / "run", "--out", t.work / "final", "--classes", "0-9", "--seeds", "0-9", "--steps", 2, "--guidance", 2)
    t.check((t.work / "final/grid.png").exists(), "no picture")
    # And with none of them less.
    for name in names:
        kind, plugin = name.split("/")
        file = folder / f"lib/ditto/plugins/{kind}/lib{plugin}.so"
        kept = file.read_bytes()
        file.unlink()
        done = subprocess.run([folder / "bin/ditto", "train", t.source / "configs/digits.toml", *options, "--resume", "never"], cwd=t.work,
                              env=t.environment, text=True, capture_output=True, timeout=t.patient(240))
        t.check(done.returncode != 0 and plugin in done.stderr, f"the demo trains without {name}: {done.stderr}")
        file.write_bytes(kept)


if __name__ == "__main__":
    t.main(globals())
