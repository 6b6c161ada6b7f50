"""Workers and how they are started: what they know, whom they seed, and which batch they make."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

import feedline.torch
import numpy as np
import pytest
import torch
from comparison import (
    EXECUTORS,
    WARNINGS,
    as_name,
    assert_same,
    build,
    epochs,
    no_init,
    numbers,
    seed_all,
    steps,
)
from feedline.torch.made_from import made_from
from map_sets import Counting, Draws, Large, Seeds, Squares, WhoAmI, note_worker, seed_worker
from torch.utils.data import ConcatDataset, Dataset, default_collate

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]

DRAWN = ["random", "numpy", "torch", "again"]


class Lazy(Squares):
    """Opens something when the first sample is read, so that it can be sent to a worker before."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.handle: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.handle is None:
            self.handle = threading.Lock()
        with self.handle:
            return index, torch.tensor(index)


class PerWorker(Squares):
    """Has something for each worker, found by its number."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.handles = {0: "first", 1: "second"}

    def __getitem__(self, index: int) -> Any:
        return index, self.handles[torch.utils.data.get_worker_info().id]


class Batch:
    """A batch class of the user's own."""

    def __init__(self, samples: list[Any]) -> None:
        self.numbers = torch.tensor([number for number, _ in samples])
        self.pinned = 0

    def pin_memory(self) -> Batch:
        self.pinned += 1
        return self


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("workers", [1, 3])
def test_every_start_method(context: str, workers: int) -> None:
    settings: dict[str, Any] = {"batch_size": 3, "shuffle": True, "num_workers": workers}
    ours = epochs("feedline", Squares(20), 2, multiprocessing_context=context, **settings)
    assert_same(ours, epochs("torch", Squares(20), 2, **settings, multiprocessing_context="fork"))


def test_a_context_object_is_as_good_as_its_name() -> None:
    context = torch.multiprocessing.get_context("forkserver")
    ours = epochs("feedline", Squares(5), num_workers=1, multiprocessing_context=context)
    assert_same(ours, epochs("torch", Squares(5)))


@pytest.mark.parametrize("prefetch", [1, 2, 7])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("executor", ["processes", "threads", "inline"])
def test_any_number_of_workers_and_batches_ahead(executor: str, workers: int, prefetch: int) -> None:
    settings = {"num_workers": workers, "prefetch_factor": prefetch, "executor": executor}
    ours = epochs("feedline", Squares(25), batch_size=2, **settings)
    assert_same(ours, epochs("torch", Squares(25), batch_size=2))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_batch_ahead_is_one_at_a_time() -> None:
    """A deliberate difference: torch accepts prefetch_factor=0 and then has an assertion against it."""
    with pytest.raises(AssertionError, match="prefetch_factor"):
        epochs("torch", Squares(5), num_workers=1, prefetch_factor=0, multiprocessing_context="fork")
    gc.collect()
    ours = epochs("feedline", Squares(5), num_workers=1, prefetch_factor=0, executor="processes")
    assert_same(ours, epochs("torch", Squares(5)))


@pytest.mark.parametrize("executor", ["processes", "threads"])
def test_out_of_order_gives_the_same_batches(executor: str) -> None:
    settings = {"batch_size": 2, "shuffle": True, "num_workers": 3, "in_order": False}
    [ours] = epochs("feedline", Squares(31), executor=executor, **settings)
    [theirs] = epochs("torch", Squares(31), multiprocessing_context="fork", **settings)
    assert sorted(map(str, numbers(ours))) == sorted(map(str, numbers(theirs)))


@pytest.mark.parametrize("executor", ["processes", "threads", "auto"])
def test_workers_that_stay(executor: str) -> None:
    settings = {"batch_size": 3, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    ours = epochs("feedline", Squares(20), 4, executor=executor, **settings)
    assert_same(ours, epochs("torch", Squares(20), 4, multiprocessing_context="fork", **settings))


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("init", [None, note_worker, seed_worker])
def test_what_workers_know_and_draw_is_torchs(init: Any, stay: bool) -> None:
    """Their number, seed and copy of the data set, and with random="worker" every draw, over epochs."""
    settings: dict[str, Any] = {
        "batch_size": 2,
        "num_workers": 3,
        "worker_init_fn": init,
        "persistent_workers": stay,
    }
    theirs = epochs("torch", WhoAmI(), 2, multiprocessing_context="fork", **settings)
    ours = epochs("feedline", WhoAmI(), 2, executor="processes", random="worker", **settings)
    for epoch, other in zip(ours, theirs, strict=True):
        assert len({number for batch in epoch for number in batch["process"].tolist()}) == 3
        for batch in (*epoch, *other):
            del batch["process"]
    assert_same(ours, theirs)


def test_there_is_no_worker_info_without_workers() -> None:
    [ours] = epochs("feedline", WhoAmI(2))
    assert [set(batch) for batch in ours] == [{"index", "process", "thread"}] * 2
    assert ours[0]["process"].item() == os.getpid()
    assert torch.utils.data.get_worker_info() is None and feedline.torch.get_worker_info() is None


@pytest.mark.parametrize("loader", ["torch", "feedline"])
def test_the_info_in_a_worker_cannot_be_changed(loader: str) -> None:
    def change(worker: int) -> None:
        torch.utils.data.get_worker_info().id = 7

    [[first]] = epochs(
        loader, Squares(1), num_workers=1, worker_init_fn=change, multiprocessing_context="fork"
    )
    # Which one depends on torch's version.
    assert issubclass(first.kind, AttributeError | RuntimeError)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_draws_are_torchs_with_random_worker(workers: int, shuffle: bool) -> None:
    """Exactly torch's for the same number of workers; without any, also what is left of the generators."""
    settings: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "shuffle": shuffle}
    forked = {"multiprocessing_context": "fork"} if workers else {}
    processes = {"executor": "processes"} if workers else {}
    theirs = epochs("torch", Draws(), 2, **forked, **settings)
    left = torch.rand(3)
    ours = epochs("feedline", Draws(), 2, random="worker", **processes, **settings)
    assert_same(ours, theirs)
    assert torch.equal(torch.rand(3), left)


