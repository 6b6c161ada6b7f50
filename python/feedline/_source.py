"""What `Loader(source)` may be, told apart: paths, descriptions, arrays, and lists of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy
import numpy.typing

from feedline._errors import SourceError, SpecError

Column = tuple[str, str | None, numpy.typing.NDArray[Any]]

_KINDS = "a path, a description, arrays, or a list of these or of (source, weight) pairs"
_DTYPES = "bool, integers, float16, bfloat16, float32 or float64"


def is_array(value: object) -> bool:
    """Whether this is an array of NumPy, torch, JAX or anything that speaks their language."""
    return not isinstance(value, type | numpy.generic) and any(
        hasattr(value, name) for name in ("__array_interface__", "__array__", "__dlpack__")
    )


def read_source(source: Any) -> tuple[Any, list[list[Column]]]:
    """The source as a description holds it, and the arrays that the description cannot hold."""
    arrays: list[list[Column]] = []
    if isinstance(source, list | tuple) and not _are_arrays(source):
        if _is_pair(source):
            raise SpecError("source: a (source, weight) pair stands alone; put the pairs into a list")
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
