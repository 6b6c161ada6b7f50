"""Loads a folder of photos for two epochs: through the Python package, the command and Pillow.

    python examples/demo.py sample-data

Every loader does the same work for batches of 64 images (random resized crop to 224, flip, float32,
normalised) and feeds the same simulated train step of 20 ms. Each runs in a process of its own, so
that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

EPOCHS = 2
BATCH_SIZE = 64
TRAIN_STEP = 0.02
SIZE = 224
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# The plain loop stops at the first batch after this, as it would take long on a slow machine.
PLAIN_SECONDS = 15.0


class Figures(TypedDict):
    """What one loader did."""

    images: int
    seconds: float
    first_batch_seconds: float
    wait_seconds: float
    peak_memory_bytes: int


class Progress:
    """A bar on standard error, if that is a terminal."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.start = time.perf_counter()
        self.shown = sys.stderr.isatty()

    def update(self, done: int) -> None:
        if self.shown:
            passed = max(time.perf_counter() - self.start, 1e-9)
            left = (self.total - done) * passed / max(done, 1)
            tail = f" {done:,}/{self.total:,} images {done / passed:,.0f}/s eta {left:.0f}s"
            room = max(min(shutil.get_terminal_size().columns, 110) - len(self.name) - len(tail) - 2, 5)
            bar = "=" * (room * done // max(self.total, 1))
            print(f"\r{self.name} {bar:<{room}}{tail}", end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def peak_memory() -> int:
    """The most memory that this process ever held, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def feed(name: str, total: int, start: float, batches: Iterator[int]) -> Figures:
    """Takes batches (their numbers of images) as a training loop would, and measures the waits."""
    progress = Progress(name, total)
    images, waited, first = 0, 0.0, 0.0
    began = time.perf_counter()
    while True:
        asked = time.perf_counter()
        rows = next(batches, None)
        if rows is None:
            break
        ready = time.perf_counter()
        waited += ready - asked
        first = first or ready - start
        images += rows
        progress.update(images)
        time.sleep(max(TRAIN_STEP - (time.perf_counter() - ready), 0))
    seconds = time.perf_counter() - began
    progress.finish()
    return Figures(
        images=images,
        seconds=seconds,
        first_batch_seconds=first,
        wait_seconds=waited,
        peak_memory_bytes=peak_memory(),
    )


def with_feedline(folder: Path) -> Figures:
    """The Python package."""
    import feedline
    from feedline.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype

    start = time.perf_counter()
    loader = feedline.Loader(
        folder,
        transforms=[
            RandomResizedCrop(SIZE),
            RandomHorizontalFlip(),
            ToDtype("float32", scale=True),
            Normalize(mean=MEAN, std=STD),
        ],
        batch_size=BATCH_SIZE,
        shuffle=True,
    )

    def batches() -> Iterator[int]:
        for _ in range(EPOCHS):
            for images, labels in loader:
                assert images.shape[1:] == (3, SIZE, SIZE) and len(images) == len(labels)
                yield len(images)

    total = EPOCHS * sum(1 for _ in folder.glob("*/*.jpg"))
    return feed("feedline, Python ", total, start, batches())


def with_command(folder: Path) -> Figures:
    """The command, which measures itself."""
    command = [sys.executable, "-m", "feedline", "run", str(folder), "--json", "--shuffle"]
    command += ["--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)]
    command += ["--train-step", f"{TRAIN_STEP}s", "--no-hash"]
    for op in (
        f"RandomResizedCrop(size={SIZE})",
        "RandomHorizontalFlip",
        "ToDtype(dtype='float32', scale=true)",
        f"Normalize(mean={MEAN}, std={STD})",
    ):
        command += ["--transform", op]
    # Its progress bar goes to the terminal, its result comes here.
    result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return Figures(
        images=result["samples"],
        seconds=result["seconds"],
        first_batch_seconds=result["first_batch_seconds"],
        wait_seconds=result["wait_seconds"],
        peak_memory_bytes=result["peak_memory_bytes"],
    )


def with_pillow(folder: Path) -> Figures:
    """A plain loop in one process."""
    from PIL import Image

    mean, std = np.array(MEAN, np.float32), np.array(STD, np.float32)
    start = time.perf_counter()
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    samples = [(path, label) for label, name in enumerate(classes) for path in sorted(name.glob("*.jpg"))]
    draw = random.Random(0)

    def box(width: int, height: int) -> tuple[int, int, int, int]:
        """RandomResizedCrop's choice, as torchvision makes it."""
        for _ in range(10):
            area = width * height * draw.uniform(0.08, 1.0)
            ratio = np.exp(draw.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < w <= width and 0 < h <= height:
                left, top = draw.randint(0, width - w), draw.randint(0, height - h)
                return left, top, left + w, top + h
        return 0, 0, width, height

    def image(path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
        with Image.open(path) as file:
            rgb = file.convert("RGB")
        crop = rgb.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box(*rgb.size))
        if draw.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(crop, np.float32) / np.float32(255)
        return ((pixels - mean) / std).transpose(2, 0, 1)

    def batches() -> Iterator[int]:
        for _ in range(EPOCHS):
            draw.shuffle(samples)
            for at in range(0, len(samples), BATCH_SIZE):
                if time.perf_counter() - start > PLAIN_SECONDS:
                    return
                rows = samples[at : at + BATCH_SIZE]
                images = np.stack([image(path) for path, _ in rows])
                labels = np.array([label for _, label in rows])
                assert images.shape[1:] == (3, SIZE, SIZE) and len(images) == len(labels)
                yield len(images)

    return feed("plain Pillow loop", EPOCHS * len(samples), start, batches())


LOADERS = {
    "feedline, Python": with_feedline,
    "feedline, command": with_command,
    "plain Pillow loop": with_pillow,
}


def show(folder: Path, results: dict[str, Figures]) -> None:
    """Prints the table, at most 80 columns wide."""
    total = max(figures["images"] for figures in results.values())
    print(
        f"{folder}: {total // EPOCHS:,} photos, {EPOCHS} epochs, batches of {BATCH_SIZE} x 3 x {SIZE} x {SIZE}"
    )
    print(f"float32, one process each, a simulated train step of {TRAIN_STEP * 1000:.0f} ms\n")
    print(f"{'':<17}  {'images/s':>9}  {'first batch':>11}  {'peak memory':>11}  {'step waited':>11}")
    for name, figures in results.items():
        rate = figures["images"] / figures["seconds"]
        first = f"{figures['first_batch_seconds'] * 1000:,.0f} ms"
        memory = f"{figures['peak_memory_bytes'] / 1e6:,.0f} MB"
        waited = f"{figures['wait_seconds'] / figures['seconds'] * 100:.0f} %"
        part = "" if figures["images"] == total else " *"
        print(f"{name:<17}  {rate:>9,.0f}  {first:>11}  {memory:>11}  {waited:>11}{part}")
    for name, figures in results.items():
        if figures["images"] < total:
            print(f"\n* {name}: the first {figures['images']:,} of {total:,} images, to spare you the wait.")
    print("\nNext: look at your own data with `feedline inspect FOLDER`, or put feedline.Loader")
    print("in the place of your data loader: README.md shows how in ten lines.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare feedline with a plain Pillow loop.")
    parser.add_argument(
        "folder", type=Path, help="photos in class folders, as `feedline sample-data` makes them"
    )
    parser.add_argument("--only", choices=LOADERS, help="run this one alone and print its figures as JSON")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(LOADERS[arguments.only](arguments.folder)))
        return
    results: dict[str, Figures] = {}
    for name in LOADERS:
        command = [sys.executable, __file__, str(arguments.folder), "--only", name]
        results[name] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    show(arguments.folder, results)


if __name__ == "__main__":
    main()
