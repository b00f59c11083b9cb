"""Claim (sampling): Step caches: what they skip and what that changes is said, and with one number neither company nor layout
shows."""

import json
import math
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
from unets import UNETS  # noqa: E402

SAMPLES, TOKENS = 16, 6
_trained = {}


def flux():
    """Blocks as Flux has them, on texts; sheets are no use here."""
    return of_texts("flux", plugin="flux", depth=2, single_depth=1)


def joint():
    """As Stable Diffusion 3 has them, which go with every axis inside of a sample."""
    return of_texts("joint", plugin="mmdit", depth=3)


def of_texts(name, **model):
    if name not in _trained:
        data = t.synthetic(classes=4, text_tokens=TOKENS, text_width=12, text_pooled=10)
        train(name, data=data, model=dict(width=32, heads=2, patch=2) | model, sampler=dict(plugin="euler", steps=8))
        draw = random.Random(3)
        numbers = lambda *shape: [draw.gauss(0, 1) for _ in range(math.prod(shape))]
        t.write_tensors(t.work / "texts.safetensors", {
            "text": ("F32", [SAMPLES, TOKENS, 12], numbers(SAMPLES, TOKENS, 12)),
            "text_pooled": ("F32", [SAMPLES, 10], numbers(SAMPLES, 10))})
    return [_trained[name], "--condition", t.work / "texts.safetensors"]


def dit():
    """By class, with a cache in its recipe that sheets are drawn with."""
    if "dit" not in _trained:
        train("dit", cache=dict(plugin="first_block", threshold=0.1), model=dict(depth=4), sampler=dict(plugin="heun", steps=5),
              validate=dict(every=6, samples=8, grid_every=6, grid=4))
    return [_trained["dit"], "--seeds", f"0-{SAMPLES - 1}"]


def train(name, **sections):
    path = t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=6, batch=8, numerics="one", token_leaf=4),
                                                   lr_schedule=dict(lr=5e-3, warmup=0), guidance=dict(plugin="cfg", scale=2.0),
                                                   **sections))
    t.train(path, name)
    _trained[name] = t.work / name


def sample(of, name, *arguments, **sets):
    """Latents as bytes by sample, and what the command said."""
    file = t.work / f"{name}.safetensors"
    done = t.run("sample", *of, "--save-latents", file, "--json", *t.sets({key.replace("__", "."): value for key, value in sets.items()}),
                 *arguments)
    dtype, shape, data = t.read_tensors(file)["latents"]
    t.equal((dtype, shape[0]), ("F32", SAMPLES), "latents")
    each = len(data) // SAMPLES
    return [bytes(data[i * each:(i + 1) * each]) for i in range(SAMPLES)], json.loads(done.stdout)


def skips_some(said, first, depth, evaluations):
    """Of both branches of all samples; and which evaluations skip what for some samples alone."""
    decisions = said["decisions"]
    at = [decisions.get(f"blocks skipped at evaluation {i:03}", 0) for i in range(1, evaluations + 1)]
    t.equal(decisions["blocks computed"] + decisions["blocks skipped"], 2 * SAMPLES * depth * evaluations, "blocks")
    t.equal(sum(at), decisions["blocks skipped"], "blocks skipped, by evaluation")
    t.equal(at[0], 0, "blocks skipped at the first evaluation")
    t.check(0 < decisions["blocks skipped"] < 2 * SAMPLES * (depth - first) * (evaluations - 1), f"all or none are skipped: {decisions}")
    t.check(any(0 < one < 2 * SAMPLES * (depth - first) for one in at), f"all samples decide alike: {decisions}")


def check_company(of, cache, first, depth, evaluations, layouts, **sets):
    sets |= {"cache__plugin": cache}
    alone, said = sample(of, f"{cache}-1", "--batch", 1, **sets)
    skips_some(said, first, depth, evaluations)
    t.equal(said["settings"]["cache"]["plugin"], cache, "the cache among the settings")
    for name, words in ({"7": ["--batch", 7], "16": ["--batch", 16]} | layouts).items():
        found, told = sample(of, f"{cache}-{name}", *words, **sets)
        t.check(found == alone, f"{cache}, {name}: other samples than at batch 1")
        t.equal(told["decisions"], said["decisions"], f"decisions of {cache}, {name}")
    whole, told = sample(of, f"{cache}-none", "--cache", "none")
    t.check("decisions" not in told and "cache" not in told["settings"], "a cache where there is none")
    t.check(whole != alone, f"{cache} changes nothing")


def on(ranks, **sets):
    return ["--local-ranks", ranks, *t.sets({f"parallel.{key}": value for key, value in sets.items()})]


def test_first_block_has_the_same_bits_in_any_company_and_on_any_layout():
    layouts = {"data": on(2), "sequence": on(2, tensor=2, sequence=True), "ring": on(2, context=2, context_plugin="ring")}
    check_company(dit(), "first_block", 1, 4, 9, layouts, cache__threshold=0.1)


