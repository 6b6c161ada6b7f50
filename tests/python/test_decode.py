"""Decoded pixels against Pillow's, and what hostile files do."""

from __future__ import annotations

import io
import random
import resource
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from feedline import Loader, _native
from PIL import Image, ImageFile

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


def bitmap(
    size: int,
    height: int,
    width: int,
    bits: int,
    body: bytes,
    compression: int = 0,
    masks: tuple[int, ...] = (),
    colors: int = 0,
    offset: int | None = None,
    seed: int = 0,
) -> bytes:
    """A BMP with a header of any size, and with sizes of the file and the data that are wrong."""
    entry = 3 if size == 12 else 4
    count = (colors or 2**bits) if bits <= 8 else 0
    palette = np.random.default_rng(seed + bits).integers(0, 256, count * entry).astype(np.uint8).tobytes()
    if size == 12:
        info = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        fields = struct.pack("<iiHHIIiiII", width, height, 1, bits, compression, 7, 0, 0, colors, 0)
        inside = struct.pack("<" + "I" * len(masks), *masks) if size >= 52 else b""
        info = struct.pack("<I", size) + (fields + inside).ljust(size - 4, b"\0")
        if size < 52 and masks:
            palette = struct.pack("<" + "I" * len(masks), *masks)
    start = 14 + len(info) + len(palette) if offset is None else offset
    return b"BM" + struct.pack("<IHHI", 99, 0, 0, start) + info + palette + body


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("size", [12, 40, 52, 56, 64, 108, 124])
def test_bmp_headers_of_every_size_are_read(size: int, mode: str) -> None:
    rng = np.random.default_rng(size)
    for height, width in [(1, 1), (5, 3), (9, 34)]:
        for bits in (1, 4, 8, 16, 24, 32):
            body = rng.integers(0, 256, (width * bits + 31) // 32 * 4 * height).astype(np.uint8).tobytes()
            kinds: list[dict[str, Any]] = [{}, {"offset": 0}]
            if bits <= 8 and size > 12:
                kinds += [{"colors": 2**bits // 2 + 1}, {"colors": 2**bits, "offset": 14 + size}]
            if bits in (16, 32) and size > 12:
                masks = (0xF800, 0x7E0, 0x1F) if bits == 16 else (0xFF000000, 0xFF0000, 0xFF00)
                kinds += [{"compression": 3, "masks": masks}]
            for options in kinds:
                data = bitmap(size, height, width, bits, body, **options)
                assert np.array_equal(decode(data, mode), pillow(data, mode)), (bits, options)
                # The last row needs no padding.
                used = len(data) - ((width * bits + 31) // 32 * 4 - (width * bits + 7) // 8)
                assert np.array_equal(decode(data[:used], mode), pillow(data, mode)), (bits, options)


def run_lengths(rng: np.random.Generator, pixels: int, pairs: bool) -> bytes:
    out = bytearray()
    for _ in range(pixels):
        kind = rng.integers(0, 10)
        if kind < 5:
            out += bytes([rng.integers(1, 12), rng.integers(0, 256)])
        elif kind < 7:
            count = int(rng.integers(3, 12))
            literal = rng.integers(0, 256, (count + 1) // 2 if pairs else count).astype(np.uint8).tobytes()
            out += bytes([0, count]) + literal + b"\0" * (len(literal) % 2)
        elif kind < 9:
            out += b"\0\0"
        else:
            out += bytes([0, 2, rng.integers(0, 4), rng.integers(0, 2)])
    return bytes(out)


@pytest.mark.parametrize("pairs", [False, True])
def test_bmp_run_lengths_are_dealt_out_as_pillow_does(pairs: bool) -> None:
    bits, compression = (4, 2) if pairs else (8, 1)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        height, width = int(rng.integers(1, 9)), int(rng.integers(1, 20))
        body = run_lengths(rng, 4 * height * width + 8, pairs)
        data = bitmap(40, height, width, bits, body, compression)
        assert np.array_equal(decode(data), pillow(data)), seed
    # What an early end leaves out has the palette's first colour.
    data = bitmap(40, 2, 3, bits, b"\x02\x11\0\x01", compression)
    assert np.array_equal(decode(data)[0], np.repeat(decode(data)[:1, :1], 3, 1)[0])
    with pytest.raises(ValueError, match=r"BMP: truncated: .*allow_truncated accepts it"):
        decode(data[:-2])
    assert np.array_equal(decode(data[:-2], allow_truncated=True), decode(data))


def test_bmp_bit_fields_of_24_bits_are_in_order_or_refused() -> None:
    data = bytearray(bmp(5, 7, 32, masks=(0xFF0000, 0xFF00, 0xFF)))
    data[28:30] = struct.pack("<H", 24)
    assert decode(bytes(data)).shape == (5, 7, 3)
    data[54:58], data[62:66] = data[62:66], data[54:58]
    with pytest.raises(ValueError, match="another order"):
        decode(bytes(data))


def test_bmp_that_nobody_reads_is_refused_with_the_reason() -> None:
    for data, why in [
        (bitmap(40, 2, 2, 24, b"", compression=4), "compression 4 of 24 bits"),
        (bitmap(40, 2, 2, 2, b""), "2 bits per pixel"),
        (b"BM" + bytes(12) + struct.pack("<I", 300) + bytes(400), "a header of 300 bytes"),
    ]:
        with pytest.raises(ValueError, match=why):
            decode(data)


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
            # Pillow turns TIFF files by itself.
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


def truth(data: bytes, lenient: bool) -> Pixels | None:
    """What Pillow makes of a damaged file, or nothing."""
    ImageFile.LOAD_TRUNCATED_IMAGES = lenient
    try:
        return pillow(data)
    except OSError:
        return None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def damaged_jpegs() -> Iterator[tuple[str, bytes]]:
    """Whole files whose image data were changed, in ways that do not touch a header."""
    for name, data in jpegs():
        rng = random.Random(name)
        start = data.index(b"\xff\xda") + 16
        if len(data) < start + 100:
            continue
        for turn in range(6):
            hurt = bytearray(data)
            for _ in range(1 + turn):
                at = rng.randrange(start, len(data) - 2)
                if hurt[at] != 255 and hurt[at - 1] != 255:
                    hurt[at] = rng.randrange(255)
            yield f"{name}, bytes {turn}", bytes(hurt)
        gap = rng.randrange(start, len(data) - 2)
        yield f"{name}, a gap", data[:gap] + data[min(gap + 40, len(data) - 2) :]


def test_damaged_jpegs_are_pillows_with_allow_damaged() -> None:
    named = shown = 0
    for name, data in damaged_jpegs():
        wanted = truth(data, lenient=False)
        strict, lenient = outcome(data), outcome(data, allow_damaged=True)
        if isinstance(lenient, str):
            # Only what Pillow refuses as well, or damage to a later header.
            assert wanted is None, (name, lenient)
            continue
        if wanted is not None:
            assert difference(lenient, wanted) == 0, name
            shown += 1
        if isinstance(strict, str) and "truncated" not in strict:
            assert "allow_damaged accepts it" in strict
            named += 1
    assert named > 100 and shown > 200, (named, shown)


def test_truncated_jpegs_are_pillows_with_allow_truncated() -> None:
    compared = 0
    for name, data in jpegs():
        start = data.index(b"\xff\xda") + 16
        if len(data) < start + 100:
            continue
        for part in range(1, 8):
            cut = data[: start + (len(data) - 2 - start) * part // 8]
            wanted = truth(cut, lenient=True)
            strict, damaged, lenient = (
                outcome(cut),
                outcome(cut, allow_damaged=True),
                outcome(cut, allow_truncated=True),
            )
            for refused in (strict, damaged):
                assert isinstance(refused, str) and "allow_truncated accepts it" in refused, name
            assert not isinstance(lenient, str) and wanted is not None, name
            if "progressive" in name and not wanted.any():
                continue  # Pillow drops the scans that are there; here they are shown.
            assert difference(lenient, wanted) == 0, (name, part)
            compared += 1
    assert compared > 250, compared


def test_a_harmless_warning_hides_no_lost_data() -> None:
    """libjpeg reports its first warning only."""
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 3}):
        data = saved(Image.fromarray(photo(64, 64)), "JPEG", **options)
        tables = data.index(b"\xff\xdb")
        scan = data.rindex(b"\xff\xda") + 14
        jfif = data.index(b"JFIF")
        lost = data[: scan + (len(data) - scan) // 2] + b"\xff\xd9"
        with pytest.raises(ValueError, match="allow_damaged accepts it"):
            decode(lost)
        for place, put in ((tables, b"\0\0"), (jfif + 5, b"\x09")):
            # Bytes between two segments, or another revision in the place of the real one.
            after = place if place == tables else place + 1
            odd, odd_lost = (file[:place] + put + file[after:] for file in (data, lost))
            assert difference(decode(odd), decode(data)) == 0
            with pytest.raises(ValueError, match="allow_damaged accepts it"):
                decode(odd_lost)
            assert difference(decode(odd_lost, allow_damaged=True), pillow(odd_lost)) == 0


def test_what_follows_a_plain_scan_is_judged_by_the_library() -> None:
    """A fill byte before the first marker leaves a file to the library."""
    data = saved(Image.fromarray(photo(64, 64)), "JPEG")
    scan = data.index(b"\xff\xda")
    table = data[data.index(b"\xff\xc4") :][:4] + b"\x77" * 40
    # Bytes behind the last unit, before a restart marker that is one too many or before the end.
    stray = b"\x55" * 9
    ends = (stray + b"\xff\xd0" + stray, b"\xff\xd0" + stray, stray, b"\xff\xd0", b"\xff\xff", b"")
    for more in (data[scan:-2], b"\xff\x55", table, data[:-2], *ends):
        file = data[:-2] + more + b"\xff\xd9"
        own, library = outcome(file), outcome(file[:2] + b"\xff" + file[2:])
        assert type(own) is type(library), more[:4]
        assert isinstance(own, str) or difference(own, library) == 0, more[:4]


def test_a_short_jfif_segment_means_nothing() -> None:
    data = saved(Image.fromarray(photo(40, 40)), "JPEG", keep_rgb=True)
    file = data[:2] + b"\xff\xe0\0\x07JFIF\0" + data[2:]
    assert difference(decode(file), decode(file[:2] + b"\xff" + file[2:])) == 0


def test_arithmetic_coding_is_bounded_by_its_blocks() -> None:
    data = saved(Image.fromarray(photo(64, 64)), "JPEG")
    frame = data.index(b"\xff\xc0")
    huge = bytearray(data)
    huge[frame + 1] = 0xC9
    huge[frame + 5 : frame + 9] = struct.pack(">HH", 13000, 13000)
    with pytest.raises(ValueError, match="more work than any encoder asks for"):
        decode(bytes(huge))


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


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_gif_unknown_blocks_are_passed_over(mode: str) -> None:
    data = gif((1, 2, 6, 4), (9, 7), 2)
    frame = data.index(b"\x2c")
    for block in [
        b"\x21\x42\x03abc\x00",
        b"\x21\x00\x00",
        b"\x00" * 5,
        b"\x01\x07\xff",
        b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00",
        b"\x21\xfe\x05hello\x05world\x00",
        b"\x21\xf9\x00",
    ]:
        odd = data[:frame] + block + data[frame:]
        if (
            block[-2:] != b"\xf9\x00" and block != b"\x21\x00\x00"
        ):  # Pillow takes what follows for their body.
            assert np.array_equal(decode(odd, mode), pillow(odd, mode)), block
        assert np.array_equal(decode(odd, mode), decode(data, mode)), block
    # A frame that exceeds its canvas makes it larger, as in Pillow.
    for frame_size in [(5, 3, 9, 9), (0, 0, 10, 2), (20, 0, 3, 3)]:
        large = gif(frame_size, (9, 7), None)
        assert np.array_equal(decode(large, mode), pillow(large, mode)), frame_size


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_tiff_is_equal(mode: str) -> None:
    image = Image.fromarray(photo(37, 29))
    for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
        for source in (image, image.convert("L"), image.convert("RGBA"), image.convert("1")):
            data = saved(source, "TIFF", compression=compression)
            assert np.array_equal(decode(data, mode), pillow(data, mode)), (compression, source.mode)
    data = saved(image.convert("CMYK"), "TIFF")
    assert np.array_equal(decode(data, mode), pillow(data, mode))
    wide = (photo(37, 29)[..., 0].astype(np.uint16) << 8) + 77
    data = saved(Image.fromarray(wide), "TIFF")
    assert np.array_equal(decode(data, "gray")[..., 0], photo(37, 29)[..., 0])


def tiff(
    grid: npt.NDArray[Any],
    bits: int,
    photometric: int,
    order: str = "<",
    strip: int = 5,
    tile: tuple[int, int] | None = None,
    planar: bool = False,
    deflated: bool = False,
    fill_order: int = 1,
    big: bool = False,
    tags: dict[int, tuple[int, ...]] | None = None,
) -> bytes:
    """A TIFF of samples [height, width, samples], as Pillow cannot write it."""
    height, width, samples = grid.shape

    def rows(part: npt.NDArray[Any]) -> bytes:
        flat = part.reshape(part.shape[0], -1)
        if bits in (8, 16, 32):
            kind = {8: "u1", 16: "u2", 32: "u4"}[bits] if part.dtype.kind == "u" else part.dtype.str[1:]
            out = flat.astype(order + kind).tobytes()
        else:
            split = (flat.astype(np.uint32)[..., None] >> np.arange(bits - 1, -1, -1)) & 1
            out = np.packbits(split.reshape(part.shape[0], -1).astype(np.uint8), axis=1).tobytes()
        if deflated:
            out = zlib.compress(out)
        if fill_order == 2:
            out = np.packbits(np.unpackbits(np.frombuffer(out, np.uint8)), bitorder="little").tobytes()
        return out

    planes = [grid[..., i : i + 1] for i in range(samples)] if planar else [grid]
    chunks = []
    for plane in planes:
        if tile is None:
            chunks += [rows(plane[y : y + strip]) for y in range(0, height, strip)]
            continue
        for y in range(0, height, tile[0]):
            for x in range(0, width, tile[1]):
                whole = np.zeros((*tile, plane.shape[2]), plane.dtype)
                part = plane[y : y + tile[0], x : x + tile[1]]
                whole[: part.shape[0], : part.shape[1]] = part
                chunks.append(rows(whole))
    start = 16 if big else 8
    offsets = tuple(start + sum(map(len, chunks[:i])) for i in range(len(chunks)))
    counts = tuple(map(len, chunks))
    entries: dict[int, tuple[int, ...]] = {
        256: (width,),
        257: (height,),
        258: (bits,) * samples,
        259: (8 if deflated else 1,),
        262: (photometric,),
        266: (fill_order,),
        277: (samples,),
        284: (2 if planar else 1,),
    }
    if tile is None:
        entries |= {273: offsets, 278: (strip,), 279: counts}
    else:
        entries |= {322: (tile[1],), 323: (tile[0],), 324: offsets, 325: counts}
    entries |= tags or {}
    body = b"".join(chunks)
    if len(body) % 2:
        body += b"\0"
    inside = 8 if big else 4
    count = "Q" if big else "I"
    directory = struct.pack(order + ("Q" if big else "H"), len(entries))
    after = start + len(body) + len(directory) + len(entries) * (20 if big else 12) + inside
    extra = b""
    for number, values in sorted(entries.items()):
        longs = number in (256, 257, 273, 279, 324, 325)
        packed = struct.pack(order + ("I" if longs else "H") * len(values), *values)
        if len(packed) > inside:
            place = struct.pack(order + count, after + len(extra))
            extra += packed + b"\0" * (len(packed) % 2)
            packed = place
        directory += struct.pack(order + "HH" + count, number, 4 if longs else 3, len(values))
        directory += packed.ljust(inside, b"\0")
    directory += b"\0" * inside
    mark = {"<": b"II", ">": b"MM"}[order]
    head = mark + struct.pack(order + "H", 43 if big else 42)
    if big:
        head += struct.pack(order + "HHQ", 8, 0, start + len(body))
    else:
        head += struct.pack(order + "I", start + len(body))
    return head + body + directory + extra


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_tiff_depths_palettes_tiles_and_planes_are_equal(order: str, mode: str) -> None:
    rng = np.random.default_rng(1)
    kinds: list[tuple[int, int, int, dict[int, tuple[int, ...]]]] = []
    for bits in (1, 2, 4, 8):
        colors = tuple(int(x) for x in rng.integers(0, 65536, 3 * 2**bits))
        kinds += [(bits, 0, 1, {}), (bits, 1, 1, {}), (bits, 3, 1, {320: colors})]
    kinds += [
        (8, 2, 3, {}),
        (8, 2, 4, {}),
        (16, 2, 3, {}),
        (16, 2, 4, {338: (2,)}),
        (8, 5, 4, {}),
        (16, 5, 4, {}),
    ]
    kinds += [(8, 2, 4, {338: (alpha,)}) for alpha in (0, 1, 2)] + [(8, 1, 2, {338: (2,)})]
    kinds += [(8, 1, 2, {338: (0,)}), (8, 2, 5, {338: (0, 0)}), (8, 5, 5, {338: (0,)})]
    for bits, photometric, samples, tags in kinds:
        for height, width in [(1, 1), (13, 21)]:
            grid = rng.integers(0, 2**bits, (height, width, samples)).astype(
                np.uint16 if bits > 8 else np.uint8
            )
            for options in (
                {},
                {"deflated": True},
                {"tile": (16, 16)},
                {"tile": (16, 16), "deflated": True},
                {"big": True},
                {"fill_order": 2},
                {"planar": True, "deflated": True},
            ):
                if options.get("planar") and samples == 1:
                    continue
                if options.get("fill_order") and (bits > 8 or samples > 1):
                    continue
                data = tiff(grid, bits, photometric, order, tags=tags, **options)
                # Pillow shows planes without ExtraSamples wrongly: as one plane they are compared.
                together = tiff(grid, bits, photometric, order, tags=tags) if "planar" in options else data
                try:
                    wanted = pillow(together, mode)
                except (OSError, SyntaxError, KeyError, ValueError, UserWarning):
                    # Pillow does not know this one; it is still an image.
                    assert decode(data, mode).shape[:2] == (height, width)
                    continue
                found = decode(data, mode)
                assert np.array_equal(found, wanted), (bits, photometric, samples, tags.keys(), options)


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_tiff_from_pillow_in_every_mode_and_compression(mode: str) -> None:
    image = Image.fromarray(photo(37, 29))
    gray = photo(37, 29)[..., 0]
    numbers = [
        Image.fromarray(gray.astype(np.int32) * 3 - 200),
        Image.fromarray(gray.astype(np.float32) * 1.7 - 60.5),
    ]
    bilevel = image.convert("1")
    files = []
    for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits"):
        for source in (
            image.quantize(200),
            image.quantize(7),
            image.convert("LA"),
            image.convert("CMYK"),
            *numbers,
        ):
            files.append((compression, source, {}))
    for source in (image, image.convert("L"), image.convert("RGBA"), *numbers):
        for compression in ("tiff_lzw", "tiff_adobe_deflate"):
            files.append((compression, source, {"tiffinfo": {317: 2}}))
    files.append(("tiff_lzw", numbers[1], {"tiffinfo": {317: 3}}))
    files += [(compression, bilevel, {}) for compression in ("tiff_ccitt", "group3", "group4")]
    files += [("group3", bilevel, {"tiffinfo": {292: options}}) for options in (1, 4, 5)]
    files += [("jpeg", source, {"quality": 90}) for source in (image, image.convert("L"))]
    for compression, source, options in files:
        data = saved(source, "TIFF", compression=compression, **options)
        found, wanted = decode(data, mode), pillow(data, mode)
        assert np.array_equal(found, wanted), (compression, source.mode, options)


@pytest.mark.parametrize("compression", ["tiff_ccitt", "group3", "group4"])
def test_tiff_fax_of_any_picture_is_equal(compression: str) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        height, width = int(rng.integers(1, 40)), int(rng.integers(1, 200))
        grid = rng.random((height, width)) < rng.random()
        if seed % 2:
            grid = np.repeat(np.repeat(grid, 9, 1), 3, 0)[:, : 9 * width]
        if seed % 5 == 0:
            grid = np.hstack([grid] * 30)
        data = saved(Image.fromarray(grid), "TIFF", compression=compression)
        assert np.array_equal(decode(data), pillow(data)), (seed, grid.shape)


def test_tiff_12_bits_give_the_high_ones() -> None:
    grid = np.random.default_rng(0).integers(0, 4096, (5, 7, 1)).astype(np.uint16)
    assert np.array_equal(decode(tiff(grid, 12, 1), "gray")[..., 0], (grid[..., 0] >> 4).astype(np.uint8))


def test_tiff_jpeg_with_damage_is_pillows_with_allow_damaged() -> None:
    data = bytearray(saved(Image.fromarray(photo(64, 64)), "TIFF", compression="jpeg"))
    scan = data.index(b"\xff\xda") + 14
    data[scan + 200 : scan + 240] = b"\x55" * 40
    with pytest.raises(ValueError, match="allow_damaged accepts it"):
        decode(bytes(data))
    assert difference(decode(bytes(data), allow_damaged=True), pillow(bytes(data))) <= 2


@pytest.mark.parametrize("predictor", [2, 3])
def test_truncated_differences_become_pixels(predictor: int) -> None:
    """Whole rows of a strip that ends early are as they were."""
    if predictor == 2:
        grid = photo(20, 16)
        wanted, kind = grid, 1
        stored = grid.copy()
        stored[:, 1:] -= grid[:, :-1]
    else:
        values = np.random.default_rng(4).uniform(0, 255, (20, 16)).astype("<f4")
        grid, kind = values[..., None].view("<u4"), 3
        wanted = np.repeat(values[..., None].astype(np.uint8), 3, 2)
        planes = (
            values[..., None].view(np.uint8).reshape(20, 16, 4)[..., ::-1].transpose(0, 2, 1).reshape(20, 64)
        )
        stored = planes.copy()
        stored[:, 1:] -= planes[:, :-1]
    rows = np.ascontiguousarray(stored).view(np.uint8).reshape(20, -1)
    body = zlib.compressobj(0)
    packed = body.compress(rows[:11].tobytes()) + body.flush(zlib.Z_SYNC_FLUSH)
    samples = 3 if predictor == 2 else 1
    whole = tiff(
        np.zeros((20, 16, samples), np.uint8 if predictor == 2 else "u4"),
        8 if predictor == 2 else 32,
        2 if predictor == 2 else 1,
        strip=20,
        deflated=True,
        tags={317: (predictor,), 339: (kind,) * samples},
    )
    # The strip is put behind the file, where its offset then points.
    at, count = len(whole), len(packed)
    entry = whole.index(struct.pack("<HHI", 273, 4, 1))
    file = bytearray(whole + packed)
    file[entry + 8 : entry + 12] = struct.pack("<I", at)
    entry = whole.index(struct.pack("<HHI", 279, 4, 1))
    file[entry + 8 : entry + 12] = struct.pack("<I", count)
    with pytest.raises(ValueError, match="allow_truncated accepts it"):
        decode(bytes(file))
    shown = decode(bytes(file), allow_truncated=True)
    assert np.array_equal(shown[:11], wanted[:11]) and not shown[11:].any()


def one_row_tiles(rows: int, width: int, listed: int) -> bytes:
    """A fax image of one column whose tiles are rows of any width, each a byte of the file."""
    head, data = b"II*\0" + struct.pack("<I", 8 + listed), b"\x80" * listed
    entries = [
        *((256, 4, 1, 1), (257, 4, 1, rows), (258, 3, 1, 1), (259, 3, 1, 4), (262, 3, 1, 0), (277, 3, 1, 1)),
        *((322, 4, 1, width), (323, 4, 1, 1), (324, 1, listed, 8), (325, 1, listed, 8)),
    ]
    directory = struct.pack("<H", len(entries))
    return head + data + directory + b"".join(struct.pack("<HHII", *entry) for entry in entries) + b"\0" * 4


def test_tiles_are_bounded_together() -> None:
    for rows, width, listed in [
        (3000, 128 << 20, 3000),
        (200, 16 << 20, 1),
        (2, 16 << 20, 2),
        (3000, 1 << 20, 3000),
    ]:
        for lenient in (False, True):
            with pytest.raises(ValueError, match=r"TIFF: (tiles of|has fewer)"):
                decode(one_row_tiles(rows, width, listed), allow_truncated=lenient)
    assert decode(one_row_tiles(3000, 1024, 3000), allow_truncated=True).shape == (3000, 1, 3)


def jpeg_strips(strips: int, repeats: int, tables: bytes = b"") -> bytes:
    """A TIFF whose strips are all the same progressive JPEG, one of its scans written `repeats` times."""
    data = saved(Image.fromarray(photo(8, 4096)).convert("L"), "JPEG", progressive=True)
    scans = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    last = data[scans[-1] : -2]
    data = data[:-2] + last * repeats + data[-2:]
    grid = np.zeros((8 * strips, 4096, 1), np.uint8)
    tags = {259: (7,), 273: (8,) * strips, 279: (len(data),) * strips}
    whole = tiff(grid, 8, 1, strip=8, tags={**tags, **({347: tuple(tables)} if tables else {})})
    # The JPEG lies where the first strip was, which is larger.
    return whole[:8] + data + whole[8 + len(data) :]


def test_the_work_of_all_jpegs_in_a_tiff_is_bounded_together() -> None:
    """Each strip is below the bound of a JPEG: 512 blocks, visited by at most 100 scans. All of them
    together are below it too (2^27 visits): a TIFF has a bound of its own."""
    assert decode(jpeg_strips(4, 0)).shape == (32, 4096, 3)
    with pytest.raises(ValueError, match="TIFF: its JPEGs are more work than any encoder asks for"):
        decode(jpeg_strips(2048, 80), allow_damaged=True)
    with pytest.raises(ValueError, match="140000 bytes of JPEG tables"):
        decode(jpeg_strips(4, 0, b"\0" * 70_000))


def test_tiff_that_is_not_read_is_refused_with_the_reason() -> None:
    grid = np.zeros((4, 4, 3), np.uint8)
    for options, why in [
        ({"tags": {259: (50000,)}}, "compression 50000"),
        ({"tags": {262: (8,)}}, "colours of kind 8"),
        ({"tags": {262: (6,)}}, "YCbCr colours without JPEG"),
        ({"tags": {339: (3, 3, 3)}}, "3 samples of 8 bits"),
        ({"tags": {258: (8, 8, 4)}}, "samples of different kinds"),
        ({"tags": {322: (60000,), 323: (60000,), 324: (8,), 325: (8,)}}, "tiles of 60000 x 60000 pixels"),
        ({"deflated": True, "tags": {273: (8, 8), 278: (2,), 279: (5, 10**6)}}, "TIFF"),
    ]:
        with pytest.raises(ValueError, match=why):
            decode(tiff(grid, 8, 2, **options))
    # A thousand strips that are one and the same would be a thousand times the work.
    shared = tiff(np.zeros((4000, 4, 3), np.uint8), 8, 2, deflated=True, strip=4)
    shared = tiff(
        np.zeros((4000, 4, 3), np.uint8),
        8,
        2,
        deflated=True,
        strip=4,
        tags={273: (8,) * 1000, 279: (len(shared),) * 1000},
    )
    with pytest.raises(ValueError, match="share their bytes"):
        decode(shared)


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_pnm_is_equal(mode: str) -> None:
    image = Image.fromarray(photo(37, 29))
    files = [saved(source, "PPM") for source in (image, image.convert("L"), image.convert("1"))]
    files += [b"P3 2 1 255 1 2 3\n4 5 6\n", b"P2\n# note\n3 1\n255\n7 8 9\n", b"P1 3 2\n1 0\n1#\n010"]
    values = np.random.default_rng(5).integers(0, 65536, (4, 6, 3))
    for most in (1, 6, 15, 30, 100, 200, 254, 256, 1023, 65535):
        grid = values % (most + 1)
        body = grid.astype(">u2" if most > 255 else "u1").tobytes()
        text = " ".join(map(str, grid.ravel())).encode()
        files += [b"P6 6 4 %d\n" % most + body, b"P3 6 4 %d\n" % most + text]
        if most < 256:
            files.append(b"P5 6 4 %d\n" % most + grid[..., 0].astype("u1").tobytes())
    for data in files:
        assert np.array_equal(decode(data, mode), pillow(data, mode)), data[:12]


def test_pnm_16_bit_gray_takes_the_high_byte() -> None:
    values = np.arange(0, 65536, 997)
    data = b"P5 %d 1 65535\n" % len(values) + values.astype(">u2").tobytes()
    assert decode(data)[0, :, 0].tolist() == (values >> 8).tolist()


@pytest.mark.parametrize("head", [b"P6 6 4 255\n", b"P3 6 4 255\n", b"P6 6 4 15\n", b"P3 6 4 15\n"])
def test_a_truncated_pnm_shows_what_is_there(head: bytes) -> None:
    most = int(head.split()[-1])
    grid = np.random.default_rng(6).integers(0, most + 1, (4, 6, 3)).astype(np.uint8)
    is_text = head[1:2] == b"3"
    body = " ".join(map(str, grid[:2].ravel())).encode() if is_text else grid[:2].tobytes()
    with pytest.raises(ValueError, match="allow_truncated accepts it"):
        decode(head + body)
    shown = decode(head + body, allow_truncated=True)
    assert np.array_equal(shown[:2], np.round(grid[:2] / most * 255)) and not shown[2:].any()


@pytest.mark.parametrize(
    "body",
    [
        b"P2 2 1 15 1 16",
        b"P2 2 1 15 1 007",
        b"P2 2 1 15 1 x",
        b"P2 2 1 15 1 -1",
        b"P1 2 1 1 2",
        b"P5 1 1 0 a",
    ],
)
def test_a_pnm_with_wrong_numbers_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="PNM"):
        decode(body)


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
    tiff_file = bytearray(saved(Image.new("RGB", (8, 8)), "TIFF"))
    for tag in (256, 257, 278):
        entry = (
            tiff_file.index(struct.pack("<HHI", tag, 4, 1))
            if struct.pack("<HHI", tag, 4, 1) in tiff_file
            else None
        )
        entry = tiff_file.index(struct.pack("<HHI", tag, 3, 1)) if entry is None else entry
        tiff_file[entry + 8 : entry + 12] = struct.pack("<I", 65535)
    bitmap = bytearray(bmp(1, 1, 24))
    bitmap[18:26] = struct.pack("<II", 65535, 65535)
    return {
        "jpeg": jpeg[: frame + 5] + b"\xff\xff\xff\xff" + jpeg[frame + 9 :],
        "png": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")),
        "gif": b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x00",
        "tiff": bytes(tiff_file),
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


def test_a_side_has_a_limit_in_every_format_that_can_exceed_it() -> None:
    long = 2**20 + 1
    header = struct.pack(">IIBBBBB", 1, long, 1, 0, 0, 0, 1)
    bitmap_file = bytearray(bmp(1, 1, 24))
    bitmap_file[18:26] = struct.pack("<II", long, 1)
    for data, size in [
        (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b""), f"1 x {long}"),
        (bytes(bitmap_file), f"{long} x 1"),
        (tiff(np.zeros((1, 1, 1), np.uint8), 8, 1, tags={257: (long,)}), f"1 x {long}"),
        (f"P5 {long} 1 255\n".encode(), f"{long} x 1"),
    ]:
        with pytest.raises(ValueError, match=rf"declares {size} pixels; a side may have 1048576 at most"):
            decode(data)


def scans_of(data: bytes) -> tuple[bytes, list[bytes]]:
    """A JPEG's beginning, and its scans with the tables before each."""
    starts = [m for m in range(len(data) - 1) if data[m : m + 2] == b"\xff\xda"]
    ends = []
    for start in starts:
        at = start + 2
        while not (data[at] == 0xFF and data[at + 1] not in (0, *range(0xD0, 0xD8))):
            at += 1
        ends.append(at)
    first = starts[0]
    return data[:first], [data[a:b] for a, b in zip([first, *ends], ends, strict=False)]


def test_jpeg_scans_are_counted_before_any_work() -> None:
    image = Image.fromarray(photo(48, 64))
    data = saved(image, "JPEG", progressive=True)
    head, scans = scans_of(data)
    assert head + b"".join(scans) + b"\xff\xd9" == data and len(scans) >= 6
    # Padding between scans, restarts and fill bytes hide none of them.
    stuffed = (scans[-1] + b"\xff\xff\xd1\xff\x00\xff\xfe\x00\x04\xff\xd9") * 95
    with pytest.raises(ValueError, match="JPEG: has more than 100 scans"):
        decode(head + b"".join(scans) + stuffed + b"\xff\xd9")
    few = head + b"".join(scans) + scans[-1] * 2 + b"\xff\xd9"
    assert decode(few, allow_damaged=True).shape == (48, 64, 3)
    # 169 million pixels: each scan of all blocks is a lot of work, whatever its few bytes say.
    frame = head.index(b"\xff\xc2")
    for kind in (0xC2, 0xCA):
        large = head[:frame] + bytes([255, kind]) + head[frame + 2 : frame + 5]
        large += struct.pack(">HH", 13000, 13000) + head[frame + 9 :]
        with pytest.raises(ValueError, match=r"13000 x 13000 pixels in \d+ or more scans are more work"):
            decode(large + b"".join(scans) + scans[-1] * 60 + b"\xff\xd9")


def truncated_files() -> dict[str, bytes]:
    """One file of each kind that ends early, none of them larger than 61 x 83 pixels."""
    image = Image.fromarray(photo(61, 83))
    files = victims() | {
        "interlaced palette": png(61, 83, 3, 8, True),
        "bmp rle": bitmap(40, 61, 83, 8, run_lengths(np.random.default_rng(0), 300, False), 1),
        "gray tiff": saved(image.convert("L"), "TIFF"),
        "jpeg tiff": saved(image, "TIFF", compression="jpeg"),
        "fax": saved(image.convert("1"), "TIFF", compression="group4"),
        "palette gif": gif((3, 3, 70, 40), (83, 61), 2),
        "pgm": saved(image.convert("L"), "PPM"),
        "text": b"P3 83 61 255 " + b"7 8 9 " * 61 * 83,
    }
    return {name: data[: len(data) * 2 // 3] for name, data in files.items()}


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_missing_pixels_show_nothing_of_an_earlier_image(tmp_path: Path, mode: str) -> None:
    loud = [saved(Image.fromarray(255 - photo(61, 83, seed)), "PNG") for seed in (1, 2)]
    seen = 0
    for name, data in truncated_files().items():
        if isinstance(outcome(data, mode=mode, allow_truncated=True), str):
            continue  # a TIFF whose directory was cut off, for one
        fresh = decode(data, mode, allow_truncated=True)
        for number, before in enumerate(loud):
            folder = tmp_path / f"{name} {number}" / "0"
            folder.mkdir(parents=True)
            (folder / "a.png").write_bytes(before)
            (folder / "b.png").write_bytes(data)
            with Loader(
                folder.parent,
                batch_size=2,
                num_workers=1,
                layout="HWC",
                decode={"mode": mode, "allow_truncated": True},
            ) as loader:
                (batch,) = loader
                assert np.array_equal(np.asarray(batch["image"])[1], fresh), name
        seen += 1
    assert seen >= 15


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
