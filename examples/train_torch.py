"""Trains a small CNN on photos; killed at any moment, it goes on where it was, to the bit.

    feedline sample-data photos
    python examples/train_torch.py photos run           # kill -9 it, start it again
    python examples/train_torch.py photos run --native  # decoding and augmentation in Rust

`run/losses.txt` gets a line for each step, as hexadecimal floats, so that two runs can be compared
with `diff`. `run/checkpoint.pt` is replaced every few steps.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import feedline
import torch
from feedline import transforms as T
from feedline.torch import DataLoader
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

SIZE = 48
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def python_loader(folder: Path, batch_size: int, workers: int) -> DataLoader[Any]:
    """torchvision's data set and transforms, as anywhere; only the import of DataLoader is another."""
    chain = [
        v2.RandomResizedCrop(SIZE),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.2, 0.2, 0.2),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    data = ImageFolder(str(folder), v2.Compose(chain))
    return DataLoader(data, batch_size, shuffle=True, num_workers=workers, drop_last=True)


def native_loader(folder: Path, batch_size: int, workers: int) -> feedline.Loader:
    """The same without a line of Python in a sample's way."""
    chain = [
        T.RandomResizedCrop(SIZE),
        T.RandomHorizontalFlip(),
        T.ColorJitter(0.2, 0.2, 0.2),
        T.ToDtype("float32", scale=True),
        T.Normalize(MEAN, STD),
    ]
    return feedline.Loader(
        folder, chain, batch_size, shuffle=True, num_workers=workers, drop_last=True, output="torch"
    )


def small_cnn(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in [(3, 16), (16, 32), (32, 64)]:
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, classes)]
    return nn.Sequential(*layers)


def save(state: dict[str, Any], path: Path) -> None:
    """Replaces a file at once: whoever reads it finds the old one or the new one, never a half."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    make = native_loader if options.native else python_loader
    loader = make(options.photos, options.batch_size, options.workers)
    classes = sum(path.is_dir() for path in options.photos.iterdir())
    model = small_cnn(classes)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    options.run.mkdir(parents=True, exist_ok=True)
    checkpoint, curve = options.run / "checkpoint.pt", options.run / "losses.txt"
    step, generator = 0, None
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        loader.load_state_dict(state["loader"])
        step, generator = state["step"], state["generator"]
        print(f"going on after step {step}", flush=True)
    # Steps after the checkpoint will be made again.
    lines = curve.read_text().splitlines(keepends=True)[:step] if step else []
    curve.write_text("".join(lines))

    with curve.open("a", buffering=1) as losses:
        while step < options.steps:
            batches = iter(loader)
            if generator is not None:
                # After iter(), which draws from it to begin an epoch: this one had begun already.
                torch.set_rng_state(generator)
                generator = None
            for images, labels in batches:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                step += 1
                losses.write(f"{step} {loss.item().hex()}\n")
                if step % options.every == 0 or step == options.steps:
                    state = {
                        "step": step,
                        "model": model.state_dict(),
                        "optimiser": optimiser.state_dict(),
                        "loader": loader.state_dict(),
                        "generator": torch.get_rng_state(),
                    }
                    save(state, checkpoint)
                if step == options.steps:
                    break
    print(f"{step} steps, their losses in {curve}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path, help="photos in class folders")
    parser.add_argument("run", type=Path, help="where the checkpoint and the losses are kept")
    parser.add_argument("--native", action="store_true", help="decode and augment in Rust")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    train(parser.parse_args())


# No worker runs this file again, so a guard is not needed; with torch's DataLoader it would be.
main()
