"""What surrounds a run and could choose its numbers: libraries of another PyTorch on the loader's path, another LibTorch in the
process, variables of MKL, oneDNN and ATen, and processors that it may not use. None changes a run without a word.

Claim (machine): Another PyTorch in `LD_LIBRARY_PATH` changes no bit; another release is refused, another build, and variables
and libraries that choose the arithmetic, are noted and compared on a resume and between ranks; threads follow affinity masks
and control groups' quotas. Also: `processors_test.cpp`
"""

import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

LIBRARIES = ["libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libtorch.so", "libditto_sdk.so", "libtorch_cuda.so", "libc10_cuda.so"]
VARIABLES = {
    "ATEN_CPU_CAPABILITY": ["default", "avx2"], "MKL_CBWR": ["COMPATIBLE", "AVX2"], "DNNL_MAX_CPU_ISA": ["SSE41", "AVX2"],
    "ONEDNN_MAX_CPU_ISA": ["AVX2"], "MKL_ENABLE_INSTRUCTIONS": ["AVX2", "SSE4_2"], "MKL_DYNAMIC": ["FALSE"],
    "OMP_DYNAMIC": ["false"], "GLIBC_TUNABLES": ["glibc.cpu.x86_shstk=off"], "MKL_DEBUG_CPU_TYPE": ["5"], "ONEDNN_DEFAULT_FPMATH_MODE": ["STRICT"],
    "NVIDIA_TF32_OVERRIDE": ["0"], "CUBLAS_WORKSPACE_CONFIG": [":16:8"], "TORCH_BLAS_PREFER_CUBLASLT": ["1"],
}


def recipe():
    return t.write_recipe("tiny.toml", t.recipe(checkpoint=dict(every=1), run=dict(steps=2), log=dict(tensorboard=False)))


def plain():
    """A run without anything around it, made once."""
    path = recipe()
    if not (t.work / "plain").exists():
        t.train(path, "plain")
    return path


def record(folder):
    return tomllib.loads((t.work / folder / "run.toml").read_text())["record"]


def needs_compiler():
    if not shutil.which("g++"):
        raise t.NotRun("no g++ to make another library with")
    if "sanitizer" in t.json.loads(t.run("doctor", "--json").stdout)["ditto"]["build"]:
        raise t.NotRun("a sanitizer's own libraries come first")


def library(path, source, name=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_suffix(".cpp")
    file.write_text(source)
    words = ["g++", "-std=c++17", "-shared", "-fPIC", f"-Wl,-soname,{name or path.name}", "-o", str(path), str(file)]
    done = subprocess.run(words, capture_output=True, text=True)
    t.check(done.returncode == 0, done.stderr)
    return path


def other_folders(draw, number):
    """LD_LIBRARY_PATH with libraries of another PyTorch: which, and how the folder is named."""
    names = draw.sample(LIBRARIES, draw.randint(1, len(LIBRARIES)))
    if number < 2:  # the loader looks for these first
        names = LIBRARIES[:2 + number]
    folder = t.work / f"other{number}"
    folder.mkdir()
    for name in names:
        shutil.copy(library(t.work / "made" / name, "int another_pytorch;") if not (t.work / "made" / name).exists()
                    else t.work / "made" / name, folder / name)
    (t.work / f"link{number}").symlink_to(folder)
    shape = draw.choice([f"{folder}", f"{folder}/", f":{folder}", f"{folder}:", f"/nowhere:{folder}", f"other{number}", f"./other{number}",
                         f"{t.work}/link{number}", f"{folder}:/usr/lib", f"{folder}/../other{number}"])
    return names, shape


def test_libraries_of_another_pytorch_on_the_loaders_path_are_not_loaded():
    needs_compiler()
    path, draw = plain(), random.Random(67)
    for number in range(24 if t.slow else 2):
        names, folders = other_folders(draw, number)
        ranks = ["--local-ranks", 2] if number % 4 == 3 else []
        if ranks and not (t.work / "plain2").exists():
            t.train(path, "plain2", *ranks)
        what = f"LD_LIBRARY_PATH={folders} with {', '.join(names)}"
        t.train(path, f"run{number}", *ranks, env={"LD_LIBRARY_PATH": folders})
        t.same_metrics("plain2" if ranks else "plain", f"run{number}")
        t.same_state("plain2" if ranks else "plain", f"run{number}")
        t.equal(record(f"run{number}")["torch_build"], record("plain")["torch_build"], what)
    said = t.run("doctor", env={"LD_LIBRARY_PATH": str(t.work / "other0")}).stdout
    t.check(f"another LibTorch, {t.work}/other0/libtorch_cpu.so, which is not used" in said, said)


def test_what_is_linked_looks_beside_itself_before_it_looks_where_a_variable_says():
    if not shutil.which("readelf"):
        raise t.NotRun("no readelf")
    files = [pathlib.Path(t.ditto), *(t.build / "lib").glob("*.so"), *(t.build / "lib/ditto/plugins").glob("*/*.so")]
    t.check(len(files) > 50, f"only {len(files)} files")
    said = subprocess.run(["readelf", "-d", *map(str, files)], capture_output=True, text=True).stdout
    t.equal(re.findall(r"RUNPATH.*", said), [], "paths behind LD_LIBRARY_PATH")
    t.equal(said.count("(RPATH)"), len(files), "files with a path of their own")


def another_libtorch(release, commit):
    """To be preloaded: LibTorch says that it is another one."""
    return library(t.work / f"libsays_{release}_{commit}.so", f"""
#include <map>
#include <string>
namespace caffe2 {{
const std::map<std::string, std::string>& GetBuildOptions() {{
  static const std::map<std::string, std::string> all{{{{"TORCH_VERSION", "{release}"}}, {{"COMMIT_SHA", "{commit}"}}}};
  return all;
}}
}}
""")


def test_another_release_of_libtorch_is_refused_and_another_build_is_taken_and_noted():
    needs_compiler()
    path = plain()
    release = t.json.loads(t.run("doctor", "--json").stdout)["libtorch"]["version"]
    for other in ("2.12.0", "1.13.1+cpu", release + "1") if t.slow else ("2.12.0",):
        preload = {"LD_PRELOAD": str(another_libtorch(other, "0" * 40))}
        for words in (["train", path], ["doctor"], ["plugins", "list"]):
            t.refused(3, [f"is LibTorch {other.split('+')[0]}, and Ditto was built with", "LD_PRELOAD"], *words, env=preload)
    commit = "0123456789ab" + "c" * 28
    for other in (release, release + "+cu999") if t.slow else (release,):
        preload = {"LD_PRELOAD": str(another_libtorch(other, commit))}
        shutil.rmtree(t.work / "build", ignore_errors=True)
        t.train(path, "build", env=preload)
        t.check("commit 0123456789ab;" in record("build")["torch_build"], record("build"))
        t.same_state("plain", "build")
        said = t.train(path, "build", run__steps=3).all
        t.check("changed since: torch_build: commit 0123456789ab;" in said and "changed since: variables: LD_PRELOAD=" in said, said)
    # A rank with another build is refused.
    port = t.free_port()
    ranks = [subprocess.Popen([t.ditto, "train", str(path), *t.sets({"run.output": str(t.work / "two")})], stderr=subprocess.PIPE, text=True,
                              env=t.environment | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} |
                              ({"LD_PRELOAD": str(another_libtorch(release, commit))} if rank else {})) for rank in range(2)]
    said = [rank.communicate(timeout=t.patient(120))[1] for rank in ranks]
    t.equal(ranks[1].returncode, 2, said)
    t.check("LibTorch = " in said[1] and "commit 0123456789ab" in said[1] and "but rank 0 has" in said[1], said)


