"""What a GPU gives at best, as JSON: bytes of a copy a second (read and written), and products of large matrices.

    tests/gpu/ceilings.py [--small]     needs PyTorch; --small: small ones of the CPU, as a rehearsal

A product's operands are drawn, as a GPU is faster at zeros. Each figure is the best of a few tries.
"""

import json
import sys
import time

import torch

SMALL = "--small" in sys.argv
DEVICE = "cpu" if SMALL else "cuda"


def seconds(call, times):
    """Of one of as many calls in a row."""
    call()
    best = float("inf")
    for _ in range(2 if SMALL else 5):
        wait()
        began = time.perf_counter()
        for _ in range(times):
            call()
        wait()
        best = min(best, (time.perf_counter() - began) / times)
    return best


def wait():
    if not SMALL:
        torch.cuda.synchronize()


def copy_terabytes():
    numbers = (1 << 22) if SMALL else (1 << 30)
    x = torch.ones(numbers, device=DEVICE)
    y = torch.empty_like(x)
    return 2 * 4 * numbers / seconds(lambda: y.copy_(x), 1 if SMALL else 10) / 1e12


def product_tflops(dtype, tf32=False):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    size = 256 if SMALL else 8192
    a, b = (torch.randn(size, size, device=DEVICE).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / seconds(lambda: torch.mm(a, b, out=out), 1 if SMALL else 8) / 1e12


if __name__ == "__main__":
    torch.manual_seed(0)
    found = {"copy_tb_s": copy_terabytes(), "bf16_tflops": product_tflops(torch.bfloat16),
             "tf32_tflops": product_tflops(torch.float32, tf32=True), "fp32_tflops": product_tflops(torch.float32)}
    print(json.dumps(found | {"on": "cpu" if SMALL else torch.cuda.get_device_name()}))
