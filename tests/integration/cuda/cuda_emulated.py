"""The kernels of plugins/kernels/cuda, compiled by g++ as fibers (tests/cuda_emulated), against references in fp64 that
are written for these tests; and under sanitizers, which must find what is planted.

Claim (numbers): Every kernel for GPUs, forward and backward, run by emulation: fp32 within 1e-6 of the fp64 result, bf16
and fp16 within one rounding of it, the same bits in five orders of threads and blocks; AdamW's pass has the bits of the
CPU's, the exact product those of the kernels `exact`. Products by cublasLt, with bias, GELU, its derivative and sums of
columns on their way, are asked for as its documentation has them, of a form of it on the CPU, and their algorithms are kept.

Claim (failures): ThreadSanitizer finds no race in any of them and AddressSanitizer no number read or written beyond its
memory; each barrier that is taken out, and shared memory that is too small, is found. Also: `cuda_emulated.py --slow`
"""
# Parts: "any_order" "address_sanitizer" "thread_sanitizer"

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

KERNELS = t.source / "plugins/kernels/cuda"
TESTS = t.source / "tests/cuda_emulated"
# What the kernels must agree with to the bit.
BESIDE = [t.source / "plugins/kernels/exact/plain.cpp", t.source / "plugins/kernels/exact/room.cpp",
          t.source / "plugins/optimizers/adamw/one_pass.cpp"]
# Products by cublasLt, of which tests/cuda_emulated has a form for the CPU: with NVIDIA's header alone.
PRODUCTS = [KERNELS / "blas.cpp", t.source / "sdk/src/error.cpp", t.source / "sdk/src/text.cpp"]
OF_PRODUCTS = {"blas_test.cpp", "blas_library.cpp"}
FLAGS = ["-std=c++20", "-O2", "-g1", "-ffp-contract=off", "-fno-math-errno", "-mfma", "-Wno-psabi",
         "-I", str(TESTS), "-I", str(t.source / "sdk/include"), "-I", str(t.source / "plugins/optimizers/adamw")]
TOLD = {"-fsanitize=thread": "-DEMULATED_TSAN", "-fsanitize=address": "-DEMULATED_ASAN"}
# Barriers by kernel and number, the tests that meet them, and whether they are tried with --slow alone.
BARRIERS = [("walk.h", 0, "norm.cu", "norms", False), ("walk.h", 1, "functions.cu", "rows", True),
            ("chunks.h", 0, "gate.cu", "rows", True), ("sums.cu", 0, "sums.cu", "rows", True),
            ("sums.cu", 2, "sums.cu", "rows", False), ("totals.cu", 0, "totals.cu", "updates", True),
            ("exact_product.cu", 0, "exact_product.cu", "products", True),
            ("exact_product.cu", 1, "exact_product.cu", "products", False)]


def header():
    """The folder of cublasLt.h; None: there is none."""
    places = [pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include", pathlib.Path("/usr/include")]
    return next((place for place in places if (place / "cublasLt.h").exists()), None)


def all_sources():
    tests = sorted(TESTS.glob("*.cpp"))
    if not header():
        tests = [test for test in tests if test.name not in OF_PRODUCTS]
    return sorted(KERNELS.glob("*.cu")) + tests + BESIDE + (PRODUCTS if header() else [])


def compiler():
    found = shutil.which(os.environ.get("CXX", "g++"))
    if not found or os.uname().machine != "x86_64":
        raise t.NotRun("the emulation's tests: they are compiled by g++ on x86-64")
    cache = shutil.which("ccache")
    return [cache, found] if cache else [found]


def objects(folder, flags=(), kernels=KERNELS, sources=None):
    """Compiled sources: all, or only those of the kernels' folder that are named."""
    folder.mkdir(exist_ok=True)
    chosen = [kernels / name for name in sources] if sources else all_sources()
    library = ["-isystem", str(header())] if header() else ["-DWITHOUT_CUBLASLT"]

    def one(source):
        out = folder / (source.name + ".o")
        own = list(flags)
        if source.name == "emulated.cpp":  # what fibers are made of is no kernel's
            own = [TOLD[flag] for flag in flags]
        command = compiler() + FLAGS + library + ["-I", str(kernels)] + own + ["-x", "c++", "-c", str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        t.check(done.returncode == 0, f"{source.name} does not compile:\n{done.stderr}")
        return out

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, chosen))


