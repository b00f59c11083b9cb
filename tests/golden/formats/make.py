"""Makes the files beside it: what other programs write, and the values that they read back.

Run with the Python peers (./dev peers): python tests/golden/formats/make.py
"""
import argparse
import collections
import io
import pathlib
import pickle
import struct
import tarfile

import numpy as np
import torch
from PIL import Image, ImageCms, ImageOps
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


def display_p3():
    """An ICC profile (ICC.1:2001-04) of Display P3's colours with a plain gamma of 2.2."""
    def fixed(*numbers):
        return b"".join(struct.pack(">i", round(number * 65536)) for number in numbers)
    white = fixed(0.9642, 1, 0.8249)
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(2.2 * 256)) + bytes(2)
    tags = {"desc": b"desc" + bytes(4) + struct.pack(">I", 3) + b"P3\0" + bytes(79), "wtpt": b"XYZ " + bytes(4) + white,
            "rXYZ": b"XYZ " + bytes(4) + fixed(0.51512, 0.2412, -0.00105),
            "gXYZ": b"XYZ " + bytes(4) + fixed(0.29198, 0.69225, 0.04189),
            "bXYZ": b"XYZ " + bytes(4) + fixed(0.1571, 0.06657, 0.78407), "rTRC": curve, "gTRC": curve, "bTRC": curve}
    table, data, start = b"", b"", 128 + 4 + 12 * len(tags)
    for name, body in tags.items():
        body += bytes(-len(body) % 4)
        table += name.encode() + struct.pack(">II", start + len(data), len(body))
        data += body
    header = struct.pack(">I", start + len(data)) + bytes(4) + b"\x02\x40\0\0" + b"mntrRGB XYZ " + bytes(12) + b"acsp" + bytes(28) + white
    return header + bytes(48) + struct.pack(">I", len(tags)) + table + data


def masked_bitmap(rgb, alpha):
    """A BMP of 32 bits a pixel with masks (BITMAPV4HEADER), from top to bottom: red, green, blue, opacity in this order."""
    height, width = alpha.shape
    pixels = np.dstack([rgb, alpha]).tobytes()
    header = struct.pack("<IiiHHIIiiII", 108, width, -height, 1, 32, 3, len(pixels), 0, 0, 0, 0) + \
        struct.pack("<IIII", 0xFF, 0xFF00, 0xFF0000, 0xFF000000) + bytes(52)
    return b"BM" + struct.pack("<IHHI", 14 + 108 + len(pixels), 0, 0, 14 + 108) + header + pixels


def cover(picture, side):
    """center_crop_arr of ADM (openai/guided-diffusion), from its description: halve by boxes, then bicubic, then the middle."""
    while min(picture.size) >= 2 * side:
        picture = picture.resize(tuple(x // 2 for x in picture.size), Image.BOX)
    scale = side / min(picture.size)
    values = np.asarray(picture.resize(tuple(round(x * scale) for x in picture.size), Image.BICUBIC))
    top, left = (values.shape[0] - side) // 2, (values.shape[1] - side) // 2
    return values[top:top + side, left:left + side]


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
        "rgb.tif": Image.fromarray(rgb),
        "grey16.tif": Image.fromarray((grey.astype(np.uint16) * 257 + 100).astype(np.uint16)),
        "cmyk.tif": Image.fromarray(rgb).convert("CMYK"),
        "rgba.tif": Image.fromarray(np.dstack([rgb, alpha])),
        "black_white.tif": Image.fromarray(grey > 100),
        "palette.gif": Image.fromarray(rgb).quantize(16),
        "transparent.gif": Image.fromarray(rgb).quantize(16),
        "rgb.bmp": Image.fromarray(rgb),
        "palette.bmp": Image.fromarray(rgb).quantize(16),
        "black_white.bmp": Image.fromarray(grey > 100),
        "rgb.avif": Image.fromarray(rgb),
        "rgba.avif": Image.fromarray(np.dstack([rgb, alpha])),
        "grey.avif": Image.fromarray(grey),
        "p3.png": Image.fromarray(rgb),
        "p3.jpg": Image.fromarray(rgb),
    }
    options = {
        "progressive.jpg": {"progressive": True, "quality": 90},
        "rgb.webp": {"lossless": True},
        "rgba.webp": {"lossless": True, "exact": True},
        "black_white.tif": {"compression": "group4"},
        "rgba.tif": {"compression": "tiff_lzw"},
        "transparent.gif": {"transparency": 3, "interlace": 1},
        "grey.avif": {"quality": 90},
        "p3.png": {"icc_profile": display_p3()},
        "p3.jpg": {"icc_profile": display_p3(), "quality": 95},
    }
    expected = {}
    for name, picture in files.items():
        picture.save(here / name, **options.get(name, {}))
        read = Image.open(here / name)
        if name.startswith("p3"):
            read = ImageCms.profileToProfile(read, io.BytesIO(display_p3()), ImageCms.createProfile("sRGB"))
        if "transparency" in read.info:
            read = read.convert("RGBA")
        if name.startswith("grey16"):
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
    (here / "masks.bmp").write_bytes(masked_bitmap(rgb, alpha))
    for kind in ("gif", "avif"):
        frames[0].save(here / f"animated.{kind}", save_all=True, append_images=frames[1:])
    frames[0].save(here / "pages.tif", save_all=True, append_images=frames[1:])
    covered = {str(side): cover(Image.fromarray(rgb), side) for side in (3, 5, 12, 20)}
    save_file({side: torch.from_numpy(values.copy()) for side, values in covered.items()}, here / "covered.safetensors")


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
    texts = {"note": "a text", "embeddings_clip": {"encodings": ramp(2, 4, dtype=torch.float16).numpy()},
             "embeddings_t5_xxl": {"mask": np.ones(2, dtype=np.int64), "encodings": ramp(2, 3, dtype=torch.float16).numpy()}}
    pickles["imagen"] = (texts, 4)
    for name, (value, protocol) in pickles.items():
        (here / f"saved_{name}.pickle").write_bytes(pickle.dumps(value, protocol))


safetensors()
checkpoint()
saved()
pictures()
orientations()
tars()
