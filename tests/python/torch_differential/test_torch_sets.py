"""Map-style data sets of every make, in every batch size, with and without workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparison import EXECUTORS, WARNINGS, assert_same, build, epochs, no_init, seed_all, steps
from map_sets import (
    Changing,
    Counting,
    EveryOther,
    Growing,
    Large,
    Lengthless,
    Named,
    PaddingCollator,
    Ragged,
    Squares,
    Together,
    TogetherDisabled,
    TogetherTensor,
    TogetherWrong,
    pad,
)
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, random_split

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]


def _split() -> Any:
    return random_split(Squares(20), [0.7, 0.3], generator=torch.Generator().manual_seed(3))[0]


#: Makes the data set, and the loader's settings.
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "batch of one": (lambda: Squares(5), {}),
    "divisible": (lambda: Squares(12), {"batch_size": 4}),
    "not divisible": (lambda: Squares(14), {"batch_size": 4}),
    "drop last": (lambda: Squares(14), {"batch_size": 4, "drop_last": True}),
    "drop everything": (lambda: Squares(3), {"batch_size": 4, "drop_last": True}),
    "larger than the set": (lambda: Squares(3), {"batch_size": 100}),
    "empty": (lambda: Squares(0), {"batch_size": 4}),
    "empty, one by one": (lambda: Squares(0), {"batch_size": None}),
    "batch_size None": (lambda: Squares(5), {"batch_size": None}),
    "batch_size None, collate_fn": (lambda: Squares(5), {"batch_size": None, "collate_fn": repr}),
    "batch_size None, shuffled": (lambda: Squares(9), {"batch_size": None, "shuffle": True}),
    "batch_size None, batches as keys": (
        lambda: torch.arange(20),
        {"batch_size": None, "sampler": [[1, 2], [3, 4, 5], [0]]},
    ),
    "without length": (Lengthless, {"batch_size": 2, "sampler": [5, 3, 5, 8]}),
    "string keys": (Named, {"batch_size": 2, "sampler": ["bee", "ant", "eel"]}),
    "a dict with string keys": (lambda: {"a": 1, "b": 2}, {"sampler": ["b", "a", "b"]}),
    "a dict with number keys": (lambda: {0: 1.5, 1: 2.5, 2: 3.5}, {"batch_size": 2}),
    "a list": (lambda: [torch.tensor([number]) for number in range(7)], {"batch_size": 3}),
    "a tuple": (lambda: (1, 2, 3), {"batch_size": 2}),
    "a range": (lambda: range(4, 17), {"batch_size": 5, "shuffle": True}),
    "a string": (lambda: "feedline", {"batch_size": 3}),
    "a tensor": (lambda: torch.arange(12.0).reshape(6, 2), {"batch_size": 4}),
    "an array": (lambda: torch.arange(12).reshape(6, 2).numpy(), {"batch_size": 4}),
    "bytes": (lambda: b"\0\1\2\3", {"batch_size": 3}),
    "TensorDataset": (
        lambda: TensorDataset(torch.arange(10), torch.arange(20.0).view(10, 2)),
        {"batch_size": 4},
    ),
    "Subset": (lambda: Subset(Squares(10), [7, 1, 1, 9]), {"batch_size": 3}),
    "Subset of a batch fetcher": (lambda: Subset(Together(10), [7, 1, 9]), {"batch_size": 2}),
    "ConcatDataset": (lambda: ConcatDataset([Squares(3), Squares(4, offset=100)]), {"batch_size": 2}),
    "StackDataset": (lambda: StackDataset(Squares(5), torch.arange(5)), {"batch_size": 2}),
    "StackDataset by name": (lambda: StackDataset(a=Squares(5), b=Squares(5, 9)), {"batch_size": 2}),
    "random_split": (_split, {"batch_size": 4}),
    "__getitems__": (lambda: Together(10), {"batch_size": 4, "shuffle": True}),
    "__getitems__, one by one": (lambda: Together(4), {"batch_size": None}),
    "__getitems__ is None": (lambda: TogetherDisabled(6), {"batch_size": 4}),
    "__getitems__ gives fewer": (lambda: TogetherWrong(9), {"batch_size": 4}),
    "__getitems__ gives a tensor": (lambda: TogetherTensor(9), {"batch_size": 4, "collate_fn": list}),
    "shapes change": (lambda: Growing([2, 5, 1, 300, 0, 7, 40_000], 3), {"batch_size": 3}),
    "shapes change within": (lambda: Growing([2, 5], 3), {"batch_size": 4}),
    "structures change": (Changing, {"batch_size": 2}),
    "ragged": (Ragged, {"batch_size": 4}),
    "ragged, padded": (Ragged, {"batch_size": 4, "collate_fn": pad}),
    "ragged, padded by an object": (Ragged, {"batch_size": 4, "collate_fn": PaddingCollator(12)}),
    "ragged, listed": (Ragged, {"batch_size": 4, "collate_fn": list}),
    "a lambda collates": (lambda: Squares(5), {"batch_size": 2, "collate_fn": lambda batch: len(batch)}),
    "collate_fn gives None": (lambda: Squares(3), {"collate_fn": lambda batch: None}),
    "collate_fn gives the input": (lambda: Squares(3), {"collate_fn": lambda batch: batch}),
    "index out of range": (lambda: Squares(3), {"sampler": [0, 5, 1]}),
    "negative index": (lambda: [10, 20, 30], {"sampler": [-1, 0]}),
    "numpy index": (lambda: Squares(9), {"sampler": torch.arange(3).numpy()}),
    "tensor index": (lambda: torch.arange(9) * 2, {"sampler": torch.tensor([4, 2])}),
    "a sampler that is none": (lambda: Squares(9), {"sampler": EveryOther(9), "batch_size": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_stateful_equals_torch(name: str) -> None:
    make, settings = CASES[name]
    if settings.get("shuffle"):
        pytest.skip("StatefulDataLoader shuffles in an order of its own: test_torch_orders.py")
    assert_same(epochs("stateful", make(), 2, **settings), epochs("torch", make(), 2, **settings))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CASES)
def test_batches_are_torchs(name: str, executor: str) -> None:
    make, settings = CASES[name]
    count = 1 if executor == "processes" else 2
    ours = epochs("feedline", make(), count, **settings, **EXECUTORS[executor])
    theirs = epochs("torch", make(), count, **settings)
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_batches_that_the_caller_helps_to_make_are_torchs(name: str) -> None:
    """Nothing says who makes which batch, so none may differ from the others."""
    make, settings = CASES[name]
    ours = epochs("feedline", make(), 2, **settings, num_workers=1, executor="processes")
    assert_same(ours, epochs("torch", make(), 2, **settings))


@pytest.mark.parametrize("name", CASES)
def test_lengths_are_torchs(name: str) -> None:
    make, settings = CASES[name]
    assert len(build("feedline", make(), **settings)) == len(build("torch", make(), **settings))


@pytest.mark.parametrize("loader", ["torch", "feedline"])
def test_the_data_set_is_the_callers_without_workers(loader: str) -> None:
    data = Counting()
    assert len(steps(iter(build(loader, data, batch_size=2)))) == 3
    assert data.calls == 6


@pytest.mark.parametrize("persistent", [False, True])
def test_changes_between_epochs_reach_the_workers_as_with_torch(persistent: bool) -> None:
    """Workers that stay keep their copy; workers that are made for an epoch see what was changed."""

    def run(loader: str, **settings: Any) -> list[Any]:
        data = Counting()
        made = build(loader, data, batch_size=2, num_workers=1, persistent_workers=persistent, **settings)
        first = steps(iter(made))
        data.note = "second"
        return [first, steps(iter(made))]

    theirs = run("torch", multiprocessing_context="fork")
    assert_same(run("feedline", executor="processes", worker_init_fn=no_init), theirs)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_collate_fn_may_be_replaced_between_epochs(executor: str) -> None:
    def run(loader: str, **settings: Any) -> list[Any]:
        made = build(loader, Squares(4), batch_size=2, **settings)
        first = steps(iter(made))
        made.collate_fn = list
        return [first, steps(iter(made))]

    assert_same(run("feedline", **EXECUTORS[executor]), run("torch"))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_two_iterators_at_once(executor: str) -> None:
    def run(loader: str, **settings: Any) -> list[Any]:
        seed_all(11)
        made = build(loader, Squares(9), batch_size=2, shuffle=True, **settings)
        one, other = iter(made), iter(made)
        return [(next(one), next(other)) for _ in range(4)] + steps(one) + steps(other)

    # With workers, torch asks the sampler as soon as there is an iterator.
    ways = {} if executor == "inline" else {"num_workers": 2, "multiprocessing_context": "fork"}
    assert_same(run("feedline", **EXECUTORS[executor]), run("torch", **ways))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_epochs_left_early(executor: str) -> None:
    def run(loader: str, **settings: Any) -> list[Any]:
        seed_all(12)
        made = build(loader, Squares(40), batch_size=2, shuffle=True, **settings)
        return [steps(iter(made), most=2) for _ in range(3)] + [steps(iter(made))]

    assert_same(run("feedline", **EXECUTORS[executor]), run("torch"))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_iterator_that_ended_stays_ended(executor: str) -> None:
    iterator = iter(build("feedline", Squares(3), **EXECUTORS[executor]))
    assert len(steps(iterator)) == 3
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("keep", ["all", "last", "view", "array", "nothing"])
def test_a_batch_never_changes_while_anything_of_it_lives(keep: str, executor: str) -> None:
    """What is kept is compared at the end, when all memory had its chance to be used again."""
    data = Large(60)
    kept: list[Any] = []
    settings = EXECUTORS[executor] | ({} if executor == "inline" else {"prefetch_factor": 2})
    for images, _ in build("feedline", data, batch_size=3, **settings):
        if keep == "all":
            kept.append(images)
        elif keep == "last":
            kept = [images]
        elif keep == "view":
            kept.append(images[1:, ::2, 5:].transpose(1, 2))
        elif keep == "array":
            kept.append(images.numpy()[1])
        images = images.clone()
        images.fill_(0)
    expected: list[Any] = []
    for images, _ in build("torch", data, batch_size=3):
        whole = {"all": images, "last": images, "view": images[1:, ::2, 5:].transpose(1, 2)}
        expected.append(images.numpy()[1] if keep == "array" else whole.get(keep))
    if keep == "last":
        expected = expected[-1:]
    if keep != "nothing":
        assert len(kept) == len(expected)
        assert all(bool((one == other).all()) for one, other in zip(kept, expected, strict=True))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_batches_may_be_written_to(executor: str) -> None:
    """As torch's; the change stays in this batch."""
    seen = []
    for images, numbers in build("feedline", Large(30), batch_size=3, **EXECUTORS[executor]):
        seen.append(images.float().mean().item())
        images.zero_()
        numbers += 1
    expected = [images.float().mean().item() for images, _ in build("torch", Large(30), batch_size=3)]
    assert seen == expected
