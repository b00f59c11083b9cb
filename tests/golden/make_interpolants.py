#!/usr/bin/env python3
"""Makes tests/golden/interpolants.json: paths, losses and trajectories of SiT's transport, and NeMo Imagen's log-SNR schedules.

    make_interpolants.py SIT NEMO

SIT is a checkout of github.com/willisma/SiT (947f95b), whose package `transport` is imported as it is (with torchdiffeq); NEMO
a folder with nemo/collections/multimodal/modules/imagen/sampler/continuous_ddpm.py, of the package nemo-toolkit 2.2.1, of which
this one file is imported. All in float64, with noise handed in.
"""

import importlib.util
import json
import pathlib
import sys
import types
from unittest import mock

import numpy as np
import torch

FILE = pathlib.Path(__file__).with_name("interpolants.json")
SHAPE, STEPS = (2, 2, 2, 3), 10
RANDOM = np.random.RandomState(13)
PATHS = {"rectified_flow": "Linear", "gvp": "GVP", "vp": "VP"}
# Theirs takes no root of a constant, and SBDM is infinite at its t = 0.
FORMS = {"sigma": "sigma", "linear": "linear", "decreasing": "decreasing", "increasing_decreasing": "inccreasing-decreasing"}


def normal(*shape):
    return torch.from_numpy(RANDOM.standard_normal(shape))


def model(x, t):
    """A made-up network; interpolants_test.cpp has it too."""
    t = t.view(-1, *[1] * (x.dim() - 1))
    return 0.8 * torch.sin(2 * x.flip(-1) + 3 * t) - 0.5 * x


def transports(create):
    for ours, theirs in PATHS.items():
        for prediction in ("velocity", "noise", "score"):
            if ours == "rectified_flow" and prediction != "velocity":
                continue
            for weight in ("none", "velocity", "likelihood"):
                if prediction == "velocity" and weight != "none":
                    continue
                yield {"scheduler": ours, "prediction": prediction, "weight": weight}, create(theirs, prediction, weight)


def losses(transport, clean, noise, times):
    given = (torch.from_numpy(np.array(times)), noise, clean)
    with mock.patch.object(transport, "sample", lambda _: given):
        return transport.training_losses(model, clean)["loss"]


def by_sde(sampler, start, noise, **options):
    draws = iter(noise)
    with mock.patch.object(torch, "randn", lambda *_: next(draws)):
        return sampler.sample_sde(num_steps=STEPS, **options)(start, model)[-1]


def by_sit(folder):
    sys.path.insert(0, folder)
    from transport import Sampler, create_transport

    times = [0.1, 0.8]
    clean, eps, start, noise = normal(*SHAPE), normal(*SHAPE), normal(*SHAPE), normal(STEPS, *SHAPE)
    result = {"times": times, "clean": clean, "eps": eps, "start": start, "noise": noise, "losses": [], "ode": [], "sde": []}
    for case, transport in transports(create_transport):
        result["losses"].append({**case, "loss": losses(transport, clean, eps, times)})
        if case["weight"] != "none":
            continue
        sampler = Sampler(transport)
        result["ode"].append({**case, "end": sampler.sample_ode(sampling_method="rk4", num_steps=STEPS + 1)(start, model)[-1]})
        if case["prediction"] != "velocity" or case["scheduler"] == "vp":
            continue  # theirs cuts the time otherwise where it takes last steps
        for ours, theirs in FORMS.items():
            for last in ("Mean", "Tweedie", "Euler"):
                if last != "Mean" and ours != "sigma":
                    continue
                end = by_sde(sampler, start, noise, diffusion_form=theirs, diffusion_norm=0.7, last_step=last)
                result["sde"].append({**case, "diffusion": ours, "last_step": last.lower(), "end": end})
    return result


def by_nemo(folder):
    sys.modules["einops"] = types.ModuleType("einops")
    sys.modules["einops"].repeat = None  # of sampling alone
    for name in ("nemo", "nemo.collections", "nemo.collections.multimodal", "nemo.collections.multimodal.parts",
                 "nemo.collections.multimodal.parts.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["nemo.collections.multimodal.parts.utils"].randn_like = torch.randn_like
    place = pathlib.Path(folder) / "nemo/collections/multimodal/modules/imagen/sampler/continuous_ddpm.py"
    spec = importlib.util.spec_from_file_location("continuous_ddpm", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    times, x, clean = torch.tensor([0.05, 0.3, 0.6, 0.95]), normal(4, 1, 2, 2), normal(4, 1, 2, 2)
    cases = []
    for name in ("cosine", "linear"):
        schedule = module.GaussianDiffusionContinuousTimes(noise_schedule=name)
        alpha, sigma = module.log_snr_to_alpha_sigma(schedule.log_snr(times))
        mean, _, log_variance = schedule.q_posterior(clean, x, times, t_next=times / 2)
        cases.append({"log_snr": name, "condition": schedule.get_condition(times), "alpha": alpha, "sigma": sigma,
                      "mean": mean, "log_variance": log_variance.flatten()})
    return {"times": times, "x": x, "clean": clean, "cases": cases}


def plain(value):
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def main(sit, nemo):
    torch.set_default_dtype(torch.float64)
    golden = plain({"sit": by_sit(sit), "nemo": by_nemo(nemo)})
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    FILE.write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
