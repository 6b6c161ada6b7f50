"""Writers of what no library in the environment writes: tiled TIFF, interlaced and 16-bit PNG, run-length
BMP, text PNM, LitData's chunks. The campaigns damage the results, and bombs are built with them.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from PIL import Image

Pixels = numpy.ndarray[Any, Any]
Entry = tuple[int, int, bytes]
"""Type, count and value of a TIFF tag."""


def octets(*values: int) -> Entry:
    return 1, len(values), bytes(values)


def shorts(*values: int) -> Entry:
    return 3, len(values), struct.pack(f"<{len(values)}H", *values)


def longs(*values: int) -> Entry:
    return 4, len(values), struct.pack(f"<{len(values)}I", *values)


def tiff(entries: dict[int, Entry], data: bytes = b"") -> bytes:
    """A file of one directory, whose data begin at byte 8."""
    directory, after = struct.pack("<H", len(entries)), b""
    beyond = 8 + len(data) + 2 + 12 * len(entries) + 4
    for tag, (kind, count, value) in sorted(entries.items()):
        directory += struct.pack("<HHI", tag, kind, count)
        if len(value) > 4:
            directory += struct.pack("<I", beyond + len(after))
            after += value
        else:
            directory += value.ljust(4, b"\0")
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory + bytes(4) + after


def channels(image: Image.Image) -> Pixels:
    """Pixels as [height, width, channels]."""
    pixels = numpy.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def encoded(pixels: Pixels, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, name, **options)
    return file.getvalue()


def fax(pixels: Pixels) -> bytes:
    """The group 4 data of one strip or tile, as libtiff writes them."""
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0]).convert("1").save(file, "TIFF", compression="group4")
    with Image.open(file) as image:
        start, size = image.tag_v2[273][0], image.tag_v2[279][0]
    return file.getvalue()[start : start + size]


# Compression, photometric interpretation for gray and colour, bits of a sample, and what packs a tile.
TILES: dict[str, tuple[int, int, int, int, Callable[[Pixels], bytes]]] = {
    "raw": (1, 1, 2, 8, lambda tile: tile.tobytes()),
    "deflate": (8, 1, 2, 8, lambda tile: zlib.compress(tile.tobytes())),
    "jpeg": (7, 1, 6, 8, lambda tile: encoded(tile, "JPEG", subsampling=0)),
    "group4": (4, 0, 0, 1, fax),
}


def tiled_tiff(pixels: Pixels, kind: str, side: int = 16) -> bytes:
    compression, gray, color, bits, pack = TILES[kind]
    height, width, channels = pixels.shape
    tiles = []
    for top in range(0, height, side):
        for left in range(0, width, side):
            tile = numpy.zeros((side, side, channels), numpy.uint8)
            part = pixels[top : top + side, left : left + side]
            tile[: part.shape[0], : part.shape[1]] = part
            tiles.append(pack(tile))
    starts = numpy.cumsum([8, *map(len, tiles)])[:-1]
    entries = {
        256: longs(width),
        257: longs(height),
        258: shorts(*[bits] * channels),
        259: shorts(compression),
        262: shorts(gray if channels == 1 else color),
        277: shorts(channels),
        322: shorts(side),
        323: shorts(side),
        324: longs(*map(int, starts)),
        325: longs(*map(len, tiles)),
    }
    return tiff(entries, b"".join(tiles))


def planar_tiff(pixels: Pixels) -> bytes:
    """A strip for each channel."""
    height, width, channels = pixels.shape
    size = height * width
    entries = {
        256: longs(width),
        257: longs(height),
        258: shorts(*[8] * channels),
        259: shorts(1),
        262: shorts(2),
        273: longs(*[8 + size * n for n in range(channels)]),
        277: shorts(channels),
        278: longs(height),
        279: longs(*[size] * channels),
        284: shorts(2),
    }
    return tiff(entries, pixels.transpose(2, 0, 1).tobytes())


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(pixels: Pixels, interlaced: bool, draws: random.Random) -> bytes:
    """8 or 16 bits as the pixels' type says; every row has a filter of its own."""
    height, width, channels = pixels.shape
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [
            (0, 0, 8, 8),
            (0, 4, 8, 8),
            (4, 0, 8, 4),
            (0, 2, 4, 4),
            (2, 0, 4, 2),
            (0, 1, 2, 2),
            (1, 0, 2, 1),
        ]
    rows = []
    for top, left, down, right in passes:
        part = pixels[top::down, left::right]
        if part.size:
            # Filtered data of any value are some image.
            rows += [
                bytes([draws.randrange(5)]) + row.astype(row.dtype.newbyteorder(">")).tobytes()
                for row in part
            ]
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, color, 0, 0, int(interlaced))
    data = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def bmp(width: int, height: int, bits: int, compression: int, table: bytes, body: bytes) -> bytes:
    colors = len(table) // 4 if bits <= 8 else 0
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(body), 0, 0, colors, 0)
    start = 14 + len(head) + len(table)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + head + table + body


