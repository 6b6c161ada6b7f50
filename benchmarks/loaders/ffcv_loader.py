"""FFCV over its own file: JPEGs encoded anew, or (`raw`) pixels with the shorter side at 256."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import (
    CenterCropRGBImageDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import (
    NormalizeImage,
    RandomHorizontalFlip,
    RandomTranslate,
    Squeeze,
    ToTensor,
    ToTorchImage,
)
from ffcv.writer import DatasetWriter
from PIL import Image
from serve import Batches, Task, serve
from works import ARRAY_MEAN, ARRAY_STD, MEAN, SHORTER, SIZE, STD

#: Close to the bytes of the originals.
QUALITY = {"standard": 95, "large": 91, "sample": 95}


class Photos:
    def __init__(self, task: Task) -> None:
        self.files = task.files
        self.raw = task.variant == "raw"

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.files[index]
        image = Image.open(path).convert("RGB")
        if self.raw:
            scale = SHORTER / min(image.size)
            sides = round(image.width * scale), round(image.height * scale)
            image = image.resize(sides, Image.Resampling.BILINEAR)
        return image, label


class Arrays:
    def __init__(self, task: Task) -> None:
        pixels, self.labels = task.arrays
        self.pixels = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.pixels[index], int(self.labels[index])


def prepare(task: Task) -> None:
    path = task.prepared(f"-{task.variant}.beton")
    if path.exists():
        return
    small = task.work.data == "arrays"
    if small or task.variant == "raw":
        field = RGBImageField(write_mode="raw")
    else:
        field = RGBImageField(write_mode="jpg", jpeg_quality=QUALITY[task.work.data])
    partial = path.with_suffix(".partial")
    writer = DatasetWriter(str(partial), {"image": field, "label": IntField()}, num_workers=task.workers)
    writer.from_indexed_dataset(Arrays(task) if small else Photos(task), chunksize=50)
    partial.rename(path)


def make(task: Task) -> Batches:
    mean, std = MEAN, STD
    if task.work.transform == "train":
        image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
    elif task.work.transform == "eval":
        image = [CenterCropRGBImageDecoder((SIZE, SIZE), SIZE / SHORTER)]
    else:
        mean, std = ARRAY_MEAN, ARRAY_STD
        image = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(padding=4)]
    image += [
        NormalizeImage(np.array(mean) * 255, np.array(std) * 255, np.float32),
        ToTensor(),
        ToTorchImage(convert_back_int16=False),
    ]
    loader: Batches = Loader(
        str(task.prepared(f"-{task.variant}.beton")),
        batch_size=task.work.batch,
        num_workers=task.workers,
        order=OrderOption.SEQUENTIAL if task.work.transform == "eval" else OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        batches_ahead=2,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return loader


if __name__ == "__main__":
    serve(make, prepare)
