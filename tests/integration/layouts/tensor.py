"""Ranks that share each layer compute what one rank computes, within rounding: proved in fp64, with weights none of which
is zero, so that nothing is equal because nothing happens.

Claim (layouts): `parallel.tensor` on the digits model in fp64: losses, norms, gradients and weights to 1e-12 (but for the
biases of keys, which softmax does not see).
"""

import math
import pathlib
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

# Without QK norm a key's bias adds the same number to all scores of a query, and softmax drops it: its true gradient is
# zero, and what is computed is rounding. It is the middle third of blocks.*.qkv.bias, and left out.
near = 1e-12
width, heads, depth = (128, 4, 6) if t.slow else (32, 4, 2)
steps, batch = 10, 128 if t.slow else 16
_made = []


def formula(name, shape):
    """Numbers for a tensor that depend on its name; as large as layers like them, and none of them zero."""
    first = zlib.crc32(name.encode()) % 1000
    size = 0.7 / math.sqrt(t.product(shape[1:])) if len(shape) > 1 else 0.1
    return [size * (math.sin(first + 1.7 * i) + 0.1 * math.cos(0.37 * i) + 1e-3) for i in range(t.product(shape))]


def made():
    """A recipe in fp64, and a checkpoint whose weights come from the formula."""
    if _made:
        return _made
    path = t.write_recipe("tensor.toml", t.recipe(
        run=dict(name="tensor", steps=steps, batch=batch, precision="fp64"), model=dict(depth=depth, width=width, heads=heads),
        lr_schedule=dict(lr=1e-3, warmup=0)))
    t.train(path, "empty", run__steps=0)
    plain, filled = t.work / "plain.safetensors", t.work / "filled.safetensors"
    t.run("checkpoint", "export", t.work / "empty", "--format", "facebook-dit", "--out", plain)
    tensors = {}
    for name, (dtype, shape, data) in t.read_tensors(plain).items():
        values = t.numbers((dtype, shape, data)) if name == "pos_embed" else formula(name, shape)  # it is not learned
        tensors[name] = (dtype, shape, values)
    t.write_tensors(filled, tensors)
    t.run("checkpoint", "import", filled, "--format", "facebook-dit", "--recipe", path, "--out", t.work / "filled")
    for (section, name), (dtype, _, data) in t.tensors_of(t.work / "filled").items():
        t.equal(dtype, "F64", f"dtype of {name}")
        t.check(any(data), f"{name} is zero")
    _made[:] = path, t.work / "filled"
    return _made


def close(found, expected, what):
    scale = max(max(map(abs, expected)), 1e-300)
    apart = max(abs(a - b) for a, b in zip(found, expected)) / scale
    t.check(apart <= near and len(found) == len(expected), f"{what}: {apart:.2e} of the largest entry apart")
    return apart


def learned(name, tensor):
    """The tensor's numbers, without the key's bias."""
    values = t.numbers(tensor)
    if name.endswith(".qkv.bias"):
        t.equal(len(values), 3 * width, f"numbers of {name}")
        return values[:width] + values[2 * width:]
    return values


def train(folder, *arguments, **options):
    path, weights = made()
    t.train(path, folder, *arguments, **{"run__init_from": str(weights)} | options)


def compare_runs(one, other):
    for a, b in zip(t.metrics(one), t.metrics(other)):
        for name in ("loss", "grad_norm"):
            close([float(b[name])], [float(a[name])], f"{name} of step {a['step']}")
    t.equal(len(t.metrics(other)), steps, "steps")
    first, second = t.tensors_of(t.latest(one)), t.tensors_of(t.latest(other))
    t.equal(sorted(second), sorted(first), "tensors")
    worst = 0.0
    for section, name in first:
        if section != "optimizer":
            worst = max(worst, close(learned(name, second[section, name]), learned(name, first[section, name]), f"{section} {name}"))
    print(f"{other}: weights at most {worst:.1e} of a tensor's largest entry apart")


def test_two_ranks_share_layers_and_learn_what_one_rank_learns():
    train("one")
    train("cut-2", "--local-ranks", 2, parallel__tensor=2)
    pieces = t.json.loads((t.latest("cut-2") / "index.json").read_text())["tensors"]["model"]["blocks.0.qkv.weight"]["pieces"]
    t.check(len(pieces) > 1, "no layer was cut")
    compare_runs("one", "cut-2")


