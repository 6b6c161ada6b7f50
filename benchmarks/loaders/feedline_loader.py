"""feedline with its defaults."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import feedline
from feedline import transforms as T
from serve import BATCH, MEAN, SIZE, STD, serve


def make(data: str, workers: int) -> Iterable[tuple[Any, Any]]:
    chain = [
        T.RandomResizedCrop(SIZE),
        T.RandomHorizontalFlip(),
        T.ToDtype("float32", scale=True),
        T.Normalize(MEAN, STD),
    ]
    return feedline.Loader(data, chain, batch_size=BATCH, shuffle=True, num_workers=workers)


serve(make)
