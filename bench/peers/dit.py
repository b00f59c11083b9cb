"""DiT and its training step in plain PyTorch, as a peer of `ditto bench step`.

Written from the definition: W. Peebles and S. Xie, "Scalable diffusion models with transformers", 2023
(arXiv:2212.09748): adaLN-Zero blocks. The step is what `ditto train` does: corrupt, forward, loss, backward, norm of
the gradients, AdamW, EMA. Data lie in memory: reading them costs this peer nothing.

Run as a program it does one first step of a workload on the CPU and says so, for start-up times: dit.py WORKLOAD
THREADS
"""
import contextlib
import dataclasses
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Workload:
    channels: int
    size: int
    classes: int
    depth: int
    width: int
    heads: int
    patch: int
    batch: int
    loss: str  # "hybrid": epsilon and a learned variance in 1000 steps; "flow": rectified flow
    lr: float
    decay: float

    @property
    def out_channels(self):
        return self.channels * (2 if self.loss == "hybrid" else 1)


DIT_S_2 = Workload(4, 32, 1000, 12, 384, 6, 2, 8, "hybrid", 1e-4, 0.9999)
DIGITS = Workload(1, 8, 10, 6, 128, 4, 2, 128, "flow", 1e-3, 0.995)
DIT_B_2 = dataclasses.replace(DIT_S_2, width=768, heads=12, batch=4)
DIT_XL_2 = dataclasses.replace(DIT_S_2, depth=28, width=1152, heads=16, batch=32)
WORKLOADS = {"dit_s_2": DIT_S_2, "dit_s_2_1024": dataclasses.replace(DIT_S_2, size=64, batch=2), "dit_b_2": DIT_B_2,
             "dit_s_2_128": dataclasses.replace(DIT_S_2, batch=128), "dit_b_2_128": dataclasses.replace(DIT_B_2, batch=128),
             "dit_xl_2_32": DIT_XL_2, **{f"dit_xl_2_{batch}": dataclasses.replace(DIT_XL_2, batch=batch) for batch in (128, 192, 256)},
             "digits_16": dataclasses.replace(DIGITS, batch=16), "digits_128": DIGITS}


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def attend_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def attend_products(q, k, v):
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return scores.softmax(dim=-1) @ v


ATTENTION = {"sdpa": attend_sdpa, "products": attend_products}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attend = attend_sdpa
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(self.attend(q, k, v).transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x, c):
        m = self.modulation(F.silu(c)).chunk(6, dim=1)
        x = x + m[2].unsqueeze(1) * self.attention(modulate(self.norm1(x), m[0], m[1]))
        h = F.gelu(self.up(modulate(self.norm2(x), m[3], m[4])), approximate="tanh")
        return x + m[5].unsqueeze(1) * self.down(h)


def positions(side, width):
    place = torch.arange(side, dtype=torch.float64)
    frequency = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    one = torch.cat([torch.sin(place[:, None] * frequency), torch.cos(place[:, None] * frequency)], 1)
    column = one[None].expand(side, -1, -1)
    row = one[:, None].expand(-1, side, -1)
    return torch.cat([column, row], 2).reshape(1, side * side, width).float()


