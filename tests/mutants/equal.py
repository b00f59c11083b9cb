"""Does a mutant change a training? Six layouts, with it and without: losses, norms, weights and average, bit for bit."""

import functools
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading

LAYOUTS = (
    (1, "dit_text", {}),
    (2, "dit", {"run.micro_batch": 3, "run.batch": 7}),
    (4, "dit", {"parallel.shard": 2, "parallel.shard_plugin": "fsdp", "parallel.tensor": 2, "parallel.sequence": True, "model.convention": "diffusers"}),
    (2, "st_dit", {"parallel.context": 2, "parallel.context_plugin": "ring"}),
    (2, "dit_text", {"parallel.pipeline": 2, "run.micro_batch": 2, "parallel.recompute": "blocks"}),
    (2, "dit_moe", {"parallel.expert": 2}),
)


def train(binary, recipe, ranks, options, number, folder):
    words = [binary, "train", recipe, "--local-ranks", str(ranks), "--set", f'run.output="{folder}"', "--set", "run.steps=3", "--set", "run.threads=1"]
    for key, value in options.items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({} if number is None else {"DITTO_MUTANT": str(number)})
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=400)


def numbers(folder):
    """All that a training came to."""
    found = [[json.loads(line)[key] for key in ("step", "loss", "grad_norm", "losses")] for line in (folder / "metrics.jsonl").open()]
    newest = max((folder / "checkpoints").glob("step_*"))
    for file in sorted(newest.glob("*.safetensors")):
        found.append([file.name, hashlib.sha256(file.read_bytes()).hexdigest()])
    return found


LOCK = threading.Lock()


@functools.cache
def original(layout, out):
    return result(layout, out, None)


def result(layout, out, number):
    ranks, model, options = LAYOUTS[layout]
    recipe = pathlib.Path(__file__).resolve().parents[2] / "configs" / f"{model}_tiny.toml"
    if model == "dit":
        recipe = recipe.with_name("digits.toml")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder) / "run"
        try:
            done = train(out / "bin/ditto", recipe, ranks, options, number, folder)
        except subprocess.TimeoutExpired:
            return "it stands still"
        return numbers(folder) if done.returncode == 0 else f"it ends with exit code {done.returncode}: {done.stderr[-300:]}"


def changes(number, out):
    """What differs, in words; empty where all bits are the same."""
    for layout in range(len(LAYOUTS)):
        with LOCK:
            expected = original(layout, out)
        if isinstance(expected, str):
            raise SystemExit(f"layout {LAYOUTS[layout]} cannot be trained without a mutant: {expected}")
        found = result(layout, out, number)
        if found != expected:
            ranks, model, options = LAYOUTS[layout]
            what = found if isinstance(found, str) else "other numbers"
            return f"CHANGES {model} on {ranks} ranks {options}: {what}"
    return ""
