"""NumPy's own files: what `numpy.save` and its kin write is read as rows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest

FIELDS: Any = {"x": ("int16", (2, 3)), "label": "int64", "t": "text", "r": ("float32", (None, 2))}
DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def load(source: Any, **more: Any) -> Any:
    """All samples in one batch."""
    return next(iter(feedline.Loader(source, batch_size=1000, **more)))


def refused(source: Any) -> str:
    with pytest.raises(feedline.SourceError) as caught:
        feedline.Loader(source)
    return str(caught.value)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(tmp_path: Path, dtype: str, order: str) -> None:
    array = np.arange(24).reshape(6, 4).astype(np.dtype(dtype).newbyteorder(order))
    np.save(tmp_path / "x.npy", array)
    batch = load(tmp_path / "x.npy")
    assert batch.keys() == ("x",)
    assert batch["x"].dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(batch["x"], array)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 4), (5, 2, 3, 2)])
def test_fortran_order(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.asfortranarray(np.arange(np.prod(shape)).reshape(shape))
    np.save(tmp_path / "x.npy", array)
    np.testing.assert_array_equal(load(tmp_path / "x.npy")["x"], array)
    np.savez_compressed(tmp_path / "x.npz", x=array)
    np.testing.assert_array_equal(load(tmp_path / "x.npz")["x"], array)


def test_versions_of_the_header(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32)
    for version in [(1, 0), (2, 0), (3, 0)]:
        with (tmp_path / "x.npy").open("wb") as file:
            np.lib.format.write_array(file, array, version=version)
        np.testing.assert_array_equal(load(tmp_path / "x.npy")["x"], array)


def test_texts_and_records(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array(["a", "bcd", "äöü", ""]))
    assert list(load(tmp_path / "t.npy")["t"]) == ["a", "bcd", "äöü", ""]
    np.save(tmp_path / "s.npy", np.array([b"a", b"bcd"]))
    assert list(load(tmp_path / "s.npy")["s"]) == ["a", "bcd"]
    records = np.zeros(5, dtype=np.dtype([("a", "i1"), ("x", ">f4", (2, 3)), ("n", "U3")], align=True))
    records["a"] = np.arange(5)
    records["x"] = np.arange(30).reshape(5, 2, 3)
    records["n"] = ["x", "yy", "zzz", "", "w"]
    np.save(tmp_path / "r.npy", records)
    batch = load(tmp_path / "r.npy")
    assert batch.keys() == ("a", "x", "n")
    np.testing.assert_array_equal(batch["a"], records["a"])
    np.testing.assert_array_equal(batch["x"], records["x"])
    assert list(batch["n"]) == records["n"].tolist()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives(tmp_path: Path, save: Any) -> None:
    x, y = np.random.default_rng(0).random((7, 3)), np.arange(7)
    save(tmp_path / "a.npz", x=x, y=y, note=np.array(5))
    batch = load(tmp_path / "a.npz")
    np.testing.assert_array_equal(batch["x"], x)
    np.testing.assert_array_equal(batch["y"], y)
    batch = load({"kind": "npy", "path": tmp_path / "a.npz", "fields": {"label": "y"}})
    assert batch.keys() == ("label",)
    save(tmp_path / "b.npz", a=x, b=y[:3])
    assert "name them with fields" in refused(tmp_path / "b.npz")


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "fields").mkdir()
    np.save(tmp_path / "fields" / "x.npy", np.arange(6).reshape(3, 2))
    np.save(tmp_path / "fields" / "y.npy", np.arange(3))
    batch = load(tmp_path / "fields")
    assert batch.keys() == ("x", "y")
    for shard in range(3):
        np.save(tmp_path / f"x-{shard:03}.npy", np.arange(shard * 4, shard * 4 + 4))
    np.testing.assert_array_equal(load(tmp_path / "x-{000..002}.npy")["x"], np.arange(12))
    np.testing.assert_array_equal(load(tmp_path / "x-*.npy")["x"], np.arange(12))


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    assert "pickle" in refused(path)
    np.save(path, np.array(5))
    assert "has no axis" in refused(path)
    np.save(path, np.zeros((0, 3)))
    assert "has no samples" in refused(path)
    np.save(path, np.zeros(3, dtype=np.complex64))
    assert "cannot be in a batch" in refused(path)
    np.save(path, np.zeros(3, dtype="datetime64[ns]"))
    assert "cannot be in a batch" in refused(path)
    np.save(path, np.arange(100))
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut short" in refused(path)


def test_what_feedline_writes_numpy_reads(tmp_path: Path) -> None:
    texts = ["one", "zwei", ""]
    parts = [np.arange(n, dtype=np.float32).reshape(-1, 2) for n in (2, 4, 0)]
    with feedline.Writer(tmp_path / "set.npy", FIELDS) as writer:
        for n in range(3):
            writer.write({"x": np.full((2, 3), n, np.int16), "label": n, "t": texts[n], "r": parts[n]})
    folder = next(path.parent for path in tmp_path.rglob("x.npy"))
    np.testing.assert_array_equal(np.load(folder / "x.npy", mmap_mode="r")[:, 0, 0], np.arange(3))
    np.testing.assert_array_equal(np.load(folder / "label.npy"), np.arange(3))
    ends = np.load(folder / "t.offsets.npy")
    whole = np.load(folder / "t.text.npy").tobytes()
    assert [whole[a:b].decode() for a, b in itertools.pairwise(ends)] == texts
    batch = load(tmp_path / "set.npy")
    assert list(batch["t"]) == texts
    for made, given in zip(batch["r"], parts, strict=True):
        np.testing.assert_array_equal(made, given)
