"""Golden encodings of texts: transformers' classes, filled by the formula of models/reference.py from their own names, on ids of small
tokenizers that are trained here.

    make.py     makes *.json and the folders clip, bert and t5 beside this file; needs transformers (./dev peers), sentencepiece

tests/golden/text_encoders_test.cpp fills our encoder through its `foreign(format)` with the same numbers, gives it the texts, and compares
ids, masks and embeddings; what the class's config.json and the shapes of its weights say it must read by itself. Nothing of the classes
is changed; they run in float64 throughout (reference.KeepDouble). The ids of T5 are SentencePiece's, with the end behind them.
"""

import io
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))
import reference  # noqa: E402

import sentencepiece  # noqa: E402
import torch  # noqa: E402
import transformers as hf  # noqa: E402

reference.HERE = HERE
TEXTS = ["a red apple", "", "Two green apples, and three pears; four plums beside five cherries on the old table", "Grüße: ein Äpfelchen"]
TOKENS = 9


# --- tokenizers -----------------------------------------------------------------------------------------------


def byte_letters():
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte) for byte in printed] + [chr(256 + i) for i in range(len(others))]


def write_clip(folder):
    letters = byte_letters()
    merges = [("a", "p"), ("ap", "p"), ("l", "e</w>"), ("app", "le</w>"), ("r", "e"), ("re", "d</w>"), ("e", "n</w>")]
    words = letters + [letter + "</w>" for letter in letters] + ["".join(pair) for pair in merges]
    words += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}, ensure_ascii=False))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, merges), ""]))
    tokenizer = hf.CLIPTokenizer.from_pretrained(folder)
    return len(words), rows_of(tokenizer)


def write_bert(folder):
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters), ",", ";", ":", "red", "apple",
             "green", "and", "##s", "table"]
    words = list(dict.fromkeys(words))
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("".join(word + "\n" for word in words))
    return len(words), rows_of(hf.BertTokenizer.from_pretrained(folder))


