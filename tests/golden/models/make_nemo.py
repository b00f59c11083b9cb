"""Cases of nemo_dit and moviegen: NeMo's DiTCrossAttentionModel and DiTLlamaModel.

    make_nemo.py --megatron DIR    with the Python of .deps/peers_nemo

nemo-toolkit is of PyPI; DIR is a checkout of NVIDIA/Megatron-LM at 9344d7b, NVIDIA's branch `cosmos`: the one Megatron that
NeMo's layers run on, since no release has norms of queries and keys, fewer heads of keys or a width of its own for the
text in CrossAttention, which NeMo's specifications and configurations name. Both are unmodified. TransformerEngine's layers are
Megatron's own or PyTorch's, which run on processors; what NeMo's packages import around them, and nothing calls, is
empty; generators and buffers of a GPU, which no number depends on here, too. What a case changes beside that it says.
"""

import argparse
import contextlib
import importlib
import importlib.util
import pathlib
import sys
import types
from unittest import mock

import diffusers.models.embeddings  # noqa: F401, before there are empty packages
import torch
from einops import rearrange

import reference

WIDTH = dict(hidden_size=48, num_attention_heads=4)
TEXT = 20  # its width


def empty(name, path=None, **names):
    """A package of these names: of a folder, whose modules can be imported; or of any others, which do nothing."""

    def anything(key):
        if key.startswith("__"):
            raise AttributeError(key)
        return mock.MagicMock()

    made = types.ModuleType(name)
    made.__path__ = [path] if path else []
    if not path:
        made.__getattr__ = anything
    for key, value in names.items():
        setattr(made, key, value)
    sys.modules[name] = made


class Norm:
    """TENorm: of the configuration's kind."""

    def __new__(cls, config, hidden_size, eps):
        assert config.normalization == "RMSNorm"
        return torch.nn.RMSNorm(hidden_size, eps=eps)


def megatron():
    """Megatron on one processor: no kernels, no generators of a GPU."""
    for name in ("shared_experts", "moe_layer"):  # of EC-DiT
        empty(f"megatron.core.transformer.moe.{name}")
    importlib.import_module("megatron.core.transformer.transformer_block")
    layers = importlib.import_module("megatron.core.tensor_parallel.layers")
    product = importlib.import_module("megatron.core.transformer.dot_product_attention")
    empty("megatron.core.transformer.custom_layers.transformer_engine",
          TEColumnParallelLinear=layers.ColumnParallelLinear, TERowParallelLinear=layers.RowParallelLinear,
          TEDotProductAttention=product.DotProductAttention, TENorm=Norm, SplitAlongDim=None)
    empty("transformer_engine", pytorch=types.SimpleNamespace(RMSNorm=torch.nn.RMSNorm))
    state = importlib.import_module("megatron.core.parallel_state")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    state.initialize_model_parallel()
    state.get_global_memory_buffer = lambda: types.SimpleNamespace(
        get_tensor=lambda shape, dtype, _: torch.zeros(shape, dtype=dtype))
    parallel = importlib.import_module("megatron.core.tensor_parallel")
    parallel.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)


def nemo():
    """models/model.py with its configurations, dit_model.py and dit_llama_model.py."""
    folder = pathlib.Path(importlib.util.find_spec("nemo").origin).parent.parent
    for name in ("nemo", "nemo.collections", "nemo.collections.diffusion", "nemo.collections.diffusion.models",
                 "nemo.collections.diffusion.models.dit", "nemo.collections.diffusion.models.dit_llama"):
        empty(name, f"{folder}/{name.replace('.', '/')}")
    for name in ("wandb", "nemo.collections.diffusion.sampler", "nemo.collections.diffusion.sampler.edm",
                 "nemo.collections.diffusion.sampler.edm.edm_pipeline", "nemo.collections.llm",
                 "nemo.collections.llm.gpt", "nemo.collections.llm.gpt.model", "nemo.lightning.pytorch",
                 "nemo.lightning.pytorch.optim"):
        empty(name)
    empty("nemo.collections.llm.gpt.model.base", GPTModel=torch.nn.Module)
    empty("nemo.lightning", io=types.SimpleNamespace(IOMixin=object))
    empty("nemo.lightning.megatron_parallel", MaskedTokenLossReduction=object, MegatronLossReduction=object)
    models = importlib.import_module("nemo.collections.diffusion.models.model")
    return models, importlib.import_module("nemo.collections.diffusion.models.dit.dit_embeddings")


