"""Text encoders in a training: T5 and CLIP side by side on one caption, joined as Stable Diffusion 3 joins them, with folders as
transformers saves them: weights, config.json, tokenizer.

Claim (layouts): T5 and CLIP under fsdp, tensor, ring and pipeline encode as one rank does, to 1e-12 in fp64, and bit for bit with
run.numerics = "one"; T5-XXL holds an eighth of itself on 8 ranks. Also: `encoders_test.cpp`, `text_encoders_test.cpp`
"""

import functools
import json
import pathlib
import random
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import dry_run  # noqa: E402
from encoders import LAYOUTS, captioned, held_out, near  # noqa: E402

GOLDEN = t.source / "tests/golden/text_encoders"
T5 = dict(num_layers=2, d_model=12, num_heads=4, d_kv=6, d_ff=24, vocab_size=61, relative_attention_num_buckets=32,
          relative_attention_max_distance=128, feed_forward_proj="relu", layer_norm_epsilon=1e-6)
CLIP = dict(num_hidden_layers=2, hidden_size=16, num_attention_heads=4, intermediate_size=24, vocab_size=521, max_position_embeddings=9,
            hidden_act="quick_gelu", layer_norm_eps=1e-5, eos_token_id=2, projection_dim=8)


def t5_shapes(c):
    inner, width = c["num_heads"] * c["d_kv"], c["d_model"]
    shapes = {"shared.weight": [c["vocab_size"], width], "encoder.final_layer_norm.weight": [width],
              "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": [c["relative_attention_num_buckets"], c["num_heads"]]}
    for i in range(c["num_layers"]):
        block = f"encoder.block.{i}.layer."
        shapes |= {f"{block}0.SelfAttention.{name}.weight": [inner, width] for name in "qkv"}
        shapes |= {f"{block}0.SelfAttention.o.weight": [width, inner], f"{block}0.layer_norm.weight": [width],
                   f"{block}1.DenseReluDense.wi.weight": [c["d_ff"], width], f"{block}1.DenseReluDense.wo.weight": [width, c["d_ff"]],
                   f"{block}1.layer_norm.weight": [width]}
    return shapes


def clip_shapes(c):
    width, inside = c["hidden_size"], c["intermediate_size"]

    def both(name, out, *into):
        return {f"{name}.weight": [out, *into], f"{name}.bias": [out]}

    shapes = {"embeddings.token_embedding.weight": [c["vocab_size"], width],
              "embeddings.position_embedding.weight": [c["max_position_embeddings"], width]} | both("final_layer_norm", width)
    for i in range(c["num_hidden_layers"]):
        layer = f"encoder.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= both(f"{layer}self_attn.{name}", width, width)
        shapes |= both(f"{layer}layer_norm1", width) | both(f"{layer}layer_norm2", width)
        shapes |= both(f"{layer}mlp.fc1", inside, width) | both(f"{layer}mlp.fc2", width, inside)
    return {"text_model." + name: shape for name, shape in shapes.items()} | {"text_projection.weight": [c["projection_dim"], width]}


