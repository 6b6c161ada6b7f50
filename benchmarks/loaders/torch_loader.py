"""torch's DataLoader with one of several data sets.

`pillow` is torchvision's ImageFolder with v1 transforms: what most people run. `v2` decodes with
torchvision.io into tensors, `albumentations` with OpenCV, `tuned` is written by hand for speed.
`arrays` and `batched` are the small arrays, one by one and with `__getitems__`.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from serve import Batches, Task, serve
from torch.utils.data import DataLoader, Dataset
from works import MEAN, SHORTER, SIZE, STD


def pillow(task: Task) -> Any:
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder

    if task.train:
        chain = [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()]
    else:
        chain = [T.Resize(SHORTER), T.CenterCrop(SIZE)]
    return ImageFolder(str(task.data), T.Compose([*chain, T.ToTensor(), T.Normalize(MEAN, STD)]))


class Photos(Dataset[Any]):
    def __init__(self, task: Task) -> None:
        self.files = task.files
        self.train = task.train

    def __len__(self) -> int:
        return len(self.files)


class Tensors(Photos):
    def __init__(self, task: Task) -> None:
        from torchvision.transforms import v2 as T

        super().__init__(task)
        if task.train:
            chain = [T.RandomResizedCrop(SIZE, antialias=True), T.RandomHorizontalFlip()]
        else:
            chain = [T.Resize(SHORTER, antialias=True), T.CenterCrop(SIZE)]
        self.chain = T.Compose([*chain, T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)])

    def __getitem__(self, index: int) -> Any:
        from torchvision.io import ImageReadMode, decode_jpeg, read_file

        path, label = self.files[index]
        return self.chain(decode_jpeg(read_file(str(path)), ImageReadMode.RGB)), label


class Albumentations(Photos):
    def __init__(self, task: Task) -> None:
        import albumentations as A
        import cv2
        from albumentations.pytorch import ToTensorV2

        super().__init__(task)
        cv2.setNumThreads(0)
        if task.train:
            chain = [A.RandomResizedCrop(size=(SIZE, SIZE), scale=(0.08, 1)), A.HorizontalFlip(p=0.5)]
        else:
            chain = [A.SmallestMaxSize(SHORTER), A.CenterCrop(SIZE, SIZE)]
        self.chain = A.Compose([*chain, A.Normalize(MEAN, STD), ToTensorV2()])

    def __getitem__(self, index: int) -> Any:
        import cv2

        path, label = self.files[index]
        image = cv2.cvtColor(cv2.imread(str(path), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        return self.chain(image=image)["image"], label


class Tuned(Photos):
    """A whole batch at a time, each photo written straight to its place."""

    def __getitems__(self, indices: list[int]) -> Any:
        from turbo_transform import transform

        out = torch.empty((len(indices), 3, SIZE, SIZE))
        rows = out.numpy()
        for row, index in enumerate(indices):
            transform(self.files[index][0], self.train, rows[row])
        return out, torch.tensor([self.files[index][1] for index in indices])


class Arrays(Dataset[Any]):
    """One at a time, in NumPy: twice as fast as torchvision's transforms."""

    def __init__(self, task: Task) -> None:
        self.pixels, self.labels = task.arrays

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        from array_transform import transform_one

        return transform_one(self.pixels[index]), self.labels[index]


class Batched(Arrays):
    """A whole batch at a time."""

    generator: np.random.Generator | None = None

    def __getitems__(self, indices: list[int]) -> Any:
        from array_transform import transform

        if self.generator is None:
            # Made in the worker, whose seed differs from the others'.
            self.generator = np.random.default_rng(torch.initial_seed())
        pixels = transform(self.pixels[indices], self.generator)
        return torch.from_numpy(pixels), torch.from_numpy(self.labels[indices])


def unchanged(batch: Any) -> Any:
    return batch


DATA_SETS: dict[str, Any] = {
    "pillow": pillow,
    "v2": Tensors,
    "albumentations": Albumentations,
    "tuned": Tuned,
    "arrays": Arrays,
    "batched": Batched,
}


def make(task: Task) -> Batches:
    torch.set_num_threads(1)
    loader: Batches = DataLoader(
        DATA_SETS[task.variant](task),
        batch_size=task.work.batch,
        shuffle=task.work.transform != "eval",
        num_workers=task.workers,
        persistent_workers=True,
        prefetch_factor=2,
        collate_fn=unchanged if task.variant in ("tuned", "batched") else None,
    )
    return loader


serve(make)
