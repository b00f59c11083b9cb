"""What the integration tests share. Only Python's standard library: they run without the peers' environment.

A script calls `main(globals())`: every function whose name starts with "test_" runs, in the order of the file, in one
folder that is removed at the end (DITTO_KEEP=1 keeps it). Arguments choose tests by a part of their names; --slow sets
`support.slow`.
"""

import array
import fcntl
import json
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib

# A script may import another of any folder.
sys.path[:0] = sorted(str(folder) for folder in pathlib.Path(__file__).resolve().parent.iterdir() if folder.is_dir())

source = pathlib.Path(os.environ.get("DITTO_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
ditto = os.environ.get("DITTO", str(source / "build/release/bin/ditto"))
build = pathlib.Path(os.environ.get("DITTO_BUILD_DIR", source / "build/release"))
digits = source / "data/digits"
slow = "--slow" in sys.argv
work = pathlib.Path()  # of this script, made by main()

environment = os.environ | {"OMP_NUM_THREADS": "1"}  # tests share their machine
for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "DITTO_PLUGIN_PATH"):
    environment.pop(variable, None)


def patient(seconds):
    """What a test waits at most for what should take much less; under_load.py asks for more of it."""
    return seconds * float(os.environ.get("DITTO_TEST_PATIENCE", 1))


class Failed(Exception):
    pass


class NotRun(Exception):
    pass


def only_slow():
    if not slow:
        raise NotRun("with --slow alone")


def check(condition, *what):
    if not condition:
        raise Failed(" ".join(str(part) for part in what))


def equal(found, expected, what):
    check(found == expected, f"{what}: found {found!r}, expected {expected!r}")


# --- recipes -----------------------------------------------------------------------------------------------------------


def recipe(**sections):
    """A small model on the digits; section=dict(...) overrides options, section=None leaves one out."""
    tree = {
        "run": dict(name="tiny", steps=8, batch=16, threads=1, seed=0),
        "data": dict(plugin="webdataset", shards=[f"{digits}/train-*.tar"], classes=10, channels=1, size=[8, 8],
                     validation_shards=[f"{digits}/validation-*.tar"]),
        "encoder.image": dict(plugin="identity"),
        "model": dict(plugin="dit", depth=2, width=32, heads=4, patch=2),
        "scheduler": dict(plugin="rectified_flow"),
        "sampler": dict(plugin="euler", steps=4),
        "objective": dict(plugin="diffusion", condition_dropout=0.1),
        "optimizer": dict(plugin="adamw"),
        "lr_schedule": dict(lr=1e-3, warmup=2),
        "ema": dict(decay=0.9),
        "checkpoint": dict(every=0, keep=2),
        "log": dict(tensorboard=False),
    }
    for section, options in sections.items():
        section = section.replace("__", ".")
        if options is None:
            tree.pop(section, None)
        elif "plugin" in options and options["plugin"] != tree.get(section, {}).get("plugin"):
            tree[section] = dict(options)
        else:
            tree[section] = tree.get(section, {}) | options
    if not tree.get("ema", {}).get("enabled", True):  # what is of an average is refused where there is none
        tree["ema"] = {"enabled": False} | sections["ema"]
    return tree


def synthetic(**options):
    of_one_size = {} if "sizes" in options else dict(height=8, width=8)
    return dict(plugin="synthetic", channels=1, classes=10) | of_one_size | options


def is_tables(value):
    return isinstance(value, list) and value != [] and all(isinstance(one, dict) for one in value)


def table(header, options):
    return [header] + [f"{key} = {json.dumps(value)}" for key, value in options.items()] + [""]


def write_recipe(name, tree):
    """Of sections, and of lists of tables in them."""
    lines = []
    for section, options in tree.items():
        lines += table(f"[{section}]", {key: value for key, value in options.items() if not is_tables(value)})
        for key, value in options.items():
            for one in value if is_tables(value) else ():
                lines += table(f"[[{section}.{key}]]", one)
    path = work / name
    path.write_text("\n".join(lines))
    return path


# --- running -----------------------------------------------------------------------------------------------------------


def sets(options):
    return [word for key, value in options.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def run(*arguments, code=0, timeout=240, cwd=None, env=None):
    """Runs ditto; the finished process, with `all` = what it printed. Fails on another exit code than `code`."""
    words = [ditto, *(str(word) for word in arguments)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd or work,
                               env=environment | (env or {}))
    try:
        out, err = process.communicate(timeout=patient(timeout))
    except subprocess.TimeoutExpired:
        where = stacks_of(process.pid)
        process.kill()
        out, err = process.communicate()
        raise Failed(f"not over after {patient(timeout):.0f} s: {' '.join(words)}\n{out}{err}\nits threads:\n{where}") from None
    finally:
        process.kill()
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    done.all = done.stdout + done.stderr
    check(done.returncode == code, f"exit code {done.returncode}, expected {code}: {' '.join(words)}\n{done.all}")
    return done


def stacks_of(pid):
    """Where the threads of a process are: their stacks, where there is a debugger, else in which calls of the system."""
    try:
        if shutil.which("gdb"):
            asked = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace 40"],
                                   stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
            if "#1 " in asked.stdout:
                return asked.stdout
        return "\n".join(" ".join((thread / file).read_text().strip() for file in ("comm", "wchan", "syscall"))
                         for thread in sorted(pathlib.Path(f"/proc/{pid}/task").iterdir()))
    except (OSError, subprocess.TimeoutExpired) as why:
        return f"nobody could see: {why}"


def train(path, folder, *arguments, code=0, env=None, timeout=240, **options):
    """`ditto train` into work/folder; options with "__" for the dot: run__steps=3."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    return run("train", path, *sets({"run.output": str(work / folder)} | given), *arguments, code=code, env=env, timeout=timeout)


def refused(code, parts, *arguments, **how):
    """The command ends with `code` and one error, whose line has every one of `parts`."""
    done = run(*arguments, code=code, **how)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    check(len(errors) == 1, f"{len(errors)} errors, expected one: {' '.join(map(str, arguments))}\n{done.all}")
    for part in parts:
        check(part in errors[0], f"no \"{part}\" in: {errors[0]}")
    return done


def start(*arguments):
    """A process that runs on, in a session of its own so that no stray signal reaches it."""
    log = open(work / "started.log", "a")
    return subprocess.Popen([ditto, *(str(word) for word in arguments)], cwd=work, env=environment, stdout=log,
                            stderr=log, start_new_session=True)


def compiled_once():
    """An environment in which CMake's builds in `work` take from ccache, where there is one, what was compiled before."""
    cached = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CXXFLAGS": "-fpch-preprocess", "CCACHE_BASEDIR": str(work),
              "CCACHE_NOHASHDIR": "1", "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime"}
    return os.environ | (cached if shutil.which("ccache") else {})


def wait_for(condition, what, limit=60):
    began = time.monotonic()
    while not condition():
        check(time.monotonic() - began < patient(limit), f"waited {patient(limit):.0f} s for {what}")
        time.sleep(0.005)


def free_port():
    """Of the loopback: nobody listens there now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children(pid):
    try:
        return [int(word) for word in open(f"/proc/{pid}/task/{pid}/children").read().split()]
    except OSError:
        return []


def cpu_seconds(pid):
    """What a process has computed so far."""
    try:
        words = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


_slurm_lock = None


def one_node_slurm(verb, *words):
    """tests/support/slurm_one_node, in this script's folder; one at a time on this machine."""
    global _slurm_lock
    if verb == "start":
        _slurm_lock = open(pathlib.Path(tempfile.gettempdir()) / "ditto-slurm.lock", "w")
        fcntl.flock(_slurm_lock, fcntl.LOCK_EX)
    command = [str(source / "tests/support/slurm_one_node"), verb, str(work / "slurm"), *(str(word) for word in words)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patient(120))
    if verb == "stop":
        _slurm_lock.close()
    return done


# --- what runs leave ---------------------------------------------------------------------------------------------------


def lines_of(path):
    """The lines of a .jsonl file; numbers as they are written, so that equal texts mean equal bits."""
    return lines_of_text(pathlib.Path(path).read_text())


def lines_of_text(text):
    return [json.loads(line, parse_float=str) for line in text.splitlines()]


def lines_in(folder):
    """How many lines a run's metrics.jsonl has so far."""
    path = work / folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def metrics(folder):
    """Of each step what has to be the same again: its number, its samples, its loss and its gradient's norm."""
    names = ("step", "samples", "loss", "grad_norm", "lr", "losses", "skipped")
    lines = lines_of(work / folder / "metrics.jsonl")
    equal([line["step"] for line in lines], list(range(1, len(lines) + 1)), f"steps of {folder}/metrics.jsonl")
    return [{name: line.get(name) for name in names} for line in lines]


def learned_of(folder):
    """How many samples each step learned from, by the rate that it says."""
    return [round(float(line["samples_per_s"]) * float(line["step_s"]), 6) for line in lines_of(work / folder / "metrics.jsonl")]


def same_metrics(a, b):
    mine, others = metrics(a), metrics(b)
    for one, other in zip(mine, others):
        equal(one, other, f"metrics of {a} and {b}")
    equal(len(mine), len(others), f"lines of metrics.jsonl of {a} and {b}")


def checkpoints(folder):
    return sorted(path.name for path in (work / folder / "checkpoints").glob("step_*") if not path.is_symlink())


def latest(folder):
    return work / folder / "checkpoints" / checkpoints(folder)[-1]


def tensors_of(checkpoint):
    """{(section, name): (dtype, shape, bytes)} of a checkpoint, its pieces put together."""
    index = json.loads((checkpoint / "index.json").read_text())
    files, whole = {}, {}
    for section, tensors in index["tensors"].items():
        for name, tensor in tensors.items():
            shape, parts = tensor["shape"], []
            for piece in tensor["pieces"]:
                if piece["file"] not in files:
                    files[piece["file"]] = read_tensors(checkpoint / piece["file"])
                parts.append((piece, files[piece["file"]][piece["tensor"]][2]))
            item = len(parts[0][1]) // max(1, product(parts[0][0]["size"]))
            out = bytearray(product(shape) * item)
            for piece, data in parts:
                place(out, shape, data, piece["start"], piece["size"], item)
            whole[section, name] = (tensor["dtype"], shape, bytes(out))
    return whole


def place(out, shape, data, start, size, item):
    if size == shape:
        out[:] = data
        return
    row = size[-1] * item
    for number in range(product(size[:-1])):
        at, rest = 0, number
        for d in reversed(range(len(size) - 1)):
            at += (start[d] + rest % size[d]) * product(shape[d + 1:])
            rest //= size[d]
        at = (at + start[-1]) * item
        out[at:at + row] = data[number * row:(number + 1) * row]


def product(numbers):
    result = 1
    for number in numbers:
        result *= number
    return result


def same_state(a, b):
    """Weights, averages and optimizer of the newest checkpoints of two runs, bit for bit; and where they stand."""
    one, other = tensors_of(latest(a)), tensors_of(latest(b))
    equal(sorted(one), sorted(other), f"tensors of {a} and {b}")
    for key in one:
        check(one[key] == other[key], f"{key[0]} tensor {key[1]} differs between {a} and {b}")
    states = [json.loads((latest(folder) / "state.json").read_text()) for folder in (a, b)]
    for name in ("step", "samples", "seed", "counters"):
        equal(states[0][name], states[1][name], f"{name} in the state of {a} and {b}")
    equal(states[0]["extra"]["updates"], states[1]["extra"]["updates"], f"updates of {a} and {b}")


# --- files of tensors --------------------------------------------------------------------------------------------------

_codes = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "U8": "B", "BOOL": "B"}


