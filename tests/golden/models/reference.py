"""Golden outputs and gradients of a reference model: the original class, filled by a formula from its own names.

A script make_NAME.py beside this file makes a family's cases:

    reference.case("pixart_small", model="pixart", options=dict(depth=2, width=64), module=PixArtTransformer2DModel(...),
                   needs=reference.needs(x=[4, 8, 8], out_channels=8, text_width=12),
                   inputs=dict(x=reference.drawn(2, 4, 8, 8), t=reference.floats([17.5, 999.0]), …),
                   forward=lambda module, batch: module(batch["x"], …).sample)
    reference.count("pixart_xl2", model="pixart", options=dict(preset="XL/2"), needs=…, module=lambda: Class(...))

and tests/golden/models_test.cpp fills our model through its `foreign(format)` with the same numbers, compares the
prediction and every gradient by THEIR names, and of a count every name and shape. Nothing of the class is changed.
It runs in float64 throughout: casts to lower precision inside it are left out (`keep_double`), time features are the
float32 nearest to what is defined, as the functions that make them differ between processors in the last place (it is
checked that theirs are no further off), and fixed tables of sines are in float64 where a script says so. What else a
script does to the class it says in `changes`, which the table in docs/models.md shows.

Of each tensor a file keeps shape, largest entry, sum, a product with a vector of the formula, and some entries at
places of the formula. A gradient is that of sum(prediction * grad_output) + the sum of auxiliary losses; one that is
zero but for rounding (a key's bias) is kept as zero. Numbers of a weight come from its name: values().
"""

import contextlib
import json
import os
import pathlib
import sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # torch.compile hands on what it is given

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "dit"))
import make as formula  # noqa: E402

MOST_BYTES = 1_000_000
LOWER = (torch.float32, torch.float16, torch.bfloat16)


# --- what a case is made of -----------------------------------------------------------------------------------


def needs(x, out_channels, classes=0, text_width=0, more=()):
    """What there is for the model, as sdk/testing's model_needs has it; `more`: of tensor() each."""
    inputs = [tensor("x", x), tensor("t", [])]
    if classes:
        inputs.append(tensor("label", [], "Long", classes))
    if text_width:
        inputs += [tensor("text", [-1, text_width]), tensor("text_mask", [-1], "Bool")]
    return {"out_channels": out_channels, "inputs": [*inputs, *more]}


def tensor(name, shape, dtype="Float", values=0):
    """A TensorSpec: of one sample; -1 is any length; `values` of an index."""
    return {"name": name, "shape": list(shape), "dtype": dtype, "values": values}


def drawn(*shape, bound=1.75):
    """Of the formula, by the input's name, in (-bound, bound), in the precision that is compared."""
    return {"drawn": list(shape), "bound": bound}


def floats(numbers):
    """float32, as times are."""
    return {"floats": numbers}


def doubles(numbers):
    """What another network has made, in the precision that is compared."""
    return {"doubles": numbers}


def integers(numbers):
    return {"integers": numbers}


def flags(numbers):
    """bool."""
    return {"flags": np.asarray(numbers).astype(int).tolist()}


def mask(lengths):
    """Where texts of these lengths are, bool [B, S]."""
    return flags([[place < length for place in range(max(lengths))] for length in lengths])


def batch_of(inputs):
    kinds = {"floats": torch.float32, "doubles": torch.float64, "integers": torch.int64, "flags": torch.bool}
    batch = {}
    for name, given in inputs.items():
        if "drawn" in given:
            batch[name] = formula.values(name, given["drawn"], given["bound"]).double()
        else:
            (kind, numbers), = given.items()
            batch[name] = torch.tensor(numbers, dtype=kinds[kind])
    return batch


# --- weights --------------------------------------------------------------------------------------------------


def values(name, shape):
    """A weight: of the variance of one over its inputs; of one dim, small; a norm's, about one. tests/support/
    reference.h has the same."""
    shape = list(shape)
    if len(shape) < 2:
        about = 1.0 if name.rsplit(".", 1)[-1] in ("weight", "scale") else 0.0
        numbers = about + 0.25 * formula.uniform(name, int(np.prod(shape)))
        return torch.from_numpy(numbers.astype(np.float32)).reshape(shape).double()
    inputs = int(np.prod(shape[1:]))
    bound = 1.0 if name.endswith("embedding_table.weight") else float(np.sqrt(3.0 / inputs))
    return formula.values(name, shape, bound).double()


