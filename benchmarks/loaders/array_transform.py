"""RandomCrop(32, padding 4), flip and normalise for small arrays, in NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from works import ARRAY_MEAN, ARRAY_STD

OFFSET = (np.array(ARRAY_MEAN, np.float32) * 255).reshape(3, 1, 1)
FACTOR = (1 / (np.array(ARRAY_STD, np.float32) * 255)).astype(np.float32).reshape(3, 1, 1)


def transform_one(pixels: Any) -> Any:
    padded = np.pad(pixels, ((0, 0), (4, 4), (4, 4)))
    top, left = random.randrange(9), random.randrange(9)
    window = padded[:, top : top + 32, left : left + 32]
    if random.random() < 0.5:
        window = window[:, :, ::-1]
    return (window.astype(np.float32) - OFFSET) * FACTOR


def transform(pixels: Any, generator: np.random.Generator) -> Any:
    count = len(pixels)
    padded = np.pad(pixels, ((0, 0), (0, 0), (4, 4), (4, 4)))
    tops, lefts = generator.integers(0, 9, (2, count))
    flips = generator.random(count) < 0.5
    out = np.empty((count, 3, 32, 32), np.float32)
    for row, (top, left, flip) in enumerate(zip(tops, lefts, flips, strict=True)):
        window = padded[row, :, top : top + 32, left : left + 32]
        out[row] = window[:, :, ::-1] if flip else window
    out -= OFFSET
    out *= FACTOR
    return out
