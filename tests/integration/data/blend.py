"""Claim (data): A blend trains, goes on bit for bit at any step and on any number of ranks, and is refused where its parts do
not fit."""

import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

parts = """
[data]
plugin = "blend"

[[data.part]]
plugin = "webdataset"
weight = 2
shards = ["%(digits)s/train-*.tar"]
validation_shards = ["%(digits)s/validation-*.tar"]
classes = 10
channels = 1
size = [8, 8]

[[data.part]]
plugin = "blend"
weight = 1

[[data.part.part]]
plugin = "synthetic"
epochs = 2
samples = 7
validation_samples = 3
channels = 1
height = 8
width = 8

[[data.part.part]]
plugin = "synthetic"
samples = 11
validation_samples = 5
channels = 1
height = 8
width = 8
seed = 1
"""


def recipe(name="blend.toml", **sections):
    path = t.write_recipe(name, t.recipe(data=None, validate=dict(every=3, samples=1000), **sections))
    path.write_text(path.read_text() + parts % {"digits": t.digits})
    return path


def test_a_blend_goes_on_bit_for_bit():
    t.goes_on_bit_for_bit(recipe(run=dict(name="blend", micro_batch=4, threads=1)))
    validations = t.lines_of(t.work / "in-one-go" / "validation.jsonl")
    t.equal([line["samples"] for line in validations], [176 + 3 + 5] * 2, "held-out samples: each once, whatever the weights")


def test_a_blend_goes_on_with_other_ranks_and_threads():
    path = recipe(run=dict(name="blend", micro_batch=4, threads=1))
    t.train(path, "whole", run__steps=6)
    t.train(path, "moved", run__steps=6, checkpoint__every=3)
    for step in t.checkpoints("moved")[1:]:
        shutil.rmtree(t.work / "moved" / "checkpoints" / step)
    t.train(path, "moved", "--local-ranks", 2, run__steps=6, checkpoint__every=3, loader__threads=0)
    t.same_metrics("whole", "moved")
    t.same_state("whole", "moved")


def test_what_a_blend_is_made_of_is_kept_and_compared():
    path = recipe()
    t.train(path, "kept", run__steps=2)
    t.refused(2, ["data.part.0.weight"], "train", path, *t.sets(
        {"run.output": str(t.work / "kept"), "run.steps": 4, "data.part.0.weight": 3.0}))
    shown = t.run("config", "show", path).stdout
    for line in ("[[data.part]]", "[[data.part.part]]", "epochs = 2.0"):
        t.check(line in shown, f"no {line} in {shown}")


def test_parts_that_do_not_fit_are_refused_before_anything_trains():
    path = recipe()
    t.refused(2, ["data.part.1", "cannot be blended with data.part.0", "[2, 8, 8]"], "config", "check", path,
              *t.sets({"data.part.1.part.0.channels": 2, "data.part.1.part.1.channels": 2}))
    t.refused(2, ["data.part.0: ", "data.validation_shards: names no shard"], "train", path,
              *t.sets({"data.part.0.validation_shards": [], "run.output": str(t.work / "no-part")}))
    t.refused(2, ['no option "sampels"', 'did you mean "samples"?'], "config", "check", path,
              *t.sets({"data.part.1.part.0.sampels": 2}))


if __name__ == "__main__":
    t.main(globals())