def goes_on_bit_for_bit(path, name=""):
    """Six steps at once, and three after the checkpoint of three: the same metrics and state."""
    straight, broken = f"{name}in-one-go", f"{name}in-two"
    train(path, straight, run__steps=6)
    train(path, broken, run__steps=6, checkpoint__every=3)
    for step in checkpoints(broken)[1:]:
        shutil.rmtree(work / broken / "checkpoints" / step)
    train(path, broken, run__steps=6, checkpoint__every=3)
    same_metrics(straight, broken)
    same_state(straight, broken)


def read_tensors(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    begin = 8 + size
    return {name: (entry["dtype"], entry["shape"], data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def numbers(tensor):
    dtype, _, data = tensor
    values = array.array(_codes[dtype])
    values.frombytes(data)
    return values


def write_tensors(path, tensors):
    """{name: (dtype, shape, values)}"""
    header, body = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        data = array.array(_codes[dtype], values).tobytes()
        equal(len(values), product(shape), f"numbers for {name}")
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


def without_notes(file):
    """Takes the metadata out of a safetensors file."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])


# --- pictures ----------------------------------------------------------------------------------------------------------


def read_png(path):
    """(width, height, channels, bytes, {text key: text}) of an 8-bit grey or RGB PNG."""
    data = pathlib.Path(path).read_bytes()
    equal(data[:8], b"\x89PNG\r\n\x1a\n", f"beginning of {path}")
    at, packed, texts, shape = 8, b"", {}, None
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        at += 12 + size
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            check(depth == 8 and colour in (0, 2), f"{path}: depth {depth}, colour type {colour}")
            shape = width, height, {0: 1, 2: 3}[colour]
        elif kind == b"IDAT":
            packed += body
        elif kind == b"tEXt":
            key, text = body.split(b"\0", 1)
            texts[key.decode("latin-1")] = text.decode("latin-1")
        elif kind == b"iTXt":
            key, rest = body.split(b"\0", 1)
            text = rest[2:].split(b"\0", 2)[2]
            texts[key.decode()] = (zlib.decompress(text) if rest[0] else text).decode()
    width, height, channels = shape
    return width, height, channels, unfilter(zlib.decompress(packed), width * channels, height, channels), texts


def unfilter(raw, row, height, step):
    rows, above = [], bytearray(row)
    for y in range(height):
        kind, line = raw[y * (row + 1)], bytearray(raw[y * (row + 1) + 1:(y + 1) * (row + 1)])
        for x in range(row):
            a, b, c = (line[x - step] if x >= step else 0), above[x], (above[x - step] if x >= step else 0)
            if kind == 4:
                guess = min((a, b, c), key=lambda value, p=a + b - c: abs(p - value))
            else:
                guess = (0, a, b, (a + b) // 2)[kind]
            line[x] = (line[x] + guess) & 255
        rows.append(bytes(line))
        above = line
    return b"".join(rows)


# --- the script --------------------------------------------------------------------------------------------------------


def seed_of(name):
    """A generator whose seed is new each time, printed, and taken from DITTO_TEST_SEED where that is set."""
    seed = int(os.environ.get("DITTO_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"{name}: DITTO_TEST_SEED={seed}", flush=True)
    return random.Random(seed)


def main(names, at_end=None):
    global work
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    tests = [(name, test) for name, test in names.items() if name.startswith("test_") and callable(test)
             and (not words or any(word in name for word in words))]
    check(tests, f"no test has {words} in its name")
    work = pathlib.Path(tempfile.mkdtemp(prefix="ditto-test-"))
    failed = left_out = 0
    for name, test in tests:
        began = time.monotonic()
        try:
            test()
            result = "ok"
        except NotRun as why:
            result, left_out = None, left_out + 1
            print(f"not run: {name[5:].replace('_', ' ')}: {why}", flush=True)
        except (Failed, subprocess.TimeoutExpired) as why:
            result, failed = "FAILED", failed + 1
            print(why, flush=True)
        if result:
            print(f"{result}: {name[5:].replace('_', ' ')} ({time.monotonic() - began:.1f} s)", flush=True)
    if at_end:
        at_end()
    if "DITTO_KEEP" in os.environ:
        print("kept:", work)
    else:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if failed else 77 if left_out == len(tests) else 0)
