"""Zarr in both directions: what zarr-python writes is read, what is written it reads."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import feedline
import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs as codecs

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def load(source: Any, **more: Any) -> Any:
    """All samples in one batch."""
    return next(iter(feedline.Loader(source, batch_size=1000, **more)))


def refused(source: Any) -> str:
    with pytest.raises(feedline.SourceError) as caught:
        feedline.Loader(source)
    return str(caught.value)


@pytest.fixture(params=[2, 3])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def made(path: Path, array: Any, version: int, **options: Any) -> None:
    target = zarr.create_array(path, shape=array.shape, dtype=array.dtype, zarr_format=version, **options)
    target[...] = array


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(tmp_path: Path, dtype: str, order: str, version: int) -> None:
    array = np.arange(24).reshape(6, 4).astype(np.dtype(dtype).newbyteorder(order))
    made(tmp_path / "x.zarr", array, version, chunks=(4, 3))
    batch = load(tmp_path / "x.zarr")
    assert batch.keys() == ("x",)
    assert batch["x"].dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(batch["x"], array)


V3: dict[str, Any] = {
    "none": None,
    "zstd": codecs.ZstdCodec(),
    "zstd checked": codecs.ZstdCodec(checksum=True),
    "gzip": codecs.GzipCodec(),
    "crc32c": [codecs.GzipCodec(), codecs.Crc32cCodec()],
    **{
        f"blosc {name} {shuffle}": codecs.BloscCodec(cname=name, shuffle=shuffle, typesize=4)
        for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    },
}


def numbers() -> Any:
    rng = np.random.default_rng(0)
    array = np.cumsum(rng.integers(0, 3, (11, 40, 30)), axis=1).astype(np.int32)
    array[4:] = rng.integers(0, 1 << 30, array[4:].shape)
    return array


@pytest.mark.parametrize("chunks", [(3, 40, 30), (3, 17, 8), (20, 40, 30)])
@pytest.mark.parametrize("codec", V3)
def test_codecs_of_version_3(tmp_path: Path, codec: str, chunks: tuple[int, ...]) -> None:
    array = numbers()
    made(tmp_path / "x.zarr", array, 3, chunks=chunks, compressors=V3[codec])
    np.testing.assert_array_equal(load(tmp_path / "x.zarr")["x"], array)


V2: dict[str, Any] = {
    "none": None,
    "zlib": numcodecs.Zlib(),
    "gzip": numcodecs.GZip(),
    "zstd": numcodecs.Zstd(),
    "lz4": numcodecs.LZ4(),
    "blosc": numcodecs.Blosc(),
    "blosc bits": numcodecs.Blosc("zstd", shuffle=2),
}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("codec", V2)
def test_codecs_of_version_2(tmp_path: Path, codec: str, order: str) -> None:
    array = numbers()
    options = {
        "compressors": V2[codec],
        "order": order,
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    }
    made(tmp_path / "x.zarr", array, 2, chunks=(3, 17, 30), **options)
    np.testing.assert_array_equal(load(tmp_path / "x.zarr")["x"], array)
    made(tmp_path / "y.zarr", array, 2, chunks=(3, 40, 30), compressors=V2[codec], order=order)
    np.testing.assert_array_equal(load(tmp_path / "y.zarr")["y"], array)


@pytest.mark.parametrize("place", ["start", "end"])
def test_shards(tmp_path: Path, place: str) -> None:
    array = numbers()
    shards = {"shape": (4, 40, 32), "index_location": place}
    made(tmp_path / "x.zarr", array, 3, chunks=(2, 10, 8), shards=shards)
    np.testing.assert_array_equal(load(tmp_path / "x.zarr")["x"], array)
    made(tmp_path / "y.zarr", array, 3, chunks=(1, 40, 30), shards=(5, 40, 30), compressors=None)
    np.testing.assert_array_equal(load(tmp_path / "y.zarr")["y"], array)


def test_transposed(tmp_path: Path) -> None:
    array = numbers()
    made(tmp_path / "x.zarr", array, 3, chunks=(3, 7, 30), filters=[codecs.TransposeCodec(order=(2, 0, 1))])
    np.testing.assert_array_equal(load(tmp_path / "x.zarr")["x"], array)


def test_groups_and_missing_chunks(tmp_path: Path, version: int) -> None:
    group = zarr.create_group(tmp_path / "g.zarr", zarr_format=version)
    group.create_array("x", shape=(10, 3), dtype="f4", chunks=(4, 3), fill_value=float("nan"))[2:6] = 1
    group.create_array("n", shape=(10,), dtype=">i2", chunks=(3,), fill_value=-2)[:3] = 5
    group.create_group("deep").create_array("y", shape=(10,), dtype="i8", chunks=(10,))[:] = np.arange(10)
    group.create_array("mean", shape=(3,), dtype="f4")[:] = 0
    batch = load(tmp_path / "g.zarr")
    assert set(batch.keys()) == {"x", "n", "deep/y"}
    np.testing.assert_array_equal(batch["x"], group["x"][:])
    np.testing.assert_array_equal(batch["n"], group["n"][:])
    np.testing.assert_array_equal(batch["deep/y"], np.arange(10))
    batch = load({"kind": "zarr", "path": tmp_path / "g.zarr", "fields": {"a": "n", "b": "deep/y"}})
    assert batch.keys() == ("a", "b")
    with pytest.raises(feedline.SourceError, match="has no array"):
        feedline.Loader({"kind": "zarr", "path": tmp_path / "g.zarr", "fields": {"a": "../x"}})


@pytest.mark.filterwarnings("ignore")
def test_texts(tmp_path: Path, version: int) -> None:
    texts = np.array(["one", "zwei", "", "drei é"] * 5)
    made(tmp_path / "u.zarr", texts, version, chunks=(6,))
    assert list(load(tmp_path / "u.zarr")["u"]) == texts.tolist()
    target = zarr.create_array(tmp_path / "s.zarr", shape=(20,), dtype=str, chunks=(6,), zarr_format=version)
    target[:] = texts.astype(object)
    assert list(load(tmp_path / "s.zarr")["s"]) == texts.tolist()


def test_what_is_refused(tmp_path: Path, version: int) -> None:
    made(tmp_path / "x.zarr", np.zeros(3, np.complex64), version)
    assert "cannot be in a batch" in refused(tmp_path / "x.zarr")
    shutil.rmtree(tmp_path / "x.zarr")
    zarr.create_array(
        tmp_path / "x.zarr",
        shape=(1 << 20, 1 << 20),
        dtype="f8",
        chunks=(1 << 20, 1 << 10),
        zarr_format=version,
    )
    assert "fewer rows in a chunk" in refused(tmp_path / "x.zarr")
    (tmp_path / "empty.zarr").mkdir()
    assert "no Zarr" in refused({"kind": "zarr", "path": tmp_path / "empty.zarr"})


@pytest.mark.parametrize("compression", [None, "zstd", "gzip", "none"])
def test_what_feedline_writes_zarr_reads(tmp_path: Path, compression: str | None) -> None:
    rows = np.random.default_rng(0).random((300, 3)).astype(np.float32)
    texts = [f"text {n} é" * (n % 4) for n in range(300)]
    parts = [np.arange(n % 5 * 2, dtype=np.int16).reshape(-1, 2) for n in range(300)]
    options: dict[str, Any] = {} if compression is None else {"compression": compression}
    fields: Any = {
        "x": ("float32", (3,)),
        "label": "int64",
        "t": "text",
        "r": ("int16", (None, 2)),
        "f": "bool",
    }
    with feedline.Writer(tmp_path / "set.zarr", fields, **options) as writer:
        for n in range(300):
            writer.write({"x": rows[n], "label": n, "t": texts[n], "r": parts[n], "f": n % 2 == 0})
    path = tmp_path / "set.zarr"
    group = zarr.open_group(path, mode="r")
    np.testing.assert_array_equal(group["x"][:], rows)
    np.testing.assert_array_equal(group["label"][:], np.arange(300))
    ends, whole = group["t_offsets"][:], group["t"][:].tobytes()
    assert [whole[a:b].decode() for a, b in itertools.pairwise(ends)] == texts
    batch = load(path)
    np.testing.assert_array_equal(batch["x"], rows)
    assert list(batch["t"]) == texts
    for found, given in zip(batch["r"], parts, strict=True):
        np.testing.assert_array_equal(found, given)
