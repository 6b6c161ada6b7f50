"""Which samples come when, as torch's samplers say it, and how that is found again after a restart.

A sampler draws its order from torch's generators when it is first asked. So the state of those
generators at that moment, and how many batches were taken since, are enough to go on anywhere,
with any number of workers.
"""

from __future__ import annotations

import copy
import itertools
import random
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from feedline.workers import is_stateful

_KNOWN = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def _held(one: Any) -> list[Any]:
    return list(getattr(one, "__dict__", {}).values())


def samplers(loader: Any) -> list[Any]:
    """The sampler that the loader asks, and those inside it: batch samplers hold others.

    A loader that was given a `batch_sampler` has a `sampler` too, which nobody asks.
    """
    found: list[Any] = []
    pending = [loader._index_sampler]
    while pending:
        one = pending.pop(0)
        if all(one is not other for other in found):
            found.append(one)
            pending += [
                value for value in getattr(one, "__dict__", {}).values() if isinstance(value, Sampler)
            ]
    return found


def innermost(loader: Any) -> Any:
    """The sampler that has an epoch to be set, or the last one."""
    found = samplers(loader)
    return next((one for one in found if callable(getattr(one, "set_epoch", None))), found[-1])


def generators(loader: Any) -> list[Any]:
    """The generators that the order is drawn from: torch's own one, the loader's, the samplers'."""
    found = [torch.default_generator]
    held = [value for one in samplers(loader) for value in _held(one)]
    for one in (loader.generator, *held):
        if isinstance(one, torch.Generator) and all(one is not other for other in found):
            found.append(one)
    return found


def is_known(loader: Any) -> bool:
    """Whether the samplers are torch's own, which draw from nothing but torch's generators."""
    outer, *inner = samplers(loader)
    if type(outer) is BatchSampler:
        return len(inner) == 1 and type(inner[0]) in _KNOWN
    return type(outer) in _KNOWN and not inner


def draw_base_seed(loader: Any) -> int:
    """The seed that torch draws when an iteration begins."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())


def _stateful_sampler(loader: Any) -> Any:
    return next((one for one in samplers(loader) if is_stateful(one)), None)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if not all(a.equal(b) for a, b in zip(one["torch"], other["torch"], strict=True)):
        return False
    return one.get("random") == other.get("random") and one.get("numpy") == other.get("numpy")


class SamplerOrder:
    """The index lists of one epoch, and the state to find the next one again."""

    def __init__(self, loader: Any, state: dict[str, Any] | None = None, yielded: int = 0) -> None:
        # The loader holds on to its newest order, and must die with its last name nevertheless.
        self._loader = weakref.proxy(loader)
        self._before: dict[str, Any] | None = None
        self._sampler = _stateful_sampler(loader)
        self._iterator: Iterator[Any] | None = None
        if state is not None:
            self._resume(state, yielded)

    def begin(self) -> None:
        """Makes the sampler's iterator; torch does that when an iteration begins."""
        if self._before is not None or is_known(self._loader):
            self._iterator = iter(self._loader._index_sampler)
            return
        before = self._snapshot()
        self._iterator = iter(self._loader._index_sampler)
        if not _same(before, self._snapshot()):
            # It draws at once and not with its first element: before the base seed, which follows.
            self._before = {**before, "eager": True}

    def __next__(self) -> Any:
        if self._before is None:
            # Most samplers draw with their first element, not before.
            self._before = self._snapshot()
        assert self._iterator is not None
        return next(self._iterator)

    def sampler_state(self) -> Any:
        """The state of a sampler or its iterator that has one of its own, after the last draw."""
        if is_stateful(self._iterator):
            return {"iterator": self._iterator.state_dict()}  # type: ignore[union-attr]
        return None if self._sampler is None else {"sampler": self._sampler.state_dict()}

    @property
    def is_stateful(self) -> bool:
        """Whether the sampler keeps its own state."""
        return self._sampler is not None or is_stateful(self._iterator)

    def _snapshot(self) -> dict[str, Any]:
        """What an order depends on before it is drawn."""
        loader = self._loader
        state: dict[str, Any] = {"torch": [one.get_state() for one in generators(loader)]}
        if not is_known(loader):
            state["random"] = random.getstate()
            drawn: Any = numpy.random.get_state()  # noqa: NPY002
            kind, keys, *rest = drawn
            state["numpy"] = [kind, keys.tolist(), *rest]
        sampler = innermost(loader)
        epoch = getattr(sampler, "epoch", None)
        if isinstance(epoch, int) and callable(getattr(sampler, "set_epoch", None)):
            state["epoch"] = epoch
        return state

    def state(self) -> dict[str, Any]:
        """What it takes to draw the same order again."""
        return self._before if self._before is not None else self._snapshot()

    def _resume(self, state: dict[str, Any], yielded: int) -> None:
        loader = self._loader
        self._before = state
        own = state.get("own")
        if own is not None and "sampler" in own and self._sampler is not None:
            self._sampler.load_state_dict(own["sampler"])
            self.begin()
            return
        if own is not None and "iterator" in own:
            self.begin()
            if is_stateful(self._iterator):
                self._iterator.load_state_dict(own["iterator"])  # type: ignore[union-attr]
                return
        sampler = innermost(loader)
        if "epoch" in state and callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(state["epoch"])
        # The program's generators are its own business; only those that were handed to the
        # loader go on from where the order was drawn.
        kept = torch.default_generator.get_state()
        kept_random, kept_numpy = random.getstate(), numpy.random.get_state()  # noqa: NPY002
        try:
            for one, before in zip(generators(loader), state["torch"], strict=False):
                one.set_state(before)
            if "random" in state:
                version, numbers, extra = state["random"]
                random.setstate((version, tuple(numbers), extra))
                kind, keys, *rest = state["numpy"]
                numpy.random.set_state((kind, numpy.array(keys, numpy.uint32), *rest))  # noqa: NPY002
            self.begin()
            if state.get("eager") and loader.generator is not None:
                draw_base_seed(loader)
            for _ in range(yielded):
                try:
                    next(self)
                except StopIteration:
                    break
        finally:
            torch.default_generator.set_state(kept)
            random.setstate(kept_random)
            numpy.random.set_state(kept_numpy)  # noqa: NPY002


