"""Claim (one number): run.numerics = "one" with run.precision = "bf16": one hash on every layout and from every kernel, whether
pairs of bf16 numbers are multiplied by an instruction of their own or by fp32's, among them denormals; another hash than in
fp32, and nearly its losses."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
from one_number import has, hash_of, train  # noqa: E402
from one_number_models import LAYOUTS, SMALL, pinned  # noqa: E402

STEPS = 3


def recipe(name, precision="bf16", **sections):
    run = dict(name=name, steps=STEPS, batch=16, micro_batch=4, threads=1, numerics="one", token_leaf=8, clip_norm=0.5,
               precision=precision)
    return t.write_recipe(f"{name}.toml", t.recipe(**{"run": run, "model": SMALL} | sections))


def kernels():
    """The best, which multiplies pairs where the processor can, is what every other layout takes."""
    return {variant: (1, pinned(variant)) for variant in ("exact_avx512", "exact_avx2") if has(variant)}


def different(path, name, layouts):
    expected, others = hash_of(name), []
    for layout, (ranks, options) in layouts.items():
        train(path, f"{name}-{layout}", ranks, **options)
        if hash_of(f"{name}-{layout}") != expected:
            others.append(layout)
    return others


def test_one_hash_on_every_layout():
    path = recipe("rounded")
    train(path, "rounded")
    print(f"one number, bf16: {hash_of('rounded')}", flush=True)
    t.equal(different(path, "rounded", LAYOUTS | kernels()), [], "layouts with another hash")
    text = (t.work / "rounded" / "run.toml").read_text()
    t.check('precision = "bf16"' in text, text)


def test_another_number_than_in_fp32_and_nearly_its_losses():
    train(recipe("fp32", "fp32"), "fp32")
    t.check(hash_of("fp32") != hash_of("rounded"), "the hash of fp32")
    for exact, found in list(zip(t.metrics("fp32"), t.metrics("rounded")))[1:]:  # the first prediction is zero
        a, b = float(exact["loss"]), float(found["loss"])
        t.check(0 < abs(a - b) < 1e-2 * a, exact, found)


def test_denormal_weights():
    """The last layer's begin as zeros, and are denormals after a step of 3e-39; so is what comes back through it."""
    path = recipe("denormal", lr_schedule=dict(lr=3e-39, warmup=0))
    train(path, "denormal")
    found = {section: sum(0 < abs(x) < 1.17549435e-38 for (of, _), tensor in tensors if of == section for x in t.numbers(tensor))
             for tensors in [t.tensors_of(t.latest("denormal")).items()] for section in {key[0] for key, _ in tensors}}
    print(f"  denormals: {found}", flush=True)
    t.check(all(count >= 48 for count in found.values()), "hardly a denormal")
    some = {name: LAYOUTS[name] for name in ("plain kernels", "tensor 2")}
    t.equal(different(path, "denormal", some | kernels()), [], "layouts with another hash")


def test_a_run_goes_on_elsewhere_and_says_when_the_precision_changes():
    path = recipe("halves")
    train(path, "halves", run__steps=1)
    done = train(path, "halves", 2, parallel__shard=2, parallel__shard_plugin="fsdp", run__threads=2, run__steps=2)
    t.check("not bit for bit" not in done.all, done.all)
    train(path, "whole", run__steps=2)
    t.equal(hash_of("halves"), hash_of("whole"), "hash of a run that went on elsewhere")
    done = train(path, "halves", run__precision="fp32")
    t.check('run.precision: "bf16" -> "fp32" (equal within rounding from here on, not bit for bit)' in done.all, done.all)


def test_receipts_are_replayed_in_their_own_precision():
    train(recipe("receipts"), "receipts", run__steps=2, record__receipts=True)
    t.run("replay", t.work / "receipts", "--local-ranks", 2)
    t.refused(2, ["run.precision"], "replay", t.work / "receipts", *t.sets({"run.precision": "fp32"}))


if __name__ == "__main__":
    t.main(globals())
