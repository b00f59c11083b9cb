"""The commands that README.md and docs/*.md show are read out of the pages and run, in a folder like the repository.

Claim (options): The commands that README.md and docs/ show run (a training makes two steps; those that need machines or weights
that are not there are named and left out).

What is changed: a training makes a few steps (--set run.steps=2 is added, 4 where a run goes on) and small sheets, 50,000 samples
are 40, and ./dev is not run from within its own test: ./dev build builds the plugins that the pages define, other words of it
must be in ./dev help. Under a command a line `error: …` says how it must end.
"""

import os
import pathlib
import random
import re
import shlex
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import text_encoders  # noqa: E402

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(
    (str(path.relative_to(t.source)) for path in (t.source / "docs").rglob("*.md")),
    key=lambda page: ("tasks/" in page, not page.endswith("my_pictures.md"), page))]  # the other tasks go on with its run
COMMANDS = ("ditto", "./dev", "build/release/bin/ditto", "torchrun", "mpirun", "cmake", "cp", "ctest", "export", "ditto_matrix")
# Commands that need machines which are not here, and the test that runs the like of them.
PORT = "the port of docs/add_a_model.md needs the Python peers; integration/new_model_slow_test.py goes all of its way"
ELSEWHERE = {"host1": "two machines; integration/launchers_slow.py joins two network namespaces", "checkpoint import theirs": PORT,
             "forward imported": PORT, "libport.so": PORT,
             "sd1": "a folder of Stable Diffusion; integration/stable_diffusion_test.py goes all of its way",
             "runs/faces/": "integration/sample.py samples the stages of a cascade by hand",
             "moviegen_toy": "integration/moviegen_stages.py goes all of its way"}
# What a page may name that is not in the repository: what a person makes, what a run or a build leaves, and files of other projects.
NOT_HERE = re.compile(r"(runs|build|photos|drawings|sketches|captioned|\.deps|plugins/(models/port|samplers/mine))/|models/stdit/stdit_layer_spec\.py|hooks/first_block_cache\.py")
SUFFIXES = "h|cpp|cu|py|sh|md|toml|txt|cmake|json|svg|png|lock"
build = os.environ.get("DITTO_BUILD_DIR", str(t.source / "build/release"))

TRAIN = """#!/bin/sh
# ditto, but a training is short, and 50,000 samples are few.
for word; do
  shift
  [ "$word" != 0-49999 ] || word=0-39
  set -- "$@" "$word"
done
if [ "$1" = train ]; then
  steps=2
  case $2 in runs/*) steps=4 ;; esac
  stages=$(cat "$2" "$2/cascade.toml" 2>/dev/null | sed -n 's/^stages = \\[\\(.*\\)\\].*/\\1/p' | tr -d '",' | sed 's/[.]toml//g')
  if [ -n "$stages" ]; then
    for stage in $stages; do
      set -- "$@" --set $stage.run.steps=$steps --set $stage.validate.every=2 --set $stage.checkpoint.every=0
    done
    exec {ditto} "$@"
  fi
  exec {ditto} "$@" --set run.steps=$steps --set validate.every=2 --set validate.grid_every=2 --set validate.grid=6
fi
exec {ditto} "$@"
"""

DEV = """#!/bin/sh
# Words that ./dev has; build builds what the pages define.
{source}/dev help | grep -q "^  $1 " || {{ echo "./dev has no word '$1'" >&2; exit 2; }}
[ "$1" != build ] || exec sh {work}/build_plugins
"""

BUILD_PLUGINS = """set -e
[ -d {work}/prefix ] || cmake --install {build} --prefix {work}/prefix > {work}/install.log
cmake -S {work}/plugins_of_pages -B {work}/plugins_of_pages/build -DCMAKE_PREFIX_PATH={work}/prefix > {work}/configure.log
cmake --build {work}/plugins_of_pages/build -j2
"""


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(ditto=t.ditto, source=t.source, work=t.work, build=build))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def text_of(page):
    return (t.source / page).read_text()