WAYS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "executor": "inline"},
    {"num_workers": 1, "executor": "processes"},
    {"num_workers": 3, "executor": "processes", "worker_init_fn": no_init},
    {"num_workers": 3, "executor": "processes", "in_order": False},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 2},
]


@pytest.mark.parametrize("way", WAYS[1:], ids=as_name)
def test_draws_do_not_depend_on_the_workers_with_random_batch(way: dict[str, Any]) -> None:
    expected = epochs("feedline", Draws(), 2, batch_size=3, shuffle=True, **WAYS[0])
    ours = epochs("feedline", Draws(), 2, batch_size=3, shuffle=True, **way)
    if way.get("in_order") is False:
        ours, expected = ([sorted(map(str, numbers(epoch))) for epoch in run] for run in (ours, expected))
    assert_same(ours, expected)


@pytest.mark.parametrize("way", WAYS[1:], ids=as_name)
def test_the_seed_of_a_sample_fits_into_a_tensor_and_does_not_depend_on_the_workers(
    way: dict[str, Any],
) -> None:
    """torch's is the worker's; ours the sample's."""
    [theirs] = epochs("torch", Seeds(40), batch_size=4, num_workers=1, multiprocessing_context="fork")
    [expected] = epochs("feedline", Seeds(40), batch_size=4, **WAYS[0])
    [ours] = epochs("feedline", Seeds(40), batch_size=4, **way)
    assert [batch["seed"].dtype for batch in ours] == [batch["seed"].dtype for batch in theirs]
    assert all(seed >= 0 for batch in ours for seed in batch["seed"].tolist())
    if way.get("in_order") is False:
        ours, expected = (sorted(map(str, numbers(epoch))) for epoch in (ours, expected))
    assert_same(ours, expected)


def test_draws_differ_between_batches_epochs_and_seeds() -> None:
    runs = epochs("feedline", Draws(), 2, batch_size=3, **WAYS[0])
    runs += epochs("feedline", Draws(), 1, seed=6, batch_size=3, **WAYS[0])
    for name in DRAWN:
        drawn = [value for epoch in runs for batch in epoch for value in batch[name].flatten().tolist()]
        assert len(set(drawn)) > 0.9 * len(drawn), name


def test_the_callers_generators_are_left_alone_with_random_batch() -> None:
    seed_all(8)
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(1)
    made = build("feedline", Draws(), batch_size=3, generator=generator)
    steps(iter(made))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, Batch])
def test_pinning_without_an_accelerator_warns_as_torch_does(workers: int, collate: Any) -> None:
    forked = {"num_workers": 1, "multiprocessing_context": "fork"} if workers else {}
    seen = []
    for loader in ("feedline", "torch"):
        made = build(loader, Squares(4), batch_size=2, pin_memory=True, collate_fn=collate, **forked)
        with pytest.warns(UserWarning, match="no accelerator is found") as caught:
            seen.append(steps(iter(made)))
        assert len([one for one in caught if "accelerator" in str(one.message)]) == 1
    assert_same(*seen)


def test_the_device_of_pinning_is_warned_about() -> None:
    for loader in ("feedline", "torch"):
        made = build(loader, Squares(2), pin_memory=True, pin_memory_device="cuda")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            steps(iter(made))
        assert sorted(one.category.__name__ for one in caught) == ["UserWarning", "UserWarning"]


@pytest.mark.parametrize("executor", ["auto", "processes"])
@pytest.mark.parametrize("stay", [False, True])
def test_what_is_opened_with_the_first_sample_is_opened_in_the_worker(executor: str, stay: bool) -> None:
    """A data set that the caller has used no longer goes to another process: the handle is in it."""
    made = build("feedline", Lazy(8), batch_size=2, num_workers=2, executor=executor, persistent_workers=stay)
    for _ in range(3):
        assert [batch[0].tolist() for batch in made] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("inside", [False, True])
