"""Files as the originals' own programs write them, in and out: SiT, OpenDiT, Open-Sora, NeMo (DiT, Movie Gen, Imagen), JiT, U-ViT.

Names and shapes are those that tests/golden/models has from the original classes, and so are the predictions: weights come
from the names by the formula there, and lie in a file as the project's script saves one (its sets, its wrapper, its
config.json). `ditto forward` of what was imported predicts the original's numbers (1e-5), an export has every tensor's bits
and the same config.json, the other set of a training is read when it is asked for, and a tensor that is renamed or turned
over is refused by its name.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import typing

import torch
from safetensors.torch import load_file, save_file

SOURCE = pathlib.Path(os.environ["DITTO_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "tests/golden/models"))
import reference  # noqa: E402

DITTO = os.environ["DITTO"]
WORK = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(WORK.name)
TOLERANCE = 1e-5
torch.set_num_threads(1)

# --- tables that lie in a file beside the weights ----------------------------------------------------------------------


def sincos(places, width):
    angle = places.double().unsqueeze(1) * 10000.0 ** (-torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    return torch.cat([angle.sin(), angle.cos()], 1)


def of_square(side, width):
    rows, columns = (axis.flatten() for axis in torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    return torch.cat([sincos(columns, width // 2), sincos(rows, width // 2)], 1)


def of_grid(frames, side, width):
    t, h, w = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, (frames, side, side)), indexing="ij"))
    return torch.cat([sincos(t, width // 4), sincos(w, 3 * width // 8), sincos(h, 3 * width // 8)], 1)


def pictures(o, x):
    return {"pos_embed": of_square(x[1] // o["patch"], o["width"])[None]}


def videos(o, x):
    return {"pos_embed_spatial": of_square(x[2] // o["patch"], o["width"])[None],
            "pos_embed_temporal": sincos(torch.arange(x[1] // o["patch_frames"]), o["width"])[None]}


def nemo_table(o, _):
    return {} if o.get("positions") == "factorised" else {
        "pos_embedder.pos_embedding.weight": of_grid(o["max_frames"], o["max_side"] // o["patch"], o["width"])}


def rotary(o, _):
    head = o["width"] // o["heads"]
    return {"rope.freqs": 1.0 / 10000 ** (torch.arange(0, head, 2).float() / head)}


# --- files -------------------------------------------------------------------------------------------------------------



def state(path, weights, _):
    """torch.save(module.state_dict()): U-ViT's nnet_ema.pth, what NeMo's model holds."""
    torch.save(weights, path)


def opendit_average(path, weights, _):
    """OpenDiT's ema.pt, with the frozen CLIP that its class of texts holds."""
    at = "y_embedder.text_encoder.transformer.text_model."
    torch.save(weights | {f"{at}embeddings.position_ids": torch.arange(77)[None],
                          f"{at}embeddings.token_embedding.weight": torch.zeros(9, 12),
                          f"{at}final_layer_norm.weight": torch.ones(12)}, path)


def sit_training(path, weights, _):
    """SiT's train.py."""
    learned = [torch.nn.Parameter(tensor.clone()) for name, tensor in weights.items() if name != "pos_embed"]
    optimizer = torch.optim.AdamW(learned)
    sum(tensor.sum() for tensor in learned).backward()
    optimizer.step()
    weights_now = {name: tensor if name == "pos_embed" else tensor + 1 for name, tensor in weights.items()}
    torch.save({"model": weights_now, "ema": weights, "opt": optimizer.state_dict(),
                "args": argparse.Namespace(model="SiT-S/2", path_type="Linear")}, path)


def jit_training(path, weights, _):
    """JiT's util/misc.py: of a Denoiser, whose `net` is the model; samples are made with the first average."""
    wrapped = {f"net.{name}": tensor for name, tensor in weights.items()}
    now = {name: tensor if name == "net.pos_embed" else tensor + 1 for name, tensor in wrapped.items()}
    second = {name: tensor if name == "net.pos_embed" else tensor + 2 for name, tensor in wrapped.items()}
    torch.save({"model": now, "optimizer": {"state": {}, "param_groups": []}, "epoch": 3, "args": argparse.Namespace(),
                "model_ema1": wrapped, "model_ema2": second}, path)


def imagen_training(path, weights, _):
    """NeMo's checkpoint of an Imagen, whose UNet torch.compile has wrapped (model.inductor)."""
    torch.save({"state_dict": {name.replace(".unet.", ".unet._orig_mod."): tensor for name, tensor in weights.items()},
                "global_step": 3}, path)


