"""`feedline pack`: what other programs read, and what a Loader gives, before and after."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import feedline
import numpy as np
import pytest
from conftest import picture
from feedline import transforms as T
from PIL import Image


def pack(source: Path, destination: Path, *flags: str) -> Path:
    command = [sys.executable, "-m", "feedline", "pack", str(source), str(destination), "--no-trial", *flags]
    subprocess.run(command, check=True, capture_output=True)
    return destination


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 JPEGs of all kinds that Pillow writes, in three classes, with metadata."""
    root = tmp_path_factory.mktemp("jpegs")
    exif = Image.Exif()
    exif[0x010E] = "a description"
    for number in range(36):
        folder = root / "abc"[number % 3]
        folder.mkdir(exist_ok=True)
        image = Image.fromarray(picture(number, 61 + number * 5, 130 - number * 2))
        if number % 5 == 4:
            image = image.convert("L")
        image.save(
            folder / f"{number:02}.jpg",
            quality=70 + number % 30,
            subsampling=number % 3,
            progressive=number % 4 == 3,
            exif=exif,
            icc_profile=b"not really a profile" * number,
            comment=f"number {number}",
            dpi=(72 + number, 72 + number),
        )
    return root


def test_pillow_sees_the_same_pixels_and_metadata(jpegs: Path, tmp_path: Path) -> None:
    packed = pack(jpegs, tmp_path / "packed", "--crop-index")
    names = sorted(path.relative_to(jpegs) for path in jpegs.glob("*/*.jpg"))
    assert names == sorted(path.relative_to(packed) for path in packed.glob("*/*.jpg"))
    for name in names:
        with Image.open(jpegs / name) as before, Image.open(packed / name) as after:
            np.testing.assert_array_equal(np.asarray(before), np.asarray(after))
            assert before.mode == after.mode
            scan = ("progressive", "progression")
            metadata = [{key: i.info[key] for key in i.info if key not in scan} for i in (before, after)]
            assert metadata[0] == metadata[1]
            assert dict(before.getexif()) == dict(after.getexif())
            assert before.quantization == after.quantization  # type: ignore[attr-defined]
        assert b"\xff\xd0" in (packed / name).read_bytes()


def batches(path: Path) -> str:
    """A hash over two shuffled epochs of random crops."""
    loader = feedline.Loader(
        path,
        batch_size=8,
        shuffle=True,
        seed=3,
        num_workers=2,
        decode={"exact": True},
        transforms=[T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)],
    )
    digest = hashlib.sha256()
    for _ in range(2):
        for batch in loader:
            digest.update(np.asarray(batch["image"]).tobytes())
            digest.update(np.asarray(batch["label"]).tobytes())
    return digest.hexdigest()


def test_a_loader_gives_the_same_batches(jpegs: Path, tmp_path: Path) -> None:
    expected = batches(jpegs)
    for segment in (1, 3):
        packed = pack(jpegs, tmp_path / f"packed{segment}", "--crop-index", "--segment", str(segment))
        assert batches(packed) == expected
    assert batches(pack(jpegs, tmp_path / "raw", "--raw")) == expected


def test_smaller_copies_are_what_pillow_makes(photos: Path, tmp_path: Path) -> None:
    packed = pack(photos, tmp_path / "packed", "--resize", "16", "--quality", "95", "--full-color")
    for source in sorted(photos.glob("*/*.png")):
        name = packed / source.parent.name / f"{source.name}.jpg"
        with Image.open(source) as image, Image.open(name) as made:
            assert made.size == (21, 16)
            wanted = np.asarray(image.resize((21, 16), Image.Resampling.BILINEAR), dtype=int)
            # What JPEG loses at quality 95 of pictures with hard edges.
            assert np.abs(np.asarray(made, dtype=int) - wanted).mean() < 6


def test_class_names_and_messages_survive(photos: Path, tmp_path: Path) -> None:
    raw = pack(photos, tmp_path / "raw", "--raw")
    loader = feedline.Loader(raw, batch_size=30)
    assert loader.classes == feedline.Loader(photos, batch_size=1).classes
    (batch,) = loader
    np.testing.assert_array_equal(np.asarray(batch["label"]), np.arange(30) // 10)
    images = np.asarray(batch["image"])
    for number in range(30):
        np.testing.assert_array_equal(images[number].transpose(1, 2, 0), picture(number))
    index = raw / "index.bin"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(feedline.SourceError, match=r"index\.bin"):
        feedline.Loader(raw, batch_size=1)


def cropped(image: np.ndarray) -> np.ndarray:
    return image[:8, :8]


@pytest.mark.parametrize("kind", ["native", "code"])
def test_pixels_that_are_cut_between_epochs_are_a_failed_sample(
    photos: Path, tmp_path: Path, kind: str
) -> None:
    raw = pack(photos, tmp_path / "raw", "--raw")
    pixels = raw / "pixels-00000.bin"
    ops = [T.CenterCrop(8)] if kind == "native" else [cropped]
    for cut in (0, pixels.stat().st_size // 2):
        # One batch of the next epoch is made ahead, before the cut.
        loader = feedline.Loader(raw, ops, batch_size=5, num_workers=1, prefetch_factor=1)
        whole = list(loader)
        assert len(whole) == 6
        content = pixels.read_bytes()
        os.truncate(pixels, cut)
        with pytest.raises(feedline.SampleError, match=r"pixels-00000\.bin"):
            list(loader)
        del loader
        pixels.write_bytes(content)


def test_a_description_without_fields_is_a_damaged_set(jpegs: Path, tmp_path: Path) -> None:
    packed = pack(jpegs, tmp_path / "packed", "--to", "tar")
    path = packed / "feedline.json"
    description = json.loads(path.read_text())
    assert description["fields"]
    path.write_text(json.dumps({**description, "fields": []}))
    with pytest.raises(feedline.SourceError, match="names no field: the packed set is damaged"):
        feedline.Loader(packed)
