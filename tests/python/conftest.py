"""Small data sets that the tests share."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

# Before torch is loaded: MKL's results are the same on every processor. Without it the places of turned
# pixels in torchvision, the reference, were off by 3e-5 pixels on an AMD EPYC and by 5e-5 on an Intel Xeon.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

# What a shell starts in the background ignores Ctrl-C, and so does what that starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

Array = npt.NDArray[Any]
CLASSES = ("ant", "bee", "cat")

#: Seconds that end a hang; no test says how fast something is.
HANG = 300.0


def until(seen: Callable[[], object], what: str = "what was waited for") -> None:
    """Waits for what another process or thread does."""
    end = time.monotonic() + HANG
    while not seen():
        assert time.monotonic() < end, f"not seen: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def another_thread() -> Iterator[None]:
    """Meanwhile the program has a thread more, so that its workers are not forked from it."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def as_a_job(value: object) -> Any:
    """What a worker would have of a data set that is sent to it."""
    from feedline.workers import parcel

    store = parcel.Store()
    store.pack(value)
    assert store.parcel is not None
    try:
        return parcel.unpack(store.parcel, list(store.files), store.shared.fds)
    finally:
        store.close()


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder in which another process works; `rglob` fails at one that was renamed."""
    return (Path(root, name) for root, _folders, names in os.walk(folder) for name in names)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher's variables would make every loader one of several."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def picture(number: int, height: int = 24, width: int = 32) -> Array:
    """Smooth pixels that tell pictures apart after a JPEG."""
    y, x = np.mgrid[:height, :width]
    planes = [(x * 5 + number * 37) % 256, (y * 7 + number * 11) % 256, np.full_like(x, number * 8 % 256)]
    return np.stack(planes, axis=-1).astype(np.uint8)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 PNGs in three classes; number n is `picture(n)`, in the order of a loader."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(30):
        folder = root / CLASSES[number // 10]
        folder.mkdir(exist_ok=True)
        Image.fromarray(picture(number)).save(folder / f"{number:02}.png")
    return root


@pytest.fixture(scope="session")
def manifest(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same 30 with two label columns."""
    path = tmp_path_factory.mktemp("manifest") / "train.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "score"])
        for number, photo in enumerate(sorted(photos.glob("*/*.png"))):
            writer.writerow([photo, number // 10, number / 2])
    return path


@pytest.fixture
def arrays() -> tuple[Array, Array]:
    """100 images of 3x8x8 and their numbers."""
    images = np.random.default_rng(0).integers(0, 256, (100, 3, 8, 8), dtype=np.uint8)
    return images, np.arange(100)


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes a folder of `count` PNGs in one class, beside files with the given contents."""

    def make(count: int = 6, **files: bytes) -> Path:
        folder = tmp_path / "set" / "class"
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(picture(number)).save(folder / f"{number:02}.png")
        for name, content in files.items():
            (folder / f"{name}.jpg").write_bytes(content)
        return tmp_path / "set"

    yield make
