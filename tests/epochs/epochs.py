"""Claim: With `run.numerics = "one"` the same recipe gives the same numbers from one version of Ditto to the next: small
recipes learn, to the last bit of every weight, average and loss, what tests/epochs/numbers.json says; and a run, a
checkpoint and receipts of an earlier version go on today.

numbers.json names the epoch of these numbers, as `ditto doctor`, run.toml, checkpoints and receipts do. A change that
alters a number is either a mistake or a new epoch, which is begun so:
1. raise kNumericsEpoch (core/config/numerics.h) by one;
2. under "Changed bits" of CHANGELOG.md write a line with `numerics_epoch = N`: which recipes, and why;
3. tests/epochs/epochs.py --write
--write needs the new number: numbers of an epoch that was begun are never written again, recipes may be added to it.
"""

import hashlib
import json
import pathlib
import shutil
import sys
import tarfile
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import support as t  # noqa: E402
from one_number import has  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "numbers.json"
KEPT = HERE / "kept.tar.xz"  # of a small run: its folder after 6 of 10 steps, and its receipts of all 10
STEPS = 10

FSDP_TENSOR = dict(parallel__shard=2, parallel__shard_plugin="fsdp", parallel__tensor=2)
# Of a recipe: ranks and options, each the same numbers.
ALONE = {"one rank": (1, {})}
DIGITS = ALONE | {
    "ddp 2": (2, {}),
    "fsdp 2 x tensor 2": (4, FSDP_TENSOR),
    "pipeline 2": (2, dict(parallel__pipeline=2)),
}
TINY = dict(batch=8, micro_batch=4, threads=1, steps=STEPS, numerics="one")


def on_digits(name, **sections):
    run = dict(name=name, steps=STEPS, batch=16, micro_batch=4, threads=1, numerics="one", token_leaf=8, clip_norm=0.5)
    model = dict(depth=2, width=32, heads=4, patch=2)
    return t.write_recipe(f"{name}.toml", t.recipe(run=run | sections.pop("run", {}), model=model, **sections))


def of_tree(name, **options):
    """A recipe of configs/, at a tiny size."""
    return t.source / f"configs/{name}_tiny.toml", {f"run__{key}": value for key, value in TINY.items()} | options


def digits():
    return on_digits("digits"), {}


def dit_text():
    return of_tree("dit_text")


def st_dit_packed():
    return of_tree("st_dit", data__sizes=["2x4x4", "4x8x8", "2x8x4"], batch__plan="packs", batch__tokens=64,
                   run__micro_batch=0)


def dit_moe():
    return of_tree("dit_moe")


def adapter():
    base = "base of the adapter"
    if not (t.work / base).exists():
        t.train(on_digits("base"), base, run__steps=2)
    return on_digits("adapter", adapter=dict(rank=4, alpha=8, layers=["*"]), run=dict(init_from=str(t.work / base))), {}


def bf16():
    return on_digits("bf16", run=dict(precision="bf16")), {}


RECIPES = {"digits": digits, "dit_text": dit_text, "st_dit_packed": st_dit_packed, "dit_moe": dit_moe, "adapter": adapter,
           "bf16": bf16}


def pinned(path, variant, options):
    """Every operation that the run took from the exact kernels, from this set of them."""
    rows = tomllib.loads((t.work / path / "run.toml").read_text())["record"]["kernels"]
    operations = {query.split()[0] for query, row in rows.items() if row.startswith("exact_")}
    return options | {f"kernels__{operation}": variant for operation in operations}


# --- numbers -------------------------------------------------------------------------------------------------------------


def numbers_of(folder):
    """Losses and gradients' norms of each step, and of each checkpoint a hash of every weight and average."""
    steps, names = [], None
    for name in t.checkpoints(folder):
        tensors = t.tensors_of(t.work / folder / "checkpoints" / name)
        learned = {" ".join(key): value for key, value in sorted(tensors.items()) if key[0] in ("model", "ema")}
        names = names or list(learned)
        t.equal(list(learned), names, f"tensors of {folder}/{name}")
        steps.append([hashlib.sha256(json.dumps(value[:2]).encode() + value[2]).hexdigest() for value in learned.values()])
    t.equal(len(steps), STEPS, f"checkpoints of {folder}")
    losses = [[line["loss"], line["grad_norm"]] for line in t.metrics(folder)]
    whole = hashlib.sha256(json.dumps([names, steps, losses]).encode()).hexdigest()
    return {"sha256": whole, "losses": losses, "tensors": names, "steps": [[one[:8] for one in step] for step in steps]}


