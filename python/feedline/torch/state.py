"""How far an epoch has come, as a state says it.

A state has the same keys at all times, and each value is a number, a text, None, a list of these or a
tuple: torch.distributed.checkpoint reads what it finds into the structure of the present state, and takes
a tuple as it is. Where the states of the program's own data set and sampler are JSON, so is all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from feedline._errors import StateError
from feedline.torch.draws import from_text
from feedline.torch.order import Drawn, SamplerOrder
from feedline.workers import is_stateful

if TYPE_CHECKING:
    from feedline.torch.loader import DataLoader

VERSION = 2
"""Of a state's form. A change that makes an older state mean something else raises it."""

_ROW = {"state", "batches", "all", "ended"}


def kind_of(dataset: Any) -> str:
    """Whether a data set is asked for samples or iterated over."""
    return "iterable" if isinstance(dataset, IterableDataset) else "map"


class Progress:
    """How far an epoch has come. The loader keeps it when the epoch's iterator is gone."""

    def __init__(
        self, kind: str, base_seed: int, number: int, order: SamplerOrder, text: Callable[[], str]
    ) -> None:
        self.kind, self.base_seed, self.round, self.order = kind, base_seed, number, order
        # Later epochs' draws, see `PinnedDraws`.
        self._text = text
        self.begun, self.finished = True, False
        self.yielded = 0
        # With in_order=False: batches that were handed over before an earlier one.
        self.ahead: set[int] = set()
        self.own: Any = None
        self.handed = 0
        self.notes: dict[int, Any] = {}
        # For data sets that keep a state in each worker, or are divided among them.
        self.workers: list[dict[str, Any]] | None = None
        self.turn = 0
        # Where each worker's data set stood when the epoch began; waits for workers that have not said it.
        self.begins: Callable[[], Mapping[int, Any]] = dict

    def count(self, number: int, note: Any = None) -> None:
        """Notes that a batch is done with; `note` is its sampler's state after it was drawn."""
        self.ahead.add(number)
        self.notes[number] = note
        while self.yielded in self.ahead:
            self.ahead.remove(self.yielded)
            own = self.notes.pop(self.yielded, None)
            self.own = self.own if own is None else own
            self.yielded += 1

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on within an epoch."""
        self.yielded, self.ahead = state["yielded"], set(state["ahead"])
        (self.own,) = state["own"]

    def rows(self) -> list[dict[str, Any]] | None:
        """Each worker's data set, and how far it was read."""
        if self.workers is None:
            return None
        if any(row["state"] is None and row["batches"] == row["all"] for row in self.workers):
            begins = self.begins()
            for number, row in enumerate(self.workers):
                row["state"] = begins.get(number) if row["state"] is None else row["state"]
        if self.finished:
            return [{**row, "state": _over(row["state"]), "batches": 0, "all": 0} for row in self.workers]
        return [dict(row) for row in self.workers]

    def state(self) -> dict[str, Any]:
        """All of it."""
        between = self.finished or not self.begun
        rows = self.rows()
        return {
            "feedline": VERSION,
            "kind": self.kind,
            "begun": self.begun,
            "finished": self.finished,
            "yielded": self.yielded,
            "ahead": sorted(self.ahead),
            "base_seed": self.base_seed if self.begun else None,
            "round": self.round,
            "draws": self._text(),
            **self.order.state(over=between),
            "own": (self.own,),
            "workers": None if rows is None else tuple(rows),
            "turn": self.turn,
        }


def _over(state: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if state is None else {**state, "anew": True}


def fresh(loader: DataLoader[Any]) -> Progress:
    """Before the first epoch."""
    dataset: Any = loader.dataset
    order = SamplerOrder(loader)
    progress = Progress(kind_of(dataset), 0, loader._round, order, lambda: loader._draws.text)
    progress.begun = False
    progress.own = order.sampler_state()
    if progress.kind == "iterable" or is_stateful(dataset):
        # Workers will get it as it is here.
        own = dataset.state_dict() if is_stateful(dataset) else None
        state = {"dataset": own, "iterator": None, "ended": False, "anew": True}
        progress.workers = [
            {"state": None if own is None else state, "batches": 0, "all": 0, "ended": False}
            for _ in range(max(1, loader.num_workers))
        ]
    return progress


def check(state: Mapping[str, Any], loader: DataLoader[Any]) -> None:
    """Refuses what is no state of such a loader."""
    kind, version = kind_of(loader.dataset), state.get("feedline")
    if "_snapshot" in state or "_num_yielded" in state:
        raise StateError(
            "cannot resume: this state was taken from torchdata's StatefulDataLoader; finish that epoch "
            "with it, or begin the epoch again"
        )
    if not isinstance(version, int) or isinstance(version, bool) or not isinstance(state.get("kind"), str):
        raise StateError("cannot resume: this is no state of feedline.torch.DataLoader")
    if version != VERSION:
        raise StateError(
            f"cannot resume: the state has version {version}, this feedline reads version {VERSION}; "
            "resume with the feedline that wrote it"
        )
    if state["kind"] != kind:
        raise StateError(
            f"cannot resume: the state is of {state['kind']}-style data, the data set is {kind}-style"
        )
    for name, fits in _FORM.items():
        if name not in state or not fits(state[name]):
            raise StateError(f"cannot resume: the state's {name!r} is missing or not what it should be")
    for row in state["workers"] or ():
        if not isinstance(row, Mapping) or not set(row) >= _ROW or not _is_worker_state(row["state"]):
            raise StateError("cannot resume: the state's 'workers' are not what they should be")
    workers = max(1, loader.num_workers)
    if state["workers"] is not None and len(state["workers"]) != workers:
        raise StateError(
            f"cannot resume: each worker has its own part of this data set, and the state is of "
            f"{len(state['workers'])} workers; use num_workers={len(state['workers'])}"
        )
    try:
        generators = [from_text(state["draws"]), *Drawn.of_state(state).generators[:1]]
        if [len(one) for one in generators] != [len(torch.default_generator.get_state())] * 2:
            raise ValueError("they have another size")
    except (TypeError, ValueError) as error:
        raise StateError(f"cannot resume: the state's generators cannot be read ({error})") from error


def _is_worker_state(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and set(value) >= {"dataset", "iterator", "ended"})


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


_FORM: dict[str, Callable[[Any], bool]] = {
    "begun": lambda value: isinstance(value, bool),
    "finished": lambda value: isinstance(value, bool),
    "yielded": _is_count,
    "ahead": _is_list,
    "base_seed": lambda value: value is None or isinstance(value, int),
    "round": _is_count,
    "draws": lambda value: isinstance(value, str),
    "generators": _is_list,
    "program": lambda value: value is None or (_is_list(value) and len(value) == 2),
    "epoch": lambda value: value is None or isinstance(value, int),
    "eager": lambda value: isinstance(value, bool),
    "own": lambda value: _is_list(value) and len(value) == 1,
    "workers": lambda value: value is None or _is_list(value),
    "turn": _is_count,
}