def write_t5(folder):
    model = io.BytesIO()
    corpus = [text for text in TEXTS if text] * 20 + ["red apples and green pears", "an old table of four"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, vocab_size=45, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        num_threads=1, minloglevel=1, normalization_rule_name="identity")
    folder.mkdir(exist_ok=True)
    (folder / "spiece.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    rows = [processor.encode(text)[:TOKENS - 1] + [1] for text in TEXTS]
    return processor.get_piece_size(), [(row + [0] * (TOKENS - len(row)), len(row)) for row in rows]


def rows_of(tokenizer):
    made = [tokenizer(text, padding="max_length", truncation=True, max_length=TOKENS) for text in TEXTS]
    return [(one["input_ids"], sum(one["attention_mask"])) for one in made]


# --- cases ----------------------------------------------------------------------------------------------------


def case(name, *, encoder, options, sizes, module, rows, forward, format="transformers", prefix=""):
    """Writes NAME.json. options: what a recipe says; sizes: what weights and config.json say. forward(module, ids, mask) gives "text", and
    "text_pooled" where there is one. prefix: before each of the module's names in files."""
    torch.set_num_threads(1)
    reference.fill(module.eval(), {n: prefix + n for n in reference.learned(module)})
    module.double()
    ids = torch.tensor([row for row, _ in rows])
    mask = torch.tensor([[place < length for place in range(TOKENS)] for _, length in rows])
    with torch.no_grad(), reference.KeepDouble():
        made = forward(module, ids, mask.long())
    assert all(tensor.dtype == torch.float64 for tensor in made.values())
    if options.get("zero_padding"):
        made["text"] = made["text"] * mask.unsqueeze(-1)
    config = {key: value for key, value in module.config.to_dict().items() if isinstance(value, (bool, int, float, str))}
    reference.write(name, {
        "case": {"encoder": encoder, "options": dict(tokens=TOKENS) | options, "sizes": sizes, "format": format, "config": config,
                 "reference": reference.name_of(module), "texts": TEXTS},
        "ids": [row for row, _ in rows], "lengths": [length for _, length in rows],
        "tensors": {n: reference.digest(n, value, 64) for n, value in made.items()}})


def count(name, *, encoder, options, module, format="transformers", prefix=""):
    """Writes NAME.json: number, names and shapes of the parameters."""
    with torch.device("meta"):
        made = module()
    theirs = {prefix + n: p for n, p in reference.learned(made).items()}
    lines = "".join(f"{n} {list(theirs[n].shape)}\n" for n in sorted(theirs))
    reference.write(name, {"case": {"encoder": encoder, "options": options, "format": format, "reference": reference.name_of(made)},
                           "parameters": sum(p.numel() for p in theirs.values()), "names": f"{reference.formula.fnv1a(lines):016x}"})


def eager(config):
    config._attn_implementation = "eager"
    return config


def t5_cases():
    pieces, rows = write_t5(HERE / "t5")
    sizes = dict(depth=2, width=12, heads=3, head_width=6, hidden=20, vocabulary=pieces + 16, eps=1e-6, distance=128, buckets=32,
                 gated=False, own_positions=False)

    def config(of, sizes):
        return eager(of(vocab_size=sizes["vocabulary"], d_model=sizes["width"], d_kv=sizes["head_width"], d_ff=sizes["hidden"],
                        num_layers=sizes["depth"], num_heads=sizes["heads"], layer_norm_epsilon=sizes["eps"],
                        relative_attention_num_buckets=sizes["buckets"], relative_attention_max_distance=sizes["distance"],
                        feed_forward_proj="gated-gelu" if sizes["gated"] else "relu"))

    def masked(module, ids, mask):
        return {"text": module(ids, attention_mask=mask).last_hidden_state}

    def unmasked(module, ids, mask):
        return {"text": module(ids).last_hidden_state}

    case("t5_first", encoder="t5", options=dict(zero_padding=True), sizes=sizes, rows=rows, forward=masked,
         module=hf.T5EncoderModel(config(hf.T5Config, sizes)))
    few = sizes | dict(gated=True, buckets=8, distance=6, eps=1e-2)  # places are in all of them
    case("t5_second", encoder="t5", options=dict(mask=False), sizes=few, rows=rows, forward=unmasked,
         module=hf.T5EncoderModel(config(hf.T5Config, few)))
    own = sizes | dict(gated=True, own_positions=True)
    case("umt5", encoder="t5", options={}, sizes=own, rows=rows, forward=masked, module=hf.UMT5EncoderModel(config(hf.UMT5Config, own)))

    xxl = dict(d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu")
    first = dict(d_model=1024, d_kv=128, d_ff=65536, num_layers=24, num_heads=128)
    count("t5_11b", encoder="t5", options=dict(preset="t5-11b"), module=lambda: hf.T5EncoderModel(hf.T5Config(**first)))
    count("t5_v1_1_xxl", encoder="t5", options=dict(preset="t5-v1_1-xxl"), module=lambda: hf.T5EncoderModel(hf.T5Config(**xxl)))
    count("umt5_xxl", encoder="t5", options=dict(preset="umt5-xxl"),
          module=lambda: hf.UMT5EncoderModel(hf.UMT5Config(vocab_size=256384, **xxl)))


def clip_cases():
    words, rows = write_clip(HERE / "clip")
    sizes = dict(depth=3, width=12, heads=2, hidden=20, vocabulary=words, positions=TOKENS + 2, eps=1e-5, activation="quick_gelu",
                 projection=0, end_token=2)

    def config(sizes, projection=12):
        return eager(hf.CLIPTextConfig(
            vocab_size=sizes["vocabulary"], hidden_size=sizes["width"], intermediate_size=sizes["hidden"], projection_dim=projection,
            num_hidden_layers=sizes["depth"], num_attention_heads=sizes["heads"], max_position_embeddings=sizes["positions"],
            hidden_act=sizes["activation"], layer_norm_eps=sizes["eps"], bos_token_id=0, pad_token_id=1, eos_token_id=sizes["end_token"]))

    def last(module, ids, mask):
        made = module(ids)
        return {"text": made.last_hidden_state, "text_pooled": made.pooler_output}

    def before(final_norm):
        def forward(module, ids, mask):
            made = module(ids, output_hidden_states=True)
            tokens = made.hidden_states[-2]
            norm = module.text_model.final_layer_norm if hasattr(module, "text_model") else module.final_layer_norm
            return {"text": norm(tokens) if final_norm else tokens,
                    "text_pooled": made.text_embeds if "text_embeds" in made else made.pooler_output}
        return forward

    case("clip_last", encoder="clip_text", options={}, sizes=sizes, rows=rows, forward=last, prefix="text_model.",
         module=hf.CLIPTextModel(config(sizes)))
    ends = sizes | dict(activation="gelu", end_token=words - 1, eps=1e-2)
    case("clip_skip", encoder="clip_text", options=dict(layer=-2), sizes=ends, rows=rows, forward=before(final_norm=True),
         format="transformers5", module=hf.CLIPTextModel(config(ends)))
    projected = ends | dict(projection=10)
    case("clip_projection", encoder="clip_text", options=dict(layer=-2, final_norm=False), sizes=projected, rows=rows,
         forward=before(final_norm=False), module=hf.CLIPTextModelWithProjection(config(projected, 10)))
    # A pad that is not the end, as SD2's tokenizer has.
    pad = words - 3
    padded = [(row[:length] + [pad] * (TOKENS - length), length) for row, length in rows]
    case("clip_pad", encoder="clip_text", options=dict(pad="en</w>", layer=-1, final_norm=True), sizes=sizes, rows=padded, forward=last,
         prefix="text_model.", module=hf.CLIPTextModel(config(sizes)))

    def model(of, **sizes):
        return lambda: of(hf.CLIPTextConfig(vocab_size=49408, max_position_embeddings=77, **sizes))

    count("clip_l", encoder="clip_text", options=dict(preset="clip-l"), prefix="text_model.", module=model(
        hf.CLIPTextModel, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12))
    count("clip_sd2", encoder="clip_text", options=dict(preset="sd2"), prefix="text_model.", module=model(
        hf.CLIPTextModel, hidden_size=1024, intermediate_size=4096, num_hidden_layers=23, num_attention_heads=16, hidden_act="gelu"))
    count("clip_g", encoder="clip_text", options=dict(preset="clip-g"), module=model(
        hf.CLIPTextModelWithProjection, hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=20,
        hidden_act="gelu", projection_dim=1280))


def bert_cases():
    words, rows = write_bert(HERE / "bert")
    sizes = dict(depth=2, width=12, heads=3, hidden=20, vocabulary=words, positions=TOKENS + 2, types=2, eps=1e-12, pooler=True)

    def config(sizes):
        return eager(hf.BertConfig(
            vocab_size=sizes["vocabulary"], hidden_size=sizes["width"], intermediate_size=sizes["hidden"], num_hidden_layers=sizes["depth"],
            num_attention_heads=sizes["heads"], max_position_embeddings=sizes["positions"], type_vocab_size=sizes["types"],
            layer_norm_eps=sizes["eps"]))

    def pooled(how):
        def forward(module, ids, mask):
            made = module(ids, attention_mask=mask)
            tokens, own = made.last_hidden_state, mask.unsqueeze(-1)
            pool = {"pooler": lambda: made.pooler_output, "cls": lambda: tokens[:, 0],
                    "mean": lambda: (tokens * own).sum(1) / own.sum(1)}
            return {"text": tokens, "text_pooled": pool[how]()}
        return forward

    case("bert_pooler", encoder="bert", options=dict(pooling="pooler"), sizes=sizes, rows=rows, forward=pooled("pooler"),
         module=hf.BertModel(config(sizes)))
    case("bert_mean", encoder="bert", options=dict(pooling="mean", clean="whitespace", zero_padding=True), sizes=sizes, rows=rows,
         forward=pooled("mean"), module=hf.BertModel(config(sizes)))
    bare = sizes | dict(pooler=False, types=1, eps=1e-2)
    case("bert_cls", encoder="bert", options=dict(pooling="cls"), sizes=bare, rows=rows, forward=pooled("cls"),
         module=hf.BertModel(config(bare), add_pooling_layer=False))
    count("minilm_l6", encoder="bert", options={}, module=lambda: hf.BertModel(hf.BertConfig(
        hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=12)))


if __name__ == "__main__":
    t5_cases()
    clip_cases()
    bert_cases()
