"""Iterable-style data sets: who gives which sample, in which order, and where it ends."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison import WARNINGS, Raised, assert_same, build, epochs, numbers, outcome, steps
from conftest import HANG
from map_sets import Squares
from streams import (
    Breaking,
    BreakingAtOnce,
    Endless,
    Held,
    IteratorWithState,
    Itself,
    NoIterator,
    RandomWithState,
    Sharded,
    Shuffled,
    SizedStream,
    Stream,
    Uneven,
    Whole,
    WithState,
    WrongSize,
)
from torch.utils.data import ChainDataset

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]

CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "batches": (lambda: Stream(10), {"batch_size": 4}),
    "drop last": (lambda: Stream(10), {"batch_size": 4, "drop_last": True}),
    "one by one": (lambda: Stream(5), {"batch_size": None}),
    "shuffle False": (lambda: Stream(5), {"batch_size": 2, "shuffle": False}),
    "sized": (lambda: SizedStream(10), {"batch_size": 4}),
    "empty": (lambda: Stream(0), {"batch_size": 4}),
    "empty, one by one": (lambda: Stream(0), {"batch_size": None}),
    "sharded": (lambda: Sharded(17), {"batch_size": 3}),
    "sharded, dropping": (lambda: Sharded(17), {"batch_size": 3, "drop_last": True}),
    "sharded, fewer than workers": (lambda: Sharded(2), {"batch_size": 3}),
    "uneven": (lambda: Uneven([7, 1, 4]), {"batch_size": 2}),
    "uneven, one by one": (lambda: Uneven([3, 9, 0]), {"batch_size": None}),
    "first worker empty": (lambda: Uneven([0, 5, 2]), {"batch_size": 2}),
    "own batches": (Whole, {"batch_size": None}),
    "own batches, collated": (lambda: Stream(6), {"batch_size": 3, "collate_fn": list}),
    "its own iterator": (lambda: Itself(7), {"batch_size": 2}),
    "chain": (lambda: ChainDataset([Stream(3), Stream(4)]), {"batch_size": 2}),
    "sum of streams": (lambda: Stream(3) + Stream(4), {"batch_size": 2}),
    "with state": (lambda: WithState(11), {"batch_size": 2}),
    "iterator with state": (lambda: IteratorWithState(11), {"batch_size": 2}),
    "shuffle buffer": (lambda: RandomWithState(11), {"batch_size": 2}),
    "fails in the middle": (lambda: Breaking(5, ValueError("broken")), {"batch_size": 2}),
    "fails at once": (BreakingAtOnce, {"batch_size": 2}),
    "no iterator": (NoIterator, {"batch_size": 2}),
}

WORKERS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "three processes": {"num_workers": 3, "executor": "processes"},
    "two processes, one batch ahead": {"num_workers": 2, "executor": "processes", "prefetch_factor": 1},
}


def forked(settings: dict[str, Any]) -> dict[str, Any]:
    """torch's settings for the same number of workers."""
    workers = settings["num_workers"]
    return {"num_workers": workers, **({"multiprocessing_context": "fork"} if workers else {})}


#: Fail before the first batch. torch's workers say so at the first batch and something else afterwards,
#: StatefulDataLoader's as soon as `iter` is called: the first error is what is compared.
FAIL_AT_ONCE = {"fails at once", "no iterator"}


def run(loader: str, name: str, settings: dict[str, Any], count: int = 1) -> Any:
    make, arguments = CASES[name]
    most = 1 if name in FAIL_AT_ONCE else 40
    seen = outcome(lambda: epochs(loader, make(), count, most=most, **arguments, **settings))
    return [[seen]] if isinstance(seen, Raised) else seen


@functools.cache
def torchs(name: str, workers: int) -> Any:
    return run("torch", name, forked({"num_workers": workers}))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_stateful_equals_torch(name: str, workers: int) -> None:
    assert_same(run("stateful", name, forked({"num_workers": workers})), torchs(name, workers))


@pytest.mark.parametrize("way", WORKERS)
@pytest.mark.parametrize("name", CASES)
def test_batches_are_torchs(name: str, way: str) -> None:
    """In torch's order: its workers take turns, and one that has ended is passed over."""
    settings = WORKERS[way]
    assert_same(run("feedline", name, settings), torchs(name, settings["num_workers"]))


@pytest.mark.parametrize("way", ["inline", "three processes"])
@pytest.mark.parametrize("name", ["sharded", "its own iterator", "shuffle buffer", "with state"])
def test_second_epochs_are_torchs(name: str, way: str) -> None:
    settings = WORKERS[way]
    assert_same(run("feedline", name, settings, 2), run("torch", name, forked(settings), 2))


@pytest.mark.parametrize("name", ["sharded", "uneven", "its own iterator", "shuffle buffer"])
def test_second_epochs_of_workers_that_stay(name: str) -> None:
    settings = {"num_workers": 2, "persistent_workers": True}
    theirs = run("torch", name, settings | {"multiprocessing_context": "fork"}, 2)
    assert_same(run("feedline", name, settings | {"executor": "processes"}, 2), theirs)