def open_sora_folder(path, weights, o):
    """save_pretrained of a STDiT3."""
    path.mkdir()
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    config = dict(architectures=["STDiT3"], model_type="STDiT3", input_size=[None, None, None], input_sq_size=8 * o["base_side"],
                  force_huggingface=False, in_channels=4, patch_size=[1, 2, 2], hidden_size=o["width"], depth=o["depth"] // 2,
                  num_heads=o["heads"], mlp_ratio=4.0, class_dropout_prob=0.1, pred_sigma=True, drop_path=0.0, caption_channels=12,
                  model_max_length=o["null_tokens"], qk_norm=o["qk_norm"], enable_flash_attn=False, only_train_temporal=False,
                  freeze_y_embedder=True, skip_y_embedder=False, torch_dtype="float32", transformers_version="4.36.2")
    (path / "config.json").write_text(json.dumps(config, indent=2))


@dataclasses.dataclass
class Form:
    case: str  # of tests/golden/models
    file: str
    write: typing.Callable
    tables: typing.Callable = lambda o, x: {}
    unsaid: tuple = ()  # options that the file does not say
    sets: bool = False  # of two in the file
    left_out: str = ""  # what an import says that it passes over
    said: dict = dataclasses.field(default_factory=dict)  # further options that the file does not say


EFFICIENT = ("per_head_channels", "token_length")
IMAGEN = (*EFFICIENT, "attention_resolutions")
FORMS = [
    Form("dit_sit", "0050000.pt", sit_training, pictures, ("heads",), sets=True),
    Form("dit_video_222", "ema.pt", opendit_average, videos, ("heads",), left_out="3 tensors of the frozen text encoder (y_embedder.text_encoder.*)"),
    Form("dit_video_122", "ema.pt", state, videos, ("heads",)),
    Form("stdit3_small", "OpenSora-STDiT-v3", open_sora_folder, rotary),
    Form("nemo_dit_plain", "model.pt", state, nemo_table, ("patch", "max_frames", "max_side")),
    Form("nemo_dit_text", "model.pt", state, nemo_table, ("patch", "max_frames", "max_side")),
    Form("nemo_dit_factorised", "model.pt", state, nemo_table, ("patch", "max_side")),
    Form("moviegen_residual", "model.pt", state, unsaid=("patch", "max_side", "cross", "heads")),
    Form("moviegen_nemo", "model.pt", state, unsaid=("patch", "max_side", "cross")),
    Form("jit_class", "checkpoint-last.pth", jit_training, pictures, ("context_start",), sets=True),
    Form("uvit_class", "nnet_ema.pth", state, unsaid=("heads",)),
    Form("uvit_time", "nnet_ema.pth", state, unsaid=("heads",)),
    Form("imagen_unet_fused", "imagen.ckpt", imagen_training, unsaid=IMAGEN, said={"image_size": 8}),
    Form("imagen_unet_stacked", "imagen.pt", state, unsaid=(*IMAGEN, "image_size")),
    Form("imagen_unet_cross", "imagen.pt", state, unsaid=(*IMAGEN, "num_attn_heads"), said={"image_size": 8}),
    Form("imagen_efficient_fused", "imagen.ckpt", imagen_training, unsaid=(*EFFICIENT, "skip_connection_scaling"), said={"stride": 2}),
    Form("imagen_efficient_stacked", "imagen.pt", state, unsaid=EFFICIENT, said={"skip_connection_scaling": False, "stride": 2}),
    Form("imagen_efficient_cross", "imagen.pt", state, unsaid=(*EFFICIENT, "skip_connection_scaling", "num_attn_heads", "stride")),
]

# --- what is checked ---------------------------------------------------------------------------------------------------


def run(*words):
    return subprocess.run([DITTO, *map(str, words)], cwd=FOLDER, capture_output=True, text=True)


def ditto(*words):
    done = run(*words)
    assert done.returncode == 0, f"ditto {' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def weights_of(golden, form):
    """By the original's names, in its shapes; and its tables, which must be those that the original had."""
    case, tensors = golden["case"], golden["tensors"]
    shapes = {name.removeprefix("grad."): digest["shape"] for name, digest in tensors.items() if name.startswith("grad.")}
    weights = {name: reference.values(name, shape).float() for name, shape in (shapes | case["zero"]).items()}
    tables = {name: table.float().contiguous() for name, table in form.tables(case["options"], case["needs"]["inputs"][0]["shape"]).items()}
    kept = {name.removeprefix("constant."): digest for name, digest in tensors.items() if name.startswith("constant.")}
    assert tables.keys() == kept.keys(), (tables.keys(), kept.keys())
    for name, table in tables.items():
        require_same(reference.digest(f"constant.{name}", table), kept[name], 1e-6, name)
    copies = {name: weights[original] for name, original in case["copies"].items()}
    return tables | copies | weights  # torch lists a table first


