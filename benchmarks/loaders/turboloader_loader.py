"""TurboLoader over a tar of the photos, or (`tbl`) over pixels that it stored at 256x256."""

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import turboloader
from serve import Batches, Epochs, Task, serve
from works import SHORTER, SIZE


def prepare(task: Task) -> None:
    tar, pixels = task.prepared(".tar"), task.prepared(".tbl")
    if not tar.exists():
        partial = tar.with_suffix(".partial")
        with tarfile.open(partial, "w") as file:
            for path, _ in task.files:
                file.add(path, arcname=str(path.relative_to(task.data)))
        partial.rename(tar)
    if task.variant == "tbl" and not pixels.exists():
        partial = pixels.with_name("partial.tbl")
        turboloader.preprocess_to_tbl(str(tar), str(partial), image_size=SHORTER, num_workers=task.workers)
        partial.rename(pixels)


def make(task: Task) -> Batches:
    loader = turboloader.DataLoader(
        str(task.prepared(f".{task.variant}")),
        batch_size=task.work.batch,
        image_size=SIZE,
        output_format="pytorch",
        transform=turboloader.ImageNetNormalize(),
        shuffle=True,
        train_aug=True,
        num_workers=task.workers,
    )

    def begin(epoch: int) -> Iterator[tuple[Any, Any]]:
        loader.set_epoch(epoch)
        for pixels, about in loader:
            # It has no labels, only numbers of samples.
            yield pixels, about["indices"]

    return Epochs(begin)


serve(make, prepare)
