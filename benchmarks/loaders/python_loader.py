"""A data set of Python code behind torch's DataLoader or feedline's, in a process of its own.

    python loaders/python_loader.py WORK WHO WORKERS [ARGUMENT]

WORK is a name in `WORKS` below, WHO a name in `WHO`. Runs an epoch for each line it is sent; `start`
and `state` end by themselves after one answer.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from contest import pss
from torch.utils.data import Dataset, IterableDataset
from works import MEAN, SIZE, STD

POOL = 64
SAMPLES = 10_000
BATCH = 64
#: A sample that sleeps for a millisecond, as one that waits for a disk or a network.
SLEEP = 0.001
#: What one of the small objects and its parts take in memory, seen with CPython 3.11.
OBJECT_BYTES = 445
#: A pause between epochs, as an evaluation makes one.
PAUSE = 1.0
STEP = 0.01
STEPS = 500
#: Tokens of a row.
ROW = 1024


class Sleeping(Dataset[Any]):
    """Ready tensors that take a millisecond to come."""

    def __init__(self) -> None:
        self.pool = torch.randn(POOL, 3, SIZE, SIZE)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLEEP)
        return self.pool[index % POOL]


def photos(folder: str) -> Any:
    """Pillow and torchvision v2: what most people run."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2 as T

    chain = [
        T.RandomResizedCrop(SIZE, antialias=True),
        T.RandomHorizontalFlip(),
        T.ToImage(),
        T.ToDtype(torch.float32, scale=True),
        T.Normalize(MEAN, STD),
    ]
    return ImageFolder(folder, T.Compose(chain))


class Objects(Dataset[Any]):
    """A list of dicts, as a JSON file gives it."""

    def __init__(self, megabytes: str) -> None:
        count = int(float(megabytes) * 1e6) // OBJECT_BYTES
        self.rows = [
            {"path": f"photos/{number:012}.jpg", "label": number, "box": (number + 0.25, number + 0.5)}
            for number in range(count)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row: Any = self.rows[index]
        return row["label"] + row["box"][0], len(row["path"])


class Arrays(Dataset[Any]):
    """The same as arrays: no object for each sample, so there are no reference counts to write to."""

    def __init__(self, megabytes: str) -> None:
        count = int(float(megabytes) * 1e6) // OBJECT_BYTES
        numbers = np.arange(count)
        self.paths = np.char.add(np.char.add(b"photos/", np.char.zfill(numbers.astype("S12"), 12)), b".jpg")
        self.labels = numbers
        self.boxes = np.stack([numbers + 0.25, numbers + 0.5], axis=1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return float(self.labels[index] + self.boxes[index, 0]), len(self.paths[index])


class Opened(Dataset[Any]):
    """The same in files that each worker maps when it needs them: processes share the pages."""

    def __init__(self, megabytes: str) -> None:
        import tempfile

        made = Arrays(megabytes)
        self.folder = tempfile.TemporaryDirectory()
        self.names = {name: f"{self.folder.name}/{name}.npy" for name in ("paths", "labels", "boxes")}
        for name, path in self.names.items():
            np.save(path, getattr(made, name))
        self.count = len(made)
        self.columns: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"names": self.names, "count": self.count, "columns": None}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.columns is None:
            self.columns = {name: np.load(path, mmap_mode="r") for name, path in self.names.items()}
        label, box = self.columns["labels"][index], self.columns["boxes"][index, 0]
        return float(label + box), len(self.columns["paths"][index])


class Stream(IterableDataset[Any]):
    """Small tensors, one after the other."""

    def __iter__(self) -> Any:
        for number in range(2000):
            yield torch.full((64,), float(number))


class Tokens(Dataset[Any]):
    """Rows of a mapped file of tokens, as nanoGPT reads them."""

    def __init__(self, path: str) -> None:
        self.tokens = np.memmap(path, np.uint16, "r").reshape(-1, ROW)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.tokens[index].astype(np.int64))


class Rows:
    """The same rows from feedline's own loader: no Python code makes them."""

    def __init__(self, tokens: Tokens, **options: Any) -> None:
        import feedline

        # threads of the engine stay as they are, and it shuffles by a seed
        del options["persistent_workers"]
        self.loader = feedline.Loader(tokens.tokens, seed=0, **options)

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield torch.from_numpy(batch["0"]).to(torch.int64)


