"""run.numerics = "one" on another processor: the program that tests/aarch64.sh builds trains under qemu-user, with NEON's kernels
and with the plain ones, on one rank and on several, to the hash of this machine's."""

import os
import pathlib
import shutil

import one_number
import support as t
from one_number_slow import context, layout, shard

folder = pathlib.Path(os.environ.get("DITTO_AARCH64", t.source / "build/aarch64"))
here = t.ditto
LAYOUTS = {
    "one rank": (layout(1), dict(run__threads=2)),
    "plain kernels": (layout(1), one_number.pinned("exact_plain") | dict(run__micro_batch=16)),
    "fsdp 2": (layout(2, **shard("fsdp")), {}),
    "tensor 2": (layout(2, tensor=2), {}),
    "ring 2": (layout(2, **context("ring")), {}),
    "pipeline 2": (layout(2, pipeline=2), {}),
}


def check(name, layouts, **sections):
    path = one_number.recipe(f"{name}.toml", **sections)
    one_number.train(path, f"{name}-here")
    expected = one_number.hash_of(f"{name}-here")
    print(f"{name}, here: {expected}", flush=True)
    different = []
    for number, (title, ((ranks, options), more)) in enumerate(layouts.items()):
        t.ditto = str(folder / "bin/ditto")
        one_number.train(path, f"{name}-arm{number}", ranks, timeout=7200, **options, **more)
        t.ditto = here
        found = one_number.hash_of(f"{name}-arm{number}")
        print(f"  aarch64, {title}: {found}", flush=True)
        if found != expected:
            different.append(title)
    t.equal(different, [], f"{name}: layouts of aarch64 with another hash")


def ready():
    if not (folder / "bin/ditto").exists():
        raise t.NotRun(f"{folder} has no program for ARM; tests/aarch64.sh builds it")
    if not shutil.which("qemu-aarch64"):
        raise t.NotRun("there is no qemu-aarch64 (Debian: qemu-user)")
    t.environment["QEMU_LD_PREFIX"] = str(folder / "root")


def test_layouts():
    ready()
    check("small", LAYOUTS)


def test_digits():
    ready()
    check("digits", {"one rank": LAYOUTS["one rank"]}, model=dict(depth=6, width=192, heads=12))


if __name__ == "__main__":
    t.main(globals())
