#!/usr/bin/env python3
"""Makes tests/golden/nemo_imagen.json: losses, gradients and whole trajectories of NeMo Imagen's preconditioning and samplers.

    make_nemo_imagen.py    with the Python of .deps/peers_nemo

precond.py, sampler.py and continuous_ddpm.py of nemo-toolkit 2.2.1 run unmodified around a made-up network, in float64 (what
they cast to float32 stays float64), and with noise handed in. What is done to them, each to compare definitions:

- log SNR of `cosine` is bounded from below at t = 1 by that of alpha = 1e-8, which is what they divide by at least. Without
  it theirs is what cos(pi / 2) is in the precision at hand: -34 in float32, -75 in float64. No other time comes near.
- DDPMSampler takes every prediction for one of the noise (`pred_objective` is not its argument), and knows no unet_type
  "sr-unet". As it comes it makes the cases of noise, base and sr. Those of x_start are made with the attribute set to what
  the network was trained for; `wrong` has what comes out otherwise, and `derived` what must come out, by `ancestral`
  below: written from the papers alone (Kingma et al., arXiv:2107.00630, eqs. 32 and 33; Saharia et al., arXiv:2205.11487).
"""

import contextlib
import importlib
import importlib.util
import json
import math
import pathlib
import sys
import types
from unittest import mock

import torch

FILE = pathlib.Path(__file__).with_name("nemo_imagen.json")
SHAPE, STEPS, WORDS, WIDTH, SHARE = (2, 3, 4, 4), 10, 3, 5, 0.995
GUIDANCE = 3.0  # of one case in two
LOW_NOISE = 0.002  # EDMPrecond's, when it samples
LEAST = -2 * math.log(1e8)
# How far theirs may lie from the definition: of `cosine` they take 1 - c in the first step, where c is 1 but for 4e-15.
ROUNDED = {"cosine": 1e-8, "linear": 1e-13}
PLACE = "nemo.collections.multimodal"


def nemo():
    """The three modules, without what the packages around them import."""
    folder = pathlib.Path(importlib.util.find_spec("nemo").origin).parent
    for name in ("nemo", "nemo.collections", PLACE, f"{PLACE}.modules", f"{PLACE}.modules.imagen", f"{PLACE}.modules.imagen.sampler",
                 f"{PLACE}.models", f"{PLACE}.models.text_to_image", f"{PLACE}.models.text_to_image.imagen", f"{PLACE}.parts",
                 f"{PLACE}.parts.utils"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
    sys.modules[f"{PLACE}.parts.utils"].randn_like = torch.randn_like
    return [importlib.import_module(f"{PLACE}.{name}") for name in (
        "models.text_to_image.imagen.precond", "modules.imagen.sampler.sampler", "modules.imagen.sampler.continuous_ddpm")]


class Unet(torch.nn.Module):
    """A made-up network; nemo_imagen_test.cpp has it too. A picture to enlarge comes in the picture's own size here."""

    def __init__(self, mixed):
        super().__init__()
        self.mixed = torch.nn.Parameter(mixed.clone())

    def forward(self, x, time, text_embed, text_mask, x_low_res=None, time_low_res=None):
        of_time = torch.sigmoid(time if time_low_res is None else time + time_low_res)
        told = (text_embed * text_mask[..., None]).mean((1, 2))
        out = torch.einsum("ij,bjhw->bihw", self.mixed, x) + (of_time + told)[:, None, None, None]
        if x_low_res is not None:
            out = out + 0.7 * x_low_res
        return 0.8 * torch.sin(2 * out) - 0.5 * x.flip(-1)


def handed(draws):
    """torch.randn_like and NeMo's, which give these one by one."""
    rest = iter(draws)

    def next_one(like, generator=None):
        assert generator is None and (drawn := next(rest)).shape == like.shape
        return drawn

    return next_one


@contextlib.contextmanager
def in_double(precond, *draws):
    give = handed(draws)
    with mock.patch.object(torch.Tensor, "float", lambda x: x), mock.patch.object(torch, "float32", torch.float64), \
            mock.patch.object(torch, "randn_like", give), mock.patch.object(precond, "randn_like", give):
        yield


def bounded(scheduler):
    theirs = scheduler.log_snr
    scheduler.log_snr = lambda t: theirs(t).clamp(min=LEAST)
    return scheduler


# --- what must come out where NeMo's does not ---


def ancestral(predict, kind, log_snr, start, noise):
    """From t = 1 to 0 in even steps by q(x_s | x_t, x_0) with the estimate of x_0 in place of it; `predict` of x and log SNR."""
    x = start
    for i, fresh in enumerate(noise):
        t, s = 1 - i / len(noise), 1 - (i + 1) / len(noise)
        a_t, a_s = (math.sqrt(1 / (1 + math.exp(-log_snr(at)))) for at in (t, s))
        var_t, var_s = (1 / (1 + math.exp(log_snr(at))) for at in (t, s))
        predicted = predict(x, log_snr(t))
        clean = predicted if kind == "x_start" else (x - math.sqrt(var_t) * predicted) / a_t
        reach = torch.quantile(clean.abs().flatten(1), SHARE, dim=1).clamp(min=1)[:, None, None, None]
        clean = torch.maximum(torch.minimum(clean, reach), -reach) / reach
        # alpha_{t|s} = a_t / a_s, and sigma^2_{t|s} = var_t - alpha^2_{t|s} var_s
        ratio = a_t / a_s
        between = var_t - ratio**2 * var_s
        x = ratio * var_s / var_t * x + a_s * between / var_t * clean
        if s > 0:
            x = x + math.sqrt(between * var_s / var_t) * fresh
    return x


def ways():
    """log SNR of t, by arXiv:2102.09672 eq. 17 and DDPM's betas in continuous time."""
    half = math.pi / 2
    return {"cosine": lambda t: max(-2 * math.log(math.tan(min((t + 0.008) / 1.008 * half, math.nextafter(half, 0)))), LEAST),
            "linear": lambda t: -math.log(math.expm1(1e-4 + 10 * t * t))}


# --- cases ---


def told(random):
    """What the network is told beside the picture, and the null text."""
    text = random(SHAPE[0], WORDS, WIDTH)
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]])
    return {"text": text, "mask": mask, "low": 0.5 * random(*SHAPE)}


