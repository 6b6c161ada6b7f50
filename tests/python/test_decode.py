"""Decoded pixels against Pillow's, and what hostile files do."""

from __future__ import annotations

import io
import random
import resource
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from feedline import _native
from PIL import Image

Pixels = npt.NDArray[np.uint8]


def decode(data: bytes, mode: str = "rgb", **options: Any) -> Pixels:
    pixels, shape = _native.decode_image(data, mode, **options)
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def pillow(data: bytes, mode: str = "rgb") -> Pixels:
    image = Image.open(io.BytesIO(data)).convert({"rgb": "RGB", "gray": "L"}[mode])
    return np.asarray(image).reshape(image.height, image.width, -1)


def difference(a: Pixels, b: Pixels) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max())


def photo(height: int, width: int, seed: int = 0) -> Pixels:
    """Smooth colour with edges and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([np.sin(x / 9 + c) + np.cos(y / (7 + c)) for c in range(3)], -1) * 50 + 128
    base[height // 3 :, width // 2 :] += 40
    base += rng.normal(0, 6, base.shape)
    return base.clip(0, 255).astype(np.uint8)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


# PNG, written here byte by byte: Pillow cannot write all of it.

ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def packed(rows: npt.NDArray[np.int64], depth: int) -> bytes:
    """Rows of samples (height, samples) with a filter byte in front of each."""
    out = bytearray()
    for row in rows:
        out.append(0)
        if depth == 16:
            out += row.astype(">u2").tobytes()
        elif depth == 8:
            out += row.astype(np.uint8).tobytes()
        else:
            bits = (row[:, None] >> np.arange(depth - 1, -1, -1)) & 1
            out += np.packbits(bits.astype(np.uint8).ravel()).tobytes()
    return bytes(out)


def png(
    height: int, width: int, color: int, depth: int, interlaced: bool, extra: bytes = b"", seed: int = 0
) -> bytes:
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    most = 2**depth
    rng = np.random.default_rng(seed + height * 100 + width)
    grid = rng.integers(0, most, (height, width, samples))
    if interlaced:
        raw = b""
        for x, y, dx, dy in ADAM7:
            part = grid[y::dy, x::dx]
            if part.size:
                raw += packed(part.reshape(part.shape[0], -1), depth)
    else:
        raw = packed(grid.reshape(height, -1), depth)
    if color == 3:
        extra = chunk(b"PLTE", rng.integers(0, 256, 3 * min(most, 256)).astype(np.uint8).tobytes()) + extra
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + chunk(b"IDAT", zlib.compress(raw))
        + chunk(b"IEND", b"")
    )


PNG_KINDS = [(0, d) for d in (1, 2, 4, 8)] + [(3, d) for d in (1, 2, 4, 8)]
PNG_KINDS += [(c, d) for c in (2, 4, 6) for d in (8, 16)]


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("color", "depth"), PNG_KINDS)
@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_png_is_bit_equal(color: int, depth: int, interlaced: bool, mode: str) -> None:
    for size in [*range(1, 33), 40, 67]:
        for height, width in [(size, size), (size, 33 - size % 32)]:
            data = png(height, width, color, depth, interlaced)
            assert np.array_equal(decode(data, mode), pillow(data, mode)), (height, width)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("interlaced", [False, True])
def test_png_transparency_is_dropped(interlaced: bool) -> None:
    for color, depth, value in [
        (0, 1, struct.pack(">H", 1)),
        (0, 8, struct.pack(">H", 7)),
        (2, 8, struct.pack(">HHH", 1, 2, 3)),
        (2, 16, struct.pack(">HHH", 1, 2, 3)),
        (3, 4, b"\x00\x80\xff"),
    ]:
        data = png(13, 21, color, depth, interlaced, extra=chunk(b"tRNS", value))
        for mode in ("rgb", "gray"):
            assert np.array_equal(decode(data, mode), pillow(data, mode)), (color, depth)


def test_png_16_bit_gray_takes_the_high_byte() -> None:
    # Pillow cuts every value above 255 to 255; that is the one difference by intent.
    data = png(9, 11, 0, 16, False, seed=3)
    with Image.open(io.BytesIO(data)) as image:
        wanted = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
    assert np.array_equal(decode(data, "gray")[..., 0], wanted)
    assert np.array_equal(decode(data, "rgb"), np.repeat(wanted[..., None], 3, 2))


def test_png_filters_and_palette_gaps() -> None:
    image = Image.fromarray(photo(61, 47))
    data = saved(image, "PNG", optimize=True)
    assert np.array_equal(decode(data), pillow(data))
    raw = packed(np.arange(8).reshape(1, 8), 4)
    header = struct.pack(">IIBBBBB", 8, 1, 4, 3, 0, 0, 0)
    palette = chunk(b"PLTE", bytes(range(12)))
    gaps = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette
    gaps += chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    assert np.array_equal(decode(gaps), pillow(gaps))


def test_apng_gives_its_default_image() -> None:
    frames = [Image.fromarray(photo(20, 30, seed)) for seed in range(3)]
    data = saved(frames[0], "PNG", save_all=True, append_images=frames[1:])
    assert np.array_equal(decode(data), np.asarray(frames[0]))


# BMP


def bmp(height: int, width: int, bits: int, top_down: bool = False, masks: tuple[int, ...] = ()) -> bytes:
    rng = np.random.default_rng(height * width + bits)
    stride = (width * bits + 31) // 32 * 4
    body = rng.integers(0, 256, stride * height).astype(np.uint8).tobytes()
    colors = 2**bits if bits <= 8 else 0
    palette = rng.integers(0, 256, (colors, 4)).astype(np.uint8)
    palette[:, 3] = 0
    table = struct.pack("<" + "I" * len(masks), *masks) + palette.tobytes()
    offset = 14 + 40 + len(table)
    info = struct.pack(
        "<IiiHHIIiiII",
        40,
        width,
        -height if top_down else height,
        1,
        bits,
        3 if masks else 0,
        len(body),
        2835,
        2835,
        colors,
        0,
    )
    return b"BM" + struct.pack("<IHHI", offset + len(body), 0, 0, offset) + info + table + body


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("bits", [1, 4, 8, 16, 24, 32])
def test_bmp_is_bit_equal(bits: int, mode: str) -> None:
    for height, width in [(1, 1), (3, 5), (17, 32), (31, 9)]:
        for top_down in (False, True):
            data = bmp(height, width, bits, top_down)
            assert np.array_equal(decode(data, mode), pillow(data, mode)), (height, width, top_down)


@pytest.mark.parametrize(
    ("bits", "masks"),
    [(16, (0xF800, 0x7E0, 0x1F)), (16, (0x7C00, 0x3E0, 0x1F)), (32, (0xFF0000, 0xFF00, 0xFF))],
)
def test_bmp_bit_fields_are_bit_equal(bits: int, masks: tuple[int, ...]) -> None:
    data = bmp(13, 21, bits, masks=masks)
    assert np.array_equal(decode(data), pillow(data))


def test_bmp_from_pillow() -> None:
    image = Image.fromarray(photo(33, 29))
    for variant in (image, image.convert("L"), image.convert("P"), image.convert("1"), image.convert("RGBA")):
        data = saved(variant, "BMP")
        assert np.array_equal(decode(data), pillow(data)), variant.mode


# JPEG


def jpegs() -> Iterator[tuple[str, bytes]]:
    for height, width in [(1, 1), (7, 9), (16, 16), (33, 50), (120, 161)]:
        image = Image.fromarray(photo(height, width))
        for sampling in (0, 1, 2):
            for progressive in (False, True):
                for quality in (30, 95):
                    options = {"subsampling": sampling, "progressive": progressive, "quality": quality}
                    yield f"{height}x{width} {options}", saved(image, "JPEG", **options)
        yield f"{height}x{width} gray", saved(image.convert("L"), "JPEG")
        yield f"{height}x{width} gray progressive", saved(image.convert("L"), "JPEG", progressive=True)
        yield f"{height}x{width} cmyk", saved(image.convert("CMYK"), "JPEG", quality=90)
        yield f"{height}x{width} rgb", saved(image, "JPEG", keep_rgb=True)
        yield f"{height}x{width} restarts", saved(image, "JPEG", restart_marker_blocks=2)


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_jpeg_within_2(mode: str) -> None:
    for name, data in jpegs():
        assert difference(decode(data, mode), pillow(data, mode)) <= 2, name


def test_jpeg_ycck() -> None:
    # Pillow writes CMYK only; with Adobe's transform 2 the same data are YCCK.
    data = bytearray(saved(Image.fromarray(photo(40, 33)).convert("CMYK"), "JPEG"))
    adobe = data.index(b"Adobe")
    data[adobe + 11] = 2
    assert difference(decode(bytes(data)), pillow(bytes(data))) <= 2


def test_jpeg_orientation() -> None:
    from PIL import ImageOps

    array = photo(24, 41)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
            options = {"lossless": True} if kind == "WEBP" else {}
            data = saved(Image.fromarray(array), kind, exif=exif, **options)
            stored = Image.open(io.BytesIO(data))
            wanted = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
            assert difference(decode(data, exif_orientation=True), wanted) <= 2, (kind, orientation)
            if kind != "TIFF":  # Pillow turns TIFF files by itself.
                assert difference(decode(data), pillow(data)) <= 2, (kind, orientation)


def test_jpeg_stray_bytes_are_harmless_and_lost_data_are_not() -> None:
    data = saved(Image.fromarray(photo(64, 64)), "JPEG")
    stray = data[:-2] + b"\x00\x01\x02" + data[-2:]
    assert difference(decode(stray), decode(data)) == 0
    assert difference(decode(data + b"trailing garbage"), decode(data)) == 0
    lost = data[: len(data) * 2 // 3] + b"\xff\xd9"
    with pytest.raises(ValueError, match="JPEG"):
        decode(lost)
    with pytest.raises(ValueError, match="JPEG: truncated"):
        decode(data[: len(data) * 2 // 3])
    partial = decode(data[: len(data) * 2 // 3], allow_truncated=True)
    # The last row of a unit already mixes in the next one's colour.
    assert np.array_equal(partial[:15], decode(data)[:15])
    assert not np.array_equal(partial, decode(data))


# WebP, GIF, TIFF, PNM


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_webp_is_equal(mode: str) -> None:
    for height, width in [(1, 1), (17, 30), (64, 65)]:
        image = Image.fromarray(photo(height, width))
        alpha = image.convert("RGBA")
        alpha.putalpha(Image.fromarray(photo(height, width, 5)[..., 0]))
        for source in (image, alpha):
            for options in (
                {"quality": 60},
                {"quality": 95},
                {"lossless": True},
                {"lossless": True, "exact": True},
            ):
                data = saved(source, "WEBP", **options)
                # libwebp's decoder is defined to the bit.
                assert difference(decode(data, mode), pillow(data, mode)) == 0, (source.mode, options)


def test_webp_animation_gives_its_first_frame() -> None:
    frames = [Image.fromarray(photo(20, 30, seed)) for seed in range(3)]
    data = saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert np.array_equal(decode(data), pillow(data))


def gif(frame: tuple[int, int, int, int], canvas: tuple[int, int], transparent: int | None) -> bytes:
    """A GIF of one frame (left, top, width, height) whose LZW codes are all literals."""
    left, top, width, height = frame
    rng = np.random.default_rng(left + top)
    palette = rng.integers(0, 256, 3 * 4).astype(np.uint8).tobytes()
    out = b"GIF89a" + struct.pack("<HHBBB", *canvas, 0x81, 0, 0) + palette
    if transparent is not None:
        out += b"\x21\xf9\x04\x01\x00\x00" + bytes([transparent]) + b"\x00"
    out += b"\x2c" + struct.pack("<HHHHB", left, top, width, height, 0) + b"\x02"
    bits: list[int] = []
    for pixel in rng.integers(0, 4, width * height):
        for code in (4, int(pixel)):  # a clear code before each keeps codes at 3 bits
            bits += [code >> i & 1 for i in range(3)]
    bits += [1, 0, 1]
    data = np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes()
    for i in range(0, len(data), 255):
        out += bytes([len(data[i : i + 255])]) + data[i : i + 255]
    return out + b"\x00\x3b"


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_gif_is_equal(mode: str) -> None:
    image = Image.fromarray(photo(37, 29))
    for interlace in (0, 1):
        for source in (image.quantize(64), image.convert("L"), image.convert("1")):
            data = saved(source, "GIF", interlace=interlace)
            assert np.array_equal(decode(data, mode), pillow(data, mode)), source.mode
    data = saved(image.quantize(16), "GIF", transparency=3)
    assert np.array_equal(decode(data, mode), pillow(data, mode))
    for transparent in (None, 2):
        for frame in [(0, 0, 9, 7), (2, 3, 4, 3), (8, 6, 1, 1)]:
            data = gif(frame, (9, 7), transparent)
            assert np.array_equal(decode(data, mode), pillow(data, mode)), (frame, transparent)
    frames = [Image.fromarray(photo(20, 30, seed)).quantize(32) for seed in range(3)]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.array_equal(decode(data, mode), pillow(data, mode))


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_tiff_is_equal(mode: str) -> None:
    image = Image.fromarray(photo(37, 29))
    for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
        for source in (image, image.convert("L"), image.convert("RGBA"), image.convert("1")):
            data = saved(source, "TIFF", compression=compression)
            assert np.array_equal(decode(data, mode), pillow(data, mode)), (compression, source.mode)
    # CMYK is rounded otherwise than Pillow does.
    data = saved(image.convert("CMYK"), "TIFF")
    assert difference(decode(data, mode), pillow(data, mode)) <= 1
    wide = (photo(37, 29)[..., 0].astype(np.uint16) << 8) + 77
    data = saved(Image.fromarray(wide), "TIFF")
    assert np.array_equal(decode(data, "gray")[..., 0], photo(37, 29)[..., 0])


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_pnm_is_equal(mode: str) -> None:
    image = Image.fromarray(photo(37, 29))
    files = [saved(source, "PPM") for source in (image, image.convert("L"), image.convert("1"))]
    files += [b"P3 2 1 255 1 2 3\n4 5 6\n", b"P2\n# note\n3 1\n255\n7 8 9\n"]
    for data in files:
        assert np.array_equal(decode(data, mode), pillow(data, mode)), data[:12]


# Hostile files


def victims() -> dict[str, bytes]:
    image = Image.fromarray(photo(61, 83))
    return {
        "jpeg": saved(image, "JPEG"),
        "progressive": saved(image, "JPEG", progressive=True),
        "cmyk": saved(image.convert("CMYK"), "JPEG"),
        "png": saved(image, "PNG"),
        "interlaced": png(61, 83, 6, 16, True),
        "palette": png(61, 83, 3, 8, False),
        "webp": saved(image, "WEBP"),
        "lossless": saved(image, "WEBP", lossless=True),
        "animation": saved(image, "WEBP", save_all=True, append_images=[image.rotate(90)]),
        "bmp": saved(image, "BMP"),
        "bmp8": saved(image.convert("P"), "BMP"),
        "gif": saved(image.quantize(64), "GIF"),
        "tiff": saved(image, "TIFF"),
        "lzw": saved(image, "TIFF", compression="tiff_lzw"),
        "deflate": saved(image, "TIFF", compression="tiff_adobe_deflate"),
        "ppm": saved(image, "PPM"),
    }


def outcome(data: bytes, **options: Any) -> Pixels | str:
    """Pixels or a clean error; anything else fails the test."""
    try:
        return decode(data, **options)
    except ValueError as error:
        message = str(error)
        assert message
        assert "please report" not in message
        return message


@pytest.mark.parametrize("name", victims())
def test_truncations_are_errors(name: str) -> None:
    data = victims()[name]
    whole = decode(data)
    for part in range(16):
        cut = data[: len(data) * part // 16]
        result = outcome(cut)
        if isinstance(result, str):
            assert (
                any(word in result for word in ("JPEG", "PNG", "WebP", "GIF", "TIFF", "BMP", "PNM", "empty"))
                or part == 0
            )
        else:
            # An animation's first frame may be whole when the file is not.
            assert name == "animation" and np.array_equal(result, whole)
        lenient = outcome(cut, allow_truncated=True)
        assert isinstance(lenient, str) or lenient.shape == whole.shape


@pytest.mark.parametrize("name", victims())
def test_flipped_bytes_do_no_harm(name: str) -> None:
    data = victims()[name]
    rng = random.Random(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(400):
        hurt = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 8])):
            # Half of the hits go to the header, where they do most.
            hurt[rng.randrange(len(hurt) if rng.random() < 0.5 else min(128, len(hurt)))] = rng.randrange(256)
        for lenient in (False, True):
            result = outcome(bytes(hurt), max_pixels=4_000_000, allow_truncated=lenient)
            assert isinstance(result, str) or result.size <= 3 * 4_000_000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # 4 megapixels, three times over (16-bit colour and its copy), and slack; in kB.
    assert grown < 120_000


def test_a_failure_spoils_nothing_that_follows() -> None:
    good = saved(Image.fromarray(photo(30, 40)), "JPEG")
    wanted = decode(good)
    for bad in (good[:100], b"\xff\xd8\xff\xd9", good[: len(good) // 2]):
        assert isinstance(outcome(bad), str)
        assert np.array_equal(decode(good), wanted)


def huge() -> dict[str, bytes]:
    jpeg = saved(Image.new("RGB", (8, 8)), "JPEG")
    frame = jpeg.index(b"\xff\xc0")
    header = struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0)
    tiff = bytearray(saved(Image.new("RGB", (8, 8)), "TIFF"))
    for tag in (256, 257, 278):
        entry = tiff.index(struct.pack("<HHI", tag, 4, 1)) if struct.pack("<HHI", tag, 4, 1) in tiff else None
        entry = tiff.index(struct.pack("<HHI", tag, 3, 1)) if entry is None else entry
        tiff[entry + 8 : entry + 12] = struct.pack("<I", 65535)
    bitmap = bytearray(bmp(1, 1, 24))
    bitmap[18:26] = struct.pack("<II", 65535, 65535)
    return {
        "jpeg": jpeg[: frame + 5] + b"\xff\xff\xff\xff" + jpeg[frame + 9 :],
        "png": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")),
        "gif": b"GIF89a\xff\xff\xff\xff\x00\x00\x00",
        "tiff": bytes(tiff),
        "bmp": bytes(bitmap),
        "ppm": b"P6 65535 65535 255\n",
    }


@pytest.mark.parametrize("name", huge())
def test_huge_declared_sizes_allocate_nothing(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"65535 x 65535 .* max_pixels = 178956970"):
        decode(huge()[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_a_limit_that_is_raised_still_ends_in_an_error() -> None:
    for name, data in huge().items():
        if name != "jpeg":  # it would decode 4 billion grey pixels
            assert isinstance(outcome(data, max_pixels=10_000_000), str)
    with pytest.raises(ValueError, match="max_pixels = 100"):
        decode(saved(Image.new("RGB", (11, 10)), "PNG"), max_pixels=100)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"hello, I am text",
        b"<html>",
        b"\xff\xd8\xff",
        b"BM",
        b"GIF89a",
        b"RIFF\x00\x00\x00\x00WEBP",
        b"II*\x00",
        b"P6 ",
    ],
)
def test_what_is_no_image(data: bytes) -> None:
    assert isinstance(outcome(data), str)


def test_modes() -> None:
    check: Callable[..., Any] = _native.decode_image
    with pytest.raises(ValueError, match="mode"):
        check(b"", "cmyk")
