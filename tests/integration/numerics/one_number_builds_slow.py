"""run.numerics = "one" in programs that were built otherwise: they train to the hash of the usual one, on one rank and on several.

The program that tests/aarch64.sh builds for 64-bit ARM, under qemu-user, with NEON's kernels and with the plain ones; and that of
    cmake -S . -B build/clang -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++-14 && cmake --build build/clang
"""

import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import one_number  # noqa: E402
import one_number_models as models  # noqa: E402
from one_number_slow import context, layout, shard  # noqa: E402
from unets import UNETS  # noqa: E402

here = t.ditto
LAYOUTS = {
    "one rank": (layout(1), dict(run__threads=2)),
    "plain kernels": (layout(1), one_number.pinned("exact_plain") | dict(run__micro_batch=16)),
    "fsdp 2": (layout(2, **shard("fsdp")), {}),
    "tensor 2": (layout(2, tensor=2), {}),
    "ring 2": (layout(2, **context("ring")), {}),
    "pipeline 2": (layout(2, pipeline=2), {}),
}
WIDE = dict(depth=6, width=192, heads=12)


def program(build, remedy):
    folder = pathlib.Path(os.environ.get(f"DITTO_{build.upper()}", t.source / "build" / build))
    if not (folder / "bin/ditto").exists():
        raise t.NotRun(f"{folder} has no program; {remedy}")
    return folder


def on_arm():
    folder = program("aarch64", "tests/aarch64.sh builds it")
    if not shutil.which("qemu-aarch64"):
        raise t.NotRun("there is no qemu-aarch64 (Debian: qemu-user)")
    t.environment["QEMU_LD_PREFIX"] = str(folder / "root")
    return folder


def by_clang():
    return program("clang", "the head of this file has its build")


def check(folder, name, layouts, path=None, **sections):
    path = path or one_number.recipe(f"{name}.toml", **sections)
    one_number.train(path, f"{name}-here")
    expected = one_number.hash_of(f"{name}-here")
    print(f"{name}, here: {expected}", flush=True)
    different = []
    for number, (title, ((ranks, options), more)) in enumerate(layouts.items()):
        t.ditto = str(folder / "bin/ditto")
        try:
            one_number.train(path, f"{name}-other{number}", ranks, timeout=7200, **options, **more)
        finally:
            t.ditto = here
        found = one_number.hash_of(f"{name}-other{number}")
        print(f"  {folder.name}, {title}: {found}", flush=True)
        if found != expected:
            different.append(title)
    t.equal(different, [], f"{name}: layouts of {folder.name} with another hash")


def test_arm():
    check(on_arm(), "small", LAYOUTS)


def test_arm_at_width_192():
    check(on_arm(), "digits", {"one rank": LAYOUTS["one rank"]}, model=WIDE)


def check_unets(folder):
    """Two steps."""
    layouts = LAYOUTS | {"plain kernels": (layout(1), models.pinned("exact_plain") | dict(run__micro_batch=2))}
    for name, options in UNETS.items():
        path = models.recipe(name, run=dict(batch=4, micro_batch=1), model=dict(plugin=name) | options,
                             data=t.synthetic(text_tokens=6, text_width=24))
        check(folder, name, {title: layouts[title] for title in ("one rank", "plain kernels", "tensor 2")}, path)


def test_arm_of_maps():
    check_unets(on_arm())


def test_clang_of_maps():
    check_unets(by_clang())


def test_clang():
    check(by_clang(), "small", LAYOUTS)


def test_clang_at_width_192():
    check(by_clang(), "digits", {title: LAYOUTS[title] for title in ("one rank", "tensor 2", "ring 2")}, model=WIDE)


if __name__ == "__main__":
    t.main(globals())
