"""Writers of pictures' containers, byte by byte, for make_containers.py: what programs write that libraries do not."""
import struct
import zlib

EXIF = b"Exif\0\0"


# --- marks of orientation ---

def exif(orientation, order="<", kind=3, tag=0x0112, prefix=b""):
    """A TIFF directory: a camera's name, and which way up. kind: TIFF's type of the value."""
    value = struct.pack(order + {3: "HH", 4: "I", 8: "hh", 9: "i", 2: "HH"}[kind], *([orientation, 0] if kind in (2, 3, 8) else [orientation]))
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    return prefix + head + struct.pack(order + "HHHI4sHHI", 2, 271, 2, 4, b"cam\0", tag, kind, 1) + value + struct.pack(order + "I", 0)


def xmp(orientation, as_element=False):
    said = f"<tiff:Orientation>{orientation}</tiff:Orientation>" if as_element else ""
    attribute = "" if as_element else f' tiff:Orientation="{orientation}"'
    return (f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
            f'xmlns:tiff="http://ns.adobe.com/tiff/1.0/"{attribute}>{said}</rdf:Description></rdf:RDF></x:xmpmeta>').encode()


# --- PNG ---

def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def packed_rows(values, per_row, depth):
    rows = []
    for at in range(0, len(values), per_row):
        row = values[at:at + per_row]
        if depth == 16:
            rows.append(struct.pack(f">{len(row)}H", *row))
        else:
            bits = "".join(f"{value:0{depth}b}" for value in row)
            bits += "0" * (-len(bits) % 8)
            rows.append(bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8)))
    return rows


def png(size, values, colour, depth=8, before=(), after=(), tail=b"", interlaced=False):
    """values: all samples of all pixels. before, after: (type, body) of chunks around the pixels."""
    width, height = size
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    raw = b""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)] if interlaced else [(0, 0, 1, 1)]
    for left, top, right, down in passes:
        columns = list(range(left, width, right))
        part = [values[(y * width + x) * samples + s] for y in range(top, height, down) for x in columns for s in range(samples)]
        if part:
            raw += b"".join(b"\0" + row for row in packed_rows(part, len(columns) * samples, depth))
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced)))
    for kind, body in before:
        out += chunk(kind, body)
    packed = zlib.compress(raw)
    out += chunk(b"IDAT", packed[:7]) + chunk(b"IDAT", packed[7:])
    for kind, body in after:
        out += chunk(kind, body)
    return out + chunk(b"IEND", b"") + tail


def raw_profile(data, name="exif", line=72):
    digits = data.hex()
    return f"\n{name}\n{len(data):8d}\n".encode() + "".join(digits[i:i + line] + "\n" for i in range(0, len(digits), line)).encode()


def text_chunk(kind, keyword, text):
    keyword = keyword.encode()
    if kind == "tEXt":
        return b"tEXt", keyword + b"\0" + text
    if kind == "zTXt":
        return b"zTXt", keyword + b"\0\0" + zlib.compress(text)
    packed = kind == "iTXt packed"
    return b"iTXt", keyword + b"\0" + bytes([packed, 0]) + b"\0\0" + (zlib.compress(text) if packed else text)


# --- JPEG ---

def segment(marker, body):
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


# --- TIFF ---

def bits_of(row, bits, order):
    if bits == 16:
        return struct.pack(f"{order}{len(row)}H", *row)
    return packed_rows(row, len(row), bits)[0]


def packbits(data):
    return b"".join(bytes([len(data[i:i + 128]) - 1]) + data[i:i + 128] for i in range(0, len(data), 128))


