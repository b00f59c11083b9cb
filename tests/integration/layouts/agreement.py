"""Ranks that disagree, on what they run or on which samples they can read: the run is right, or ends at once and says why.

Claim (failures): Ranks that differ in recipe, plugins, program or data are refused at the start, with rank and name; a sample
that one rank cannot read counts on none.
"""

import ctypes
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import encoders  # noqa: E402

layouts = {
    "ddp": {},
    "tensor": {"parallel.tensor": 2},
    "ring": {"parallel.context": 2, "parallel.context_plugin": "ring"},
    "pipeline": {"parallel.pipeline": 2},
}
fixtures = pathlib.Path(os.environ.get("DITTO_BUILD_DIR", t.source / "build/release")) / "tests/fixture_plugins"
source = {"DITTO_PLUGIN_PATH": str(fixtures / "faulty_source.so")}


def recipe(name, **sections):
    tree = dict(run=dict(steps=6, batch=8, micro_batch=2, precision="fp64"), loader=dict(shuffle=False),
                data=dict(plugin="faulty_source"), ema=dict(enabled=False),
                validate=dict(every=6, samples=16, batch=2), parallel=dict(timeout_s=120.0)) | sections
    return t.write_recipe(f"{name}.toml", t.recipe(**tree))


class Ranks:
    """Two ranks of `ditto train`, as a launcher starts them; words, env and cwd may be another rank 1's."""

    def __init__(self, path, options, words=([], []), env=({}, {}), cwd=(None, None), program=(None, None)):
        port, began = 20000 + os.getpid() % 10000, time.monotonic()
        started = [subprocess.Popen(
            [str(program[rank] or t.ditto), "train", str(path), *t.sets(options), *words[rank]], cwd=cwd[rank] or t.work,
            text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=t.environment | {"MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"} | env[rank])
            for rank in (0, 1)]
        self.said = [process.communicate(timeout=t.patient(120))[1] for process in started]
        self.codes = [process.returncode for process in started]
        self.errors = [line for text in self.said for line in text.splitlines() if line.startswith("error: ")]
        self.seconds = time.monotonic() - began

    def end(self, codes, *parts):
        t.equal(self.codes, codes, f"exit codes: {self.said}")
        t.check(len(self.errors) == 1, f"one error in {self.said}")
        for part in parts:
            t.check(part in self.errors[0], f"\"{part}\" in {self.said}")
        t.check(self.seconds < 60, f"it took {self.seconds:.0f} s to end: {self.said}")


def refused(path, layout, words, *parts, codes=(6, 2), **more):
    folder = t.work / "never"
    shutil.rmtree(folder, ignore_errors=True)
    done = Ranks(path, layouts[layout] | {"run.output": str(folder)}, words=words, **more)
    done.end(list(codes), "rank 1: ", *parts)
    t.check(not any(folder.glob("checkpoints/step_*")), f"{layout}: it trained")


def rank_1(**options):
    return [], t.sets({key.replace("__", "."): value for key, value in options.items()})


# --- recipes, plugins, programs, data ----------------------------------------------------------------------------------


def test_another_seed_on_a_rank_is_named():
    path = t.write_recipe("seed.toml", t.recipe(parallel=dict(timeout_s=120.0)))
    for layout in layouts:
        refused(path, layout, rank_1(run__seed=2), "run.seed = 2, but rank 0 has 0", "seed.toml")


def test_whatever_else_differs_is_named():
    path = t.write_recipe("else.toml", t.recipe(parallel=dict(timeout_s=120.0)))
    cases = (("ddp", "lr_schedule.lr", 0.5, "0.001"), ("ring", "objective.condition_dropout", 0.5, "0.1"),
             ("pipeline", "run.steps", 5, "8"), ("tensor", "model.width", 64, "32"), ("ring", "run.batch", 12, "16"),
             ("ddp", "parallel.tensor", 2, "1"))
    for layout, key, here, there in cases:
        refused(path, layout, ([], t.sets({key: here})), f"{key} = {here}, but rank 0 has {there}")
    refused(path, "tensor", rank_1(run__seed=2, run__steps=3, run__batch=4, run__clip_norm=1.0, run__max_skipped=9), "and 2 more")
    refused(path, "pipeline", ([], ["--resume", "never"]), "--resume = never, but rank 0 has auto")


