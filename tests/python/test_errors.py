"""Bad files, bad folders: named, or skipped with a record."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import stat
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import picture
from feedline import Loader
from feedline import transforms as T
from PIL import Image

CROP = [T.CenterCrop(16)]
Make = Callable[..., Path]


def jpeg() -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(3, 200, 300)).save(out, "jpeg")
    return out.getvalue()


def huge_png() -> bytes:
    """A valid header that declares 65535 x 65535 pixels, and hardly any data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


def huge_jpeg() -> bytes:
    """The same lie in a JPEG: its frame header says 65535 x 65535."""
    content = jpeg()
    at = content.index(b"\xff\xc0")
    return content[: at + 5] + b"\xff\xff\xff\xff" + content[at + 9 :]


BAD: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "empty": (lambda: b"", "read", "empty"),
    "truncated": (lambda: jpeg()[:-2000], "decode", "JPEG"),
    "cut_in_the_header": (lambda: jpeg()[:30], "decode", ""),
    "corrupt": (lambda: jpeg()[:200] + bytes(range(256)) * 20, "decode", ""),
    "no_image": (lambda: b"Dear reader, this is text.\n" * 50, "decode", "format"),
    "huge_png": (huge_png, "decode", "65535"),
    "huge_jpeg": (huge_jpeg, "decode", "65535"),
    "pickle": (lambda: pickle.dumps([1, 2]), "decode", "format"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_named(small_folder: Make, kind: str) -> None:
    content, stage, reason = BAD[kind]
    folder = small_folder(6, zz=content())
    loader = Loader(folder, CROP, batch_size=2)
    seen = 0
    with pytest.raises(feedline.SampleError) as caught:
        for _ in loader:
            seen += 1
    error = caught.value
    assert seen == 3
    assert (error.index, error.source, error.stage) == (6, 0, stage)
    assert error.path == str(folder / "class" / "zz.jpg")
    assert reason.lower() in error.reason.lower()
    assert error.path in str(error) and error.reason in str(error)
    assert isinstance(error, RuntimeError)
    # The batch is still the next one: fixed, it is made.
    state = loader.state_dict()
    Image.fromarray(picture(9)).save(folder / "class" / "zz.jpg")
    again = Loader(folder, CROP, batch_size=2)
    again.load_state_dict(state)
    assert [batch.number for batch in again] == [3]


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_replaced(small_folder: Make, tmp_path: Path, kind: str) -> None:
    content, stage, _ = BAD[kind]
    folder = small_folder(6, zz=content())
    quarantine = tmp_path / "bad.jsonl"
    made = []
    for workers in (0, 4):
        loader = Loader(
            folder,
            CROP,
            batch_size=7,
            shuffle=True,
            on_error="skip",
            quarantine=quarantine,
            num_workers=workers,
        )
        made.append([batch.hash() for _ in range(3) for batch in loader])
        assert loader.stats()["failed_samples"] == 1
        assert loader.state_dict()["skipped"] == [[0, 6]]
    assert made[0] == made[1] and len(made[0]) == 3
    entries = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert len(entries) == 2 and entries[0] == entries[1]
    assert entries[0]["path"] == str(folder / "class" / "zz.jpg")
    assert entries[0]["index"] == 6 and entries[0]["stage"] == stage and entries[0]["reason"]


def test_the_substitute_is_a_real_sample(small_folder: Make) -> None:
    folder = small_folder(6, zz=b"")
    batches = list(Loader(folder, batch_size=7, on_error="skip", decode={"mode": "rgb"}))
    rows = [row.transpose(1, 2, 0) for row in batches[0]["image"]]
    for number in range(6):
        np.testing.assert_array_equal(rows[number], picture(number))
    assert any((rows[6] == picture(number)).all() for number in range(6))


def test_truncated_files_can_be_allowed(small_folder: Make) -> None:
    folder = small_folder(0, a=jpeg()[:-2000])
    (batch,) = Loader(folder, CROP, decode={"allow_truncated": True})
    assert batch["image"].shape == (1, 3, 16, 16)


def test_the_failure_budget(small_folder: Make) -> None:
    folder = small_folder(6, xx=b"", yy=b"no", zz=b"")
    assert len(list(Loader(folder, CROP, 3, on_error="skip", max_failures=3))) == 3
    with pytest.raises(feedline.TooManyFailuresError, match="max_failures = 1") as caught:
        list(Loader(folder, CROP, 3, on_error="skip", max_failures=1))
    assert (caught.value.failed, caught.value.allowed) == (2, 1)
    assert caught.value.path is not None and caught.value.path.endswith("yy.jpg")


def test_a_set_without_a_good_file(small_folder: Make) -> None:
    folder = small_folder(0, a=b"", b=b"no")
    with pytest.raises(feedline.SampleError):
        list(Loader(folder, CROP, on_error="skip"))


def test_ranks_stay_together_when_samples_are_skipped(small_folder: Make) -> None:
    folder = small_folder(15, xx=b"", yy=b"no", zz=b"")
    options: dict[str, Any] = {"shuffle": True, "on_error": "skip"}
    whole = Loader(folder, CROP, 6, rank=0, world_size=1, **options)
    ranks = [Loader(folder, CROP, 2, rank=r, world_size=3, **options) for r in range(3)]
    for batch, *parts in zip(whole, *ranks, strict=True):
        np.testing.assert_array_equal(batch["image"], np.concatenate([part["image"] for part in parts]))


def test_skipped_samples_are_remembered(small_folder: Make) -> None:
    folder = small_folder(6, aa=b"", zz=b"")
    loader = Loader(folder, CROP, 2, on_error="skip", max_failures=1)
    epoch = iter(loader)
    for _ in range(3):
        next(epoch)
    state = loader.state_dict()
    state["skipped"] = [[0, 0]]
    resumed = Loader(folder, CROP, 2, on_error="skip", max_failures=1)
    resumed.load_state_dict(state)
    with pytest.raises(feedline.TooManyFailuresError):
        list(resumed)


def test_a_vanished_file(small_folder: Make) -> None:
    folder = small_folder(6)
    loader = Loader(folder, CROP, batch_size=2)
    (folder / "class" / "05.png").unlink()
    with pytest.raises(feedline.SampleError, match="No such file") as caught:
        list(loader)
    assert caught.value.stage == "read" and caught.value.index == 5


def manifest_of(folder: Path, *names: str) -> Path:
    path = folder / "list.csv"
    path.write_text("path,label\n" + "".join(f"{name},0\n" for name in names))
    return path


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "socket", "device"])
def test_what_cannot_be_read(small_folder: Make, kind: str, on_error: Any) -> None:
    folder = small_folder(4) / "class"
    bad = folder / "bad.png"
    if kind == "folder":
        bad.mkdir()
    elif kind == "pipe":
        os.mkfifo(bad)
    elif kind == "socket":
        os.mknod(bad, stat.S_IFSOCK | 0o600)
    elif kind == "device":
        bad.symlink_to("/dev/zero")
    manifest = manifest_of(folder, "00.png", "01.png", "bad.png", "02.png")
    loader = Loader(manifest, CROP, batch_size=4, on_error=on_error)
    if on_error == "skip":
        (batch,) = loader
        assert batch.rows == 4 and loader.stats()["failed_samples"] == 1
    else:
        with pytest.raises(feedline.SampleError) as caught:
            list(loader)
        assert caught.value.path == str(bad) and caught.value.stage == "read"
        if kind in ("pipe", "socket", "device"):
            assert "is not a regular file" in str(caught.value)


