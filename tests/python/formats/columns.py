"""What the tests of tables share: rows as a Loader gives them, and columns of all kinds."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pyarrow as pa
from conftest import picture
from PIL import Image

ROWS = 50


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(number)).save(file, "PNG")
    return file.getvalue()


def rows(path: Path, kind: str, fields: Any = None, **options: Any) -> dict[str, list[Any]]:
    """All rows of a table by field, in order."""
    source: dict[str, Any] = {"kind": kind, "path": str(path)}
    if fields is not None:
        source["fields"] = fields
    found: dict[str, list[Any]] = {}
    for batch in feedline.Loader(source, batch_size=7, num_workers=2, **options):
        for name, values in batch.items():
            found.setdefault(name, []).extend(values)
    return found


def same(found: list[Any], expected: list[Any]) -> None:
    """Compares rows with what pyarrow says of them."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, bytes):
            assert bytes(np.asarray(one)) == other
        elif isinstance(other, str):
            assert one == other
        elif np.size(other) == 0:
            # Lists without elements do not say how long their other axes would be.
            assert np.size(one) == 0
        else:
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def image_type() -> pa.DataType:
    return pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def table() -> pa.Table:
    """Columns of all kinds that are read."""
    random = np.random.default_rng(5)
    number = range(ROWS)
    pictures = [{"bytes": png(n), "path": f"é{n}.png"} for n in number]
    matrix = pa.FixedSizeListArray.from_arrays(pa.array(random.integers(0, 255, ROWS * 6).astype("u1")), 3)
    return pa.table(
        {
            "image": pa.array(pictures, image_type()),
            "label": pa.array(random.integers(0, 9, ROWS)),
            "small": pa.array(random.integers(-100, 100, ROWS), pa.int8()),
            "half": pa.array(random.random(ROWS).astype("f2")),
            "score": pa.array(random.random(ROWS).astype("f4")),
            "wide": pa.array(random.random(ROWS)),
            "truth": pa.array(random.integers(0, 2, ROWS).astype(bool)),
            "text": pa.array([f"täxt {n % 7}" * (n % 3) for n in number]),
            "large_text": pa.array([f"y{n}" for n in number], pa.large_string()),
            "blob": pa.array([random.bytes(n % 5 * 11) for n in number]),
            "large_blob": pa.array([random.bytes(n % 4) for n in number], pa.large_binary()),
            "fixed_blob": pa.array([random.bytes(5) for _ in number], pa.binary(5)),
            "kind": pa.array([f"class {n % 5}" for n in number]).dictionary_encode(),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(random.random(ROWS * 4).astype("f4")), 4),
            "matrix": pa.FixedSizeListArray.from_arrays(matrix, 2),
            "words": pa.array([list(range(n % 4)) for n in number], pa.list_(pa.int32())),
            "boxes": pa.array(
                [[[1.5 * n, 2.0]] * (n % 3 + 1) for n in number], pa.list_(pa.list_(pa.float32()))
            ),
        }
    )


def check(found: dict[str, list[Any]], expected: pa.Table) -> None:
    """Compares all columns; images are compared as pixels."""
    assert sorted(found) == sorted(expected.column_names)
    for name in expected.column_names:
        if name == "image":
            same(found[name], [picture(n).transpose(2, 0, 1) for n in range(expected.num_rows)])
        else:
            same(found[name], expected.column(name).to_pylist())


KINDS: dict[str, Any] = {
    "image": "image",
    "label": "int64",
    "text": "text",
    "blob": "bytes",
    "matrix": ("float32", (2, 3)),
    "truth": ("bool", (3,)),
    "words": ("int32", (None,)),
    "boxes": ("float32", (None, 4)),
}


def sample(n: int) -> dict[str, Any]:
    return {
        "image": png(n),
        "label": n,
        "text": "ü" * (n % 3),
        "blob": bytes([n]) * (n % 4),
        "matrix": np.arange(6, dtype="f4").reshape(2, 3) + n,
        "truth": np.array([n % 2, 1, 0], bool),
        "words": np.arange(n % 4, dtype="i4"),
        "boxes": np.full((n % 3, 4), n, "f4"),
    }


def check_written(found: pa.Table) -> None:
    """Compares a table of 20 samples of ours, as pyarrow reads it, with what was written."""
    assert found.num_rows == 20
    assert found.schema.field("image").type == image_type()
    for n, row in enumerate(found.to_pylist()):
        expected = sample(n)
        assert row["image"] == {"bytes": expected.pop("image"), "path": f"é{n}"}
        for name, value in expected.items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(np.array(row[name], value.dtype).reshape(value.shape), value)
            else:
                assert row[name] == value


def check_back(found: dict[str, list[Any]]) -> None:
    """Compares them as we read them."""
    for name in ("label", "text", "blob", "matrix", "truth", "words", "boxes"):
        same(found[name], [sample(n)[name] for n in range(20)])
