"""torch's DataLoader over torchvision's ImageFolder, decoding with Pillow: what most people run."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from serve import BATCH, MEAN, SIZE, STD, serve
from torchvision import transforms as T
from torchvision.datasets import ImageFolder


def make(data: str, workers: int) -> Iterable[tuple[Any, Any]]:
    torch.set_num_threads(1)
    chain = T.Compose(
        [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    )
    loader: Iterable[tuple[Any, Any]] = torch.utils.data.DataLoader(
        ImageFolder(data, chain),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return loader


serve(make)