def loss(precond, model, given, unet, **more):
    found = model.compute_loss(given["clean"], given["text"], given["mask"], noise=given["noise"], **more)
    found.backward()
    return {"loss": found.detach(), "gradient": unet.mixed.grad}


def losses(precond, given):
    cases = []
    for kind in ("l1", "l2", "huber"):
        for schedule in ("cosine", "linear"):
            for objective in ("noise", "x_start"):
                unet = Unet(given["mixed"])
                model = precond.ContinousDDPMPrecond(unet, loss_type=kind, pred_objective=objective, noise_schedule=schedule)
                with in_double(precond):
                    found = loss(precond, model, given, unet, time=given["times"])
                cases.append({"type": "DDPM", "loss_type": kind, "noise_schedule": schedule, "pred_objective": objective, **found})
        for unet_type in ("base", "sr"):
            unet, low = Unet(given["mixed"]), {"x_low_res": given["low"]} if unet_type == "sr" else {}
            model = precond.EDMPrecond(unet, loss_type=kind, sigma_data=0.4, p_mean=-0.9, p_std=1.1, noise_cond_aug=bool(low))
            # The noise's levels, of compute_loss and then of the picture to enlarge: it has no other way in.
            levels = iter([given["sigmas"], given["low_sigmas"]])
            with in_double(precond, *([given["low_noise"]] if low else [])), mock.patch.object(model, "sample_time", lambda **_: next(levels)):
                found = loss(precond, model, given, unet, **low)
            cases.append({"type": "EDM", "loss_type": kind, "unet_type": unet_type, **found})
    return cases


def by_ddpm(modules, given, unet_type, schedule, objective, taken_for, scale):
    precond, sampler, continuous = modules
    model = precond.ContinousDDPMPrecond(Unet(given["mixed"]), pred_objective=objective, noise_schedule=schedule)
    walk = sampler.DDPMSampler(unet_type, bounded(model.scheduler))
    assert walk.pred_objective == "noise"
    walk.pred_objective = taken_for
    low = given["low"] if unet_type == "sr" else None
    with in_double(precond, *given["steps"]), torch.no_grad():
        return walk(model, given["start"], given["text"], given["mask"], x_low_res=low, cond_scale=scale, sampling_steps=STEPS)


