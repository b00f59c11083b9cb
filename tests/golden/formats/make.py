"""Makes the files beside it: what other programs write, and the values that they read back.

Run with the Python peers (./dev peers): python tests/golden/formats/make.py
"""
import argparse
import collections
import io
import pathlib
import pickle
import tarfile

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent


def ramp(*shape, dtype=torch.float32):
    count = int(np.prod(shape))
    return (torch.arange(count, dtype=torch.float32) / 8 - 1).reshape(shape).to(dtype)


def safetensors():
    tensors = {
        "blocks.0.weight": ramp(2, 3),
        "blocks.0.bias": ramp(3),
        "half": ramp(4, dtype=torch.float16),
        "brain": ramp(5, dtype=torch.bfloat16),
        "double": ramp(2, 2, dtype=torch.float64),
        "step": torch.tensor(7, dtype=torch.int64),
        "mask": torch.tensor([True, False, True]),
        "bytes": torch.arange(3, dtype=torch.uint8),
        "int": torch.tensor([-1, 2], dtype=torch.int32),
        "empty": torch.zeros(0, 4),
        "na\u00efve \"name\"\\": ramp(1),
    }
    save_file(tensors, here / "reference.safetensors", metadata={"format": "pt"})


def checkpoint():
    weight = ramp(4, 6)
    model = collections.OrderedDict()
    model["blocks.0.weight"] = weight
    model["blocks.0.bias"] = ramp(4, dtype=torch.bfloat16)
    model["transposed"] = weight.t()
    model["slice"] = weight[1:3, 2:5]
    model["expanded"] = ramp(1, 3).expand(2, 3)
    model["scalar"] = torch.tensor(2.5, dtype=torch.float64)
    model["empty"] = torch.zeros(0, 3)
    model["parameter"] = torch.nn.Parameter(ramp(2))
    model["float8"] = ramp(3).to(torch.float8_e4m3fn)
    args = argparse.Namespace(model="DiT-S/2", image_size=256, lr=1e-4, ema=True, note=None)
    optimizer = {"state": {0: {"exp_avg": ramp(3)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
    content = {"model": model, "ema": {"blocks.0.weight": weight * 2}, "opt": optimizer, "args": args, "step": 12}
    torch.save(content, here / "checkpoint.pt")
    torch.save({"weight": ramp(2), "strange": collections.Counter("aab")}, here / "protocol4.pt", pickle_protocol=4)


def pictures():
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:12, 0:16]
    rgb = np.stack([x * 16, y * 20, (x + y) * 8], -1).astype(np.uint8)
    grey = (x * 10 + y * 5).astype(np.uint8)
    alpha = rng.integers(0, 256, (12, 16), dtype=np.uint8)
    files = {
        "rgb.png": Image.fromarray(rgb),
        "grey.png": Image.fromarray(grey),
        "grey16.png": Image.fromarray((grey.astype(np.uint16) * 257 + 100).astype(np.uint16)),
        "black_white.png": Image.fromarray(grey > 100),
        "palette.png": Image.fromarray(rgb).quantize(16),
        "rgba.png": Image.fromarray(np.dstack([rgb, alpha])),
        "grey_alpha.png": Image.fromarray(np.dstack([grey, alpha])),
        "rgb.jpg": Image.fromarray(rgb),
        "grey.jpg": Image.fromarray(grey),
        "cmyk.jpg": Image.fromarray(rgb).convert("CMYK"),
        "progressive.jpg": Image.fromarray(rgb),
        "rgb.webp": Image.fromarray(rgb),
        "rgba.webp": Image.fromarray(np.dstack([rgb, alpha])),
    }
    options = {
        "progressive.jpg": {"progressive": True, "quality": 90},
        "rgb.webp": {"lossless": True},
        "rgba.webp": {"lossless": True, "exact": True},
    }
    expected = {}
    for name, picture in files.items():
        picture.save(here / name, **options.get(name, {}))
        read = Image.open(here / name)
        if name == "grey16.png":
            values = np.round(np.asarray(read).astype(np.float64) * 255 / 65535)
        elif "A" in read.mode:
            values = np.asarray(read).astype(np.float64)
            opacity = values[..., -1:] / 255
            values = np.round(values[..., :-1] * opacity + 255 * (1 - opacity))
        else:
            values = np.asarray(read.convert("L" if read.mode in ("L", "1") else "RGB"))
        values = values if values.ndim == 3 else values[..., None]
        expected[name] = torch.from_numpy(np.ascontiguousarray(values.astype(np.uint8)))
    frames = [Image.fromarray(np.roll(rgb, i, 1)) for i in range(3)]
    frames[0].save(here / "animated.webp", save_all=True, append_images=frames[1:], lossless=True)
    save_file(expected, here / "pictures.safetensors")


def orientations():
    """What PIL's exif_transpose makes of files that say which way up they are."""
    y, x = np.mgrid[0:8, 0:16]
    picture = Image.fromarray(np.stack([x * 16, y * 30, (x + y) * 8], -1).astype(np.uint8))
    files = {f"oriented_{number}.jpg": number for number in range(1, 9)} | {"oriented_6.png": 6, "oriented_8.webp": 8}
    expected = {}
    for name, number in files.items():
        exif = Image.Exif()
        exif[271], exif[274] = "a camera", number
        options = {"lossless": True} if name.endswith("webp") else {"quality": 95, "subsampling": 0}
        picture.save(here / name, exif=exif, **({} if name.endswith("png") else options))
        expected[name] = torch.from_numpy(np.ascontiguousarray(ImageOps.exif_transpose(Image.open(here / name))))
    save_file(expected, here / "orientations.safetensors")


def tars():
    for name, form in {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}.items():
        archive = tarfile.open(here / f"{name}.tar", "w", format=form)

        def add(member, data, kind=tarfile.REGTYPE):
            info = tarfile.TarInfo(member)
            info.size, info.type = len(data), kind
            archive.addfile(info, io.BytesIO(data))

        add("a.txt", b"AAAA")
        add("empty.txt", b"")
        add("folder", b"", tarfile.DIRTYPE)
        add("b.bin", b"B" * 600)
        add("x" * 90 + "/" + "y" * 90, b"split")
        if name != "ustar":
            add("z" * 300, b"")
            add("w" * 300, b"long")
        add("\u00e9.txt", b"accent")
        archive.close()


# As NeMo's scripts keep latents and embeddings beside a sample; each is ramp(2, 3) in its dtype.
def saved():
    torch.save(ramp(2, 3, dtype=torch.bfloat16), here / "saved_bf16.pth")
    torch.save({"latent": ramp(2, 3), "note": "no tensor"}, here / "saved_dict.pth")
    for name, latent in {"latent": ramp(2, 1, 2, 3), "long": ramp(2, 3, 2, 1), "large": ramp(2, 1, 2, 3) * 1001,
                         "nan": ramp(2, 1, 2, 3) / 0}.items():
        torch.save(latent, here / f"saved_{name}.pth")
    torch.save(ramp(2, 3), here / "saved_old.pth", _use_new_zipfile_serialization=False)
    pickles = {"numpy": (ramp(2, 3, dtype=torch.float16).numpy(), 4), "numpy5": (ramp(2, 3).numpy(), 5),
               "columns": ([np.asfortranarray(ramp(2, 3, dtype=torch.float64).numpy())], 4),
               "tensor": (ramp(1, 2, 3, dtype=torch.bfloat16), 4), "slice": (ramp(4, 3)[:2], 4)}
    for name, (value, protocol) in pickles.items():
        (here / f"saved_{name}.pickle").write_bytes(pickle.dumps(value, protocol))


safetensors()
checkpoint()
saved()
pictures()
orientations()
tars()