def test_pipes_in_a_folder_are_no_images(small_folder: Make) -> None:
    folder = small_folder(4)
    os.mkfifo(folder / "class" / "pipe.png")
    assert Loader(folder).num_samples == 4


def test_a_loop_of_folders(small_folder: Make) -> None:
    folder = small_folder(2)
    (folder / "class" / "again").symlink_to(folder)
    with pytest.raises(feedline.SourceError, match="link to a folder that contains it"):
        Loader(folder)


def test_missing_sources(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Loader(tmp_path / "nowhere")
    error = caught.value
    assert isinstance(error, feedline.MissingFileError) and isinstance(error, feedline.Error)
    assert error.errno == errno.ENOENT and error.filename == str(tmp_path / "nowhere")


def test_a_quarantine_that_cannot_be_written(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(feedline.FileError) as caught:
        Loader(photos, CROP, on_error="skip", quarantine=tmp_path)
    assert caught.value.errno == errno.EISDIR


def test_empty_sets(tmp_path: Path) -> None:
    with pytest.raises(feedline.SourceError, match="has no images"):
        Loader(tmp_path)
    (tmp_path / "class").mkdir()
    with pytest.raises(feedline.SourceError, match="no image"):
        Loader(tmp_path)
    with pytest.raises(feedline.SourceError):
        Loader(manifest_of(tmp_path))
    with pytest.raises(feedline.SourceError, match="no samples"):
        Loader(np.zeros((0, 3)))


def test_a_class_without_images(small_folder: Make) -> None:
    folder = small_folder(2)
    (folder / "lonely").mkdir()
    with pytest.raises(feedline.SourceError, match="lonely"):
        Loader(folder)


def test_a_batch_larger_than_the_set(photos: Path) -> None:
    (batch,) = Loader(photos, CROP, batch_size=1000)
    assert batch.rows == 30
    (batch,) = Loader(photos, CROP, batch_size=40, last_batch="pad")
    assert batch.rows == 40 and batch.padding == 10
    with pytest.raises(feedline.SpecError, match="batch"):
        Loader(photos, CROP, batch_size=31, drop_last=True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty|no|missing"),
        ("path,label\nx.png,dog\ny.png,\n", "label|row|line"),
        ("path,label\nx.png\n", "line|row|column|fields"),
    ],
)
def test_malformed_manifests(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(feedline.SourceError, match=problem):
        Loader(tmp_path / "list.csv", CROP)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ((np.zeros(3), np.zeros(4)), "has 4 samples"),
        (np.array(3.0), "no axis"),
        (np.array(["a", "b"]), "allowed: bool"),
        (np.zeros(3, complex), "allowed: bool"),
        (np.zeros(3, object), "allowed: bool"),
        (np.zeros(3, "datetime64[s]"), "allowed: bool"),
    ],
)
def test_arrays_that_do_not_fit(source: Any, problem: str) -> None:
    with pytest.raises(feedline.SourceError, match=problem):
        Loader(source)


