"""state_dict of iterable-style data sets: by their own state, by their iterator's, or the long way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from comparison import WARNINGS, assert_same, build, numbers, steps
from streams import Endless, IteratorWithState, Itself, RandomWithState, Sharded, Stream, Uneven, WithState
from test_torch_state import through_a_file

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in WARNINGS),
    pytest.mark.filterwarnings("ignore:neither the data set nor its iterator:UserWarning"),
]

#: Makes the data set, and whether it or its iterator has a state.
CASES: dict[str, tuple[Callable[[], Any], bool]] = {
    "plain": (lambda: Stream(11), False),
    "sharded": (lambda: Sharded(17), False),
    "uneven": (lambda: Uneven([7, 1, 4]), False),
    "data set with state": (lambda: WithState(17), True),
    "iterator with state": (lambda: IteratorWithState(17), True),
    "shuffle buffer": (lambda: RandomWithState(13), True),
}

WORKERS = [0, 1, 3]


def settings(loader: str, workers: int) -> dict[str, Any]:
    if workers == 0:
        return {}
    if loader == "feedline":
        return {"num_workers": workers, "executor": "processes"}
    return {"num_workers": workers, "multiprocessing_context": "fork"}


def run(
    loader: str, make: Callable[[], Any], workers: int, taken: int, **more: Any
) -> tuple[list[Any], list[Any]]:
    """What follows without an interruption, and after one."""
    made = build(loader, make(), **({"batch_size": 2} | more), **settings(loader, workers))
    iterator = iter(made)
    for _ in range(taken):
        next(iterator)
    state = made.state_dict()
    rest = steps(iterator, most=20)
    other = build(loader, make(), **({"batch_size": 2} | more), **settings(loader, workers))
    other.load_state_dict(through_a_file(state) if loader == "feedline" else state)
    return rest, steps(iter(other), most=20)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", CASES)
def test_the_rest_of_the_epoch_follows(name: str, workers: int) -> None:
    make, _ = CASES[name]
    counts = (1, 2, 3, 4) if workers == 0 else (1, 4)
    for taken in counts:
        rest, after = run("feedline", make, workers, taken)
        assert_same(after, rest, f"after {taken}")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_what_follows_is_what_stateful_gives(name: str, workers: int) -> None:
    make, _ = CASES[name]
    ours, theirs = run("feedline", make, workers, 3), run("stateful", make, workers, 3)
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    "more", [{"batch_size": None}, {"drop_last": True}, {"snapshot_every_n_steps": 4}], ids=str
)
@pytest.mark.parametrize("name", ["sharded", "data set with state", "iterator with state"])
def test_other_settings(name: str, more: dict[str, Any]) -> None:
    for taken in (1, 4):
        rest, after = run("feedline", CASES[name][0], 2, taken, **more)
        assert_same(after, rest, f"after {taken}")


def test_an_endless_stream() -> None:
    rest, after = run("feedline", Endless, 2, 5)
    assert_same(after, rest)


@pytest.mark.parametrize("name", CASES)
def test_the_long_way_is_warned_about(name: str) -> None:
    make, has_state = CASES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run("feedline", make, 0, 2)
    assert bool([one for one in caught if "state_dict" in str(one.message)]) is not has_state


def test_a_state_spares_the_reading() -> None:
    """With a state of its own nothing is read twice."""
    made = build("feedline", WithState(20), batch_size=2)
    iterator = iter(made)
    for _ in range(4):
        next(iterator)
    state = made.state_dict()
    data = WithState(20)
    other = build("feedline", data, batch_size=2)
    other.load_state_dict(state)
    assert numbers([next(iter(other))]) == [[8, 9]]
    assert data.reads == 2


def test_another_number_of_workers_is_refused_with_the_reason() -> None:
    """A worker's part of a stream cannot be given to others; StatefulDataLoader refuses too."""
    made = build("feedline", WithState(20), batch_size=2, **settings("feedline", 2))
    next(iter(made))
    other = build("feedline", WithState(20), batch_size=2, **settings("feedline", 3))
    with pytest.raises(ValueError, match="num_workers=2"):
        other.load_state_dict(made.state_dict())


def test_after_the_end_comes_a_whole_epoch() -> None:
    def run_twice(loader: str) -> list[Any]:
        made = build(loader, WithState(9), batch_size=2)
        steps(iter(made))
        other = build(loader, WithState(9), batch_size=2)
        other.load_state_dict(made.state_dict())
        return steps(iter(other))

    assert_same(run_twice("feedline"), run_twice("stateful"))


def test_a_stream_that_is_its_own_iterator() -> None:
    """Without a state it is read anew, as its iterator is the same object."""
    rest, after = run("feedline", lambda: Itself(9), 0, 2)
    assert_same(after, rest)