def test_another_build_of_a_plugin_on_a_rank_is_named():
    path = t.write_recipe("kernels.toml", t.recipe(plugins=dict(kernels=["cpu", "good"]), parallel=dict(timeout_s=120.0)))
    env = []
    for rank in (0, 1):
        folder = t.work / f"plugins of rank {rank}"
        folder.mkdir(exist_ok=True)
        (folder / "good.so").write_bytes((fixtures / "good.so").read_bytes() + b"\n" * rank)
        env.append({"DITTO_PLUGIN_PATH": str(folder)})
    refused(path, "tensor", ([], []), "plugin kernels 'good' = 1.2.3 ", ", but rank 0 has 1.2.3 ", env=env)


def program_of_its_own(name, more=b""):
    """A copy of ditto that finds what the built one finds."""
    root = t.work / name
    (root / "bin").mkdir(parents=True)
    (root / "lib").symlink_to(pathlib.Path(t.ditto).resolve().parent.parent / "lib")
    program = root / "bin/ditto"
    program.write_bytes(pathlib.Path(t.ditto).read_bytes() + more)
    program.chmod(0o755)
    return program


def test_another_program_on_a_rank_is_named():
    path = t.write_recipe("program.toml", t.recipe(parallel=dict(timeout_s=120.0)))
    refused(path, "ddp", ([], []), "ditto = ", ", but rank 0 has ", program=(None, program_of_its_own("another program", b"\n")))


def test_a_program_may_be_replaced_while_it_runs():
    path, program = t.write_recipe("replaced.toml", t.recipe(run=dict(steps=2))), program_of_its_own("replaced")
    process = subprocess.Popen(
        [str(program), "train", str(path), "--local-ranks", "2", *t.sets({"run.output": str(t.work / "replaced-run")})],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=t.environment, cwd=t.work)
    t.wait_for(lambda: os.readlink(f"/proc/{process.pid}/exe") == str(program), "the program to start")
    program_of_its_own("newer", b"\n").rename(program)
    said = process.communicate(timeout=t.patient(120))[1]
    t.equal(process.returncode, 0, f"exit code: {said}")


def hosts(path_of_data="digits"):
    """Two machines' folders, each with the recipe and its own copy of the data."""
    tree = t.recipe(run=dict(steps=2), data=dict(shards=[f"{path_of_data}/train-*.tar"], validation_shards=[]),
                    parallel=dict(timeout_s=120.0))
    folders = []
    for rank in (0, 1):
        folder = t.work / f"host {rank}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(t.digits, folder / path_of_data)
        t.write_recipe("own.toml", tree).rename(folder / "own.toml")
        folders.append(folder)
    return folders


def test_other_data_under_the_same_name_is_named():
    for layout in ("ddp", "pipeline"):
        folders = hosts()
        shard = sorted((folders[1] / "digits").glob("train-*.tar"))[-1]
        shard.write_bytes(shard.read_bytes()[:-19968] + b"\0" * 10240)  # other samples: the last nine are cut off
        refused("own.toml", layout, ([], []), "data = ", "data, samples = ", ", but rank 0 has ", codes=(6, 4), cwd=folders)


def test_ranks_may_have_the_recipe_and_the_data_in_folders_of_their_own():
    folders = hosts()
    done = Ranks("own.toml", {"run.output": str(t.work / "hosts")}, cwd=folders)
    t.equal(done.codes, [0, 0], f"exit codes: {done.said}")


def test_other_weights_of_an_encoder_on_a_rank_are_named():
    path, folders = encoders.recipe("weights", encoder=dict(weights="text.safetensors")), []
    for rank in (0, 1):
        folders.append(t.work / f"weights {rank}")
        folders[rank].mkdir()
        shutil.copy(path, folders[rank] / "own.toml")
        shutil.copy(encoders.weights(f"of-rank-{rank}", 12, rank), folders[rank] / "text.safetensors")
    for layout in ("ddp", "tensor"):
        done = Ranks("own.toml", layouts[layout] | {"run.output": str(t.work / "never")}, cwd=folders)
        t.equal(done.codes, [7, 7], f"{layout}: exit codes: {done.said}")
        t.check(any("text.safetensors" in line and "holds other weights for rank " in line for line in done.errors), done.said)


# --- samples -----------------------------------------------------------------------------------------------------------

bad = {"FAULTY_SAMPLES": "6 19"}  # of data rank 1's micro-batches, in the order as stored


def near(one, other, bound, what):
    t.check(abs(float(one) - float(other)) <= bound * abs(float(other)), f"{what}: found {one}, expected {other}")


