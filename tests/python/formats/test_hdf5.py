"""HDF5 in both directions: what h5py writes is read, what is written h5py reads."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import feedline
import h5py
import numpy as np
import pytest
from PIL import Image

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def load(source: Any, **more: Any) -> Any:
    """All samples in one batch."""
    return next(iter(feedline.Loader(source, batch_size=1000, **more)))


def refused(source: Any) -> str:
    with pytest.raises(feedline.SourceError) as caught:
        feedline.Loader(source)
    return str(caught.value)


@pytest.fixture(params=["earliest", "latest"])
def libver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(tmp_path: Path, dtype: str, order: str, libver: str) -> None:
    array = np.arange(24).reshape(6, 4).astype(np.dtype(dtype).newbyteorder(order))
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        file["x"] = array
        file.create_dataset("packed", data=array, chunks=(4, 3), compression="gzip", shuffle=True)
    batch = load(tmp_path / "x.h5")
    assert batch["x"].dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(batch["x"], array)
    np.testing.assert_array_equal(batch["packed"], array)


LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "one chunk": {"chunks": (11, 4, 3)},
    "whole rows": {"chunks": (3, 4, 3)},
    "parts of rows": {"chunks": (3, 2, 2)},
    "growing": {"chunks": (2, 4, 3), "maxshape": (None, 4, 3)},
    "growing twice": {"chunks": (2, 3, 3), "maxshape": (None, None, 3)},
    "gzip": {"chunks": (3, 4, 3), "compression": "gzip"},
    "gzip shuffle": {"chunks": (3, 4, 3), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (3, 4, 3), "compression": "lzf"},
    "lzf shuffle parts": {"chunks": (3, 2, 3), "compression": "lzf", "shuffle": True},
    "fletcher32": {"chunks": (3, 4, 3), "fletcher32": True},
    "all": {
        "chunks": (3, 3, 3),
        "compression": "gzip",
        "shuffle": True,
        "fletcher32": True,
        "maxshape": (None, 4, None),
    },
    "scaleoffset": {"chunks": (3, 4, 3), "scaleoffset": 0},
    "gzip growing": {"chunks": (1, 4, 3), "compression": "gzip", "maxshape": (None, 4, 3)},
    "gzip one chunk": {"chunks": (11, 4, 3), "compression": "gzip"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(tmp_path: Path, layout: str, libver: str) -> None:
    array = np.random.default_rng(0).integers(0, 50, (11, 4, 3)).astype(np.int32)
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        file.create_dataset("x", data=array, **LAYOUTS[layout])
    np.testing.assert_array_equal(load(tmp_path / "x.h5")["x"], array)


def test_many_chunks_and_many_datasets(tmp_path: Path, libver: str) -> None:
    array = np.arange(3000, dtype=np.float64).reshape(1000, 3)
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        for number in range(12):
            options: dict[str, Any] = {"maxshape": (None, 3)} if number % 2 else {}
            file.create_dataset(
                f"d{number}", data=array + number, chunks=(1, 3), compression="gzip", **options
            )
    batch = load(tmp_path / "x.h5", shuffle=True)
    rows = (batch["d0"][:, 0] / 3).astype(int)
    assert sorted(rows) == list(range(1000))
    for number in range(12):
        np.testing.assert_array_equal(batch[f"d{number}"], array[rows] + number)


def test_texts_and_lists(tmp_path: Path, libver: str) -> None:
    texts = ["one", "zwei", "", "drei é"] * 50
    lists = [np.arange(n % 7, dtype=np.float32) for n in range(200)]
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        file.create_dataset("text", data=texts, dtype=h5py.string_dtype())
        file.create_dataset("packed", data=texts, dtype=h5py.string_dtype(), chunks=(16,), compression="gzip")
        file.create_dataset("fixed", data=np.array([text.encode() for text in texts]))
        made = file.create_dataset("list", (200,), dtype=h5py.vlen_dtype(np.dtype("f4")))
        for number, row in enumerate(lists):
            made[number] = row
        file.create_dataset("number", data=3.5)
        file.create_dataset("nothing", data=h5py.Empty("f4"))
    batch = load(tmp_path / "x.h5")
    assert list(batch["text"]) == list(batch["packed"]) == list(batch["fixed"]) == texts
    for found, given in zip(batch["list"], lists, strict=True):
        np.testing.assert_array_equal(found, given)
    assert set(batch.keys()) == {"text", "packed", "fixed", "list"}


def test_encoded_images(tmp_path: Path, libver: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        images = file.create_dataset("jpegs", (5,), dtype=h5py.vlen_dtype(np.uint8))
        for number in range(5):
            stream = io.BytesIO()
            Image.new("RGB", (8 + number, 8), (number * 40, 0, 0)).save(stream, "png")
            images[number] = np.frombuffer(stream.getvalue(), np.uint8)
        file["label"] = np.arange(5)
    transforms = [{"op": "CenterCrop", "size": 8}]
    batch = load(tmp_path / "x.h5", transforms=transforms)
    assert set(batch.keys()) == {"image", "label"}
    np.testing.assert_array_equal(batch["image"][:, 0, 4, 4], np.arange(5) * 40)


def test_groups_choices_and_missing_chunks(tmp_path: Path, libver: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        file["deep/er/x"] = np.arange(5)
        file["y"] = np.arange(5) * 2
        file["mean"] = np.zeros(3)
        file["again"] = h5py.SoftLink("/y")
        file["deep/loop"] = h5py.SoftLink("/deep")
        sparse = file.create_dataset("sparse", (5, 2), "i4", chunks=(2, 2), fillvalue=7)
        sparse[2:4] = 1
        file.create_dataset("never", (5,), "f4", fillvalue=2.5)
    batch = load(tmp_path / "x.h5")
    np.testing.assert_array_equal(batch["deep/er/x"], np.arange(5))
    np.testing.assert_array_equal(batch["again"], batch["y"])
    np.testing.assert_array_equal(batch["sparse"][:, 0], [7, 7, 1, 1, 7])
    np.testing.assert_array_equal(batch["never"], np.full(5, 2.5, np.float32))
    fields = {"a": "deep/er/x", "b": "/y"}
    batch = load({"kind": "hdf5", "path": tmp_path / "x.h5", "fields": fields})
    assert batch.keys() == ("a", "b")
    wrong = {"kind": "hdf5", "path": tmp_path / "x.h5", "fields": {"a": "y", "b": "mean"}}
    assert "5 samples" in refused(wrong)
    assert "has no dataset" in refused({"kind": "hdf5", "path": tmp_path / "x.h5", "fields": ["z"]})


def test_records_and_a_user_block(tmp_path: Path, libver: str) -> None:
    records = np.zeros(6, dtype=[("a", "i2"), ("v", "f4", (3,))])
    records["a"], records["v"] = np.arange(6), np.arange(18).reshape(6, 3)
    with h5py.File(tmp_path / "x.h5", "w", libver=libver, userblock_size=512) as file:
        file["r"] = records
        file.create_dataset("p", data=records, chunks=(4,), compression="gzip")
    batch = load(tmp_path / "x.h5")
    for name in ("r", "p"):
        np.testing.assert_array_equal(batch[f"{name}.a"], records["a"])
        np.testing.assert_array_equal(batch[f"{name}.v"], records["v"])


def test_shards(tmp_path: Path) -> None:
    for shard in range(3):
        with h5py.File(tmp_path / f"s{shard}.h5", "w") as file:
            file["x"] = np.arange(shard * 10, shard * 10 + 5 + shard)
    found = load(tmp_path / "s*.h5")["x"]
    np.testing.assert_array_equal(found, [*range(5), *range(10, 16), *range(20, 27)])


def test_what_is_refused(tmp_path: Path, libver: str) -> None:
    path = tmp_path / "x.h5"

    def write(name: str, make: Any) -> str:
        with h5py.File(path, "w", libver=libver) as file:
            file["x"] = np.arange(5)
            make(file)
        return refused({"kind": "hdf5", "path": path, "fields": [name]} if name else path)

    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(5)

    def link(file: Any) -> None:
        file["y"] = h5py.ExternalLink("other.h5", "/x")

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout(shape=(5,), dtype="i8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "x", shape=(5,))
        file.create_virtual_dataset("y", layout)

    def outside(file: Any) -> None:
        file.create_dataset("y", (5,), "i8", external=[(str(tmp_path / "raw"), 0, 40)])

    assert "leads out of the file" in write("", link)
    assert "virtual" in write("", virtual)
    assert "external storage" in write("y", outside)
    assert "external storage" in write("", outside)
    with h5py.File(path, "w", libver=libver) as file:
        file["x"] = 5
    assert "no arrays" in refused(path)
    with h5py.File(path, "w", libver=libver) as file:
        file["x"] = np.zeros((0, 4))
    assert "has no samples" in refused(path)
    with h5py.File(path, "w", libver=libver) as file:
        file["a"], file["b"] = np.zeros(4), np.zeros(5)
    assert "name them with fields" in refused(path)
    with h5py.File(path, "w", libver=libver) as file:
        file["x"] = np.arange(100000)
    path.write_bytes(path.read_bytes()[:200000])
    assert "x.h5" in refused(path)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_what_feedline_writes_h5py_reads(tmp_path: Path, compression: str | None) -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((700, 3)).astype(np.float32)
    texts = [f"text {n} é" * (n % 4) for n in range(700)]
    blobs = [bytes([1, 2, n % 256]) * (n % 5) for n in range(700)]
    parts = [np.arange(n % 5 * 2, dtype=np.int16).reshape(-1, 2) for n in range(700)]
    options: dict[str, Any] = {} if compression is None else {"compression": compression}
    fields: Any = {"x": ("float32", (3,)), "h": "float16", "label": "int64", "t": "text", "b": "bytes"}
    fields |= {"r": ("int16", (None, 2)), "f": "bool"}
    with feedline.Writer(tmp_path / "set.h5", fields, **options) as writer:
        for n in range(700):
            writer.write(
                {
                    "x": rows[n],
                    "h": np.float16(n),
                    "label": n,
                    "t": texts[n],
                    "b": blobs[n],
                    "r": parts[n],
                    "f": n % 2 == 0,
                }
            )
    path = tmp_path / "set.h5"
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["x"], rows)
        np.testing.assert_array_equal(file["label"], np.arange(700))
        assert file["h"].dtype == np.float16
        assert file["f"].dtype == np.bool_
        assert file["t"].asstr()[:].tolist() == texts
        assert [row.tobytes() for row in file["b"][:]] == blobs
    batch = load(path)
    np.testing.assert_array_equal(batch["x"], rows)
    assert list(batch["t"]) == texts
    assert [np.asarray(row).tobytes() for row in batch["b"]] == blobs
    for found, given in zip(batch["r"], parts, strict=True):
        np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_thousands_of_chunks_are_found(tmp_path: Path, compression: str | None) -> None:
    """More chunks than a tree of two levels leads to, and more values than a heap holds."""
    path = tmp_path / "set.h5"
    options: dict[str, Any] = {} if compression is None else {"compression": compression}
    fields: Any = {"x": ("int32", (2,)), "t": "text", "none": ("uint8", (0,))}
    with feedline.Writer(path, fields, block_samples=1, **options) as writer:
        for n in range(5000):
            writer.write({"x": np.array([n, -n], np.int32), "t": str(n), "none": np.zeros(0, np.uint8)})
    numbers = np.arange(5000, dtype=np.int32)
    with h5py.File(path) as file:
        assert file["x"].chunks == (1, 2)
        np.testing.assert_array_equal(file["x"], np.stack([numbers, -numbers], axis=1))
        assert file["t"].asstr()[:].tolist() == [str(n) for n in range(5000)]
        assert file["none"].shape == (5000, 0)
    assert len(feedline.Loader(path, batch_size=1000)) == 5


def test_a_text_that_hdf5_cannot_hold_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(feedline.Error, match="a zero"),
        feedline.Writer(tmp_path / "set.h5", {"t": "text"}) as writer,
    ):
        writer.write({"t": "a\0b"})


def test_records_in_rows_are_refused(tmp_path: Path, libver: str) -> None:
    padded = np.dtype({"names": ["a"], "formats": ["f4"], "offsets": [0], "itemsize": 16})
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        file.create_dataset("x", (3, 2), padded)
    assert "records in rows of shape [2]" in refused(tmp_path / "x.h5")


def test_strings_may_be_bytes_unless_they_are_padded(tmp_path: Path, libver: str) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=libver) as file:
        # ASCII is all that the type allows; h5py writes any bytes.
        file.create_dataset("free", data=[b"\xffb"], dtype=h5py.string_dtype("ascii"))
        file.create_dataset("fixed", data=[b"ab"], dtype=h5py.string_dtype("ascii", 4))

    def chosen(column: str, role: str) -> dict[str, Any]:
        return {"kind": "hdf5", "path": path, "fields": {"x": {"column": column, "role": role}}}

    assert np.asarray(load(chosen("free", "bytes"))["x"][0]).tobytes() == b"\xffb"
    with pytest.raises(feedline.Error, match="UTF-8"):
        load(chosen("free", "text"))
    for role in ("bytes", "image"):
        assert "zeros at the end are lost" in refused(chosen("fixed", role))
    assert list(load(chosen("fixed", "text"))["x"]) == ["ab"]


def test_arrays_of_almost_the_same_length_are_reported(tmp_path: Path, libver: str) -> None:
    def write(path: Path, lengths: list[int]) -> Path:
        with h5py.File(path, "w", libver=libver) as file:
            for name, length in zip("abc", lengths, strict=True):
                file[name] = np.zeros(length, np.int32)
        return path

    problem = refused(write(tmp_path / "almost.h5", [20, 20, 19]))
    assert '"c"' in problem and "with fields" in problem
    for other in (1, 10, 1000):
        batch = load(write(tmp_path / f"{other}.h5", [20, 20, other]))
        assert sorted(batch.keys()) == ["a", "b"]


def test_many_files_keep_their_rows(tmp_path: Path, libver: str) -> None:
    for number in range(260):
        with h5py.File(tmp_path / f"{number:03}.h5", "w", libver=libver) as file:
            file.create_dataset("x", data=[number, -number], dtype="i4", chunks=(2,), compression="gzip")
    expected = np.stack([np.arange(260), -np.arange(260)], axis=1).reshape(-1)
    np.testing.assert_array_equal(load(tmp_path)["x"], expected)
