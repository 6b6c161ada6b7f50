"""Runs one data set through three loaders and compares what comes out, to the last bit and class."""

from __future__ import annotations

import dataclasses
import random
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import feedline.torch
import numpy as np
import torch
from PIL import Image
from torchdata.stateful_dataloader import StatefulDataLoader

LOADERS: dict[str, type[torch.utils.data.DataLoader[Any]]] = {
    "torch": torch.utils.data.DataLoader,
    "stateful": StatefulDataLoader,
    "feedline": feedline.torch.DataLoader,
}

#: What only our loader understands; left out for the others.
OURS_ONLY = ("executor", "random")


def as_name(settings: object) -> str:
    """A test's name: the same in every process, so without the addresses of what it is made of."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(settings))


def no_init(worker: int) -> None:
    """As a worker_init_fn it makes "auto" choose processes, in which all batches are made."""


#: Ways to run ours that must give the batches of torch without workers.
EXECUTORS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "processes": {"num_workers": 2, "executor": "processes"},
    "threads": {"num_workers": 2, "executor": "threads"},
}

#: torch warns about every loader with more workers than cores, and at what torchdata does; forks warn
#: where threads run, and in processes that have imported JAX.
WARNINGS = (
    "ignore:This DataLoader will create:UserWarning",
    "ignore:'set_vital' is deprecated:UserWarning",
    "ignore:.*fork:DeprecationWarning",
    "ignore:.*fork:RuntimeWarning",
)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (data sets draw from it)
    torch.manual_seed(seed)


def build(loader: str, dataset: Any, *arguments: Any, **settings: Any) -> Any:
    """A loader by its name in `LOADERS`."""
    if loader != "feedline":
        settings = {name: value for name, value in settings.items() if name not in OURS_ONLY}
    return LOADERS[loader](dataset, *arguments, **settings)


@dataclasses.dataclass
class Raised:
    """Stands in the list of batches where an exception came out of the iterator."""

    error: BaseException
    text: str = ""
    """What the user sees of it."""

    @property
    def kind(self) -> type[BaseException]:
        return type(self.error)


def steps(iterator: Any, most: int = 10_000) -> list[Any]:
    """All batches; an exception stands in its place and the iteration goes on, as torch allows."""
    taken: list[Any] = []
    while len(taken) < most:
        try:
            taken.append(next(iterator))
        except StopIteration:
            break
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            # A traceback would keep the iterator and its workers alive.
            taken.append(Raised(error.with_traceback(None), text))
    return taken


def epochs(
    loader: str, dataset: Any, count: int = 1, seed: int = 5, most: int = 10_000, **settings: Any
) -> list[list[Any]]:
    """Several epochs of one loader, all batches kept alive until the end."""
    seed_all(seed)
    made = build(loader, dataset, **settings)
    return [steps(iter(made), most) for _ in range(count)]


def assert_same(ours: Any, theirs: Any, where: str = "value") -> None:
    """Structure, classes, dtypes, shapes, layouts and bits; NaNs equal NaNs."""
    assert type(ours) is type(theirs), f"{where}: {type(ours)} instead of {type(theirs)}\n{ours!r}"
    if isinstance(theirs, Raised):
        assert ours.kind is theirs.kind, f"{where}: {ours.error!r} instead of {theirs.error!r}"
    elif isinstance(theirs, torch.Tensor):
        _assert_same_tensor(ours, theirs, where)
    elif isinstance(theirs, np.ndarray | np.generic):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, where
        if theirs.dtype == object:
            assert_same(ours.tolist(), theirs.tolist(), where)
        else:
            # The padding of a long double is whatever was there.
            padded = theirs.dtype == np.longdouble
            assert np.array_equal(ours, theirs) if padded else ours.tobytes() == theirs.tobytes(), where
    elif isinstance(theirs, Mapping):
        assert list(ours) == list(theirs), f"{where}: keys {list(ours)} instead of {list(theirs)}"
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
        _assert_same_attributes(ours, theirs, where)
    elif isinstance(theirs, str | bytes | bytearray | range):
        assert ours == theirs, where
    elif isinstance(theirs, Sequence):
        assert len(ours) == len(theirs), f"{where}: {len(ours)} items instead of {len(theirs)}"
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
        _assert_same_attributes(ours, theirs, where)
    elif isinstance(theirs, Image.Image):
        assert ours.mode == theirs.mode and ours.size == theirs.size, where
        assert ours.tobytes() == theirs.tobytes(), where
    elif isinstance(theirs, float) and theirs != theirs:
        assert ours != ours, where
    elif isinstance(theirs, complex | float | int | bool | set | frozenset | type | None):
        assert ours == theirs, f"{where}: {ours!r} instead of {theirs!r}"
    else:
        _assert_same_attributes(ours, theirs, where)


def _assert_same_attributes(ours: Any, theirs: Any, where: str) -> None:
    if getattr(theirs, "__dict__", None):
        assert sorted(vars(ours)) == sorted(vars(theirs)), where
        for name in vars(theirs):
            assert_same(vars(ours)[name], vars(theirs)[name], f"{where}.{name}")


def _assert_same_tensor(ours: torch.Tensor, theirs: torch.Tensor, where: str) -> None:
    assert ours.is_nested == theirs.is_nested and ours.layout == theirs.layout, where
    if theirs.is_nested:
        assert_same(list(ours.unbind()), list(theirs.unbind()), where)
        return
    for name in ("dtype", "shape", "layout", "device", "requires_grad", "is_leaf", "is_quantized"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine == other, f"{where}: {name} {mine} instead of {other}"
    assert ours.is_conj() == theirs.is_conj() and ours.is_neg() == theirs.is_neg(), where
    if theirs.is_meta:
        return
    if theirs.layout == torch.sparse_coo:
        assert ours.is_coalesced() == theirs.is_coalesced(), where
        assert_same(ours._indices(), theirs._indices(), f"{where} indices")
        assert_same(ours._values(), theirs._values(), f"{where} values")
    elif theirs.layout in (torch.sparse_csr, torch.sparse_bsr):
        assert_same(ours.crow_indices(), theirs.crow_indices(), f"{where} rows")
        assert_same(ours.col_indices(), theirs.col_indices(), f"{where} columns")
        assert_same(ours.values(), theirs.values(), f"{where} values")
    elif theirs.layout in (torch.sparse_csc, torch.sparse_bsc):
        assert_same(ours.ccol_indices(), theirs.ccol_indices(), f"{where} columns")
        assert_same(ours.row_indices(), theirs.row_indices(), f"{where} rows")
        assert_same(ours.values(), theirs.values(), f"{where} values")
    else:
        # Those of a tensor without elements say nothing, and NumPy's differ from torch's.
        strides = ours.stride(), theirs.stride()
        assert strides[0] == strides[1] or theirs.numel() == 0, f"{where}: strides {strides}"
        if theirs.is_quantized:
            assert (ours.q_scale(), ours.q_zero_point()) == (theirs.q_scale(), theirs.q_zero_point()), where
            ours, theirs = ours.int_repr(), theirs.int_repr()
        assert bits(ours) == bits(theirs), f"{where}: {ours} instead of {theirs}"


def bits(tensor: torch.Tensor) -> bytes:
    """The values as bytes, which also tell NaNs and signed zeros apart."""
    plain = tensor.detach().resolve_conj().resolve_neg().as_subclass(torch.Tensor).contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def resolved(value: Any) -> Any:
    """Tensors in plain memory, lists of them too: to compare what is in them, not how it lies there."""
    if isinstance(value, torch.Tensor) and not value.is_nested:
        return value.resolve_conj().resolve_neg().contiguous()
    return [resolved(item) for item in value] if isinstance(value, list) else value


def numbers(batches: Iterable[Any]) -> list[Any]:
    """Batches of plain tensors as nested lists, to sort and print; errors as their class."""
    return [batch.kind if isinstance(batch, Raised) else _plain(batch) for batch in batches]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def outcome(action: Callable[[], Any]) -> Any:
    """What it returns, or `Raised`."""
    try:
        return action()
    except Exception as error:
        return Raised(error)