def same_training(one, other, bits):
    for mine, others in zip(t.metrics(one), t.metrics(other)):
        if bits:
            t.equal(mine, others, f"metrics of {one} and {other}")
        for name in ("loss", "grad_norm"):
            near(mine[name], others[name], 1e-12, f"{name} of step {mine['step']} of {one}")
    validations = [t.lines_of(t.work / folder / "validation.jsonl")[-1] for folder in (one, other)]
    near(validations[0]["validation_loss"], validations[1]["validation_loss"], 1e-12, f"validation of {one}")
    a, b = (t.tensors_of(t.latest(folder)) for folder in (one, other))
    t.equal(sorted(a), sorted(b), f"tensors of {one} and {other}")
    for key in a:
        if key[0] == "model":
            worst = max(abs(x - y) for x, y in zip(t.numbers(a[key]), t.numbers(b[key])))
            t.check(worst <= 1e-12, f"{key} of {one} is {worst} away from that of {other}")


def test_a_sample_that_one_rank_cannot_read_counts_on_none():
    path = recipe("samples")
    t.train(path, "whole", env=source)
    t.train(path, "without", env=source | bad)
    t.check(t.metrics("whole")[0]["loss"] != t.metrics("without")[0]["loss"], "the sample makes no difference")
    for layout, options in layouts.items():
        folder = f"without-{layout}"
        done = Ranks(path, options | {"run.output": str(t.work / folder)}, env=(source, source | bad))
        t.equal(done.codes, [0, 0], f"exit codes of {layout}: {done.said}")
        t.check("rank 1: sample left out: sample 6: is damaged" in done.said[1], f"{layout}: {done.said}")
        same_training(folder, "without", bits=layout == "ddp")


def test_of_texts_the_longest_may_be_missing_on_one_rank():
    path = recipe("texts", data=dict(plugin="faulty_source", text_tokens=7, classes=0),
                  model=dict(plugin="dit_text", depth=2, width=32, heads=4, patch=2))
    t.train(path, "texts", env=source | bad)
    for layout in ("tensor", "pipeline"):
        folder = f"texts-{layout}"
        done = Ranks(path, layouts[layout] | {"run.output": str(t.work / folder)}, env=(source, source | bad))
        t.equal(done.codes, [0, 0], f"exit codes of {layout}: {done.said}")
        same_training(folder, "texts", bits=False)


def test_max_bad_counts_the_samples_of_the_run():
    path = recipe("limit", loader=dict(shuffle=False, max_bad=1))
    for layout, options in layouts.items():
        done = Ranks(path, options | {"run.output": str(t.work / f"limit-{layout}")}, env=(source, source | bad))
        done.end([4, 4], "2 samples could not be decoded, loader.max_bad is 1", "on rank 1, sample 6: is damaged")
    # One on each rank: 0 is of rank 0's first micro-batch.
    done = Ranks(path, {"run.output": str(t.work / "limit-both")},
                 env=(source | {"FAULTY_SAMPLES": "0"}, source | {"FAULTY_SAMPLES": "6"}))
    done.end([4, 4], "2 samples could not be decoded, loader.max_bad is 1", "sample 0: is damaged")
    # The same one on both ranks is one.
    done = Ranks(path, {"run.output": str(t.work / "limit-one")} | layouts["tensor"],
                 env=[source | {"FAULTY_SAMPLES": "6"}] * 2)
    t.equal(done.codes, [0, 0], f"exit codes: {done.said}")


def test_strict_names_the_rank_and_the_sample():
    path = recipe("strict", loader=dict(shuffle=False, strict=True))
    for layout in ("ring", "pipeline"):
        done = Ranks(path, layouts[layout] | {"run.output": str(t.work / f"strict-{layout}")}, env=(source, source | bad))
        done.end([6, 4], "rank 1: ", "sample 6: is damaged")


def test_a_checkpoint_that_one_rank_cannot_read_is_left_by_all():
    library = fixtures.parent / "libbad_disk.so"
    if not library.exists() or "asan" in str(library) or "tsan" in str(library):
        raise t.NotRun("a sanitizer is loaded before everything else, or the library was not built")
    path = t.write_recipe("half-read.toml", t.recipe(run=dict(batch=8), checkpoint=dict(every=2, keep=9)))
    folder = t.work / "half-read"
    bad_disk = {}, dict(LD_PRELOAD=str(library), BAD_DISK_UNDER="half-read/checkpoints/", BAD_DISK_AT="1")

    def train(to, words=(), env=({}, {}), **options):
        done = Ranks(path, layouts["tensor"] | {"run.output": str(to)} | {f"run.{key}": value for key, value in options.items()},
                     words=(words, words), env=env)
        t.equal(done.codes, [0, 0], f"exit codes: {done.said}")
        return "".join(done.said)

    train(folder, steps=4)
    for words, newest, before, steps in (([], 4, 2, 5), (["--resume", str(folder)], 5, 4, 6)):
        said = train(folder, words, bad_disk, steps=steps)
        t.check(f"skipped step_{newest:08}" in said and "Input/output error" in said and f"(step {before})" in said, said)
        t.equal(len(t.metrics("half-read")), steps, "steps")
    train(t.work / "from-half-read", env=bad_disk, steps=1, init_from=str(folder))
    train(t.work / "from-step-4", steps=1, init_from=str(folder / "checkpoints/step_00000004"))
    t.same_metrics("from-half-read", "from-step-4")


