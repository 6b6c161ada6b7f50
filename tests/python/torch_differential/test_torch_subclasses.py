"""What subclasses and programs do with torch's loader from inside: as ultralytics, timm, PyTorch
Geometric and Lightning do it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from comparison import EXECUTORS, LOADERS, WARNINGS, as_name, assert_same, build, seed_all, steps
from map_sets import Counting, Squares, WhoAmI
from streams import Sharded
from test_torch_deaths import earlier, gone, started, workers_of

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]

FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}
#: Each of ours with what torch's loader is given in its place.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    name: (way, {} if name == "inline" else FORKED) for name, way in EXECUTORS.items()
} | {
    f"{name}, persistent": (
        {**EXECUTORS[name], "persistent_workers": True},
        {**FORKED, "persistent_workers": True},
    )
    for name in ("processes", "threads")
}


class Repeated:
    """A batch sampler that begins again when it is over."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.batches


def infinite(base: Any) -> Any:
    """A loader whose one iterator goes through all epochs, as ultralytics and timm make it."""

    class Infinite(base):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.batches)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

        def reset(self) -> None:
            self.iterator = self._get_iterator()

    return Infinite


class Wrapped:
    """Around an iterator, as PyTorch Geometric has it."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> Wrapped:
        return self

    def __len__(self) -> int:
        return len(self.iterator)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.iterator._reset(loader, first_iter)

    def __next__(self) -> Any:
        return "wrapped", next(self.iterator)


def wrapping(base: Any) -> Any:
    class Wrapping(base):
        made = 0

        def _get_iterator(self) -> Wrapped:
            self.made += 1
            return Wrapped(super()._get_iterator())

    return Wrapping


@pytest.mark.parametrize("way", WAYS)
def test_an_infinite_loader_goes_on_with_our_workers_after_a_reset(way: str) -> None:
    def run(name: str, settings: dict[str, Any]) -> Any:
        seed_all(3)
        made = infinite(LOADERS[name])(Squares(20), 3, shuffle=True, **settings)
        taken = [list(made) for _ in range(3)]
        made.reset()
        kind = type(made.iterator).__module__.partition(".")[0]
        taken += [list(made) for _ in range(2)]
        return taken, kind

    ours, theirs = run("feedline", WAYS[way][0]), run("torch", WAYS[way][1])
    assert_same(ours[0], theirs[0])
    assert (ours[1], theirs[1]) == ("feedline", "torch")


@pytest.mark.parametrize("way", WAYS)
def test_an_infinite_loader_with_a_generator_resumes_with_its_next_iterator(way: str) -> None:
    def make(seed: int) -> Any:
        seed_all(seed)
        own = torch.Generator().manual_seed(seed)
        return infinite(LOADERS["feedline"])(Squares(20), 3, shuffle=True, generator=own, **WAYS[way][0])

    whole = make(3)
    epochs = [list(whole) for _ in range(4)]
    stopped = make(3)
    assert_same(list(stopped), epochs[0])
    batches = iter(stopped)
    assert_same([next(batches) for _ in range(2)], epochs[1][:2])
    resumed = make(9)
    resumed.load_state_dict(stopped.state_dict())
    resumed.reset()
    # Its epochs begin where it does.
    rest = [batch for epoch in epochs[1:] for batch in epoch][2:]
    assert_same([batch for _ in range(2) for batch in resumed], rest[: 2 * len(resumed)])


@pytest.mark.parametrize("way", WAYS)
def test_an_overridden_get_iterator_is_asked_as_often_as_by_torch(way: str) -> None:
    def run(name: str, settings: dict[str, Any]) -> Any:
        seed_all(4)
        made = wrapping(LOADERS[name])(Squares(20), 3, shuffle=True, **settings)
        taken = [list(made) for _ in range(3)]
        iterator = iter(made)
        return taken, made.made, type(iterator).__name__, len(iterator), steps(iterator), len(iterator)

    assert_same(run("feedline", WAYS[way][0]), run("torch", WAYS[way][1]))


@pytest.mark.parametrize("way", WAYS)
def test_persistent_workers_have_one_iterator(way: str) -> None:
    """Another one begins its next epoch; without persistent workers each has a place of its own."""

    def run(name: str, settings: dict[str, Any]) -> Any:
        seed_all(5)
        made = build(name, Squares(20), batch_size=3, shuffle=True, **settings)
        assert made._iterator is None
        one = iter(made)
        first = next(one)
        other = iter(made)
        kept = [one is other, made._iterator is one, made._iterator is None]
        return first, kept, [(next(one), next(other)) for _ in range(3)], steps(one), steps(other)

    assert_same(run("feedline", WAYS[way][0]), run("torch", WAYS[way][1]))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("way", [name for name in WAYS if "processes" in name])
def test_an_iterator_set_to_none_means_new_workers(way: str, early: bool) -> None:
    """Lightning does so at the end of a run, programs to let persistent workers see a changed data set."""

    def run(name: str, settings: dict[str, Any]) -> Any:
        data = Counting(12)
        # One worker, as ours take what comes, and the data set counts.
        made = build(name, data, batch_size=2, **{**settings, "num_workers": 1})
        iterator = iter(made)
        taken = [next(iterator)] if early else steps(iterator)
        data.note = "second"
        made._iterator = None
        taken += steps(iterator) + steps(iter(made))
        data.note = "third"
        return taken + steps(iter(made))

    assert_same(run("feedline", WAYS[way][0]), run("torch", WAYS[way][1]))


def test_an_iterator_set_to_none_ends_the_workers_that_wait() -> None:
    before = earlier()
    made = build("feedline", Squares(12), 2, **WAYS["processes, persistent"][0])
    steps(iter(made))
    ours = started(os.getpid(), 2, before)
    made._iterator = None
    gone(ours)


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_the_iterators_workers_can_be_shut_down(when: str) -> None:
    before = earlier()
    made = build("feedline", Squares(40), 2, **WAYS["processes, persistent"][0])
    iterator = iter(made)
    taken = {"before": list, "in": lambda: [next(iterator)], "after": lambda: steps(iterator)}[when]()
    ours = started(os.getpid(), 2, before)
    iterator._shutdown_workers()
    gone(ours)
    assert len(taken) + len(steps(iterator)) in (0, 1, 20)
    assert len(steps(iter(made))) == 20


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dropped_infinite_loader_leaves_no_worker(persistent: bool) -> None:
    before = earlier()
    settings = {**EXECUTORS["processes"], "persistent_workers": persistent}
    made = infinite(LOADERS["feedline"])(Squares(20), 3, **settings)
    assert len(list(made)) == 7
    ours = started(os.getpid(), 2, before)
    del made
    gc.collect()
    gone(ours)


def test_a_left_loader_with_persistent_workers_needs_no_garbage_collector() -> None:
    before = earlier()
    made = build("feedline", Squares(40), 2, **WAYS["processes, persistent"][0])
    iterator = iter(made)
    next(iterator)
    ours = started(os.getpid(), 2, before)
    gc.disable()
    try:
        del iterator, made
        gone(ours)
    finally:
        gc.enable()
    assert not workers_of(os.getpid()) & ours


class Checked:
    checks = 0

    def check_worker_number_rationality(self) -> None:
        self.checks += 1


@pytest.mark.parametrize("way", WAYS)
def test_the_number_of_workers_is_checked_as_often_as_by_torch(way: str) -> None:
    def run(name: str, settings: dict[str, Any]) -> int:
        made: Any = type("Made", (Checked, LOADERS[name]), {})(Squares(4), 2, **settings)
        for _ in range(3):
            assert len(list(made)) == 2
        return int(made.checks)

    assert run("feedline", WAYS[way][0]) == run("torch", WAYS[way][1])


class Turned:
    """Each batch of a batch sampler with its samples the other way round."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return (batch[::-1] for batch in self.batches)