def exact_table(module):
    """Sines of frames, columns and rows before they were rounded to float32."""
    if not hasattr(module.pos_embedder, "pos_embedding"):
        return
    table, D = module.pos_embedder.pos_embedding.weight, module.config.hidden_size
    sizes = (module.pos_embedder.t, module.pos_embedder.h, module.pos_embedder.w)
    t, h, w = (axis.flatten().double() for axis in torch.meshgrid(*map(torch.arange, sizes), indexing="ij"))

    def sincos(places, width):
        angle = places.unsqueeze(1) * 10000.0 ** (-torch.arange(width // 2, dtype=torch.float64) / (width // 2))
        return torch.cat([angle.sin(), angle.cos()], 1)

    exact = torch.cat([sincos(t, D // 4), sincos(w, 3 * D // 8), sincos(h, 3 * D // 8)], 1)
    assert (table - exact).abs().max() < 1e-6
    table.data = exact


def case(name, model, module, options, patch, x, lengths=None, fps=None, prepare=None, changes=""):
    channels, frames, rows, columns = x
    samples = len(lengths or [0, 0])
    inputs = dict(x=reference.drawn(samples, *x), t=reference.floats([0.25, 1.5, -0.75][:samples]))
    if lengths:
        inputs |= dict(text=reference.drawn(samples, max(lengths), TEXT), text_mask=reference.mask(lengths))
    if fps:
        inputs["fps"] = reference.floats(fps)

    def forward(theirs, batch):
        tokens = rearrange(batch["x"], "B C T (H p) (W q) -> B (T H W) (p q C)", p=patch, q=patch)
        sizes = (frames, rows // patch, columns // patch)
        places = torch.stack(torch.meshgrid(*map(torch.arange, sizes), indexing="ij"), -1).reshape(1, -1, 3)
        text = torch.zeros(samples, 1, TEXT, dtype=torch.float64)
        if lengths:  # of full length, or dropped
            text = torch.where(batch["text_mask"].any(1)[:, None, None], batch["text"], 0.0)
        given = dict(fps=batch["fps"]) if fps else {}
        y = theirs(tokens, batch["t"], text, pos_ids=places.expand(samples, -1, -1), **given)
        return rearrange(y, "B (T H W) (p q C) -> B C T (H p) (W q)", T=frames, H=rows // patch, p=patch, q=patch)

    def prepared(theirs):
        exact_table(theirs)
        if prepare:
            prepare(theirs)

    reference.case(
        name, model=model, format="nemo", options=options | dict(patch=patch), inputs=inputs, forward=forward,
        prepare=prepared, module=module, changes=changes, reference=f"nemo {type(module).__name__}",
        needs=reference.needs(x, channels, text_width=TEXT if lengths else 0,
                              more=[reference.tensor("fps", [])] if fps else []))


def with_residual(theirs):
    """x + cross(x) goes on to the perceptron and past it, as in the paper."""
    for layer in theirs.decoder.layers:
        seen = {}

        def attended(_, given, out, seen=seen):
            seen["text"] = out[0]
            return given[0] + out[0], out[1]

        layer.cross_attention.register_forward_hook(attended)
        layer.register_forward_hook(lambda _, given, out, seen=seen: (out[0] + seen["text"], out[1]))


def without_norms(theirs):
    for layer in theirs.decoder.layers:
        for attention in (layer.self_attention, layer.cross_attention):
            attention.q_layernorm = attention.k_layernorm = None
    return theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True, metavar="DIR", help="a checkout of NVIDIA/Megatron-LM, 9344d7b")
    sys.path.insert(0, parser.parse_args().megatron)
    megatron()
    models, embeddings = nemo()
    spec = importlib.import_module("nemo.collections.diffusion.models.dit.dit_layer_spec")
    dit = importlib.import_module("nemo.collections.diffusion.models.dit.dit_model").DiTCrossAttentionModel

    small = dict(num_layers=2, crossattn_emb_size=TEXT, **WIDTH)
    ours = dict(depth=2, width=48, heads=4)
    sizes = dict(in_channels=4, out_channels=4)

    def nemo_dit(config, **given):
        given = dict(max_img_h=config.max_img_h, max_img_w=config.max_img_w, max_frames=config.max_frames,
                     patch_spatial=config.patch_spatial) | given
        return dit(config, **given)

    def config_of(name, **given):
        return getattr(models, name)(params_dtype=torch.float32, bf16=False, use_cpu_initialization=True,
                                     masked_softmax_fusion=False,
                                     **given)

    class Added(embeddings.FactorizedLearnable3DEmbedding, embeddings.SinCosPosEmb3D):
        """Learned positions, which the model adds to its tokens as it does with a table of sines."""

    def factorised(*given, **named):
        made = embeddings.FactorizedLearnable3DEmbedding(*given, **named)
        made.__class__ = Added
        return made

    def without_text(attn_mask_type):
        made = spec.get_dit_adaln_block_with_transformer_engine_spec(attn_mask_type)
        made.submodules.cross_attention = spec.IdentityOp
        return made

    case("nemo_dit_plain", "nemo_dit",
         nemo_dit(config_of("DiTConfig", **small, ffn_hidden_size=96, max_img_h=16, max_img_w=16, max_frames=4,
                            patch_spatial=4), transformer_decoder_layer_spec=without_text, **sizes),
         ours | dict(max_frames=4, max_side=16, mlp_ratio=2, qk_norm=True, fps=30.0), 4, [4, 3, 8, 12])
    with_groups = dict(num_query_groups=2, max_img_h=12, max_img_w=12, max_frames=3)
    ours |= dict(max_frames=3, max_side=12, kv_heads=2)
    texts = dict(lengths=[5, 0, 5], fps=[24.0, 8.0, 30.0])
    case("nemo_dit_text", "nemo_dit", nemo_dit(config_of("DiTConfig", **small, **with_groups), **sizes), ours, 2,
         [4, 2, 8, 12], **texts)
    case("nemo_dit_factorised", "nemo_dit",
         nemo_dit(config_of("DiTConfig", **small, **with_groups), pos_embedder=factorised, **sizes),
         ours | dict(positions="factorised"), 2, [4, 2, 8, 12], **texts,
         changes="NeMo's learned positions, which its layer leaves out, added to the tokens")

    llama = importlib.import_module("nemo.collections.diffusion.models.dit_llama.dit_llama_model").DiTLlamaModel
    ours = dict(depth=2, width=48, heads=4, hidden=80, max_frames=4, max_side=16)

    def moviegen(groups):
        config = config_of("DiTLlama1BConfig", **small, ffn_hidden_size=80, max_img_h=16, max_img_w=16, max_frames=4,
                           num_query_groups=groups, bias_activation_fusion=False)
        return llama(config, max_img_h=16, max_img_w=16, max_frames=4, patch_spatial=2, **sizes)

    case("moviegen_nemo", "moviegen", moviegen(2), ours | dict(cross="nemo", kv_heads=2, qk_norm=True), 2, [4, 3, 8, 12],
         **texts)
    case("moviegen_residual", "moviegen", without_norms(moviegen(4)), ours | dict(cross="residual", fps=30.0), 2,
         [4, 3, 8, 12], lengths=[5, 0, 5], prepare=with_residual,
         changes="x + cross(x) as in the paper, by hooks, and no norms of queries and keys")

    for name, config in {"S": "DiTConfig", "B": "DiTBConfig", "L": "DiTLConfig", "XL": "DiTXLConfig",
                         "7B": "DiT7BConfig"}.items():
        config = config_of(config, perform_initialization=False)
        reference.count(f"nemo_dit_{name.lower()}", model="nemo_dit", format="nemo", options=dict(preset=name),
                        needs=reference.needs([16, 8, 64, 64], 16, text_width=config.crossattn_emb_size),
                        module=lambda: nemo_dit(config))
    for name in ("1B", "5B", "30B"):
        config = config_of(f"DiTLlama{name}Config", perform_initialization=False)
        reference.count(
            f"moviegen_{name.lower()}", model="moviegen", format="nemo", options=dict(preset=name, qk_norm=True),
            needs=reference.needs([16, 8, 64, 64], 16, text_width=config.crossattn_emb_size),
            module=lambda: llama(config, max_img_h=240, max_img_w=240, max_frames=128, patch_spatial=2))


if __name__ == "__main__":
    main()
