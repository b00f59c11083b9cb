"""run.audit: bits that flip in products for a moment are found, their rank is named, and what the run learns from is right
all the same; nothing is found where nothing is wrong.

Claim (again): With `run.audit = 1` a bit that flips for once in a product, on any rank, is found in its step and its rank
named, and the training goes on with the weights of one without it; where nothing is wrong nothing is found. Also:
`audit_test.cpp`
"""

import functools
import json
import math
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

STEPS, BATCH, MICRO = 24, 8, 2
FLIPS = 1000 if t.slow else 12  # of one run
CALM = 10_000 if t.slow else 100  # steps in which nothing is wrong
LAYOUTS = {  # ranks, what makes them
    "replicate 4": (4, {}),
    "fsdp 2": (2, dict(parallel__shard=2, parallel__shard_plugin="fsdp")),
    "pipeline 2 and replicate 2": (4, dict(parallel__pipeline=2)),
}
if t.slow:
    LAYOUTS |= {
        "zero2 2": (2, dict(parallel__shard=2, parallel__shard_plugin="zero2", parallel__recompute="blocks")),
        "zero1 2": (2, dict(parallel__shard=2, parallel__shard_plugin="zero1", parallel__offload="optimizer")),
        "tensor 2 and replicate 2": (4, dict(parallel__tensor=2)),
        "ring 2 and replicate 2": (4, dict(parallel__context=2, parallel__context_plugin="ring")),
    }
ONE = dict(numerics="one", token_leaf=2)
STOPPED = 5  # exit code


def recipe(name, steps=STEPS, flips=None, **run):
    """With `flips`, options of the kernels whose products are wrong now and then."""
    folder = t.work / "plugins"
    folder.mkdir(exist_ok=True)
    shutil.copy(t.build / "tests/fixture_plugins/bit_flips.so", folder)
    sections = dict(
        run=dict(steps=steps, batch=BATCH, micro_batch=MICRO, clip_norm=0.5) | (ONE if run.get("numerics") != "fast" else {}) | run,
        data=t.synthetic(), model=dict(depth=2, width=32, heads=4, patch=4), record=dict(receipts=True, average_every=1))
    if flips is not None:
        sections |= {"plugins": dict(kernels=["cpu", "bit_flips"]), "kernels__bit_flips": flips | dict(
            of=str(t.build / "lib/ditto/plugins/kernels/libexact.so"), notes=str(t.work / name) + ".notes")}
        (t.work / (name + ".notes")).unlink(missing_ok=True)
    return t.write_recipe(name + ".toml", t.recipe(**sections))


def train(path, folder, layout=(1, {}), code=0, **more):
    ranks, options = layout
    given = {key.replace("__", "."): value for key, value in (options | more).items()}
    return t.train(path, folder, "--plugin-path", t.work / "plugins", *t.sets(given),
                   *(["--local-ranks", ranks] if ranks > 1 else []), code=code, timeout=3000)


def notes(name):
    path = t.work / (name + ".notes")
    return path.read_text().splitlines() if path.exists() else []


