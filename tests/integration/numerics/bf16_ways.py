"""bf16 is computed by the way that the processor is faster at, as rates in the user's cache say: made up here, in both directions.
A run keeps the choice that it began with, ranks have one, and what is damaged there is measured anew.

Claim (machine): bf16 is computed by the way that is faster on this processor; a run keeps it after every resume, and all ranks
have one. Also: `bf16_ways_test.cpp`
"""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

IN_FP32 = ["attention", "conv", "conv_transposed", "experts", "linear", "linear_gelu_tanh"]


def cache(name):
    return {"XDG_CACHE_HOME": str(t.work / name)}


def rates_file(name):
    files = list((t.work / name / "ditto/rates").glob("*.json"))
    t.check(len(files) == 1, f"{name} has {len(files)} files of rates")
    return files[0]


def make_up(name, faster):
    """Of every op `faster` ("in_fp32" or "in_bf16") is twice as fast."""
    path = rates_file(name)
    rates = json.loads(path.read_text())
    for variants in rates["calls_per_s"].values():
        for variant in variants:
            variants[variant] = 200.0 if variant.startswith("in_fp32") == (faster == "in_fp32") else 100.0
    path.write_text(json.dumps(rates))


def recipe(name, **run):
    return t.write_recipe(f"{name}.toml", t.recipe(run=dict(steps=4, micro_batch=8, precision="bf16") | run,
                                                 checkpoint=dict(every=2, keep=9)))


def option(folder):
    lines = [line for line in (t.work / folder / "run.toml").read_text().splitlines() if line.startswith("bf16_in_fp32")]
    t.check(len(lines) == 1, f"run.toml of {folder} has {lines}")
    return json.loads(lines[0].split("=", 1)[1])


def computed_by(folder):
    """The variants that computed what both ways can, as run.toml notes them."""
    ways = ("linear bf16", "linear_gelu_tanh bf16", "attention bf16")
    return {line.rsplit("=", 1)[1].strip().strip('"') for line in (t.work / folder / "run.toml").read_text().splitlines()
            if line.strip('"').startswith(ways)}


def in_fp32(folder):
    ways = computed_by(folder)
    t.check(ways, f"run.toml of {folder} notes no kernels")
    return {way.startswith("in_fp32") for way in ways}


path = None


def test_measured_once_and_noted():
    global path
    path = recipe("bf16")
    t.train(path, "first", env=cache("a"))
    before = rates_file("a").read_text()
    rates = json.loads(before)["calls_per_s"]
    t.equal(sorted(rates), IN_FP32, "ops that were measured")
    for op, variants in rates.items():
        t.check(len(variants) == 2 and all(rate > 0 for rate in variants.values()), op, variants)
        t.check(sum(variant.startswith("in_fp32") for variant in variants) == 1, op, variants)
    t.train(path, "again", env=cache("a"))
    t.equal(rates_file("a").read_text(), before, "rates after a second run")
    t.equal(option("again"), option("first"), "choices of two runs")
    t.same_metrics("first", "again")
    t.train(t.work / "first/run.toml", "noted", env=cache("a"))
    t.same_metrics("first", "noted")


def test_made_up_rates_choose_both_ways_and_resumes_keep_them():
    for faster, other in (("in_fp32", "in_bf16"), ("in_bf16", "in_fp32")):
        make_up("a", faster)
        said = t.train(path, f"{faster}-whole", env=cache("a")).all
        t.equal(option(f"{faster}-whole"), IN_FP32 if faster == "in_fp32" else [], f"choice where {faster} is faster")
        t.equal(in_fp32(f"{faster}-whole"), {faster == "in_fp32"}, f"kernels where {faster} is faster")
        t.equal("as measured" in said, faster == "in_fp32", "whether it is said")
        t.train(path, faster, run__steps=2, env=cache("a"))
        make_up("a", other)
        said = t.train(path, faster, env=cache("a")).all
        t.check("resumed from" in said and "run.bf16_in_fp32:" not in said, said)
        t.equal("as measured" in said, faster == "in_fp32", "whether the resume says it")
        t.equal(option(faster), option(f"{faster}-whole"), "choice after a resume with other rates")
        t.same_metrics(faster, f"{faster}-whole")
        t.same_state(faster, f"{faster}-whole")
    t.check(t.metrics("in_fp32") != t.metrics("in_bf16"), "both ways have the same bits: nothing was chosen")


def test_what_is_asked_for_stands_above_the_rates():
    make_up("a", "in_fp32")
    t.train(path, "asked", run__bf16_in_fp32=[], env=cache("a"))
    t.equal(option("asked"), [], "what was asked for")
    t.same_metrics("asked", "in_bf16")
    said = t.train(path, "asked", run__steps=6, run__bf16_in_fp32=["linear"], env=cache("a")).all
    t.check('run.bf16_in_fp32: [] -> ["linear"] (equal within rounding' in said, said)
    t.refused(2, ["run.bf16_in_fp32", 'did you mean "attention"?'], "config", "check", path, *t.sets({"run.bf16_in_fp32": ["atention"]}))
    said = t.train(path, "idle", run__steps=1, run__precision="fp32", run__bf16_in_fp32=["linear"], env=cache("a")).all
    t.check("run.bf16_in_fp32 names ops, and nothing is computed in bf16" in said, said)


def test_one_number_does_not_ask():
    for faster in ("in_fp32", "in_bf16"):
        make_up("a", faster)
        t.train(path, f"one-{faster}", run__numerics="one", env=cache("a"))
        t.equal(option(f"one-{faster}"), ["auto"], "choice under one number")
    t.same_metrics("one-in_fp32", "one-in_bf16")


def test_ranks_take_what_rank_0_has():
    for name in ("b", "c"):
        t.train(path, f"cache-{name}", run__steps=1, env=cache(name))
    make_up("b", "in_fp32")
    make_up("c", "in_bf16")
    for of_rank, faster in ((("b", "c"), "in_fp32"), (("c", "b"), "in_bf16")):
        folder, port = f"ranks-{faster}", str(t.free_port())
        ranks = [subprocess.Popen([t.ditto, "train", str(path), "--trace", "kernels", *t.sets({"run.output": str(t.work / folder)})],
                                  cwd=t.work, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env=t.environment | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port} | cache(name))
                 for rank, name in enumerate(of_rank)]
        said = [rank.communicate(timeout=t.patient(120))[0] for rank in ranks]
        t.equal([rank.returncode for rank in ranks], [0, 0], said)
        t.same_metrics(folder, f"{faster}-whole")  # on one rank, whose bits they have
        lines = [line.split() for line in said[0].splitlines() if line.split()[:2] in (["forward", "linear"], ["forward", "attention"])]
        t.check(len(lines) == 2, said[0])
        t.equal({line[2].startswith("in_fp32") for line in lines}, {faster == "in_fp32"}, "kernels of all ranks")


def test_a_damaged_file_is_measured_anew():
    for number, text in enumerate(("{", '{"calls_per_s": {}}')):
        rates_file("c").write_text(text)
        t.train(path, f"damaged-{number}", run__steps=1, env=cache("c"))
        rates = json.loads(rates_file("c").read_text())["calls_per_s"]
        t.equal(sorted(rates), IN_FP32, "ops that were measured anew")
    os.chmod(rates_file("c").parent, 0o500)
    try:
        rates_file("c").write_text("{")
        t.train(path, "not-written", run__steps=1, env=cache("c"))
    finally:
        os.chmod(rates_file("c").parent, 0o700)


if __name__ == "__main__":
    t.main(globals())
