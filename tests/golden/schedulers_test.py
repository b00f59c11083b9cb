"""Golden values of the schedules, and the check that they are still what the definitions and diffusers give.

    schedulers_test.py           compares tests/golden/schedulers.json with values made now
    schedulers_test.py --write   makes the file anew

Where diffusers has the quantity, diffusers makes it. Its tables are float32; they are set to the same formulas in float64, so
that definitions are compared and not roundings ("as_it_comes" keeps float32). The rest is written out here from the papers: DDPM
(arXiv:2006.11239), Improved DDPM (arXiv:2102.09672).
"""

import json
import math
import pathlib
import sys
from unittest import mock

import numpy as np
import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.schedulers import scheduling_ddpm
from diffusers.schedulers.scheduling_ddim import rescale_zero_terminal_snr
from diffusers.training_utils import compute_snr

FILE = pathlib.Path(__file__).with_name("schedulers.json")
SHAPE = (2, 2, 2, 3)
RANDOM = np.random.RandomState(7)
BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
ABAR = torch.cumprod(1 - BETAS, 0)


def normal(*shape):
    return torch.from_numpy(RANDOM.standard_normal(shape))


def model(x, t):
    """A made-up network [B, C, ...] -> [B, 2 C, ...]: epsilon, and the variance's place in -1 ... 1. schedulers_test.cpp has it too."""
    t = float(t)
    ripple = 0.2 * (1 - t / 1000) * torch.sin(2 * x.flip(-1) + t / 300)
    return torch.cat([math.tanh(t / 200 + 0.1) * x + ripple, 0.5 * torch.cos(3 * x + t / 100)], 1)


def flow_model(x, t):
    return 0.9 * x - 0.5 * torch.sin(2 * x.flip(-1) + float(t) / 500)


# --- the chain ---


def even_times(total, count):
    """Times 0 ... total - 1 as evenly as integers allow, by a running sum and Python's round (halves to even)."""
    times, at = [], 0.0
    for _ in range(count):
        times.append(round(at))
        at += (total - 1) / (count - 1)
    return times


def posterior(abar, abar_before):
    """DDPM, eqs. 6 and 7, of one step between any two times of the chain: mean = a x_0 + b x_t, variance, beta."""
    beta = 1 - abar / abar_before
    mean_clean = beta * abar_before.sqrt() / (1 - abar)
    mean_x = (1 - abar_before) * (1 - beta).sqrt() / (1 - abar)
    return mean_clean, mean_x, beta * (1 - abar_before) / (1 - abar), beta


def learned_steps(times, indices, x, prediction):
    """p(x_s | x_t) of the spaced chain with the variance interpolated in the log (Improved DDPM, eq. 15)."""
    abar = ABAR[times]
    before = torch.cat([torch.ones(1, dtype=torch.float64), abar[:-1]])
    mean_clean, mean_x, variance, beta = posterior(abar, before)
    variance[0] = variance[1]
    epsilon, v = prediction.chunk(2, 1)
    fraction = (v + 1) / 2
    out = []
    for i in indices:
        clean = (x - (1 - abar[i]).sqrt() * epsilon) / abar[i].sqrt()
        out.append(
            {
                "index": i,
                "mean": mean_clean[i] * clean + mean_x[i] * x,
                "log_variance": fraction * beta[i].log() + (1 - fraction) * variance[i].log(),
            }
        )
    return out


def fixed_steps(times, indices, kind):
    """diffusers' variance of these steps of the spaced chain."""
    scheduler = ddpm(len(times), kind)
    return [{"index": i, "variance": scheduler._get_variance(int(times[i]))} for i in indices]


# --- the hybrid loss ---


def cdf(x):
    """The tanh approximation of the normal distribution function, as in DiT's training code."""
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def vb_bits(clean, noise, t, prediction):
    """Per element: KL(q(x_s | x_t, x_0) || p(x_s | x_t)), and at t = 0 the likelihood of 1/127.5 wide bins (DDPM, eq. 13)."""
    before = ABAR[t - 1] if t > 0 else torch.ones((), dtype=torch.float64)
    mean_clean, mean_x, variance, beta = posterior(ABAR[t], before)
    if t == 0:
        variance = posterior(ABAR[1], ABAR[0])[2]
    x = ABAR[t].sqrt() * clean + (1 - ABAR[t]).sqrt() * noise
    epsilon, v = prediction.chunk(2, 0)
    guess = (x - (1 - ABAR[t]).sqrt() * epsilon) / ABAR[t].sqrt()
    fraction = (v + 1) / 2
    log_p = fraction * beta.log() + (1 - fraction) * variance.log()
    true_mean, mean = mean_clean * clean + mean_x * x, mean_clean * guess + mean_x * x
    if t > 0:
        q = torch.distributions.Normal(true_mean, variance.sqrt() * torch.ones_like(clean))
        p = torch.distributions.Normal(mean, (0.5 * log_p).exp())
        return torch.distributions.kl_divergence(q, p) / math.log(2)
    deviation = (0.5 * log_p).exp()
    upper, lower = cdf((clean - mean + 1 / 255) / deviation), cdf((clean - mean - 1 / 255) / deviation)
    mass = upper - lower
    mass[clean < -0.999] = upper[clean < -0.999]
    mass[clean > 0.999] = 1 - lower[clean > 0.999]
    return -torch.log2(mass.clamp(min=1e-12))


