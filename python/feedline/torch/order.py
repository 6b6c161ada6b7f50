"""Which samples come when, as torch's samplers say it, and how that is found again after a restart.

A sampler draws its order from torch's generators when it is first asked. So the state of those
generators at that moment, and how many batches were taken since, are enough to go on anywhere,
with any number of workers.
"""

from __future__ import annotations

import collections
import copy
import itertools
import random
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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

from feedline.torch.draws import from_text, to_text
from feedline.workers import is_stateful

_KNOWN = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
_END = object()


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
            # What is called a sampler may be any iterable.
            pending += [
                value
                for name, value in getattr(one, "__dict__", {}).items()
                if isinstance(value, Sampler) or name in ("sampler", "batch_sampler")
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


@dataclass
class Drawn:
    """What an order depends on, as it was before the order was drawn."""

    generators: list[torch.Tensor]
    """torch's default generator, and those that were handed to the loader."""
    program: list[Any] | None = None
    """random's and NumPy's global generators, where a sampler may draw from them."""
    epoch: int | None = None
    eager: bool = False
    """Whether the sampler's iterator draws when it is made, which is before the base seed is drawn."""

    def as_state(self) -> dict[str, Any]:
        """For a state: numbers, text and lists."""
        texts = [to_text(one) for one in self.generators]
        return {"generators": texts, "program": self.program, "epoch": self.epoch, "eager": self.eager}

    @staticmethod
    def of_state(state: Mapping[str, Any]) -> Drawn:
        """Reads it again."""
        generators = [from_text(text) for text in state["generators"]]
        return Drawn(generators, state["program"], state["epoch"], bool(state["eager"]))

    def draws_as(self, other: Drawn) -> bool:
        """Whether nothing was drawn between the two."""
        same = all(a.equal(b) for a, b in zip(self.generators, other.generators, strict=True))
        return same and self.program == other.program


class SamplerOrder(Iterator[Any]):
    """The index lists of one epoch, and what it takes to find the next one again."""

    def __init__(self, loader: Any) -> None:
        # The loader holds on to its newest order, and must die with its last name nevertheless.
        self._loader = weakref.proxy(loader)
        self._before: Drawn | None = None
        self._text: dict[str, Any] | None = None
        self._sampler = _stateful_sampler(loader)
        self._iterator: Iterator[Any] | None = None
        # A list that was drawn to pin the order; empty where the sampler had none.
        self._first: list[list[Any]] = []

    def begin(self) -> None:
        """Makes the sampler's iterator; torch does that when an iteration begins."""
        if self._before is not None or is_known(self._loader):
            self._iterator = iter(self._loader._index_sampler)
            return
        before = self.drawn_from()
        self._iterator = iter(self._loader._index_sampler)
        if not before.draws_as(self.drawn_from()):
            # It draws at once and not with its first element: before the base seed, which follows.
            before.eager = True
            self._before = before

    def __next__(self) -> Any:
        if self._first:
            taken = self._first.pop()
            if not taken:
                raise StopIteration
            return taken[0]
        assert self._iterator is not None
        if self._before is not None:
            return next(self._iterator)
        # Most samplers draw with their first element, not before.
        with self._loader._draws.drawing():
            self._before = self.drawn_from()
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

    def drawn_from(self) -> Drawn:
        """What an order that is drawn now depends on."""
        loader = self._loader
        drawn = Drawn([one.get_state() for one in generators(loader)])
        if not is_known(loader):
            numpys: Any = numpy.random.get_state()  # noqa: NPY002
            kind, keys, *rest = numpys
            version, numbers, extra = random.getstate()
            drawn.program = [[version, list(numbers), extra], [kind, keys.tolist(), *rest]]
        sampler = innermost(loader)
        epoch = getattr(sampler, "epoch", None)
        if isinstance(epoch, int) and callable(getattr(sampler, "set_epoch", None)):
            drawn.epoch = epoch
        return drawn

    def state(self, *, over: bool) -> dict[str, Any]:
        """What it takes to draw the same order again, or the next one if this one is over."""
        if self._before is None or over:
            # It will be drawn from what is pinned now.
            drawn = self.drawn_from()
            drawn.generators[0] = self._loader._draws.pin()
            return drawn.as_state()
        if self._text is None:
            self._text = self._before.as_state()
        return self._text

    def resume(self, state: Mapping[str, Any], yielded: int) -> None:
        """Draws an order that was begun before, and passes over what was yielded of it."""
        loader = self._loader
        before = self._before = Drawn.of_state(state)
        (own,) = state["own"]
        if own is not None and "sampler" in own and self._sampler is not None:
            _load(self._sampler, own["sampler"], over=yielded == 0)
            self.begin()
            return
        if own is not None and "iterator" in own:
            self.begin()
            if is_stateful(self._iterator):
                self._iterator.load_state_dict(own["iterator"])  # type: ignore[union-attr]
                return
        sampler = innermost(loader)
        if before.epoch is not None and callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(before.epoch)
        # The program's generators are its own business; only those that were handed to the
        # loader go on from where the order was drawn.
        with _globals_kept():
            for one, drawn in zip(generators(loader), before.generators, strict=False):
                one.set_state(drawn)
            if before.program is not None:
                (version, numbers, extra), (kind, keys, *rest) = before.program
                random.setstate((version, tuple(numbers), extra))
                numpy.random.set_state((kind, numpy.array(keys, numpy.uint32), *rest))  # noqa: NPY002
            self.begin()
            if before.eager and loader.generator is not None:
                draw_base_seed(loader)
            collections.deque(itertools.islice(self, yielded), 0)
            if yielded == 0:
                # Samplers draw their order with the first element.
                self._first = [list(itertools.islice(self, 1))]
            after = torch.default_generator.get_state()
        if state["generators"][0] == state["draws"]:
            # It was not drawn yet when the state was taken.
            loader._draws.resume(after)


def resume_between(loader: Any, state: Mapping[str, Any]) -> None:
    """Puts generators and samplers where they were when an epoch was over, or none was begun."""
    drawn = Drawn.of_state(state)
    for one, before in zip(generators(loader)[1:], drawn.generators[1:], strict=False):
        one.set_state(before)
    (own,) = state["own"]
    if own is None:
        return
    if "iterator" in own:
        iterator = iter(loader._index_sampler)
        if is_stateful(iterator):
            iterator.load_state_dict(own["iterator"])
            with _globals_kept():
                next(iterator, None)
        return
    sampler = _stateful_sampler(loader)
    if sampler is not None:
        _load(sampler, own["sampler"], over=bool(state["begun"]))


def _load(sampler: Any, own: Any, *, over: bool) -> None:
    """Gives a sampler the state it had; `over` if that may be the end of an epoch before."""
    sampler.load_state_dict(own)
    if not over:
        return
    with _globals_kept():
        was_end = next(iter(sampler), _END) is _END
    if not was_end:
        # The sampler is as it is when an epoch begins.
        sampler.load_state_dict(own)


@contextmanager
def _globals_kept() -> Iterator[None]:
    """What samplers draw in here from the global generators, the program does not notice."""
    kept = torch.default_generator.get_state()
    kept_random, kept_numpy = random.getstate(), numpy.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(kept)
        random.setstate(kept_random)
        numpy.random.set_state(kept_numpy)  # noqa: NPY002


class Guess:
    """The next epoch's order, drawn before the program asks for it, so that its first batches can
    be made ahead. It holds only if nobody draws or changes the sampler in between."""

    def __init__(self, loader: Any, count: int) -> None:
        self._loader, self._count = weakref.proxy(loader), count
        self.made_from: Any = None
        self._held = False
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
        self.order._before = self.order.drawn_from()
        if epoch is not None:
            self.order._before.epoch = epoch
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

    def more(self) -> Any:
        """Another list: there may be more room than there was."""
        if self._held:
            return next(self.order)
        before = [one.get_state() for one in generators(self._loader)]
        try:
            self.indices.append(next(self.order))
        finally:
            for one, state in zip(generators(self._loader), before, strict=True):
                one.set_state(state)
        return self.indices[-1]

    def holds(self) -> bool:
        """Whether drawing now gives the same; the order then goes on from what was drawn now."""
        now = generators(self._loader)
        if len(now) != len(self._before):
            return False
        if not all(one.get_state().equal(state) for one, state in zip(now, self._before, strict=True)):
            return False
        fresh = iter(self._loader._index_sampler)
        if list(itertools.islice(fresh, max(self._count, len(self.indices)))) != self.indices:
            self._put_back()
            return False
        self.order._iterator, self._held = fresh, True
        return True
