"""What a worker does: fetch samples, join them into a batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from feedline import _native
from feedline.workers.seeds import seed_all, seed_row
from feedline.workers.slots import Slot
from feedline.workers.stack import Stack
from feedline.workers.torch_side import torch_module

_END = object()


@dataclass
class Job:
    """All that a worker must know; it travels to worker processes."""

    dataset: Any
    kind: Literal["map", "iterable"]
    collate: Callable[[Any], Any]
    """Joins a list of samples, or converts one sample if `batched` is false."""
    batched: bool = True
    """Whether a task names a list of samples."""
    stacks: bool = False
    """Whether `collate` is the library's default, so that rows may be written in place."""
    torch: bool = False
    """Whether batches are torch's, and torch's worker info is set."""
    drop_last: bool = False
    init: Callable[[int], Any] | None = None
    num_workers: int = 0
    registry: dict[Any, Any] = field(default_factory=dict)
    """Functions that the program added to torch's default_collate_fn_map."""

    @property
    def streams(self) -> bool:
        """Whether samples are fetched one by one and may be written in place."""
        return self.batched and self.stacks and not _takes_many(self.dataset)


def _takes_many(dataset: Any) -> bool:
    return bool(getattr(dataset, "__getitems__", None))


def is_stateful(thing: Any) -> bool:
    """Whether this has a state to be kept, as torchdata's Stateful has. A class has none: its objects do."""
    if isinstance(thing, type):
        return False
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def _load(thing: Any, state: Any) -> None:
    if state is not None and is_stateful(thing):
        thing.load_state_dict(state)


@dataclass
class Task:
    """One batch to be made."""

    number: int
    index: Any
    """What the data set is asked for; for an iterable, a list as long as the batch."""
    seed: int | None = None
    """Seeds the global generators before the batch is made; None leaves them alone."""
    worker: int | None = None
    """The worker that must make it; None means any."""
    snapshot: bool = False
    """Whether the data set's state is wanted after this batch."""
    note: Any = None
    """The consumer's own; it does not travel."""
    made: list[Any] | None = None
    """Samples that the consumer has made already, from the first on; they do not travel."""


class Times(NamedTuple):
    """Where a batch's time went, in seconds."""

    code: float
    """For the samples."""
    cpu: float
    """Of these on a core."""
    join: float
    """For joining them."""
    hand_over: float
    """For handing them over."""
    began: float
    """When its first sample was begun, by the clock that all processes of a machine share."""


class Ended(Exception):
    """An iterable has no more samples."""


def _nowhere(_: Slot | None) -> AbstractContextManager[None]:
    return nullcontext()


