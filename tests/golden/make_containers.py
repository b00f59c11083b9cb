#!/usr/bin/env python3
"""Over two hundred small pictures in every container of orientation and opacity, and what Pillow makes of them: upright by exif_transpose,
as RGB, over white where they have opacity. Beside them files that no one should learn from: animations, raw camera files, thumbnails.

    .deps/peers/bin/python tests/golden/make_containers.py [--seed N] [--out FILE]      (pillow 13.0.0; ./dev peers)

writes tests/golden/containers/pictures.safetensors: "file/NAME" and "pixels/NAME" of the pictures, "bad/WHY/NAME" of the others.
Another seed gives other pixels in the same containers.
"""
import argparse
import io
import json
import pathlib
import random
import struct
import warnings
import zlib

from PIL import Image, ImageOps

from container_files import (EXIF, bmp, chunk, exif, gif, gif_frame, packed_rows, png, raw_profile, riff, segment, text_chunk, three, tiff,
                             webp_parts, xmp)

LEAST = 200
HERE = pathlib.Path(__file__).resolve().parent


class Maker:
    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.pictures, self.bad = {}, {}

    def add(self, name, content):
        assert name not in self.pictures, name
        self.pictures[name] = content

    def refuse(self, why, name, content):
        self.bad[f"{why}/{name}"] = content

    def size(self):
        width = self.draw.randint(3, 7)
        return width, self.draw.choice([n for n in range(3, 8) if n != width])

    def noise(self, mode, size=None):
        """Every value its own: for containers that keep them."""
        width, height = size or self.size()
        return Image.frombytes(mode, (width, height), self.draw.randbytes(width * height * len(mode)))

    def smooth(self, mode, size=None):
        """For those that do not."""
        width, height = size or self.size()
        corners = [[self.draw.randrange(256) for _ in mode] for _ in range(4)]
        data = bytearray()
        for y in range(height):
            for x in range(width):
                u, v = x / (width - 1), y / (height - 1)
                data += bytes(round((a * (1 - u) + b * u) * (1 - v) + (c * (1 - u) + d * u) * v) for a, b, c, d in zip(*corners))
        return Image.frombytes(mode, (width, height), bytes(data))


