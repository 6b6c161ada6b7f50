"""Iterable-style data sets that workers import."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset[Any]):
    """Every worker gives all of it, as a naive data set does."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            yield number, torch.full((2,), float(number))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.length


class WrongSize(Stream):
    """Promises less than it gives."""

    def __len__(self) -> int:
        return self.length // 2


class Sharded(Stream):
    """Shares its samples among the workers, as torch's documents advise."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield number, (info.id if info else -1)


class Uneven(IterableDataset[Any]):
    """Worker n gives so many samples."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = info.id if info else 0
        for number in range(self.lengths[worker]):
            yield worker * 1000 + number


class Held(Uneven):
    """Worker 0 gives nothing before there is a file."""

    def __init__(self, lengths: list[int], path: Path) -> None:
        super().__init__(lengths)
        self.path = path

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is not None and info.id == 0:
            while not self.path.exists():
                time.sleep(0.005)
        yield from super().__iter__()


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        step = info.num_workers if info else 1
        return iter(itertools.count(info.id if info else 0, step))


class Whole(IterableDataset[Any]):
    """Makes its own batches, of several sizes."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(1, 6):
            yield {"x": np.full((number, 2), number), "name": f"batch {number}"}


class Itself(IterableDataset[Any]):
    """Its own iterator, which never starts again."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> int:
        if self.at >= self.length:
            raise StopIteration
        self.at += 1
        return self.at


class Drawing(IterableDataset[Any]):
    """Random draws, also one before the first sample."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        first = random.random()
        for _ in range(self.length):
            yield first, random.random(), np.random.rand(), torch.rand(2)  # noqa: NPY002


class Shuffled(IterableDataset[Any]):
    """A stream with an epoch, set from outside."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        order = list(range(self.length))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


class Breaking(IterableDataset[Any]):
    """Fails after some samples."""

    def __init__(self, length: int, error: BaseException | type[BaseException]) -> None:
        self.length = length
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        yield from range(self.length)
        raise self.error


class BreakingAtOnce(IterableDataset[Any]):
    """`__iter__` itself fails."""

    def __iter__(self) -> Iterator[Any]:
        raise ValueError("no stream today")


class NoIterator(IterableDataset[Any]):
    """`__iter__` gives something that is no iterator."""

    def __iter__(self) -> Any:
        return [1, 2, 3]


class Position:
    """An iterator with a state, over a share of the samples."""

    def __init__(self, length: int, first: int, step: int) -> None:
        self.length, self.at, self.step = length, first, step

    def __iter__(self) -> Position:
        return self

    def __next__(self) -> int:
        if self.at >= self.length:
            raise StopIteration
        self.at += self.step
        return self.at - self.step

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class IteratorWithState(IterableDataset[Any]):
    """The state lies in the iterator."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Position:
        info = get_worker_info()
        return Position(self.length, info.id if info else 0, info.num_workers if info else 1)


class WithState(IterableDataset[Any]):
    """The state lies in the data set, and `__iter__` goes on from it; counts how often it was read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0
        self.reads = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        start, self.at = self.at, 0
        for number in range(start, self.length):
            self.at = number + 1
            self.reads += 1
            if number % workers == worker:
                yield number
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class RandomWithState(IterableDataset[Any]):
    """A shuffle buffer with its own generator, saved with its state: what a real stream does."""

    def __init__(self, length: int, room: int = 5) -> None:
        self.length = length
        self.room = room
        self.generator = random.Random(3)
        self.buffer: list[int] = []
        self.at = 0
        self.resumed = False

    def __iter__(self) -> Iterator[Any]:
        if not self.resumed:
            self.buffer, self.at = [], 0
        self.resumed = False
        while self.at < self.length or self.buffer:
            while self.at < self.length and len(self.buffer) < self.room:
                self.buffer.append(self.at)
                self.at += 1
            yield self.buffer.pop(self.generator.randrange(len(self.buffer)))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "buffer": list(self.buffer), "generator": self.generator.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.buffer = state["at"], list(state["buffer"])
        self.generator.setstate(state["generator"])
        self.resumed = True


class Marked(IterableDataset[Any]):
    """Takes a loaded state into account when its next iterator is asked for the first sample."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0
        self.mark: int | None = None

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        self.at = 0
        if self.mark is not None:
            self.at, self.mark = self.mark, None
        for number in range(self.at, self.length):
            self.at = number + 1
            if number % workers == worker:
                yield number

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.mark = state["at"]


class ItselfWithState(Itself):
    """Its own iterator, which goes on where it was, and begins anew after its end."""

    def __next__(self) -> int:
        if self.at >= self.length:
            self.at = 0
            raise StopIteration
        self.at += 1
        return self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Rewinding(ItselfWithState):
    """Its own iterator, which begins anew with each iteration."""

    def __iter__(self) -> Iterator[Any]:
        self.at = 0
        return self

    def __next__(self) -> int:
        return Itself.__next__(self)


class RoundRobin(IterableDataset[Any]):
    """Takes turns among streams of several lengths; a state says how far each was read."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.read = [0] * len(lengths)
        self.turn = 0
        self.resumed = False

    def __iter__(self) -> Iterator[Any]:
        if not self.resumed:
            self.read, self.turn = [0] * len(self.lengths), 0
        self.resumed = False
        while any(read < length for read, length in zip(self.read, self.lengths, strict=True)):
            at, self.turn = self.turn, (self.turn + 1) % len(self.lengths)
            if self.read[at] < self.lengths[at]:
                self.read[at] += 1
                yield 100 * at + self.read[at]

    def state_dict(self) -> dict[str, Any]:
        return {"read": list(self.read), "turn": self.turn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read, self.turn, self.resumed = list(state["read"]), state["turn"], True
