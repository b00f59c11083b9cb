"""Which of several sets of weights in a folder diffusers and transformers read: choices.json for
tests/integration/exchange/two_weights.py. Usage: .deps/peers/bin/python tests/golden/weights/make_weights.py

A set is a file, or an index and its parts. Each is filled with a number of its own, which the loaded model then shows.
"""

import itertools
import json
import logging
import pathlib
import tempfile

import diffusers
import torch
import transformers
from diffusers.configuration_utils import ConfigMixin, register_to_config
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
NAMES = ("one.weight", "two.weight")

# A set by its name, and the files of its parts; none: it is one file.
PARTS = {
    "diffusion_pytorch_model.safetensors": [],
    "diffusion_pytorch_model.safetensors.index.json": [f"diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2)],
    "diffusion_pytorch_model.bin": [],
    "diffusion_pytorch_model.bin.index.json": [f"diffusion_pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)],
    "diffusion_pytorch_model.fp16.safetensors": [],
    "diffusion_pytorch_model.safetensors.index.fp16.json": [f"diffusion_pytorch_model.fp16-0000{i}-of-00002.safetensors" for i in (1, 2)],
    "diffusion_pytorch_model.non_ema.safetensors": [],
    "diffusion_pytorch_model.fp16.bin": [],
    "model.safetensors": [],
    "model.safetensors.index.json": [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)],
    "pytorch_model.bin": [],
    "pytorch_model.bin.index.json": [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)],
    "model.fp16.safetensors": [],
    "pytorch_model.fp16.bin": [],
}
DIFFUSERS = [name for name in PARTS if name.startswith("diffusion")]
TRANSFORMERS = [name for name in PARTS if not name.startswith("diffusion")]


class OfDiffusers(diffusers.ModelMixin, ConfigMixin):
    @register_to_config
    def __init__(self, a=1):
        super().__init__()
        self.one, self.two = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)


class Config(transformers.PretrainedConfig):
    model_type = "ditto-test"


class OfTransformers(transformers.PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.one, self.two = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
        self.post_init()

    def _init_weights(self, module):
        pass


def save(path, tensors):
    if path.name.endswith(".bin"):
        torch.save(tensors, path)
    else:
        save_file(tensors, path, {"format": "pt"})


def write(folder, name, number):
    tensors = {one: torch.full((2, 2), float(number)) for one in NAMES}
    parts = PARTS[name]
    for part, one in zip(parts, NAMES):
        save(folder / part, {one: tensors[one]})
    if parts:
        (folder / name).write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": dict(zip(NAMES, parts))}))
    else:
        save(folder / name, tensors)


def read_by(kind, folder, sets):
    try:
        model = kind.from_pretrained(folder)
    except Exception:  # it reads none of these
        return None
    numbers = {parameter.detach().flatten()[0].item() for parameter in model.parameters()}
    assert len(numbers) == 1
    return sets[int(numbers.pop()) - 1]


def main():
    logging.disable(logging.CRITICAL)
    diffusers.logging.set_verbosity(50)
    transformers.logging.set_verbosity(50)
    found = []
    mixed = [("diffusion_pytorch_model.safetensors", "model.safetensors"), ("diffusion_pytorch_model.bin", "model.safetensors"),
             ("diffusion_pytorch_model.safetensors", "pytorch_model.bin"),
             ("diffusion_pytorch_model.safetensors.index.json", "model.safetensors.index.json")]
    triples = [("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin", "diffusion_pytorch_model.fp16.safetensors"),
               ("diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model.bin",
                "diffusion_pytorch_model.safetensors.index.fp16.json"),
               ("diffusion_pytorch_model.bin", "diffusion_pytorch_model.bin.index.json", "diffusion_pytorch_model.safetensors")]
    lists = [*((name,) for name in PARTS), *itertools.combinations(DIFFUSERS, 2), *itertools.combinations(TRANSFORMERS, 2), *mixed, *triples]
    for sets in lists:
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work)
            for number, name in enumerate(sets):
                write(folder, name, number + 1)
            (folder / "config.json").write_text(json.dumps({"_class_name": "OfDiffusers", "a": 1, "model_type": "ditto-test"}))
            found.append({"sets": sets, "diffusers": read_by(OfDiffusers, folder, sets),
                          "transformers": read_by(OfTransformers, folder, sets)})
            print(found[-1])
    (HERE / "choices.json").write_text(json.dumps({"diffusers": diffusers.__version__, "transformers": transformers.__version__,
                                                   "parts": PARTS, "choices": found}, indent=1) + "\n")


main()
