"""Small files that ask for much: time, memory, or both. Each is made in one process and loaded in another.

python tests/soak/bombs.py make NAME FOLDER
python tests/soak/bombs.py load NAME FOLDER
"""

from __future__ import annotations

import gzip
import io
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from damage import masked_crc32c
from writers import bmp, longs, octets, shorts, tiff

SECONDS = 20.0
"""Processor time that loading one may take, of the interpreter's start as well."""

MAKERS: dict[str, tuple[str, dict[str, Any], Callable[[Path], None]]] = {}


def bomb(file: str, **decode: Any) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Keeps a maker with the name of its file and the options with which that is decoded."""

    def keep(maker: Callable[[Path], None]) -> Callable[[Path], None]:
        MAKERS[maker.__name__.strip("_").replace("_", "-")] = (file, decode, maker)
        return maker

    return keep


def _zeros(compressor: object, total: int) -> bytes:
    out, piece = [], bytes(1 << 20)
    for _ in range(total >> 20):
        out.append(compressor.compress(piece))  # type: ignore[attr-defined]
    out.append(compressor.flush())  # type: ignore[attr-defined]
    return b"".join(out)


def _png(width: int, height: int, interlaced: bool, filtered: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, int(interlaced))
    data = _zeros(zlib.compressobj(9), filtered)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@bomb("a.png")
def interlaced_png_of_one_column(path: Path) -> None:
    path.write_bytes(_png(1, 178_000_000, True, 380 << 20))


@bomb("a.png")
def png_of_one_column(path: Path) -> None:
    path.write_bytes(_png(1, 178_000_000, False, 380 << 20))


@bomb("a.png")
def square_png(path: Path) -> None:
    path.write_bytes(_png(13_000, 13_000, False, 13_001 * 13_000))


@bomb("a.png")
def png_of_empty_chunks(path: Path) -> None:
    whole = _png(4, 4, False, 1 << 20)
    empty = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    path.write_bytes(whole[:33] + empty * 1_000_000 + whole[33:])


def _scans(width: int, height: int, scans: int) -> bytes:
    """A progressive JPEG whose later scans refine nothing, over and over."""
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, height, width, 1) + bytes([1, 0x11, 0])
    quantiser = b"\xff\xdb\x00\x43\x00" + bytes([1] * 64)
    # One code of two bits for each table: all zero differences, or runs of ends of blocks.
    first = b"\xff\xc4" + struct.pack(">H", 3 + 17) + bytes([0x00, 0, 1]) + bytes(14) + b"\x00"
    runs = b"\xff\xc4" + struct.pack(">H", 3 + 17) + bytes([0x10, 0, 1]) + bytes(14) + b"\xe0"
    blocks = -(-width // 8) * -(-height // 8)
    start = b"\xff\xda\x00\x08\x01\x01\x00\x00\x00\x00" + bytes(-(-blocks * 2 // 8))
    # An end of 2^14 to 2^15 - 1 blocks takes 2 + 14 bits.
    again = b"\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x00" + b"\x3f\xfe" * (blocks // 16384 + 1)
    return b"\xff\xd8" + quantiser + frame + first + runs + start + again * scans + b"\xff\xd9"


@bomb("a.jpg")
def jpeg_of_a_hundred_scans(path: Path) -> None:
    path.write_bytes(_scans(13_000, 13_000, 99))


@bomb("a.jpg")
def jpeg_of_ten_thousand_scans(path: Path) -> None:
    path.write_bytes(_scans(800, 800, 10_000))


def _jpeg(quality: int = 75) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.linear_gradient("L").resize((14, 12)).convert("RGB").save(file, "JPEG", quality=quality)
    return file.getvalue()


@bomb("a.jpg")
def jpeg_with_an_undefined_table(path: Path) -> None:
    data = bytearray(_jpeg())
    scan = data.index(b"\xff\xda")
    data[scan + 6] = data[scan + 6] & 0xF0 | 2
    path.write_bytes(bytes(data))


@bomb("a.jpg")
def jpeg_of_fill_bytes(path: Path) -> None:
    data = _jpeg()
    path.write_bytes(data[:2] + b"\xff" * 40_000_000 + data[2:])


@bomb("a.jpg")
def jpeg_of_restart_markers(path: Path) -> None:
    data = _jpeg()
    path.write_bytes(data[:-2] + b"\xff\xd0" * 5_000_000 + data[-2:])


def _arithmetic(width: int, height: int) -> bytes:
    """Arithmetic-coded noise of 64 x 64 pixels that says it is larger; the decoder goes on without data."""
    data = bytearray(Path(__file__).with_name("arithmetic.jpg").read_bytes())
    frame = data.index(b"\xff\xc9")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@bomb("a.jpg")
def arithmetic_jpeg(path: Path) -> None:
    path.write_bytes(_arithmetic(13_000, 13_000))


@bomb("a.jpg", allow_damaged=True, allow_truncated=True)
def arithmetic_jpeg_that_may_be_truncated(path: Path) -> None:
    path.write_bytes(_arithmetic(13_000, 13_000))


@bomb("a.bmp")
def run_length_bmp(path: Path) -> None:
    body = bytes([255, 7]) * 100 + b"\x00\x01"
    path.write_bytes(bmp(13_000, 13_000, 8, 1, bytes(1024), body))


@bomb("a.gif")
def large_gif(path: Path) -> None:
    # One frame of the whole canvas, whose data end at once.
    size = struct.pack("<HH", 13_000, 13_000)
    frame = b"," + struct.pack("<HH", 0, 0) + size + b"\x00\x08\x02\x00\x01\x00;"
    path.write_bytes(b"GIF89a" + size + b"\xf7\x00\x00" + bytes(768) + frame)


@bomb("a.gif")
def gif_of_many_extensions(path: Path) -> None:
    size = struct.pack("<HH", 4, 4)
    path.write_bytes(b"GIF89a" + size + b"\xf0\x00\x00" + bytes(6) + b"!\xfe\x01x\x00" * 4_000_000)


@bomb("a.tif")
def deflated_tiff(path: Path) -> None:
    side = 13_000
    data = _zeros(zlib.compressobj(9), side * side + (1 << 20))
    entries = {
        256: longs(side),
        257: longs(side),
        258: shorts(8),
        259: shorts(8),
        262: shorts(1),
        273: longs(8),
        277: shorts(1),
        278: longs(side),
        279: longs(len(data)),
    }
    path.write_bytes(tiff(entries, data))


def _tiles(size: tuple[int, int], tile: tuple[int, int], compression: int, count: int) -> bytes:
    """A TIFF of tiles that all lie at the same byte, whose tables list `count` of them in a byte each."""
    entries = {
        256: longs(size[0]),
        257: longs(size[1]),
        258: shorts(1 if compression == 4 else 8),
        259: shorts(compression),
        262: shorts(0),
        277: shorts(1),
        322: longs(tile[0]),
        323: longs(tile[1]),
        324: octets(*[8] * count),
        325: octets(*[1] * count),
    }
    return tiff(entries, b"\x80" * 8)


@bomb("a.tif")
def fax_tiff_of_wide_tiles(path: Path) -> None:
    path.write_bytes(_tiles((1, 10_000), (128 << 20, 1), 4, 10_000))


@bomb("a.tif", allow_truncated=True)
def fax_tiff_of_wide_tiles_that_are_missing(path: Path) -> None:
    path.write_bytes(_tiles((1, 200), (16 << 20, 1), 4, 1))


@bomb("a.tif", allow_truncated=True)
def tiff_of_wide_tiles_that_are_missing(path: Path) -> None:
    path.write_bytes(_tiles((1, 200), (16 << 20, 1), 1, 1))


@bomb("a.tif", allow_truncated=True)
def tiff_of_single_pixels_that_are_missing(path: Path) -> None:
    path.write_bytes(_tiles((13_000, 13_000), (1, 1), 1, 1))


@bomb("a.tif")
def tiff_of_single_pixels(path: Path) -> None:
    path.write_bytes(_tiles((2000, 2000), (1, 1), 1, 2000 * 2000))


@bomb("a.tif")
def fax_tiff_of_two_wide_tiles(path: Path) -> None:
    path.write_bytes(_tiles((1, 2), (16 << 20, 1), 4, 2))


def _jpeg_strips(scans: int) -> bytes:
    """1600 strips, each the same progressive JPEG; they lie apart, as shared bytes are refused."""
    strip, count = _scans(13_000, 8, scans), 1600
    entries = {
        256: longs(13_000),
        257: longs(8 * count),
        258: shorts(8),
        259: shorts(7),
        262: shorts(1),
        273: longs(*[8 + n * len(strip) for n in range(count)]),
        277: shorts(1),
        278: longs(8),
        279: longs(*[len(strip)] * count),
    }
    return tiff(entries, strip * count)


@bomb("a.tif")
def tiff_of_progressive_strips(path: Path) -> None:
    path.write_bytes(_jpeg_strips(9))


@bomb("a.tif", allow_damaged=True, allow_truncated=True)
def tiff_of_progressive_strips_of_a_hundred_scans(path: Path) -> None:
    path.write_bytes(_jpeg_strips(99))


def _lossless(blocks: int) -> bytes:
    """A lossless WebP that has Huffman codes of its own for every 4 x 4 pixels."""
    import numpy

    bits: list[numpy.ndarray[Any, Any]] = []

    def put(*fields: tuple[int, int]) -> None:
        bits.extend(
            numpy.array([value >> n & 1 for n in range(width)], numpy.uint8) for value, width in fields
        )

    single = [(1, 1), (0, 1), (0, 1), (0, 1)]
    put((0x2F, 8), (4 * blocks - 1, 14), (4 * blocks - 1, 14), (0, 1), (0, 3))
    # No transform, no cache of colours, codes for blocks of 4 pixels; then the image of their numbers.
    put((0, 1), (0, 1), (1, 1), (0, 3), (0, 1))
    for lengths in (280, 256):
        # All 256 values have 8 bits: of the lengths of codes only 0 and 8 occur, with a bit each.
        put(
            (0, 1),
            (8, 4),
            *[(int(symbol in (0, 8)), 3) for symbol in (17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8)],
        )
        put((0, 1), *[(int(symbol < 256), 1) for symbol in range(lengths)])
    put(*single * 3)
    numbers = numpy.arange(blocks * blocks)
    # Green is the low byte and comes first; a code's first bit is its highest.
    values = numpy.stack([numbers & 255, numbers >> 8], axis=1).astype(numpy.uint8)
    bits.append(numpy.unpackbits(values.reshape(-1)))
    bits.append(numpy.tile(numpy.array([1, 0, 0, 0] * 5, numpy.uint8), blocks * blocks))
    data = numpy.packbits(numpy.concatenate(bits), bitorder="little").tobytes()
    data += bytes(len(data) % 2)
    body = b"WEBPVP8L" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@bomb("a.webp")
def webp_of_many_codes(path: Path) -> None:
    path.write_bytes(_lossless(256))


@bomb("a.pgm")
def pnm_of_spaces(path: Path) -> None:
    path.write_bytes(b"P2\n" + b"# a comment\n" * 2_000_000 + b"4 4\n255\n" + b" " * 10_000_000)


@bomb("a.png")
def sparse_file_of_terabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.truncate(8 << 40)


@bomb("a.tar.gz")
def zeros_in_a_tar_gz(path: Path) -> None:
    member = tarfile.TarInfo("0.jpg")
    member.size = 8 << 30
    path.write_bytes(gzip.compress(member.tobuf()) + _zeros(zlib.compressobj(9, wbits=31), 8 << 30))


@bomb("a.tfrecord.gz")
def zeros_in_a_tfrecord_gz(path: Path) -> None:
    head = struct.pack("<Q", 4 << 30)
    path.write_bytes(
        gzip.compress(head + masked_crc32c(head)) + _zeros(zlib.compressobj(9, wbits=31), 4 << 30)
    )


@bomb("a.npz")
def zeros_in_an_npz(path: Path) -> None:
    import zipfile

    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4, 1073741824), }"
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117) + b"\n")
        for _ in range(4 << 10):
            file.write(bytes(1 << 20))


@bomb("a.zip")
def zeros_in_a_zip(path: Path) -> None:
    import zipfile

    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("c/0.png", "w", force_zip64=True) as file,
    ):
        for _ in range(4 << 10):
            file.write(bytes(1 << 20))


def _dictionary(rows: int, length: int) -> object:
    import pyarrow

    values = pyarrow.array(["x" * length, "y" * length])
    numbers = pyarrow.array(bytes(rows * 4) and memoryview(bytes(rows * 4)).cast("i"), pyarrow.int32())
    return pyarrow.table({"caption": pyarrow.DictionaryArray.from_arrays(numbers, values), "label": numbers})


@bomb("a.arrow")
def dictionary_of_long_texts_in_arrow(path: Path) -> None:
    import pyarrow

    with pyarrow.OSFile(str(path), "wb") as file:
        table = _dictionary(100_000, 1 << 20)
        options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
        with pyarrow.ipc.new_file(file, table.schema, options=options) as writer:  # type: ignore[attr-defined]
            writer.write_table(table)


@bomb("a.arrow")
def dictionary_of_captions_in_arrow(path: Path) -> None:
    import pyarrow

    with pyarrow.OSFile(str(path), "wb") as file:
        table = _dictionary(20_000, 60_000)
        with pyarrow.ipc.new_file(file, table.schema) as writer:  # type: ignore[attr-defined]
            writer.write_table(table)


@bomb("a.parquet")
def dictionary_of_long_texts_in_parquet(path: Path) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        _dictionary(1_000_000, 1 << 20), path, compression="zstd", dictionary_pagesize_limit=1 << 30
    )


@bomb("a.parquet")
def equal_numbers_in_parquet(path: Path) -> None:
    import numpy
    import pyarrow.parquet

    table = pyarrow.table({"label": numpy.zeros(200_000_000, numpy.int8).astype("i8")[:100_000_000]})
    pyarrow.parquet.write_table(table, path, compression="zstd")


@bomb("a.h5")
def deflated_zeros_in_hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset(
            "image", (8, 1 << 30), "u1", chunks=(1, 1 << 30), compression="gzip", compression_opts=9
        )
        file["image"][0] = 0


@bomb("a.zarr")
def compressed_zeros_in_zarr(path: Path) -> None:
    import zarr

    array = zarr.create_array(str(path), shape=(8, 1 << 30), dtype="u1", chunks=(1, 1 << 30), zarr_format=3)
    array[0] = 1


@bomb("a.csv")
def csv_of_one_line(path: Path) -> None:
    path.write_bytes(b"text,label\n" + b"x" * (200 << 20))


@bomb("a.jsonl")
def json_that_nests(path: Path) -> None:
    path.write_bytes(b'{"a": ' + b"[" * 20_000_000 + b"\n")


def names() -> list[str]:
    return list(MAKERS)


IMAGES = (".png", ".jpg", ".bmp", ".gif", ".tif", ".pgm", ".webp")


def load(path: Path, decode: dict[str, Any], memory: str) -> None:
    """Two epochs with one worker, as a program that skips bad samples would; an error is an answer."""
    import feedline

    image = path.suffix in IMAGES
    encoded = path.name in ("a.tar.gz", "a.zip")
    try:
        loader = feedline.Loader(
            str(path.parent if image else path),
            transforms=[feedline.transforms.Resize((8, 8))] if image else [],
            batch_size=2,
            num_workers=1,
            memory=memory,
            on_error="skip",
            decode={"mode": "bytes"} if encoded else decode,
        )
        for _ in range(2):
            for number, _batch in enumerate(loader):
                if number == 1000:
                    break
        loader.close()
    except feedline.SpecError:
        # The bomb was not even looked at.
        raise
    except (feedline.Error, OSError) as error:
        print(f"{type(error).__name__}: {str(error)[:300]}")


def main() -> None:
    job, name, folder, *memory = sys.argv[1:]
    if name == "nothing":
        import feedline

        assert feedline.Loader
        return
    file, decode, maker = MAKERS[name]
    path = Path(folder) / "class" / file
    if job == "make":
        path.parent.mkdir(parents=True)
        maker(path)
        if path.suffix in IMAGES:
            from PIL import Image

            # A good one beside it, so that there is a sample to load.
            Image.new("RGB", (8, 8), (200, 10, 10)).save(path.with_name("good.png"))
    else:
        load(path, decode, *memory)


if __name__ == "__main__":
    main()
