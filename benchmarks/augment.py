"""Augmentation beside torchvision v2: one thread each, the same images, in turns.

    python benchmarks/augment.py [--images 32] [--repeats 25] [--only OP] [--json FILE]

feedline reads decoded pixels from memory (height, width, channels, as its decoders write them) and hands
over batches; torchvision gets tensors (channels, height, width, as its decoder writes them) one by one. The
figure is the best of many short runs, since whatever else runs on the machine only ever adds time.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from typing import Any

import feedline
import numpy as np
import torch
import torchvision
from feedline import transforms as ours
from torchvision.transforms import v2 as theirs

BATCH = 32
CLASSES = 1000

OPS: dict[str, tuple[list[ours.Transform], Callable[[Any], Any]]] = {
    "ColorJitter(0.4, 0.4, 0.4, 0.1)": (
        [ours.ColorJitter(0.4, 0.4, 0.4, 0.1)],
        theirs.ColorJitter(0.4, 0.4, 0.4, 0.1),
    ),
    "ColorJitter(brightness=0.4)": ([ours.ColorJitter(0.4)], theirs.ColorJitter(0.4)),
    "ColorJitter(contrast=0.4)": ([ours.ColorJitter(contrast=0.4)], theirs.ColorJitter(contrast=0.4)),
    "ColorJitter(saturation=0.4)": (
        [ours.ColorJitter(saturation=0.4)],
        theirs.ColorJitter(saturation=0.4),
    ),
    "ColorJitter(hue=0.1)": ([ours.ColorJitter(hue=0.1)], theirs.ColorJitter(hue=0.1)),
    "RandomGrayscale(1)": ([ours.RandomGrayscale(1)], theirs.RandomGrayscale(1)),
    "Grayscale()": ([ours.Grayscale()], theirs.Grayscale()),
    "GaussianBlur(5)": ([ours.GaussianBlur(5)], theirs.GaussianBlur(5)),
    "GaussianBlur(23)": ([ours.GaussianBlur(23)], theirs.GaussianBlur(23)),
    "RandomErasing(1)": ([ours.RandomErasing(1)], theirs.RandomErasing(1)),
    'RandomErasing(1, value="random")': (
        [ours.ToDtype(scale=True), ours.RandomErasing(1, value="random")],
        theirs.Compose([theirs.ToDtype(torch.float32, scale=True), theirs.RandomErasing(1, value="random")]),
    ),
    "RandomRotation(30)": ([ours.RandomRotation(30)], theirs.RandomRotation(30)),
    "RandomRotation(30, bilinear)": (
        [ours.RandomRotation(30, "bilinear")],
        theirs.RandomRotation(30, theirs.InterpolationMode.BILINEAR),
    ),
    "RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10)": (
        [ours.RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10)],
        theirs.RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10),
    ),
    "RandomAffine(..., bilinear)": (
        [ours.RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, "bilinear")],
        theirs.RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, theirs.InterpolationMode.BILINEAR),
    ),
    "Pad(4)": ([ours.Pad(4)], theirs.Pad(4)),
    'Pad(4, padding_mode="reflect")': (
        [ours.Pad(4, padding_mode="reflect")],
        theirs.Pad(4, padding_mode="reflect"),
    ),
    "RandAugment()": ([ours.RandAugment()], theirs.RandAugment()),
    "TrivialAugmentWide()": ([ours.TrivialAugmentWide()], theirs.TrivialAugmentWide()),
}

MIXES: dict[str, tuple[ours.Transform, Any]] = {
    "MixUp": (ours.MixUp(num_classes=CLASSES), theirs.MixUp(num_classes=CLASSES)),
    "CutMix": (ours.CutMix(num_classes=CLASSES), theirs.CutMix(num_classes=CLASSES)),
}


def pictures(count: int, side: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side]
    images = np.empty((count, side, side, 3), np.uint8)
    for number in range(count):
        phase = rng.uniform(0, 6, (3, 2))
        planes = [np.sin(x / 20 + a) * 70 + np.cos(y / 15 + b) * 50 + 128 for a, b in phase]
        noise = rng.normal(0, 12, (side, side, 3))
        images[number] = (np.stack(planes, -1) + noise).clip(0, 255).astype(np.uint8)
    return images


def epoch_of_ours(loader: feedline.Loader) -> Callable[[], None]:
    def run() -> None:
        for _ in loader:
            pass

    return run


def best(run: Callable[[], None], count: int) -> float:
    began = time.perf_counter()
    run()
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", help="also write the figures here")
    given = parser.parse_args()
    torch.set_num_threads(1)
    images = pictures(given.images, given.side)
    labels = np.arange(given.images) % CLASSES
    tensors = [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in images]
    rows = []

    def compare(name: str, mine: list[ours.Transform], other: Callable[[], None]) -> None:
        if given.only not in name:
            return
        loader = feedline.Loader(
            {"image": images, "label": labels},
            batch_size=BATCH,
            transforms=mine,
            layout="HWC" if not mine or name not in MIXES else "CHW",
            num_workers=0,
        )
        run = epoch_of_ours(loader)
        figures: list[list[float]] = [[], []]
        run()
        for _ in range(given.repeats):
            figures[0].append(best(run, given.images))
            figures[1].append(best(other, given.images))
        ratio = max(figures[0]) / max(figures[1])
        rows.append({"op": name, "feedline": max(figures[0]), "torchvision": max(figures[1]), "ratio": ratio})
        print(f"| {name} | {max(figures[0]):,.0f} | {max(figures[1]):,.0f} | {ratio:.1f} |", flush=True)

    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, {platform.processor()}")
    print(f"{given.side} x {given.side} x 3 uint8, one thread, images/s, best of {given.repeats}\n")
    print("| op | feedline | torchvision v2 | ratio |\n|---|---:|---:|---:|")
    for name, (mine, op) in OPS.items():

        def other(op: Any = op) -> None:
            for image in tensors:
                op(image)

        compare(name, mine, other)
    classes = torch.from_numpy(labels)
    to_float = theirs.ToDtype(torch.float32, scale=True)
    for name, (one, mix) in MIXES.items():

        def mixed(mix: Any = mix) -> None:
            for start in range(0, given.images, BATCH):
                batch = torch.stack([to_float(image) for image in tensors[start : start + BATCH]])
                mix(batch, classes[start : start + BATCH])

        compare(name, [ours.ToDtype(scale=True), one], mixed)
    if given.json:
        with open(given.json, "w") as file:
            json.dump(
                {"torch": torch.__version__, "torchvision": torchvision.__version__, "rows": rows}, file
            )


if __name__ == "__main__":
    main()