def backwards(base: Any) -> Any:
    class Backwards(base):
        @property
        def _index_sampler(self) -> Any:
            return Turned(super()._index_sampler)

    return Backwards


@pytest.mark.parametrize("way", WAYS)
def test_an_overridden_index_sampler_is_asked(way: str) -> None:
    def run(name: str, settings: dict[str, Any]) -> Any:
        seed_all(6)
        made = backwards(LOADERS[name])(Squares(20), 3, shuffle=True, **settings)
        return [list(made) for _ in range(2)]

    assert_same(run("feedline", WAYS[way][0]), run("torch", WAYS[way][1]))


CHANGES: list[dict[str, Any]] = [
    {"num_workers": 3},
    {"num_workers": 1},
    {"num_workers": 0},
    {"prefetch_factor": 1},
    {"timeout": 600},
    {"multiprocessing_context": "fork"},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=as_name)
def test_settings_may_be_changed_between_epochs(change: dict[str, Any], stream: bool) -> None:
    """All of the data set comes, by as many workers as there are to be."""

    def run(name: str, settings: dict[str, Any]) -> Any:
        seed_all(7)
        made = build(name, Sharded(24) if stream else WhoAmI(24), batch_size=2, **settings)
        taken = steps(iter(made))
        for attribute, value in change.items():
            setattr(made, attribute, value)
        taken += [batch for _ in range(2) for batch in steps(iter(made))]
        for batch in taken if not stream else ():
            del batch["process"]
        return taken

    ways = {"num_workers": 2, "executor": "processes", "random": "worker"}
    assert_same(run("feedline", ways), run("torch", {"num_workers": 2}))


def test_persistent_workers_are_replaced_when_their_number_changes() -> None:
    """torch keeps those that it has and their number; its attribute says another one then."""
    made = build("feedline", Sharded(24), batch_size=2, **WAYS["processes, persistent"][0])
    for workers in (2, 3, 1):
        made.num_workers = workers
        numbers = [number for batch in made for number in batch[0].tolist()]
        assert sorted(numbers) == list(range(24))


def test_torchs_attributes_stay_as_they_are() -> None:
    made: Any = build("feedline", Squares(4), batch_size=2)
    for name in vars(build("torch", Squares(4), batch_size=2)):
        assert hasattr(made, name), name
    assert isinstance(made._iterator, type(None))
    assert made._auto_collation and made._index_sampler is made.batch_sampler
    assert isinstance(made, torch.utils.data.DataLoader)