def difference(found, kept):
    """Where two trainings part first, in a sentence; None where all is the same."""
    if found["sha256"] == kept["sha256"]:
        return None
    if found["tensors"] != kept["tensors"]:
        return f"other tensors: {sorted(set(found['tensors']) ^ set(kept['tensors']))}"
    for step in range(STEPS):
        if found["losses"][step] != kept["losses"][step]:
            return f"step {step + 1}: loss and norm {found['losses'][step]}, expected {kept['losses'][step]}"
        others = [name for name, a, b in zip(found["tensors"], found["steps"][step], kept["steps"][step]) if a != b]
        if others:
            more = f" and {len(others) - 8} more" if len(others) > 8 else ""
            return f"after step {step + 1} {len(others)} of {len(found['tensors'])} tensors: {', '.join(others[:8])}{more}"
    return "a hash of all tensors, and no tensor by itself"


def learn(recipe, folder, ranks=1, more=None):
    path, options = recipe
    words = ["--local-ranks", ranks] if ranks > 1 else []
    every = dict(checkpoint__every=1, checkpoint__keep=STEPS, log__tensorboard=False)
    t.train(path, folder, *words, **options | every | (more or {}))
    return numbers_of(folder)


HOW = ("\nThe numbers of epoch {} are promised to stay. If the change is meant, begin a new epoch: raise kNumericsEpoch in "
       "core/config/numerics.h, give the reason in a line of CHANGELOG.md that has `numerics_epoch = {}`, and run "
       "tests/epochs/epochs.py --write")


def kept():
    return json.loads(FILE.read_text())


def hold(name, layouts=None, kernels=True):
    file, failures = kept(), []
    recipe = RECIPES[name]()

    def compare(what, found):
        parts = difference(found, file["recipes"][name])
        if parts:
            failures.append(f"{name}, {what}: {parts}")

    for layout, (ranks, options) in (layouts or ALONE).items():
        compare(layout, learn(recipe, f"{name}, {layout}", ranks, options))
    for variant in ("exact_avx512", "exact_avx2", "exact_plain") if kernels else ():
        if has(variant):
            compare(variant, learn(recipe, f"{name}, {variant}", 1, pinned(f"{name}, one rank", variant, {})))
    epoch = file["numerics_epoch"]
    t.check(not failures, "\n" + "\n".join(failures) + HOW.format(epoch, epoch + 1))


def test_digits_on_every_layout():
    hold("digits", DIGITS)


def test_text():
    hold("dit_text")


def test_packed_videos():
    hold("st_dit_packed")


def test_experts():
    hold("dit_moe")


def test_an_adapter():
    hold("adapter")


def test_bf16():
    hold("bf16")


def test_another_number_is_said_with_its_step_and_tensors():
    """Of a learning rate that is another by a ten-millionth of it."""
    path, options = digits()
    found = learn((path, options), "another rate", 1, dict(lr_schedule__lr=0.0010000001))
    text = difference(found, kept()["recipes"]["digits"])
    t.check(text.startswith("after step 1 ") and "ema " in text and "model " in text, text)


def test_the_program_names_the_epoch_and_the_changelog_its_reason():
    epoch = kept()["numerics_epoch"]
    t.equal(json.loads(t.run("doctor", "--json").stdout)["ditto"]["numerics_epoch"], epoch, "ditto doctor's numerics_epoch")
    t.check(f"`numerics_epoch = {epoch}`" in (t.source / "CHANGELOG.md").read_text(),
            f"CHANGELOG.md has no line with `numerics_epoch = {epoch}`")
    t.equal(sorted(kept()["recipes"]), sorted(RECIPES), "recipes of numbers.json")