def load_sampler(loader: Any, own: Any) -> None:
    """Gives a sampler that keeps its own state the one it had."""
    sampler = _stateful_sampler(loader)
    if sampler is not None and own is not None and "sampler" in own:
        sampler.load_state_dict(own["sampler"])


class Guess:
    """The next epoch's order, drawn before the program asks for it, so that its first batches can
    be made ahead. It holds only if nobody draws or changes the sampler in between."""

    def __init__(self, loader: Any, count: int) -> None:
        self._loader, self._count = weakref.proxy(loader), count
        self.order = SamplerOrder(loader)
        sampler = innermost(loader)
        epoch = getattr(sampler, "epoch", None)
        if isinstance(epoch, int) and isinstance(sampler, DistributedSampler):
            # Programs call set_epoch with the next number before they iterate again.
            epoch += 1
            ahead = copy.copy(sampler)
            ahead.set_epoch(epoch)
            batches = loader.batch_sampler
            source: Any = (
                ahead if batches is None else BatchSampler(ahead, batches.batch_size, batches.drop_last)
            )
        else:
            source = loader._index_sampler
        self._before = [one.get_state() for one in generators(loader)]
        self.order._before = self.order._snapshot()
        if epoch is not None:
            self.order._before["epoch"] = epoch
        self.order._iterator = iter(source)
        self.indices: list[Any] = []
        for _ in range(count):
            try:
                self.indices.append(next(self.order))
            except StopIteration:
                break
        self._put_back()

    def _put_back(self) -> None:
        for one, state in zip(generators(self._loader), self._before, strict=True):
            one.set_state(state)

    def holds(self) -> bool:
        """Whether drawing now gives the same; the order then goes on from what was drawn now."""
        now = generators(self._loader)
        if len(now) != len(self._before):
            return False
        if not all(one.get_state().equal(state) for one, state in zip(now, self._before, strict=True)):
            return False
        fresh = iter(self._loader._index_sampler)
        if list(itertools.islice(fresh, self._count)) != self.indices:
            self._put_back()
            return False
        self.order._iterator = fresh
        return True
