"""Does a mutant change a training? Losses, norms, validations, weights, average and optimizer states on ten layouts, with it and
without, bit for bit, and on more where few of the ten reach it. A training stops after two steps and goes on from its checkpoint
for two more."""

import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
import threading

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
LAYOUTS = (
    (1, "dit_text_tiny", {}),
    (2, "digits", {"run.batch": 7, "run.micro_batch": 3, "model.depth": 2, "model.width": 32, "validate.samples": 16}),
    (4, "digits", {"run.batch": 8, "model.depth": 2, "model.width": 32, "validate.samples": 16, "parallel.shard": 2,
                   "parallel.shard_plugin": "fsdp", "parallel.tensor": 2, "parallel.sequence": True}),
    (2, "st_dit_tiny", {"parallel.context": 2, "parallel.context_plugin": "ring"}),
    (2, "dit_text_tiny", {"parallel.pipeline": 2, "run.micro_batch": 2, "parallel.recompute": "blocks"}),
    (2, "dit_moe_tiny", {"parallel.expert": 2}),
    (2, "flux_tiny", {"parallel.context": 2, "parallel.context_plugin": "ulysses"}),
    (2, "wan_tiny", {"parallel.shard": 2, "parallel.shard_plugin": "zero2", "parallel.offload": "optimizer"}),
    (2, "digits", {"run.batch": 7, "run.micro_batch": 3, "model.depth": 2, "model.width": 32, "validate.samples": 16,
                   "run.numerics": "one", "run.token_leaf": 8, "record.receipts": True, "parallel.tensor": 2, "parallel.sequence": True}),
    (2, "st_dit_tiny", {"run.numerics": "one", "parallel.context": 2, "parallel.context_plugin": "fastseq"}),
)
# For what fewer than ENOUGH of them reach: around rings.
ENOUGH = 6
RINGS = (
    (2, "dit_text_tiny", {"parallel.context": 2, "parallel.context_plugin": "ring", "parallel.recompute": "attention"}),
    (3, "digits", {"run.batch": 8, "model.depth": 2, "model.width": 48, "model.heads": 3, "validate.samples": 16, "parallel.context": 3,
                   "parallel.context_plugin": "ring"}),  # 16 tokens: not shared evenly
    (2, "mmdit_tiny", {"parallel.context": 2, "parallel.context_plugin": "ring"}),
    (2, "wan_tiny", {"parallel.context": 2, "parallel.context_plugin": "ring", "run.precision": "bf16"}),
    (2, "dit_moe_tiny", {"parallel.context": 2, "parallel.context_plugin": "ring"}),
    (4, "digits", {"run.batch": 8, "model.depth": 2, "model.width": 32, "validate.samples": 16, "parallel.context": 2,
                   "parallel.context_plugin": "ring", "parallel.tensor": 2, "parallel.sequence": True}),
)
ALL = LAYOUTS + RINGS
STEADY = {"run.threads": 1, "checkpoint.every": 2, "checkpoint.keep": 9, "validate.every": 2, "lr_schedule.lr": 1e-2, "lr_schedule.warmup": 0}
LOCK = threading.Lock()


def train(out, layout, folder, steps, environment):
    ranks, recipe, options = ALL[layout]
    words = [out / "bin/ditto", "train", CONFIGS / f"{recipe}.toml", "--local-ranks", str(ranks), "--set", f'run.output="{folder}"']
    for key, value in (STEADY | options | {"run.steps": steps}).items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    return subprocess.run(words, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, capture_output=True, text=True, timeout=400)


def numbers(folder):
    """All that a training came to."""
    found = []
    for line in map(json.loads, (folder / "metrics.jsonl").open()):
        found.append([line.get(key) for key in ("step", "loss", "grad_norm", "losses")])
    for line in map(json.loads, (folder / "validation.jsonl").open()):
        found.append({key: value for key, value in line.items() if key != "seconds"})
    for file in sorted((folder / "checkpoints").glob("step_*/*.safetensors")):
        found.append([f"{file.parent.name}/{file.name}", hashlib.sha256(file.read_bytes()).hexdigest()])
    return found


def result(out, layout, environment):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder) / "run"
        for steps in (2, 4):
            try:
                done = train(out, layout, folder, steps, environment)
            except subprocess.TimeoutExpired:
                return "it stands still"
            if done.returncode != 0:
                return f"it ends with exit code {done.returncode}: {done.stderr[-300:]}"
        return numbers(folder)


def original(out, layout):
    """{"numbers", "reached"} without a mutant, kept for as long as build and layout are."""
    file = out / "original" / f"{layout}.json"
    with LOCK:
        of = [(out / "linked").read_text(), pathlib.Path(__file__).read_text()]
        kept = json.loads(file.read_text()) if file.exists() else {}
        if kept.get("of") != of:
            file.parent.mkdir(exist_ok=True)
            trace = file.with_suffix(".trace")
            trace.unlink(missing_ok=True)
            found = result(out, layout, {"DITTO_MUTANT_TRACE": str(trace)})
            if isinstance(found, str):
                raise SystemExit(f"layout {ALL[layout]} cannot be trained without a mutant: {found}")
            kept = {"of": of, "numbers": found, "reached": sorted({int(line) for line in trace.read_text().split()})}
            file.write_text(json.dumps(kept))
    return kept


def changes(out, number):
    """(what differs, in words, empty where all bits are the same; on how many of the layouts its line is reached)"""
    reached = 0
    for layout in range(len(ALL)):
        if layout >= len(LAYOUTS) and reached >= ENOUGH:
            break
        expected = original(out, layout)
        if number not in expected["reached"]:
            continue  # the same program
        reached += 1
        found = result(out, layout, {"DITTO_MUTANT": str(number)})
        if json.loads(json.dumps(found)) != expected["numbers"]:
            ranks, recipe, options = ALL[layout]
            what = found if isinstance(found, str) else "other numbers"
            return f"changes {recipe} on {ranks} ranks {options}: {what}", reached
    return "", reached
