"""Orders that come from samplers inside batch samplers: equal to torch's, and found again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import feedline.torch
import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

DATA = TensorDataset(torch.arange(40))


class Shuffled(Sampler[int]):
    """Draws from Python's own generator."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        order = list(range(len(DATA)))
        random.shuffle(order)
        yield from order

    def __len__(self) -> int:
        return len(DATA)


def with_generator() -> Sampler[int]:
    return RandomSampler(DATA, generator=torch.Generator().manual_seed(random.randrange(1000)))


def loader(sampler: Sampler[int], kind: Any = feedline.torch.DataLoader, **more: Any) -> Any:
    return kind(DATA, batch_sampler=BatchSampler(sampler, 4, False), num_workers=2, **more)


def numbers(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


@pytest.mark.parametrize("make", [Shuffled, with_generator])
def test_a_sampler_within_a_batch_sampler_is_resumed(make: Callable[[], Sampler[int]]) -> None:
    random.seed(4)
    first = loader(make(), executor="threads")
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    expected = numbers(batches)
    random.seed(9)
    second = loader(make(), executor="threads")
    second.load_state_dict(state)
    assert numbers(second) == expected


def test_epochs_of_a_sampler_within_a_batch_sampler_are_noticed() -> None:
    def epochs(kind: Any, **more: Any) -> list[list[list[int]]]:
        sampler = DistributedSampler(DATA, num_replicas=2, rank=1, shuffle=True)
        made, seen = loader(sampler, kind, persistent_workers=True, **more), []
        # In order, left out, and once more: each may have been made ahead of its time.
        for epoch in (0, 1, 5, 2, 2):
            sampler.set_epoch(epoch)
            seen.append(numbers(made))
        return seen

    assert epochs(feedline.torch.DataLoader, executor="threads") == epochs(torch.utils.data.DataLoader)
