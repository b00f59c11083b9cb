"""Claim (networks): Frozen networks whose weights are another project's file: the numbers of the same weights from a run."""

import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

FSDP = {"parallel.shard": 2, "parallel.shard_plugin": "fsdp"}
_made = {}


def taught(convention, format):
    """A run of the digits, and its weights as another project keeps them."""
    if convention not in _made:
        path = t.write_recipe(f"{convention}.toml", t.recipe(run=dict(name=convention, steps=6), model=dict(convention=convention),
                                                             lr_schedule=dict(lr=3e-3, warmup=0)))
        t.train(path, convention)
        out = t.work / (f"{convention}-out" + (".safetensors" if format == "facebook-dit" else ""))
        t.run("checkpoint", "export", t.work / convention, "--format", format, "--out", out)
        _made[convention] = (t.work / convention, out)
    return _made[convention]


def learning(weights, name="student", **network):
    return t.write_recipe(f"{name}.toml", t.recipe(
        run=dict(name=name, steps=3, batch=8, micro_batch=4), objective=dict(plugin="distill", data=0.25),
        network__teacher=dict(weights=str(weights)) | network))


def test_a_teacher_of_another_project_teaches_as_the_run_that_it_was_exported_from():
    for convention, format in (("diffusers", "diffusers"), ("facebook", "facebook-dit")):
        run, out = taught(convention, format)
        t.train(learning(run), f"by-run-{convention}")
        path = learning(out, format=format)
        t.train(path, f"by-file-{convention}")
        t.same_metrics(f"by-run-{convention}", f"by-file-{convention}")
        t.same_state(f"by-run-{convention}", f"by-file-{convention}")
        t.train(path, f"by-fsdp-{convention}", "--local-ranks", 2, *t.sets(FSDP))
        t.same_metrics(f"by-run-{convention}", f"by-fsdp-{convention}")
    t.train(path, "by-tensor", "--local-ranks", 2, *t.sets({"parallel.tensor": 2}))
    for mine, other in zip(t.metrics("by-run-facebook"), t.metrics("by-tensor")):
        t.check(abs(float(mine["loss"]) - float(other["loss"])) < 1e-5, f"{mine} {other}")


def test_a_folder_of_others_says_what_model_it_is():
    run, out = taught("diffusers", "diffusers")
    folder = shutil.copytree(out, t.work / "theirs")
    t.without_notes(folder / "diffusion_pytorch_model.safetensors")
    learned = learning(folder, "by-theirs", plugin="dit", format="diffusers")
    t.train(learned, "by-theirs")
    t.same_metrics("by-run-diffusers", "by-theirs")
    # What is noted of it starts the same run again.
    shutil.copy(t.work / "by-theirs/run.toml", t.work / "again.toml")
    t.train(t.work / "again.toml", "by-theirs-again")
    t.same_metrics("by-theirs", "by-theirs-again")

    def refused(code, parts, **sets):
        t.refused(code, parts, "train", learned, *t.sets({"run.output": str(t.work / "never")} | {key.replace("__", "."): value for key, value in sets.items()}))

    refused(2, ["depth", "3", "2"], network__teacher__depth=3)
    refused(2, ["convention"], network__teacher__convention="facebook")
    refused(2, ["predicts something else", "channels"], scheduler__plugin="iddpm")
    refused(2, ["klingon"], network__teacher__format="klingon")
    refused(7, ["network.teacher.weights", "not there"], network__teacher__weights="nowhere")
    bare = learning(folder, "bare", format="diffusers")
    t.refused(2, ["which model", "[network.teacher]"], "train", bare, *t.sets({"run.output": str(t.work / "never")}))


def test_a_guide_of_another_project_guides_alike():
    run, out = taught("diffusers", "diffusers")
    t.train(t.write_recipe("guided.toml", t.recipe(run=dict(name="guided", steps=3))), "guided")
    found = []
    for name, sets in (("run", {"network.guide.weights": str(run)}),
                       ("file", {"network.guide.weights": str(out), "network.guide.format": "diffusers"})):
        where = t.work / f"guided-{name}.safetensors"
        t.run("sample", t.work / "guided", "--out", t.work / f"guided-{name}", "--seeds", "0-3", "--classes", "3,1,4,1", "--save-latents",
              where, *t.sets({"guidance.plugin": "autoguidance", "guidance.scale": 3.0} | sets))
        found.append(t.read_tensors(where)["latents"])
    t.equal(found[0] == found[1], True, "all bits of guided samples")


def test_a_run_does_not_go_on_with_another_file():
    _, out = taught("diffusers", "diffusers")
    path = learning(out, "kept", format="diffusers")
    t.train(path, "kept", run__steps=2)
    moved = shutil.copytree(out, t.work / "moved")
    t.train(path, "kept", run__steps=3, network__teacher__weights=str(moved))
    file = moved / "diffusion_pytorch_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-4] ^= 1
    file.write_bytes(data)
    other = ["train", path, *t.sets({"run.output": str(t.work / "kept"), "run.steps": 4, "network.teacher.weights": str(moved)})]
    t.refused(7, ['network "teacher"', "other weights"], *other)


if __name__ == "__main__":
    t.main(globals())