def learned(module):
    """Parameters by name, each once, but for those that are no weights (requires_grad = False); and buffers that are."""
    return {name: value for name, value in [*module.named_parameters(), *module.named_buffers()] if value.requires_grad}


def fixed(module, beside):
    """What a file of theirs holds beside the weights: tables."""
    state = module.state_dict()
    weights = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers()])
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)
            and not (name in weights and weights[name].requires_grad) and not (beside and name.startswith(beside))}


def fill(module, copies):
    with torch.no_grad():
        for name, parameter in learned(module).items():
            parameter.copy_(values(copies.get(name, name), parameter.shape))


# --- without a GPU ---------------------------------------------------------------------------------------------


class OnProcessor(TorchFunctionMode):
    """Tensors that are sent to a GPU stay where they are."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        if function is torch.Tensor.cuda:
            return arguments[0]
        if function is torch.Tensor.to:
            arguments = tuple("cpu" if given in ("cuda", torch.device("cuda")) else given for given in arguments)
        return function(*arguments, **(named or {}))


# --- float64 --------------------------------------------------------------------------------------------------


class KeepDouble(TorchFunctionMode):
    """Casts of float64 tensors to a lower precision, and functions that are told to compute in one, stay in float64."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = named or {}
        first = arguments[0] if arguments else None
        if isinstance(first, torch.Tensor) and first.dtype == torch.float64:
            if function in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
                return first
            arguments = [first, *(torch.float64 if given in LOWER else given for given in arguments[1:])] \
                if any(isinstance(given, torch.dtype) for given in arguments[1:]) else arguments
            if named.get("dtype") in LOWER:
                named = named | {"dtype": torch.float64}
        return function(*arguments, **named)


def time_features(t, channels, shift=0, cosines_first=True, scale=1):
    """Of float32 as DDPM's, each function's value the nearest float32."""
    half = channels // 2
    exponent = np.arange(half, dtype=np.float32) * np.float32(-np.log(10000)) / np.float32(half - shift)
    frequency = np.exp(exponent.astype(np.longdouble)).astype(np.float32)
    angle = np.float32(scale) * (t.detach().float().numpy()[:, None].astype(np.float32) * frequency)
    angle = angle.astype(np.longdouble)
    pair = [np.cos(angle), np.sin(angle)]
    return torch.from_numpy(np.concatenate(pair if cosines_first else pair[::-1], 1).astype(np.float32))


def nearest(theirs, ours, t):
    """Ours in the place of theirs, of which it is checked that they are the same but for the last places."""
    largest_angle = t.detach().abs().max().double()
    assert ((theirs.double() - ours.double()).abs() <= 2**-21 * (largest_angle + 1)).all(), "other time features"
    return ours


def with_nearest_features(module):
    """diffusers' Timesteps make the nearest features; other classes' a script hooks itself."""
    for part in module.modules():
        if type(part).__name__ == "Timesteps" and hasattr(part, "downscale_freq_shift"):
            part.register_forward_hook(lambda part, t, made: nearest(made, time_features(
                t[0], part.num_channels, part.downscale_freq_shift, part.flip_sin_to_cos, part.scale),
                t[0] * part.scale).double())
    return module


def with_exact_positions(module):
    """The tables of diffusers' PatchEmbed before they were rounded to float32."""
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    for part in module.modules():
        if type(part).__name__ == "PatchEmbed" and getattr(part, "pos_embed", None) is not None:
            tokens, width = part.pos_embed.shape[-2:]
            table = get_2d_sincos_pos_embed(width, int(tokens**0.5), base_size=part.base_size,
                                            interpolation_scale=part.interpolation_scale)
            assert (part.pos_embed - table).abs().max() < 1e-6
            part.pos_embed = torch.as_tensor(table).double().unsqueeze(0)
    return module


# --- the files ------------------------------------------------------------------------------------------------


def short(number):
    return float(f"{number:.15g}")


def digest(name, value, entries=16):
    flat = value.detach().flatten().double().numpy()
    n = len(flat)
    places = np.arange(n) if n <= entries else formula.mixed("places/" + name, entries) % np.uint64(n)
    return {"shape": list(value.shape), "largest": short(np.abs(flat).max()), "sum": short(flat.sum()),
            "product": short(flat @ formula.uniform("product/" + name, n)),
            "entries": [short(number) for number in flat[places.astype(np.int64)]]}


def name_of(module):
    return f"{type(module).__module__.split('.')[0]} {type(module).__name__}"


