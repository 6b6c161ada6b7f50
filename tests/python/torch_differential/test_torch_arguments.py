"""The constructor: every refusal of torch's, with its type and its words, and every argument's place."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import feedline.torch
import pytest
import torch
from comparison import WARNINGS, Raised, as_name, assert_same, build, epochs, outcome, steps
from map_sets import Squares
from torch.utils.data import RandomSampler, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]

REFUSED: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1, "num_workers": 1},
    {"prefetch_factor": 2},
    {"prefetch_factor": -1, "num_workers": 1},
    {"persistent_workers": True},
    {"batch_size": 0},
    {"batch_size": -3},
    {"batch_size": 2.5},
    {"batch_size": True},
    {"batch_size": "4"},
    {"drop_last": 1},
    {"drop_last": "yes", "batch_size": 2},
    {"batch_size": None, "drop_last": True},
    {"sampler": [1, 2], "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "drop_last": True},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "spoon", "num_workers": 1},
    {"multiprocessing_context": 7, "num_workers": 1},
    {"num_workers": "2"},
    {"num_workers": None},
    {"timeout": None},
    {"no_such_argument": 1},
    {"dataset": None},
    {"dataset": None, "shuffle": True},
    {"dataset": [], "shuffle": True},
    {"dataset": 7},
    {"dataset": iter([1, 2])},
    {"dataset": {1, 2}},
    {"sampler": 7},
    {"batch_sampler": 7},
    {"sampler": [1, 2], "batch_size": None, "collate_fn": 7},
    {"shuffle": True, "generator": 7},
]


def attempt(loader: str, settings: dict[str, Any]) -> Any:
    """Made and iterated over: some of it is noticed only then."""
    settings = dict(settings)
    dataset = settings.pop("dataset", None) if "dataset" in settings else Squares(5)

    def run() -> Any:
        return steps(iter(build(loader, dataset, **settings)), most=2)

    return outcome(run)


@pytest.mark.parametrize("settings", REFUSED, ids=as_name)
def test_what_torch_refuses(settings: dict[str, Any]) -> None:
    ours, theirs = attempt("feedline", settings), attempt("torch", settings)
    assert_same(ours, theirs)
    if isinstance(theirs, Raised) and "no_such" not in str(settings):
        assert str(ours.error) == str(theirs.error)


def test_the_arguments_are_torchs_and_torchdatas() -> None:
    ours = inspect.signature(feedline.torch.DataLoader.__init__).parameters
    for other in (torch.utils.data.DataLoader, StatefulDataLoader):
        theirs = inspect.signature(other.__init__).parameters
        assert [name for name in ours if name in theirs] == list(theirs)
        for name, parameter in theirs.items():
            assert ours[name].default == parameter.default, name
            assert ours[name].kind == parameter.kind, name


def test_arguments_by_position() -> None:
    def collate(batch: Any) -> Any:
        return list(batch)

    def run(loader: str) -> Any:
        made = build(loader, Squares(7), 3, False, None, None, 0, collate, False, True, 0, None, None, None)
        return steps(iter(made))

    assert_same(run("feedline"), run("torch"))


@pytest.mark.parametrize(
    "settings", [{"executor": "magic"}, {"random": "never"}, {"snapshot_every_n_steps": -1}], ids=str
)
def test_our_own_arguments_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        build("feedline", Squares(5), **settings)


def test_subscripting_and_subclassing() -> None:
    """As in annotations and in libraries that derive a loader of their own."""

    class Logged(feedline.torch.DataLoader[int]):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            self.log: list[str] = []
            super().__init__(*arguments, **settings)

        def __iter__(self) -> Any:
            self.log.append("begun")
            return super().__iter__()

    made = Logged(list(range(5)), batch_size=2)
    assert [batch.tolist() for batch in made] == [[0, 1], [2, 3], [4]]
    assert made.log == ["begun"]


def test_a_loader_may_be_copied_and_pickled() -> None:
    """As torch's may: launchers send it to other processes. Workers do not travel."""
    made = build("feedline", Squares(6), batch_size=2, shuffle=True, num_workers=1)
    expected = epochs("torch", Squares(6), batch_size=2, shuffle=True)
    steps(iter(made), most=1)
    for other in (copy.copy(made), pickle.loads(pickle.dumps(made))):
        torch.manual_seed(5)
        assert_same([steps(iter(other))], expected)


def test_an_iterator_is_not_pickled() -> None:
    for loader in ("torch", "feedline"):
        with pytest.raises((NotImplementedError, TypeError)):
            pickle.dumps(iter(build(loader, Squares(3))))


def test_lengths_of_iterators_are_torchs() -> None:
    ours, theirs = (build(loader, Squares(7), batch_size=2) for loader in ("feedline", "torch"))
    assert len(iter(ours)) == len(iter(theirs)) == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_the_iterator_of_workers_that_stay_is_usable_twice(workers: int) -> None:
    """`iter` of an iterator is itself, and `next(iter(loader))` begins anew each time."""
    settings = {"num_workers": 1, "persistent_workers": True} if workers else {}
    made = build("feedline", Squares(5), **settings)
    iterator = iter(made)
    assert iter(iterator) is iterator
    for _ in range(3):
        assert next(iter(made))[0].tolist() == [0]


def test_samplers_are_made_as_torch_makes_them() -> None:
    for shuffle, kind in ((True, RandomSampler), (False, SequentialSampler)):
        assert type(build("feedline", Squares(5), shuffle=shuffle).sampler) is kind