def folder(name, shapes, config, architecture, tokenizer, seed=1, copies={}):
    """As transformers saves a model and its tokenizer."""
    path = t.work / name
    if path.exists():
        return path
    path.mkdir()
    for file in (GOLDEN / tokenizer).iterdir() if tokenizer else ():
        shutil.copy(file, path)
    draw = random.Random(seed)
    tensors = {key: ("F32", shape, [draw.gauss(1.0 if key.endswith("norm.weight") else 0.0, 0.3) for _ in range(t.product(shape))])
               for key, shape in shapes.items()}
    for copy, original in copies.items():
        tensors[copy] = tensors[original]
    t.write_tensors(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    return path


@functools.cache
def t5():
    return str(folder("t5", t5_shapes(T5), T5, "T5EncoderModel", "t5"))


@functools.cache
def clip():
    return str(folder("clip", clip_shapes(CLIP), CLIP, "CLIPTextModelWithProjection", "clip"))


def recipe(name, precision="fp64", joins=True, t5_options=None, **run):
    encoders = dict(encoder__clip=dict(plugin="clip_text", weights=clip(), format="transformers", tokens=8, layer=-2, final_norm=False,
                                       name="clip")) if joins else {}
    encoders["encoder__long"] = dict(plugin="t5", weights=t5(), format="transformers", tokens=9, name="long") | (t5_options or {})
    if joins:
        encoders["encoder__text"] = dict(plugin="join_text", wide=["clip"], then=["long"], pooled=["clip"])
    tree = t.recipe(run=dict(name=name, steps=3, precision=precision, batch=8, micro_batch=4) | run,
                    data=dict(shards=[captioned()], validation_shards=[held_out()], caption="txt"),
                    model=dict(plugin="dit_text", depth=2, width=32, heads=4, patch=2), validate=dict(every=3, samples=12), **encoders)
    return t.write_recipe(f"{name}.toml", tree)


def test_a_model_learns_alike_on_every_layout_that_text_encoders_are_cut_by():
    path = recipe("texts")
    t.train(path, "texts-one")
    for layout, (ranks, sets) in LAYOUTS.items():
        t.train(path, f"texts-{layout}", "--local-ranks", ranks, *t.sets(sets))
        for mine, other in zip(t.metrics("texts-one"), t.metrics(f"texts-{layout}")):
            for key in ("loss", "grad_norm"):
                near(float(mine[key]), float(other[key]), f"{layout}, step {mine['step']}: {key}")


def test_each_encoder_counts():
    path = recipe("texts-count")
    t.train(path, "texts-count")
    t.train(path, "texts-count-layer", encoder__clip__layer=-1)
    t.train(path, "texts-count-mask", encoder__long__mask=False)
    losses = [t.metrics(folder_of)[-1]["loss"] for folder_of in ("texts-count", "texts-count-layer", "texts-count-mask")]
    t.equal(len(set(losses)), 3, f"different losses of {losses}")


def test_with_one_number_all_bits_are_one_ranks():
    path = recipe("texts-bits", "fp32", threads=1, numerics="one")
    t.train(path, "texts-bits-one")
    for layout, sets in (("fsdp", LAYOUTS["fsdp"][1]), ("tensor", {"parallel.tensor": 2})):
        t.train(path, f"texts-bits-{layout}", "--local-ranks", 2, *t.sets(sets))
        t.same_metrics("texts-bits-one", f"texts-bits-{layout}")
    t.train(path, "texts-bits-micro", run__micro_batch=2)
    t.equal([row["loss"] for row in t.metrics("texts-bits-micro")], [row["loss"] for row in t.metrics("texts-bits-one")],
            "losses of other micro-batches")


def test_t5_xxl_holds_an_eighth_of_itself_on_8_ranks():
    xxl, numbers = dict(preset="t5-v1_1-xxl", weights="t5-v1_1-xxl", tokenizer="t5-v1_1-xxl", tokens=77, name="text"), 4_762_310_656
    path = recipe("xxl", "fp32", joins=False, t5_options=xxl, micro_batch=1)
    for name, layout in (("fsdp", {"parallel__shard": 8, "parallel__shard_plugin": "fsdp"}), ("tensor", {"parallel__tensor": 8})):
        options = layout | ({"model__heads": 8} if name == "tensor" else {})
        said, _, _ = dry_run.dry(path, "--ranks", "8", **options)
        t.equal(said["frozen_parameters"], {"encoder.long": numbers}, f"{name}: frozen numbers")
        held = said["largest"]["bytes"]["frozen"]
        t.check(abs(8 * held / (4 * numbers) - 1) < 0.01, f"{name}: a rank holds {held} bytes of {4 * numbers}")


def test_limits_are_those_of_the_weights():
    """And not of the sizes that the plugin has by itself: 77 places, 12 blocks."""
    size = CLIP | dict(max_position_embeddings=100, num_hidden_layers=13)
    options = dict(encoder__clip__weights=str(folder("long-clip", clip_shapes(size), size, "CLIPTextModelWithProjection", "clip")))
    path = recipe("long-texts")
    t.train(path, "long-texts", **options, encoder__clip__tokens=90, encoder__clip__layer=-13)

    def refused(part, **option):
        sets = {key.replace("__", "."): value for key, value in (options | option).items()} | {"run.output": str(t.work / "never")}
        t.refused(2, [part], "train", path, *t.sets(sets))

    refused("are more than the places it knows, 100", encoder__clip__tokens=101)
    refused("is before the first of 13 blocks", encoder__clip__layer=-14)


def test_of_two_folders_of_one_class_one_is_to_be_named():
    for name in ("text_encoder", "text_encoder_2"):
        shutil.copytree(clip(), t.work / "pair" / name)
    t.refused(7, ["pair", "has weights of one class in two folders, text_encoder/ and text_encoder_2/", "name the folder"],
              "train", recipe("pair-texts"), *t.sets({"run.output": str(t.work / "never"), "encoder.clip.weights": str(t.work / "pair")}))


def test_what_weights_and_recipe_do_not_agree_on_is_refused():
    path = recipe("refused-texts", joins=False, t5_options=dict(name="text"))

    def refused(code, parts, **options):
        sets = {"run.output": str(t.work / "never")} | {"encoder.long." + key: value for key, value in options.items()}
        t.refused(code, parts, "train", path, *t.sets(sets))

    def other(name, tensors=None, tokenizer="t5", copies={}, **config):
        shapes = t5_shapes(T5)
        shapes.update(tensors or {})
        return str(folder(name, {key: shape for key, shape in shapes.items() if shape}, T5 | config, "T5EncoderModel", tokenizer, copies=copies))

    refused(7, ['"d_model" is 16', "has 12"], weights=other("contradicts", d_model=16))
    refused(2, ["depth is 5", "it is 2"], depth=5)
    refused(7, ["tensor 'encoder.block.1.layer.1.layer_norm.weight' is missing"],
            weights=other("misses", {"encoder.block.1.layer.1.layer_norm.weight": None}))
    refused(7, ["tensor 'encoder.block.2.layer.0.layer_norm.weight' has no place"],
            weights=other("surplus", {"encoder.block.2.layer.0.layer_norm.weight": [12]}))
    refused(7, ["tensor 'encoder.block.0.layer.1.DenseReluDense.wo.weight' is", "transposed"],
            weights=other("turned", {"encoder.block.0.layer.1.DenseReluDense.wo.weight": [24, 12]}))
    refused(2, ["has a row for each of 400 pieces", "the vocabulary of"],
            weights=other("many", {"shared.weight": [400, 12]}, vocab_size=400))
    refused(2, ["tokenizer", "none lies by the weights"], weights=other("without-tokenizer", tokenizer=None))
    twice = "encoder.embed_tokens.weight"
    refused(7, [f"tensor '{twice}' differs from 'shared.weight'"], weights=other("two-tables", {twice: [61, 12]}))
    t.train(path, "with-decoder", encoder__long__weights=other(
        "with-decoder-weights", {"decoder.final_layer_norm.weight": [12], "lm_head.weight": [61, 12]}, copies={twice: "shared.weight"}))


if __name__ == "__main__":
    t.main(globals())
