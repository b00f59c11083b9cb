"""dit_text, st_dit and dit_moe in plain PyTorch, written from their papers, not from our code: attention in space and
in time is attention of all tokens under a mask, patches are cut out one by one, routing is a loop over samples and
experts."""

import math

import torch
from torch.nn import functional as F


class Plain:
    """The three models from their parameters by name. Tokens are [B, T, D]; places [T, 3] are frame, row and column."""

    def __init__(self, case, values, time_features):
        self.case, self.o, self.p, self.balance = case, dict(kv_heads=0, adaln="zero") | case["options"], {}, 0
        self.values = values  # (name, shape) -> the parameter
        self.time_features = time_features  # of times [B]: [B, 256], float32
        self.K = self.o["width"] // self.o["heads"]
        self.M = self.o["kv_heads"] or self.o["heads"]
        self.smallest_margin = math.inf

    def leaf(self, name, *shape):
        if name not in self.p:
            self.p[name] = self.values(name, list(shape)).requires_grad_()
        return self.p[name]

    def linear(self, name, x, out):
        return F.linear(x, self.leaf(name + ".weight", out, x.shape[-1]), self.leaf(name + ".bias", out))

    def norm(self, x):
        return F.layer_norm(x, x.shape[-1:], eps=1e-6)

    def heads_norm(self, name, x):
        if not self.o.get("qk_norm"):
            return x
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.leaf(name + ".weight", self.K)

    def attend(self, q, k, v, allowed):
        """q [B, T, N, K]; allowed [B or 1, T, S]."""
        out = []
        for n in range(q.shape[2]):
            m = n * self.M // self.o["heads"]
            scores = q[:, :, n] @ k[:, :, m].transpose(1, 2) / math.sqrt(self.K)
            out.append(scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v[:, :, m])
        return torch.cat(out, -1)

    def turn(self, x, angles):
        """Pairs (i, i + K/2) as complex numbers, turned by angles [T, K/2]."""
        first, second = x.chunk(2, -1)
        turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
        return torch.cat([turned.real, turned.imag], -1)

    def self_attention(self, name, x, allowed, angles):
        N, M, K = self.o["heads"], self.M, self.K
        q, k, v = self.linear(name + ".qkv", x, (N + 2 * M) * K).split([N * K, M * K, M * K], -1)
        q, k, v = (part.unflatten(-1, (-1, K)) for part in (q, k, v))
        q, k = self.heads_norm(name + ".q_norm", q), self.heads_norm(name + ".k_norm", k)
        if angles is not None:
            q, k = self.turn(q, angles), self.turn(k, angles)
        return self.linear(name + ".proj", self.attend(q, k, v, allowed), x.shape[-1])

    def cross_attention(self, name, x):
        q = self.linear(name + ".q", x, x.shape[-1]).unflatten(-1, (-1, self.K))
        k, v = self.linear(name + ".kv", self.text, 2 * self.M * self.K).unflatten(-1, (2, self.M, self.K)).unbind(2)
        q, k = self.heads_norm(name + ".q_norm", q), self.heads_norm(name + ".k_norm", k)
        return self.linear(name + ".proj", self.attend(q, k, v, self.text_mask.unsqueeze(1)), x.shape[-1])

    def mlp(self, name, x, ratio=4):
        hidden = F.gelu(self.linear(name + ".up", x, ratio * x.shape[-1]), approximate="tanh")
        return self.linear(name + ".down", hidden, x.shape[-1])

    def modulations(self, block, count):
        D = self.o["width"]
        if self.o["adaln"] == "single":
            flat = self.shared.unflatten(-1, (3 * count, D)) + self.leaf(block + "modulation.table", 3 * count, D)
        else:
            flat = self.linear(block + "modulation.map", F.silu(self.cond), 3 * count * D).unflatten(-1, (-1, D))
        return flat.unflatten(1, (count, 3)).unsqueeze(3)  # B, count, 3, 1, D

    def modulated(self, x, rows, f):
        shift, scale, gate = rows.unbind(1)
        return x + gate * f(self.norm(x) * (1 + scale) + shift)

    def condition(self, batch, shared_parts):
        D = self.o["width"]
        time = self.linear("time.in", self.time_features(batch["t"]).double(), D)
        self.cond = self.linear("time.out", F.silu(time), D)
        if "label" in batch:
            self.cond = self.cond + self.leaf("label.table", self.case["classes"] + 1, D)[batch["label"]]
        if self.o["adaln"] == "single":
            self.shared = self.linear("modulation.map", F.silu(self.cond), 3 * shared_parts * D)
        if "text" in batch:
            is_null = ~batch["text_mask"].any(1, keepdim=True)
            text = torch.where(is_null.unsqueeze(-1), self.leaf("text.null", self.case["text_width"]), batch["text"])
            self.text = self.linear("text.out", F.gelu(self.linear("text.in", text, D), approximate="tanh"), D)
            self.text_mask = batch["text_mask"] | is_null

    def tokens(self, x):
        """x [B, C, F, H, W], patch by patch: a loop over places, and each patch flattened."""
        P, Q = self.o["patch"], self.o.get("patch_frames", 1)
        sizes = (x.shape[2] // Q, x.shape[3] // P, x.shape[4] // P)
        self.places = torch.cartesian_prod(*[torch.arange(size) for size in sizes])
        flat = [x[:, :, f * Q : f * Q + Q, r * P : r * P + P, c * P : c * P + P].flatten(1)
                for f, r, c in self.places.tolist()]
        return self.linear("patches.map", torch.stack(flat, 1), self.o["width"])

    def picture(self, y, like):
        P, Q, C = self.o["patch"], self.o.get("patch_frames", 1), self.case["out_channels"]
        out = torch.zeros(like.shape[0], C, *like.shape[2:], dtype=torch.float64)
        for i, (f, r, c) in enumerate(self.places.tolist()):
            patch = y[:, i].unflatten(-1, (Q, P, P, C)).permute(0, 4, 1, 2, 3)
            out[:, :, f * Q : f * Q + Q, r * P : r * P + P, c * P : c * P + P] = patch
        return out

    @staticmethod
    def sincos(places, width):
        angle = places.double().unsqueeze(1) / 10000 ** (torch.arange(width // 2, dtype=torch.float64) / (width / 2))
        return torch.cat([angle.sin(), angle.cos()], -1)

    def table(self):
        D = self.o["width"]
        return torch.cat([self.sincos(self.places[:, 2], D // 2), self.sincos(self.places[:, 1], D // 2)], -1)

    def angles(self, axes):
        """Pairs shared among the axes, the last taking what is left; as float32 numbers."""
        pairs, parts = self.K // 2, []
        for i, axis in enumerate(axes):
            share = pairs // len(axes) if i + 1 < len(axes) else pairs - pairs // len(axes) * (len(axes) - 1)
            frequency = 10000.0 ** (-torch.arange(share, dtype=torch.float64) / share)
            parts.append(self.places[:, axis].double().unsqueeze(1) * frequency)
        return torch.cat(parts, -1).float().double()

    def final(self, x):
        D = self.o["width"]
        if self.o["adaln"] == "single":
            both = self.cond.unsqueeze(1) + self.leaf("final.table", 2, D)
        else:
            both = self.linear("final.modulation", F.silu(self.cond), 2 * D).unflatten(-1, (2, D))
        shift, scale = both.unsqueeze(2).unbind(1)
        pixels = self.o["patch"] ** 2 * self.o.get("patch_frames", 1)
        return self.linear("final.out", self.norm(x) * (1 + scale) + shift, pixels * self.case["out_channels"])

    def dit_text(self, batch):
        self.condition(batch, 3 if self.o["cross"] == "modulated" else 2)
        pictures = batch["x"].unsqueeze(2)
        x, everywhere = self.tokens(pictures), torch.tensor([[[True]]])
        angles = self.angles([1, 2])
        for i in range(self.o["depth"]):
            b = f"blocks.{i}."
            m = self.modulations(b, 3)
            x = self.modulated(x, m[:, 0], lambda h: self.self_attention(b + "attn", h, everywhere, angles))
            x = self.modulated(x, m[:, 1], lambda h: self.cross_attention(b + "cross", h))
            x = self.modulated(x, m[:, 2], lambda h: self.mlp(b + "mlp", h))
        return self.picture(self.final(x), pictures).squeeze(2)

    def st_dit(self, batch):
        self.condition(batch, 4)
        x = self.tokens(batch["x"])
        frame, place = self.places[:, 0], self.places[:, 1] * 1000 + self.places[:, 2]
        in_frame, in_place = ((where == where.unsqueeze(1)).unsqueeze(0) for where in (frame, place))
        everywhere, angles = torch.ones_like(in_frame), self.angles([0, 1, 2])
        for i in range(self.o["depth"]):
            b = f"blocks.{i}."
            m = self.modulations(b, 4)
            x = self.modulated(x, m[:, 0], lambda h: self.self_attention(b + "spatial", h, in_frame, angles))
            x = self.modulated(x, m[:, 1], lambda h: self.self_attention(b + "full", h, everywhere, angles))
            x = x + self.cross_attention(b + "cross", x)
            x = self.modulated(x, m[:, 2], lambda h: self.self_attention(b + "temporal", h, in_place, angles))
            x = self.modulated(x, m[:, 3], lambda h: self.mlp(b + "mlp", h))
        return self.picture(self.final(x), batch["x"])

    def dit_moe(self, batch):
        self.condition(batch, 2)
        pictures = batch["x"].unsqueeze(2)
        x = self.tokens(pictures)
        x = x + self.table()
        for i in range(self.o["depth"]):
            b = f"blocks.{i}."
            m = self.modulations(b, 2)
            x = self.modulated(x, m[:, 0], lambda h: self.self_attention(b + "attn", h, torch.tensor([[[True]]]), None))
            has_experts = (i + 1) % self.o.get("moe_every", 1) == 0
            x = self.modulated(x, m[:, 1], lambda h: self.moe(b + "moe", h) if has_experts else self.mlp(b + "mlp", h))
        return self.picture(self.final(x), pictures).squeeze(2)

    def moe(self, name, x):
        probabilities = self.linear(name + ".router", x, self.o["experts"]).softmax(-1)
        y = torch.stack([self.sample_moe(name, h, p) for h, p in zip(x, probabilities)])
        if self.o.get("balance"):
            self.balance = self.balance + self.o["balance"] * torch.stack([self.switch_loss(p) for p in probabilities])
        return y + self.mlp(name + ".shared", x, self.o["shared_ratio"]) if "shared_ratio" in self.o else y

    def picked(self, p):
        """[T, E] bool of one sample, and how near a choice was to another."""
        k, E = self.o.get("top_k", 2), self.o["experts"]
        count, dim = (k * len(p) // E, 0) if self.o.get("router") == "expert_choice" else (k, 1)
        ordered = p.detach().sort(dim, descending=True).values
        margin = (ordered.narrow(dim, count - 1, 1) - ordered.narrow(dim, count, 1)).min().item()
        self.smallest_margin = min(self.smallest_margin, margin)
        return p >= ordered.narrow(dim, count - 1, 1)

    def sample_moe(self, name, h, p):
        D, E = h.shape[-1], self.o["experts"]
        up, up_bias = self.leaf(name + ".experts.up", E, 4 * D, D), self.leaf(name + ".experts.up_bias", E, 4 * D)
        down, down_bias = self.leaf(name + ".experts.down", E, D, 4 * D), self.leaf(name + ".experts.down_bias", E, D)
        weight = p * self.picked(p)
        if self.o.get("normalise"):
            weight = weight / weight.sum(1, keepdim=True)
        return sum(weight[:, e : e + 1] * F.linear(F.gelu(F.linear(h, up[e], up_bias[e]), approximate="tanh"),
                                                   down[e], down_bias[e]) for e in range(E))

    def switch_loss(self, p):
        share = self.picked(p).double().mean(0) / self.o.get("top_k", 2)
        return self.o["experts"] * (share * p.mean(0)).sum()
