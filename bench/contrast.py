#!/usr/bin/env python3
"""The loss of step 10 at eighteen layouts with one seed, by PyTorch in Python and by Ditto with run.numerics = "one"; and
by Ditto at some that PyTorch has no tool for.

Both train a small DiT on the digits of data/digits in fp32: width 96, 12 heads, 4 blocks, batches of 48. PyTorch is in its
deterministic mode (torch.use_deterministic_algorithms), with DDP, FSDP2 (fully_shard) and tensor parallelism
(parallelize_module) over gloo; each of its layouts starts from the same weights and computes with the same samples, times and
noise, and its losses are added up sample by sample in fp64, so that the sum itself is the same on all. The two columns are two
trainings: their draws are not each other's. What this Ditto refuses under "one" says so. docs/choosing_a_layout.md has the table of
the page, which a test compares (tests/integration/bench/bench_pages.py).

Usage: ./dev bench contrast [--steps 10] [--out FOLDER]
"""
import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench" / "lib"), str(ROOT / "bench" / "peers")]
from report import details, page, processor, today  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
BATCH, RATE = 48, 3e-3

# Name: threads, micro-batches of a rank, and degrees: of data ranks by ddp or by fsdp, and of tensor ranks.
LAYOUTS = {
    "one rank": dict(),
    "2 threads": dict(threads=2),
    "2 micro-batches": dict(micro_batches=2),
    "4 micro-batches": dict(micro_batches=4),
    "DDP 2": dict(ddp=2),
    "DDP 3": dict(ddp=3),
    "DDP 4": dict(ddp=4),
    "DDP 2, 2 micro-batches": dict(ddp=2, micro_batches=2),
    "FSDP 2": dict(fsdp=2),
    "FSDP 3": dict(fsdp=3),
    "FSDP 4": dict(fsdp=4),
    "FSDP 2, 2 micro-batches": dict(fsdp=2, micro_batches=2),
    "FSDP 2, 2 threads": dict(fsdp=2, threads=2),
    "tensor 2": dict(tensor=2),
    "tensor 3": dict(tensor=3),
    "tensor 4": dict(tensor=4),
    "DDP 2 x tensor 2": dict(ddp=2, tensor=2),
    "FSDP 2 x tensor 2": dict(fsdp=2, tensor=2),
}

# What Ditto has besides: its options.
OWN = {
    "zero2 2": (2, {"parallel.shard": 2, "parallel.shard_plugin": '"zero2"'}),
    "tensor 2, sequence": (2, {"parallel.tensor": 2, "parallel.sequence": "true"}),
    "ring 2": (2, {"parallel.context": 2, "parallel.context_plugin": '"ring"'}),
    "ulysses 2": (2, {"parallel.context": 2, "parallel.context_plugin": '"ulysses"'}),
    "pipeline 2": (2, {"parallel.pipeline": 2}),
    "pipeline 2 x DDP 2, recompute": (4, {"parallel.pipeline": 2, "parallel.recompute": '"blocks"'}),
}


def degree(layout, *axes):
    product = 1
    for axis in axes:
        product *= layout.get(axis, 1)
    return product


def ranks(layout):
    return degree(layout, "ddp", "fsdp", "tensor")


# --- PyTorch -----------------------------------------------------------------------------------------------------------