def program(folder, parts, flags=()):
    out = folder / "cuda_kernels"
    done = subprocess.run(compiler()[-1:] + list(flags) + [str(part) for part in parts] + ["-lhwy", "-o", str(out)],
                          capture_output=True, text=True)
    t.check(done.returncode == 0, done.stderr)
    return out


def run(what, *arguments):
    done = subprocess.run([str(what), *arguments], capture_output=True, text=True, timeout=t.patient(900),
                          env=t.environment | {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": ""})
    return done.returncode, done.stdout, done.stderr


def test_kernels_are_right_in_any_order_of_threads():
    what = program(t.work / "plain", objects(t.work / "plain"))
    code, first, errors = run(what, "0")
    wrong = [line for line in first.splitlines() if "WRONG" in line]
    t.check(code == 0, *wrong, errors)
    cases = first.count(" ok\n")
    t.check(cases > 200, f"only {cases} cases ran")
    for order in ("1", "2", "3", "4"):
        code, again, errors = run(what, order)
        t.check(again == first, f"order {order} gives other bits:",
                *[line for line in again.splitlines() if line not in first.splitlines()], errors)
    print(f"{cases} cases, the same bits in 5 orders")
    if not header():
        print("not run: products by cublasLt: its header, cublasLt.h, is not on this machine")
    else:
        t.check(first.count("\nproduct, ") >= 29, "products by cublasLt were not tried")


def test_address_sanitizer_finds_nothing_but_what_is_planted():
    flags = ["-fsanitize=address"]
    folder = t.work / "address"
    parts = objects(folder, flags)
    code, _, errors = run(program(folder, parts, flags), "1", "fp32")
    t.check(code == 0, errors)
    changed = changed_copy("shared", "norm.cu", "sum_room(3)", "sum_room(2)", 0)
    code, _, errors = run(planted("shared", changed, "norm.cu", parts, flags), "1", "fp32", "norms")
    t.check(code != 0 and "heap-buffer-overflow" in errors and "norm.cu" in errors,
            "shared memory that is too small is not found:", errors)


def changed_copy(name, file, what, instead, which):
    """The kernels' folder with the occurrence number `which` of a text in a file changed."""
    copy = t.work / f"{name}_kernels"
    shutil.copytree(KERNELS, copy)
    text = (copy / file).read_text()
    places = [match.start() for match in re.finditer(re.escape(what), text)]
    t.check(which < len(places), f"{file} has {len(places)} times {what}")
    (copy / file).write_text(text[:places[which]] + instead + text[places[which] + len(what):])
    return copy


def planted(name, kernels, source, parts, flags):
    folder = t.work / name
    own = objects(folder, flags, kernels, [source])
    return program(folder, [part for part in parts if part.name != source + ".o"] + own, flags)


def test_thread_sanitizer_finds_nothing_but_barriers_taken_out():
    flags = ["-fsanitize=thread"]
    folder = t.work / "thread"
    parts = objects(folder, flags)
    code, _, errors = run(program(folder, parts, flags), "1", "bf16")
    t.check(code == 0 and "WARNING" not in errors, errors)
    tried = 0
    for file, number, source, word, slow in BARRIERS:
        if slow and not t.slow:
            continue
        name = f"{pathlib.Path(file).stem}_{number}"
        changed = changed_copy(name, file, "block_barrier();", "", number)
        code, _, errors = run(planted(name, changed, source, parts, flags), "1", "bf16", word)
        t.check("data race" in errors and file in errors, f"barrier {number} of {file} is out, and no race is found:",
                errors)
        tried += 1
    print(f"{tried} barriers taken out, {tried} races found")


if __name__ == "__main__":
    t.main(globals())