#: By name: the data set, its batch size, and whether it is shuffled.
WORKS: dict[str, tuple[Callable[..., Any], int, bool]] = {
    "sleeping": (Sleeping, BATCH, False),
    "photos": (photos, BATCH, True),
    "start": (photos, BATCH, True),
    "state": (Sleeping, 16, True),
    "stream": (Stream, BATCH, False),
    "tokens": (Tokens, BATCH, True),
    "objects": (Objects, 1024, True),
    "arrays": (Arrays, 1024, True),
    "opened": (Opened, 1024, True),
}

#: By name: the module of the loader, and its further arguments.
WHO: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("torch.utils.data", {}),
    "torch_fork": ("torch.utils.data", {"multiprocessing_context": "fork"}),
    "torch_spawn": ("torch.utils.data", {"multiprocessing_context": "spawn"}),
    "torch_forkserver": ("torch.utils.data", {"multiprocessing_context": "forkserver"}),
    "stateful": ("torchdata.stateful_dataloader", {}),
    "feedline": ("feedline.torch", {}),
    "feedline_threads": ("feedline.torch", {"executor": "threads"}),
    "feedline_processes": ("feedline.torch", {"executor": "processes"}),
    "feedline_spawn": ("feedline.torch", {"executor": "processes", "multiprocessing_context": "spawn"}),
    "feedline_forkserver": (
        "feedline.torch",
        {"executor": "processes", "multiprocessing_context": "forkserver"},
    ),
    "feedline_loader": ("feedline", {}),
}


def loader_class(who: str) -> Any:
    import importlib

    if who == "feedline_loader":
        return Rows
    module = importlib.import_module(WHO[who][0])
    return getattr(module, "StatefulDataLoader" if who == "stateful" else "DataLoader")


def chosen(loader: Any) -> Any:
    """What "auto" picked and why, where the loader says so."""
    return loader.stats()["executor"] if hasattr(loader, "stats") else None


def serve(make: Callable[[], Any], answers: Any) -> None:
    loader: Any = None
    # What torch, torchvision and the data set take before there is a loader.
    answer: dict[str, Any] = {"first": None, "base_pss": pss(os.getpid())}
    for _ in sys.stdin:
        if loader is None:
            began = time.perf_counter()
            loader = make()
        start, samples = time.perf_counter(), 0
        for batch in loader:
            if answer["first"] is None:
                answer["first"] = time.perf_counter() - began
            samples += len(batch if isinstance(batch, torch.Tensor) else batch[1])
        answer |= {"images": samples, "seconds": time.perf_counter() - start, "chosen": chosen(loader)}
        print(json.dumps(answer), file=answers, flush=True)


def start(make: Callable[[], Any]) -> dict[str, Any]:
    """From the loader to its first batch, and the first batch of the next epoch."""
    began = time.perf_counter()
    loader = make()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - began
    for _ in batches:
        pass
    time.sleep(PAUSE)
    began = time.perf_counter()
    next(iter(loader))
    return {"first": first, "second_epoch": time.perf_counter() - began, "chosen": chosen(loader)}


def state(make: Callable[[], Any]) -> dict[str, Any]:
    """Seconds that a state takes, in a loop of steps with a state after each."""
    loader = make()
    taken: list[float] = []
    while len(taken) < STEPS:
        for _ in loader:
            time.sleep(STEP)
            began = time.perf_counter()
            loader.state_dict()
            taken.append(time.perf_counter() - began)
    taken = taken[:STEPS]
    return {"mean": statistics.mean(taken), "median": statistics.median(taken), "worst": max(taken)}


def main() -> None:
    # What the loader prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    work, who, workers, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    data_set, batch, shuffle = WORKS[work]
    # Imported and built before the clock: both have the same to do.
    kind, data = loader_class(who), data_set(*arguments)

    def make() -> Any:
        return kind(
            data,
            batch_size=batch,
            shuffle=shuffle,
            num_workers=int(workers),
            persistent_workers=True,
            **WHO[who][1],
        )

    if work in ("start", "stream", "state"):
        print(
            json.dumps({"start": start, "stream": start, "state": state}[work](make)),
            file=answers,
            flush=True,
        )
    else:
        serve(make, answers)


if __name__ == "__main__":
    main()
