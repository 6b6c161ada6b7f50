"""The transform of someone who knows the tricks: libjpeg-turbo with fast DCT, OpenCV, no tensors."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from works import MEAN, SHORTER, SIZE, STD

cv2.setNumThreads(0)
OFFSET = np.array(MEAN, np.float32) * 255
FACTOR = (1 / (np.array(STD, np.float32) * 255)).astype(np.float32)


def part(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, width and height as RandomResizedCrop draws them."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def transform(path: Path, train: bool, out: Any) -> None:
    """Reads a photo and writes [3, 224, 224] of float32."""
    image = simplejpeg.decode_jpeg(path.read_bytes(), "RGB", fastdct=True, fastupsample=True)
    height, width = image.shape[:2]
    if train:
        x, y, w, h = part(width, height)
        image = cv2.resize(image[y : y + h, x : x + w], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
        if random.random() < 0.5:
            image = image[:, ::-1]
    else:
        scale = SHORTER / min(height, width)
        sides = round(width * scale), round(height * scale)
        image = cv2.resize(image, sides, interpolation=cv2.INTER_LINEAR)
        x, y = (sides[0] - SIZE) // 2, (sides[1] - SIZE) // 2
        image = image[y : y + SIZE, x : x + SIZE]
    for channel in range(3):
        np.subtract(image[:, :, channel], OFFSET[channel], out=out[channel])
        out[channel] *= FACTOR[channel]