class Maker:
    """One worker's hands: a data set, and the iterator over it if it is an iterable."""

    def __init__(self, job: Job) -> None:
        self.job = job
        # Entered with the slot while samples are joined.
        self.joining: Callable[[Slot | None], AbstractContextManager[None]] = _nowhere
        self._copier: _native.Copier | None = None
        self._iterator: Any = None
        self._ended = False
        self._joined = 0.0

    def timed(
        self,
        task: Task,
        slot: Slot | None = None,
        row: Callable[[int], None] = lambda _: None,
    ) -> tuple[Any, Times]:
        """The batch of a task, and how long it took."""
        self._joined = 0.0
        began, cpu = time.perf_counter(), time.thread_time()
        value = self.make(task, slot, row)
        code = max(0.0, time.perf_counter() - began - self._joined)
        return value, Times(code, min(code, max(0.0, time.thread_time() - cpu)), self._joined, 0.0, began)

    def begin(self, state: Any = None, skip: int = 0, rows: int = 0, ended: bool = False) -> Any:
        """Begins an epoch, at `state`, and passes over `skip` batches of `rows` samples. Without a state
        it returns the one that brings the data set here again, if it has one; `ended` says then that an
        iterator over it was at its end."""
        dataset, ended, self._ended = self.job.dataset, ended or self._ended, False
        if state is not None and state["dataset"] is None and state["iterator"] is None:
            state = None
        before = None
        if state is None and is_stateful(dataset):
            before = {"dataset": dataset.state_dict(), "iterator": None, "ended": ended, "anew": True}
        if self.job.kind == "map":
            if state is not None:
                _load(dataset, state["dataset"])
            return before
        if state is not None:
            self._restore(state)
        else:
            self._iterator = iter(dataset)
            if is_stateful(self._iterator):
                before = self.state()
        try:
            for _ in range(0 if self._ended else skip * (rows or 1)):
                next(self._iterator)
        except StopIteration:
            self._ended = True
        return before

    def _restore(self, state: dict[str, Any]) -> None:
        dataset, anew = self.job.dataset, bool(state.get("anew"))
        _load(dataset, state["dataset"])
        self._iterator = iter(dataset)
        if not anew or state["ended"]:
            _load(self._iterator, state["iterator"])
        if not state["ended"]:
            return
        # Many data sets take a loaded state into account when they are asked for the first sample after
        # it: at the end of an epoch that has to be over before the next one begins.
        if next(self._iterator, _END) is not _END:
            # This one was as it is at a beginning.
            _load(dataset, state["iterator"] if self._iterator is dataset else state["dataset"])
        self._ended = not anew
        if anew:
            self._iterator = iter(dataset)

    def state(self) -> dict[str, Any]:
        """Where the data set and its iterator stand."""
        dataset, iterator = self.job.dataset, self._iterator
        state: dict[str, Any] = {"dataset": None, "iterator": None, "ended": self._ended, "anew": False}
        if iterator is not None and is_stateful(iterator):
            state["iterator"] = iterator.state_dict()
        if iterator is not dataset and is_stateful(dataset):
            state["dataset"] = dataset.state_dict()
        return state

    def make(
        self,
        task: Task,
        slot: Slot | None = None,
        row: Callable[[int], None] = lambda _: None,
    ) -> Any:
        """The batch of a task. `row` hears which sample is next."""
        if task.seed is not None:
            seed_all(task.seed)
        row(0)
        if self.job.kind == "iterable":
            return self._next(task.index, slot, row)
        dataset, index = self.job.dataset, task.index
        if not self.job.batched:
            return self._join(task.made[0] if task.made else dataset[index], slot)
        if _takes_many(dataset):
            return self._join(task.made or dataset.__getitems__(index), slot)
        made = task.made or []
        first = len(made)
        if slot is None or not self.job.stacks:
            for at in range(first, len(index)):
                row(at)
                if task.seed is not None:
                    seed_row(task.seed, at)
                made.append(dataset[index[at]])
            if task.seed is not None:
                seed_row(task.seed, -1)
            return self._join(made, slot)
        stack = self.stack(len(index), slot)
        try:
            for at in range(len(index)):
                row(at)
                if task.seed is not None:
                    seed_row(task.seed, at)
                stack.add(at, made[at] if at < first else dataset[index[at]])
            return stack.finish()
        finally:
            # The slot goes to somebody else after this.
            stack.settle()

    def stack(self, rows: int, slot: Slot) -> Stack:
        """A batch that is written in place."""
        if self._copier is None:
            self._copier = _native.Copier()
        torch = torch_module() if self.job.torch else None
        return Stack(rows, slot, lambda samples: self._join(samples, slot), torch, self._copier)

    def _join(self, samples: Any, slot: Slot | None) -> Any:
        began = time.perf_counter()
        try:
            with self.joining(slot):
                return self.job.collate(samples)
        finally:
            self._joined += time.perf_counter() - began

    def _next(self, index: Any, slot: Slot | None, row: Callable[[int], None]) -> Any:
        if self._ended:
            raise Ended
        if not self.job.batched:
            try:
                sample = next(self._iterator)
            except StopIteration:
                self._ended = True
                raise Ended from None
            return self._join(sample, slot)
        rows = len(index)
        stack = None if slot is None or not self.job.stacks else self.stack(rows, slot)
        try:
            return self._collect(rows, stack, slot, row)
        finally:
            if stack is not None:
                stack.settle()

    def _collect(self, rows: int, stack: Stack | None, slot: Slot | None, row: Callable[[int], None]) -> Any:
        samples: list[Any] = []
        count = 0
        while count < rows:
            row(count)
            try:
                sample = next(self._iterator)
            except StopIteration:
                self._ended = True
                break
            if stack is None:
                samples.append(sample)
            else:
                stack.add(count, sample)
            count += 1
        if count == 0 or (self.job.drop_last and count < rows):
            self._ended = True
            raise Ended
        return self._join(samples, slot) if stack is None else stack.finish(count)