def saved(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


# --- PNG ---

def pngs(make):
    draw = make.draw

    def rgb(**more):
        picture = make.noise("RGB")
        return png(picture.size, picture.tobytes(), 2, **more)

    def samples(size, count, depth):
        return [draw.randrange(1 << depth) for _ in range(size[0] * size[1] * count)]

    for way in range(1, 9):
        make.add(f"eXIf {way}.png", rgb(**{draw.choice(["before", "after"]): [(b"eXIf", exif(way, draw.choice("<>")))]}))
        make.add(f"zTXt {way}.png", rgb(before=[text_chunk("zTXt", "Raw profile type exif", raw_profile(exif(way, draw.choice("<>"), prefix=EXIF)))]))
    for way, kind in [(3, "tEXt"), (6, "iTXt"), (8, "iTXt packed"), (5, "tEXt")]:
        make.add(f"text {kind} {way}.png", rgb(after=[text_chunk(kind, "Raw profile type exif", raw_profile(exif(way), line=30))]))
    make.add("eXIf before a text.png", rgb(before=[text_chunk("tEXt", "Raw profile type exif", raw_profile(exif(3))), (b"eXIf", exif(6))]))
    make.add("no such profile.png", rgb(before=[text_chunk("zTXt", "Raw profile type APP1", raw_profile(exif(6, prefix=EXIF), "APP1"))]))
    make.add("xmp 6.png", rgb(before=[text_chunk("iTXt", "XML:com.adobe.xmp", xmp(6))]))
    make.add("xmp 8 packed.png", rgb(after=[text_chunk("iTXt packed", "XML:com.adobe.xmp", xmp(8, as_element=True))]))
    make.add("exif before xmp.png", rgb(before=[(b"eXIf", exif(1)), text_chunk("iTXt", "XML:com.adobe.xmp", xmp(6))]))
    for kind, what in [("LONG", 4), ("SSHORT", 8), ("SLONG", 9)]:
        make.add(f"eXIf {kind}.png", rgb(before=[(b"eXIf", exif(6, kind=what))]))
    make.add("eXIf 0.png", rgb(before=[(b"eXIf", exif(0))]))
    make.add("eXIf 9.png", rgb(before=[(b"eXIf", exif(9))]))
    for name, tail in [("noise", draw.randbytes(40)), ("zip", b"PK\3\4" + b"x" * 30), ("zeros", bytes(64)),
                       ("an eXIf", chunk(b"eXIf", exif(6))), ("another", rgb())]:
        make.add(f"tail of {name}.png", rgb(tail=tail))
    for colour, depth in [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (4, 8), (6, 8)]:
        size, count = make.size(), {0: 1, 2: 3, 4: 2, 6: 4}[colour]
        make.add(f"colour {colour} of {depth}.png", png(size, samples(size, count, depth), colour, depth))
    for colour in (4, 6):
        size, count = make.size(), {4: 2, 6: 4}[colour]
        make.add(f"colour {colour} of 16.png", png(size, [257 * v for v in samples(size, count, 8)], colour, 16))
    for colour in (0, 2, 6):
        size = make.size()
        make.add(f"interlaced {colour}.png", png(size, samples(size, {0: 1, 2: 3, 6: 4}[colour], 8), colour, interlaced=True))
    for depth in (1, 2, 4, 8):
        for opacity in ("none", "one", "several"):
            size, count = make.size(), min(1 << depth, 20)
            before = [(b"PLTE", draw.randbytes(3 * count))]
            if opacity != "none":
                before.append((b"tRNS", b"\xff\0" if opacity == "one" else bytes([draw.randrange(256) for _ in range(count - 1)])))
            make.add(f"palette {depth} {opacity}.png", png(size, [draw.randrange(count) for _ in range(size[0] * size[1])], 3, depth, before=before))
    size = make.size()
    values = samples(size, 3, 8)
    make.add("tRNS colour.png", png(size, values, 2, before=[(b"tRNS", struct.pack(">HHH", *values[3:6]))]))
    values = samples(size, 1, 8)
    make.add("tRNS grey.png", png(size, values, 0, before=[(b"tRNS", struct.pack(">H", values[2]))]))
    make.add("tRNS black and white.png", png(size, samples(size, 1, 1), 0, 1, before=[(b"tRNS", b"\0\1")]))
    make.add("alpha 6.png", png(size, samples(size, 4, 8), 6, before=[(b"eXIf", exif(6))]))
    control = struct.pack(">IIIIIHHBB", 0, size[0], size[1], 0, 0, 1, 10, 0, 0)
    make.add("one frame.png", png(size, samples(size, 3, 8), 2, before=[(b"acTL", struct.pack(">II", 1, 0)), (b"fcTL", control)]))
    more = zlib.compress(b"".join(b"\0" + draw.randbytes(3 * size[0]) for _ in range(size[1])))
    frame = [(b"fcTL", struct.pack(">I", 1) + control[4:]), (b"fdAT", struct.pack(">I", 2) + more)]
    make.refuse("animation", "two frames.png", png(size, samples(size, 3, 8), 2, before=[(b"acTL", struct.pack(">II", 2, 0)), (b"fcTL", control)], after=frame))
    make.refuse("animation", "beside its own picture.png", png(size, samples(size, 3, 8), 2, before=[(b"acTL", struct.pack(">II", 1, 0))], after=[(b"fcTL", control), (b"fdAT", struct.pack(">I", 1) + more)]))
    make.refuse("animation", "grey.png", png(size, samples(size, 1, 8), 0, before=[(b"acTL", struct.pack(">II", 3, 5)), (b"fcTL", control)], after=frame))


# --- JPEG ---

def jpegs(make):
    draw = make.draw

    def with_segments(*segments, picture=None, **options):
        whole = saved(picture or make.smooth("RGB"), "JPEG", quality=95, **options)
        return whole[:2] + b"".join(segments) + whole[2:]

    for way in range(1, 9):
        make.add(f"exif {way}.jpg", with_segments(segment(0xE1, exif(way, draw.choice("<>"), prefix=EXIF))))
    head = b"http://ns.adobe.com/xap/1.0/\0"
    make.add("xmp 6.jpg", with_segments(segment(0xE1, head + xmp(6))))
    make.add("xmp 3 element.jpg", with_segments(segment(0xE1, head + xmp(3, as_element=True))))
    make.add("exif before xmp.jpg", with_segments(segment(0xE1, head + xmp(6)), segment(0xE1, exif(8, prefix=EXIF))))
    make.add("exif without.jpg", with_segments(segment(0xE1, exif(8, tag=0x0113, prefix=EXIF)), segment(0xE1, head + xmp(6))))
    make.add("exif LONG.jpg", with_segments(segment(0xE1, exif(6, ">", kind=4, prefix=EXIF))))
    make.add("exif prefix twice.jpg", with_segments(segment(0xE1, exif(6, prefix=EXIF + EXIF))))
    make.add("fill bytes.jpg", with_segments(b"\xff\xff" + segment(0xE1, exif(5, prefix=EXIF))))
    make.add("behind others.jpg", with_segments(segment(0xE2, b"MPF\0" + bytes(20)), segment(0xED, b"Photoshop 3.0\0"), segment(0xE1, exif(7, prefix=EXIF))))
    make.add("grey.jpg", with_segments(segment(0xE1, exif(6, prefix=EXIF)), picture=make.smooth("L")))
    make.add("progressive.jpg", with_segments(segment(0xE1, exif(8, prefix=EXIF)), progressive=True))
    make.add("cmyk.jpg", with_segments(segment(0xE1, exif(3, prefix=EXIF)), picture=make.smooth("CMYK")))
    make.add("with a tail.jpg", with_segments() + draw.randbytes(50))


# --- TIFF ---

def tiffs(make):
    draw = make.draw

    def bands(size, count, bits=8):
        return [[draw.randrange(1 << bits) for _ in range(size[0] * size[1])] for _ in range(count)]

    def made(count, photometric, bits=8, values=None, **more):
        size = make.size()
        return tiff(size, values(size) if values else bands(size, count, bits), photometric, bits, **more)

    for way in range(1, 9):
        make.add(f"orientation {way}.tif", made(3, 2, order=draw.choice("<>"), more=[(274, 3, [way])]))
    make.add("orientation grey.tif", made(1, 1, more=[(274, 3, [6])]))
    make.add("orientation opacity.tif", made(4, 2, extra=[2], more=[(274, 3, [8])]))
    make.add("orientation big.tif", made(3, 2, big=True, more=[(274, 3, [5])]))
    make.add("orientation tiles.tif", made(3, 2, tile=16, more=[(274, 3, [7])]))
    make.add("orientation LONG.tif", made(3, 2, more=[(274, 4, [6])]))
    make.add("xmp 6.tif", made(3, 2, more=[(700, 1, list(xmp(6)))]))
    make.add("xmp after all.tif", made(3, 2, more=[(274, 3, [1]), (700, 1, list(xmp(6)))]))
    # A fourth band, by what the file says of it: nothing, unspecified, multiplied into the colours, straight, as Corel writes it.
    for name, extra in [("unsaid", None), ("unspecified", [0]), ("multiplied", [1]), ("straight", [2]), ("corels", [999])]:
        for order in "<>":
            make.add(f"four bands {name} {'IM'[order == '>']}.tif", made(4, 2, extra=extra, order=order))
        make.add(f"four bands {name} packed.tif", made(4, 2, extra=extra, compression=8, rows=2))
    for name, extra in [("unspecified", [0]), ("straight", [2]), ("unsaid", None)]:
        make.add(f"four planes {name}.tif", made(4, 2, extra=extra, planar=True, rows=2, compression=1 if extra is None else 8))
        make.add(f"four bands {name} in tiles.tif", made(4, 2, extra=extra, tile=16))
    for name, extra in [("unspecified", [0, 0]), ("straight", [2, 0]), ("multiplied", [1, 0]), ("unspecified", [0, 0, 0]), ("straight", [2, 0, 0])]:
        make.add(f"{3 + len(extra)} bands {name}.tif", made(3 + len(extra), 2, extra=extra, order=draw.choice("<>")))

    def deep(count):
        return lambda size: [[257 * v for v in band] for band in bands(size, count)]

    for name, extra in [("unsaid", None), ("unspecified", [0]), ("straight", [2])]:
        make.add(f"four deep bands {name}.tif", made(4, 2, 16, deep(4), extra=extra, order=draw.choice("<>")))
    make.add("deep colours.tif", made(3, 2, 16))
    make.add("deep grey.tif", made(1, 1, 16, order=draw.choice("<>")))
    for name, extra in [("unspecified", [0]), ("multiplied", [1]), ("straight", [2])]:
        make.add(f"grey and {name}.tif", made(2, 1, extra=extra, order=draw.choice("<>")))
    for bits in (1, 2, 4, 8):
        make.add(f"grey of {bits}.tif", made(1, 1, bits))
        make.add(f"white is 0 of {bits}.tif", made(1, 0, bits))
        colours = [(320, 3, [257 * draw.randrange(256) for _ in range(3 << bits)])]
        make.add(f"palette of {bits}.tif", made(1, 3, bits, more=colours))
    for name, extra in [("unspecified", [0]), ("straight", [2])]:
        make.add(f"palette and {name}.tif", made(2, 3, extra=extra, more=[(320, 3, [257 * draw.randrange(256) for _ in range(768)])]))
    make.add("inks.tif", made(4, 5))
    make.add("inks and unspecified.tif", made(5, 5, extra=[0]))
    make.add("planes.tif", made(3, 2, planar=True))
    make.add("packbits.tif", made(3, 2, compression=32773, rows=1))
    for name, picture, options in [("lzw", "RGB", {"compression": "tiff_lzw"}), ("lzw opacity", "RGBA", {"compression": "tiff_lzw"}),
                                   ("deflate opacity", "LA", {"compression": "tiff_adobe_deflate"})]:
        make.add(f"{name}.tif", saved(make.noise(picture), "TIFF", **options))
    size = make.size()
    dng = [(50706, 1, [1, 4, 0, 0])]
    make.refuse("raw", "dng.tif", tiff(size, bands(size, 3), 2, more=dng))
    make.refuse("raw", "dng of phones.tif", tiff(size, bands(size, 1), 32803, more=dng))
    make.refuse("raw", "colour filter.tif", tiff(size, bands(size, 1), 32803))
    make.refuse("raw", "thumbnail before a dng.tif", tiff(size, bands(size, 3), 2, order=">", more=[(254, 4, [1]), (271, 2, list(b"cam\0")), *dng]))
    inner = struct.pack("<HHHII", 1, 262, 3, 1, 32803) + bytes(4)
    nef = tiff(size, bands(size, 3), 2, more=[(254, 4, [1]), (330, 4, [0])])
    at = nef.index(struct.pack("<HHI", 330, 4, 1)) + 8
    make.refuse("raw", "nef.tif", nef[:at] + struct.pack("<I", len(nef)) + nef[at + 4:] + inner)
    make.refuse("raw", "cr2.tif", tiff(size, bands(size, 3), 2, lead=b"CR\2\0" + bytes(4)))
    make.refuse("reduced", "new.tif", tiff(size, bands(size, 3), 2, more=[(254, 4, [1])]))
    make.refuse("reduced", "old.tif", tiff(size, bands(size, 3), 2, more=[(255, 3, [2])]))
    make.refuse("reduced", "big.tif", tiff(size, bands(size, 3), 2, big=True, order=">", more=[(254, 4, [1])]))


# --- WebP ---

def webps(make):
    def lossless(picture):
        return webp_parts(saved(picture, "WEBP", lossless=True, exact=True))

    def extended(size, flags, *chunks):
        return riff((b"VP8X", bytes([flags, 0, 0, 0]) + three(size[0] - 1) + three(size[1] - 1)), *chunks)

    for way in range(1, 9):
        picture = make.noise("RGB")
        make.add(f"exif {way}.webp", extended(picture.size, 8, *lossless(picture), (b"EXIF", exif(way, make.draw.choice("<>"), prefix=make.draw.choice([b"", EXIF])))))
    picture = make.noise("RGB")
    make.add("xmp 6.webp", extended(picture.size, 4, *lossless(picture), (b"XMP ", xmp(6))))
    make.add("exif before xmp.webp", extended(picture.size, 12, *lossless(picture), (b"EXIF", exif(8)), (b"XMP ", xmp(6))))
    picture = make.noise("RGBA")
    make.add("opacity.webp", extended(picture.size, 0x10, *lossless(picture)))
    make.add("opacity 6.webp", extended(picture.size, 0x18, *lossless(picture), (b"EXIF", exif(6))))
    make.add("plain.webp", riff(*lossless(make.noise("RGB"))))
    make.add("lossy.webp", saved(make.smooth("RGB"), "WEBP", quality=90))
    make.add("lossy opacity.webp", saved(make.smooth("RGBA"), "WEBP", quality=90, exact=True))
    make.add("exif behind the end.webp", riff(*lossless(make.noise("RGB"))) + b"EXIF" + struct.pack("<I", 38) + exif(6).ljust(38, b"\0"))

    def frame(picture, left=0, top=0):
        body = three(left // 2) + three(top // 2) + three(picture.width - 1) + three(picture.height - 1) + three(100) + b"\2"
        return b"ANMF", body + b"".join(kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for kind, data in lossless(picture))

    anim = b"ANIM", bytes(4) + struct.pack("<H", 0)
    picture = make.noise("RGB")
    make.add("one frame.webp", extended(picture.size, 2, anim, frame(picture)))
    picture = make.noise("RGBA", (4, 5))
    make.add("one frame of a larger canvas.webp", extended((7, 9), 0x12, anim, frame(picture, 2, 4)))
    make.refuse("animation", "two frames.webp", extended((4, 5), 0x12, anim, frame(picture), frame(make.noise("RGBA", (4, 5)))))
    frames = [make.noise("RGB", (5, 4)) for _ in range(3)]
    make.refuse("animation", "pillows.webp", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True))


# --- AVIF ---

def avifs(make):
    options = {"quality": 100, "subsampling": "4:4:4", "speed": 8, "max_threads": 1}
    for way in range(1, 9):
        make.add(f"turned {way}.avif", saved(make.smooth("RGB", (16, 12)), "AVIF", exif=exif(way, ">", prefix=EXIF), **options))
    # EXIF alone turns no AVIF.
    plain = saved(make.smooth("RGB", (16, 12)), "AVIF", exif=exif(6, ">", tag=0x0113, prefix=EXIF), **options)
    make.add("exif alone.avif", plain.replace(b"\x01\x13\0\3", b"\x01\x12\0\3"))
    make.add("xmp alone.avif", saved(make.smooth("RGB", (16, 12)), "AVIF", xmp=xmp(6), **options))
    make.add("opacity.avif", saved(make.smooth("RGBA", (12, 16)), "AVIF", **options))
    make.add("opacity 6.avif", saved(make.smooth("RGBA", (12, 16)), "AVIF", exif=exif(6, ">", prefix=EXIF), **options))
    make.add("grey.avif", saved(make.smooth("L", (12, 16)), "AVIF", **options))
    make.refuse("animation", "three frames.avif", (HERE / "formats/animated.avif").read_bytes())  # libavif writes the time into such


# --- GIF ---

def gifs(make):
    draw = make.draw
    bits = 3
    palette, other = draw.randbytes(3 << bits), draw.randbytes(3 << bits)

    def indices(size):
        return [draw.randrange(1 << bits) for _ in range(size[0] * size[1])]

    size = make.size()
    make.add("plain.gif", gif(size, palette, bits, gif_frame(size, indices(size), bits)))
    make.add("transparent.gif", gif(size, palette, bits, gif_frame(size, indices(size), bits, transparent=3)))
    make.add("interlaced.gif", gif((5, 11), palette, bits, gif_frame((5, 11), indices((5, 11)), bits, interlaced=True)))
    make.add("own palette.gif", gif(size, palette, bits, gif_frame(size, indices(size), bits, palette=other, transparent=5)))
    make.add("only own palette.gif", gif(size, None, bits, gif_frame(size, indices(size), bits, palette=other)))
    make.add("a part, transparent.gif", gif((7, 6), palette, bits, gif_frame((3, 4), indices((3, 4)), bits, at=(2, 1), transparent=1)))
    make.add("a part.gif", gif((7, 6), palette, bits, gif_frame((3, 4), indices((3, 4)), bits, at=(2, 1))))
    make.add("a part, own palette.gif", gif((7, 6), palette, bits, gif_frame((3, 4), indices((3, 4)), bits, at=(1, 2), palette=other)))
    make.add("larger than its screen.gif", gif((3, 3), palette, bits, gif_frame((5, 4), indices((5, 4)), bits, at=(1, 0), transparent=2)))
    make.add("tail.gif", gif(size, palette, bits, gif_frame(size, indices(size), bits)) + draw.randbytes(20))
    make.refuse("animation", "two frames.gif", gif(size, palette, bits, *[gif_frame(size, indices(size), bits) for _ in range(2)]))


# --- BMP ---

def bmps(make):
    draw = make.draw
    for bits in (1, 4, 8):
        size, count = make.size(), 1 << bits
        values = [draw.randrange(count) for _ in range(size[0] * size[1])]
        palette = b"".join(draw.randbytes(3) + b"\0" for _ in range(count))
        make.add(f"palette of {bits}.bmp", bmp(size, packed_rows(values, size[0], bits), bits, palette=palette))
    for bits, top_down in [(24, False), (24, True), (32, False)]:
        size = make.size()
        rows = [draw.randbytes(size[0] * bits // 8) for _ in range(size[1])]
        make.add(f"colours of {bits}{' from the top' if top_down else ''}.bmp", bmp(size, rows, bits, top_down=top_down))
    for name, masks, header in [("rgba", (0xFF, 0xFF00, 0xFF0000, 0xFF000000), 108), ("bgra", (0xFF0000, 0xFF00, 0xFF, 0xFF000000), 124),
                                ("bgrx", (0xFF0000, 0xFF00, 0xFF, 0), 56)]:
        size = make.size()
        make.add(f"masks {name}.bmp", bmp(size, [draw.randbytes(4 * size[0]) for _ in range(size[1])], 32, masks, header=header))
    for name, masks in [("565", (0xF800, 0x7E0, 0x1F)), ("555", (0x7C00, 0x3E0, 0x1F))]:
        size = make.size()
        make.add(f"masks {name}.bmp", bmp(size, [draw.randbytes(2 * size[0]) for _ in range(size[1])], 16, masks))


# --- what Pillow makes of them ---

def as_pillow(content):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = Image.open(io.BytesIO(content))
        assert not getattr(read, "is_animated", False)
        picture = ImageOps.exif_transpose(read)
    if picture.mode.startswith("I"):  # 16 bits of grey, of which its convert keeps others than the upper eight
        values = [round(value * 255 / 65535) for value in picture.get_flattened_data()]
        picture = Image.frombytes("L", picture.size, bytes(values))
    if picture.mode == "La":
        picture = picture.convert("LA")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    out = bytearray()
    for red, green, blue, opacity in picture.convert("RGBA").get_flattened_data():
        out += bytes(round((colour * opacity + 255 * (255 - opacity)) / 255) for colour in (red, green, blue))
    return Image.frombytes("RGB", picture.size, bytes(out))


def write_tensors(path, tensors):
    """{name: (shape, bytes)}, as safetensors has it."""
    header, body = {}, b""
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "containers/pictures.safetensors")
    asked = parser.parse_args()
    make = Maker(asked.seed)
    for family in (pngs, jpegs, tiffs, webps, avifs, gifs, bmps):
        family(make)
    tensors, failed = {}, []
    for name, content in make.pictures.items():
        try:
            picture = as_pillow(content)
        except Exception as error:
            failed.append(f"{name}: {error!r}")
            continue
        tensors[f"file/{name}"] = ([len(content)], content)
        tensors[f"pixels/{name}"] = ([picture.height, picture.width, 3], picture.tobytes())
    for name, content in make.bad.items():
        if name.startswith("animation"):
            with Image.open(io.BytesIO(content)) as read:
                assert read.is_animated, name
        tensors[f"bad/{name}"] = ([len(content)], content)
    assert not failed, "Pillow refuses:\n" + "\n".join(failed)
    print(len(make.pictures), "pictures,", len(make.bad), "that are none")
    assert len(make.pictures) >= LEAST
    write_tensors(asked.out, tensors)


if __name__ == "__main__":
    main()
