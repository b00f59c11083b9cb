"""Texts of a cascade: T5 that encodes captions as the stages train, and pickles of what it makes, as NeMo's Imagen keeps them.

Claim (data): Every stage of a cascade learns from NeMo's pickled T5 embeddings, `{key: {"encodings": [n, E]}}`, what it learns from captions that T5
encodes online: losses to 1e-12 in fp64, T5 itself in fp32, as pickles are, and all bits with run.numerics = "one".
"""

import array
import functools
import io
import json
import pathlib
import pickle
import struct
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import encoders as e  # noqa: E402
import imagen_texts as imagen  # noqa: E402
import text_encoders as texts  # noqa: E402

WIDTH, TOKENS, STEPS = 32, 8, 4
UNETS = {
    4: dict(plugin="imagen_unet", channel_mult=[1, 1], num_res_blocks=[1], attention_resolutions=[2], cond_dim=32),
    8: dict(plugin="imagen_efficient_unet", channel_mult=[1, 1], num_resblocks=[1, 1], atnn_enabled_at=[0, 1], noise_cond_aug=True),
}
NUMERICS = {"fp64": dict(precision="fp64"), "one": dict(numerics="one")}


@functools.cache
def t5():
    size = texts.T5 | dict(d_model=WIDTH)
    return str(texts.folder("t5-wide", texts.t5_shapes(size), size, "T5EncoderModel", "t5"))


def stage(name, side, numerics, conditioning, encoder, **data):
    """One number for all batches: T5's products are of the exact kernels in both."""
    more = {}
    if side == 8:
        more = dict(encoder__image=dict(plugin="pyramid", size=[4, 4]), encoder__low=dict(plugin="noise_condition"))
    if encoder:
        more["encoder__t5"] = encoder
    tree = t.recipe(run=dict(name=name, steps=STEPS, batch=8) | NUMERICS[numerics],
                    data=dict(label="none", size=[side, side], resize="bicubic") | data, plugins=dict(kernels=["cpu", "exact"]),
                    conditioning=dict(embed_dim=WIDTH, token_length=TOKENS, drop_rate=0.3) | conditioning,
                    model=dict(embed_dim=32, per_head_channels=16, token_length=TOKENS, learned_sinu_pos_emb_dim=0) | UNETS[side],
                    scheduler=dict(plugin="edm"), sampler=dict(plugin="heun", steps=2), objective=dict(plugin="diffusion", condition_dropout=0.0),
                    validate=dict(every=0), **more)
    for key in ("validation_shards", "classes"):
        tree["data"].pop(key)
    return t.write_recipe(f"{name}.toml", tree)


def cascade(name, numerics, shard, conditioning, encoder=None, **data):
    """Trained; the folders of its stages."""
    stages = [stage(f"{name}-{side}", side, numerics, conditioning, encoder, shards=[shard], **data).name for side in UNETS]
    path = t.write_recipe(f"{name}.toml", dict(cascade=dict(stages=stages, passes="low", output=str(t.work / name))))
    t.run("train", path)
    return [t.work / name / one.removesuffix(".toml") for one in stages]


def online(numerics):
    return dict(conditioning=dict(online_encoding=True, encoder_path=t5()), caption="txt",
                encoder=dict(format="transformers") | (dict(precision="fp32") if numerics == "fp64" else {}))


class Texts(imagen.Array):
    def __init__(self, shape=(0,), data=b""):
        super().__init__(shape, array.array("f", data))


@functools.cache
def pickled(numerics):
    """The captioned shard with a pickle beside each caption, of what `ditto encode` keeps of T5."""
    words = online(numerics)
    path = stage(f"encoded-{numerics}", 4, numerics, words.pop("conditioning"), words.pop("encoder"), shards=[e.captioned()], **words)
    t.run("encode", path, "--out", t.work / f"cache-{numerics}", "--batch", 8)
    kept = {}
    for shard in sorted((t.work / f"cache-{numerics}").glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar.getmembers():
                if member.name.endswith(".safetensors"):
                    kept[int(member.name.split(".")[0])] = text_in(tar.extractfile(member).read())
    made = t.work / f"pickled-{numerics}.tar"
    with tarfile.open(e.captioned()) as there, tarfile.open(made, "w") as here:
        number = 0
        for member in there.getmembers():
            data = there.extractfile(member).read()
            here.addfile(member, io.BytesIO(data))
            if member.name.endswith(".txt"):
                shape, bytes_of = kept.pop(number)
                data = pickle.dumps({"caption": data.decode(), imagen.KEY: {"encodings": Texts(shape, bytes_of)}}, 4)
                info = tarfile.TarInfo(member.name[:-3] + "pickle")
                info.size = len(data)
                here.addfile(info, io.BytesIO(data))
                number += 1
    t.equal((number > 0, kept), (True, {}), "texts that were encoded, and those that found no caption")
    return str(made)


def text_in(data):
    """(shape, bytes) of the text, as long as its mask says; its numbers are fp32's, kept as doubles in an fp64 run."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])

    def stored(name):
        begin, end = header[name]["data_offsets"]
        return data[8 + length + begin:8 + length + end]

    (text,) = [name for name, one in header.items() if name != "__metadata__" and one["shape"][-1:] == [WIDTH]]
    numbers = array.array({"F32": "f", "F64": "d"}[header[text]["dtype"]], stored(text))
    narrow = array.array("f", numbers)
    t.check(list(narrow) == list(numbers), "numbers are more than fp32's")
    places = sum(stored(f"{text}_mask"))
    return (places, WIDTH), narrow[:places * WIDTH].tobytes()


def test_pickles_and_t5_online_are_one_training():
    for numerics in NUMERICS:
        ours = cascade(f"online-{numerics}", numerics, e.captioned(), **online(numerics))
        theirs = cascade(f"pickles-{numerics}", numerics, pickled(numerics), dict(precached_key=imagen.KEY))
        for one, other in zip(ours, theirs):
            if numerics == "one":
                t.same_metrics(one, other)
                t.same_state(one, other)
                continue
            losses = [[float(line["loss"]) for line in t.metrics(folder)] for folder in (one, other)]
            t.equal([len(each) for each in losses], [STEPS, STEPS], "steps")
            for a, b in zip(*losses):
                e.near(a, b, f"losses of {one.name} and {other.name}")


def test_texts_count_in_every_stage():
    ours = cascade("undropped", "fp64", pickled("fp64"), dict(precached_key=imagen.KEY, drop_rate=0.0))
    for one, other in zip(ours, [t.work / f"pickles-fp64/pickles-fp64-{side}" for side in UNETS]):
        t.check(t.metrics(one) != t.metrics(other), f"a dropped text changes nothing in {one.name}")


if __name__ == "__main__":
    t.main(globals())
