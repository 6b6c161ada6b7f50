"""The program's own thread in a worker's place: a trial before the workers start, a batch meanwhile.

The data set must not notice. What it opens with its first sample must not stay in the program's copy,
which may have to be sent to a worker again and could not be; and `get_worker_info` must not be None.
"""

from __future__ import annotations

import dataclasses
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from feedline.workers import torch_side
from feedline.workers.job import Job

# A data set in a Subset in a ConcatDataset, and one more.
_DEEP = 4
# A copy of a queue would close under the original what both hold.
PROCESSES = "multiprocessing.", "torch.multiprocessing."


class StandIn:
    """A data set's copy as a worker would have it. `asked` says whether it looked who the worker is or
    what it was seeded with."""

    def __init__(self, job: Job, base_seed: int) -> None:
        self.copy = shallow_copy(job.dataset)
        self.asked = False
        self._info: Any = None
        if job.torch:
            self._info = torch_side.make_info(
                dataclasses.replace(job, dataset=self.copy), 0, base_seed, "multiprocessing", self._ask
            )

    def _ask(self) -> None:
        self.asked = True

    def seed_watched(self) -> AbstractContextManager[None]:
        """Meanwhile, whoever reads torch.initial_seed() has `asked` too."""
        return torch_side.seed_watched(self._ask) if "torch" in sys.modules else nullcontext()

    def __getitem__(self, index: Any) -> Any:
        with torch_side.info_is(self._info):
            return self.copy[index]

    @property
    def __getitems__(self) -> Any:
        # An attribute that may be None, as `hasattr` and torch take it.
        many = getattr(self.copy, "__getitems__", None)
        if not many:
            return None

        def fetch(indices: Any) -> Any:
            with torch_side.info_is(self._info):
                return many(indices)

        return fetch


def shallow_copy(thing: Any, depth: int = _DEEP) -> Any:
    """A copy with attributes of its own, which hold the same values; of plain objects in it, copies too.

    Anything that is not a plain object with a `__dict__` is returned as it is, and so is one with a
    `__del__`, which would close under the original what both hold.
    """
    kind = type(thing)
    new: Any = kind.__new__
    plain = new is object.__new__ or getattr(new, "__module__", "") == "typing"
    if str(kind.__module__).startswith(PROCESSES):
        return thing
    if depth == 0 or not plain or not hasattr(thing, "__dict__") or hasattr(kind, "__del__"):
        return thing
    if any("__slots__" in vars(base) and vars(base)["__slots__"] for base in kind.__mro__):
        return thing
    copy = object.__new__(kind)
    for name, value in vars(thing).items():
        copy.__dict__[name] = _inside(value, depth - 1)
    return copy


def _inside(value: Any, depth: int) -> Any:
    if type(value) in (list, tuple) and 0 < len(value) <= 100 and any(map(_has_attributes, value)):
        return type(value)(_inside(one, depth) for one in value)
    return shallow_copy(value, depth) if _has_attributes(value) else value


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, type)
