"""`feedline.Writer`: samples of a program, in files that feedline and others read."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import picture
from PIL import Image

FIELDS: dict[str, Any] = {
    "image": "image",
    "label": "int64",
    "emb": ("float32", (8,)),
    "text": "text",
    "points": ("float32", (None, 2)),
}


def jpeg(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture(number)).save(buffer, "PNG")
    return buffer.getvalue()


def sample(number: int) -> dict[str, Any]:
    return {
        "image": jpeg(number),
        "label": number % 3,
        "emb": np.arange(8, dtype=np.float32) + number,
        "text": f"number {number} ü",
        "points": np.full((number % 4 + 1, 2), number, np.float32),
    }


@pytest.mark.parametrize("ending", ["tar", "tfrecord", "lmdb", "parquet", "arrow", "tar.gz"])
def test_what_is_written_is_loaded(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    fields = {name: kind for name, kind in FIELDS.items() if name != "points"}
    with feedline.Writer(path, fields=fields) as writer:
        for number in range(20):
            writer.write({name: value for name, value in sample(number).items() if name in fields})
        assert not path.exists()
        assert writer.samples == 20
    assert writer.files == [path]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]
    (batch,) = feedline.Loader(path, batch_size=20)
    np.testing.assert_array_equal(np.asarray(batch["label"]), np.arange(20) % 3)
    for number in range(20):
        np.testing.assert_array_equal(np.asarray(batch["image"])[number].transpose(1, 2, 0), picture(number))
        emb = np.asarray(batch["emb"][number])
        np.testing.assert_array_equal(emb, np.arange(8, dtype=np.float32) + number)
        assert batch["text"][number] == f"number {number} ü"


@pytest.mark.parametrize("ending", ["tar", "lmdb", "parquet", "arrow"])
def test_arrays_of_different_shapes(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    with feedline.Writer(path, fields={"points": ("float32", (None, 2)), "label": "int64"}) as writer:
        for number in range(9):
            writer.write({"points": sample(number)["points"], "label": number})
    (batch,) = feedline.Loader(path, batch_size=9)
    for number in range(9):
        np.testing.assert_array_equal(np.asarray(batch["points"][number]), sample(number)["points"])


def test_shards(tmp_path: Path) -> None:
    with feedline.Writer(tmp_path / "a-{0000..}.tar", shard_samples=3) as writer:
        for number in range(7):
            writer.write({"image": jpeg(number), "label": number})
    assert [path.name for path in writer.files] == ["a-0000.tar", "a-0001.tar", "a-0002.tar"]
    with feedline.Writer(tmp_path / "b.tar", shard_size=3000) as writer:
        for number in range(7):
            writer.write({"image": jpeg(number), "label": number})
    assert len(writer.files) > 1 and writer.files[0].name == "b-000000.tar"
    (batch,) = feedline.Loader(str(tmp_path / "b-*.tar"), batch_size=7)
    np.testing.assert_array_equal(np.asarray(batch["label"]), np.arange(7))


def test_an_exception_or_a_dropped_writer_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), feedline.Writer(tmp_path / "out.tar") as writer:
        writer.write({"label": 1})
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    writer = feedline.Writer(tmp_path / "out.tar")
    writer.write({"label": 1})
    del writer
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out.tar").write_bytes(b"mine")
    with pytest.raises(feedline.SourceError, match="is there already"):
        feedline.Writer(tmp_path / "out.tar")
    assert (tmp_path / "out.tar").read_bytes() == b"mine"


def test_mistakes_are_named_and_do_no_harm(tmp_path: Path) -> None:
    with feedline.Writer(tmp_path / "out.tar", fields=FIELDS) as writer:
        for change, error in [
            ({"emb": np.zeros(7, np.float32)}, r'"emb" is an array of float32 of shape \[7\]'),
            ({"emb": np.zeros(8, np.complex64)}, "complex64"),
            ({"label": 1.5}, '"label" is 1.5'),
            ({"label": "x"}, '"label" is text'),
            ({"image": b""}, "without any bytes"),
            ({"image": Image.new("RGB", (2, 2))}, "Pillow"),
            ({"other": 1}, "not declared"),
            ({"text": object()}, "is a object"),
        ]:
            with pytest.raises((feedline.SourceError, TypeError), match=error):
                writer.write({**sample(0), **change})
        with pytest.raises(feedline.SourceError, match='no field "text"'):
            writer.write({name: value for name, value in sample(0).items() if name != "text"})
        writer.write(sample(0), key="one")
        with pytest.raises(feedline.SourceError, match="was there before"):
            writer.write(sample(1), key="one")
        writer.write(sample(1), key="two")
    for wrong in ({"x": "int65"}, {"x": ("float32", (-1,))}, {"x": 3}):
        with pytest.raises(feedline.SpecError, match="fields"):
            feedline.Writer(tmp_path / "b.tar", fields=wrong)  # type: ignore[arg-type]
    with pytest.raises(feedline.SourceError, match="ending"):
        feedline.Writer(tmp_path / "b.unknown")
    with pytest.raises(feedline.SpecError, match="format"):
        feedline.Writer(tmp_path / "b", format="pickle")
    with pytest.raises(feedline.SourceError, match="no sample"), feedline.Writer(tmp_path / "c.tar"):
        pass
    with pytest.raises(feedline.SourceError, match="is closed"):
        writer.write(sample(2))


def test_numbers_are_stored_as_they_are_or_refused(tmp_path: Path) -> None:
    wrong: list[tuple[Any, Any]] = [
        (("int8", (2,)), np.array([1, 300])),
        (("uint8", (2,)), np.array([1, -1])),
        (("uint64", (2,)), np.array([1, -1])),
        (("int64", (1,)), np.array([2**63], np.uint64)),
        (("bool", (2,)), np.array([0, 2])),
        (("uint8", (2,)), [1, 256]),
        (("float16", (2,)), np.array([1.0, 1e6])),
        (("float32", (2,)), np.array([1.0, 1e300])),
        (("float16", (1,)), np.array([70000])),
        ("float32", 1e300),
        ("float16", np.float32(1e30)),
        ("int64", 2**63),
        ("uint64", 2**64),
        ("uint64", -1),
        ("int8", np.int64(300)),
        ("int8", np.array(300)),
    ]
    for number, (kind, value) in enumerate(wrong):
        with feedline.Writer(tmp_path / f"{number}.tar", fields={"x": kind}) as writer:
            with pytest.raises((feedline.SourceError, feedline.SpecError), match="is no"):
                writer.write({"x": value})
            writer.write({"x": np.zeros_like(np.asarray(value), shape=np.shape(value)).tolist()})
    right: list[tuple[Any, Any]] = [
        (("int8", (2,)), np.array([-128, 127])),
        (("uint8", (2,)), [0, 255]),
        (("bool", (2,)), np.array([0, 1])),
        (("float32", (3,)), np.array([1.5, np.inf, np.nan])),
        (("float32", (2,)), np.array([1, 2])),
        (("uint64", (1,)), np.array([2**63 + 1], np.uint64)),
        ("uint64", 2**63 + 1),
        ("uint64", np.uint64(2**64 - 1)),
    ]
    for number, (kind, value) in enumerate(right):
        path = tmp_path / f"right-{number}.arrow"
        with feedline.Writer(path, fields={"x": kind}) as writer:
            writer.write({"x": value})
        (batch,) = feedline.Loader(path, batch_size=1)
        got = np.asarray(batch["x"])[0]
        assert got.dtype == (kind if isinstance(kind, str) else kind[0])
        np.testing.assert_array_equal(got, np.asarray(value).astype(got.dtype))


def test_bfloat16(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2.0, 1e30], ml_dtypes.bfloat16)
    for number, fields in enumerate([None, {"x": ("bfloat16", (3,))}, {"x": ("float32", (3,))}]):
        path = tmp_path / f"{number}.tar"
        try:
            with feedline.Writer(path, fields=fields) as writer:
                writer.write({"x": array})
        except (feedline.SourceError, feedline.SpecError) as error:
            assert "bfloat16" in str(error)
            continue
        (batch,) = feedline.Loader(path, batch_size=1)
        np.testing.assert_array_equal(np.asarray(batch["x"])[0].astype(np.float32), array.astype(np.float32))


def test_the_number_of_samples_is_known_once_closed(tmp_path: Path) -> None:
    with feedline.Writer(tmp_path / "out.tar") as writer:
        for number in range(3):
            writer.write({"label": number})
    assert writer.samples == 3


def test_a_fork_that_drops_its_copy_does_no_harm(tmp_path: Path) -> None:
    writer = feedline.Writer(tmp_path / "out.tar")
    writer.write({"label": 1})
    child = os.fork()
    if child == 0:
        del writer
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.write({"label": 2})
    writer.close()
    (batch,) = feedline.Loader(tmp_path / "out.tar", batch_size=2)
    np.testing.assert_array_equal(np.asarray(batch["label"]), [1, 2])
