"""Adapters between Ditto and peft: a merged export is what peft's merge_and_unload makes of the same files, and an adapter that
was made by peft is merged here as it is there. Names are those of facebook's DiT, as a tree of plain modules, and diffusers'.

Claim (weights): A merged export is what peft's `merge_and_unload` makes of the same adapter, to 1e-6, in facebook's and
diffusers' names, of adapters made here and there.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from diffusers import DiTTransformer2DModel
from safetensors.torch import load_file

try:
    from peft import LoraConfig, PeftModel, get_peft_model
except ImportError:
    print("not run: the Python peers were made before peft was one of them (./dev peers)")
    sys.exit(77)

DITTO = os.environ["DITTO"]
WORK = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(WORK.name)
MOST = 1e-6
torch.set_num_threads(1)

RECIPE = """
[run]
name = "{name}"
steps = {steps}
batch = 8
threads = 1
{more}
[data]
plugin = "synthetic"
classes = 10
channels = 4
height = 8
width = 8
[encoder.image]
plugin = "identity"
[model]
plugin = "dit"
convention = "{convention}"
depth = 2
width = 64
heads = 4
patch = 2
[scheduler]
plugin = "iddpm"
[objective]
plugin = "diffusion"
condition_dropout = 0.1
[optimizer]
plugin = "adamw"
[lr_schedule]
lr = 3e-3
[ema]
decay = 0.5
"""


def ditto(*arguments):
    done = subprocess.run([DITTO, *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, f"ditto {' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}{done.stderr}"


def train(name, convention, steps, more="", sections=""):
    (FOLDER / f"{name}.toml").write_text(RECIPE.format(name=name, convention=convention, steps=steps, more=more) + sections)
    ditto("train", f"{name}.toml", "--set", "log.progress='none'")
    return f"runs/{name}"


class Tree(torch.nn.Module):
    """Modules by the names of a file's tensors: linear maps, convolutions, and whatever else holds a tensor."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            path, leaf = name.rpartition(".")[::2]
            if leaf == "weight" and tensor.dim() == 2:
                self.place(path, torch.nn.Linear(tensor.shape[1], tensor.shape[0], bias=f"{path}.bias" in tensors))
            elif leaf == "weight" and tensor.dim() == 4:
                self.place(path, torch.nn.Conv2d(tensor.shape[1], tensor.shape[0], tensor.shape[2:], tensor.shape[2:]))
            elif f"{path}.weight" not in tensors:
                self.place(path, torch.nn.Module()).register_buffer(leaf, torch.empty_like(tensor))
        self.load_state_dict(tensors)

    def place(self, path, module):
        at, names = self, path.split(".") if path else []
        for name in names[:-1]:
            if not hasattr(at, name):
                at.add_module(name, torch.nn.Module())
            at = getattr(at, name)
        if not names:
            return at
        if not hasattr(at, names[-1]):
            at.add_module(names[-1], module)
        return getattr(at, names[-1])

    def forward(self, x):
        return x


def check(what, ours, theirs, base):
    assert ours.keys() == theirs.keys(), (what, sorted(ours.keys() ^ theirs.keys()))
    worst = max((ours[name] - theirs[name]).abs().max().item() for name in ours)
    changed = max((ours[name] - base[name]).abs().max().item() for name in ours)
    print(f"{what}: {len(ours)} tensors, changed by up to {changed:.3g}, differ by {worst:.2g}")
    assert changed > 1e-3 and worst <= MOST


def facebook():
    base = train("base", "facebook", 20)
    learned = train("learned", "facebook", 20, f'init_from = "{base}"\n', '[adapter]\nrank = 4\nalpha = 6\nlayers = ["*"]\n')
    ditto("checkpoint", "export", base, "--format", "facebook-dit", "--out", "base.safetensors")
    ditto("checkpoint", "export", learned, "--format", "facebook-dit", "--merge", "--out", "merged.safetensors")
    ditto("checkpoint", "export", learned, "--format", "facebook-dit", "--out", "peft")
    tensors = load_file(FOLDER / "base.safetensors")
    theirs = PeftModel.from_pretrained(Tree(tensors), FOLDER / "peft").merge_and_unload().state_dict()
    check("ours, merged by peft", load_file(FOLDER / "merged.safetensors"), theirs, tensors)

    made = get_peft_model(Tree(tensors), LoraConfig(r=3, lora_alpha=5, init_lora_weights=False,
                                                    target_modules=["qkv", "attn.proj", "mlp.fc1", "mlp.fc2"]))
    made.save_pretrained(FOLDER / "theirs")
    ditto("checkpoint", "export", base, "--set", "adapter.weights=theirs", "--set", "adapter.format=facebook-dit",
          "--format", "facebook-dit", "--merge", "--out", "theirs.safetensors")
    check("peft's, merged by us", load_file(FOLDER / "theirs.safetensors"), made.merge_and_unload().state_dict(), tensors)


def diffusers():
    base = train("split", "diffusers", 20)
    learned = train("split-learned", "diffusers", 20, f'init_from = "{base}"\n',
                    '[adapter]\nrank = 4\nlayers = ["blocks.*.qkv", "blocks.*.proj", "blocks.*.up", "blocks.*.down"]\n')
    for run, out in ((base, "split"), (learned, "split-merged")):
        ditto("checkpoint", "export", run, "--format", "diffusers", *(["--merge"] if run == learned else []), "--out", out)
    ditto("checkpoint", "export", learned, "--format", "diffusers", "--out", "split-peft")
    model = lambda folder: DiTTransformer2DModel.from_pretrained(FOLDER / folder).eval()
    tensors = model("split").state_dict()
    theirs = PeftModel.from_pretrained(model("split"), FOLDER / "split-peft").merge_and_unload().state_dict()
    check("ours of a fused layer, merged by peft", model("split-merged").state_dict(), theirs, tensors)

    made = get_peft_model(model("split"), LoraConfig(r=3, lora_alpha=5, init_lora_weights=False,
                                                     target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
    made.save_pretrained(FOLDER / "split-theirs")
    ditto("checkpoint", "export", base, "--set", "adapter.weights=split-theirs", "--set", "adapter.format=diffusers",
          "--format", "diffusers", "--merge", "--out", "split-by-us")
    check("peft's of query, key and value apart, merged by us", model("split-by-us").state_dict(),
          made.merge_and_unload().state_dict(), tensors)


facebook()
diffusers()