def test_teacache_has_the_same_bits_in_any_company_and_on_any_layout():
    sets = dict(cache__plugin="teacache", cache__threshold=0.1, cache__coefficients=[1, 0])
    check_company(flux(), "teacache", 0, 3, 8, {"tensor": on(2, tensor=2)}, **sets)
    one, said = sample(joint(), "joint", **sets)
    skips_some(said, 0, 3, 8)
    for name, layout in (("sequence", on(2, tensor=2, sequence=True)), ("ulysses", on(2, context=2, context_plugin="ulysses"))):
        found, told = sample(joint(), f"joint-{name}", *layout, **sets)
        t.check(found == one, f"teacache, {name}: other samples than on one rank")
        t.equal(told["decisions"], said["decisions"], f"decisions of teacache, {name}")


def test_the_error_is_the_distance_to_the_samples_without_a_cache():
    cached, said = sample(dit(), "error", "--cache-error", cache__threshold=0.1)
    whole, _ = sample(dit(), "whole", "--cache", "none")
    apart, size = zip(*((math.dist(a, b), math.hypot(*b)) for a, b in
                        ([t.numbers(("F32", [len(one) // 4], one)) for one in pair] for pair in zip(cached, whole))))
    expected = {"cache error": math.hypot(*apart) / math.hypot(*size),
                "cache error, largest of a sample": max(a / b for a, b in zip(apart, size))}
    t.equal(sorted(said["errors"]), sorted(expected), "errors")
    for name, number in expected.items():
        t.check(0 < number < 1 and abs(said["errors"][name] - number) < 1e-6 * number, f"{name}: {said['errors'][name]}, expected {number}")
    none, said = sample(dit(), "none", "--cache-error", cache__threshold=0.0)
    t.equal((none == whole, said["errors"]["cache error"], said["decisions"]["blocks skipped"]), (True, 0, 0), "without skipping")
    text = t.run("sample", *dit(), "--save-latents", t.work / "text", "--cache-error").stdout
    t.check("blocks skipped: " in text and "cache error: " in text, text)


def test_what_does_not_go_with_a_cache_is_refused_by_name():
    def refused(parts, of, *arguments, **how):
        t.refused(2, parts, "sample", *of, "--save-latents", t.work / "never", *arguments, timeout=60, **how)

    refused(['"teacache"', "modulated input", 'model "dit"', "first_block"], dit(), "--cache", "teacache")
    refused(["parallel.pipeline = 2"], dit(), *on(2, pipeline=2))
    refused(["data ranks run the same blocks", "parallel.shard"], dit(), *on(2, shard=2, shard_plugin="fsdp"))
    refused(['"dopri5"', "estimates its own errors"], dit(), "--sampler", "dopri5")
    refused(["--cache-error", "there is no cache"], dit(), "--cache", "none", "--cache-error")
    refused(["cache.threshold", '"none"'], dit(), "--cache", "none", *t.sets({"cache.threshold": 0.1}))
    refused(["no block to skip", "has 1"], dit(), *t.sets({"model.depth": 1}))
    refused(["cache.coefficients", "is empty"], flux(), "--cache", "teacache", *t.sets({"cache.coefficients": []}))
    t.check(not (t.work / "never").exists(), "a refused command left a file")
    path = t.write_recipe("uvit.toml", t.recipe(run=dict(steps=1, batch=4), model=dict(plugin="uvit", depth=2, width=32, heads=2, patch=4)))
    t.train(path, "uvit")
    refused(['model "uvit"', "hand one another more", "skip.0"], [t.work / "uvit"], "--cache", "first_block")
    path = t.write_recipe("unet.toml", t.recipe(run=dict(steps=1, batch=4), model=dict(plugin="unet_sd") | UNETS["unet_sd"],
                                                data=t.synthetic(classes=0, text_tokens=TOKENS, text_width=8)))
    t.train(path, "unet")
    t.write_tensors(t.work / "texts8.safetensors", {"text": ("F32", [4, TOKENS, 8], [0.5] * (4 * TOKENS * 8))})
    refused(["watches tokens", 'model "unet_sd" hand one another maps', "sample without a cache"], [t.work / "unet"],
            "--condition", t.work / "texts8.safetensors", "--cache", "first_block", "--overwrite")
    tree = t.recipe(objective=dict(plugin="repa", block=0, network="features", hidden=24), cache=dict(plugin="first_block"))
    tree["network.features"] = dict(weights=str(t.work / "dit"))
    t.refused(2, ['objective "repa" reads', "--cache first_block"], "train", t.write_recipe("repa.toml", tree), timeout=60)


if __name__ == "__main__":
    t.main(globals())
