"""SPDL: threads that run the hand-tuned transform, its fastest known way."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from serve import Batches, Epochs, Task, serve
from spdl.pipeline import PipelineBuilder
from works import SIZE


def photos(task: Task, epoch: int) -> PipelineBuilder:
    from turbo_transform import transform

    def one(file: tuple[Path, int]) -> tuple[Any, int]:
        out = np.empty((3, SIZE, SIZE), np.float32)
        transform(file[0], task.train, out)
        return out, file[1]

    def stack(samples: list[tuple[Any, int]]) -> tuple[Any, list[int]]:
        return np.stack([pixels for pixels, _ in samples]), [label for _, label in samples]

    files = list(task.files)
    if task.train:
        random.Random(epoch).shuffle(files)
    samples = PipelineBuilder().add_source(files).pipe(one, concurrency=task.workers)
    return samples.aggregate(task.work.batch).pipe(stack, concurrency=1)


def arrays(task: Task, epoch: int) -> PipelineBuilder:
    from array_transform import transform

    pixels, labels = task.arrays
    order = np.random.default_rng(epoch).permutation(len(labels))
    parts = [order[start : start + task.work.batch] for start in range(0, len(order), task.work.batch)]

    def one(part: Any) -> tuple[Any, Any]:
        return transform(pixels[part], np.random.default_rng([epoch, int(part[0])])), labels[part]

    return PipelineBuilder().add_source(parts).pipe(one, concurrency=task.workers)


def make(task: Task) -> Batches:
    describe = arrays if task.work.data == "arrays" else photos

    def begin(epoch: int) -> Iterator[tuple[Any, Any]]:
        pipeline = describe(task, epoch).add_sink(2).build(num_threads=task.workers)
        with pipeline.auto_stop():
            yield from pipeline

    return Epochs(begin)


serve(make)