def run_length_bmp(bits: int, draws: random.Random) -> bytes:
    """Runs, literal pixels, jumps and ends of rows, of 4 or 8 bits."""
    width, height = draws.randint(3, 40), draws.randint(3, 40)
    body = bytearray()
    for _ in range(height):
        left = width
        while left:
            count, how = draws.randint(1, left), draws.randrange(6)
            if how == 0 and count >= 3:
                literal = draws.randbytes(count if bits == 8 else -(-count // 2))
                body += bytes([0, count]) + literal + bytes(len(literal) % 2)
            elif how == 1:
                body += bytes([0, 2, count, 0])
            else:
                body += bytes([count, draws.randrange(256)])
            left -= count
        body += b"\0\0"
    return bmp(width, height, bits, 1 if bits == 8 else 2, draws.randbytes(4 << bits), bytes(body) + b"\0\1")


def masked_bmp(draws: random.Random) -> bytes:
    """16 bits of 5, 6 and 5."""
    width, height = draws.randint(3, 40), draws.randint(3, 40)
    masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)
    return bmp(width, height, 16, 3, masks, draws.randbytes((2 * width + 3) // 4 * 4 * height))


def pnm(kind: int, most: int, draws: random.Random) -> bytes:
    """P1 to P3 as text, P5 and P6 as numbers of one or two bytes."""
    width, height = draws.randint(3, 40), draws.randint(3, 40)
    channels = 3 if kind in (3, 6) else 1
    values = [draws.randint(0, most) for _ in range(width * height * channels)]
    head = f"P{kind}\n# of the campaign\n{width} {height}\n" + ("" if kind == 1 else f"{most}\n")
    if kind <= 3:
        rows = [values[at : at + width * channels] for at in range(0, len(values), width * channels)]
        return head.encode() + "\n".join(" ".join(map(str, row)) for row in rows).encode() + b"\n"
    return head.encode() + numpy.array(values, ">u2" if most > 255 else "u1").tobytes()


def litdata(folder: Path, compressed: bool) -> None:
    """Two chunks of all kinds of items, in the layout of LitData's optimize()."""
    import numcodecs

    folder.mkdir(parents=True)
    notes = []
    for chunk in range(2):
        rows = []
        for number in range(3 * chunk, 3 * chunk + 3):
            image = encoded(numpy.full((4, 5, 3), number * 20, numpy.uint8), "JPEG")
            tensor = struct.pack(">4I", 11, 2, 1, number) + bytes([number] * number)
            array = struct.pack("<3I", 4, 1, number) + bytes([number] * number)
            values = [
                struct.pack("<q", number),
                b"text %d" % number,
                image,
                tensor,
                array,
                bytes([number] * 8),
            ]
            rows.append(struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values))
        starts = numpy.cumsum([4 + 4 * (len(rows) + 1), *map(len, rows)])
        whole = struct.pack(f"<{1 + len(starts)}I", len(rows), *map(int, starts)) + b"".join(rows)
        name = f"chunk-0-{chunk}" + (".zstd.bin" if compressed else ".bin")
        (folder / name).write_bytes(numcodecs.Zstd(3).encode(whole) if compressed else whole)
        notes.append({"chunk_bytes": len(whole), "chunk_size": len(rows), "dim": None, "filename": name})
    names = ["number", "text", "image", "tensor", "array", "flat"]
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = [1, {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * len(names)}]
    config = {
        "compression": "zstd" if compressed else None,
        "compression_level": "chunk" if compressed else None,
        "data_format": ["int", "str", "jpeg", "tensor", "numpy", "no_header_tensor:17"],
        "data_spec": json.dumps(spec),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
    (folder / "index.json").write_text(json.dumps({"chunks": notes, "config": config}))