def test_images_of_different_sizes(small_folder: Make) -> None:
    folder = small_folder(3)
    Image.fromarray(picture(0, 10, 10)).save(folder / "class" / "09.png")
    with pytest.raises(feedline.SampleError, match="10") as caught:
        list(Loader(folder, batch_size=4))
    assert caught.value.path is not None and caught.value.path.endswith("09.png")


def test_a_cache_that_does_not_fit(photos: Path) -> None:
    with pytest.raises(feedline.CacheError, match="required = false"):
        Loader(photos, CROP, cache={"hold": "decoded", "limit": 20_000})
    loader = Loader(photos, CROP, 4, cache={"hold": "decoded", "limit": 20_000, "required": False})
    plain = [batch.hash() for batch in Loader(photos, CROP, 4)]
    assert [batch.hash() for batch in loader] == plain
    assert [batch.hash() for batch in loader] == plain
    assert 0 < loader.stats()["cache"]["bytes"] <= 20_000


@pytest.mark.parametrize("hold", ["encoded", "decoded"])
def test_a_cache_outlives_the_files(small_folder: Make, hold: str) -> None:
    folder = small_folder(6)
    loader = Loader(folder, CROP, 2, cache={"hold": hold})
    first = [batch.hash() for batch in loader]
    for file in (folder / "class").iterdir():
        file.unlink()
    loader.set_epoch(1)
    assert [batch.hash() for batch in loader] == first


def test_a_pipe_as_quarantine_is_refused_at_once(photos: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="cannot write the quarantine file"):
        Loader(photos, on_error="skip", quarantine=pipe)


@pytest.mark.parametrize("transforms", [[], [abs]], ids=["native", "code"])
def test_a_link_as_quarantine_is_refused(photos: Path, tmp_path: Path, transforms: list[Any]) -> None:
    link, precious = tmp_path / "link", tmp_path / "precious"
    precious.write_text("precious")
    for target in (precious, tmp_path / "nothing"):
        link.symlink_to(target)
        with pytest.raises(OSError, match=r"cannot write the quarantine file.*is a link"):
            Loader(photos, [*CROP, *transforms], on_error="skip", quarantine=link)
        link.unlink()
    assert precious.read_text() == "precious" and not (tmp_path / "nothing").exists()