def test_the_callers_data_set_is_not_touched_where_there_are_workers(inside: bool) -> None:
    """Whoever makes the first batches."""
    data = Counting(12)
    made = build("feedline", ConcatDataset([data, data]) if inside else data, batch_size=4, num_workers=2)
    assert len(steps(iter(made))) == (6 if inside else 3)
    assert data.calls == 0


@pytest.mark.parametrize("settings", [{}, {"executor": "processes"}], ids=str)
def test_samples_may_rely_on_the_worker_info(settings: dict[str, Any]) -> None:
    for _ in range(2):
        [batches] = epochs("feedline", PerWorker(9), batch_size=2, num_workers=2, **settings)
        assert [batch[0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_timeout_that_is_not_reached_changes_nothing(executor: str) -> None:
    settings = EXECUTORS[executor] | ({} if executor == "inline" else {"timeout": 30})
    assert_same(
        epochs("feedline", Large(20), batch_size=4, **settings), epochs("torch", Large(20), batch_size=4)
    )


def test_a_timeout_without_workers_means_nothing() -> None:
    """A deliberate difference: torch accepts it and then has an assertion against it."""
    with pytest.raises(AssertionError, match="timeout"):
        iter(build("torch", Squares(3), timeout=1))
    assert_same(epochs("feedline", Squares(3), timeout=1), epochs("torch", Squares(3)))


class Versioned(Dataset[Any]):
    """What a sample is depends on something that the program changes between epochs."""

    factor = 1

    def __init__(self) -> None:
        self.version = 0
        self.table = [0]
        self.array = np.zeros(4)
        self.shared = torch.zeros(()).share_memory_()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.version, self.table[0], float(self.array[0]), type(self).factor, _GLOBAL[0]


_GLOBAL = [0]


def _rebind(data: Versioned, epoch: int) -> None:
    data.version = epoch


def _write_list(data: Versioned, epoch: int) -> None:
    data.table[0] = epoch


def _write_array(data: Versioned, epoch: int) -> None:
    data.array[0] = epoch


def _write_class(data: Versioned, epoch: int) -> None:
    Versioned.factor = epoch


def _write_global(data: Versioned, epoch: int) -> None:
    _GLOBAL[0] = epoch


@pytest.mark.parametrize("change", [_rebind, _write_list, _write_array, _write_class, _write_global])
def test_no_epoch_has_two_versions_of_the_data_set(change: Any) -> None:
    """In threads, which have the program's own; an epoch that was made ahead of a change is not used."""

    def run(loader: str, **more: Any) -> list[Any]:
        data, seen = Versioned(), []
        del data.shared
        made = build(loader, data, batch_size=2, **more)
        for epoch in range(4):
            change(data, epoch // 2)
            seen.append(numbers(steps(iter(made))))
        return seen

    ours = run("feedline", num_workers=2, executor="threads", persistent_workers=True)
    assert ours == run("torch")


def test_nothing_is_made_ahead_of_what_is_shared_with_the_program() -> None:
    """Workers that stay see a change of shared memory at once."""
    for shares in (True, False):
        data = Versioned()
        if not shares:
            del data.shared
        ways = {"num_workers": 2, "executor": "processes", "persistent_workers": True}
        made = build("feedline", data, batch_size=2, **ways)
        steps(iter(made))
        assert (made._guess is None) is shares
        made.close()


_SHARED = torch.zeros(1).share_memory_()


class Plain(Dataset[int]):
    """As it is, nothing is shared."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


class Slotted:
    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = _SHARED


class Naming(Plain):
    def __getitem__(self, index: int) -> int:
        return int(_SHARED[0]) + index


class InItsClass(Plain):
    held = _SHARED


def _holding(held: Any) -> Any:
    data: Any = Plain()
    data.held = held
    return data


def _multiplied(batch: Any, by: Any) -> Any:
    return batch


#: Data sets and collate functions that share something with the program, or hold what cannot be seen.
SHARING: dict[str, Callable[[], dict[str, Any]]] = {
    "partial": lambda: {"collate_fn": functools.partial(_multiplied, by=_SHARED)},
    "slots": lambda: {"dataset": _holding(Slotted())},
    "global": lambda: {"dataset": Naming()},
    "global of a function": lambda: {"collate_fn": lambda batch: [_SHARED, batch]},
    "class": lambda: {"dataset": InItsClass()},
    "multiprocessing's array": lambda: {
        "dataset": _holding(np.frombuffer(multiprocessing.Array("d", 4, lock=False)))
    },
    "multiprocessing's array, as an array": lambda: {
        "dataset": _holding(np.ctypeslib.as_array(multiprocessing.Array("d", 4, lock=False)))
    },
    "cannot be seen": lambda: {"dataset": _holding(iter([_SHARED]))},
}


@pytest.mark.parametrize("name", [None, *SHARING])
def test_what_shares_is_found_wherever_it_is_held(name: str | None) -> None:
    more = {"dataset": Plain(), **({} if name is None else SHARING[name]())}
    collate = more.get("collate_fn", default_collate)
    found = made_from((more["dataset"], collate), copied=True)
    assert (found is None) is (name is not None)
