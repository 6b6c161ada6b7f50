"""Zip archives of images, as zipfile writes them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import picture
from PIL import Image


def archive(path: Path, photos: Path, method: int, top: str = "") -> Path:
    with zipfile.ZipFile(path, "w", method) as out:
        for photo in sorted(photos.glob("*/*.png")):
            out.write(photo, f"{top}{photo.relative_to(photos)}")
        out.writestr(f"{top}notes.txt", "nothing")
    return path


def read(source: Any, **options: Any) -> tuple[list[Any], list[int]]:
    images, labels = [], []
    for batch in feedline.Loader(source, batch_size=7, num_workers=2, **options):
        images += [np.moveaxis(np.asarray(image), 0, -1) for image in batch["image"]]
        labels += [int(label) for label in batch["label"]]
    return images, labels


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("top", ["", "all/of/it/"])
def test_class_folders_are_labels(photos: Path, tmp_path: Path, method: int, top: str) -> None:
    path = archive(tmp_path / "set.zip", photos, method, top)
    images, labels = read(path)
    assert labels == [number // 10 for number in range(30)]
    assert all(np.array_equal(image, picture(number)) for number, image in enumerate(images))
    folder, packed = feedline.Loader(photos), feedline.Loader(path)
    assert list(packed.classes) == list(folder.classes)
    shuffled = [read(source, shuffle=True, seed=4)[1] for source in (path, photos)]
    assert shuffled[0] == shuffled[1]


def test_without_folders_there_are_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "flat.zip"
    with zipfile.ZipFile(path, "w") as out:
        for number in range(4):
            content = io.BytesIO()
            Image.fromarray(picture(number)).save(content, "PNG")
            out.writestr(f"ü{number}.png", content.getvalue())
    batch = next(iter(feedline.Loader(path, batch_size=4)))
    assert list(batch.keys()) == ["image"]
    assert np.array_equal(np.moveaxis(np.asarray(batch["image"][3]), 0, -1), picture(3))


def test_large_archives_and_bytes_before(photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for photo in sorted(photos.glob("*/*.png")):
            with out.open(str(photo.relative_to(photos)), "w", force_zip64=True) as member:
                member.write(photo.read_bytes())
        out.comment = b"PK\x05\x06 is no end"
    assert read(path)[1] == [number // 10 for number in range(30)]
    before = tmp_path / "program.zip"
    before.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    assert read(before)[1] == [number // 10 for number in range(30)]


def test_what_is_refused(photos: Path, tmp_path: Path) -> None:
    path = archive(tmp_path / "set.zip", photos, zipfile.ZIP_DEFLATED)
    whole = bytearray(path.read_bytes())
    encrypted = bytearray(whole)
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(encrypted)
    with pytest.raises(Exception, match="encrypted"):
        read(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Exception, match="cut short"):
        read(path)
    other = archive(tmp_path / "other.zip", photos, zipfile.ZIP_BZIP2)
    with pytest.raises(Exception, match="method 12"):
        read(other)
    damaged = bytearray(whole)
    # In the second image: the first one gives all of them their size.
    second = whole.index(b"PK\x03\x04", 4)
    damaged[second + 80] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(Exception, match=r"ant/01\.png"):
        read(path)
