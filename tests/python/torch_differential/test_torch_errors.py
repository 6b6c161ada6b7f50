"""Exceptions of users' code: the type, the text, the place, and what comes after them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from comparison import EXECUTORS, WARNINGS, Raised, assert_same, build, epochs, outcome, steps
from failures import (
    ERRORS,
    TORCH_REPLACES,
    BreakingBy,
    Caused,
    Failing,
    FailingCollate,
    FailingInit,
    FailingSampler,
    FailingTogether,
    FailingToOpen,
    KeywordOnly,
    Odd,
    Plain,
    Unpicklable,
)
from map_sets import Squares

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]

FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}

#: Where it fails: the data set and the settings, for an error's name.
PLACES: dict[str, Any] = {
    "sample": lambda name: (Failing(name), {"batch_size": 2}),
    "sample alone": lambda name: (Failing(name), {"batch_size": None}),
    "first sample": lambda name: (Failing(name, at=0), {"batch_size": 2}),
    "last sample": lambda name: (Failing(name, at=7), {"batch_size": 4}),
    "samples together": lambda name: (FailingTogether(name), {"batch_size": 2}),
    "collate_fn": lambda name: (list(range(8)), {"batch_size": 2, "collate_fn": FailingCollate(name)}),
}


def run(loader: str, place: str, name: str, **settings: Any) -> list[Any]:
    data, arguments = PLACES[place](name)
    [batches] = epochs(loader, data, **arguments, **settings)
    return batches


@functools.cache
def torchs(place: str, name: str) -> list[Any]:
    """Without workers: those replace some exceptions."""
    return run("torch", place, name)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ERRORS)
def test_every_exception_arrives_with_its_type_and_place(name: str, executor: str) -> None:
    """The exception stands in its batch's place and the other batches follow, as with torch."""
    ours = run("feedline", "sample", name, **EXECUTORS[executor])
    assert_same(ours, torchs("sample", name))
    for step in ours:
        if isinstance(step, Raised):
            assert "raise_deep_inside" in step.text and "failures.py" in step.text


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["KeyError", "odd constructor", "unpicklable", "StopIteration"])
def test_every_place_may_fail(name: str, place: str, executor: str) -> None:
    ours = run("feedline", place, name, **EXECUTORS[executor])
    assert_same(ours, torchs(place, name))
    assert all("raise_deep_inside" in step.text for step in ours if isinstance(step, Raised))


@pytest.mark.parametrize("name", ERRORS)
def test_torchs_workers_replace_what_they_cannot_make(name: str) -> None:
    """Says where ours is better than torch with workers; StatefulDataLoader is as torch."""
    forked = run("torch", "sample", name, **FORKED)
    if name in TORCH_REPLACES:
        assert [step.kind for step in forked if isinstance(step, Raised)] == [TORCH_REPLACES[name]]
    else:
        assert_same(forked, torchs("sample", name))


@pytest.mark.parametrize("name", ["KeyError", "odd constructor"])
def test_stateful_equals_torch(name: str) -> None:
    assert_same(run("stateful", "sample", name), torchs("sample", name))
    assert_same(run("stateful", "sample", name, **FORKED), run("torch", "sample", name, **FORKED))


@pytest.mark.parametrize("executor", ["processes", "threads"])
def test_exceptions_keep_what_they_hold(executor: str) -> None:
    """Arguments and attributes, which torch's workers lose in a text."""

    def raised(name: str) -> Any:
        [failed] = [
            step
            for step in run("feedline", "sample", name, **EXECUTORS[executor])
            if isinstance(step, Raised)
        ]
        return failed.error

    assert raised("KeyError").args == ("missing",)
    error = raised("OSError")
    assert (error.errno, error.filename) == (2, "photo.jpg")
    assert str(raised("ValueError")) == "a bad value"
    assert str(raised("unpicklable")).count("heavy") >= 1
    assert isinstance(raised("unpicklable"), Unpicklable)
    odd, keyword = raised("odd constructor"), raised("keyword constructor")
    assert isinstance(odd, Odd) and odd.code == 7
    assert isinstance(keyword, KeywordOnly) and keyword.code == 3


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_cause_is_shown_with_the_exception(executor: str) -> None:
    [batches] = epochs("feedline", Caused("KeyError"), batch_size=2, **EXECUTORS[executor])
    failed = batches[1]
    assert failed.kind is Plain
    assert "KeyError: 'missing'" in failed.text and "direct cause" in failed.text


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("name", ["KeyError", "odd constructor"])
def test_a_sampler_that_fails(name: str, batches: bool, executor: str) -> None:
    """Runs in the caller's process in any case. With workers torch asks it ahead and raises at once, and
    the batches that it has named before are lost; ours come first, as in torch without workers."""

    def settings() -> dict[str, Any]:
        sampler = FailingSampler(name, batches)
        return {"batch_sampler": sampler} if batches else {"sampler": sampler, "batch_size": 2}

    ours = epochs("feedline", Squares(8), **settings(), **EXECUTORS[executor])
    assert_same(ours, epochs("torch", Squares(8), **settings()))


@pytest.mark.parametrize("executor", ["processes", "threads"])
@pytest.mark.parametrize("name", ["KeyError", "odd constructor"])
def test_worker_init_fn_that_fails(name: str, executor: str) -> None:
    settings = EXECUTORS[executor] | {"worker_init_fn": FailingInit(name)}
    [ours] = epochs("feedline", Squares(8), batch_size=2, most=1, **settings)
    assert ours[0].error.__class__ is type(ERRORS[name]())
    assert "raise_deep_inside" in ours[0].text
    if executor == "processes":
        # One worker: torch waits five seconds for each that does not end.
        forked = FORKED | {"num_workers": 1, "worker_init_fn": FailingInit(name)}
        [theirs] = epochs("torch", Squares(8), batch_size=2, most=1, **forked)
        assert theirs[0].kind is TORCH_REPLACES.get(name, ours[0].kind)


def test_a_data_set_that_cannot_be_opened_in_a_worker() -> None:
    """torch's worker processes die of it with a text on the terminal, and the loader says so little."""
    settings = EXECUTORS["processes"]
    seen = outcome(lambda: epochs("feedline", FailingToOpen("KeyError"), batch_size=2, most=1, **settings))
    failed = seen if isinstance(seen, Raised) else seen[0][0]
    assert failed.kind is KeyError and "raise_deep_inside" in failed.text


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["KeyError", "odd constructor", "MemoryError"])
def test_a_stream_that_fails(name: str, workers: int) -> None:
    data = BreakingBy(5, name)
    settings = {"executor": "processes", "num_workers": 2} if workers else {}
    [ours] = epochs("feedline", data, batch_size=2, most=6, **settings)
    [theirs] = epochs("torch", data, batch_size=2, most=6, **(FORKED if workers else {}))
    kinds = [[step.kind for step in run_ if isinstance(step, Raised)] for run_ in (ours, theirs)]
    own = type(ERRORS[name]())
    assert set(kinds[1]) == {TORCH_REPLACES.get(name, own) if workers else own}
    assert set(kinds[0]) == {own}
    assert [isinstance(step, Raised) for step in ours] == [isinstance(step, Raised) for step in theirs]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_next_epoch_is_as_if_nothing_had_happened(executor: str) -> None:
    data = Failing("KeyError")
    made = build("feedline", data, batch_size=2, **EXECUTORS[executor])
    first, second = steps(iter(made)), steps(iter(made))
    assert_same(second, first)
    data.at = 100
    assert not any(isinstance(step, Raised) for step in steps(iter(made)))
