"""`ditto data prepare --skip-bad` on a folder of over 400 odd files: each is accounted for, pictures are upright and in sRGB
as Pillow makes them, memory stays small, and names are found again in the shards.

Claim (data): Of a folder of 400 odd files (cut, empty, CMYK, turned, in seven formats, huge by their headers, links out of it,
junk) each is accounted for, within 512 MiB; pictures stand upright and in sRGB as Pillow makes them.
"""
import collections
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tarfile
import zlib

import numpy as np
from PIL import Image, ImageCms, ImageOps

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

SIDE = 24


def p3():
    """A profile of Display P3's colours with a plain gamma of 2.2 (ICC.1:2001-04)."""
    def fixed(*numbers):
        return b"".join(struct.pack(">i", round(n * 65536)) for n in numbers)
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(2.2 * 256)) + bytes(2)
    tags = {b"desc": b"desc" + bytes(4) + struct.pack(">I", 3) + b"P3\0" + bytes(79), b"cprt": b"text" + bytes(4) + b"none\0" + bytes(3),
            b"wtpt": b"XYZ " + bytes(4) + fixed(0.9642, 1, 0.8249),
            b"rXYZ": b"XYZ " + bytes(4) + fixed(0.51512, 0.2412, -0.00105),
            b"gXYZ": b"XYZ " + bytes(4) + fixed(0.29198, 0.69225, 0.04189),
            b"bXYZ": b"XYZ " + bytes(4) + fixed(0.1571, 0.06657, 0.78407),
            b"rTRC": curve, b"gTRC": curve, b"bTRC": curve}
    table, data, start = b"", b"", 128 + 4 + 12 * len(tags)
    for name, body in tags.items():
        body += bytes(-len(body) % 4)
        table += name + struct.pack(">II", start + len(data), len(body))
        data += body
    header = struct.pack(">I", start + len(data)) + bytes(4) + b"\x02\x40\0\0" + b"mntrRGB XYZ " + bytes(12) + b"acsp" + bytes(28) + \
        fixed(0.9642, 1, 0.8249) + bytes(48)
    return header + struct.pack(">I", len(tags)) + table + data