def test_variables_that_choose_the_arithmetic_are_noted_and_compared():
    path = plain()
    t.equal(record("plain")["variables"], "none", "of nothing")
    drawn = [(name, value) for name, values in VARIABLES.items() for value in values]
    if t.slow:
        draw = random.Random(34)
        drawn = [[one] for one in drawn] + [draw.sample(drawn, draw.randint(2, 4)) for _ in range(6)]
    else:
        drawn = [[("MKL_CBWR", "COMPATIBLE"), ("ATEN_CPU_CAPABILITY", "default")]]
    for number, chosen in enumerate(drawn):
        env, folder = dict(chosen), f"variables{number}"
        text = ", ".join(sorted(f"{name}={value}" for name, value in env.items()))
        t.train(path, folder, env=env)
        t.equal(record(folder)["variables"], text, "noted")
        said = t.train(path, folder, run__steps=3).all
        t.check(f"changed since: variables: {text} -> none" in said, said)
        shutil.rmtree(t.work / folder)
    said = t.run("doctor", env=env).stdout
    t.check(f"{text}: chooses how libraries compute" in said, said)


def test_libraries_that_compute_and_decode_are_noted():
    plain()
    libraries = record("plain")["library"]
    t.check({"libm", "libc10", "libgomp", "libjpeg"} <= set(libraries), libraries)
    t.check(all(re.fullmatch("[0-9a-f]{16}|of [0-9]+ bytes", build) for build in libraries.values()), libraries)


def test_threads_follow_the_mask():
    if not shutil.which("taskset") or len(os.sched_getaffinity(0)) < 2:
        raise t.NotRun("no taskset, or one processor")
    path = plain()
    core = str(min(os.sched_getaffinity(0)))
    environment = {name: value for name, value in t.environment.items() if name != "OMP_NUM_THREADS"}
    output = str(t.work / "mask")
    for words, threads in (([], 1), (["--local-ranks", "2"], 1)):
        command = ["taskset", "-c", core, t.ditto, "train", str(path), *t.sets({"run.threads": 0, "run.output": output}), *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        t.check(done.returncode == 0 and f"{threads} thread a rank" in done.stderr + done.stdout, done)
        shutil.rmtree(output)
    done = subprocess.run(["taskset", "-c", core, t.ditto, "doctor", "--json"], capture_output=True, text=True, env=environment)
    t.equal(t.json.loads(done.stdout)["processor"]["threads"], 1, "threads of a mask of one")


def test_as_many_threads_as_omp_num_threads_says_compute():
    many = str(len(os.sched_getaffinity(0)) + 2)
    command = [t.ditto, "train", str(plain()), *t.sets({"run.threads": 0, "run.output": str(t.work / "many")})]
    done = subprocess.run(command, capture_output=True, text=True, env=t.environment | {"OMP_NUM_THREADS": many})
    t.check(done.returncode == 0 and f"{many} threads a rank" in done.stderr + done.stdout, done)


if __name__ == "__main__":
    t.main(globals())
