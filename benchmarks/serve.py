"""One loader in a process of its own: runs an epoch for each line it is sent.

    python loaders/NAME.py WORK DATA SCRATCH WORKERS [VARIANT] [--prepare]

`--prepare` only makes the files that this loader wants to read, below SCRATCH, and ends.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from works import ARRAYS, SIZE, WORKS, Work

Batches = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class Task:
    """What one loader is asked to do."""

    work: Work
    data: Path
    scratch: Path
    workers: int
    variant: str

    @property
    def train(self) -> bool:
        return self.work.transform == "train"

    @functools.cached_property
    def files(self) -> list[tuple[Path, int]]:
        """Photos and the numbers of their classes, in ImageFolder's order."""
        folders = sorted(path for path in self.data.iterdir() if path.is_dir())
        return [(path, number) for number, folder in enumerate(folders) for path in sorted(folder.iterdir())]

    @functools.cached_property
    def arrays(self) -> tuple[Any, Any]:
        """The small arrays, u8 [n, 3, 32, 32], and their labels."""
        import numpy as np

        pixels = np.random.default_rng(0).integers(0, 256, (ARRAYS, 3, 32, 32), dtype=np.uint8)
        return pixels, np.arange(ARRAYS) % 10

    def prepared(self, ending: str) -> Path:
        """Where a file or folder made from this data is kept."""
        return self.scratch / f"{self.work.data}{ending}"


class Epochs:
    """A loader whose epochs are begun by a function of their number."""

    def __init__(self, begin: Callable[[int], Iterator[tuple[Any, Any]]]) -> None:
        self.begin = begin
        self.number = -1

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        self.number += 1
        return self.begin(self.number)


def check(pixels: Any, labels: Any, work: Work) -> list[float]:
    """Whether a batch is what was asked for; returns the mean and the deviation of its pixels."""
    import numpy as np

    side = 32 if work.data == "arrays" else SIZE
    array = np.asarray(pixels)
    assert array.shape[1:] == (3, side, side), array.shape
    assert array.shape[0] == len(labels) == work.batch, (array.shape, len(labels))
    assert array.dtype == np.float32, array.dtype
    mean, deviation = float(array.mean()), float(array.std())
    assert abs(mean) < 1 and 0.4 < deviation < 2, (mean, deviation)
    return [mean, deviation]


def serve(make: Callable[[Task], Batches], prepare: Callable[[Task], None] | None = None) -> None:
    """Builds the loader that the command line describes, then obeys standard input."""
    # What the loader prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    arguments = [text for text in sys.argv[1:] if text != "--prepare"]
    name, data, scratch, workers, *variant = arguments
    task = Task(WORKS[name], Path(data), Path(scratch), int(workers), "".join(variant))
    if "--prepare" in sys.argv:
        if prepare is not None:
            prepare(task)
        return
    if task.work.data == "arrays":
        _ = task.arrays
    loader: Batches | None = None
    answer: dict[str, Any] = {"first": None}
    for _ in sys.stdin:
        if loader is None:
            began = time.perf_counter()
            loader = make(task)
        start, images, checked = time.perf_counter(), 0, 0.0
        for pixels, labels in loader:
            if answer["first"] is None:
                answer["first"] = time.perf_counter() - began
                at = time.perf_counter()
                answer["pixels"] = check(pixels, labels, task.work)
                checked = time.perf_counter() - at
            images += len(labels)
        answer |= {"images": images, "seconds": time.perf_counter() - start - checked}
        print(json.dumps(answer), file=answers, flush=True)