def gradients_of(module, copies, unused, precision):
    """By name, of copies the sum; and which of them are zero but for rounding."""
    found = {}
    for name, parameter in learned(module).items():
        if name in unused:
            assert parameter.grad is None or not parameter.grad.any(), f"{name} is used"
            continue
        assert parameter.grad is not None, f"{name} has no gradient: list it in `unused`"
        name = copies.get(name, name)
        found[name] = found[name] + parameter.grad if name in found else parameter.grad
    assert set(unused) <= set(learned(module)), set(unused) - set(learned(module))
    largest = max(gradient.abs().max().item() for gradient in found.values())
    limit = largest * (1e-12 if precision == "fp64" else 1e-6)
    return found, sorted(name for name, gradient in found.items() if gradient.abs().max().item() <= limit), largest


def write(name, content):
    path = HERE / f"{name}.json"
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(d)}" for n, d in content.pop("tensors", {}).items())
    head = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    path.write_text(f"{{{head}" + (f',\n"tensors": {{\n{lines}\n}}}}\n' if lines else "}\n"))
    assert path.stat().st_size < MOST_BYTES, f"{path} has {path.stat().st_size} bytes"
    print(path.name, path.stat().st_size, "bytes")


def case(name, *, model, options, needs, inputs, module, forward, format="diffusers", reference=None, changes="",
         copies=None, unused=(), beside="", precision="fp64", keep_double=True, prepare=None, entries=16):
    """Writes NAME.json. forward(module, batch) gives the prediction, or {"prediction": …, an auxiliary loss: [B], …}.
    reference: what it is called in the table; default: package and class.   changes: what was done to it; "": nothing.
    copies: their parameters that hold another's values, name -> the other's.   unused: theirs that nothing reads.
    beside: how names of a frozen network begin that the class holds beside its own.   precision: "fp32" where the
    reference computes in float32 whatever it is given.   prepare(module): after it was filled and made float64
    (with_exact_positions, hooks).   entries: kept of each gradient."""
    copies = copies or {}
    torch.set_num_threads(1)
    fill(module.eval(), copies)
    tables = {name: value.clone() for name, value in fixed(module, beside).items()}
    with_nearest_features(module.double())
    if prepare:
        prepare(module)
    batch = batch_of(inputs)
    with OnProcessor(), KeepDouble() if keep_double else contextlib.nullcontext():
        made = forward(module, batch)
    made = made if isinstance(made, dict) else {"prediction": made}
    prediction = made["prediction"]
    assert prediction.dtype == torch.float64 or precision == "fp32", prediction.dtype
    grad_output = formula.values("grad_output", list(prediction.shape), 1.75).double()
    ((prediction * grad_output).sum() + sum(loss.sum() for n, loss in made.items() if n != "prediction")).backward()
    gradients, zero, largest = gradients_of(module, copies, unused, precision)
    tensors = {"prediction": digest("prediction", prediction, 64)}
    tensors |= {f"loss.{n}": digest(f"loss.{n}", loss) for n, loss in made.items() if n != "prediction"}
    tensors |= {f"constant.{n}": digest(f"constant.{n}", value) for n, value in tables.items() if n not in copies}
    tensors |= {f"grad.{n}": digest(f"grad.{n}", value, entries) for n, value in gradients.items() if n not in zero}
    write(name, {"case": {
        "model": model, "options": options, "needs": needs, "inputs": inputs, "format": format,
        "reference": reference or name_of(module), "changes": changes, "precision": precision,
        "copies": copies, "unused": sorted(unused), "zero": {n: list(gradients[n].shape) for n in zero},
        "largest_gradient": short(largest)}, "tensors": tensors})


def count(name, *, model, options, needs, module, format="diffusers", reference=None, copies=None, unused=(), device="meta"):
    """Writes NAME.json: number, names and shapes of the parameters of module(), which is made without numbers but for a
    class that reads some from a file: that needs a device of real ones."""
    with torch.device(device):
        made = module()
    theirs = {n: p for n, p in learned(made).items() if n not in (copies or {}) and n not in unused}
    lines = "".join(f"{n} {list(theirs[n].shape)}\n" for n in sorted(theirs))
    write(name, {"case": {"model": model, "options": options, "needs": needs, "format": format,
                          "reference": reference or name_of(made)},
                 "parameters": sum(p.numel() for p in theirs.values()), "names": f"{formula.fnv1a(lines):016x}"})
