"""Golden outputs and gradients of dit_text, pixart, st_dit and dit_moe, at weights made by a formula from their names.

    make.py            makes *.json beside this file; needs diffusers (./dev peers) and transformers from PyPI

What each case is compared with:
    pixart            diffusers' PixArtTransformer2DModel, given our learned null text
    dit_moe_switch    diffusers' DiTTransformer2DModel, whose MLPs are transformers' SwitchTransformersSparseMLP
    the others        plain.py, written from the papers: no peer has these combinations

Weights and inputs come from the formula of ../dit/make.py, by the names of our parameters. Everything runs in float64
(time features and rotary angles in float32, as defined; the features as ../dit/make.py says). The gradient is that of
sum(prediction * grad_output) + sum(balance).
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch

from plain import Plain

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "dit"))
import make as formula  # noqa: E402

TIMES = [0.0, 250.25, 999.0]
PICTURE = dict(x=[3, 8, 12], out_channels=6, classes=0, text_width=0, t=TIMES)
TEXT = dict(text_width=12, text_lengths=[6, 0, 3])  # 0: the null condition
VIDEO = dict(x=[3, 3, 8, 4], out_channels=3, classes=0, text_width=0, t=TIMES)
LABELS = dict(classes=10, label=[7, 10, 0])
SIZE = dict(depth=2, width=48, heads=4, patch=2)
CASES = {
    "pixart": PICTURE | TEXT | dict(x=[3, 8, 8], options=SIZE),
    "dit_text_modulated": PICTURE | TEXT | dict(
        options=SIZE | dict(cross="modulated", qk_norm=True, rotary=True, kv_heads=2)),
    "st_dit_joint": VIDEO | TEXT | dict(
        x=[3, 4, 8, 4], options=SIZE | dict(full=True, qk_norm=True, rotary="all", patch_frames=2, kv_heads=1)),
    "dit_moe_switch": PICTURE | LABELS | dict(x=[3, 8, 8], options=SIZE | dict(experts=3, top_k=1, balance=0.5)),
    "dit_moe_token_choice": PICTURE | LABELS | dict(options=SIZE | dict(
        experts=5, top_k=2, balance=0.5, normalise=True, shared_ratio=1, moe_every=2)),
    "dit_moe_expert_choice": PICTURE | LABELS | dict(options=SIZE | dict(experts=3, router="expert_choice")),
}


def scale(name, shape):
    if name == "label.table":
        return 1.0
    return 0.25 if len(shape) == 1 else math.sqrt(3.0 / shape[-1])


def values(name, shape):
    return formula.values(name, shape, scale(name, shape)).double()


def inputs(case):
    samples = len(case["t"])
    batch = {"x": formula.values("x", [samples, *case["x"]], 1.75).double(),
             "t": torch.tensor(case["t"], dtype=torch.float32),
             "grad_output": formula.values("grad_output", [samples, case["out_channels"], *case["x"][1:]], 1.75)}
    if "label" in case:
        batch["label"] = torch.tensor(case["label"])
    if "text_lengths" in case:
        longest = max(case["text_lengths"])
        batch["text"] = formula.values("text", [samples, longest, case["text_width"]], 1.75).double()
        batch["text_mask"] = torch.arange(longest) < torch.tensor(case["text_lengths"]).unsqueeze(1)
    return batch


# --- peers: their modules, filled with our parameters' parts -----------------------------------------------


class Filled:
    """A peer's parameters as ours. names: ours -> theirs, whose rows are put one under another; shapes: where ours is
    more than their rows."""

    def __init__(self, model, names, shapes):
        self.theirs, self.names, self.leaves = dict(model.named_parameters()), names, {}
        assert sorted(sum(names.values(), [])) == sorted(self.theirs), set(self.theirs) ^ set(sum(names.values(), []))
        for ours, theirs in names.items():
            parts = [self.theirs[n] for n in theirs]
            counts = [p.shape[0] for p in parts]
            shape = shapes.get(ours, [sum(counts), *([] if parts[0].dim() == 1 else [parts[0][0].numel()])])
            rows = values(ours, shape).reshape(sum(counts), -1).split(counts)
            for part, row in zip(parts, rows):
                part.data.copy_(row.reshape(part.shape))
            self.leaves[ours] = shape

    def gradients(self):
        return {ours: torch.cat([self.theirs[n].grad for n in self.names[ours]]).reshape(shape)
                for ours, shape in self.leaves.items()}


def layer(names, ours, *theirs):
    for leaf in (".weight", ".bias"):
        names[ours + leaf] = [t + leaf for t in theirs]


def single_ends(names):
    layer(names, "patches.map", "pos_embed.proj")
    layer(names, "time.in", "adaln_single.emb.timestep_embedder.linear_1")
    layer(names, "time.out", "adaln_single.emb.timestep_embedder.linear_2")
    layer(names, "modulation.map", "adaln_single.linear")
    layer(names, "text.in", "caption_projection.linear_1")
    layer(names, "text.out", "caption_projection.linear_2")
    layer(names, "final.out", "proj_out")
    names["final.table"] = ["scale_shift_table"]


def single_block(names, ours, theirs, attention, has_cross):
    names[ours + "modulation.table"] = [theirs + "scale_shift_table"]
    layer(names, ours + attention + ".qkv", *[f"{theirs}attn1.to_{part}" for part in "qkv"])
    layer(names, ours + attention + ".proj", theirs + "attn1.to_out.0")
    if has_cross:
        layer(names, ours + "cross.q", theirs + "attn2.to_q")
        layer(names, ours + "cross.kv", theirs + "attn2.to_k", theirs + "attn2.to_v")
        layer(names, ours + "cross.proj", theirs + "attn2.to_out.0")
    layer(names, ours + "mlp.up", theirs + "ff.net.0.proj")
    layer(names, ours + "mlp.down", theirs + "ff.net.2")


def with_null(batch, null):
    """Text and the bias that PixArt and Latte make of its mask."""
    is_null = ~batch["text_mask"].any(1, keepdim=True)
    bias = (1 - (batch["text_mask"] | is_null).double()) * -10000.0
    return torch.where(is_null.unsqueeze(-1), null, batch["text"]), bias.unsqueeze(1)


def peer_sizes(case):
    o = case["options"]
    return dict(num_attention_heads=o["heads"], attention_head_dim=o["width"] // o["heads"], in_channels=case["x"][0],
                out_channels=case["out_channels"], cross_attention_dim=o["width"], sample_size=case["x"][-1],
                patch_size=o["patch"], caption_channels=case["text_width"], attention_bias=True,
                activation_fn="gelu-approximate", norm_type="ada_norm_single", norm_elementwise_affine=False,
                norm_eps=1e-6)


def exact_table(model, case):
    """The table of places before it was rounded to float32."""
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    side = case["x"][-1] // case["options"]["patch"]
    table = torch.as_tensor(get_2d_sincos_pos_embed(case["options"]["width"], side, base_size=side))
    model.pos_embed.pos_embed = table.double().unsqueeze(0)


def pixart(case, batch):
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel(num_layers=case["options"]["depth"], **peer_sizes(case))
    model = formula.with_nearest_features(model.double().eval())
    exact_table(model, case)
    names = {}
    single_ends(names)
    for i in range(case["options"]["depth"]):
        single_block(names, f"blocks.{i}.", f"transformer_blocks.{i}.", "attn", True)
    filled = Filled(model, names, {})
    null = values("text.null", [case["text_width"]]).requires_grad_()
    text, bias = with_null(batch, null)
    prediction = model(batch["x"], text, batch["t"], encoder_attention_mask=bias).sample
    (prediction * batch["grad_output"]).sum().backward()
    return {"prediction": prediction.detach()} | filled.gradients() | {"text.null": null.grad}


def switch(case, batch):
    from diffusers import DiTTransformer2DModel
    from transformers import SwitchTransformersConfig
    from transformers.models.switch_transformers import modeling_switch_transformers as peer

    o = case["options"]
    model = DiTTransformer2DModel(
        num_attention_heads=o["heads"], attention_head_dim=o["width"] // o["heads"], in_channels=case["x"][0],
        out_channels=case["out_channels"], num_layers=o["depth"], sample_size=case["x"][-1], patch_size=o["patch"],
        num_embeds_ada_norm=case["classes"])
    config = SwitchTransformersConfig(
        d_model=o["width"], d_ff=4 * o["width"], num_experts=o["experts"], router_bias=True,
        expert_capacity=10**6, dropout_rate=0.0, dense_act_fn="gelu_pytorch_tanh")
    for block in model.transformer_blocks:
        block.ff = peer.SwitchTransformersSparseMLP(config)
        block.ff.router.dtype = torch.float64
        for expert in block.ff.experts.values():  # theirs have no biases
            expert.wi.bias = torch.nn.Parameter(torch.empty(4 * o["width"]))
            expert.wo.bias = torch.nn.Parameter(torch.empty(o["width"]))
        block.norm1.emb.time_proj.downscale_freq_shift = 0  # as facebookresearch/DiT has it
        block.norm3.eps = 1e-6
        block.norm1.emb = model.transformer_blocks[0].norm1.emb  # they keep a copy in each block
    model = formula.with_nearest_features(model.double().eval())
    exact_table(model, case)
    losses = []

    def balance(router, _, outputs):
        chosen, _, logits = outputs
        for b in range(len(case["t"])):
            losses.append(peer.load_balancing_loss_func(logits[b : b + 1].softmax(-1), chosen[b : b + 1].argmax(-1)))

    emb, names, shapes = "transformer_blocks.0.norm1.emb.", {}, {}
    layer(names, "patches.map", "pos_embed.proj")
    layer(names, "time.in", emb + "timestep_embedder.linear_1")
    layer(names, "time.out", emb + "timestep_embedder.linear_2")
    names["label.table"] = [emb + "class_embedder.embedding_table.weight"]
    layer(names, "final.modulation", "proj_out_1")
    layer(names, "final.out", "proj_out_2")
    for i, block in enumerate(model.transformer_blocks):
        block.ff.router.register_forward_hook(balance)
        ours, theirs = f"blocks.{i}.", f"transformer_blocks.{i}."
        layer(names, ours + "modulation.map", theirs + "norm1.linear")
        layer(names, ours + "attn.qkv", *[f"{theirs}attn1.to_{part}" for part in "qkv"])
        layer(names, ours + "attn.proj", theirs + "attn1.to_out.0")
        layer(names, ours + "moe.router", theirs + "ff.router.classifier")
        experts = [f"{theirs}ff.experts.expert_{e}." for e in range(o["experts"])]
        leaves = {"up": "wi.weight", "up_bias": "wi.bias", "down": "wo.weight", "down_bias": "wo.bias"}
        for part, leaf in leaves.items():
            names[f"{ours}moe.experts.{part}"] = [e + leaf for e in experts]
            first = block.ff.experts["expert_0"].get_parameter(leaf)
            shapes[f"{ours}moe.experts.{part}"] = [o["experts"], *first.shape]
    filled = Filled(model, names, shapes)
    prediction = model(batch["x"], batch["t"], batch["label"]).sample
    balance_B = o["balance"] * torch.stack(losses).reshape(o["depth"], -1).sum(0)
    ((prediction * batch["grad_output"]).sum() + balance_B.sum()).backward()
    return {"prediction": prediction.detach(), "balance": balance_B.detach()} | filled.gradients()


# --- plain PyTorch -------------------------------------------------------------------------------------------


def plain(model, case, batch):
    reference = Plain(case, values, formula.time_features)
    prediction = getattr(reference, model)(batch)
    ((prediction * batch["grad_output"]).sum() + torch.as_tensor(reference.balance).sum()).backward()
    result = {"prediction": prediction.detach()} | {name: leaf.grad for name, leaf in reference.p.items()}
    if reference.o.get("balance"):
        result["balance"] = reference.balance.detach()
    assert reference.smallest_margin > 1e-5, "a choice that rounding could tip"
    return result


# --- the files ----------------------------------------------------------------------------------------------

PEERS = {"pixart": pixart, "dit_moe_switch": switch}


def model_of(name):
    return next(model for model in ("dit_text", "pixart", "dit_moe", "st_dit") if name.startswith(model))


def reference(name, case):
    """prediction, balance where there is one, and every parameter's gradient, in float64."""
    batch = inputs(case)
    return PEERS[name](case, batch) if name in PEERS else plain(model_of(name), case, batch)


def lines(tensors):
    digests = {name: formula.digest(name, tensor) for name, tensor in tensors.items()}
    return ",\n".join(f"{json.dumps(name)}: {json.dumps(digest)}" for name, digest in digests.items())


def main():
    torch.set_num_threads(1)
    for name, case in CASES.items():
        case = case | {"model": model_of(name), "peer": name in PEERS}
        tensors = reference(name, case)
        path = HERE / f"{name}.json"
        path.write_text(f'{{"case": {json.dumps(case)},\n"tensors": {{\n{lines(tensors)}\n}}}}\n')
        print(path.name, len(tensors), "tensors", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
