"""What peft makes of an adapter whose configuration says one thing more: configs.json for tests/unit/sdk/nn/low_rank_test.cpp.

Each change is written into the configuration of a saved adapter, which is loaded on a model of its own and merged. "plain": the
weights are W + alpha / r * B A, so that the term alone on the unchanged weights is the same model. "other": they are not.
"error": peft does not load it. Usage: .deps/peers/bin/python tests/golden/adapters/make_adapters.py
"""

import json
import pathlib
import shutil
import tempfile
import warnings

import peft
import torch

HERE = pathlib.Path(__file__).parent
RANK, ALPHA, WIDTH = 2, 3, 6
NAMES = ("a", "b")

STARTS = [True, False, None, "gaussian", "eva", "orthogonal", "mica", "olora", "pissa", "pissa_niter_4", "corda", "loftq", "lora_ga",
          "PiSSA", "something_new"]
# Of keys that are no switch: other values that a configuration may have.
VALUES = {
    "task_type": ["FEATURE_EXTRACTION"],
    "auto_mapping": [{"base_model_class": "X", "parent_library": "y"}],
    "base_model_name_or_path": ["somebody/some-model"],
    "revision": ["main"],
    "inference_mode": [False],
    "peft_version": ["0.9.0"],
    "target_modules": ["a|b"],
    "exclude_modules": [["c"]],
    "layers_to_transform": [None],
    "layers_pattern": [None],
    "lora_dropout": [0.1],
    "megatron_core": ["megatron.core"],
    "megatron_config": [{"a": 1}],
    "qalora_group_size": [32],
    "use_rslora": [True],
    "use_dora": [True],
    "use_qalora": [True],
    "bias": ["all", "lora_only"],
    "lora_bias": [True],
    "modules_to_save": [["b"]],
    "rank_pattern": [{"b": 1}],
    "alpha_pattern": [{"b": 5}],
    "fan_in_fan_out": [True],
    "trainable_token_indices": [[0, 1]],
    "loftq_config": [{"loftq_bits": 4, "loftq_iter": 1}],
    "corda_config": [{"corda_method": "ipm"}],
    "lora_ga_config": [{"direction": "ArB2r"}],
    "eva_config": [{"rho": 2.0}],
    "layer_replication": [[[0, 1]]],
    "alora_invocation_tokens": [[1, 2]],
    "target_parameters": [["a.weight"]],
    "use_bdlora": [{"nblocks": 2, "target_modules_bd_a": ["a"], "target_modules_bd_b": []}],
    "arrow_config": [{"top_k": 1}],
    "kasa_config": [{"beta": 0.1}],
    "velora_config": [{"rho": 1.0}, {"num_groups": 2}],
    "monteclora_config": [{"num_samples": 2}],
    "ensure_weight_tying": [True],
    "something_new": [False, None, [], {}, True, 1, "none", "yes"],
}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        for name in NAMES:
            self.add_module(name, torch.nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def verdict_of(folder, expected):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = peft.PeftModel.from_pretrained(Model(), folder)
            merged = model.merge_and_unload().state_dict()
    except Exception as error:  # whatever it is that peft does not take
        return "error", f"{type(error).__name__}: {error}".splitlines()[0][:120]
    if merged.keys() != expected.keys():
        return "other", "other tensors"
    apart = max((merged[name] - expected[name]).abs().max().item() for name in expected)
    return ("plain" if apart < 1e-5 else "other"), f"differs by {apart:.2g}"


def main():
    found = []
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        model = peft.get_peft_model(Model(), peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(NAMES)))
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter)
        model.save_pretrained(work / "saved")
        plain = json.loads((work / "saved/adapter_config.json").read_text())
        tensors = {name: value for name, value in model.state_dict().items() if "lora_" in name}
        expected = Model().state_dict()
        for name in NAMES:
            a, b = (next(v for k, v in tensors.items() if f".{name}.lora_{which}" in k) for which in "AB")
            expected[f"{name}.weight"] = expected[f"{name}.weight"] + ALPHA / RANK * b @ a
        for key, value in [(None, None), *(("init_lora_weights", start) for start in STARTS),
                           *((key, value) for key, values in VALUES.items() for value in values)]:
            folder = shutil.copytree(work / "saved", work / f"{len(found)}")
            (folder / "adapter_config.json").write_text(json.dumps(plain | ({key: value} if key else {})))
            verdict, why = verdict_of(folder, expected)
            print(f"{verdict:6} {key} = {json.dumps(value)}: {why}")
            found.append({"key": key, "value": value, "peft": verdict})
        missing = sorted(plain.keys() - VALUES.keys() - {"init_lora_weights", "r", "lora_alpha", "peft_type"})
        assert not missing, f"keys that no change here is of: {missing}"
    (HERE / "configs.json").write_text(json.dumps({"peft": peft.__version__, "saved": plain, "changes": found}, indent=1) + "\n")


main()
