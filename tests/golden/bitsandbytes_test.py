"""Golden runs of bitsandbytes' own optimizers, AdamW8bit and Lion, on the CPU, and the check that they are still what it gives.

    bitsandbytes_test.py           compares tests/golden/bitsandbytes.json with runs made now
    bitsandbytes_test.py --write   makes the file anew

bitsandbytes' blocks are 256 numbers of the flattened tensor, Ditto's 64 of its last dim. Here each of Ditto's blocks is a row of 256
with zeros behind it, which learn nothing and change no block's largest number: both code the same numbers by the same scale. Not
always as the same code: its quantizer takes the neighbour of the nearest value for some 3 of 1,000 numbers, which then part.
DITTO_PEERS_BITSANDBYTES: the environment's Python; without it the one that ./dev peers makes.
"""

import json
import os
import pathlib
import sys

from optimizers_test import CODED, LR, SHAPES, STEPS, differences, dynamic_map, gradients, plain, weights

FILE = pathlib.Path(__file__).with_name("bitsandbytes.json")
ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = pathlib.Path(os.environ.get("DITTO_PEERS_BITSANDBYTES", ROOT / ".deps/peers_bitsandbytes/bin/python"))
OURS, THEIRS = 64, 256

sys.path += map(str, PYTHON.parents[1].glob("lib/python3*/site-packages"))
try:
    import bitsandbytes
except ImportError:
    print("not run: comparison with bitsandbytes: it is not installed (./dev peers)")
    sys.exit(77)
import torch  # noqa: E402


def apart(x):
    """Each block of 64 in a row of 256."""
    return torch.cat([torch.nn.functional.pad(block, (0, THEIRS - block.shape[1])) for block in x.split(OURS, 1)], 1)


def together(x, width):
    return torch.cat([x[:, at * THEIRS // OURS:][:, :min(OURS, width - at)] for at in range(0, width, OURS)], 1)


def run(make, shapes, large=(), steps=STEPS):
    """The weights after so many steps; those of `large` are spread as above."""
    spread = lambda name, x: apart(x) if name in large else x.clone()
    parameters = {name: torch.nn.Parameter(spread(name, w)) for name, w in weights(shapes, torch.float32).items()}
    optimizer = make(list(parameters.values()))
    for step in range(steps):
        for name, grad in gradients(shapes, step, torch.float32).items():
            parameters[name].grad = spread(name, grad)
        optimizer.step()
    for name in large:
        assert optimizer.state[parameters[name]]["state1"].dtype == torch.uint8, f"{name} is not coded"
    return {name: together(p.detach(), shapes[name][1]) if name in large else p.detach() for name, p in parameters.items()}


def make():
    for signed in (True, False):
        assert torch.equal(dynamic_map(signed), bitsandbytes.functional.create_dynamic_map(signed)), "another map than bitsandbytes'"
    adamw8bit = lambda p: bitsandbytes.optim.AdamW8bit(p, lr=LR, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    return {
        "first_step": run(adamw8bit, CODED, ["large"], 1),
        "adamw8bit": run(adamw8bit, CODED, ["large"]),
        "lion": run(lambda p: bitsandbytes.optim.Lion(p, lr=LR, betas=(0.9, 0.99), weight_decay=0.1), SHAPES),
    }


def main():
    golden = plain(make())
    if "--write" in sys.argv:
        rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
        FILE.write_text("{\n" + rows + "\n}\n")
        return 0
    found = list(differences(json.loads(FILE.read_text()), golden, 1e-6, "bitsandbytes"))
    print("\n".join(found[:20]) or f"{FILE.name}: as made now")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
