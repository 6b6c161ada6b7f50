"""`feedline.Writer`: samples of a program, in files that feedline and others read."""

from __future__ import annotations

import io
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