def hybrid_loss():
    times = [0, 0, 1, 2, 10, 250, 500, 999]
    clean = normal(len(times), 2, 2, 3).clamp(-1, 1)
    clean[0, 0, 0, 0], clean[0, 0, 0, 1], clean[1, 0, 0, 0] = -1, 1, 0.25
    noise = normal(len(times), 2, 2, 3)
    prediction = torch.cat([noise + 0.1 * normal(*noise.shape), 0.7 * normal(*noise.shape)], 1).requires_grad_()
    epsilon = prediction[:, :2]
    mse = (epsilon - noise).square().flatten(1).mean(1)
    frozen = torch.cat([epsilon.detach(), prediction[:, 2:]], 1)
    vb = torch.stack([vb_bits(clean[i], noise[i], t, frozen[i]).mean() for i, t in enumerate(times)])
    (mse + vb).sum().backward()
    return {
        "t": times,
        "clean": clean,
        "noise": noise,
        "prediction": prediction.detach(),
        "mse": mse.detach(),
        "vb": vb.detach(),
        "gradient": prediction.grad,
    }


# --- whole trajectories ---


def widened(scheduler):
    scheduler.betas, scheduler.alphas, scheduler.alphas_cumprod = BETAS, 1 - BETAS, ABAR
    scheduler.one = scheduler.final_alpha_cumprod = torch.ones((), dtype=torch.float64)
    return scheduler


def ddpm(steps, variance, **options):
    settings = dict(clip_sample=False, timestep_spacing="linspace", **options)
    scheduler = widened(DDPMScheduler(variance_type=variance, **settings))
    scheduler.set_timesteps(steps)
    return scheduler


def ancestral(start, noise, variance, **options):
    scheduler, x = ddpm(len(noise), variance, **options), start
    for i, t in enumerate(scheduler.timesteps):
        prediction = model(x, t) if variance == "learned_range" else model(x, t)[:, : x.shape[1]]
        with mock.patch.object(scheduling_ddpm, "randn_tensor", lambda *_, **__: noise[i]):
            x = scheduler.step(prediction, t, x).prev_sample
    return x


def ddim(start, noise, eta, widen):
    scheduler = DDIMScheduler(clip_sample=False, set_alpha_to_one=True, timestep_spacing="leading")
    scheduler = widen(scheduler)
    scheduler.set_timesteps(len(noise))
    x = start
    for i, t in enumerate(scheduler.timesteps):
        epsilon = model(x, t)[:, : x.shape[1]]
        x = scheduler.step(epsilon, int(t), x, eta=eta, variance_noise=noise[i]).prev_sample
    return {"times": scheduler.timesteps, "end": x}


def flow(start, steps, shift, grid):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    if grid == "uniform":  # as the Flux pipeline asks
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps))
    else:  # as the Stable Diffusion 3 pipeline asks
        scheduler.set_timesteps(steps)
    x = start.float()
    for t in scheduler.timesteps:
        x = scheduler.step(flow_model(x, t), t, x).prev_sample
    return {"shift": shift, "grid": grid, "steps": steps, "sigmas": scheduler.sigmas, "end": x}


