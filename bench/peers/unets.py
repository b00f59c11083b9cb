"""The training step of a UNet in PyTorch, of which sd.py and imagen.py make the model: one process a measurement, so that its memory is
that of one.

    sd.py time PRECISION SETTING WARMUP STEPS THREADS    seconds of steps, and the model's numbers
    sd.py train PRECISION SETTING STEPS THREADS          takes steps, for who counts memory
    sd.py rates THREADS                                  of products, and of convolutions of such maps

SETTING is "channels first" or "channels last", with ", compiled" or ", checkpointed" behind it. The step is what `ditto train` does of
the recipes beside bench/unet.py: corrupt, forward, loss, backward, norm of the gradients, AdamW, EMA; in bf16 by autocast over fp32 weights.
"""
import contextlib
import json
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Trainer:
    """`made(checkpointed)` is the model, `predicted(network, x, t, text)` its prediction. `sides`: of a sample, [C, H, W]; `text`: [S, E]."""

    def __init__(self, peer, setting):
        torch.manual_seed(0)
        self.peer = peer
        self.maps = torch.channels_last if setting.startswith("channels last") else torch.contiguous_format
        self.model = peer.made("checkpointed" in setting).train().to(memory_format=self.maps)
        self.network = torch.compile(self.model) if "compiled" in setting else self.model
        self.parameters = list(self.model.parameters())
        self.average = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, weight_decay=0.0, fused=True)
        self.pictures, self.texts = torch.randn(16, *peer.SIDES), torch.randn(16, *peer.TEXT)

    def count(self):
        return sum(p.numel() for p in self.parameters)

    def step(self, precision):
        chosen = torch.randint(0, len(self.pictures), (self.peer.BATCH,))
        clean, text = self.pictures[chosen], self.texts[chosen]
        noise = torch.randn_like(clean)
        t = torch.randn(self.peer.BATCH).sigmoid()  # rectified flow, arXiv:2403.03206
        s = t.view(-1, 1, 1, 1)
        x = ((1 - s) * clean + s * noise).contiguous(memory_format=self.maps)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext():
            prediction = self.peer.predicted(self.network, x, 1000 * t, text)
        loss = (prediction.float() - (noise - clean)).square().mean()
        del prediction
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters], foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - 0.9999)
        return loss.item(), norm.item()


def timed(peer, precision, setting, warmup, steps, threads):
    torch.set_num_threads(threads)
    trainer, seconds = Trainer(peer, setting), []
    for i in range(warmup + steps):
        began = time.perf_counter()
        trainer.step(precision)
        if i >= warmup:
            seconds.append(time.perf_counter() - began)
    return {"median_s": statistics.median(seconds), "parameters": trainer.count(), "batch": peer.BATCH, "versions": peer.versions()}


def trained(peer, precision, setting, steps, threads):
    torch.set_num_threads(threads)
    trainer = Trainer(peer, setting)
    for _ in range(steps):
        trainer.optimizer.zero_grad(set_to_none=True)
        trainer.step(precision)
    return {}


def main(peer):
    mode, *words = sys.argv[1:]
    if mode == "rates":
        from encoders import rates
        found = rates(int(words[0]), peer.MAPS, peer.BATCH)
    elif mode == "time":
        found = timed(peer, *words[:2], *map(int, words[2:]))
    else:
        found = trained(peer, *words[:2], *map(int, words[2:]))
    print(json.dumps(found))