def require_same(found, expected, tolerance, what):
    assert found["shape"] == expected["shape"], (what, found["shape"], expected["shape"])
    worst = max(abs(a - b) for a, b in zip(found["entries"] + [found["largest"]], expected["entries"] + [expected["largest"]]))
    assert worst <= tolerance * expected["largest"], f"{what}: {worst / expected['largest']:.2g}"
    return worst / expected["largest"]


def import_words(form, golden, path, out, **more):
    case = golden["case"]
    options = {name: case["options"][name] for name in form.unsaid} | form.said
    sets = {"model.plugin": case["model"]} | {f"model.{name}": json.dumps(value) for name, value in options.items()} | more
    return ["checkpoint", "import", path, "--format", case["format"], "--out", out,
            *(word for key, value in sets.items() for word in ("--set", f"{key}={value}"))]


def prediction_of(form, golden, path):
    """The data's frames a second are no part of a file: samples of each rate are predicted by a model of that rate."""
    batch = {name: tensor.float() if tensor.is_floating_point() else tensor
             for name, tensor in reference.batch_of(golden["case"]["inputs"]).items()}
    rates = batch.pop("fps", None)
    save_file(batch, FOLDER / "in.safetensors")
    made = []
    for rate in rates.unique().tolist() if rates is not None else [None]:
        out = f"{form.case}-{len(made)}"
        said = ditto(*import_words(form, golden, path, out, **({"model.fps": rate} if rate is not None else {})))
        assert ("left out: " in said) == bool(form.left_out) and form.left_out in said, said
        ditto("forward", out, "--in", "in.safetensors", "--out", "out.safetensors")
        made.append((rate, load_file(FOLDER / "out.safetensors")["prediction"]))
    return torch.stack([next(all_of[i] for rate, all_of in made if rates is None or rate == rates[i]) for i in range(len(batch["x"]))])


def exported(form, golden, checkpoint, out):
    ditto("checkpoint", "export", checkpoint, "--format", golden["case"]["format"], "--out", out)
    path = FOLDER / out
    return load_file(next(path.glob("*.safetensors")) if path.is_dir() else path)


def same_bits(found, expected):
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype, name


def there_and_back(form):
    golden = json.loads((SOURCE / f"tests/golden/models/{form.case}.json").read_text())
    weights, options = weights_of(golden, form), golden["case"]["options"]
    folder = FOLDER / f"{form.case}-theirs"
    folder.mkdir()
    path = folder / form.file
    form.write(path, weights, options)
    found = prediction_of(form, golden, path)
    worst = require_same(reference.digest("prediction", found, len(golden["tensors"]["prediction"]["entries"])), golden["tensors"]["prediction"], TOLERANCE, form.case)
    is_folder = path.is_dir()
    back = f"{form.case}-back" + ("" if is_folder else ".safetensors")
    same_bits(exported(form, golden, f"{form.case}-0", back), weights)
    if is_folder:
        configs = [json.loads((place / "config.json").read_text()) for place in (path, FOLDER / back)]
        assert configs[0] == configs[1], {key for key in configs[0] | configs[1] if configs[0].get(key) != configs[1].get(key)}
    if form.sets:
        ditto(*import_words(form, golden, path, f"{form.case}-weights"), "--weights", "weights")
        same_bits(exported(form, golden, f"{form.case}-weights", f"{form.case}-weights.safetensors"),
                  {name: tensor if name == "pos_embed" else tensor + 1 for name, tensor in weights.items()})
    others_are_refused(form, golden, weights)
    print(f"{golden['case']['format']}, {form.case}: predictions differ by {worst:.2g}")


def others_are_refused(form, golden, weights):
    name = next(name for name, tensor in reversed(weights.items())
                if ("block" in name or "layers." in name) and tensor.dim() == 2 and tensor.shape[0] != tensor.shape[1])
    left = {one: tensor for one, tensor in weights.items() if one != name}
    for what, tensors, names in (("renamed", left | {name + "s": weights[name]}, [name, name + "s"]),
                                 ("transposed", left | {name: weights[name].t().contiguous()}, [name])):
        folder = FOLDER / f"{form.case}-{what}"
        folder.mkdir()
        path = folder / form.file
        form.write(path, tensors, golden["case"]["options"])
        done = run(*import_words(form, golden, path, "never"))
        assert done.returncode in (2, 7) and not (FOLDER / "never").exists(), f"{form.case}, {what}: {done.stdout}"
        for said in names:
            assert f"{said.removeprefix('model.model.unet.')}'" in done.stderr, f"{form.case}, {what}: {said} is not in\n{done.stderr}"


chosen = [form for form in FORMS if not sys.argv[1:] or form.case in sys.argv[1:]]
for one in chosen:
    there_and_back(one)
print(f"{len(chosen)} files of six projects")