def parts_of(folder):
    """Of each step's receipt what a run without flips has too."""
    lines = [json.loads(line) for line in (t.work / folder / "receipts.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("sha256", "begins")} for line in lines]


def found_in(folder):
    """step -> rank, of what the run's log says."""
    said = re.findall(r"audit: step (\d+), micro-batch \d+: rank (\d+) made other numbers than .*, first in the \w+",
                      (t.work / folder / "log.txt").read_text())
    t.equal(len({step for step, _ in said}), len(said), "steps in which something was found")
    return {int(step): int(rank) for step, rank in said}


@functools.cache
def calls_of(ranks):
    """Calls of products on a rank: before the first step, and of a micro-batch."""
    counts = []
    for steps in (1, 2):
        path = recipe("calls", steps, dict(notes_calls=True))
        train(path, f"calls{ranks}-{steps}", (ranks, {}), run__audit=0)
        counts.append(len(notes("calls")) // ranks)
    step = counts[1] - counts[0]
    return counts[0] - step, step * MICRO * ranks // BATCH


def share_of_flips(ranks, steps, audit, folder, before, each, every, seed, **flips):
    """Trains with a bit that flips every so many calls; (flips, those found), each named at its step."""
    accumulations = BATCH // MICRO // ranks
    path = recipe(folder, steps, dict(seed=seed, every=every, spread=max(1, every // 4), **flips), seed=seed)
    done = train(path, folder, (ranks, {}), run__audit=audit, run__audit_policy="redo")
    found, flips = found_in(folder), [line.split() for line in notes(folder)]
    if audit < 1:
        return flips, found, done
    at, later = before, [(int(call), int(rank)) for call, rank, *_ in flips]
    for step in range(1, steps + 1):
        end = at + 2 * accumulations * each
        here = [rank for call, rank in later if at <= call < end]
        t.check(len(here) <= 1, f"step {step} has {len(here)} flips")
        if step in found:
            t.equal([found[step]], here, f"the rank that is named in step {step}")
            end += (2 if ranks <= 2 else 1) * each + accumulations * each  # those that decide, and the step again
            if ranks == 1:
                end -= each
        at = end
    return flips, found, done


def test_flips_are_found_and_named_and_the_training_stays_right():
    for ranks in (2, 1):
        before, each = calls_of(ranks)
        t.check(each > 5, f"{each} calls of products a micro-batch")
        of_step = 2 * BATCH // MICRO // ranks * each
        steps = 3 * FLIPS * 9 // 8 + 4 if ranks == 2 else STEPS
        path = recipe("right", steps, seed=7)
        train(path, f"right{ranks}", (2, {}))
        flips, found, done = share_of_flips(ranks, steps, 1, f"flipped{ranks}", before, each, 3 * of_step, 7)
        t.check(parts_of(f"flipped{ranks}") == parts_of(f"right{ranks}"), "other receipts than without flips")
        t.check(len(found) >= 0.7 * len(flips) and len(flips) > 3, f"{len(found)} of {len(flips)} flips found")
        t.check(f"audit: {steps * BATCH // MICRO} micro-batches computed again, {len(found)} with other numbers" in done.all,
                done.all)
        print(f"{ranks} ranks, {steps} steps: {len(flips)} flips, {len(found)} found and named, "
              f"{len(flips) - len(found)} that changed no number", flush=True)


def test_every_layout_finds_them():
    path = recipe("calm", 12, seed=3)
    train(path, "calm", (2, {}))
    total = 0
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        path = recipe("layout", 12, dict(seed=number, every=500, spread=60, bit=30), seed=3)
        done = train(path, f"layout{number}", layout, run__audit=1, run__audit_policy="redo")
        said = re.findall(r"audit: step \d+, micro-batch \d+: (ranks? [\d, and]+) made other numbers", done.all)
        by = {int(line.split()[1]) for line in notes("layout")}
        t.check(said, f"{name}: nothing found of {len(notes('layout'))} flips")
        total += len(said)
        for ranks in said:
            t.check(by & {int(rank) for rank in re.findall(r"\d+", ranks)}, f"{name}: {ranks} of {by}")
        t.check(parts_of(f"layout{number}") == parts_of("calm"), f"{name} has other receipts than without flips")
    print(f"{total} found on {len(LAYOUTS)} layouts", flush=True)


def test_nothing_is_found_where_nothing_is_wrong():
    for numerics in ("one", "fast"):
        path = recipe("calm", CALM, numerics=numerics)
        done = train(path, f"audited-{numerics}", (2, {}), run__audit=1)
        t.check(f"audit: {CALM * BATCH // MICRO} micro-batches computed again, 0 with other numbers" in done.all, done.all)
        t.check("audit: 1 of the micro-batches are computed again, by another data rank" in done.all, done.all)
        train(path, f"alone-{numerics}", (2, {}))
        t.check(parts_of(f"audited-{numerics}") == parts_of(f"alone-{numerics}"), "other numbers with an audit")


def test_a_share_is_drawn():
    steps, share = (4000, 0.01) if t.slow else (60, 0.2)
    done = train(recipe("share", steps), "share", run__audit=share)
    t.check("by the rank itself, as it has no data peer" in done.all, done.all)
    again = int(re.search(r"audit: (\d+) micro-batches computed again", done.all).group(1))
    count = steps * BATCH // MICRO
    t.check(abs(again - share * count) < 5 * math.sqrt(share * count), f"{again} of {count} at {share}")
    if not t.slow:
        return
    before, each = calls_of(2)
    share = 0.1
    # A bit that leaves numbers finite: what is not found, most of it, is learned from.
    flips, found, _ = share_of_flips(2, steps, share, "some", before, each, 8 * each, 1, bit=20)
    # It is seen in an accumulation that is drawn, and in the repeat of one: 0.1 of the runs in steps, and all of the others.
    mean = 2 * share / (1 + share) * len(flips)
    t.check(abs(len(found) - mean) < 5 * math.sqrt(mean), f"{len(found)} of {len(flips)} flips found at {share}")
    print(f"audit {share}: {len(found)} of {len(flips)} flips found", flush=True)


def test_a_run_stops_and_names_the_rank():
    before, each = calls_of(2)
    path = recipe("stops", STEPS, dict(seed=11, every=before + 2 * 2 * each * 5, bit=30))
    done = train(path, "stops", (2, {}), code=STOPPED, run__audit=1)
    call, rank, *_ = notes("stops")[0].split()
    step = (int(call) - before) // (2 * 2 * each) + 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    t.check(f"step {step}, run.audit: micro-batch " in errors[0] and f": rank {rank} made other numbers than " in errors[0],
            errors[0])
    t.check("set run.audit_policy = \"redo\"" in errors[0] and "there is no checkpoint yet" in errors[0], errors[0])


def test_a_rank_that_is_always_wrong():
    path = recipe("stuck", 2, dict(stuck=1))
    done = train(path, "stuck2", (2, {}), code=STOPPED, run__audit=1, run__audit_policy="redo")
    t.check("ranks 0 and 1 came to different numbers in 4 runs, and no two agree against the others" in done.all, done.all)
    done = train(path, "stuck4", (4, {}), code=STOPPED, run__audit=1, run__audit_policy="redo")
    t.check("rank 1 made other numbers than ranks 0 and 3 agree on, first in the forward of " in done.all, done.all)
    t.check("3 times it was computed again, and never came to what was agreed on" in done.all, done.all)


def test_what_an_audit_costs_is_told():
    path = recipe("dry")
    said = t.run("train", path, "--dry-run", *t.sets({"run.audit": 0.25})).stdout
    flops = float(re.search(r"forward and backward: (\S+) floating", said).group(1))
    more = float(re.search(r"audits: (\S+) more a step", said).group(1))
    t.check(abs(more / flops - 0.25) < 1e-3, f"{more} of {flops}")


if __name__ == "__main__":
    t.main(globals())
