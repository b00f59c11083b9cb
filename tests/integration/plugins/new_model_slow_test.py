"""`ditto plugins new model` as it is, and the way of docs/add_a_model.md: both built outside of the tree against an installed
Ditto.

What `new` writes compiles without a warning, passes `ditto plugins try` and trains on the digits. Then the page's steps are
gone in their order: its Python makes the reference's numbers, its source takes the place of the scaffold's, its commands
import and run it, and its Python finds a difference of rounding. A mistake that the page names is found as it says.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["DITTO_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["DITTO_BUILD_DIR"])
WORK = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(WORK.name)
PREFIX = FOLDER / "prefix"
DITTO = PREFIX / "bin/ditto"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{PREFIX}/bin:{os.environ['PATH']}"}
ENVIRONMENT.pop("DITTO_PLUGIN_PATH", None)
TOLERANCE = 1e-5


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], cwd=FOLDER, capture_output=True, text=True,
                          env=ENVIRONMENT | more)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def built(name):
    """The folder's own CMakeLists.txt; returns where its plugins are."""
    folder = FOLDER / "plugins/models" / name
    run("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={PREFIX}")
    log = run("cmake", "--build", folder / "build")
    assert "warning" not in log, log
    plugins = folder / "build/lib/ditto/plugins"
    run(DITTO, "plugins", "verify", plugins / f"models/lib{name}.so")
    return plugins


def trained(name, plugins):
    run(DITTO, "train", PREFIX / "share/ditto/configs/digits.toml", "--set", f"model.plugin={name}", "--set", f"run.name={name}",
        "--set", "run.steps=3", "--set", "run.threads=1", "--plugin-path", plugins)
    lines = (FOLDER / "runs" / name / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3, lines


def as_it_is():
    run(DITTO, "plugins", "new", "model", "own_one", "--in", "plugins/models")
    assert sorted(path.name for path in (FOLDER / "plugins/models/own_one").iterdir()) == ["CMakeLists.txt", "own_one.cpp"]
    plugins = built("own_one")
    tried = run(DITTO, "plugins", "try", plugins / "models/libown_one.so")
    assert "WRONG" not in tried and tried.count("  ok  ") > 5, tried
    trained("own_one", plugins)


def steps_of_the_page():
    """(language, text) of what stands in its blocks before "What each part is for"."""
    page = (SOURCE / "docs/add_a_model.md").read_text().split("## What each part is for")[0]
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)


def the_page():
    source = FOLDER / "plugins/models/port/port.cpp"
    found = plugins = None
    for language, text in steps_of_the_page():
        if language == "cpp":
            source.write_text(text)
        elif language == "python":
            said = run(sys.executable, "-c", text)
            if said := re.search(r"differs by (\S+)", said):
                found = float(said[1])
        else:
            for line in text.splitlines():
                words = line.replace("build/release/lib/ditto/plugins", str(plugins)).split()
                if words == ["./dev", "build"]:
                    plugins = built("port")
                elif "train" in words:
                    trained("port", plugins)
                else:
                    said = run("ditto", *words[1:], **({"DITTO_PLUGIN_PATH": str(plugins)} if plugins else {}))
                    assert "WRONG" not in said, said
    print(f"the page's port differs by {found:.2g}")
    assert found <= TOLERANCE
    return source, steps_of_the_page()


def mistakes_are_found(source, steps):
    """Those that the page names, as large as it says."""
    right = source.read_text()
    compare = [text for kind, text in steps if kind == "python"][-1]
    for least, old, new in ((TOLERANCE, "o.width, 127.0)", "o.width, 128.0)"), (1e-1, "m[3], m[4], s", "m[4], m[3], s")):
        assert right.count(old) == 1, old
        source.write_text(right.replace(old, new))
        plugins = built("port")
        run("ditto", "forward", "imported", "--in", "in.safetensors", "--out", "out.safetensors", DITTO_PLUGIN_PATH=str(plugins))
        found = float(re.search(r"differs by (\S+)", run(sys.executable, "-c", compare))[1])
        print(f"with {new}: {found:.2g}")
        assert found > least


run("cmake", "--install", BUILD, "--prefix", PREFIX)
as_it_is()
mistakes_are_found(*the_page())