def make():
    x, prediction = normal(*SHAPE), normal(2, 4, 2, 3)
    start, noise = normal(*SHAPE), normal(50, *SHAPE)
    times_250 = even_times(1000, 250)
    picked = [0, 1, 2, 100, 249]
    leading = DDIMScheduler(timestep_spacing="leading")
    leading.set_timesteps(50)
    return {
        "betas": BETAS[[0, 1, 500, 999]],
        "abar": ABAR[[0, 1, 500, 999]],
        "even": {str(n): even_times(1000, n) for n in (2, 7, 50, 250, 1000)},
        "even_diffusers": {str(n): ddpm(n, "fixed_small").timesteps.flip(0) for n in (2, 7, 50, 250, 1000)},
        "ddim50": leading.timesteps.flip(0),
        "step": {
            "x": x,
            "prediction": prediction,
            "learned_range": learned_steps(times_250, picked, x, prediction),
            "fixed_small": fixed_steps(times_250, picked[1:], "fixed_small"),
            "fixed_large": fixed_steps(times_250, picked[1:], "fixed_large"),
        },
        "hybrid": hybrid_loss(),
        "trajectory": {
            "start": start,
            "noise": noise,
            "ancestral": {v: ancestral(start, noise, v) for v in ("learned_range", "fixed_small", "fixed_large")},
            "ddim": {str(eta): ddim(start, noise, eta, widened) for eta in (0.0, 0.6, 1.0)},
            "ddim_as_it_comes": ddim(start, noise, 0.0, lambda scheduler: scheduler),
            "flow": [flow(start, 20, shift, grid) for shift in (1.0, 3.0) for grid in ("uniform", "diffusers")],
            "predicted": {
                ours: ancestral(start, noise, "fixed_small", prediction_type=theirs)
                for ours, theirs in (("v", "v_prediction"), ("x0", "sample"))
            },
            "limits": limits(start, noise),
        },
        "chains": chains(),
        "min_snr": min_snr(),
        "leading": [leading_steps(start, steps, prediction, alpha) for steps, prediction, alpha in
                    ((50, "epsilon", False), (30, "v_prediction", False), (7, "epsilon", True), (334, "epsilon", False))],
        "shifted_by_size": [shifted_by_size(tokens) for tokens in (256, 1024, 4096)],
    }


# --- what later systems train with ---


def chains():
    """alpha^2 at four times of other betas, in diffusers' float32, and of betas rescaled to no signal at the end, in float64."""
    picked = [0, 1, 500, 998, 999]
    theirs = {"scaled_linear": "scaled_linear", "sigmoid": "sigmoid", "cosine": "squaredcos_cap_v2"}
    found = {ours: DDPMScheduler(beta_schedule=name).alphas_cumprod[picked] for ours, name in theirs.items()}
    rescaled = rescale_zero_terminal_snr(torch.linspace(1e-4**0.5, 0.02**0.5, 1000, dtype=torch.float64) ** 2)
    return {"times": picked, **found, "zero_terminal_snr": torch.cumprod(1 - rescaled, 0)[picked]}


def min_snr(gamma=5.0):
    """As diffusers' training scripts weigh, by prediction."""
    times = torch.tensor([0, 10, 100, 300, 600, 999])
    snr = compute_snr(widened(DDPMScheduler()), times)
    least = snr.clamp(max=gamma)
    return {"times": times, "epsilon": least / snr, "v": least / (snr + 1), "x0": least}


def limits(start, noise):
    """DDPM whose estimates of the data are thresholded or clipped; the made-up network's leave -1 ... 1 at every step."""
    kept, dynamic = noise[:10], dict(thresholding=True, dynamic_thresholding_ratio=0.9, sample_max_value=1e9)
    return {"steps": len(kept), "dynamic": ancestral(start, kept, "fixed_small", **dynamic),
            "static": ancestral(start, kept, "fixed_small", thresholding=True, sample_max_value=1.0)}


def leading_steps(start, steps, prediction, alpha_to_one):
    """A whole trajectory of Stable Diffusion's scheduler_config.json, also of steps that do not divide 1000."""
    scheduler = DDIMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, clip_sample=False, steps_offset=1,
                              set_alpha_to_one=alpha_to_one, prediction_type=prediction, timestep_spacing="leading")
    scheduler.betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    scheduler.alphas_cumprod = torch.cumprod(1 - scheduler.betas, 0)
    scheduler.final_alpha_cumprod = torch.ones((), dtype=torch.float64) if alpha_to_one else scheduler.alphas_cumprod[0]
    scheduler.set_timesteps(steps)
    x = start
    for t in scheduler.timesteps:
        x = scheduler.step(model(x, t)[:, : x.shape[1]], int(t), x).prev_sample
    return {"steps": steps, "prediction": prediction, "set_alpha_to_one": alpha_to_one, "times": scheduler.timesteps, "end": x}


def shifted_by_size(tokens, steps=8):
    """The levels of Flux's pipeline for a picture of so many tokens."""
    found = {}
    for kind in ("exponential", "linear"):
        scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, time_shift_type=kind)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=calculate_shift(tokens))
        found[kind] = scheduler.sigmas
    return {"tokens": tokens, "steps": steps, **found}


def plain(value):
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def differences(old, new, place=""):
    if isinstance(new, dict):
        if set(old) != set(new):
            yield f"{place}: keys {sorted(old)} in the file, {sorted(new)} now"
            return
        for key in new:
            yield from differences(old[key], new[key], f"{place}.{key}")
    elif isinstance(new, list):
        if len(old) != len(new):
            yield f"{place}: {len(old)} values in the file, {len(new)} now"
            return
        for i, (a, b) in enumerate(zip(old, new)):
            yield from differences(a, b, f"{place}[{i}]")
    elif isinstance(new, (int, float)):
        if not math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-12):
            yield f"{place}: {old} in the file, {new} now"
    elif old != new:
        yield f"{place}: {old} in the file, {new} now"


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
