"""Fields whose rows have no length in common."""

from __future__ import annotations

import gc
from pathlib import Path

import feedline
import numpy
import pytest


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    numpy_random = numpy.random.default_rng(3)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            from PIL import Image

            size = (20 + 7 * number, 30, 3)
            pixels = numpy_random.integers(0, 255, size, numpy.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return tmp_path


def files(photos: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(photos.rglob("*.png"))]


@pytest.mark.parametrize("output", ["numpy", "torch", "jax"])
def test_files_as_they_are(photos: Path, output: str) -> None:
    loader = feedline.Loader(photos, decode={"mode": "bytes"}, batch_size=4, output=output)  # type: ignore[arg-type]
    seen, labels = [], []
    for images, classes in loader:
        assert isinstance(images, feedline.Ragged)
        assert len(images) == len(classes)
        seen += [numpy.asarray(image).tobytes() for image in images]
        labels += [int(label) for label in classes]
    assert seen == files(photos)
    assert labels == [0] * 5 + [1] * 5


def test_what_a_ragged_field_can_do(photos: Path) -> None:
    loader = feedline.Loader(photos, decode={"mode": "bytes"}, batch_size=10)
    assert "image  bytes" in repr(loader)
    batch = next(iter(loader))
    assert "image: bytes" in repr(batch)
    images = batch["image"]
    content = files(photos)
    assert images.lengths.tolist() == [len(file) for file in content]
    assert images.values.tobytes() == b"".join(content)
    padded = images.pad(7)
    assert padded.shape == (10, max(map(len, content)))
    assert padded[0, : len(content[0])].tobytes() == content[0]
    assert (padded[0, len(content[0]) :] == 7).all()
    assert images.pad(length=8).tobytes() == b"".join(file[:8] for file in content)
    assert images[-1].tobytes() == content[-1]
    assert [image.tobytes() for image in images[2:4]] == content[2:4]
    with pytest.raises(IndexError):
        images[10]
    assert "10 rows of uint8" in repr(images)


def test_a_row_keeps_its_memory_when_all_else_is_gone(photos: Path) -> None:
    loader = feedline.Loader(photos, decode={"mode": "bytes"}, batch_size=10, num_workers=2)
    row = next(iter(loader))["image"][3]
    del loader
    gc.collect()
    assert row.tobytes() == files(photos)[3]


def test_hashes_do_not_depend_on_workers(photos: Path) -> None:
    def hashes(workers: int) -> list[int]:
        loader = feedline.Loader(
            photos, decode={"mode": "bytes"}, batch_size=3, shuffle=True, num_workers=workers
        )
        return [batch.hash() for _ in range(2) for batch in loader]

    assert hashes(0) == hashes(1) == hashes(3)


def test_what_cannot_be(photos: Path) -> None:
    with pytest.raises(feedline.SpecError, match="open_blocks"):
        feedline.Loader(photos, open_blocks=0)
    with pytest.raises(feedline.SpecError, match="no pixels"):
        feedline.Loader(photos, decode={"mode": "bytes"}, transforms=[feedline.transforms.CenterCrop(8)])