def test_four_ranks_share_layers_and_batch():
    if not (t.work / "one").exists():
        train("one")
    train("cut-4", "--local-ranks", 4, parallel__tensor=4)
    compare_runs("one", "cut-4")
    train("one-2", run__micro_batch=batch // 2)
    train("cut-2x2", "--local-ranks", 4, parallel__tensor=2, run__micro_batch=batch // 2)
    compare_runs("one-2", "cut-2x2")


def test_a_run_goes_on_with_layers_cut_otherwise():
    if not (t.work / "one").exists():
        train("one")
    train("moved", "--local-ranks", 2, parallel__tensor=2, run__steps=4)
    train("moved", run__steps=7)
    train("moved", "--local-ranks", 2, parallel__tensor=2)
    compare_runs("one", "moved")


def test_every_gradient_of_a_pass_is_that_of_one_rank():
    path, weights = made()
    count = 6
    x = [math.sin(0.9 * i) for i in range(count * 64)]
    grad = [math.cos(0.7 * i * i) for i in range(count * 64)]
    t.write_tensors(t.work / "in.safetensors", {
        "x": ("F64", [count, 1, 8, 8], x), "t": ("F64", [count], [170.0 * i + 3 for i in range(count)]),
        "label": ("I64", [count], [0, 3, 10, 9, 3, 1]), "grad_output": ("F64", [count, 1, 8, 8], grad)})
    outs = []
    offload = {"parallel.offload": "optimizer"}
    for name, ranks, sets in (("1", 1, {}), ("2", 2, {"parallel.tensor": 2}), ("4", 4, {"parallel.tensor": 4}),
                              ("offloaded", 2, offload | {"parallel.tensor": 2})):
        outs.append(t.work / f"out-{name}.safetensors")
        t.run("forward", weights, "--in", t.work / "in.safetensors", "--out", outs[-1], "--grad", "--local-ranks", ranks,
              *t.sets(sets))
    t.refused(2, ["forward --grad", "no rank that runs the whole model", "parallel.pipeline = 1"], "forward", weights,
              "--in", t.work / "in.safetensors", "--out", t.work / "never", "--grad", "--local-ranks", 2,
              *t.sets({"parallel.pipeline": 2}))
    one = t.read_tensors(outs[0])
    names = sorted(name[5:] for name in one if name.startswith("grad."))
    t.equal(names, sorted(name for section, name in t.tensors_of(weights) if section == "model"), "gradients")
    for out in outs[1:]:
        cut = t.read_tensors(out)
        t.equal(sorted(cut), sorted(one), "what comes out")
        close(t.numbers(cut["prediction"]), t.numbers(one["prediction"]), "prediction")
        worst = 0.0
        for name in names:
            t.check(any(one[f"grad.{name}"][2]), f"the gradient of {name} is zero")
            worst = max(worst, close(learned(name, cut[f"grad.{name}"]), learned(name, one[f"grad.{name}"]), f"gradient of {name}"))
        print(f"{out.name}: gradients at most {worst:.1e} of a tensor's largest entry apart")


def test_a_degree_that_does_not_divide_the_heads_is_refused_by_name():
    path, _ = made()
    done = t.run("train", path, "--local-ranks", 3, *t.sets({"parallel.tensor": 3, "run.output": str(t.work / "never")}), code=2)
    for part in ("heads", "3", str(heads)):
        t.check(part in done.all, f"no \"{part}\" in {done.all}")


def test_pictures_of_ranks_that_share_layers_are_those_of_one():
    _, weights = made()
    for folder, ranks in (("pictures-1", []), ("pictures-2", ["--local-ranks", 2, "--set", "parallel.tensor=2"])):
        t.run("sample", weights, "--out", t.work / folder, "--seeds", "0-19", "--steps", 4, *ranks)
    for seed in range(20):
        a, b = (t.read_png(t.work / folder / f"{seed:06}.png")[3] for folder in ("pictures-1", "pictures-2"))
        t.equal(a, b, f"seed {seed} in fp64")


if __name__ == "__main__":
    t.main(globals())
