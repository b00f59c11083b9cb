"""Makes foreign_*.pt and foreign_*.safetensors beside this file: weights of another project's, as PyTorch's users save them.

Run with the Python of ./dev peers. tests/unit/exchange/checkpoint_foreign_test.cpp knows the same formula.
"""
import argparse
import pathlib

import safetensors.torch
import torch

HERE = pathlib.Path(__file__).parent
SHAPES = {
    "proj.weight": (4, 3, 2, 2),
    "proj.bias": (4,),
    "attn.q.weight": (4, 4),
    "attn.k.weight": (4, 4),
    "attn.v.weight": (4, 4),
    "blocks.0.emb.weight": (5, 4),
    "blocks.1.emb.weight": (5, 4),
}


def value(name, shape, add=0.0):
    name = name.replace("blocks.1", "blocks.0")  # a copy
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + sum(name.encode())) / 16 + add).float().reshape(shape)


def weights(add=0.0):
    made = {name: value(name, shape, add) for name, shape in SHAPES.items()}
    made["pos_embed"] = torch.sin(torch.arange(8, dtype=torch.float64)).float().reshape(1, 2, 4)
    return made


# Strides as a trainer leaves them: a transposed view is saved as one.
model = weights()
model["attn.q.weight"] = model["attn.q.weight"].t().contiguous().t()
torch.save({"model": model, "ema": weights(0.5), "opt": {"state": {}, "param_groups": [{"lr": 1e-4}]},
            "args": argparse.Namespace(model="X")}, HERE / "foreign_nested.pt")
torch.save(weights(), HERE / "foreign_flat.pt")
torch.save({"module." + name: tensor.half() for name, tensor in weights().items()}, HERE / "foreign_wrapped_half.pt")
safetensors.torch.save_file(weights(), HERE / "foreign.safetensors")
