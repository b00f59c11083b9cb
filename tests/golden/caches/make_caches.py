"""Step caches on a small Flux of diffusers' class: whole trajectories, along which tests/golden/caches_test.cpp goes.

    .deps/peers/bin/python tests/golden/caches/make_caches.py --teacache CHECKOUT

first_block.json: diffusers' hooks/first_block_cache.py, with guidance, so that evaluations with conditions and without decide by
themselves. teacache.json: TeaCache4FLUX/teacache_flux.py of a checkout of ali-vilab/TeaCache. Both are run as they are. The latter is
a program, which samples FLUX.1-dev: in the place of the pipeline that it asks for stands one with the small model, whose single
blocks are called as by the diffusers that it was written for, with text and picture in one tensor.

Weights and inputs are made by a formula from their names, in float64 (../models/reference.py). Each sample is a trajectory of its
own, so that a decision is one sample's.
"""

import argparse
import contextlib
import json
import pathlib
import runpy
import sys
import types
from unittest import mock

import diffusers
import torch
from diffusers import FirstBlockCacheConfig, FluxPipeline, FluxTransformer2DModel

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))
import reference  # noqa: E402

SAMPLES, TOKENS, POOLED, X = 3, 5, 10, [4, 6, 8]
OPTIONS = dict(depth=2, single_depth=2, width=48, heads=3, rotary=[4, 6, 6])
GUIDANCE = 1.5


def flux():
    """OPTIONS as their class has them: the model, and each sample's inputs by branch."""
    module = FluxTransformer2DModel(
        patch_size=1, in_channels=4 * X[0], num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=3,
        joint_attention_dim=12, pooled_projection_dim=POOLED, axes_dims_rope=(4, 6, 6))
    reference.fill(module.eval(), {})
    return reference.with_nearest_features(module.double())


def inputs():
    """x, and the texts with conditions and without them."""
    return reference.batch_of({"x": reference.drawn(SAMPLES, *X)} | {
        prefix + name: reference.drawn(SAMPLES, *shape) for prefix in ("", "null.")
        for name, shape in (("text", [TOKENS, 12]), ("text_pooled", [POOLED]))})


def evaluate(module, x, batch, sample, prefix, time):
    """The velocity of one sample; time: 1 is noise."""
    _, channels, rows, columns = x.shape
    packed = FluxPipeline._pack_latents(x, 1, channels, rows, columns)
    ids = FluxPipeline._prepare_latent_image_ids(1, rows // 2, columns // 2, "cpu", torch.float64)
    made = module(packed, batch[prefix + "text"][[sample]], batch[prefix + "text_pooled"][[sample]],
                  torch.tensor([time], dtype=torch.float64), ids, torch.zeros(TOKENS, 3).double()).sample
    return FluxPipeline._unpack_latents(made, 8 * rows, 8 * columns, 8)


class Watched:
    """Which evaluations got to the last block."""

    def __init__(self, last_block):
        self.computed = False
        last_block.proj_out.register_forward_hook(lambda *_: setattr(self, "computed", True))

    def take(self):
        taken, self.computed = self.computed, False
        return taken


def trajectories(steps, velocity):
    """Euler's way of each sample from 1 to 0: velocity(x, sample, time) -> v, decisions of its evaluations."""
    batch, decided, after = inputs(), [], []
    for sample in range(SAMPLES):
        x = batch["x"][[sample]]
        for step in range(steps):
            v, computed = velocity(batch, x, sample, 1 - step / steps)
            x = x - v / steps
            decided.append(computed)
            after.append(x)
    decisions = [[decided[sample * steps + step] for step in range(steps)] for sample in range(SAMPLES)]
    states = [torch.cat([after[sample * steps + step] for sample in range(SAMPLES)]) for step in range(steps)]
    return decisions, states


def write(name, decisions, states, **more):
    """decisions: of each sample and step, for each branch, whether the blocks were computed."""
    flat = [tuple(one) for sample in decisions for one in sample]
    for branch in zip(*flat):
        assert 0.2 < sum(branch) / len(branch) < 0.8, f"{name}: {sum(branch)} of {len(branch)} are computed"
    assert all(decisions[0] != other for other in decisions[1:]), f"{name}: samples decide alike"
    content = {"options": OPTIONS, "steps": len(states), **more, "decisions": decisions,
               "states": [reference.digest(f"x.{step}", x, 8) for step, x in enumerate(states)]}
    path = HERE / f"{name}.json"
    path.write_text("{" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()) + "}\n")
    print(path.name, path.stat().st_size, "bytes;", decisions)


def first_block(steps, threshold):
    module = flux()
    watched = Watched(module.single_transformer_blocks[-1])
    module.enable_cache(FirstBlockCacheConfig(threshold))

    def velocity(batch, x, sample, time):
        if time == 1:
            module._reset_stateful_cache()
        made, decided = [], []
        for prefix in ("", "null."):
            with module.cache_context(prefix or "cond"):
                made.append(evaluate(module, x, batch, sample, prefix, time))
            decided.append(watched.take())
        return made[1] + GUIDANCE * (made[0] - made[1]), decided

    with reference.KeepDouble(), torch.no_grad():
        write("first_block", *trajectories(steps, velocity), threshold=threshold, guidance=GUIDANCE,
              reference="diffusers hooks/first_block_cache.py")


class OneTensor(torch.nn.Module):
    """A single block as it was called when it took text and picture in one tensor."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, hidden_states, **more):
        text, picture = hidden_states.split([TOKENS, hidden_states.shape[1] - TOKENS], 1)
        return torch.cat(self.block(hidden_states=picture, encoder_hidden_states=text, **more), 1)


class Pipeline:
    """What the program asks a pipeline for."""

    def __init__(self):
        self.transformer = flux()
        blocks = self.transformer.single_transformer_blocks
        self.watched = Watched(blocks[-1])
        self.transformer.single_transformer_blocks = torch.nn.ModuleList(map(OneTensor, blocks))

    def enable_model_cpu_offload(self):
        pass

    def to(self, device):
        pass

    def __call__(self, prompt, num_inference_steps, generator):
        def velocity(batch, x, sample, time):
            return evaluate(self.transformer, x, batch, sample, "", time), [self.watched.take()]

        with reference.KeepDouble(), torch.no_grad():
            write("teacache", *trajectories(num_inference_steps, velocity), threshold=self.transformer.rel_l1_thresh,
                  reference="ali-vilab TeaCache4FLUX/teacache_flux.py")
        return types.SimpleNamespace(images=[types.SimpleNamespace(save=lambda path: None)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacache", type=pathlib.Path, required=True, help="a checkout of ali-vilab/TeaCache")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    first_block(steps=12, threshold=0.7)
    with mock.patch.object(diffusers.DiffusionPipeline, "from_pretrained", lambda *_, **__: Pipeline()):
        runpy.run_path(str(arguments.teacache / "TeaCache4FLUX/teacache_flux.py"))


if __name__ == "__main__":
    main()
