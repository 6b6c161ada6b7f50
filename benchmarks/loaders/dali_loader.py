"""DALI on the CPU, with fused decoding and cropping and the fast DCT."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from serve import Batches, Epochs, Task, serve
from works import ARRAY_MEAN, ARRAY_STD, MEAN, SHORTER, SIZE, STD


def photos(task: Task) -> Any:
    data, labels = fn.readers.file(
        file_root=str(task.data),
        random_shuffle=task.train,
        initial_fill=len(task.files) if task.train else 1,
        prefetch_queue_depth=2,
    )
    if task.train:
        images = fn.decoders.image_random_crop(
            data,
            device="cpu",
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            num_attempts=10,
            use_fast_idct=True,
        )
        images = fn.resize(images, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR)
        mirror = fn.random.coin_flip(probability=0.5)
    else:
        images = fn.decoders.image(data, device="cpu", output_type=types.RGB, use_fast_idct=True)
        images = fn.resize(images, resize_shorter=float(SHORTER), interp_type=types.INTERP_LINEAR)
        mirror = 0
    pixels = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        crop=(SIZE, SIZE),
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        mirror=mirror,
    )
    return pixels, labels


class Shuffled:
    """Whole batches of the small arrays, in a new order each epoch."""

    def __init__(self, task: Task) -> None:
        pixels, self.labels = task.arrays
        self.pixels = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
        self.batch = task.work.batch
        self.generator = np.random.default_rng(1)
        self.order: Any = np.empty(0, np.int64)

    def __call__(self) -> tuple[Any, Any]:
        if len(self.order) < self.batch:
            self.order = self.generator.permutation(len(self.labels))
        part, self.order = self.order[: self.batch], self.order[self.batch :]
        return self.pixels[part], self.labels[part]


def arrays(task: Task) -> Any:
    types_ = [types.UINT8, types.INT64]
    images, labels = fn.external_source(
        Shuffled(task), num_outputs=2, batch=True, dtype=types_, layout=["HWC", ""]
    )
    padded = fn.crop(images, crop=(40, 40), out_of_bounds_policy="pad", fill_values=0)
    pixels = fn.crop_mirror_normalize(
        padded,
        dtype=types.FLOAT,
        output_layout="CHW",
        crop=(32, 32),
        crop_pos_x=fn.random.uniform(range=(0.0, 1.0)),
        crop_pos_y=fn.random.uniform(range=(0.0, 1.0)),
        mirror=fn.random.coin_flip(),
        mean=[255 * value for value in ARRAY_MEAN],
        std=[255 * value for value in ARRAY_STD],
    )
    return pixels, labels


def make(task: Task) -> Batches:
    small = task.work.data == "arrays"

    @pipeline_def(
        batch_size=task.work.batch,
        num_threads=task.workers,
        device_id=None,
        prefetch_queue_depth=2,
        exec_dynamic=True,
        seed=1,
    )  # type: ignore[untyped-decorator, unused-ignore]
    def describe() -> Any:
        return arrays(task) if small else photos(task)

    pipeline = describe()
    pipeline.build()
    samples = len(task.arrays[1]) if small else len(task.files)

    def begin(_: int) -> Iterator[tuple[Any, Any]]:
        # Whole batches only: the pipeline goes on over the end of an epoch.
        for _ in range(samples // task.work.batch):
            pixels, labels = pipeline.run()
            yield np.asarray(pixels.as_tensor()), labels

    return Epochs(begin)


serve(make)
