"""state_dict: after any batch, into a loader of any number of workers, what follows is what would have."""

from __future__ import annotations

import copy
import io
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparison import EXECUTORS, WARNINGS, assert_same, build, no_init, seed_all, steps
from map_sets import Buckets, Draws, EveryOther, Squares, WithEpoch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]

Generator = torch.Generator
DATA = Squares(21)


class CountingSampler:
    """A sampler with a state of its own, which the loader must ask for."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        start, self.at = self.at, 0
        for number in range(start, 21):
            self.at = number + 1
            yield (number * 5) % 21
        self.at = 0

    def __len__(self) -> int:
        return 21

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Remembering(Dataset[Any]):
    """A map-style data set with a state: how many samples it has given."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        self.given += 1
        return index, self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


CASES: dict[str, Callable[[Generator], dict[str, Any]]] = {
    "sequential": lambda g: {"batch_size": 4},
    "drop last": lambda g: {"batch_size": 4, "drop_last": True},
    "one by one": lambda g: {"batch_size": None},
    "shuffle": lambda g: {"batch_size": 4, "shuffle": True},
    "shuffle, generator": lambda g: {"batch_size": 4, "shuffle": True, "generator": g},
    "random, its generator": lambda g: {"batch_size": 4, "sampler": RandomSampler(DATA, generator=g)},
    "random, replacement": lambda g: {"batch_size": 9, "sampler": RandomSampler(DATA, True, 70, g)},
    "weighted": lambda g: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0, 2.0] * 10, 18)},
    "subset": lambda g: {"batch_size": 2, "sampler": SubsetRandomSampler(range(3, 16))},
    "distributed": lambda g: {"batch_size": 2, "sampler": DistributedSampler(DATA, 2, 1)},
    "stateful distributed": lambda g: {"batch_size": 2, "sampler": StatefulDistributedSampler(DATA, 2, 1)},
    "stateful random": lambda g: {"batch_size": 4, "sampler": StatefulRandomSampler(DATA, generator=g)},
    "batch sampler": lambda g: {"batch_sampler": BatchSampler(RandomSampler(DATA), 5, False)},
    "with an epoch": lambda g: {"batch_size": 4, "sampler": WithEpoch(21)},
    "a list": lambda g: {"batch_size": 3, "sampler": [3, 1, 4, 1, 5, 9, 2, 6]},
    "no Sampler": lambda g: {"batch_size": 3, "sampler": EveryOther(21)},
    "sampler with a state": lambda g: {"batch_size": 4, "sampler": CountingSampler()},
}

#: Where the state is taken, and where it is loaded.
PAIRS = {
    "inline to inline": ({}, {}),
    "inline to processes": ({}, EXECUTORS["processes"]),
    "processes to inline": (EXECUTORS["processes"], {}),
    "threads to three processes": (EXECUTORS["threads"], EXECUTORS["processes"] | {"num_workers": 3}),
    "processes to threads": (EXECUTORS["processes"], EXECUTORS["threads"]),
}


def make(name: str, seed: int, data: Any = DATA, **settings: Any) -> Any:
    seed_all(seed)
    return build("feedline", data, **CASES[name](Generator().manual_seed(seed)), **settings)


def through_a_file(state: Any) -> Any:
    """As a checkpoint does it, without code in it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(name: str, state: Any, data: Any = DATA, **settings: Any) -> tuple[list[Any], list[Any]]:
    """The rest of the epoch and the next one, in a program that was seeded otherwise."""
    made = make(name, 99, data, **settings)
    made.load_state_dict(state)
    return steps(iter(made)), steps(iter(made))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", CASES)
def test_the_rest_of_the_epoch_follows_at_every_batch(name: str, pair: str) -> None:
    before, after = PAIRS[pair]
    made = make(name, 7, **before)
    iterator = iter(made)
    expected, states = [], [made.state_dict()]
    for batch in iterator:
        expected.append(batch)
        states.append(made.state_dict())
    # All of them inline; some where workers are started for each.
    taken = range(1, len(states)) if not after else {1, len(states) // 2}
    for count in taken:
        rest, _ = resumed(name, through_a_file(states[count]), **after)
        if count < len(states) - 1:
            assert_same(rest, expected[count:], f"after {count}")


def test_a_sampler_that_draws_as_it_goes_from_the_programs_generator() -> None:
    """What it has drawn is found again; what it will draw depends on the program's generator, which is
    the program's to restore, as it does for its model."""
    seed_all(7)
    made = build("feedline", DATA, batch_sampler=Buckets(21))
    expected, states = [], []
    for batch in made:
        expected.append(batch)
        states.append((made.state_dict(), torch.get_rng_state()))
    for count, (state, generator) in enumerate(states[:-1], 1):
        seed_all(99)
        other = build("feedline", DATA, batch_sampler=Buckets(21))
        other.load_state_dict(through_a_file(state))
        torch.set_rng_state(generator)
        assert_same(steps(iter(other)), expected[count:], f"after {count}")


@pytest.mark.parametrize(
    "name", ["shuffle, generator", "random, its generator", "sequential", "with an epoch"]
)
def test_the_next_epoch_follows_too(name: str) -> None:
    """With a generator of its own the order of later epochs is part of the state."""
    made = make(name, 7)
    first, second = steps(iter(made)), None
    second = steps(iter(made))
    made = make(name, 7)
    iterator = iter(made)
    for _ in range(2):
        next(iterator)
    rest, following = resumed(name, through_a_file(made.state_dict()))
    assert_same(rest, first[2:])
    assert_same(following, second)


