"""The order of samples, the draws it takes from the generators, and what is left of them afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from comparison import EXECUTORS, WARNINGS, assert_same, build, numbers, seed_all, steps
from map_sets import Buckets, EveryOther, Squares, WithEpoch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]

Data = Any
Generator = torch.Generator
DATA = Squares(23)
WEIGHTS = [1.0 + number % 5 for number in range(23)]


def _distributed(rank: int, **settings: Any) -> DistributedSampler[Any]:
    return DistributedSampler(DATA, num_replicas=3, rank=rank, **settings)


#: The loader's settings, given a generator that the case may use.
CASES: dict[str, Callable[[Generator], dict[str, Any]]] = {
    "sequential": lambda g: {"batch_size": 4},
    "sequential sampler": lambda g: {"batch_size": 4, "sampler": SequentialSampler(DATA)},
    "sequential, generator": lambda g: {"batch_size": 4, "generator": g},
    "shuffle": lambda g: {"batch_size": 4, "shuffle": True},
    "shuffle, drop last": lambda g: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "shuffle, generator": lambda g: {"batch_size": 4, "shuffle": True, "generator": g},
    "shuffle, one by one": lambda g: {"batch_size": None, "shuffle": True, "generator": g},
    "random, its generator": lambda g: {"batch_size": 4, "sampler": RandomSampler(DATA, generator=g)},
    "random, one generator for both": lambda g: {
        "batch_size": 4,
        "sampler": RandomSampler(DATA, generator=g),
        "generator": g,
    },
    "random, replacement": lambda g: {"sampler": RandomSampler(DATA, True, generator=g), "batch_size": 4},
    "random, 100 with replacement": lambda g: {"sampler": RandomSampler(DATA, True, 100), "batch_size": 9},
    "random, 100 without": lambda g: {"sampler": RandomSampler(DATA, False, 100), "batch_size": 9},
    "random, 5": lambda g: {"sampler": RandomSampler(DATA, num_samples=5), "batch_size": 2},
    "weighted": lambda g: {"sampler": WeightedRandomSampler(WEIGHTS, 40), "batch_size": 6},
    "weighted, without replacement": lambda g: {
        "sampler": WeightedRandomSampler(WEIGHTS, 20, replacement=False, generator=g),
        "batch_size": 6,
    },
    "subset": lambda g: {"sampler": SubsetRandomSampler([3, 1, 4, 15, 9]), "batch_size": 2},
    "subset, generator": lambda g: {"sampler": SubsetRandomSampler([3, 1, 4, 15, 9], generator=g)},
    "distributed, rank 0": lambda g: {"sampler": _distributed(0), "batch_size": 3},
    "distributed, rank 2": lambda g: {"sampler": _distributed(2), "batch_size": 3},
    "distributed, dropping": lambda g: {"sampler": _distributed(1, drop_last=True), "batch_size": 3},
    "distributed, in order": lambda g: {"sampler": _distributed(1, shuffle=False), "batch_size": 3},
    "distributed, seeded": lambda g: {"sampler": _distributed(1, seed=9), "batch_size": 3},
    "stateful distributed": lambda g: {"sampler": StatefulDistributedSampler(DATA, 3, 1), "batch_size": 3},
    "stateful random": lambda g: {"sampler": StatefulRandomSampler(DATA, generator=g), "batch_size": 3},
    "with an epoch": lambda g: {"sampler": WithEpoch(23), "batch_size": 3},
    "no Sampler": lambda g: {"sampler": EveryOther(23), "batch_size": 3},
    "a list": lambda g: {"sampler": [3, 2, 2, 1], "batch_size": 3},
    "a generator object": lambda g: {"sampler": (number * 2 for number in range(5)), "batch_size": 2},
    "a tensor": lambda g: {"sampler": torch.randperm(23), "batch_size": 5},
    "BatchSampler": lambda g: {"batch_sampler": BatchSampler(RandomSampler(DATA), 4, True)},
    "buckets": lambda g: {"batch_sampler": Buckets(23)},
    "a list of batches": lambda g: {"batch_sampler": [[1, 2], [3], [], [4, 5, 6]], "collate_fn": list},
    "tuples as batches": lambda g: {"batch_sampler": [(1, 2), (3,)]},
    "a generator of batches": lambda g: {"batch_sampler": ([number, 1] for number in range(4))},
    "BatchSampler as sampler": lambda g: {
        "sampler": BatchSampler(SequentialSampler(DATA), 4, False),
        "batch_size": None,
        "collate_fn": list,
    },
}

#: Cases where StatefulDataLoader is not torch: it seeds its own generator when it is made, or draws the
#: permutation before the base seed. Ours takes the same numbers from the generators as torch does.
STATEFUL_ORDER_OF_ITS_OWN = {
    "shuffle",
    "shuffle, drop last",
    "shuffle, generator",
    "shuffle, one by one",
    "random, one generator for both",
}


def states(generator: Generator) -> list[Any]:
    """Every generator that a loader may touch."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return [torch.get_rng_state(), generator.get_state(), random.getstate(), list(numpy_state)]


