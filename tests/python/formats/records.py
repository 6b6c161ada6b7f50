"""What the tests of formats of records share."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import feedline
import numpy as np
from PIL import Image

Sample = dict[str, Any]

# Fields of every kind that the writers have.
FIELDS: dict[str, Any] = {
    "image": "image",
    "label": "int64",
    "score": "float32",
    "small": "uint8",
    "text": "text",
    "raw": "bytes",
    "ints": ("int64", (2, 3)),
    "floats": ("float32", (4,)),
    "wide": ("float64", (2, 2)),
    "tokens": ("int64", (None,)),
    "wave": ("float32", (None,)),
    "plane": ("float32", (None, 2)),
}


def jpeg(number: int) -> bytes:
    """A small picture."""
    file = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), number * 7 % 256, np.uint8)).save(file, "JPEG")
    return file.getvalue()


def sample(number: int) -> Sample:
    """Sample `number` of a set with all `FIELDS`."""
    return {
        "image": jpeg(number),
        "label": number - 3,
        "score": np.float32(number / 4),
        "small": np.uint8(number % 256),
        "text": "wört " * (number % 4),
        "raw": bytes([number % 256, 0, 255]) * [0, 1, 700, 3000][number % 4],
        "ints": np.arange(6).reshape(2, 3) - number,
        "floats": np.arange(4, dtype=np.float32) / (number + 1),
        "wide": np.full((2, 2), number / 3),
        "tokens": np.arange(number % 5) - number,
        "wave": np.arange(number % 3, dtype=np.float32),
        "plane": np.ones((number % 3 + 1, 2), np.float32) * number,
    }


def write(path: Path, count: int, **options: Any) -> None:
    """Writes a set with all `FIELDS`."""
    with feedline.Writer(path, FIELDS, **options) as writer:
        for number in range(count):
            writer.write(sample(number), key=f"k{number}")


def read(source: Any, **options: Any) -> list[Sample]:
    """All samples; images as they are encoded."""
    try:
        loader = feedline.Loader(source, decode={"mode": "bytes"}, batch_size=7, **options)
    except feedline.SpecError:  # there is no image in it
        loader = feedline.Loader(source, batch_size=7, **options)
    samples: list[Sample] = []
    for batch in loader:
        columns = dict(batch.items())
        for row in range(len(next(iter(columns.values())))):
            samples.append({name: plain(column[row]) for name, column in columns.items()})
    return samples


def plain(value: Any) -> Any:
    """Encoded images and bytes as bytes."""
    array = value if isinstance(value, str) else np.asarray(value)
    if isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim == 1:
        return array.tobytes()
    return array


def same(found: Sample, wanted: Sample) -> None:
    """Compares two samples field by field."""
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        if isinstance(value, bytes | str):
            assert found[name] == value, name
        else:
            value = np.asarray(value)
            assert found[name].shape == value.shape, name
            assert found[name].dtype == value.dtype, name
            assert np.array_equal(found[name], value), name
