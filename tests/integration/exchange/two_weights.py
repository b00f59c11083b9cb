"""Claim (weights): A folder with several sets of weights, as tools leave them: what is imported is what diffusers or
transformers would load (tests/golden/weights: what they do), or the folder is refused; and the file that is read is said."""

import json
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

golden = json.loads((t.source / "tests/golden/weights/choices.json").read_text())
_sets = []


def exported(number):
    """The file of a run of its own."""
    while len(_sets) <= number:
        name = f"set{len(_sets)}"
        path = t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=1, batch=4, seed=len(_sets)), data=t.synthetic(),
                                                       model=dict(convention="diffusers")))
        t.train(path, name)
        t.run("checkpoint", "export", t.work / name, "--format", "diffusers", "--out", t.work / f"{name}-out")
        _sets.append(t.work / f"{name}-out/diffusion_pytorch_model.safetensors")
    return _sets[number]


def put(folder, name, number):
    """Run `number`'s weights as a set of this name."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = golden["parts"][name]
    if not parts:
        shutil.copy(exported(number), folder / name)
        return
    tensors = {key: (dtype, shape, t.numbers((dtype, shape, data))) for key, (dtype, shape, data) in t.read_tensors(exported(number)).items()}
    names = sorted(tensors)
    halves = [names[:len(names) // 2], names[len(names) // 2:]]
    for part, half in zip(parts, halves):
        t.write_tensors(folder / part, {key: tensors[key] for key in half})
    (folder / name).write_text(json.dumps({"weight_map": {key: part for part, half in zip(parts, halves) for key in half}}))


def imported(folder, code=0):
    """What the command said, and which run's weights came of it."""
    shutil.rmtree(t.work / "in", ignore_errors=True)
    shutil.rmtree(t.work / "back", ignore_errors=True)
    done = t.subprocess.run([t.ditto, "checkpoint", "import", str(folder), "--format", "diffusers", "--out", str(t.work / "in"),
                             "--set", "model.plugin=dit"], capture_output=True, text=True, env=t.environment, timeout=t.patient(60))
    said = done.stdout + done.stderr
    if done.returncode != 0:
        t.check(done.returncode == 7 and said.count("error: ") == 1, f"exit code {done.returncode}: {said}")
        return said, None
    t.run("checkpoint", "export", t.work / "in", "--format", "diffusers", "--out", t.work / "back")
    back = t.read_tensors(t.work / "back/diffusion_pytorch_model.safetensors")
    same = [number for number in range(len(_sets)) if t.read_tensors(exported(number)) == back]
    t.equal(len(same), 1, f"runs whose weights came of {folder}")
    return said, same[0]


def test_what_is_read_is_what_others_would_read():
    config = json.loads((exported(0).parent / "config.json").read_text())
    some = [one for one in golden["choices"] if len(one["sets"]) > 1]
    random = t.seed_of("sets side by side")
    always = [one for one in some if one["sets"] == ["diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors.index.json"]]
    for choice in always + random.sample(some, 20 if t.slow else 1):
        sets = choice["sets"]
        folder = t.work / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        order = random.sample(range(len(sets)), len(sets))
        for number in range(len(sets)):
            exported(number)
        for name, number in zip(sets, order):
            put(folder, name, number)
        (folder / "config.json").write_text(json.dumps(config))
        said, number = imported(folder)
        references = {choice["diffusers"], choice["transformers"]} - {None}
        if number is None:
            t.check("two sets of weights" in said or "is a folder without" in said, sets, said)
            t.check(all(name in said for name in sets), sets, said)
            continue
        taken = sets[order.index(number)]
        t.check(references <= {taken}, f"{taken} of {sets}, where {choice} is what others do")
        t.check(f"reads {folder / taken}" in said, sets, said)
        for name in sets:
            t.check(name == taken or name in said.split(", and not ")[1].splitlines()[0], f"{name} is not said to be left: {said}")


def test_of_a_pipeline_the_transformer_is_read():
    pipeline = t.work / "pipeline"
    put(pipeline / "transformer", "diffusion_pytorch_model.safetensors", 0)
    put(pipeline / "vae", "diffusion_pytorch_model.safetensors", 1)
    put(pipeline / "transformer", "diffusion_pytorch_model.bin", 1)
    shutil.copy(exported(0).parent / "config.json", pipeline / "transformer/config.json")
    said, number = imported(pipeline)
    t.check(number == 0 and "transformer/diffusion_pytorch_model.safetensors, and not diffusion_pytorch_model.bin" in said, said)
    for other in ("transformer_2", "transformer_ema", "."):
        put(pipeline / other, "diffusion_pytorch_model.safetensors", 1)
        said, number = imported(pipeline)
        t.check(number is None and "two sets of weights" in said and "transformer/" in said, other, said)
        os.remove(pipeline / other / "diffusion_pytorch_model.safetensors")
    shutil.rmtree(pipeline / "transformer")
    said, number = imported(pipeline)
    t.check(number is None and "it has vae/" in said, said)


def test_a_teacher_in_a_folder_of_two_is_said():
    folder = t.work / "teacher"
    put(folder, "diffusion_pytorch_model.safetensors", 0)
    put(folder, "diffusion_pytorch_model.fp16.safetensors", 1)
    shutil.copy(exported(0).parent / "config.json", folder / "config.json")
    path = t.write_recipe("student.toml", t.recipe(
        run=dict(name="student", steps=1, batch=4), data=t.synthetic(), objective=dict(plugin="distill", data=0.25),
        network__teacher=dict(weights=str(folder), format="diffusers")))
    said = t.train(path, "student").all
    t.check(f"[network.teacher] reads {folder}/diffusion_pytorch_model.safetensors, and not diffusion_pytorch_model.fp16.safetensors" in said, said)
    put(folder, "diffusion_pytorch_model.safetensors.index.json", 1)
    t.refused(7, ["teacher", "two sets of weights"], "train", path, *t.sets({"run.output": str(t.work / "never")}))


t.main(globals())