def run(loader: str, name: str, count: int = 3, **settings: Any) -> list[Any]:
    """Batches of several epochs, with the generators' states before, between and after them."""
    seed_all(21)
    generator = Generator().manual_seed(4)
    made = build(
        loader, DATA if "a list of" not in name else list(range(23)), **CASES[name](generator), **settings
    )
    seen: list[Any] = []
    for epoch in range(count):
        if hasattr(made.sampler, "set_epoch"):
            made.sampler.set_epoch(epoch)
        seen.append(states(generator))
        seen.append(steps(iter(made)))
    return [*seen, states(generator)]


@pytest.mark.parametrize("name", CASES)
def test_stateful_equals_torch(name: str) -> None:
    stateful, theirs = run("stateful", name), run("torch", name)
    if name not in STATEFUL_ORDER_OF_ITS_OWN:
        assert_same(stateful[1::2], theirs[1::2])
    else:
        assert sorted(map(str, numbers(stateful[1]))) != [] and len(stateful[1]) == len(theirs[1])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CASES)
def test_order_and_draws_are_torchs(name: str, executor: str) -> None:
    """Full epochs, so that torch with and without workers draws the same numbers."""
    assert_same(run("feedline", name, **EXECUTORS[executor]), run("torch", name))


@pytest.mark.parametrize("name", ["shuffle", "shuffle, generator", "buckets", "random, 5"])
def test_persistent_workers_draw_as_torchs_do(name: str) -> None:
    """torch takes one base seed for workers that stay, not one per epoch."""
    settings = {"num_workers": 2, "persistent_workers": True}
    theirs = run("torch", name, multiprocessing_context="fork", **settings)
    for executor in ("processes", "threads"):
        assert_same(run("feedline", name, executor=executor, **settings), theirs)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_seeding_before_an_epoch_decides_its_order(executor: str) -> None:
    """A loader that prepares the next epoch early must not have drawn its order already."""

    def orders(loader: str, **settings: Any) -> list[Any]:
        made = build(loader, DATA, batch_size=5, shuffle=True, **settings)
        seen = []
        for epoch in (3, 1, 3):
            seed_all(epoch)
            seen.append(steps(iter(made)))
        assert_same(seen[0], seen[2])
        return seen

    assert_same(orders("feedline", **EXECUTORS[executor]), orders("torch"))


@pytest.mark.parametrize("name", ["shuffle", "shuffle, generator", "random, replacement"])
@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_draws_of_an_epoch_left_early(name: str, taken: int, executor: str) -> None:
    def after(loader: str, **settings: Any) -> list[Any]:
        seed_all(2)
        generator = Generator().manual_seed(4)
        made = build(loader, DATA, **CASES[name](generator), **settings)
        seen = [steps(iter(made), most=taken), states(generator)]
        return [*seen, steps(iter(made)), states(generator)]

    ways = {} if executor == "inline" else {"num_workers": 2, "multiprocessing_context": "fork"}
    assert_same(after("feedline", **EXECUTORS[executor]), after("torch", **ways))


@pytest.mark.parametrize("name", ["buckets", "shuffle", "random, replacement"])
def test_draws_of_the_loop_and_of_the_sampler_alternate_as_with_torch(name: str) -> None:
    """Without workers the sampler is asked when its answer is needed: a model with dropout depends on it."""

    def run_loop(loader: str) -> list[Any]:
        seed_all(3)
        made = build(loader, DATA, **CASES[name](torch.default_generator))
        return [(batch, torch.rand(2), random.random()) for _ in range(2) for batch in made]

    assert_same(run_loop("feedline"), run_loop("torch"))


def test_a_sampler_that_follows_the_training() -> None:
    """Without workers, what the loop does after a batch decides about the very next one."""

    def run_loop(loader: str) -> list[Any]:
        hard: list[int] = [4]
        seen = []
        for batch in build(loader, DATA, batch_size=1, sampler=(hard[-1] for _ in range(6))):
            hard.append((batch[0].item() * 3 + 1) % 23)
            seen.append(batch)
        return seen

    assert_same(run_loop("feedline"), run_loop("torch"))


def test_ranks_share_the_data_set() -> None:
    """All ranks together, over epochs, are torch's."""

    def gathered(loader: str, epoch: int, **settings: Any) -> list[list[Any]]:
        ranks = []
        for rank in range(3):
            sampler = _distributed(rank)
            sampler.set_epoch(epoch)
            ranks.append(numbers(steps(iter(build(loader, DATA, batch_size=2, sampler=sampler, **settings)))))
        return ranks

    for epoch in (0, 1, 5):
        ours = gathered("feedline", epoch, **EXECUTORS["threads"])
        assert ours == gathered("torch", epoch)
        assert {index for rank in ours for batch in rank for index in batch[0]} == set(range(23))


def test_the_loaders_attributes_are_torchs() -> None:
    """Lightning, accelerate and others read them to make a loader anew."""
    ours, theirs = build("feedline", DATA, batch_size=4, shuffle=True), build("torch", DATA, 4, shuffle=True)
    assert isinstance(ours, torch.utils.data.DataLoader)
    for name, value in vars(theirs).items():
        mine = getattr(ours, name)
        assert type(mine) is type(value), name
    assert type(ours.batch_sampler) is BatchSampler and type(ours.sampler) is RandomSampler
    for name in ("batch_size", "sampler", "batch_sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match=name):
            setattr(ours, name, None)
