"""Which layers peft means by a configuration: targets.json for tests/unit/sdk/nn/low_rank_test.cpp.

Usage: .deps/peers/bin/python tests/golden/adapters/make_targets.py
"""

import json
import pathlib

from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists

CASES = [
    ({"target_modules": ["head"]}, "head"),
    ({"target_modules": ["qkv"]}, "head"),
    ({"target_modules": "he.*"}, "head"),
    ({"target_modules": ".*qkv"}, "head"),
    ({"target_modules": "qkv"}, "blocks.0.qkv"),
    ({"target_modules": ["head"], "exclude_modules": ["head"]}, "head"),
    ({"target_modules": ["qkv"], "exclude_modules": "blocks.0.*"}, "blocks.0.qkv"),
    ({"target_modules": ["qkv"], "exclude_modules": ["0.qkv"]}, "blocks.0.qkv"),
    ({"target_modules": ["qkv"], "exclude_modules": ["kv"]}, "blocks.0.qkv"),
    ({"target_modules": ["kv"]}, "blocks.0.qkv"),
    ({"target_modules": ["0.qkv"]}, "blocks.0.qkv"),
    ({"target_modules": ["head"], "layers_to_transform": [0]}, "head"),
    ({"target_modules": ["qkv"], "layers_to_transform": [3]}, "x.blocks.3.qkv"),
    ({"target_modules": ["qkv"], "layers_to_transform": [2]}, "x.blocks.3.qkv"),
    ({"target_modules": ["qkv"], "layers_to_transform": 3}, "x.blocks.3.qkv"),
    ({"target_modules": ["qkv"], "layers_to_transform": [3]}, "blocks.3.qkv"),
    ({"target_modules": ["qkv"], "layers_to_transform": [3], "layers_pattern": "blocks"}, "blocks.3.qkv"),
    ({"target_modules": ["qkv"], "layers_to_transform": [2], "layers_pattern": ["blocks"]}, "blocks.3.qkv"),
    ({"target_modules": ["w"], "layers_to_transform": [1], "layers_pattern": ["layers"]}, "x.layers.1.experts.0.w"),
    ({"target_modules": ["w"], "layers_to_transform": [0], "layers_pattern": ["layers"]}, "x.layers.1.experts.0.w"),
    ({"target_modules": ["w"], "layers_to_transform": [1]}, "x.layers.1.experts.0.w"),
    ({"target_modules": ["qkv"], "layers_to_transform": []}, "blocks.3.qkv"),
    ({"target_modules": ["qkv"], "layers_to_transform": [3], "layers_pattern": ["other", "blo(ck)s"]}, "blocks.3.qkv"),
]


def is_meant(settings, layer):
    config = LoraConfig(target_modules=["any"])
    for name, value in settings.items():
        setattr(config, name, value)
    found = check_target_module_exists(config, layer)
    return bool(found) and type(found).__name__ != "_ExcludedModule"


made = [{"config": settings, "layer": layer, "is_meant": is_meant(settings, layer)} for settings, layer in CASES]
text = "[\n" + ",\n".join(json.dumps(one) for one in made) + "\n]\n"
pathlib.Path(__file__).with_name("targets.json").write_text(text)