def by_edm(modules, given, unet_type, scale, augmented):
    precond, sampler, _ = modules
    model = precond.EDMPrecond(Unet(given["mixed"]), noise_cond_aug=augmented)
    model.set_inference_mode(True)
    low = given["low"] if unet_type == "sr" else None
    evaluations = (2 * STEPS - 1) * (2 if scale != 1 else 1)
    # A draw a step that is multiplied by 0, and one an evaluation of the network where the picture to enlarge gets noise.
    give, lows = handed([torch.zeros(SHAPE)] * STEPS), handed(given["low_draws"][:evaluations])
    with in_double(precond), mock.patch.object(torch, "randn_like", give), mock.patch.object(precond, "randn_like", lows), \
            torch.no_grad(), contextlib.redirect_stdout(None):
        return sampler.EDMSampler(unet_type)(model, given["start"], given["text"], given["mask"], x_low_res=low, cond_scale=scale,
                                             sampling_steps=STEPS)


def derived(given, unet_type, schedule, objective, scale):
    unet, rows = Unet(given["mixed"]), torch.ones(SHAPE[0])
    low = {"x_low_res": given["low"]} if unet_type != "base" else {}

    def predict(x, log_snr):
        with_text, without = (unet(x, log_snr * rows, text, given["mask"], **low) for text in (given["text"], 0 * given["text"]))
        return without + scale * (with_text - without)

    with torch.no_grad():
        return ancestral(predict, objective, ways()[schedule], given["start"], given["steps"])


def apart(a, b):
    return float((a - b).abs().max() / b.abs().max())


def trajectories(modules, given):
    cases = []
    for schedule in ("cosine", "linear"):
        for unet_type, scale in (("base", GUIDANCE), ("sr", 1.0)):
            case = {"type": "DDPM", "unet_type": unet_type, "noise_schedule": schedule, "guidance": scale}
            for objective in ("noise", "x_start"):
                end = by_ddpm(modules, given, unet_type, schedule, objective, objective, scale)
                assert apart(derived(given, unet_type, schedule, objective, scale), end) < ROUNDED[schedule], case
                more = {}
                if objective == "x_start":  # as it comes
                    more["wrong"] = by_ddpm(modules, given, unet_type, schedule, objective, "noise", scale)
                    assert apart(more["wrong"], end) > 0.1, case
                cases.append({**case, "pred_objective": objective, "end": end, **more})
    try:  # as it comes
        by_ddpm(modules, given, "sr-unet", "linear", "noise", "noise", GUIDANCE)
    except UnboundLocalError as failed:
        cases.append({"type": "DDPM", "unet_type": "sr-unet", "noise_schedule": "linear", "pred_objective": "noise", "guidance": GUIDANCE,
                      "end": derived(given, "sr-unet", "linear", "noise", GUIDANCE), "theirs": f"UnboundLocalError: {failed}"})
    for unet_type, scale, augmented in (("base", GUIDANCE, False), ("base", 1.0, False), ("sr", GUIDANCE, False), ("sr", GUIDANCE, True)):
        cases.append({"type": "EDM", "unet_type": unet_type, "guidance": scale, "noise_cond_aug": augmented,
                      "end": by_edm(modules, given, unet_type, scale, augmented)})
    return cases


def make():
    generator = torch.Generator().manual_seed(17)
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    modules = nemo()
    given = {"mixed": 0.6 * random(3, 3), **told(random), "clean": random(*SHAPE).clamp(-1, 1), "noise": random(*SHAPE),
             "times": torch.tensor([0.2, 0.85]), "sigmas": torch.tensor([0.15, 2.5]), "low_sigmas": torch.tensor([0.4, 0.05]),
             "low_noise": random(*SHAPE), "start": random(*SHAPE), "steps": random(STEPS, *SHAPE),
             "low_draws": random(2 * (2 * STEPS - 1), *SHAPE)}
    return {"given": given, "losses": losses(modules[0], given), "trajectories": trajectories(modules, given)}


def plain(value):
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def main():
    torch.set_default_dtype(torch.float64)
    golden = plain(make())
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    FILE.write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    main()
