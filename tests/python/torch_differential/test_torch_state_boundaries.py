"""Streams with a state, where epochs begin and end, beside torchdata's StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from comparison import WARNINGS, build, numbers, steps
from streams import (
    IteratorWithState,
    ItselfWithState,
    Marked,
    RandomWithState,
    Rewinding,
    RoundRobin,
    Sharded,
    WithState,
)
from test_torch_state import through_a_file
from test_torch_state_streams import settings

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in WARNINGS),
    pytest.mark.filterwarnings("ignore:neither the data set nor its iterator:UserWarning"),
]

SETS: dict[str, Callable[[], Any]] = {
    "no state": lambda: Sharded(9),
    "data set with state": lambda: WithState(9),
    "state that leaves a mark": lambda: Marked(9),
    "iterator with state": lambda: IteratorWithState(9),
    "shuffle buffer": lambda: RandomWithState(9),
    "its own iterator": lambda: ItselfWithState(9),
    "its own iterator, rewound": lambda: Rewinding(9),
    "round robin": lambda: RoundRobin([2, 4, 3]),
}

#: Workers, and whether they stay; what one worker does, and new workers do, depends little on the set.
WAYS = [(0, False), (1, False), (1, True), (2, False), (2, True)]
FEW = ["state that leaves a mark", "its own iterator"]
CASES = [(name, way) for way in WAYS for name in (SETS if way in ((0, False), (2, True)) else FEW)]

#: States are taken before the first iterator, before an epoch's first batch, after so many, and at its end.
TAKEN = (0, 3)


def make(loader: str, name: str, way: tuple[int, bool]) -> Any:
    workers, stay = way
    more = settings(loader, workers)
    return build(loader, SETS[name](), batch_size=2, persistent_workers=stay, **more)


def epoch(made: Any) -> list[Any]:
    return numbers(steps(iter(made), most=30))


@pytest.mark.parametrize(("name", "way"), CASES, ids=str)
def test_what_follows_a_state_is_what_would_have_followed(name: str, way: tuple[int, bool]) -> None:
    """In a loader that resumes, in one that resumes twice from the same state, and in one that goes back."""
    made = make("feedline", name, way)
    states, epochs = [(0, 0, made.state_dict())], []
    for number in range(3):
        iterator, batches = iter(made), []
        for count in range(31):
            if number < 2 and count in TAKEN:
                states.append((number, count, made.state_dict()))
            batch = steps(iterator, most=1)
            if not batch:
                break
            batches += batch
        epochs.append(numbers(batches))
        if number < 2:
            states.append((number + 1, 0, made.state_dict()))
    theirs = make("stateful", name, way)
    assert epochs == [epoch(theirs) for _ in range(3)]
    for number, count, state in states:
        expected = [epochs[number][count:], *epochs[number + 1 :]]
        other = make("feedline", name, way)
        other.load_state_dict(through_a_file(state))
        again = other.state_dict()
        assert [epoch(other) for _ in expected] == expected, (number, count)
        other.load_state_dict(again)
        next(iter(other))
        other.load_state_dict(again)
        assert [epoch(other)] == expected[:1], (number, count)
        made.load_state_dict(state)
        assert [epoch(made) for _ in expected[:2]] == expected[:2], (number, count)


#: Streams that torchdata's loader resumes from anywhere as if nothing had happened, with workers that stay.
TAKEN_UP = ["iterator with state", "its own iterator, rewound"]


@pytest.mark.parametrize("way", [(0, False), (2, True)], ids=str)
@pytest.mark.parametrize("name", TAKEN_UP)
def test_what_follows_is_what_torchdatas_gives_at_every_boundary(name: str, way: tuple[int, bool]) -> None:
    def run(loader: str) -> list[Any]:
        made, seen = make(loader, name, way), []
        for whole, count in ((0, None), (0, 0), (0, 3), (1, None), (1, 0)):
            for _ in range(whole):
                epoch(made)
            if count is not None:
                iterator = iter(made)
                seen.append(numbers(steps(iterator, most=count)))
            state = made.state_dict()
            other = make(loader, name, way)
            other.load_state_dict(state)
            seen += [epoch(other), epoch(other)]
            made.load_state_dict(state)
            seen += [epoch(made), epoch(made)]
        return seen

    assert run("feedline") == run("stateful")
