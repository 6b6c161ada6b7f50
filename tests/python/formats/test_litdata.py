"""LitData's chunks, beside its own writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest

pytest.importorskip("litdata")
torch = pytest.importorskip("torch")

from litdata.streaming.writer import BinaryWriter  # type: ignore[import-untyped]  # noqa: E402
from records import jpeg, read, same  # noqa: E402


def put(path: Path, items: list[Any], **options: Any) -> Path:
    writer = BinaryWriter(str(path), chunk_size=4, **options)
    for number, item in enumerate(items):
        writer[number] = item
    writer.done()
    writer.merge()
    return path


def item(number: int) -> dict[str, Any]:
    return {
        "image": jpeg(number),
        "label": number,
        "score": number / 3,
        "ok": number % 2 == 0,
        "name": f"ü{number}",
        "tokens": torch.arange(number),
        "matrix": torch.full((2, 3), float(number)),
        "plane": np.ones((2, number + 1)),
        "line": np.arange(3, dtype=np.int16),
    }


@pytest.mark.parametrize("options", [{}, {"compression": "zstd", "compression_level": "chunk"}])
def test_what_the_library_writes_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    path = put(tmp_path / "set", [item(n) for n in range(10)], **options)
    samples = read(path)
    assert len(samples) == 10
    for number, found in enumerate(samples):
        wanted = {
            name: value.numpy() if isinstance(value, torch.Tensor) else value
            for name, value in item(number).items()
        }
        same(found, wanted)


def test_tuples_and_single_values(tmp_path: Path) -> None:
    path = put(tmp_path / "pairs", [(torch.full((2, 2), n), n) for n in range(5)])
    for number, found in enumerate(read(path)):
        same(found, {"0": np.full((2, 2), number), "1": np.int64(number)})
    path = put(tmp_path / "single", [torch.arange(4) + n for n in range(5)])
    for number, found in enumerate(read(path)):
        same(found, {"data": np.arange(4) + number})


def test_what_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "a", [{"x": {1, 2}, "t": torch.ones(2, 2)} for _ in range(3)])
    with pytest.raises(feedline.SourceError, match="runs code"):
        feedline.Loader(path)
    path = put(tmp_path / "b", [{"n": n, "t": torch.ones(2, 2)} for n in range(3)], compression="zstd")
    with pytest.raises(feedline.SourceError, match='compression_level="batch"'):
        feedline.Loader(path)
    path = put(tmp_path / "c", [{"image": jpeg(n), "label": n} for n in range(3)])
    with pytest.raises(feedline.SourceError, match="Arrow table"):
        feedline.Loader(path)
