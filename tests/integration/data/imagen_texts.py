"""Texts as NeMo Imagen keeps and drops them: pickles of several embeddings, and [conditioning], its section of them.

Claim (data): NeMo Imagen's pickles of texts, `{key: {"encodings": [n, E]}}`, are read without running anything, and a section with its fields, as
spelled, trains as the recipe's own options; a dropped text is zeros, and its mask stays.
"""

import array
import io
import os
import pathlib
import pickle
import sys
import tarfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

WIDTH, KEY = 12, "embeddings_t5_xxl"


# NumPy's names, by which its pickles are known; the standard library has none of it.
numpy, core, multiarray = (types.ModuleType(name) for name in ("numpy", "numpy.core", "numpy.core.multiarray"))


class Dtype:
    def __init__(self, name, *_):
        self.name = name

    def __reduce__(self):
        return Dtype, (self.name, False, True), (3, "<", None, None, None, -1, -1, 0)


class Array:
    def __init__(self, shape=(0,), numbers=()):
        self.shape, self.numbers = shape, numbers

    def __reduce__(self):
        return _reconstruct, (Array, (0,), b"b"), (1, self.shape, Dtype("f4"), False, array.array("f", self.numbers).tobytes())


def _reconstruct(*_):
    raise AssertionError("it is read here by nobody")


for thing, module, name in ((Dtype, numpy, "dtype"), (Array, numpy, "ndarray"), (_reconstruct, multiarray, "_reconstruct")):
    thing.__module__, thing.__name__, thing.__qualname__ = module.__name__, name, name
    setattr(module, name, thing)
for module in (numpy, core, multiarray):
    sys.modules.setdefault(module.__name__, module)
numpy.core, core.multiarray = core, multiarray


class Code:
    """What a pickle would run."""

    def __reduce__(self):
        return os.system, (f"touch '{t.work}/ran'",)


def texts(number, change=lambda value: value):
    """Of a digit: as many tokens as it says, and one more."""
    tokens = number + 1
    numbers = [change(((7 * number + 3 * i) % 11) / 11 - 0.5) for i in range(tokens * WIDTH)]
    return {"caption": "a digit", KEY: {"encodings": Array((tokens, WIDTH), numbers)}, "clip": {"encodings": Array((1, 4), [0.5] * 4)}}


def shard(name, made=texts):
    path = t.work / f"{name}.tar"
    with tarfile.open(t.digits / "train-000000.tar") as there, tarfile.open(path, "w") as here:
        for member in there.getmembers()[:64]:
            data = there.extractfile(member).read()
            here.addfile(member, io.BytesIO(data))
            if member.name.endswith(".cls"):
                data = pickle.dumps(made(int(data)), 4)
                info = tarfile.TarInfo(member.name[:-3] + "pickle")
                info.size = len(data)
                here.addfile(info, io.BytesIO(data))
    return str(path)


def recipe(name, shards, model=None, objective=None, **sections):
    tree = t.recipe(run=dict(name=name, steps=4, batch=8), data=dict(shards=[shards], **sections.pop("data", {})),
                    model=dict(plugin="dit_text", depth=2, width=32, heads=4, patch=2) | (model or {}),
                    validate=dict(every=0), **sections)
    tree["data"].pop("validation_shards", None)
    tree["objective"] = dict(plugin="diffusion") | (objective or {})
    return t.write_recipe(f"{name}.toml", tree)


FIELDS = dict(embed_dim=WIDTH, token_length=8, precached_key=KEY, out_key="t5_text")


def said(**encoder):
    """The same by the recipe's own options."""
    return dict(data=dict(text="pickle", text_key=KEY, text_name="t5_text", text_width=WIDTH), model=dict(null_text="zero"),
                objective=dict(condition_dropout=0.0), encoder__conditioning=dict(plugin="fit_text", takes="t5_text", tokens=8) | encoder)


def test_the_section_trains_as_what_it_stands_for():
    shards = shard("plain")
    t.train(recipe("fields", shards, conditioning=FIELDS | dict(drop_rate=0.5)), "fields")
    t.train(recipe("options", shards, **said(drop=0.5)), "options")
    t.same_metrics("fields", "options")
    t.same_state("fields", "options")
    t.train(recipe("undropped", shards, conditioning=FIELDS), "undropped")
    t.check(t.metrics("undropped") != t.metrics("fields"), "drop_rate changes nothing")
    t.goes_on_bit_for_bit(recipe("goes-on", shards, conditioning=FIELDS | dict(drop_rate=0.5)))
    t.train(recipe("ahead", shards, conditioning=FIELDS | dict(drop_rate=0.5), loader=dict(encode_ahead=1)), "ahead")
    t.same_metrics("fields", "ahead")


def test_a_dropped_text_is_zeros_and_keeps_its_mask():
    """As one that was encoded as zeros, of as many tokens."""
    t.train(recipe("dropped", shard("whole"), conditioning=FIELDS | dict(drop_rate=1.0)), "dropped")
    t.train(recipe("zeros", shard("zeros", lambda number: texts(number, lambda _: 0.0)), conditioning=FIELDS), "zeros")
    t.same_metrics("dropped", "zeros")
    t.same_state("dropped", "zeros")
    t.check(t.metrics("dropped") != t.metrics("undropped"), "texts count for nothing")


def test_what_is_not_there_or_would_be_run_is_refused():
    plain = shard("refused")
    strict = dict(loader=dict(strict=True))

    def refused(code, parts, shards, fields, **sections):
        path = recipe("refused", shards, conditioning=fields, **sections)
        t.refused(code, parts, "train", path, *t.sets({"run.output": str(t.work / "never")}))

    refused(4, [".pickle: has no \"umt5\", only: ", KEY], plain, FIELDS | dict(precached_key="umt5"), **strict)
    refused(4, [f"the text is [", f"{WIDTH}]; expected [tokens, 5]"], plain, FIELDS | dict(embed_dim=5), **strict)
    refused(2, ["precached_key is not there", "online_encoding is false"], plain, dict(token_length=8))
    refused(2, ["encoder_path is not there", "none are downloaded"], plain, dict(token_length=8, online_encoding=True))
    for where in ("beside", "inside"):
        def with_code(number, where=where):
            value = texts(number)
            if where == "beside":
                value["note"] = Code()
            else:
                value[KEY]["encodings"] = Code()
            return value

        refused(4, [".pickle: holds a posix.system, which is not run"], shard(f"code-{where}", with_code), FIELDS, **strict)
    t.check(not (t.work / "ran").exists(), "a pickle's code was run")


if __name__ == "__main__":
    t.main(globals())