def blocks(page):
    """The commands of each fenced block, a list of (line of the page, command, the error that it must end with) a block."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text_of(page), re.M | re.S):
        if match[1] not in ("", "sh", "bash") or match[2].startswith("#!"):
            continue
        first = text_of(page).count("\n", 0, match.start(2)) + 1
        commands, open_line = [], ""
        for number, line in enumerate(match[2].split("\n"), first):
            open_line += line.removesuffix("\\") if line.endswith("\\") else line
            if line.endswith("\\"):
                continue
            if is_command(open_line):
                commands.append((number, open_line, None))
            elif open_line.startswith("error: ") and commands:
                commands[-1] = (*commands[-1][:2], open_line)
            open_line = ""
        if commands:
            yield commands


def is_command(line):
    words = line.split()
    while words and re.fullmatch(r"[A-Z_]+=\S+", words[0]):
        words.pop(0)
    return bool(words) and words[0] in COMMANDS


def is_synopsis(command):
    return "…" in command or " | " in command or "[--" in command


def make_workspace():
    """Links to what the repository has, and what a person would have brought: photos."""
    for path in t.source.iterdir():
        if path.name not in (".git", "build", "runs", "dev", "plugins"):
            (t.work / path.name).symlink_to(path)
    (t.work / "home").mkdir()
    release = t.work / "build/release"
    release.mkdir(parents=True)
    for path in os.scandir(build):
        if path.name != "bin":
            (release / path.name).symlink_to(path.path)
    for place in (release / "bin/ditto", t.work / "bin/ditto"):
        executable(place, TRAIN)
    executable(t.work / "dev", DEV)
    executable(t.work / "build_plugins", BUILD_PLUGINS)
    with tarfile.open(t.digits / "train-000000.tar") as shard:
        files = {member.name: shard.extractfile(member).read() for member in shard.getmembers()}
    for name, content in files.items():
        if name.endswith(".png"):
            folder = t.work / "photos" / files[name.replace(".png", ".cls")].decode()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    write_pictures(t.work / "drawings", 14, random.Random(1))
    write_pictures(t.work / "sketches", 8, random.Random(2))
    write_captioned()
    write_recipes()


def write_pictures(folder, count, draws):
    """A person's pictures of three classes: discs, squares and kites, of other sizes and proportions than a model learns."""
    shapes = {"cat": lambda x, y: x * x + y * y < 1, "dog": lambda x, y: max(abs(x), abs(y)) < 0.9, "kite": lambda x, y: abs(x) + abs(y) < 1.2}
    for name, inside in shapes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            height, width, colour = draws.randint(40, 56), draws.randint(40, 56), bytes(draws.choices(range(200), k=3))
            rows = [b"".join(colour if inside(4 * x / width - 2, 4 * y / height - 2) else b"\xff\xff\xff" for x in range(width)) for y in range(height)]
            pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
            chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b"")]
            (folder / name / f"{number:03}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(
                struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks))


def write_captioned():
    """Pictures with a text beside each, and a T5 of random weights, as transformers saves one."""
    write_pictures(t.work / "shapes", 8, random.Random(3))
    captioned = t.work / "captioned"
    captioned.mkdir()
    for number, path in enumerate(sorted((t.work / "shapes").rglob("*.png"))):
        shutil.copy(path, captioned / f"{number:03}.png")
        (captioned / f"{number:03}.txt").write_text(f"a {path.parent.name}")
    size = text_encoders.T5 | dict(d_model=64)
    text_encoders.folder("t5", text_encoders.t5_shapes(size), size, "T5EncoderModel", "t5")


def write_recipes():
    """The recipes whose whole file a page shows, after a line that ends with the file's name."""
    for page in PAGES:
        for name, text in re.findall(r"`(\w+\.toml)`:\n\n```toml\n(.*?)^```", text_of(page), re.M | re.S):
            (t.work / name).write_text(text)


