"""An iterable of the program, read by one worker."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from feedline._errors import SourceError
from feedline.code.sources import materialized, through
from feedline.code.stages import Row, Stages, failed, name_of
from feedline.workers.job import is_stateful

ANEW = "an iterable whose __iter__ begins anew each time, or a function that returns an iterator"


class Called:
    """A function that returns an iterator, as an iterable: each epoch calls it anew."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        return iter(self.function())


def stream_name(stream: Any) -> str:
    """What an iterable is called in messages."""
    return name_of(stream.function) if isinstance(stream, Called) else type(stream).__qualname__


class Stream:
    """An iterable of the program, as the one worker that reads it sees it."""

    def __init__(
        self, dataset: Any, stages: Stages, *, eager: bool, batch_size: int, rank: int, world_size: int
    ) -> None:
        self._dataset, self._stages, self._eager = dataset, stages, eager
        self._batch_size, self._rank, self._world = batch_size, rank, world_size
        self._epoch = 0
        self._batch = 0
        self._inner: Any = None
        self._iterator: Any = None
        self._taken = 0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Where the next iteration begins."""
        self._epoch, self._batch, self._inner = state["epoch"], state["batch"], state.get("inner")

    def state_dict(self) -> dict[str, Any]:
        """Where the iterable stands, if it has a state."""
        holder = self._holder()
        return {"inner": None if holder is None else holder.state_dict()}

    def _holder(self) -> Any:
        """What has a state: the iterable, or else its iterator."""
        for holder in (self._dataset, self._iterator):
            if is_stateful(holder):
                return holder
        return None

    def __iter__(self) -> Iterator[Any]:
        dataset, inner = self._dataset, self._inner
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(self._epoch)
        if inner is not None and is_stateful(dataset):
            dataset.load_state_dict(inner)
        iterator = self._iterator = iter(dataset)
        self._taken = self._batch * self._batch_size * self._world
        if inner is None:
            # Without a state there is only the long way.
            self._taken = sum(1 for _ in itertools.islice(iterator, self._taken))
        elif not is_stateful(dataset):
            self._holder().load_state_dict(inner)
        return self._rows(iterator, begins=inner is None and self._batch == 0)

    def _rows(self, iterator: Iterator[Any], *, begins: bool) -> Iterator[Any]:
        """The samples from here on; `begins`, this is the epoch's beginning."""
        if self._world == 1:
            while True:
                row = Row(self._taken, 0, self._epoch, self._taken, self._taken)
                try:
                    sample = next(iterator)
                except StopIteration:
                    if begins and self._taken == 0:
                        raise self._empty() from None
                    return
                except Exception as error:
                    raise failed(row, "read", error) from error
                self._taken += 1
                yield self._make(sample, row)
        first, last = self._rank * self._batch_size, (self._rank + 1) * self._batch_size
        while True:
            # Whether a batch is whole is known when all ranks' samples have been seen.
            begin, mine, count = self._taken, [], 0
            for count, sample in enumerate(itertools.islice(iterator, self._batch_size * self._world), 1):
                if first < count <= last:
                    mine.append(sample)
            if begins and begin == count == 0:
                raise self._empty()
            if count < self._batch_size * self._world:
                return
            self._taken += count
            for at, sample in enumerate(mine, begin + first):
                yield self._make(sample, Row(at, 0, self._epoch, at, at))

    def _empty(self) -> SourceError:
        return SourceError(
            f"{stream_name(self._dataset)}: gave no samples in epoch {self._epoch}; allowed: {ANEW}"
        )

    def _make(self, sample: Any, row: Row) -> Any:
        sample = through(sample, row, self._stages)
        return materialized(sample) if self._eager else sample


def warn_of_the_long_way(samples: int, name: str) -> None:
    """Says that resuming an iterable without a state reads again what was read before."""
    warnings.warn(
        f"{name} has no state_dict: to resume, its first {samples:,} samples are read again and thrown away",
        RuntimeWarning,
        stacklevel=5,
    )