def tiff(size, bands, photometric, bits=8, extra=None, order="<", planar=False, compression=1, tile=None, rows=None, big=False, lead=b"", more=()):
    """bands: values of each, pixel by pixel. rows: of a strip. lead: bytes behind the header. more: (tag, type, values)."""
    width, height = size
    planes = [[band] for band in bands] if planar else [bands]
    wide, high = (tile, tile) if tile else (width, rows or height)
    blocks = []
    for plane in planes:
        for top in range(0, height, high):
            for left in range(0, width, wide):
                data = b""
                for y in range(top, top + high if tile else min(height, top + high)):
                    inside = [x < width and y < height for x in range(left, left + wide)]
                    row = [band[y * width + x] if inside[x - left] else 0 for x in range(left, left + wide) for band in plane]
                    data += bits_of(row, bits, order)
                blocks.append({1: lambda d: d, 8: zlib.compress, 32773: packbits}[compression](data))
    place = 16 if big else 4
    entries = [(256, 4, [width]), (257, 4, [height]), (258, 3, [bits] * len(bands)), (259, 3, [compression]), (262, 3, [photometric]),
               (277, 3, [len(bands)]), (284, 3, [2 if planar else 1]), *more]
    entries += [(322, 3, [tile]), (323, 3, [tile]), (324, 4, blocks), (325, 4, [len(b) for b in blocks])] if tile else \
        [(278, 4, [high]), (273, 4, blocks), (279, 4, [len(b) for b in blocks])]
    if extra is not None:
        entries.append((338, 3, list(extra)))
    letters = {1: "B", 2: "B", 3: "H", 4: "I", 7: "B", 13: "I"}
    mark = b"II" if order == "<" else b"MM"
    head = mark + struct.pack(order + "HHHQ", 43, 8, 0, 16) if big else \
        mark + struct.pack(order + "HI", 42, 8 + len(lead)) + lead
    entry_bytes, place = (20, 8) if big else (12, 4)
    at = len(head) + (8 if big else 2) + entry_bytes * len(entries) + place
    behind, table = b"", b""
    places = {}
    for block in blocks:
        places[id(block)] = at + len(behind)
        behind += block + bytes(len(block) % 2)
    for tag, kind, values in sorted(entries, key=lambda entry: entry[0]):
        if values is blocks:
            values = [places[id(block)] for block in blocks]
        body = struct.pack(f"{order}{len(values)}{letters[kind]}", *values)
        if len(body) > place:
            where, behind = at + len(behind), behind + body + bytes(len(body) % 2)
            body = struct.pack(order + ("Q" if big else "I"), where)
        table += struct.pack(order + ("HHQ" if big else "HHI"), tag, kind, len(values)) + body.ljust(place, b"\0")
    return head + struct.pack(order + ("Q" if big else "H"), len(entries)) + table + bytes(place) + behind


# --- WebP ---

def riff(*chunks):
    body = b"WEBP" + b"".join(kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_parts(file):
    """The chunks with the pixels, of what Pillow wrote."""
    at, parts = 12, []
    while at < len(file):
        kind, size = file[at:at + 4], struct.unpack("<I", file[at + 4:at + 8])[0]
        if kind in (b"VP8 ", b"VP8L", b"ALPH"):
            parts.append((kind, file[at + 8:at + 8 + size]))
        at += 8 + size + size % 2
    return parts


def three(number):
    return struct.pack("<I", number)[:3]


# --- GIF ---

def gif_data(indices, bits):
    """LZW that never grows its table: a clear code before it would."""
    least, codes = max(2, bits), []
    for i in range(0, len(indices), (1 << least) - 2):
        codes += [1 << least, *indices[i:i + (1 << least) - 2]]
    codes.append((1 << least) + 1)
    text = "".join(f"{code:0{least + 1}b}"[::-1] for code in codes)
    text += "0" * (-len(text) % 8)
    data = bytes(int(text[i:i + 8][::-1], 2) for i in range(0, len(text), 8))
    return bytes([least]) + b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255)) + b"\0"


def gif_frame(size, indices, bits, at=(0, 0), palette=None, transparent=None, interlaced=False):
    width, height = size
    out = b"" if transparent is None else b"!\xf9\4" + bytes([1, 0, 0, transparent, 0])
    if interlaced:
        order = [y for first, step in [(0, 8), (4, 8), (2, 4), (1, 2)] for y in range(first, height, step)]
        indices = [indices[y * width + x] for y in order for x in range(width)]
    flags = (0x80 | bits - 1 if palette else 0) | (0x40 if interlaced else 0)
    return out + b"," + struct.pack("<HHHHB", *at, width, height, flags) + (palette or b"") + gif_data(indices, bits)


def gif(screen, palette, bits, *frames):
    return b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80 | bits - 1 if palette else 0, 0, 0) + (palette or b"") + b"".join(frames) + b";"


# --- BMP ---

def bmp(size, rows, bits, masks=None, palette=b"", header=40, top_down=False):
    """rows: of the picture from top to bottom, packed."""
    width, height = size
    body = b"".join(row + bytes(-len(row) % 4) for row in (rows if top_down else reversed(rows)))
    compression = 3 if masks else 0
    info = struct.pack("<IiiHHIIiiII", header, width, -height if top_down else height, 1, bits, compression, len(body), 0, 0, len(palette) // 4, 0)
    if masks:
        info += struct.pack(f"<{len(masks)}I", *masks)
    info = info.ljust(header, b"\0") if header > 40 else info
    at = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<IHHI", at + len(body), 0, 0, at) + info + palette + body