def write_plugins():
    """The plugins whose whole file a page shows, after a line that names the file."""
    folder = t.work / "plugins_of_pages"
    folder.mkdir()
    lines = ["cmake_minimum_required(VERSION 3.25)", "project(pages LANGUAGES CXX)", "find_package(Ditto REQUIRED)"]
    for page in PAGES:
        for match in re.finditer(r"`plugins/(\w+)/(\w+)/\w+\.cpp`:?\n\n```cpp\n(.*?)^```", text_of(page), re.M | re.S):
            (folder / f"{match[2]}.cpp").write_text(match[3])
            lines.append(f"ditto_add_plugin({match[2]} {match[1]} SOURCES {match[2]}.cpp)")
    t.check(len(lines) == 5, f"the pages define {len(lines) - 3} plugins, expected two")
    (folder / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
    (folder / "build/lib/ditto/plugins").mkdir(parents=True)  # DITTO_PLUGIN_PATH names it before it is built


def script_of(command, error):
    if error is None:
        return f"{command}\n"
    found = shlex.quote(error.split("…")[0])
    return f"""if said=$(exec 2>&1
{command}
); then echo 'no error'; exit 1; fi
grep -qF -- {found} <<< "$said" || {{ echo "$said"; exit 1; }}
"""


def shell(commands, page):
    """Runs a block as one script; every command of it must end with 0, or with the error that the page shows."""
    environment = t.compiled_once() | t.environment | {
        "PATH": f"{t.work}/bin:{build}/tests:{os.environ['PATH']}", "HOME": str(t.work / "home"),
        "DITTO_PLUGIN_PATH": str(t.work / "plugins_of_pages/build/lib/ditto/plugins")}
    script = "set -e\n" + "".join(f"echo '+ {page}:{number}' >&2\n{script_of(command, error)}" for number, command, error in commands)
    done = subprocess.run(["bash", "-c", script], cwd=t.work, env=environment, capture_output=True, text=True, timeout=t.patient(280))
    t.check(done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")


def runnable(page, commands):
    """Without those that cannot run here; what they need is said."""
    left = []
    for number, command, error in commands:
        program = next(word for word in command.split() if "=" not in word)
        missing = next((why for word, why in ELSEWHERE.items() if word in command), None)
        if missing is None and program in ("torchrun", "mpirun") and not shutil.which(program):
            missing = f"{program} is not installed"
        if missing:
            print(f"not run: {page}:{number}: {missing}", flush=True)
        elif not is_synopsis(command):
            left.append((number, command, error))
    return left


def run_page(page):
    count = 0
    for commands in blocks(page):
        commands = runnable(page, commands)
        if commands:
            shell(commands, page)
            count += len(commands)
    print(f"{page}: {count} commands", flush=True)
    return count


def test_the_commands_of_readme_run():
    make_workspace()
    write_plugins()
    t.check(run_page("README.md") >= 8, "README.md shows hardly a command")
    shell([(0, command, None) for command in inline_commands("README.md")], "README.md, in its text")


def test_the_commands_of_the_docs_run():
    counts = [run_page(page) for page in PAGES[1:]]
    t.check(sum(counts) >= 12, f"the docs show {sum(counts)} commands")


def test_a_command_that_ends_otherwise_than_its_page_says_is_found():
    shell([(1, f"{t.ditto} vresion", "error: ditto: there is no command … version")], "README.md")
    for command, error in (("version", "error: "), ("vresion", "error: other words"), ("vresion", None)):
        try:
            shell([(1, f"{t.ditto} {command}", error)], "README.md")
        except t.Failed:
            continue
        t.check(False, f"ditto {command} ended as `{error}` says")


def inline_commands(page):
    """`ditto …` and `./dev …` within sentences, where they are whole: nothing of them stands for something else."""
    for match in re.finditer(r"`((?:ditto|\./dev) [^`]+)`", text_of(page)):
        if not is_synopsis(match[1]) and not re.search(r"\b[A-Z]{2,}\b|[|\[]", match[1]) and (match[1].startswith("./dev") or "runs/" in match[1]):
            yield match[1]


helps = {}


def help_of(words):
    if words not in helps:
        helps[words] = t.run(*words, "--help").stdout
    return helps[words]


def test_every_command_and_option_that_a_sentence_names_is_there():
    checked = 0
    for page in PAGES:
        for command in re.findall(r"`(ditto [a-z][^`]*)`", text_of(page)) + [c for block in blocks(page) for _, c, _ in block if c.startswith("ditto_matrix")]:
            words = shlex.split(command.replace("…", "").replace("'", ""))
            if words[0] == "ditto_matrix":
                text = subprocess.run([f"{build}/tests/ditto_matrix", "--help"], capture_output=True, text=True).stdout
            else:
                names = words[1].split("|")
                sub = re.findall(r"[a-z]+", words[2]) if names[0] in ("checkpoint", "config", "data", "plugins", "bench") and len(words) > 2 else [None]
                text = "".join(help_of((name, *([inner] if inner else []))) for name in names for inner in sub)
            for option in re.findall(r"--[a-z][a-z-]*", command):
                t.check(re.search(rf"{option}\b", text), f"{page} has `{command}`, and there is no {option}")
            checked += 1
    t.check(checked > 15, f"found {checked} commands in the pages' sentences")


def anchors(text):
    """Of a page's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", prose, re.M)}


def links_of(page, text):
    """Each relative link that leads nowhere."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        place, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (t.source / page).parent / place if place else t.source / page
        if not path.exists():
            yield f"{page} links to {target}, and there is no {place}"
        elif anchor and anchor not in anchors(path.read_text()):
            yield f"{page} links to {target}, and {place or 'it'} has no such heading"


def files_of(page, text):
    """Each file named in backticks, with a folder and a suffix, that is not there. Headers are named as a plugin includes them, too."""
    for name in re.findall(rf"`<?([\w.*-]+(?:/[\w.*-]+)+\.(?:{SUFFIXES}))>?(?=[`: ])", text):
        stands_for_others = re.search(r"(^|[/_])[A-Z]{2,}[/_.]", name)
        folders = [t.source / folder for folder in ("", "docs", "sdk/include", "sdk/include/ditto", "sdk/testing/include")]
        if not stands_for_others and not NOT_HERE.match(name) and not any(any(folder.glob(name)) for folder in folders):
            yield f"{page} names {name}, and there is no such file"


def test_links_and_files_that_pages_name_are_there():
    missing, links, files = [], 0, 0
    for page in [*PAGES, "SECURITY.md"]:
        text = text_of(page)
        missing += [*links_of(page, text), *files_of(page, text)]
        links += len(re.findall(r"\]\(", text))
        files += len(re.findall(r"`[\w.]+/[\w./]+`", text))
    t.equal(missing, [], "what the pages lead to")
    t.check(links > 80 and files > 80, f"the pages have {links} links and name {files} files: were they read?")


def test_a_link_and_a_file_that_are_not_there_are_found():
    text = "[a](no/such.md) [b](docs/config.md#no-such-heading) [c](docs/config.md#resuming) `core/no/such.cpp` `ditto/model.h` `tests/bounds.py readme`"
    found = [*links_of("README.md", text), *files_of("README.md", text)]
    t.check(len(found) == 3 and "no/such.md" in found[0] and "no-such-heading" in found[1] and "core/no/such.cpp" in found[2], f"found {found}")


def test_every_subcommand_has_an_example_of_its_own_that_parses_and_a_row_of_what_it_touches():
    """Each help's example names a command with options that its help lists."""
    rows = "".join(re.findall(r"^\| (`.*?) \|", text_of("SECURITY.md"), re.M))
    todo = [()]
    while todo:
        words = todo.pop()
        text = help_of(words)
        inner = re.search(r"^Subcommands:\n((?:  .*\n?)+)", text, re.M)
        if inner:
            todo += [(*words, name) for name in re.findall(r"^  ([a-z]+) ", inner[1], re.M)]
            continue
        example = re.search(r"^Examples?:\s+(ditto .*)$", text, re.M)
        t.check(example, f"ditto {' '.join(words)} --help ends without an example")
        t.check(example[1].startswith("ditto " + " ".join(words)), f"the example of ditto {' '.join(words)} is {example[1]}")
        t.check(re.search(rf"`{' '.join(words)}\b", rows), f"SECURITY.md does not say what ditto {' '.join(words)} may touch")
        for option in re.findall(r"--[a-z][a-z-]*", example[1]):
            t.check(option in text, f"{example[1]}: there is no {option}")


t.main(globals())