# --- what earlier versions left ------------------------------------------------------------------------------------------


def unpack():
    shutil.rmtree(t.work / "before", ignore_errors=True)
    with tarfile.open(KEPT) as archive:
        archive.extractall(t.work / "before")
    return t.work / "before"


def samples_of(run):
    """SHA-256 of four samples' pixels."""
    t.run("sample", run, "--out", t.work / "samples", "--seeds", "0-3", "--overwrite")
    pixels = [bytes(t.read_png(t.work / f"samples/{seed:06}.png")[3]) for seed in range(4)]
    return hashlib.sha256(b"".join(pixels)).hexdigest()


def test_a_run_of_an_earlier_version_goes_on_to_the_same_numbers():
    before = unpack()
    recipe, run = before / "kept.toml", before / "kept"
    done = t.run("train", recipe, *t.sets({"run.output": str(run), "run.steps": STEPS}))
    t.check("resumed from" in done.all and "(step 6)" in done.all, done.all)
    t.check("not bit for bit" not in done.all, done.all)
    lines = [json.loads(line) for line in (before / "receipts_of_10.jsonl").read_text().splitlines()]
    now = [json.loads(line) for line in (run / "receipts.jsonl").read_text().splitlines()]
    made = lambda receipts: [{key: value for key, value in line.items() if key not in ("begins", "sha256", "why")}
                             for line in receipts if "loss" in line]
    t.equal(made(now), made(lines), "receipts of the run that went on")


def test_receipts_of_an_earlier_version_are_replayed():
    done = t.run("replay", unpack() / "kept", "--from", 0, "--to", 6)
    t.check("the same: steps 1 to 6 are what their receipts say" in done.all, done.all)


def test_a_checkpoint_of_an_earlier_version_is_verified_sampled_and_exported():
    run = unpack() / "kept"
    t.run("checkpoint", "verify", next((run / "checkpoints").glob("step_*")))
    t.equal(samples_of(run), kept()["samples_of_kept"], "SHA-256 of four samples' pixels")


# --- a new epoch ---------------------------------------------------------------------------------------------------------


def keep():
    """The small run anew: what is kept of it is made by the program of the epoch."""
    recipe, run = unpack() / "kept.toml", t.work / "before/kept"
    shutil.rmtree(run)
    train = ["train", recipe, *t.sets({"run.output": str(run)})]
    t.run(*train)
    shutil.rmtree(run / "checkpoints/step_00000003")
    shutil.copytree(run, t.work / "longer", symlinks=True)
    t.run("train", recipe, *t.sets({"run.output": str(t.work / "longer"), "run.steps": STEPS}))
    shutil.copy(t.work / "longer/receipts.jsonl", t.work / "before/receipts_of_10.jsonl")
    with tarfile.open(KEPT, "w:xz") as archive:
        for name in ("kept.toml", "kept", "receipts_of_10.jsonl"):
            archive.add(t.work / "before" / name, name)


def write(epoch):
    """Numbers of recipes that have none; of all of them, and of the small run, where the program is of a new epoch."""
    file = kept()
    if file["numerics_epoch"] != epoch:
        t.equal(epoch, file["numerics_epoch"] + 1, "kNumericsEpoch")
        keep()
        file = {"numerics_epoch": epoch, "samples_of_kept": samples_of(unpack() / "kept"), "recipes": {}}
    for name, recipe in RECIPES.items():
        if name not in file["recipes"]:
            file["recipes"][name] = learn(recipe(), f"{name}, one rank")
    text = json.dumps(file, separators=(",", ":"))
    FILE.write_text(text.replace('"sha256"', '\n"sha256"').replace("],[", "],\n[") + "\n")


def test_write():
    if "--write" not in sys.argv:
        raise t.NotRun("with --write alone")
    write(json.loads(t.run("doctor", "--json").stdout)["ditto"]["numerics_epoch"])


if __name__ == "__main__":
    if "--write" in sys.argv:
        sys.argv.append("test_write")
    t.main(globals())
