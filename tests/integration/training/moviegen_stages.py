"""configs/moviegen_toy_1.toml to 3: pictures, then pictures and videos in packs, then larger ones. Each stage takes the weights that
the one before it left, and gains by them; what the last one learned makes videos and pictures."""

import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

STAGES = ["moviegen_toy_1", "moviegen_toy_2", "moviegen_toy_3"]


def early_loss(folder, steps=10):
    return sum(float(row["loss"]) for row in t.metrics(folder)[:steps]) / steps


def test_each_stage_goes_on_from_the_one_before_it():
    (t.work / "configs").mkdir()
    for name in STAGES:
        shutil.copy(t.source / f"configs/{name}.toml", t.work / "configs")
    for name in STAGES:
        t.run("train", f"configs/{name}.toml")
        if name == STAGES[0]:
            continue
        t.run("train", f"configs/{name}.toml", *t.sets({"run.init_from": "", "run.steps": 10, "run.output": f"fresh/{name}"}))
        gained, fresh = early_loss(f"runs/{name}"), early_loss(f"fresh/{name}")
        print(f"  {name}: loss of the first ten steps {gained:.3f}, without the stage before it {fresh:.3f}")
        t.check(gained < 0.9 * fresh, f"{name} begins with a loss of {gained}, without the stage before it {fresh}")


def test_the_last_stage_makes_videos_and_pictures():
    t.write_tensors(t.work / "texts.safetensors", {"text": ("F32", [2, 3, 12], [i % 7 / 7 for i in range(72)])})
    for size in ("4x16x16", "1x8x8"):
        t.run("sample", f"runs/{STAGES[-1]}", "--out", f"samples-{size}", "--size", size, "--condition", "texts.safetensors", "--steps", 4)
        t.check(any((t.work / f"samples-{size}").iterdir()), f"no samples of {size}")


def test_a_stage_of_another_model_is_refused():
    t.refused(7, ["blocks.2.attn.qkv.weight", "is not there"], "train", f"configs/{STAGES[1]}.toml", *t.sets({"model.depth": 3, "run.output": "deeper"}))


if __name__ == "__main__":
    t.main(globals())