@pytest.mark.parametrize("name", ["sequential", "shuffle, generator"])
def test_after_the_last_batch_comes_the_next_epoch(name: str) -> None:
    made = make(name, 7)
    steps(iter(made))
    state = through_a_file(made.state_dict())
    second = steps(iter(made))
    first_after, _ = resumed(name, state)
    assert_same(first_after, second)


@pytest.mark.parametrize("name", ["sequential", "shuffle, generator"])
def test_a_state_taken_before_the_first_batch(name: str) -> None:
    made = make(name, 7)
    state = through_a_file(made.state_dict())
    other = make(name, 7)
    other.load_state_dict(state)
    assert_same(steps(iter(other)), steps(iter(make(name, 7))))


def test_a_state_may_be_loaded_while_iterating() -> None:
    made = make("shuffle, generator", 7)
    iterator = iter(made)
    first = [next(iterator) for _ in range(2)]
    state = made.state_dict()
    rest = steps(iterator)
    made.load_state_dict(state)
    assert_same(steps(iter(made)), rest)
    assert len(first) == 2


def test_states_are_plain_and_do_not_change() -> None:
    made = make("shuffle", 7)
    iterator = iter(made)
    next(iterator)
    state = made.state_dict()
    kept = copy.deepcopy(state)
    steps(iterator)
    assert_same(state, kept)
    assert_same(pickle.loads(pickle.dumps(state)), kept)


def test_the_callers_generators_are_left_alone_by_resuming() -> None:
    made = make("shuffle", 7)
    next(iter(made))
    state = made.state_dict()
    other = make("shuffle", 31)
    expected = torch.get_rng_state(), random.getstate()
    other.load_state_dict(state)
    steps(iter(other))
    assert torch.equal(torch.get_rng_state(), expected[0]) and random.getstate() == expected[1]


@pytest.mark.parametrize(
    "way",
    [{}, {"num_workers": 1, "executor": "processes"}, {"num_workers": 3, "executor": "processes"}],
    ids=["inline", "one", "three"],
)
def test_random_draws_go_on_too(way: dict[str, Any]) -> None:
    """With random="batch", what samples draw does not depend on who makes them, nor on a restart."""
    made = make("shuffle", 7, Draws(21))
    iterator = iter(made)
    for _ in range(2):
        next(iterator)
    state = through_a_file(made.state_dict())
    expected = steps(iterator)
    made = make("shuffle", 99, Draws(21), **way)
    made.load_state_dict(state)
    assert_same(steps(iter(made)), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_sets_with_a_state_are_resumed_as_by_stateful(workers: int) -> None:
    def run(loader: str, taken: int) -> list[Any]:
        settings: dict[str, Any] = {"batch_size": 2, "num_workers": workers}
        if workers:
            settings |= (
                {"multiprocessing_context": "fork"} if loader == "stateful" else {"executor": "processes"}
            )
        made = build(loader, Remembering(), **settings)
        iterator = iter(made)
        for _ in range(taken):
            next(iterator)
        state = made.state_dict()
        del iterator
        other = build(loader, Remembering(), **settings)
        other.load_state_dict(state)
        return steps(iter(other))

    for taken in (1, 3):
        assert_same(run("feedline", taken), run("stateful", taken))


@pytest.mark.parametrize("name", ["sequential", "drop last", "a list", "stateful distributed", "one by one"])
def test_what_follows_is_what_stateful_gives(name: str) -> None:
    """Where the order is no matter of chance, StatefulDataLoader's own resume is the reference."""

    def run(loader: str) -> list[Any]:
        seen = []
        for taken in range(1, 5):
            made = build(loader, DATA, **CASES[name](Generator()))
            iterator = iter(made)
            for _ in range(taken):
                next(iterator, None)
            other = build(loader, DATA, **CASES[name](Generator()))
            other.load_state_dict(made.state_dict())
            seen.append(steps(iter(other)))
        return seen

    ours, theirs = run("feedline"), run("stateful")
    # After the last batch StatefulDataLoader gives an empty epoch if the end was not asked for.
    last = [batches for batches in theirs if batches]
    assert_same([batches for batches, other in zip(ours, theirs, strict=True) if other], last)


@pytest.mark.parametrize("snapshot", [1, 3, 100])
@pytest.mark.parametrize("way", ["inline", "processes"])
def test_how_often_states_travel_changes_nothing(snapshot: int, way: str) -> None:
    settings = EXECUTORS[way] | {"snapshot_every_n_steps": snapshot}
    made = build("feedline", Remembering(), batch_size=2, **(settings | {"worker_init_fn": no_init}))
    iterator = iter(made)
    for _ in range(4):
        next(iterator)
    state = made.state_dict()
    rest = steps(iterator)
    other = build("feedline", Remembering(), batch_size=2, **settings)
    other.load_state_dict(state)
    assert [batch[0].tolist() for batch in steps(iter(other))] == [batch[0].tolist() for batch in rest]


def test_an_empty_state_is_none() -> None:
    for loader in ("stateful", "feedline"):
        made = build(loader, DATA, batch_size=4)
        made.load_state_dict({})
        assert len(steps(iter(made))) == 6


@pytest.mark.parametrize(
    "state", [{"a": 1}, [], None, {"_snapshot": 1}, {"feedline": 1, "kind": "iterable"}], ids=str
)
def test_a_state_that_is_none_is_refused(state: Any) -> None:
    made = build("feedline", DATA, batch_size=4)
    with pytest.raises((ValueError, TypeError)):
        made.load_state_dict(state)
