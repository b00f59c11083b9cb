"""Golden runs of the optimizers, and the check that they are still what their peers give.

    optimizers_test.py           compares tests/golden/optimizers.json with runs made now
    optimizers_test.py --write   makes the file anew

SGD, Muon, Adafactor and AdamW are torch.optim's. Schedule-free AdamW is its paper's (arXiv:2405.15682). Lion is the program of its paper (arXiv:2302.06675, algorithm 2), AdamW with 8 bits the
formulas of its paper (arXiv:2110.02861): the map's values are nearest by distance here (bitsandbytes itself: bitsandbytes_test.py).
Weights and moments are float64 except in what is coded; gradients are the same numbers in each step.
"""

import json
import math
import pathlib
import sys

import torch

FILE = pathlib.Path(__file__).with_name("optimizers.json")
STEPS = 10
LR = 0.02
SHAPES = {"tall": (7, 3), "wide": (3, 8), "bias": (5,)}
CODED = {"large": (33, 130), "small": (3, 70)}  # a row of the first ends in a block of 2 numbers


def numbers(seed, shape, dtype):
    """A linear congruential generator's upper 24 bits, -1 ... 1: the same numbers in optimizers_test.cpp, exact in float32."""
    state, values = seed * 747796405 % 2**32, []
    for _ in range(math.prod(shape)):
        state = (state * 1664525 + 1013904223) % 2**32
        values.append((state >> 8) / 2**23 - 1)
    return torch.tensor(values, dtype=torch.float64).view(shape).to(dtype)


def weights(shapes, dtype=torch.float64):
    return {name: numbers(1 + i, shape, dtype) for i, (name, shape) in enumerate(shapes.items())}


def gradients(shapes, step, dtype=torch.float64):
    """Of very different sizes from step to step, so that moments matter."""
    return {name: numbers(100 * step + 50 + i, shape, dtype) * 2.0 ** (step % 4 - 2)
            for i, (name, shape) in enumerate(shapes.items())}


def run(make, shapes=SHAPES):
    """The weights after STEPS steps of torch.optim's optimizer over the tensors of `shapes`."""
    parameters = {name: torch.nn.Parameter(w) for name, w in weights(shapes).items()}
    optimizer = make(list(parameters.values()))
    for step in range(STEPS):
        for name, grad in gradients(shapes, step).items():
            parameters[name].grad = grad
        optimizer.step()
    return {name: p.detach() for name, p in parameters.items()}


def lion(beta1, beta2, weight_decay):
    result = weights(SHAPES)
    moments = {name: torch.zeros_like(w) for name, w in result.items()}
    for step in range(STEPS):
        for name, g in gradients(SHAPES, step).items():
            c = beta1 * moments[name] + (1 - beta1) * g
            result[name] = result[name] - LR * (c.sign() + weight_decay * result[name])
            moments[name] = beta2 * moments[name] + (1 - beta2) * g
    return result


def schedule_free(beta1, beta2, eps, weight_decay):
    """Algorithm 1 of the paper: gradients at y, steps of z, and their average x."""
    x = weights(SHAPES)
    y, z = ({name: w.clone() for name, w in x.items()} for _ in range(2))
    v = {name: torch.zeros_like(w) for name, w in x.items()}
    for step in range(STEPS):
        for name, g in gradients(SHAPES, step).items():
            v[name] = beta2 * v[name] + (1 - beta2) * g * g
            direction = g / ((v[name] / (1 - beta2 ** (step + 1))).sqrt() + eps) + weight_decay * y[name]
            z[name] = z[name] - LR * direction
            x[name] = x[name] + (z[name] - x[name]) / (step + 1)  # equal learning rates count alike
            y[name] = (1 - beta1) * z[name] + beta1 * x[name]
    return {**y, **{name + "_average": w for name, w in x.items()}}


# --- muon: matrices only, and torch.optim multiplies in bf16 whatever the weights are ---


def muon(adjust, nesterov, weight_decay, precise):
    from torch.optim import _muon

    shapes = {name: shape for name, shape in SHAPES.items() if len(shape) == 2}
    make = lambda p: torch.optim.Muon(p, lr=LR, momentum=0.9, nesterov=nesterov, weight_decay=weight_decay,
                                      adjust_lr_fn=adjust)
    if not precise:
        return run(make, shapes)
    as_published = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = lambda self: self.clone()  # the same program in the weights' own dtype
    try:
        return run(make, shapes)
    finally:
        torch.Tensor.bfloat16 = as_published


