"""Golden trajectories of the samplers, and guided predictions, made by the programs that people know them from, in float64.

    samplers_test.py           compares tests/golden/samplers.json with values made now
    samplers_test.py --write   makes the file anew

k-diffusion's sampling.py is run as it is, with noise handed in; of its package nothing else is imported, and what that file
imports without these samplers calling it (torchsde, torchvision) is an empty module. diffusers' multistep schedulers get the
noise levels in float64. torchdiffeq's dopri5 is told to end its last step at the end (step_t), where it would otherwise step
beyond and interpolate.
"""

import importlib
import importlib.util
import json
import pathlib
import sys
import types
from unittest import mock

import numpy as np
import torch
from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler
from diffusers.guiders import AutoGuidance, ClassifierFreeGuidance

from schedulers_test import differences, plain

FILE = pathlib.Path(__file__).with_name("samplers.json")
SHAPE, STEPS = (2, 2, 2, 3), 12
RANDOM = np.random.RandomState(11)


def reference(name):
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        print(f"not run: {missing} (./dev peers)")
        sys.exit(77)


def k_diffusion():
    found = importlib.util.find_spec("k_diffusion")
    if found is None:
        print("not run: no k-diffusion (./dev peers)")
        sys.exit(77)
    package = types.ModuleType("k_diffusion")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["k_diffusion"] = package
    for unused in ("torchsde", "torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules.setdefault(unused, types.ModuleType(unused))
    sys.modules["torchvision.transforms"].functional = sys.modules["torchvision.transforms.functional"]
    return importlib.import_module("k_diffusion.sampling")


def data_model(x, alpha, sigma):
    """A made-up estimate of the data; samplers_test.cpp has it too."""
    scaled = x / (alpha + sigma)
    return 0.7 * torch.tanh(scaled) + 0.2 * torch.sin(3 * scaled.flip(-1))


def velocity_model(x, t):
    """A made-up velocity, t = 1 is data; samplers_test.cpp has it too."""
    return 0.8 * torch.sin(2 * x.flip(-1) + 3 * t) - 0.5 * x


def karras(steps, low=0.002, high=80.0, rho=7.0):
    ramp = torch.linspace(0, 1, steps, dtype=torch.float64)
    sigmas = (high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho
    return torch.cat([sigmas, sigmas.new_zeros(1)])


def by_k_diffusion(start, noise):
    sampling, sigmas = k_diffusion(), karras(STEPS)

    def model(x, sigma):
        return data_model(x, 1.0, sigma[0])

    def handed():
        draws = iter(noise)
        return lambda *_: next(draws)

    def run(name, **options):
        with mock.patch.object(torch, "randn_like", handed()):
            return getattr(sampling, name)(model, start * sigmas[0], sigmas, disable=True, **options)

    churn = dict(s_churn=20.0, s_tmin=0.05, s_tmax=50.0, s_noise=1.003)
    sde = [dict(eta=eta, s_noise=s_noise, solver_type=solver) for eta, s_noise, solver in
           ((1.0, 1.0, "midpoint"), (0.6, 1.1, "heun"), (0.0, 1.0, "midpoint"))]
    return {
        "sigmas": sigmas,
        "euler": run("sample_euler"),
        "heun": run("sample_heun"),
        "heun_edm": {**churn, "end": run("sample_heun", **churn)},
        "dpmpp_2m": run("sample_dpmpp_2m"),
        "dpmpp_2m_sde": [{**options, "end": run("sample_dpmpp_2m_sde", noise_sampler=handed(), **options)} for options in sde],
    }


def multistep(scheduler, start, ratios):
    """A whole trajectory of a diffusers scheduler over the levels sigma / alpha, where alpha^2 + sigma^2 = 1."""
    scheduler.set_timesteps(len(ratios) - 1)
    scheduler.sigmas = ratios
    scheduler.set_begin_index(0)
    x = start
    for i in range(len(ratios) - 1):
        alpha = 1 / (ratios[i] ** 2 + 1) ** 0.5
        x = scheduler.step(data_model(x, alpha, ratios[i] * alpha), scheduler.timesteps[i], x).prev_sample
    return x


def dpm_solver(start, ratios):
    """DPM-Solver++(2M) by the updates of diffusers' class, whose own step rounds to float32."""
    scheduler = DPMSolverMultistepScheduler(prediction_type="sample")
    scheduler.set_timesteps(len(ratios) - 1)
    scheduler.sigmas = ratios
    x, outputs = start, [None, None]
    for i in range(len(ratios) - 1):
        scheduler._step_index = i
        alpha = 1 / (ratios[i] ** 2 + 1) ** 0.5
        outputs = [outputs[1], data_model(x, alpha, ratios[i] * alpha)]
        if i == 0 or ratios[i + 1] == 0:
            x = scheduler.dpm_solver_first_order_update(outputs[1], sample=x)
        else:
            x = scheduler.multistep_dpm_solver_second_order_update(outputs, sample=x)
    return x


def by_diffusers(start):
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    times, at = [], 0.0
    for _ in range(STEPS):
        times.append(round(at))
        at += 999 / (STEPS - 1)
    abar = torch.cumprod(1 - betas, 0)[times].flip(0)
    chain = torch.cat([((1 - abar) / abar).sqrt(), torch.zeros(1, dtype=torch.float64)])
    t = torch.linspace(0, 1 - 1e-3, STEPS + 1, dtype=torch.float64)
    log_alpha = -0.25 * (1 - t) ** 2 * 19.9 - 0.05 * (1 - t)
    path = torch.sqrt(-torch.expm1(2 * log_alpha)) / torch.exp(log_alpha)
    common = dict(prediction_type="sample", thresholding=False)
    cases = []
    for name, ratios in (("iddpm", chain), ("vp", path)):
        for order in (1, 2, 3):
            for variant in ("bh1", "bh2") if name == "vp" else ("bh2",):  # their bh1 makes a nan of the step to sigma = 0
                scheduler = UniPCMultistepScheduler(solver_order=order, solver_type=variant, **common)
                cases.append({"scheduler": name, "sampler": "unipc", "order": order, "variant": variant,
                              "end": multistep(scheduler, start, ratios)})
        cases.append({"scheduler": name, "sampler": "dpmpp_2m", "end": dpm_solver(start, ratios)})
    return cases


def by_torchdiffeq(start):
    torchdiffeq = reference("torchdiffeq")
    cases = []
    for rtol, atol in ((1e-3, 1e-6), (1e-6, 1e-9)):
        for one in start:
            counts = {"steps": 0, "rejected": 0}

            class Velocity(torch.nn.Module):
                def forward(self, t, x):
                    return velocity_model(x, t)

                def callback_accept_step(self, *_):
                    counts["steps"] += 1

                def callback_reject_step(self, *_):
                    counts["rejected"] += 1

            ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
            x = torchdiffeq.odeint(Velocity(), one[None], ends, rtol=rtol, atol=atol, method="dopri5", options={"step_t": ends[1:]})
            cases.append({"rtol": rtol, "atol": atol, **counts, "start": one[None], "end": x[-1]})
    return cases


def by_flow_matching(start):
    solver = reference("flow_matching.solver").ODESolver(lambda x, t: velocity_model(x, t))
    grid = torch.linspace(0, 1, STEPS + 1, dtype=torch.float64)
    return {ours: solver.sample(x_init=start, step_size=None, method=theirs, time_grid=grid)
            for ours, theirs in (("euler", "euler"), ("rk4", "rk4"))}


def guided(guider, one, other, step, steps):
    guider.set_state(step=step, num_inference_steps=steps, timestep=None)
    return guider.forward(one, other)[0]


def by_guiders():
    """diffusers' guiders on given predictions; `start` and `stop` are shares of ten steps."""
    one, other = (torch.from_numpy(RANDOM.standard_normal(SHAPE)) for _ in range(2))
    cfg = [dict(guidance_scale=4.0), dict(guidance_scale=3.0, use_original_formulation=True),
           dict(guidance_scale=6.0, guidance_rescale=0.7), dict(guidance_scale=5.0, guidance_rescale=0.4, start=0.2, stop=0.7)]
    auto = dict(guidance_scale=2.5, start=0.1, stop=0.8)
    return {
        "conditional": one,
        "other": other,
        "cfg": [{**options, "steps": [guided(ClassifierFreeGuidance(**options), one, other, i, 10) for i in range(10)]}
                for options in cfg],
        "autoguidance": [{**auto, "steps": [guided(AutoGuidance(**auto, auto_guidance_layers=[0], dropout=1.0), one, other, i, 10)
                                            for i in range(10)]}],
    }


def make():
    start, noise = (torch.from_numpy(RANDOM.standard_normal(shape)) for shape in (SHAPE, (STEPS, *SHAPE)))
    return {
        "start": start,
        "noise": noise,
        "k_diffusion": by_k_diffusion(start, noise),
        "diffusers": by_diffusers(start),
        "torchdiffeq": by_torchdiffeq(start),
        "flow_matching": by_flow_matching(start),
        "guiders": by_guiders(),
    }


def main():
    golden = plain(make())
    if "--write" in sys.argv:
        rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
        FILE.write_text("{\n" + rows + "\n}\n")
        return 0
    found = list(differences(json.loads(FILE.read_text()), golden))
    print("\n".join(found[:20]) or f"{FILE.name}: as made now")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
