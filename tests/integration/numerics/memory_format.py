"""Maps lie as this machine is faster at, as rates in the user's cache say: made up here, in both directions. A run keeps what it began
with, ranks have one, and kernels are others, not strides alone.

Claim (machine): The maps of a UNet lie as this machine is faster at; a run keeps it after every resume, all ranks have one, and
numerics = "one" has the same bits either way. Also: `memory_format_test.cpp`, `map_layout_test.cpp`
"""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

WAYS = ("channels_first", "channels_last")
SIZE = dict(plugin="autoencoder_kl", channels=[8, 16], groups=4, layers=1, latent=2)


def cache(name):
    return {"XDG_CACHE_HOME": str(t.work / name)}


def maps_of(rates):
    found = [one for what, one in rates["calls_per_s"].items() if what.startswith("maps in ")]
    t.check(len(found) == 1, rates)
    return found[0]


def rates_file(name):
    files = list((t.work / name / "ditto/rates").glob("*.json"))
    t.check(len(files) == 1, f"{name} has {len(files)} files of rates")
    return files[0]


def make_up(name, faster, times=2.0):
    rates = json.loads(rates_file(name).read_text())
    for way in WAYS:
        maps_of(rates)[way] = 100.0 * (times if way == faster else 1)
    rates_file(name).write_text(json.dumps(rates))


def recipe(name, **run):
    return t.write_recipe(f"{name}.toml", t.recipe(
        run=dict(steps=4, batch=8, micro_batch=4) | run, model=SIZE, objective=dict(plugin="autoencoder"), scheduler=None, sampler=None,
        checkpoint=dict(every=2, keep=9)))


def noted(folder):
    lines = [line for line in (t.work / folder / "run.toml").read_text().splitlines() if line.startswith("memory_format")]
    t.check(len(lines) <= 1, f"run.toml of {folder} has {lines}")
    return json.loads(lines[0].split("=", 1)[1]) if lines else None


def norms_of(folder):
    """The variants that computed norms: of maps as small as these a processor has one of its own with channels last alone."""
    return {line.rsplit("=", 1)[1].strip().strip('"') for line in (t.work / folder / "run.toml").read_text().splitlines()
            if line.strip('"').startswith("group_norm fp32") and "grad" in line}


path = None


def test_measured_once_and_noted():
    global path
    path = recipe("maps")
    said = t.train(path, "first", env=cache("a")).all
    before = rates_file("a").read_text()
    rates = maps_of(json.loads(before))
    t.equal(sorted(rates), sorted(WAYS), "what was measured")
    t.check(all(rate > 0 for rate in rates.values()), rates)
    t.check(noted("first") in WAYS and f"maps: {noted('first')}, the faster way" in said, said)
    t.train(path, "again", env=cache("a"))
    t.equal(rates_file("a").read_text(), before, "rates after a second run")
    t.same_metrics("first", "again")
    t.train(t.work / "first/run.toml", "noted", env=cache("a"))
    t.same_metrics("first", "noted")


def test_made_up_rates_choose_both_ways_and_resumes_keep_them():
    for faster, other in (WAYS, WAYS[::-1]):
        make_up("a", faster)
        t.train(path, f"{faster}-whole", env=cache("a"))
        t.equal(noted(f"{faster}-whole"), faster, f"choice where {faster} is faster")
        t.train(path, faster, run__steps=2, env=cache("a"))
        make_up("a", other)
        said = t.train(path, faster, env=cache("a")).all
        t.check("resumed from" in said and "run.memory_format:" not in said, said)
        t.equal(noted(faster), faster, "choice after a resume with other rates")
        t.same_metrics(faster, f"{faster}-whole")
        t.same_state(faster, f"{faster}-whole")
    first, last = (norms_of(f"{way}-whole") for way in WAYS)
    t.check(first and last and first != last, "kernels are the same", first, last)
    make_up("a", "channels_last", 1.05)
    t.train(path, "close", run__steps=1, env=cache("a"))
    t.equal(noted("close"), "channels_first", "choice where neither is clearly faster")


def test_what_is_asked_for_stands_above_the_rates():
    make_up("a", "channels_last")
    t.train(path, "asked", run__memory_format="channels_first", env=cache("a"))
    t.same_metrics("asked", "channels_first")
    said = t.train(path, "asked", run__steps=6, run__memory_format="channels_last", env=cache("a")).all
    t.check('run.memory_format: "channels_first" -> "channels_last" (equal within rounding' in said, said)


def test_a_model_without_maps_is_refused_and_measures_nothing():
    without = t.write_recipe("without.toml", t.recipe(run=dict(steps=1)))
    t.refused(2, ["run.memory_format", 'model "dit" has no convolution in its blocks'], "config", "check", without,
              *t.sets({"run.memory_format": "channels_last"}))
    t.train(without, "without", env=cache("none"))
    t.equal((noted("without"), (t.work / "none/ditto/rates").exists()), (None, False), "what is noted, and measured")


def test_one_number_has_the_same_bits_either_way():
    unet = dict(plugin="unet_sd", block_out_channels=[32, 64], down_block_types=["CrossAttnDownBlock2D", "DownBlock2D"],
                up_block_types=["UpBlock2D", "CrossAttnUpBlock2D"], layers_per_block=[1], attention_head_dim=[4])
    path = t.write_recipe("one.toml", t.recipe(
        run=dict(steps=2, batch=4, micro_batch=2), model=unet, objective=dict(plugin="diffusion", condition_dropout=0.0),
        data=t.synthetic(classes=0, channels=3, height=8, width=8, content="noise", text_tokens=3, text_width=32)))
    t.train(path, "one", run__numerics="one", env=cache("none"))
    t.equal((noted("one"), (t.work / "none/ditto/rates").exists()), (None, False), "what is noted, and measured")
    for way in WAYS:
        said = t.train(path, f"one-{way}", run__numerics="one", run__memory_format=way, env=cache("none")).all
        t.check("run.memory_format says how maps lie, and run.numerics" in said, said)
        t.same_metrics("one", f"one-{way}")
        t.same_state("one", f"one-{way}")


def test_ranks_take_what_rank_0_has():
    for name in ("b", "c"):
        t.train(path, f"cache-{name}", run__steps=1, env=cache(name))
    make_up("b", "channels_first")
    make_up("c", "channels_last")
    for of_rank, faster in ((("b", "c"), "channels_first"), (("c", "b"), "channels_last")):
        folder, port = f"ranks-{faster}", str(t.free_port())
        ranks = [subprocess.Popen([t.ditto, "train", str(path), *t.sets({"run.output": str(t.work / folder)})],
                                  cwd=t.work, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env=t.environment | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port} | cache(name))
                 for rank, name in enumerate(of_rank)]
        said = [rank.communicate(timeout=t.patient(120))[0] for rank in ranks]
        t.equal([rank.returncode for rank in ranks], [0, 0], said)
        t.equal(noted(folder), faster, "choice of all ranks")
        t.same_metrics(folder, f"{faster}-whole")  # on one rank, whose bits they have


if __name__ == "__main__":
    t.main(globals())
