"""Ways to damage a file that keep its structure, each a function of a number alone."""

from __future__ import annotations

import functools
import io
import random
import re
import zlib
from pathlib import Path

import numpy
import writers
from PIL import Image

HERE = Path(__file__).parent

EXTREMES = [
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
]

# Numbers and values of JSON, CSV and headers that are text.
TEXTS = [
    *(str(number).encode() for number in EXTREMES),
    *(b"-1", b"1.5", b"1e999", b"-1e-999", b"nan", b"1" * 400, b"0x10", b"null", b"true"),
    *(b"{", b"}", b"[", b"]", b"[" * 200, b'"', b",", b":", b"\n", b"\r\n", b"\\", b"\\ud800", b"..", b"/"),
]


def _picture(draws: random.Random, mode: str) -> Image.Image:
    width, height = draws.randint(3, 70), draws.randint(3, 70)
    channels = {"L": 1, "P": 3, "1": 1}.get(mode, len(mode))
    pixels = numpy.random.default_rng(draws.getrandbits(32)).integers(
        0, 256, (height, width, channels), numpy.uint8
    )
    if draws.random() < 0.7:
        pixels = numpy.cumsum(pixels // 32, axis=1).astype(numpy.uint8)
    if mode in ("L", "1"):
        return Image.fromarray(pixels[:, :, 0]).convert(mode)
    if mode == "P":
        return Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE)
    return Image.fromarray(pixels, mode)


