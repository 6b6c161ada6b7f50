"""Samples of any structure joined into a batch of NumPy arrays, and batches for other libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from feedline import _native


class UnevenError(ValueError):
    """A sample that does not fit the first one of its batch."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(row, problem)
        self.row, self.problem = row, problem

    def __str__(self) -> str:
        return f"row {self.row}: {self.problem}"


def is_named_tuple(value: object) -> bool:
    """Whether this is a tuple with names for its fields."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


# What most fields are, recognised by one look: they stay as they are.
_KEPT = frozenset((numpy.ndarray, _native.Pending, type(None), bool, int, float, str, bytes))
_NUMBERS = bool | int | float | complex | numpy.generic


def as_arrays(value: Any) -> Any:
    """A sample with everything in it that is an array of some library as a NumPy array.

    Numbers, text, bytes and unknown objects stay as they are. Nothing is copied that need not be.
    """
    kind = type(value)
    if kind in _KEPT:
        return value
    if kind is tuple:
        return tuple([item if type(item) in _KEPT else as_arrays(item) for item in value])
    if kind is dict:
        return {key: item if type(item) in _KEPT else as_arrays(item) for key, item in value.items()}
    if is_named_tuple(value):
        return kind(*(as_arrays(item) for item in value))
    if isinstance(value, list | tuple):
        made = [as_arrays(item) for item in value]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, Mapping):
        return {key: as_arrays(item) for key, item in value.items()}
    if isinstance(value, numpy.generic | type):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().numpy()
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        array = numpy.asarray(value)
        return value if array.dtype.hasobject else array
    return value


def collate(samples: Sequence[Any], name: str = "the sample") -> Any:
    """One batch of several samples: the structure of the first, with one axis more on each array.

    Numbers become arrays; text, bytes, None and unknown objects become lists.
    """
    first = samples[0]
    if isinstance(first, numpy.ndarray | _native.Pending):
        return _stacked(samples, name)
    if isinstance(first, _NUMBERS):
        if set(map(type, samples)) != {type(first)}:
            for row, sample in enumerate(samples):
                if not isinstance(sample, _NUMBERS):
                    raise UnevenError(row, f"{name} is a {type(sample).__name__}, and a number in the first")
        return numpy.asarray(samples)
    if isinstance(first, Mapping):
        for row, sample in enumerate(samples):
            if not isinstance(sample, Mapping) or sample.keys() != first.keys():
                raise UnevenError(row, f"{name} has not the keys of the first: {list(first)}")
        return {key: collate([sample[key] for sample in samples], f"{key!r}") for key in first}
    if isinstance(first, tuple | list):
        for row, sample in enumerate(samples):
            if not isinstance(sample, tuple | list) or len(sample) != len(first):
                raise UnevenError(row, f"{name} has not {len(first)} fields, as the first has")
        inside = "" if name == "the sample" else f" of {name}"
        fields = [
            collate([sample[at] for sample in samples], f"field {at}{inside}") for at in range(len(first))
        ]
        if is_named_tuple(first):
            return type(first)(*fields)
        return tuple(fields) if isinstance(first, tuple) else fields
    return list(samples)


def _stacked(samples: Sequence[Any], name: str) -> Any:
    shape = tuple(samples[0].shape)
    for row, sample in enumerate(samples):
        if not isinstance(sample, numpy.ndarray | _native.Pending):
            raise UnevenError(
                row, f"{name} is a {type(sample).__name__}, in the first of the batch it is an array"
            )
        if tuple(sample.shape) != shape:
            raise UnevenError(
                row,
                f"{name} has the shape {list(sample.shape)}, in the first of the batch it is {list(shape)}",
            )
    dtypes = {numpy.dtype(sample.dtype) for sample in samples}
    batch = numpy.empty((len(samples), *shape), numpy.result_type(*dtypes))
    for row, sample in enumerate(samples):
        if isinstance(sample, numpy.ndarray):
            batch[row] = sample
        elif len(dtypes) == 1:
            # Straight into its row.
            sample.write(batch[row : row + 1].ctypes.data, sample.nbytes)
        else:
            batch[row] = numpy.asarray(sample)
    return batch


def map_arrays(function: Callable[[Any], Any], batch: Any) -> Any:
    """A batch with `function` applied to its arrays."""
    if isinstance(batch, numpy.ndarray):
        return function(batch)
    if type(batch) is dict:
        return {key: map_arrays(function, item) for key, item in batch.items()}
    if is_named_tuple(batch):
        return type(batch)(*(map_arrays(function, item) for item in batch))
    if type(batch) in (tuple, list):
        return type(batch)([map_arrays(function, item) for item in batch])
    return batch


def image_key(sample: Any) -> Any:
    """Where the image is: the field "image", or else the first; None if the sample is the image."""
    if isinstance(sample, Mapping):
        return "image" if "image" in sample else next(iter(sample), None)
    if is_named_tuple(sample):
        return sample._fields.index("image") if "image" in sample._fields else 0
    if isinstance(sample, tuple | list) and sample:
        return 0
    return None


class Finish:
    """Functions for whole batches, one after the other."""

    def __init__(self, functions: list[Callable[[Any], Any]]) -> None:
        self._functions = functions

    def __call__(self, batch: Any) -> Any:
        for function in self._functions:
            batch = as_arrays(function(batch))
        return batch


class Joined:
    """Joins samples and hands the batch to the functions for whole batches."""

    def __init__(self, joined: Callable[[Any], Any], whole: Callable[[Any], Any]) -> None:
        self._joined, self._whole = joined, whole

    def __call__(self, samples: Any) -> Any:
        return self._whole(self._joined(samples))


class WithFailures:
    """Joins samples that come with what failed before them; values of one field only, too."""

    def __init__(self, joined: Callable[[Any], Any], whole: Callable[[Any], Any]) -> None:
        self._joined, self._whole = joined, whole
        self._plain = joined is collate

    def __call__(self, samples: Any) -> Any:
        first = samples[0]
        if self._plain and not (type(first) is tuple and len(first) == 2 and isinstance(first[0], str)):
            # One field of rows that were written in place.
            return collate(samples)
        return [failures for failures, _ in samples], self._whole(self._joined([one for _, one in samples]))


def at_image(batch: Any, change: Callable[[Any], Any]) -> Any:
    key = image_key(batch)
    if key is None:
        return change(batch)
    if isinstance(batch, Mapping):
        return {**batch, key: change(batch[key])}
    fields = list(batch)
    fields[key] = change(fields[key])
    return type(batch)(*fields) if is_named_tuple(batch) else type(batch)(fields)