class DiT(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.patch, self.side = w.patch, w.size // w.patch
        self.patches = nn.Conv2d(w.channels, w.width, w.patch, w.patch)
        self.register_buffer("positions", positions(self.side, w.width))
        self.time = nn.Sequential(nn.Linear(256, w.width), nn.SiLU(), nn.Linear(w.width, w.width))
        self.label = nn.Embedding(w.classes + 1, w.width)
        self.blocks = nn.ModuleList(Block(w.width, w.heads) for _ in range(w.depth))
        self.norm = nn.LayerNorm(w.width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(w.width, 2 * w.width)
        self.out = nn.Linear(w.width, w.patch * w.patch * w.out_channels)
        for layer in [b.modulation for b in self.blocks] + [self.modulation, self.out]:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, t, label):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        frequency = torch.exp(-math.log(10000.0) / 128 * torch.arange(128, dtype=torch.float32, device=t.device))
        angle = t.float()[:, None] * frequency
        c = self.time(torch.cat([angle.cos(), angle.sin()], 1)) + self.label(label)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.modulation(F.silu(c)).chunk(2, dim=1)
        y = self.out(modulate(self.norm(x), shift, scale))
        y = y.reshape(x.shape[0], self.side, self.side, self.patch, self.patch, -1)
        return torch.einsum("nhwpqc->nchpwq", y).reshape(x.shape[0], -1, self.side * self.patch, self.side * self.patch)


class HybridLoss:
    """Epsilon's squared error and the variational bound in bits (arXiv:2102.09672, without the factor 0.001)."""

    def __init__(self):
        beta = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
        abar = (1 - beta).cumprod(0)
        before = torch.cat([torch.ones(1, dtype=torch.float64), abar[:-1]])
        variance = beta * (1 - before) / (1 - abar)
        self.small = torch.cat([variance[1:2], variance[1:]]).log().float()
        self.large = beta.log().float()
        self.alpha, self.sigma = abar.sqrt().float(), (1 - abar).sqrt().float()
        self.mean_clean = (beta * before.sqrt() / (1 - abar)).float()
        self.mean_x = ((1 - before) * (1 - beta).sqrt() / (1 - abar)).float()

    def corrupt(self, clean, noise):
        t = torch.randint(0, 1000, (clean.shape[0],), device=clean.device)
        at = lambda table: table[t].view(-1, 1, 1, 1)
        return at(self.alpha) * clean + at(self.sigma) * noise, t, t

    def __call__(self, prediction, clean, noise, x, t):
        at = lambda table: table[t].view(-1, 1, 1, 1)
        epsilon, fraction = prediction.float().chunk(2, dim=1)
        mse = (noise - epsilon).square().flatten(1).mean(1)
        large, small = at(self.large), at(self.small)
        fraction = (fraction + 1) / 2
        log_variance = fraction * large + (1 - fraction) * small
        guess = (x - at(self.sigma) * epsilon.detach()) / at(self.alpha)
        true_mean = at(self.mean_clean) * clean + at(self.mean_x) * x
        mean = at(self.mean_clean) * guess + at(self.mean_x) * x
        kl = 0.5 * (log_variance - small - 1 + (small - log_variance).exp()
                    + (true_mean - mean).square() * (-log_variance).exp())
        cdf = lambda z: 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        width = (-0.5 * log_variance).exp()
        upper, lower = cdf(width * (clean - mean + 1 / 255)), cdf(width * (clean - mean - 1 / 255))
        mass = torch.where(clean < -0.999, upper, torch.where(clean > 0.999, 1 - lower, upper - lower))
        nll = -mass.clamp_min(1e-12).log()
        vb = torch.where(t == 0, nll.flatten(1).mean(1), kl.flatten(1).mean(1)) / math.log(2)
        return (mse + vb).mean()


class FlowLoss:
    """Rectified flow with logit-normal times (arXiv:2403.03206): x = (1 - t) clean + t noise, target noise - clean."""

    def corrupt(self, clean, noise):
        t = torch.randn(clean.shape[0], device=clean.device).sigmoid()
        s = t.view(-1, 1, 1, 1)
        return (1 - s) * clean + s * noise, 1000 * t, t

    def __call__(self, prediction, clean, noise, x, t):
        return (prediction.float() - (noise - clean)).square().mean()


class Trainer:
    """A model with its optimizer and average; `step` can be taken in any setting, one after the other."""

    def __init__(self, workload, device="cpu"):
        torch.manual_seed(0)
        self.w, self.device = workload, device
        self.model = DiT(workload).to(device)
        self.loss = HybridLoss() if workload.loss == "hybrid" else FlowLoss()
        for name, table in list(vars(self.loss).items()):
            setattr(self.loss, name, table.to(device))
        self.parameters = list(self.model.parameters())
        self.average = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=workload.lr, weight_decay=0.0, fused=True)
        self.pictures = torch.randn(1024, workload.channels, workload.size, workload.size, device=device)
        self.labels = torch.randint(0, workload.classes, (1024,), device=device)
        self.compiled = {}

    def count(self):
        return sum(p.numel() for p in self.parameters)

    def network(self, attention, compiled):
        for block in self.model.blocks:
            block.attend = ATTENTION[attention]
        if not compiled:
            return self.model
        if attention not in self.compiled:  # torch.compile tells the kinds of attention apart by its guards
            self.compiled[attention] = torch.compile(self.model)
        return self.compiled[attention]

    def step(self, attention, precision, compiled=False):
        network = self.network(attention, compiled)
        chosen = torch.randint(0, 1024, (self.w.batch,), device=self.device)
        clean, label = self.pictures[chosen], self.labels[chosen]
        label = torch.where(torch.rand(self.w.batch, device=self.device) < 0.1, self.w.classes, label)
        noise = torch.randn_like(clean)
        x, seen_time, t = self.loss.corrupt(clean, noise)
        bf16 = torch.autocast(self.device, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
        with bf16:
            prediction = network(x, seen_time, label)
        loss = self.loss(prediction, clean, noise, x, t)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters], foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - self.w.decay)
        return loss.item(), norm.item()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    Trainer(WORKLOADS[sys.argv[1]]).step("sdpa", "fp32")
    print("step 1", flush=True)