def _saved(image: Image.Image, name: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def _deep(draws: random.Random, mode: str) -> Image.Image:
    """A picture of 16 bits, 32 bits or floats."""
    wide = numpy.asarray(_picture(draws, "L")).astype(numpy.int32) * 257
    return Image.fromarray(wide.astype({"I;16": numpy.uint16, "I": numpy.int32, "F": numpy.float32}[mode]))


@functools.cache
def seeds() -> dict[str, list[bytes]]:
    """Whole images of every format and of many of its kinds, by format."""
    draws = random.Random(7)
    kinds: list[tuple[str, str, dict[str, object]]] = []
    for quality in (30, 75, 95):
        for subsampling in (0, 1, 2):
            for progressive in (False, True):
                for blocks in (0, 3):
                    options = {
                        "quality": quality,
                        "subsampling": subsampling,
                        "progressive": progressive,
                        "restart_marker_blocks": blocks,
                    }
                    kinds.append(("JPEG", "RGB", options))
        kinds += [
            ("JPEG", "L", {"quality": quality, "optimize": True}),
            ("JPEG", "CMYK", {"quality": quality}),
        ]
        kinds += [
            ("WEBP", "RGB", {"quality": quality}),
            ("WEBP", "RGBA", {"lossless": True, "quality": quality}),
        ]
    kinds += [("PNG", mode, {}) for mode in ("RGB", "RGBA", "L", "LA", "P", "1") for _ in range(3)]
    kinds += [("BMP", mode, {}) for mode in ("RGB", "L", "P", "1", "RGBA")]
    kinds += [("GIF", mode, {"interlace": on}) for mode in ("P", "L") for on in (0, 1)]
    kinds += [
        ("TIFF", mode, {"compression": kind})
        for mode in ("RGB", "L", "P", "CMYK")
        for kind in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits")
    ]
    kinds += [("TIFF", "1", {"compression": kind}) for kind in ("group3", "group4", "raw")]
    kinds += [("TIFF", mode, {"compression": "jpeg"}) for mode in ("RGB", "L")]
    kinds += [
        ("TIFF", mode, {"compression": kind, "tiffinfo": {317: 2}})
        for mode in ("RGB", "L")
        for kind in ("tiff_lzw", "tiff_adobe_deflate")
    ]
    # Strips of a few rows, and the layout of large files.
    kinds += [
        ("TIFF", "RGB", {"compression": "tiff_lzw", "strip_size": 400}),
        ("TIFF", "RGB", {"big_tiff": True}),
    ]
    kinds += [("PPM", mode, {}) for mode in ("RGB", "L", "1")]
    made: dict[str, list[bytes]] = {}
    for name, mode, options in kinds:
        made.setdefault(name, []).append(_saved(_picture(draws, mode), name, **options))

    made["JPEG"] += [path.read_bytes() for path in sorted(HERE.glob("arithmetic-*.jpg"))]
    for name, mode, options in (
        ("GIF", "P", {"disposal": 2}),
        ("WEBP", "RGBA", {}),
        ("WEBP", "RGB", {"lossless": True}),
    ):
        first = _picture(draws, mode)
        others = [_picture(draws, mode).resize(first.size) for _ in range(3)]
        made[name].append(_saved(first, name, save_all=True, append_images=others, **options))
    for mode in ("I;16", "I", "F"):
        made["TIFF"].append(_saved(_deep(draws, mode), "TIFF"))
        options = {"compression": "tiff_adobe_deflate", "tiffinfo": {317: 3 if mode == "F" else 2}}
        made["TIFF"].append(_saved(_deep(draws, mode), "TIFF", **options))
    for mode in ("RGB", "L"):
        pixels = writers.channels(_picture(draws, mode))
        made["TIFF"] += [writers.tiled_tiff(pixels, kind) for kind in ("raw", "deflate", "jpeg")]
        made["PNG"].append(writers.png(pixels, True, draws))
    made["TIFF"] += [
        writers.tiled_tiff(writers.channels(_picture(draws, "L")), "group4"),
        writers.planar_tiff(writers.channels(_picture(draws, "RGB"))),
    ]
    for mode in ("L", "LA", "RGB", "RGBA"):
        deep = writers.channels(_picture(draws, mode)).astype(numpy.uint16) * 257
        made["PNG"] += [writers.png(deep, interlaced, draws) for interlaced in (False, True)]
    made["BMP"] += [writers.run_length_bmp(bits, draws) for bits in (4, 8) for _ in range(2)]
    made["BMP"].append(writers.masked_bmp(draws))
    made["PPM"] += [
        writers.pnm(kind, most, draws)
        for kind, most in (
            (1, 1),
            (2, 15),
            (2, 65535),
            (3, 15),
            (3, 255),
            (5, 15),
            (5, 65535),
            (6, 15),
            (6, 65535),
        )
    ]
    return made


def image(number: int) -> bytes:
    """Damaged image number `number`."""
    draws, whole = random.Random(f"image {number}"), seeds()
    # Half of the corpus are JPEGs, whose decoder is the package's own.
    name = "JPEG" if draws.random() < 0.5 else draws.choice(list(whole))
    return damaged(name, draws.choice(whole[name]), whole[name], number)


@functools.lru_cache(1024)
def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _directory(data: bytes) -> tuple[int, int] | None:
    """Where the first directory of a TIFF begins, and how many entries it has."""
    order = "little" if data[:2] == b"II" else "big"
    at = int.from_bytes(data[4:8], order)
    return (
        (at, int.from_bytes(data[at : at + 2], order))
        if data[2:3] in b"*\0" and 8 <= at < len(data)
        else None
    )


@functools.lru_cache(1024)
def pieces(name: str, data: bytes) -> tuple[bytes, ...]:
    """The segments, chunks or blocks of a file, which joined are the file."""
    if _is_text(data):
        return tuple(re.findall(rb"[\w.+-]+|\s+|.", data, re.DOTALL))
    found, at = [], 0
    directory = _directory(data) if name == "TIFF" else None
    while at < len(data):
        rest = data[at : at + 12]
        if name == "JPEG" and rest[0] == 0xFF and len(rest) > 1 and (0xD0 <= rest[1] <= 0xD9):
            size = 2
        elif name == "JPEG" and rest[0] == 0xFF and len(rest) > 3 and rest[1] >= 0xC0:
            size = 2 + int.from_bytes(rest[2:4], "big")
        elif name == "JPEG":
            end = at
            while 0 <= (end := data.find(b"\xff", end + 1)) < len(data) - 1 and data[end + 1] == 0:
                pass
            size = (len(data) if end < 0 else end) - at
        elif name == "PNG":
            size = 8 if at == 0 else 12 + int.from_bytes(rest[:4], "big")
        elif name == "WEBP":
            size = 12 if at == 0 else 8 + (int.from_bytes(rest[4:8], "little") + 1) // 2 * 2
        elif directory and at < directory[0]:
            size = 8 if at == 0 else min(16, directory[0] - at)
        elif directory and at < directory[0] + 2 + 12 * directory[1]:
            size = 2 if at == directory[0] else 12
        elif name == "tfrecord" and data[:2] != b"\x1f\x8b":
            size = 16 + int.from_bytes(rest[:8], "little")
        elif name == "tar" and data[:2] not in (b"\x1f\x8b", b"\x28\xb5"):
            size = 512
        else:
            size = 16
        size = max(1, min(size, len(data) - at))
        found.append(data[at : at + size])
        at += size
    return tuple(found)


def _checked(name: str, part: bytes) -> bytes:
    """A piece with the checksum that its reader compares: else no damage would get past that."""
    if name == "PNG" and len(part) >= 12:
        return part[:-4] + zlib.crc32(part[4:-4]).to_bytes(4, "big")
    # Pieces of compressed files are not longer.
    if name == "tfrecord" and len(part) > 16:
        length = part[:8]
        return b"".join((length, masked_crc32c(length), part[12:-4], masked_crc32c(part[12:-4])))
    if name == "tar" and part[257:262] == b"ustar":
        total = sum(part[:148]) + 8 * 32 + sum(part[156:])
        return part[:148] + b"%06o\0 " % total + part[156:]
    return part


_CRC32C = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _CRC32C.append(_byte)


def masked_crc32c(data: bytes) -> bytes:
    """TFRecord's checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def _changed(draws: random.Random, piece: bytes, early: bool) -> bytes:
    """One selector, count or length of a piece is another one."""
    out = bytearray(piece)
    at = draws.randrange(min(len(out), 24) if early else len(out))
    how = draws.randrange(6)
    if how == 0:
        out[at] = draws.randrange(256)
    elif how == 1:
        out[at] = (out[at] + draws.choice((1, 255, 16, 240))) % 256
    elif how == 2:
        out[at] ^= 1 << draws.randrange(8)
    else:
        width = draws.choice((1, 2, 4, 8))
        number = draws.choice([*EXTREMES, len(piece), len(piece) - 1, len(piece) * 2]) % (1 << (8 * width))
        put = number.to_bytes(width, draws.choice(("little", "big")))
        out[at : at + width] = put[: len(out) - at]
    return bytes(out)


def damaged(name: str, data: bytes, others: list[bytes], number: int) -> bytes:
    """Damage number `number` of a file, of which `others` are of the same format."""
    draws = random.Random(number)
    parts, text = list(pieces(name, data)), _is_text(data)
    for _ in range(draws.randint(1, 3)):
        if not parts:
            break
        at, how = draws.randrange(len(parts)), draws.randrange(12)
        if how == 0:
            del parts[at]
        elif how == 1:
            parts.insert(draws.randrange(len(parts) + 1), parts[at])
        elif how == 2:
            other = draws.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        elif how == 3:
            parts[at] = draws.choice(pieces(name, draws.choice(others)))
        elif how == 4:
            parts = parts[: at + 1] + ([b"\xff\xd9"] if name == "JPEG" else [])
        elif how == 5:
            parts[at] = _checked(name, parts[at][: draws.randrange(len(parts[at]) + 1)]) or b"\0"
        elif how < 10 and text:
            parts[at] = draws.choice(TEXTS)
        else:
            parts[at] = _checked(name, _changed(draws, parts[at], early=how < 10))
    return b"".join(parts)
