"""MosaicML's streaming shards, beside its own writer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from PIL import Image

streaming = pytest.importorskip("streaming")

from records import jpeg, read, same  # noqa: E402

COLUMNS = {
    "image": "jpeg",
    "bytes": "bytes",
    "text": "str",
    "label": "int",
    "small": "uint8",
    "half": "float16",
    "single": "float32",
    "double": "float64",
    "fixed": "ndarray:float32:2,3",
    "typed": "ndarray:int16",
    "free": "ndarray",
    "alike": "ndarray",
    "json": "json",
    "digits": "str_int",
}


def row(number: int) -> dict[str, Any]:
    return {
        "image": Image.open(io.BytesIO(jpeg(number))),
        "bytes": bytes([255, 0, number]) * number,
        "text": f"ü{number}" * number,
        "label": number - 3,
        "small": np.uint8(number),
        "half": np.float16(number / 2),
        "single": np.float32(number / 4),
        "double": np.float64(number / 3),
        "fixed": np.full((2, 3), number, np.float32),
        "typed": np.arange(number + 1, dtype=np.int16),
        "free": np.ones((number % 3 + 1, 2)) * number,
        "alike": np.full((3, 2), number, np.uint8),
        "json": {"a": [1, number]},
        "digits": number,
    }


def put(path: Path, columns: dict[str, str], rows: list[dict[str, Any]], **options: Any) -> Path:
    with streaming.MDSWriter(out=str(path), columns=columns, **options) as writer:
        for each in rows:
            writer.write(each)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size_limit": 4000},
        {"compression": "zstd", "size_limit": 4000},
        {"compression": "gz:3", "hashes": ["sha1"]},
    ],
)
def test_what_the_library_writes_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    path = put(tmp_path / "set", COLUMNS, [row(n) for n in range(12)], **options)
    samples = read(path)
    assert len(samples) == 12
    for number, found in enumerate(samples):
        wanted = row(number)
        wanted["json"], wanted["digits"] = json.dumps(wanted["json"]), str(number)
        image = io.BytesIO()
        wanted["image"].save(image, "JPEG")
        decoded = np.asarray(Image.open(io.BytesIO(found.pop("image"))))
        assert np.array_equal(decoded, np.asarray(Image.open(image)))
        del wanted["image"]
        same(found, wanted)


def test_what_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "a", {"x": "pkl", "y": "int"}, [{"x": {1}, "y": 7}])
    with pytest.raises(feedline.SourceError, match="runs code"):
        feedline.Loader(path)
    assert [int(each["y"]) for each in read({"path": str(path), "kind": "mds", "fields": ["y"]})] == [7]
    path = put(tmp_path / "b", {"y": "int"}, [{"y": 7}], compression="br")
    with pytest.raises(feedline.SourceError, match="only zstd and gz"):
        feedline.Loader(path)
    index = path / "index.json"
    index.write_text(index.read_text().replace("shard.00000", "../shard.00000"))
    with pytest.raises(feedline.SourceError, match="not in its folder"):
        feedline.Loader(path)
