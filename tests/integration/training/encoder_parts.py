"""What an encoder keeps and what it draws, captions that several encoders take, the empty text, and where options and weights come from.

Claim (networks): Several encoders take one caption; draws are of the encoder's name and of the phase; the empty text stands for a
dropped one; options are those of the config.json beside the weights or of the run that trained them, and a recipe that says
otherwise is refused with both values.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import encoders as e  # noqa: E402


def words(section, /, **options):
    """A second encoder of the same captions."""
    return {f"encoder.{section}.{key}": value for key, value in (dict(plugin="bytes_text", weights=e.weights(), noise=0.1) | options).items()}


def test_a_caption_is_there_for_every_encoder_that_takes_it():
    """What a second one makes changes nothing of what the first makes; two makers of one name are refused."""
    path = e.recipe("alone")
    t.train(path, "alone")
    t.train(path, "beside", *t.sets(words("more", name="more", pooled=True)))
    t.same_metrics("alone", "beside")
    never = {"run.output": str(t.work / "never")}
    t.refused(2, ['makes "text"', "so does"], "train", path, *t.sets(never | words("more")))
    t.refused(2, ['takes = "title"', "there is no such text", '"caption" Byte'], "train", path, *t.sets(never | {"encoder.text.takes": "title"}))


def test_draws_are_of_the_encoders_name_and_of_the_phases_that_it_is_told():
    """Learned and validated losses, and samples, are those without noise in the phases in which none is drawn."""
    path = e.recipe("phases")
    named = path.parent / "named-otherwise.toml"
    named.write_text(path.read_text().replace("[encoder.text]", "[encoder.words]"))
    t.train(named, "words")
    phases = {"all": ["train", "evaluate", "sample"], "train": ["train"], "evaluate": ["evaluate"], "sample": ["sample"]}
    for name, noise_in in phases.items():
        t.train(path, f"phases-{name}", *t.sets({"encoder.text.noise_in": noise_in}))
    t.train(path, "phases-none", *t.sets({"encoder.text.noise": 0.0}))

    def losses(folder):
        return [line["loss"] for line in t.metrics(folder)]

    def held(folder):
        return t.lines_of(t.work / folder / "validation.jsonl")[-1]["validation_loss"]

    def made(folder):
        return e.latents(t.work / folder, f"made-{folder}")

    t.check(losses("words") != losses("phases-all"), "two encoders of other names draw the same")
    t.check(losses("phases-train") == losses("phases-all") != losses("phases-none"), "noise of the training")
    for name in ("evaluate", "sample"):
        t.equal(losses(f"phases-{name}"), losses("phases-none"), f"losses with noise in {name} alone")
    t.check(held("phases-evaluate") != held("phases-none") == held("phases-sample"), "noise of validations")
    t.check(made("phases-sample") != made("phases-none") == made("phases-evaluate"), "noise of samples")


def test_the_empty_text_is_encoded_for_models_that_take_it():
    """Guidance by it does nothing where the prompt is empty itself, and something else where it is not."""
    path = e.recipe("emptied", "fp64", dict(noise=0.0), guidance=dict(plugin="cfg", scale=1.0))
    t.train(path, "emptied", model__null_text="empty", run__steps=40)
    run = t.work / "emptied"

    def made(name, prompt, scale):
        return t.numbers(e.latents(run, f"emptied-{name}", prompts=prompt, sets={"guidance.scale": scale}))

    nothing = t.work / "nothing.txt"
    nothing.write_text("\n")
    empty, guided = made("empty", nothing, 1.0), made("empty-guided", nothing, 4.0)
    t.check(max(abs(a - b) for a, b in zip(empty, guided)) < 1e-12, "guidance by the empty text moves samples of it")
    t.check(max(abs(a - b) for a, b in zip(made("seven", "a seven", 1.0), made("seven-guided", "a seven", 4.0))) > 1e-6,
            "guidance by the empty text moves nothing")


def test_options_and_folder_are_those_of_the_config_beside_the_weights():
    pipeline = t.work / "pipeline"

    def put(folder, config, depth=2):
        (pipeline / folder).mkdir(parents=True)
        (pipeline / folder / "config.json").write_text(json.dumps(config))
        t.write_tensors(pipeline / folder / "model.safetensors", e.tensors(depth=depth))

    put("text_encoder", {"architectures": ["BytesModel"], "num_layers": 1}, 1)
    put("text_encoder_2", {"architectures": ["OtherModel"], "num_layers": 2})
    put("vae", {"_class_name": "AutoencoderKL"})
    path = e.recipe("configured", "fp32", dict(weights=None))
    t.train(path, "configured", *t.sets({"encoder.text.weights": str(pipeline)}))
    t.check("depth = 1" in (t.work / "configured/run.toml").read_text().split("[encoder.text]")[1].split("\n[", 1)[0], "run.toml: encoder.text.depth")
    t.write_tensors(t.work / "short.safetensors", e.tensors(depth=1))
    t.train(path, "said", *t.sets({"encoder.text.weights": str(t.work / "short.safetensors"), "encoder.text.depth": 1}))
    t.same_metrics("configured", "said")

    def refused(code, parts, **options):
        sets = {"run.output": str(t.work / "never")} | {"encoder.text." + key: value for key, value in options.items()}
        t.refused(code, parts, "train", path, *t.sets(sets))

    refused(2, ["depth", "is 2", "pipeline/text_encoder/model.safetensors it is 1"], weights=str(pipeline), depth=2)
    refused(7, ["text_encoder_2/config.json", "of OtherModel", "BytesModel, BytesModelWithHead"], weights=str(pipeline / "text_encoder_2"))
    put("text_encoder_3", {"architectures": ["BytesModelWithHead"], "num_layers": 2})
    refused(7, ["of one class in two folders, text_encoder/ and text_encoder_3/", "name the folder that is meant"], weights=str(pipeline))


def test_weights_may_be_a_run_that_trained_them():
    e.plugins()
    path = t.write_recipe("shift.toml", t.recipe(run=dict(name="shift", steps=3), model=dict(plugin="shifted", gain=2.0), objective=dict(condition_dropout=0.0)))
    t.train(path, "shift")
    learned = {section: t.numbers(tensor) for (section, name), tensor in t.tensors_of(t.latest("shift")).items() if name == "by.shift"}
    t.check("ema" in learned, f"sections with the weight: {sorted(learned)}")
    t.write_tensors(t.work / "averaged.safetensors", {"by.shift": ("F32", [1, 8, 8], list(learned["ema"]))})
    user = t.write_recipe("by-run.toml", t.recipe(run=dict(name="by-run", steps=2), encoder__image=dict(plugin="shifted", weights="shift")))
    t.train(user, "by-run")
    t.check("gain = 2" in (t.work / "by-run/run.toml").read_text().split("[encoder.image]")[1].split("\n[", 1)[0], "run.toml: encoder.image.gain")
    t.train(user, "by-file", *t.sets({"encoder.image.weights": str(t.work / "averaged.safetensors"), "encoder.image.gain": 2.0}))
    t.same_metrics("by-run", "by-file")
    t.train(user, "by-weights", encoder__image__which="weights")
    t.check(t.metrics("by-weights") != t.metrics("by-run"), "which = \"weights\" changes nothing")
    never = {"run.output": str(t.work / "never")}
    t.refused(2, ["encoder.image.gain is 3", "it is 2"], "train", user, *t.sets(never | {"encoder.image.gain": 3.0}))
    t.train(t.write_recipe("dit.toml", t.recipe(run=dict(name="dit", steps=1))), "dit")
    t.refused(2, ['where model "dit" has trained', 'the encoder is "shifted"'], "train", user, *t.sets(never | {"encoder.image.weights": str(t.work / "dit")}))


def test_pictures_of_another_size_than_the_encoder_says_are_refused():
    e.plugins()
    path = t.write_recipe("half.toml", t.recipe(run=dict(name="half", steps=1), encoder__image=dict(plugin="half_decoded")))
    t.train(path, "half")
    t.refused(3, ["encoder.image, decoding", "8, 8]", "decoded() says", "[1, 4, 4]"], "sample", t.work / "half", "--out", t.work / "halves", "--classes", "1")


if __name__ == "__main__":
    t.main(globals())
