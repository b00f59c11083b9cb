"""Golden values of options at other values than their defaults, and the check that they are still what their peers give.

    option_values_test.py           compares tests/golden/option_values.json with values made now
    option_values_test.py --write   makes the file anew

The variance-preserving path is flow_matching's, EDM's preconditioning and grid and Flux's shift diffusers', Muon and Adafactor
torch.optim's. Of an optimizer the file has the weights and gradients that go in, too, float64 throughout.
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
from diffusers import EDMEulerScheduler, FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from flow_matching.path.scheduler import VPScheduler

FILE = pathlib.Path(__file__).with_name("option_values.json")
STEPS, LR = 5, 0.02


def vp(beta_min, beta_max):
    """1 is data there, as here."""
    t = torch.tensor([0.001, 0.2, 0.5, 0.9, 0.999], dtype=torch.float64)
    found = VPScheduler(beta_min, beta_max)(t)
    return {"beta_min": beta_min, "beta_max": beta_max, "t": t, "alpha": found.alpha_t, "sigma": found.sigma_t}


def edm(sigma_data, sigma_min, sigma_max, rho, steps=6):
    theirs = EDMEulerScheduler(sigma_data=sigma_data, sigma_min=sigma_min, sigma_max=sigma_max, rho=rho)
    sigma = torch.tensor([0.01, 0.3, 1.0, 7.0, 60.0], dtype=torch.float64)
    one, none = torch.ones_like(sigma), torch.zeros_like(sigma)
    grid = theirs._compute_karras_sigmas(torch.linspace(0, 1, steps, dtype=torch.float64))
    return {"options": {"sigma_data": sigma_data, "sigma_min": sigma_min, "sigma_max": sigma_max, "rho": rho}, "sigma": sigma,
            "c_in": theirs._get_conditioning_c_in(sigma), "c_skip": theirs.precondition_outputs(one, none, sigma),
            "c_out": theirs.precondition_outputs(none, one, sigma), "grid": torch.cat([grid, torch.zeros(1, dtype=torch.float64)])}


def flux(side, patch, base_tokens, max_tokens, base_shift, max_shift, steps=5):
    mu = calculate_shift((side // patch) ** 2, base_tokens, max_tokens, base_shift, max_shift)
    found = {"side": side, "options": {"shift_patch": patch, "base_tokens": base_tokens, "max_tokens": max_tokens,
                                       "base_shift": base_shift, "max_shift": max_shift}}
    for kind in ("exponential", "linear"):
        scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, time_shift_type=kind)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
        found[kind] = scheduler.sigmas
    return found


def moved(make, shapes):
    """What goes into an optimizer of torch.optim and what comes out after STEPS steps."""
    random = np.random.RandomState(11)
    normal = lambda shape: torch.from_numpy(random.standard_normal(shape).round(6))
    before = [normal(shape) for shape in shapes]
    gradients = [[normal(shape) for shape in shapes] for _ in range(STEPS)]
    parameters = [torch.nn.Parameter(weight.clone()) for weight in before]
    optimizer = make(parameters)
    for grads in gradients:
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad.clone()
        optimizer.step()
    return {"lr": LR, "before": before, "gradients": gradients, "after": [parameter.detach() for parameter in parameters]}


def muon(iterations):
    from torch.optim import _muon

    as_published = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = lambda self: self.clone()  # the same program in the weights' own dtype
    try:
        return moved(lambda p: torch.optim.Muon(p, lr=LR, weight_decay=0, ns_steps=iterations), [(7, 3), (3, 8)]) | {
            "plugin": "muon", "options": {"iterations": iterations}}
    finally:
        torch.Tensor.bfloat16 = as_published


def adafactor(least_scale, clip, decay):
    return moved(lambda p: torch.optim.Adafactor(p, lr=LR, beta2_decay=-decay, eps=(None, least_scale), d=clip, weight_decay=0,
                                                 foreach=False), [(7, 3), (5,)]) | {
        "plugin": "adafactor", "options": {"least_scale": least_scale, "clip": clip, "decay": decay}}


def make():
    return {"vp": [vp(0.05, 12.0), vp(0.3, 30.0)],
            "edm": [edm(0.25, 0.01, 20.0, 5.0), edm(1.5, 0.1, 160.0, 9.0)],
            "flux": [flux(32, 1, 512, 2048, 0.25, 1.5), flux(48, 4, 64, 1024, 0.6, 0.9)],
            "optimizers": [muon(3), muon(8), adafactor(3.0, 1.5, 0.5), adafactor(1e-3, 1.2, 0.9)]}


def plain(value):
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def differences(old, new, place):
    if isinstance(new, (dict, list)):
        if len(old) != len(new):
            yield f"{place}: {len(old)} values in the file, {len(new)} now"
            return
        for key in new if isinstance(new, dict) else range(len(new)):
            yield from differences(old[key], new[key], f"{place}.{key}")
    elif isinstance(new, str) and old != new or not isinstance(new, str) and not math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12):
        yield f"{place}: {old} in the file, {new} now"


def main():
    golden = plain(make())
    if "--write" in sys.argv:
        rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
        FILE.write_text("{\n" + rows + "\n}\n")
        return 0
    found = list(differences(json.loads(FILE.read_text()), golden, "golden"))
    print("\n".join(found[:20]) or f"{FILE.name}: as made now")
    return 1 if found else 0


sys.exit(main())
