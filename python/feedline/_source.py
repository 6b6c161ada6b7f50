"""What `Loader(source)` may be, told apart: paths, descriptions, arrays, and lists of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy
import numpy.typing

from feedline._errors import SourceError, SpecError

Column = tuple[str, str | None, numpy.typing.NDArray[Any]]

_KINDS = (
    "a path, a description, arrays, a data set with __len__ and __getitem__, an iterable, or a list of these "
    "(but iterables) or of (source, weight) pairs"
)
_DTYPES = "bool, integers, float16, bfloat16, float32 or float64"


def is_array(value: object) -> bool:
    """Whether this is an array of NumPy, torch, JAX or anything that speaks their language."""
    return not isinstance(value, type | numpy.generic) and any(
        hasattr(value, name) for name in ("__array_interface__", "__array__", "__dlpack__")
    )


def is_dataset(value: object) -> bool:
    """Whether this is a data set of the program: its samples have numbers, and it is nothing else."""
    if isinstance(value, type | str | bytes | os.PathLike | Mapping | list | tuple) or is_array(value):
        return False
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not is_stream(value)


def is_iterable(value: object) -> bool:
    """Whether this is an iterable of the program: its samples have no numbers."""
    if isinstance(value, type | str | bytes | os.PathLike | Mapping | list | tuple) or is_array(value):
        return False
    return hasattr(value, "__iter__") and not is_dataset(value)


def is_stream(value: object) -> bool:
    """Whether this is torch's IterableDataset, which inherits a __getitem__ that only raises."""
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and isinstance(value, torch.IterableDataset)


def length_of(value: Any) -> int | None:
    """How many samples or rows this says that it has, if it does."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def is_code(source: Any) -> bool:
    """Whether samples of this source are made by Python code."""
    if isinstance(source, list | tuple) and not _are_arrays(source):
        return any(is_dataset(item[0] if _is_pair(item) else item) for item in source)
    return is_dataset(source) or is_iterable(source)


def read_parts(source: Any) -> list[tuple[str, Any, float | None]]:
    """The sources by themselves: ("dataset", object), ("arrays", columns) or ("described", plain
    data), each with its share in a mix."""
    many = isinstance(source, list | tuple) and not _are_arrays(source)
    if many and _is_pair(source):
        raise _alone()
    parts: list[tuple[str, Any, float | None]] = []
    for item in source if many else [source]:
        weight = float(item[1]) if _is_pair(item) else None
        inner = item[0] if _is_pair(item) else item
        if is_dataset(inner):
            parts.append(("dataset", inner, weight))
            continue
        arrays: list[list[Column]] = []
        described = _read_one(inner, arrays)
        parts.append(("arrays", arrays[0], weight) if arrays else ("described", described, weight))
    return parts


def _alone() -> SpecError:
    return SpecError("source: a (source, weight) pair stands alone; put the pairs into a list")


def read_source(source: Any) -> tuple[Any, list[list[Column]]]:
    """The source as a description holds it, and the arrays that the description cannot hold."""
    arrays: list[list[Column]] = []
    if isinstance(source, list | tuple) and not _are_arrays(source):
        if _is_pair(source):
            raise _alone()
        return [_read_one(item, arrays) for item in source], arrays
    return _read_one(source, arrays), arrays


def _are_arrays(source: Any) -> bool:
    return len(source) > 0 and all(is_array(item) for item in source)


def _is_pair(item: Any) -> bool:
    if not (isinstance(item, tuple) and len(item) == 2):
        return False
    weight = item[1]
    return isinstance(weight, Real) and not isinstance(weight, bool) and not isinstance(item[0], Real)


def _read_one(source: Any, arrays: list[list[Column]]) -> Any:
    if _is_pair(source):
        inner = _read_one(source[0], arrays)
        inner = dict(inner) if isinstance(inner, Mapping) else {"path": inner}
        return {**inner, "weight": float(source[1])}
    if isinstance(source, str | bytes | os.PathLike):
        return source
    if isinstance(source, Mapping):
        named = [name for name, value in source.items() if is_array(value)]
        if not named:
            return source
        columns = [(str(name), value) for name, value in source.items()]
    elif is_array(source):
        columns = [("0", source)]
    elif isinstance(source, list | tuple) and _are_arrays(source):
        columns = [(str(number), value) for number, value in enumerate(source)]
    else:
        kind = type(source).__name__
        raise SpecError(
            f"source: a {kind} is not a source; allowed: {_KINDS}",
            key="source",
            problem=f"a {kind} is not a source",
            allowed=_KINDS,
        )
    arrays.append([_column(name, value) for name, value in columns])
    return {"kind": "arrays"}


def _column(name: str, value: Any) -> Column:
    """An array in C order and native byte order; copied only if it is not so already."""
    dtype = None
    if type(value).__module__.partition(".")[0] == "torch":
        import torch

        value = value.detach()
        if value.device.type != "cpu":
            raise SourceError(f"array {name!r}: is on {value.device}; move it to the CPU first")
        value = value.contiguous()
        if value.dtype == torch.bfloat16:
            dtype, value = "bfloat16", value.view(torch.uint16)
        value = value.numpy()
    array = numpy.asarray(value)
    if array.dtype.name == "bfloat16":
        dtype, array = "bfloat16", numpy.ascontiguousarray(array).view(numpy.uint16)
    if array.ndim == 0:
        raise SourceError(f"array {name!r}: has no axis; the first axis counts the samples")
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise SourceError(f"array {name!r}: has elements of {array.dtype}; allowed: {_DTYPES}")
    native = array.dtype.newbyteorder("=")
    return name, dtype, numpy.ascontiguousarray(array, dtype=native)