@pytest.mark.parametrize("way", WORKERS)
def test_an_endless_stream_is_left(way: str) -> None:
    settings = WORKERS[way]
    taken = [
        [steps(iter(made), most=9), steps(iter(made), most=3)]
        for made in (
            build("feedline", Endless(), batch_size=4, **settings),
            build("torch", Endless(), batch_size=4, **forked(settings)),
        )
    ]
    assert_same(*taken)


def test_out_of_order_gives_the_same_samples() -> None:
    settings = {"num_workers": 3, "in_order": False, "batch_size": 2}
    [ours] = epochs("feedline", Sharded(31), executor="processes", **settings)
    [theirs] = epochs("torch", Sharded(31), multiprocessing_context="fork", **settings)
    assert sorted(map(str, numbers(ours))) == sorted(map(str, numbers(theirs)))


@pytest.mark.parametrize("loader", ["torch", "feedline"])
def test_out_of_order_nobody_waits_for_a_slow_worker(loader: str, tmp_path: Path) -> None:
    """All that the others have comes before the first batch of one that is held up."""
    go_on = tmp_path / "go on"
    forked = {"multiprocessing_context": "fork"} if loader == "torch" else {}
    settings = {"num_workers": 3, "in_order": False, "batch_size": 2, "timeout": HANG, **forked}
    iterator = iter(build(loader, Held([8, 40, 6], go_on), **settings))
    first = [next(iterator).tolist() for _ in range(23)]
    assert sorted(first) == [[n, n + 1] for n in (*range(1000, 1040, 2), *range(2000, 2006, 2))]
    go_on.touch()
    assert [batch.tolist() for batch in iterator] == [[n, n + 1] for n in range(0, 8, 2)]


@pytest.mark.parametrize("way", ["inline", "three processes"])
def test_an_epoch_set_from_outside_reaches_the_stream(way: str) -> None:
    def run_epochs(loader: str, settings: dict[str, Any]) -> list[Any]:
        data = Shuffled(9)
        made = build(loader, data, batch_size=4, **settings)
        seen = []
        for epoch in (0, 1, 5):
            data.epoch = epoch
            seen.append(steps(iter(made)))
        return seen

    assert_same(run_epochs("feedline", WORKERS[way]), run_epochs("torch", forked(WORKERS[way])))


@pytest.mark.parametrize("way", WORKERS)
def test_a_stream_longer_than_its_length_is_warned_about(way: str) -> None:
    for loader, settings in (("torch", forked(WORKERS[way])), ("feedline", WORKERS[way])):
        made = build(loader, WrongSize(8), batch_size=None, **settings)
        assert len(made) == 4
        with pytest.warns(UserWarning, match="Length of IterableDataset") as caught:
            steps(iter(made))
        hint = r"fetched\. For multiprocessing data-loading, this .*#torch\.utils\.data\.IterableDataset"
        found = [bool(re.search(hint, str(one.message))) for one in caught if "Length" in str(one.message)]
        assert found == [made.num_workers > 0] * len(found)


@pytest.mark.parametrize("name", ["sized", "batches"])
def test_lengths_are_torchs(name: str) -> None:
    make, settings = CASES[name]
    lengths = [
        outcome(lambda loader=loader: len(build(loader, make(), **settings)))
        for loader in ("feedline", "torch")
    ]
    assert_same(*lengths)


@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": True},
        {"sampler": [1, 2]},
        {"batch_sampler": [[1], [2]]},
        {"batch_size": None, "drop_last": True},
    ],
    ids=str,
)
def test_what_torch_refuses_for_streams(settings: dict[str, Any]) -> None:
    refusals = [
        outcome(lambda loader=loader: build(loader, Stream(5), **settings))
        for loader in ("feedline", "torch")
    ]
    assert_same(*refusals)
    assert str(refusals[0].error) == str(refusals[1].error)


def test_workers_that_end_early_leave_the_turns_to_the_others() -> None:
    """The exact turns: 0 1 2, and then what is left of those that have not ended."""
    [batches] = epochs(
        "feedline", Uneven([6, 2, 4]), batch_size=2, num_workers=3, executor="processes", prefetch_factor=1
    )
    assert numbers(batches) == [[0, 1], [1000, 1001], [2000, 2001], [2, 3], [2002, 2003], [4, 5]]


def test_map_style_and_streams_are_distinguished_by_class_only() -> None:
    """A data set with both methods is a map, unless it is an IterableDataset."""

    class Both(Squares):
        def __iter__(self) -> Any:
            raise AssertionError("a map is not iterated over")

    assert_same(epochs("feedline", Both(5), batch_size=2), epochs("torch", Both(5), batch_size=2))


def test_tensors_of_a_stream_keep_their_class() -> None:
    [batches] = epochs("feedline", Stream(3), batch_size=None, num_workers=1, executor="processes")
    assert [type(batch) for batch in batches] == [list] * 3
    assert all(isinstance(batch[1], torch.Tensor) for batch in batches)


def test_threads_are_refused_for_streams() -> None:
    """Threads share the data set, so `__iter__` could not give each its part."""
    with pytest.raises(ValueError, match="executor"):
        build("feedline", Stream(5), num_workers=2, executor="threads")