def scene(width, height, turn=0):
    """Each corner of its own, smooth, so that JPEG and resizing change little, and a wrong way up much."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([x * 255 / width, y * 255 / height, 128 + 100 * np.sin(turn + x / width * 3) * np.cos(y / height * 2)], -1)
    return Image.fromarray(rgb.clip(0, 255).astype(np.uint8))


def bytes_of(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


class Folder:
    def __init__(self, root):
        self.root = os.fsencode(root)
        self.expected = {}  # path in the folder, as bytes -> outcome

    def put(self, name, content, outcome, alone=None):
        """`alone`: the file stands in a junk folder of this name, which the report names instead."""
        name = os.fsencode(name)
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
        if alone:
            self.expected.setdefault(os.fsencode(alone), (outcome, 0))
            self.expected[os.fsencode(alone)] = (outcome, self.expected[os.fsencode(alone)][1] + 1)
        else:
            self.expected[name] = (outcome, 1)
        return path


def huge_headers():
    n = 60_000
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", n, n, 8, 2, 0, 0, 0)
    png += struct.pack(">I", zlib.crc32(png[12:])) + struct.pack(">I4s", 0, b"IDAT") + struct.pack(">I", zlib.crc32(b"IDAT"))
    bmp = b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, n, n, 1, 24, 0, 0, 0, 0, 0, 0)
    tiff = b"II*\0" + struct.pack("<IH", 8, 8) + b"".join(
        struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in
        [(256, 4, n), (257, 4, n), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1), (279, 4, 8)]) + bytes(4)
    gif = b"GIF89a" + struct.pack("<HHBBB", n, n, 0x80, 0, 0) + bytes(6) + b"," + struct.pack("<HHHHB", 0, 0, n, n, 0) + b"\2\0;"
    jpeg = bytearray(bytes_of(scene(48, 32), "JPEG"))
    at = jpeg.find(b"\xff\xc0")
    jpeg[at + 5:at + 9] = struct.pack(">HH", n, n)
    return {"png": png, "bmp": bmp, "tif": tiff, "gif": gif, "jpg": bytes(jpeg)}


def make(root):
    folder, upright = Folder(root), {}

    def good(name, content, reference=None):
        folder.put(name, content, "taken")
        picture = reference or ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
        upright[os.fsencode(name)] = picture

    rgb, grey = scene(48, 32), scene(48, 32).convert("L")
    alpha = Image.fromarray(np.tile(np.linspace(0, 255, 48).astype(np.uint8), (32, 1)))
    rgba, grey_alpha = rgb.copy(), grey.copy()
    rgba.putalpha(alpha)
    grey_alpha.putalpha(alpha)
    # Which way up.
    for number in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = number
        good(f"ways/{number}.jpg", bytes_of(rgb, "JPEG", exif=exif, quality=95))
        good(f"ways/{number}.png", bytes_of(rgb, "PNG", exif=exif))
        good(f"ways/{number}.webp", bytes_of(rgb, "WEBP", exif=exif, lossless=True))
        good(f"ways/{number}.tif", bytes_of(rgb, "TIFF", tiffinfo={274: number}))
        good(f"ways/{number}g.tiff", bytes_of(grey, "TIFF", tiffinfo={274: number}, compression="tiff_lzw"))
        good(f"ways/{number}.avif", bytes_of(rgb, "AVIF", exif=exif, quality=95))
    # Kinds of pixels.
    deep = np.asarray(grey).astype(np.uint16) * 257
    kinds = {
        "cmyk.jpg": bytes_of(rgb.convert("CMYK"), "JPEG", quality=95), "grey.jpg": bytes_of(grey, "JPEG"),
        "progressive.jpg": bytes_of(rgb, "JPEG", progressive=True, quality=95),
        "grey.png": bytes_of(grey, "PNG"), "palette.png": bytes_of(rgb.quantize(64), "PNG"),
        "one_bit.png": bytes_of(grey.convert("1"), "PNG"), "lossy.webp": bytes_of(rgb, "WEBP", quality=95),
        "grey.avif": bytes_of(grey, "AVIF", quality=95), "p.gif": bytes_of(rgb.quantize(64), "GIF"),
        "interlaced.gif": bytes_of(rgb.quantize(64), "GIF", interlace=1), "grey.gif": bytes_of(grey, "GIF"),
        "rgb.bmp": bytes_of(rgb, "BMP"), "grey.bmp": bytes_of(grey, "BMP"), "one_bit.bmp": bytes_of(grey.convert("1"), "BMP"),
        "palette.bmp": bytes_of(rgb.quantize(64), "BMP"), "cmyk.tif": bytes_of(rgb.convert("CMYK"), "TIFF"),
        "grey.tif": bytes_of(grey, "TIFF"), "one_bit.tif": bytes_of(grey.convert("1"), "TIFF", compression="group4"),
        "palette.tif": bytes_of(rgb.quantize(64), "TIFF"), "deflate.tif": bytes_of(rgb, "TIFF", compression="tiff_adobe_deflate"),
        "packbits.tif": bytes_of(rgb, "TIFF", compression="packbits"), "jpeg.tif": bytes_of(rgb, "TIFF", compression="jpeg", quality=95),
        "unseen opacity.bmp": bytes_of(rgba, "BMP"), "big.tif": bytes_of(rgb, "TIFF", big_tiff=True),
    }
    for name, content in kinds.items():
        good("kinds/" + name, content, Image.open(io.BytesIO(content)).convert("L" if Image.open(io.BytesIO(content)).mode in "1L" else "RGB"))
    for name, content in {"deep.png": bytes_of(Image.fromarray(deep), "PNG"), "deep.tif": bytes_of(Image.fromarray(deep), "TIFF")}.items():
        good("kinds/" + name, content, grey)
    white = Image.new("RGB", rgb.size, "white")
    for name, kind, options in [("a.png", "PNG", {}), ("a.webp", "WEBP", {"lossless": True, "exact": True}), ("a.tif", "TIFF", {}),
                                ("a.avif", "AVIF", {"quality": 95})]:
        good("kinds/" + name, bytes_of(rgba, kind, **options), Image.composite(rgb, white, alpha))
    good("kinds/ga.png", bytes_of(grey_alpha, "PNG"), Image.composite(grey, Image.new("L", grey.size, "white"), alpha))
    # Colours.
    profile = p3()
    for name, kind, options in [("p3.jpg", "JPEG", {"quality": 95}), ("p3.png", "PNG", {}), ("p3.webp", "WEBP", {"lossless": True}),
                                ("p3.tif", "TIFF", {}), ("p3.avif", "AVIF", {"quality": 95})]:
        to_srgb = ImageCms.profileToProfile(rgb, io.BytesIO(profile), ImageCms.createProfile("sRGB"))
        good("colours/" + name, bytes_of(rgb, kind, icc_profile=profile, **options), to_srgb)
    good("colours/broken profile.jpg", bytes_of(rgb, "JPEG", icc_profile=b"not one", quality=95), rgb)
    # Pictures that move, and documents.
    frames = [scene(48, 32, t) for t in (1, 2, 3)]
    for name, kind in [("moves.gif", "GIF"), ("moves.webp", "WEBP"), ("moves.avif", "AVIF"), ("moves.png", "PNG"),
                       ("pages.tif", "TIFF")]:
        folder.put("kinds/" + name, bytes_of(frames[0], kind, save_all=True, append_images=frames[1:]), "bad")
    # Cut off, empty, and not what the name says.
    whole = {"jpg": bytes_of(rgb, "JPEG"), "png": bytes_of(rgb, "PNG"), "webp": bytes_of(rgb, "WEBP"), "tif": bytes_of(rgb, "TIFF"),
             "lzw.tif": bytes_of(rgb, "TIFF", compression="tiff_lzw"), "gif": bytes_of(rgb.quantize(64), "GIF"),
             "bmp": bytes_of(rgb, "BMP"), "avif": bytes_of(rgb, "AVIF")}
    for kind, content in whole.items():
        for share in range(1, 10):
            folder.put(f"cut/{share}.{kind}", content[:len(content) * share // 10], "bad")
    folder.put("cut/whole.jpg", whole["jpg"], "taken")
    for kind in ["jpg", "png", "webp", "tif", "gif", "bmp", "avif", "JPEG"]:
        folder.put(f"empty/0.{kind}", b"", "bad")
        folder.put(f"empty/text.{kind}", b"<html>not found</html>", "bad")
    for kind, content in whole.items():
        for wrong in ["jpg", "png", "dat"] + [""] * (kind == "jpg"):
            good(f"wrong/{kind}_is_not.{wrong}" if wrong else "wrong/none", content)
    for kind, content in huge_headers().items():
        folder.put(f"huge/60000.{kind}", content, "bad")
    folder.put("huge/a.png", whole["png"], "taken")
    # Names.
    for number, name in enumerate(["Gr\u00fc\u00dfe \u732b \U0001f431.png", "new\nline.png", " spaces .png", "-dash.png", "quote\"'`$(x).png",
                                   "%s%n.png", "tab\t.png", "a" * 240 + ".png", "dots...png", "\u202eltr.png", "UPPER.PNG"]):
        good("names \u00e9\n\U0001f600/" + name, bytes_of(scene(40, 30, number), "PNG"))
    good(b"names \xff/\xfe\xff.png", bytes_of(scene(40, 30), "PNG"))
    # Captions.
    for number in range(20):
        good(f"captions/{number}.png", bytes_of(scene(40, 30, number), "PNG"))
        if number < 10:
            folder.put(f"captions/{number}.txt", f"caption {number} \u732b".encode(), "caption")
    lines = [{"file_name": f"{n}.png", "text": f"row {n}", "rating": n} for n in range(10, 20)]
    folder.put("captions/metadata.jsonl", "\n".join(map(json.dumps, lines)).encode(), "caption")
    good("captions/bytes.jpg", whole["jpg"])
    del upright[b"captions/bytes.jpg"]
    folder.expected[b"captions/bytes.jpg"] = ("bad", 1)  # its caption is no text
    folder.put("captions/bytes.txt", b"\xff\xfe", "caption")
    # What is no picture, and what systems leave behind.
    for name in ["notes.md", "a.svg", "b.psd", "c.heic", "d.mp4", "e.zip", "f.txt", "noext", "g.json"]:
        folder.put("ways/" + name, b"\0\1\2 not a picture", "left out")
    for name in [".DS_Store", "Thumbs.db", "desktop.ini", "Icon\r", "._1.jpg", ".hidden.png"]:
        folder.put("ways/" + name, whole["png"], "left out")
    for junk in [".ipynb_checkpoints", "__MACOSX", "@eaDir", ".git", "__pycache__", "$RECYCLE.BIN", "ways/.thumbnails", "ways/@eaDir"]:
        for number in range(4):
            folder.put(f"{junk}/deep/{number}.png", whole["png"], "left out", alone=junk)
    folder.put("papers/a.pdf", b"%PDF", "left out")
    folder.expected[b"papers"] = ("left out", 0)
    # Links, and what is no file.
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret.png").write_bytes(whole["png"])
    for name, target in [("ways/out.png", outside / "secret.png"), ("ways/out folder", outside), ("ways/nowhere.png", "nowhere"),
                         ("ways/up.png", "../../outside/secret.png"), ("ways/itself.png", "itself.png"), ("ways/root", "/")]:
        os.symlink(target, root / name)
        folder.expected[os.fsencode(name)] = ("left out", 1)
    os.symlink("1.png", root / "ways/inside.png")
    folder.expected[b"ways/inside.png"] = ("taken", 1)
    os.mkfifo(root / "ways/pipe.png")
    folder.expected[b"ways/pipe.png"] = ("left out", 1)
    folder.put("loose.png", whole["png"], "bad")  # in no class
    for number in range(100):
        good(f"plain/{number:03}.jpg", bytes_of(scene(60 + number, 50, number), "JPEG", quality=95))
    folder.put("plain/photo.jpg", bytes_of(scene(4000, 3000), "JPEG", quality=90), "taken")
    return folder, upright


def said(name):
    """As JSON has it: what is no UTF-8 becomes U+FFFD."""
    return name.decode("utf-8", "replace")


def prepare(root, out, *options):
    """What it prints, and MiB at its peak: of a process that is started by a small one, which has no memory of its own."""
    words = [t.ditto, "data", "prepare", os.fsdecode(root), "--out", str(out), "--skip-bad", *map(str, options)]
    watcher = "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; " \
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
    run = subprocess.run([sys.executable, "-c", watcher, *words], capture_output=True, text=True)
    t.equal(run.returncode, 0, run.stderr + run.stdout)
    return run.stdout, int(run.stderr.split()[-1]) / 1024


def read_shards(out):
    samples = collections.defaultdict(dict)
    for shard in sorted(out.glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                key, extension = member.name.split(".", 1)
                samples[f"{shard.name}:{key}"][extension] = tar.extractfile(member).read()
    return samples


def cover(picture, side):
    """center_crop_arr of ADM."""
    while min(picture.size) >= 2 * side:
        picture = picture.resize(tuple(x // 2 for x in picture.size), Image.BOX)
    scale = side / min(picture.size)
    values = np.array(picture.resize(tuple(round(x * scale) for x in picture.size), Image.BICUBIC))
    top, left = (values.shape[0] - side) // 2, (values.shape[1] - side) // 2
    return values[top:top + side, left:left + side]


def check_report(out, folder):
    lines = [json.loads(line) for line in (out / "report.jsonl").read_text().splitlines()]
    found = {line["file"]: line for line in lines}
    t.equal(len(found), len(lines), [name for name, n in collections.Counter(line["file"] for line in lines).items() if n > 1])
    expected = {said(name): outcome for name, outcome in folder.expected.items()}
    t.check(found.keys() == expected.keys(), found.keys() ^ expected.keys())
    wrong = [(name, outcome, found[name]) for name, (outcome, files) in expected.items()
             if found[name]["outcome"] != outcome or found[name].get("files", 1) != files]
    t.check(not wrong, wrong)
    t.check(all(line.get("reason") for line in lines if line["outcome"] in ("bad", "left out")), lines)
    for kind in huge_headers():
        t.check("60000x60000" in found[f"huge/60000.{kind}"]["reason"], found[f"huge/60000.{kind}"])
    counted = sum(files for _, files in folder.expected.values())
    on_disk = sum(len(files) for _, _, files in os.walk(folder.root)) + \
        sum(os.path.islink(os.path.join(d, n)) for d, names, _ in os.walk(folder.root) for n in names)
    t.check(counted == on_disk >= 400, counted, on_disk)
    return found


def check_samples(found, samples, folder):
    classes = sorted({name.split(b"/")[0] for name, (outcome, _) in folder.expected.items() if b"/" in name and outcome in ("taken", "bad")})
    taken = {name: line["sample"] for name, line in found.items() if line["outcome"] == "taken"}
    t.check(len(set(taken.values())) == len(taken) == len(samples), len(taken), len(samples))
    for name, sample in taken.items():
        members = samples[sample]
        notes = json.loads(members["json"])
        t.equal((notes["file"], notes["class"]), (name, name.split("/")[0]), "names")
        t.equal(said(classes[int(members["cls"])]), notes["class"], "class")
    for number in range(20):
        members = samples[taken[f"captions/{number}.png"]]
        t.equal(members["txt"].decode(), f"caption {number} \u732b" if number < 10 else f"row {number}", "caption")
        t.check(number < 10 or json.loads(members["json"])["rating"] == number, members["json"])


def check_upright(found, samples, upright):
    for name, picture in upright.items():
        members = samples[found[said(name)]["sample"]]
        ours = np.asarray(Image.open(io.BytesIO(members["png"])).convert("RGB")).astype(int)
        theirs = cover(picture if picture.mode == "L" else picture.convert("RGB"), SIDE)
        theirs = np.repeat(theirs[..., None], 3, -1) if theirs.ndim == 2 else theirs
        difference = np.abs(ours - theirs.astype(int))
        t.check(ours.shape == (SIDE, SIDE, 3) and difference.mean() < 2.5 and difference.max() < 25,
                name, difference.mean(), difference.max())


def folder():
    """Made once: the tests below read it."""
    if not made:
        root = t.work / "photos"
        root.mkdir()
        made.extend(make(root))
    return made


made = []


def test_every_file_is_accounted_for_within_512_mib():
    odd, _ = folder()
    out = t.work / "as_they_are"
    text, peak = prepare(odd.root, out, "--threads", "2")
    t.check(peak < 512, f"{peak} MiB at the peak")
    found = check_report(out, odd)
    check_samples(found, read_shards(out), odd)
    for line in ["links out of the folder, which are not followed (", "hidden, or left behind by a system or tool (", "bad files skipped"]:
        t.check(line in text, text)
    counts = collections.Counter(outcome for outcome, _ in odd.expected.values())
    print(f"{sum(files for _, files in odd.expected.values())} files: {dict(counts)}; {peak:.0f} MiB at the peak")


def test_pictures_are_upright_and_in_srgb_as_pillow_makes_them():
    odd, upright = folder()
    prepare(odd.root, t.work / "small", "--threads", "1", "--size", SIDE)
    found = check_report(t.work / "small", odd)
    check_upright(found, read_shards(t.work / "small"), upright)
    prepare(odd.root, t.work / "again", "--threads", "3", "--size", SIDE)
    for path in (t.work / "small").rglob("*"):
        if path.is_file():
            t.equal(path.read_bytes(), (t.work / "again" / path.relative_to(t.work / "small")).read_bytes(), f"{path} on 3 threads")


t.main(globals())
