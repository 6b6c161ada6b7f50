"""Map-style data sets that workers import."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info


class Squares(Dataset[Any]):
    """Sample n: its number and its square in a tensor."""

    def __init__(self, length: int, offset: int = 0) -> None:
        self.length = length
        self.offset = offset

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index + self.offset, torch.full((2, 2), float(index * index))


class Lengthless(Dataset[Any]):
    """Needs a sampler."""

    def __getitem__(self, index: int) -> Any:
        return {"number": index}


class Together(Squares):
    """Fetches a batch in one call; a sample alone would be something else."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [(index, torch.tensor(len(indices))) for index in indices]


class TogetherDisabled(Squares):
    """`None` says that the method is not there after all, as Subset of torch once did."""

    __getitems__ = None


class TogetherWrong(Squares):
    """Gives back fewer than it was asked for."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [index for index in indices if index % 2]


class TogetherTensor(Squares):
    """Gives back no list."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return torch.tensor(indices)


class Named(Dataset[Any]):
    """String keys."""

    def __init__(self) -> None:
        self.items = {"ant": 1, "bee": 2, "cat": 3, "dog": 4, "eel": 5}

    def __getitem__(self, key: str) -> Any:
        return key, self.items[key]


class Growing(Dataset[Any]):
    """Shapes that change from batch to batch, as sentences of several lengths do."""

    def __init__(self, sizes: Sequence[int], batch: int) -> None:
        self.sizes = sizes
        self.batch = batch

    def __len__(self) -> int:
        return len(self.sizes) * self.batch

    def __getitem__(self, index: int) -> Any:
        size = self.sizes[index // self.batch]
        return {"tokens": torch.arange(size) + index, "mask": np.ones((size, 2), dtype=np.bool_)}


class Changing(Dataset[Any]):
    """Dtypes and structures that change from batch to batch."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        number = index // 2
        dtype = (torch.float32, torch.float64, torch.int8, torch.bool)[number % 4]
        value = torch.tensor([number, index], dtype=dtype)
        return value if number < 4 else {"value": value, "text": "x" * number}


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        return torch.arange(index), [f"word {number}" for number in range(index % 3)]


class Large(Dataset[Any]):
    """Batches of some MB, each sample different from the others."""

    def __init__(self, length: int, side: int = 64) -> None:
        self.length = length
        self.side = side

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 256, (3, self.side, self.side), dtype=torch.uint8, generator=generator), index


class Draws(Dataset[Any]):
    """Draws from the three global generators, twice from one of them."""

    def __init__(self, length: int = 13) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {
            "index": index,
            "random": random.random(),
            "numpy": np.random.rand(2),  # noqa: NPY002  (what users' code calls)
            "torch": torch.rand(2),
            "again": random.randrange(1000),
        }


class Seeds(Draws):
    """What a sample may do with torch's seed."""

    def __getitem__(self, index: int) -> Any:
        seed = torch.initial_seed()
        drawn = np.random.default_rng(seed % 2**32).random(2)
        return {"index": index, "seed": torch.tensor(seed), "drawn": drawn}


class WhoAmI(Dataset[Any]):
    """What a worker can know about itself, and which process it is."""

    def __init__(self, length: int = 12) -> None:
        self.length = length
        self.note = "untouched"

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info is None:
            return {"index": index, "process": os.getpid(), "thread": threading.get_ident()}
        return {
            "index": index,
            "id": info.id,
            "workers": info.num_workers,
            "seed": info.seed,
            "mine": info.dataset is self,
            "note": self.note,
            "drawn": (random.random(), float(np.random.rand()), torch.rand(()).item()),  # noqa: NPY002
            "threads": torch.get_num_threads(),
            "process": os.getpid(),
        }


class Counting(Dataset[Any]):
    """Counts its own calls: copies of the data set, and how long they live, become visible."""

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.calls = 0
        self.note = "first"

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return index, self.note, self.calls


def note_worker(worker: int) -> None:
    """A worker_init_fn that changes the worker's copy of the data set, and its seeds."""
    info = get_worker_info()
    assert info is not None and info.id == worker
    info.dataset.note = f"worker {worker} of {info.num_workers}"


def seed_worker(worker: int) -> None:
    """torch's own recipe for reproducible workers."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def pad(batch: Sequence[Any]) -> Any:
    lengths = torch.tensor([len(values) for values, _ in batch])
    padded = torch.nn.utils.rnn.pad_sequence([values for values, _ in batch], batch_first=True)
    return padded, lengths, [words for _, words in batch]


class PaddingCollator:
    """A collate function with parameters, as in libraries for text."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, batch: Sequence[Any]) -> dict[str, torch.Tensor]:
        made = torch.full((len(batch), self.length), -1)
        for row, (values, _) in zip(made, batch, strict=True):
            row[: len(values)] = values
        return {"input_ids": made, "attention_mask": made >= 0}


class EveryOther:
    """A sampler that is no Sampler."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, self.length, 2))

    def __len__(self) -> int:
        return (self.length + 1) // 2


class Buckets:
    """A batch sampler whose batches differ in size; draws from torch's global generator as it goes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.length).tolist()
        while order:
            size = int(torch.randint(1, 4, ()))
            yield order[:size]
            order = order[size:]


class WithEpoch:
    """A sampler with an epoch, as schedulers of curricula have."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([(index * 7 + self.epoch) % self.length for index in range(self.length)])

    def __len__(self) -> int:
        return self.length
