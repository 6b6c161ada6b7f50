"""Trains a small network on photos with NumPy alone; killed at any moment, it goes on to the bit.

    feedline sample-data photos
    python examples/train_numpy.py photos run    # kill -9 it, start it again

`run/losses.txt` gets a line for each step, as hexadecimal floats, so that two runs can be compared
with `diff`. `run/checkpoint.npz` is replaced every few steps. With JAX it is the same: ask for
`output="jax"`.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import numpy.typing as npt
from feedline import transforms as T

SIZE = 32
HIDDEN = 64
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
Array = npt.NDArray[np.float32]


def make_loader(folder: Path, batch_size: int, workers: int) -> feedline.Loader:
    chain = [
        T.RandomResizedCrop(SIZE),
        T.RandomHorizontalFlip(),
        T.ColorJitter(0.2, 0.2, 0.2),
        T.ToDtype("float32", scale=True),
        T.Normalize(MEAN, STD),
    ]
    return feedline.Loader(folder, chain, batch_size, shuffle=True, num_workers=workers, drop_last=True)


class Network:
    """A hidden layer with dropout and a softmax, trained by SGD with momentum."""

    def __init__(self, classes: int, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        shapes = {"in": (3 * SIZE * SIZE, HIDDEN), "out": (HIDDEN, classes)}
        self.weights: dict[str, Array] = {}
        for name, (rows, columns) in shapes.items():
            normal = self.generator.standard_normal((rows, columns), dtype=np.float32)
            self.weights[name] = normal * np.float32(rows**-0.5)
        self.momentum = {name: np.zeros_like(weight) for name, weight in self.weights.items()}

    def step(self, images: Array, labels: npt.NDArray[np.int64]) -> float:
        """One step of training; returns the loss before it."""
        rows = np.arange(len(labels))
        pixels = images.reshape(len(labels), -1)
        kept = self.generator.random((len(labels), HIDDEN), dtype=np.float32) < 0.8
        hidden = np.maximum(pixels @ self.weights["in"], 0) * kept / np.float32(0.8)
        scores = hidden @ self.weights["out"]
        scores -= scores.max(axis=1, keepdims=True)
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        loss = float(-np.log(shares[rows, labels]).mean())
        shares[rows, labels] -= 1
        back = shares / np.float32(len(labels))
        gradients = {
            "out": hidden.T @ back,
            "in": pixels.T @ ((back @ self.weights["out"].T) * (hidden > 0) / np.float32(0.8)),
        }
        for name, gradient in gradients.items():
            self.momentum[name] = np.float32(0.9) * self.momentum[name] + gradient
            self.weights[name] = self.weights[name] - np.float32(0.01) * self.momentum[name]
        return loss

    def state_dict(self) -> dict[str, Any]:
        arrays = {f"weights.{name}": weight for name, weight in self.weights.items()}
        arrays |= {f"momentum.{name}": weight for name, weight in self.momentum.items()}
        return arrays | {"generator": json.dumps(self.generator.bit_generator.state)}

    def load_state_dict(self, state: Any) -> None:
        self.weights = {name: state[f"weights.{name}"] for name in self.weights}
        self.momentum = {name: state[f"momentum.{name}"] for name in self.momentum}
        self.generator.bit_generator.state = json.loads(str(state["generator"]))


def save(state: dict[str, Any], path: Path) -> None:
    """Replaces a file at once: whoever reads it finds the old one or the new one, never a half."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, **state)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def train(options: argparse.Namespace) -> None:
    loader = make_loader(options.photos, options.batch_size, options.workers)
    network = Network(len(loader.classes), options.seed)

    options.run.mkdir(parents=True, exist_ok=True)
    checkpoint, curve = options.run / "checkpoint.npz", options.run / "losses.txt"
    step = 0
    if checkpoint.exists():
        state = np.load(checkpoint)
        network.load_state_dict(state)
        loader.load_state_dict(json.loads(str(state["loader"])))
        step = int(state["step"])
        print(f"going on after step {step}", flush=True)
    # Steps after the checkpoint will be made again.
    lines = curve.read_text().splitlines(keepends=True)[:step] if step else []
    curve.write_text("".join(lines))

    with curve.open("a", buffering=1) as losses:
        while step < options.steps:
            for images, labels in loader:
                loss = network.step(images, labels)
                step += 1
                losses.write(f"{step} {loss.hex()}\n")
                if step % options.every == 0 or step == options.steps:
                    save(
                        {
                            **network.state_dict(),
                            "step": step,
                            "loader": json.dumps(loader.state_dict()),
                        },
                        checkpoint,
                    )
                if step == options.steps:
                    break
    print(f"{step} steps, their losses in {curve}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path, help="photos in class folders")
    parser.add_argument("run", type=Path, help="where the checkpoint and the losses are kept")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    train(parser.parse_args())


main()
