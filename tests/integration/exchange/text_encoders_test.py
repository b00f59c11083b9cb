"""Folders as transformers saves text encoders, T5ForConditionalGeneration with its decoder too: a recipe that names the folder and how
long texts are trains on them, alone or in a pipeline's folder.

Claim (weights): Folders that transformers saved of T5, UMT5, CLIP's text encoders and BERT are read as they are: sizes, names of
weights, tokenizer. Also: `text_encoders_test.cpp`
"""

import pathlib
import shutil
import sys

import torch
# Before `support`, which has another tokenizers.py on its path.
from transformers import (BertConfig, BertModel, CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel,
                          T5ForConditionalGeneration, UMT5Config, UMT5EncoderModel)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

sys.path.insert(0, str(t.source / "tests/integration/training"))
from encoders import captioned, held_out  # noqa: E402

torch.set_num_threads(1)
GOLDEN = t.source / "tests/golden/text_encoders"
T5 = dict(vocab_size=61, d_model=12, d_kv=6, d_ff=20, num_layers=2, num_decoder_layers=1, num_heads=2)
CLIP = dict(vocab_size=521, hidden_size=12, intermediate_size=20, projection_dim=10, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=9, eos_token_id=520, bos_token_id=519, pad_token_id=520)
BERT = dict(vocab_size=65, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=9)


def saved(name, model, tokenizer=None):
    folder = t.work / name
    model.save_pretrained(folder)
    if tokenizer:
        for file in (GOLDEN / tokenizer).iterdir():
            shutil.copy(file, folder)
    return str(folder)


def trains(name, plugin, weights, format="transformers", **options):
    tree = t.recipe(run=dict(name=name, steps=1, batch=4),
                    data=dict(shards=[captioned()], validation_shards=[held_out()], caption="txt"),
                    model=dict(plugin="dit_text", depth=1, width=16, heads=2, patch=2),
                    encoder__text=dict(plugin=plugin, weights=weights, format=format, tokens=8) | options)
    t.train(t.write_recipe(f"{name}.toml", tree), name)


def test_every_class_is_read_as_it_was_saved():
    classes = {
        "t5": (T5EncoderModel(T5Config(**T5)), "t5", "t5", "transformers"),
        "t5-1-1": (T5EncoderModel(T5Config(feed_forward_proj="gated-gelu", **T5)), "t5", "t5", "transformers"),
        "t5-whole": (T5ForConditionalGeneration(T5Config(tie_word_embeddings=False, **T5)), "t5", "t5", "transformers"),
        "umt5": (UMT5EncoderModel(UMT5Config(**T5)), "t5", "t5", "transformers"),
        "clip": (CLIPTextModel(CLIPTextConfig(**CLIP)), "clip_text", "clip", "transformers5"),
        "clip-projection": (CLIPTextModelWithProjection(CLIPTextConfig(**CLIP)), "clip_text", "clip", "transformers"),
        "bert": (BertModel(BertConfig(**BERT)), "bert", "bert", "transformers"),
    }
    for name, (model, plugin, tokenizer, format) in classes.items():
        trains(name, plugin, saved(f"{name}-saved", model, tokenizer), format)


def test_a_pipelines_folders_are_told_apart_by_their_classes():
    for folder, model, tokenizer in (("text_encoder", CLIPTextModelWithProjection(CLIPTextConfig(**CLIP)), "clip"),
                                     ("text_encoder_2", T5EncoderModel(T5Config(**T5)), "t5")):
        saved(f"pipeline/{folder}", model)
        shutil.copytree(GOLDEN / tokenizer, t.work / "pipeline" / folder.replace("text_encoder", "tokenizer"))
    trains("pipeline-t5", "t5", str(t.work / "pipeline"))
    trains("pipeline-clip", "clip_text", str(t.work / "pipeline"))


if __name__ == "__main__":
    t.main(globals())
