"""Every kind of sample: collated by torch's function, alone, and in a list."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from comparison import EXECUTORS, WARNINGS, Raised, assert_same, epochs, resolved
from sample_kinds import KINDS, UNSENDABLE, Gallery, Token, collate_tokens
from torch.utils.data._utils.collate import default_collate_fn_map

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in WARNINGS),
    # torch has something to say about half of the kinds, once a process: sparse, quantised, read-only...
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

FORKED = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 60}

BATCHES = [[(name, number) for number in range(3)] for name in KINDS]


def as_it_is(sample: Any) -> Any:
    return sample


#: How the samples become a batch. With a function that the program has added to torch's map, what
#: collates is torch's own code in any case; without one, ours may write the rows in place.
WAYS: dict[str, dict[str, Any]] = {
    "collated": {"batch_sampler": BATCHES},
    "collated, map extended": {"batch_sampler": BATCHES},
    "alone": {"batch_size": None, "sampler": [(name, 1) for name in KINDS]},
    "listed": {"batch_sampler": BATCHES, "collate_fn": list},
}


@contextlib.contextmanager
def extended(way: str) -> Iterator[None]:
    """Adds to torch's map of collate functions."""
    if way != "collated, map extended":
        yield
        return
    default_collate_fn_map[Token] = collate_tokens
    try:
        yield
    finally:
        del default_collate_fn_map[Token]


@functools.cache
def shown(loader: str, way: str, workers: str = "inline") -> dict[str, Any]:
    """What one loader makes of all kinds."""
    settings = FORKED if workers == "forked" else EXECUTORS[workers]
    with extended(way):
        [batches] = epochs(loader, Gallery(), **WAYS[way], **settings)
    return dict(zip(KINDS, batches, strict=True))


#: Kinds that torch's workers spoil or refuse, while torch without workers hands them over whole. Ours
#: may do as torch's workers do, or hand them over whole; nothing else.
SPOILT_BY_TORCH_WORKERS = {
    "conjugate": "collating fails; alone, the conjugate bit is lost and with it the values' signs",
    "negative_view": "collating fails; alone, the negative bit is lost and with it the values' signs",
    "nested_tensor_transposed": "the tensors in it arrive contiguous",
    "quantised": "collating fails; alone, the tensor arrives without its quantiser",
    "leaf_with_gradient": "collating fails, since torch.stack has no out= for what needs gradients",
    "parameter": "collating fails, since torch.stack has no out= for what needs gradients",
    "numpy >i4": "in a list, the array arrives in the machine's byte order",
    "numpy >f8": "in a list, the array arrives in the machine's byte order",
}

#: A deliberate difference: of a tensor that does not fill its memory, a worker process sends the elements
#: only, so that a small view of a large tensor stays small. Values, dtype and shape are the same.
SENT_WITHOUT_GAPS = {"strided", "expanded", "conjugate", "negative_view"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_stateful_equals_torch(name: str, way: str) -> None:
    assert_same(shown("stateful", way)[name], shown("torch", way)[name])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name for name in KINDS if name not in SPOILT_BY_TORCH_WORKERS])
def test_torch_equals_torch_with_workers(name: str, way: str) -> None:
    assert_same(shown("torch", way, "forked")[name], shown("torch", way)[name])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_torchs(name: str, way: str, executor: str) -> None:
    ours = shown("feedline", way, executor)[name]
    if executor == "processes" and name in SENT_WITHOUT_GAPS:
        assert_same(resolved(ours), resolved(shown("torch", way)[name]))
    elif executor == "processes" and name in SPOILT_BY_TORCH_WORKERS:
        try:
            assert_same(ours, shown("torch", way, "forked")[name])
        except (AssertionError, RuntimeError):  # asking a spoilt tensor for its quantiser is the latter
            assert_same(ours, shown("torch", way)[name])
    else:
        assert_same(ours, shown("torch", way)[name])


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_cannot_be_pickled_needs_no_pickle_here(name: str, executor: str) -> None:
    keys = [(name, 0), (name, 1)]
    [ours] = epochs("feedline", Gallery(), batch_size=None, sampler=keys, **EXECUTORS[executor])
    [theirs] = epochs("torch", Gallery(), batch_size=None, sampler=keys)
    assert [type(item) for item in ours] == [type(item) for item in theirs]


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_cannot_be_pickled_is_an_error_not_a_wait(name: str) -> None:
    keys = [(name, 0), ("python_int", 4)]
    settings = EXECUTORS["processes"] | {"timeout": 60}
    [[refused, fine]] = epochs(
        "feedline", Gallery(), batch_size=None, sampler=keys, collate_fn=as_it_is, **settings
    )
    if name == "view_of_memory":
        # cloudpickle makes bytes of it.
        assert bytes(refused) == b"\0\1"
    else:
        assert isinstance(refused, Raised) and "pickle" in str(refused.error)
    assert fine == 3