# --- 8 bits ---


def dynamic_map(signed):
    values = [0.0, 1.0]
    for decade in range(7):
        bounds = torch.linspace(0.1, 1, 2 ** (decade if signed else decade + 1) + 1, dtype=torch.float32)
        means = ((bounds[:-1] + bounds[1:]) / 2 * 10.0 ** (decade - 6)).tolist()
        values += means + ([-m for m in means] if signed else [])
    assert len(values) == 256
    return torch.tensor(sorted(values), dtype=torch.float32)


def code(x, values):
    """Block by block of a row: what the codes and the scale of 32 bits stand for, in float32."""
    rows = []
    for row in x:
        blocks = []
        for block in row.split(64):
            scale = block.abs().max()
            nearest = ((block / scale)[:, None] - values[None]).abs().argmin(1)
            blocks.append(values[nearest] * scale)
        rows.append(torch.cat(blocks))
    return torch.stack(rows)


def adamw8bit(beta1, beta2, eps, weight_decay):
    first_map, second_map = dynamic_map(True), dynamic_map(False)
    result = weights(CODED, torch.float32)
    m = {name: torch.zeros_like(w) for name, w in result.items()}
    v = {name: torch.zeros_like(w) for name, w in result.items()}
    for step in range(STEPS):
        for name, g in gradients(CODED, step, torch.float32).items():
            m[name] = beta1 * m[name] + (1 - beta1) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g * g
            mean, variance = m[name] / (1 - beta1 ** (step + 1)), v[name] / (1 - beta2 ** (step + 1))
            result[name] = (1 - LR * weight_decay) * result[name] - LR * mean / (variance.sqrt() + eps)
            if g.numel() >= 4096:
                m[name], v[name] = code(m[name], first_map), code(v[name], second_map)
    # Of the coded one, which is large: some numbers of every block, and a sum of all.
    large = result.pop("large")
    return {**result, "corner": large[:3, 60:70], "end": large[-2:, -4:], "sum": large.double().sum()}


def make():
    sgd = lambda **options: run(lambda p: torch.optim.SGD(p, lr=LR, **options))
    return {
        "sgd": sgd(),
        "sgd_momentum": sgd(momentum=0.9, weight_decay=0.1),
        "sgd_nesterov": sgd(momentum=0.8, nesterov=True),
        "adamw": run(lambda p: torch.optim.AdamW(p, lr=LR, betas=(0.9, 0.95), weight_decay=0.1)),
        "lion": lion(0.9, 0.99, 0.1),
        "adafactor": run(lambda p: torch.optim.Adafactor(p, lr=LR, weight_decay=0.1, foreach=False)),
        "schedule_free": schedule_free(0.9, 0.99, 1e-8, 0.1),
        "muon": muon("original", True, 0.1, True),
        "muon_rms": muon("match_rms_adamw", False, 0.0, True),
        "muon_bf16": muon("original", True, 0.1, False),
        "adamw8bit": adamw8bit(0.9, 0.99, 1e-8, 0.1),
    }


def plain(value):
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value.tolist()


def differences(old, new, tolerance, place):
    if isinstance(new, dict):
        if set(old) != set(new):
            yield f"{place}: keys {sorted(old)} in the file, {sorted(new)} now"
            return
        for key in new:
            yield from differences(old[key], new[key], tolerance, f"{place}.{key}")
    elif isinstance(new, list):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, tolerance, f"{place}[{i}]")
    elif not math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance):
        yield f"{place}: {old} in the file, {new} now"


def main():
    golden = plain(make())
    if "--write" in sys.argv:
        rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
        FILE.write_text("{\n" + rows + "\n}\n")
        return 0
    old, found = json.loads(FILE.read_text()), []
    for key in golden:  # processors round bf16 products in different ways
        found += differences(old[key], golden[key], 0.02 if key == "muon_bf16" else 1e-6, key)
    print("\n".join(found[:20]) or f"{FILE.name}: as made now")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