def digits(torch, image):
    """All pictures and classes of the training shards, in their order."""
    pictures, labels = [], []
    for shard in sorted((ROOT / "data/digits").glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar.getmembers():
                data = tar.extractfile(member).read() if member.isfile() else b""
                if member.name.endswith(".png"):
                    grey = image.open(io.BytesIO(data)).convert("L")
                    pictures.append(torch.frombuffer(bytearray(grey.tobytes()), dtype=torch.uint8).view(1, 8, 8))
                elif member.name.endswith(".cls"):
                    labels.append(int(data))
    assert len(pictures) == len(labels) > BATCH
    return torch.stack(pictures).float() / 127.5 - 1, torch.tensor(labels)


def peer_model(torch, dit):
    """bench/peers/dit.py's, with a layer each for q, k and v, as PyTorch's tensor parallelism wants them."""

    class Block(dit.Block):
        def __init__(self, width, heads):
            super().__init__(width, heads)
            self.head_width = width // heads
            del self.qkv
            self.q, self.k, self.v = (torch.nn.Linear(width, width) for _ in range(3))

        def attention(self, x):
            q, k, v = (layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = dit.DiT(dit.Workload(1, 8, 10, 0, 96, 12, 2, BATCH, "flow", RATE, 0))
    for _ in range(4):
        block = Block(96, 12)
        torch.nn.init.zeros_(block.modulation.weight)
        torch.nn.init.zeros_(block.modulation.bias)
        model.blocks.append(block)
    return model


def laid_out(torch, model, layout, mesh):
    """The model as PyTorch's own tools put it on the ranks of `mesh` [data, tensor]."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

    if "tensor" in layout:
        columns = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        rows = {name: RowwiseParallel() for name in ("proj", "down")}
        for block in model.blocks:
            parallelize_module(block, mesh["tensor"], columns | rows)
    if "fsdp" in layout:
        for part in [*model.blocks, model]:
            fully_shard(part, mesh=mesh["data"])
    if "ddp" in layout:
        if "tensor" in layout:
            _pre_dp_module_transform(model)
        return torch.nn.parallel.DistributedDataParallel(model, process_group=mesh["data"].get_group())
    return model


def peer_losses(torch, dit, layout, data, steps):
    """The loss of every step: of all samples, added in their order."""
    from torch import distributed

    tensor, micro_batches = degree(layout, "tensor"), layout.get("micro_batches", 1)
    torch.set_num_threads(layout.get("threads", 1))
    count = ranks(layout) // tensor
    mesh = distributed.device_mesh.init_device_mesh("cpu", (count, tensor), mesh_dim_names=("data", "tensor"))
    rank = mesh["data"].get_local_rank()
    model = laid_out(torch, peer_model(torch, dit), layout, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, foreach=False)
    draws, (pictures, labels), losses = torch.Generator().manual_seed(1), data, []
    for _ in range(steps):
        chosen = torch.randint(0, len(labels), (BATCH,), generator=draws)
        dropped = torch.rand(BATCH, generator=draws) < 0.1
        time = torch.randn(BATCH, generator=draws).sigmoid()
        noise = torch.randn(BATCH, 1, 8, 8, generator=draws)
        clean, label = pictures[chosen], torch.where(dropped, 10, labels[chosen])
        seen = torch.zeros(BATCH, dtype=torch.float64)
        optimizer.zero_grad()
        size = BATCH // count // micro_batches
        for i in range(micro_batches):
            own = slice((rank * micro_batches + i) * size, (rank * micro_batches + i + 1) * size)
            s = time[own].view(-1, 1, 1, 1)
            x = (1 - s) * clean[own] + s * noise[own]
            last = i + 1 == micro_batches
            together = contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()
            with together:
                prediction = model(x, 1000 * time[own], label[own])
                of_samples = (prediction - (noise[own] - clean[own])).square().flatten(1).mean(1)
                (of_samples.mean() / micro_batches).backward()
            seen[own] = of_samples.detach().double()
        optimizer.step()
        distributed.all_reduce(seen, group=mesh["data"].get_group())
        losses.append(seen.mean().item())
    return losses


def peer_worker(rank, count, store, steps, results):
    import torch
    from PIL import Image

    import dit

    torch.use_deterministic_algorithms(True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    data = digits(torch, Image)
    made = {name: peer_losses(torch, dit, layout, data, steps) for name, layout in LAYOUTS.items() if ranks(layout) == count}
    if rank == 0:
        pathlib.Path(results).write_text(json.dumps(made))
    torch.distributed.destroy_process_group()


def peers(steps, folder):
    from torch import multiprocessing

    found = {}
    for count in sorted({ranks(layout) for layout in LAYOUTS.values()}):
        results = folder / f"peers-{count}.json"
        multiprocessing.spawn(peer_worker, (count, str(folder / f"store-{count}"), steps, str(results)), nprocs=count)
        found |= json.loads(results.read_text())
    return {name: losses[-1] for name, losses in found.items()}


# --- Ditto -------------------------------------------------------------------------------------------------------------

RECIPE = f"""
include = "{ROOT}/configs/digits.toml"
[run]
batch = {BATCH}
numerics = "one"
token_leaf = 4
[data]
shards = ["{ROOT}/data/digits/train-*.tar"]
validation_shards = ["{ROOT}/data/digits/validation-*.tar"]
[model]
depth = 4
width = 96
heads = 12
[lr_schedule]
lr = {RATE}
warmup = 0
[checkpoint]
every = 0
[validate]
every = 0
grid_every = 0
"""


def sets_of(layout):
    sets = {"run.threads": layout.get("threads", 1), "parallel.tensor": degree(layout, "tensor"),
            "run.micro_batch": BATCH // degree(layout, "ddp", "fsdp") // layout.get("micro_batches", 1)}
    if "fsdp" in layout:
        sets |= {"parallel.shard": layout["fsdp"], "parallel.shard_plugin": '"fsdp"'}
    return sets


def ditto_loss(name, count, sets, steps, folder):
    recipe = folder / "one.toml"
    recipe.write_text(RECIPE)
    sets = [word for key, value in (sets | {"run.steps": steps}).items() for word in ("--set", f"{key}={value}")]
    checked = subprocess.run([DITTO, "config", "check", recipe, *sets], capture_output=True, text=True)
    if checked.returncode == 2 and "run.numerics" in checked.stderr:
        return None
    out = folder / name.replace(" ", "-").replace(",", "")
    local = ["--local-ranks", str(count)] if count > 1 else []
    trained = subprocess.run([DITTO, "train", recipe, *local, *sets, "--set", f'run.output="{out}"'], capture_output=True,
                             text=True)
    if trained.returncode != 0:
        sys.exit(f"{name}: {trained.stderr}")
    return json.loads((next(out.glob("**/metrics.jsonl"))).read_text().splitlines()[-1])["loss"]


def ours(steps, folder):
    runs = {name: (ranks(layout), sets_of(layout)) for name, layout in LAYOUTS.items()} | OWN
    return {name: ditto_loss(name, count, sets, steps, folder) for name, (count, sets) in runs.items()}


# --- the table ---------------------------------------------------------------------------------------------------------


def table(of_peer, of_ditto, steps):
    made = [loss for loss in of_ditto.values() if loss is not None]
    lines = ["| Layout | PyTorch | Ditto, `numerics = \"one\"` |", "|---|---|---|"]
    for name, loss in of_ditto.items():
        theirs = f"{of_peer[name]:.12f}" if name in of_peer else ""
        lines.append(f"| {name} | {theirs} | {'refused' if loss is None else f'{loss:.12f}'} |")
    lines.append(f"| different losses of step {steps} | {len(set(of_peer.values()))} of {len(of_peer)} | "
                 f"{len(set(made))} of {len(made)} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="steps; the last one's loss is shown (default 10)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of contrast.md")
    args = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        of_peer = peers(args.steps, pathlib.Path(folder))
        of_ditto = ours(args.steps, pathlib.Path(folder))
    import torch

    lines = [f"# The loss of step {args.steps} by layouts", "", "Written by bench/contrast.py (`./dev bench contrast`), which says what is trained.", "",
             f"- processor: {processor()} ({details()}); PyTorch {torch.__version__}; {today()}", ""]
    path = args.out / "contrast.md"
    args.out.mkdir(parents=True, exist_ok=True)
    text = page(lines + table(of_peer, of_ditto, args.steps), path.read_text() if path.exists() else "")
    path.write_text(text)
    print(text, f"{time.monotonic() - start:.0f} s", sep="")


if __name__ == "__main__":
    main()