class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def checksum(data):
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype, library.XXH3_128bits.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]
    found = library.XXH3_128bits(bytes(data), len(data))
    return f"{found.high:016x}{found.low:016x}"


def spoil(checkpoint, name):
    """Makes a weight's first number infinite, and the checkpoint a whole one that says so."""
    file, manifest = checkpoint / "model-00000.safetensors", checkpoint / "manifest.json"
    before = file.read_bytes()
    header = struct.unpack("<Q", before[:8])[0]
    at = 8 + header + t.json.loads(before[8:8 + header])[name]["data_offsets"][0]
    after = before[:at] + struct.pack("<f", float("inf")) + before[at + 4:]
    file.write_bytes(after)
    text, last, _ = manifest.read_text().partition(',\n"xxh3_128_of_the_text_above": "')
    text = text.replace(checksum(before), checksum(after))
    manifest.write_text(text + last + checksum(text.encode()) + '"\n}\n')


def test_a_state_that_is_not_finite_on_one_rank_is_refused_by_all():
    # The last layer, which the last stage of a pipeline has, learns by far too much.
    path = t.write_recipe("far.toml", t.recipe(
        run=dict(batch=8, steps=1), lr_schedule=dict(lr=1.0, warmup=0),
        optimizer=dict(plugin="adamw", group=[dict(match="out.*", lr_scale=1e200)])))
    done = Ranks(path, layouts["pipeline"] | {"run.output": str(t.work / "far")})
    done.end([5, 5], "'out.", "holds numbers that are not finite")
    t.check(not any((t.work / "far").glob("checkpoints/*")), "something of a state that is not finite was saved")
    # Nor does anyone go on from one.
    path = t.write_recipe("near.toml", t.recipe(run=dict(batch=8, steps=1)))
    t.train(path, "near")
    spoil(t.latest("near"), "out.weight")
    t.run("checkpoint", "verify", t.latest("near"))
    done = Ranks(path, layouts["pipeline"] | {"run.output": str(t.work / "near"), "run.steps": 2})
    done.end([7, 7], "step_00000001: ", "'out.", "holds numbers that are not finite", "--resume CHECKPOINT")


# --- one recipe for any number of ranks --------------------------------------------------------------------------------


def test_a_replicating_strategys_option_goes_with_any_number_of_ranks():
    path = t.write_recipe("replicas.toml", t.recipe(
        run=dict(steps=2, micro_batch=8), parallel=dict(replicate_plugin="replicas", patience=3)))
    env = {"DITTO_PLUGIN_PATH": str(fixtures / "replicas.so")}
    for ranks in (0, 1, 2):
        t.train(path, f"replicas-{ranks}", *(["--local-ranks", ranks] if ranks else []), env=env)
        t.check("patience = 3" in (t.work / f"replicas-{ranks}" / "run.toml").read_text(), "run.toml has the option")
    t.same_state("replicas-0", "replicas-2")
    t.run("config", "check", path, env=env)
    for words in ([], ["--local-ranks", 2]):
        t.refused(2, ["parallel.patienze is read by nobody", "patience"], "train", path, *words,
                  *t.sets({"run.output": str(t.work / "never"), "parallel.patienze": 3}), env=env)


def test_a_head_with_other_channels_than_the_schedules_is_refused():
    path = t.write_recipe("head.toml", t.recipe(
        run=dict(steps=2), data=t.synthetic(channels=3), model=dict(plugin="faulty_model", fault="wrong shape")))
    t.refused(3, ["head of model 'faulty_model'", "gave [16, 6, 8, 8], expected [16, 3, 8, 8]"], "train", path,
              env={"DITTO_PLUGIN_PATH": str(fixtures / "faulty_model.so")})


if __name__ == "__main__":
    t.main(globals())
