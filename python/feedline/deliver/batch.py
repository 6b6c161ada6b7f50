"""A batch as a program gets it, and the libraries whose arrays it can hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy

from feedline import _native
from feedline._errors import SpecError
from feedline.code.collate import image_key
from feedline.deliver.ragged import Ragged
from feedline.spec.source import length_of

Convert = Callable[[tuple[Any, ...]], tuple[Any, ...]]

OUTPUTS = ("numpy", "torch", "jax", "dlpack")
# Of a list in a batch, so many of its first values say how long it is.
_LOOKED_AT = 16


class Batch:
    """Samples that were made together: one array for each field, the samples along its first axis.

    It unpacks to its fields in order (`images, labels = batch`), and gives them by name
    (`batch["image"]`) or number (`batch[0]`). The arrays share the engine's memory. It is theirs
    as long as any of them is alive, also after the loader is gone; writing to them is fine.
    """

    __slots__ = ("_arrays", "_names", "_native")

    def __init__(self, native: Any, names: tuple[str, ...], convert: Convert) -> None:
        self._native = native
        self._names = names
        self._arrays = convert(native.arrays())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._arrays)

    def __len__(self) -> int:
        """The number of fields, as for a tuple; `rows` is the number of samples."""
        return len(self._arrays)

    def __getitem__(self, field: str | int) -> Any:
        if isinstance(field, str):
            try:
                return self._arrays[self._names.index(field)]
            except ValueError:
                raise KeyError(f"{field!r}; the fields are {', '.join(map(repr, self._names))}") from None
        return self._arrays[field]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def keys(self) -> tuple[str, ...]:
        """The fields' names in order."""
        return self._names

    def values(self) -> tuple[Any, ...]:
        """The arrays in order."""
        return self._arrays

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and arrays in order."""
        return zip(self._names, self._arrays, strict=True)

    @property
    def rows(self) -> int:
        """How many samples it has, padding included."""
        return int(self._native.rows)

    @property
    def epoch(self) -> int:
        """The epoch that it belongs to."""
        return int(self._native.epoch)

    @property
    def number(self) -> int:
        """Its number in the epoch."""
        return int(self._native.number)

    @property
    def padding(self) -> int:
        """How many of its last rows only fill it up (`last_batch="pad"` or `"wrap"`)."""
        return int(self._native.padding)

    def hash(self) -> int:
        """A hash of all names, types, shapes and elements: equal batches have equal hashes."""
        return int(self._native.hash())

    def __repr__(self) -> str:
        arrays: tuple[Any, ...] = self._native.arrays()
        fields = ", ".join(
            f"{name}: {array.dtype} {list(array.shape)}"
            if hasattr(array, "shape")
            else f"{name}: {getattr(array, 'kind', 'list')}"
            for name, array in zip(self._names, arrays, strict=True)
        )
        return f"Batch({fields}; number {self.number} of epoch {self.epoch})"


def rows_of(batch: Any, unknown: int = 1) -> int:
    """How many samples a batch has: the length of the first array in it. It is asked for every batch
    of a training run, which does not end because a batch is like no other."""
    try:
        found = batch.rows if isinstance(batch, Batch) else _first_length(batch)
    except Exception:
        found = None
    return unknown if found is None else found


def _first_length(batch: Any) -> int | None:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) > 0 else 1
    if isinstance(batch, str | bytes):
        return None
    if not isinstance(batch, Mapping | list | tuple):
        return length_of(batch)
    inside = batch.values() if isinstance(batch, Mapping) else batch
    lengths = (_first_length(value) for value in itertools.islice(inside, _LOOKED_AT))
    found = next((length for length in lengths if length is not None), None)
    # A list of words or numbers is a column of the batch.
    return len(batch) if found is None and isinstance(batch, list) else found


class CodeBatch:
    """A batch that Python code made, as `feedline.Batch` looks at it."""

    def __init__(
        self, fields: Mapping[str, Any], rows: int, position: tuple[int, int], padding: int, bfloat16: bool
    ) -> None:
        self._fields, self._bfloat16 = fields, bfloat16
        self.rows, self.padding = rows, padding
        self.epoch, self.number = position

    def arrays(self) -> tuple[Any, ...]:
        return tuple(self._fields.values())

    def hash(self) -> int:
        parts = []
        image = image_key(self._fields)
        for name, value in self._fields.items():
            if not isinstance(value, numpy.ndarray):
                raise TypeError(f"{name!r} is no array, so this batch has no hash")
            shape = value.shape[1:]
            if value.ndim == 4 and not value.flags.c_contiguous:
                value = value.transpose(0, 2, 3, 1)
            dtype = "bfloat16" if self._bfloat16 and name == image else value.dtype.name
            parts.append((name, dtype, shape, numpy.ascontiguousarray(value)))
        return _native.hash_arrays(parts)


def fields_converter(output: str, fields: list[dict[str, Any]], device: str | None = None) -> Convert:
    """What turns the native fields of a batch into what a program gets.

    Text becomes a list of strings, other rows of no fixed length a `Ragged`.
    """
    fixed = [at for at, field in enumerate(fields) if "variable" not in field]
    arrays = converter(output, [fields[at]["dtype"] for at in fixed], device)
    if len(fixed) == len(fields):
        return arrays
    one = one_array(output, bfloat16=False)
    bfloat16 = [field["dtype"] == "bfloat16" for field in fields]
    if output == "numpy" and any(bfloat16):
        converter(output, ["bfloat16"])
    view = numpy.dtype("bfloat16") if output == "numpy" and any(bfloat16) else None

    def convert(native: tuple[Any, ...]) -> tuple[Any, ...]:
        made: list[Any] = [None] * len(native)
        for at, array in zip(fixed, arrays(tuple([native[at] for at in fixed])), strict=True):
            made[at] = array
        for at, rows in enumerate(native):
            if "variable" in fields[at]:
                is_text = fields[at]["variable"] == "text"
                ragged = Ragged(rows, one, view if bfloat16[at] else None)
                made[at] = rows.texts() if is_text else ragged
        return tuple(made)

    return convert


def converter(output: str, dtypes: list[str], device: str | None = None) -> Convert:
    """What turns native arrays into those of the library that `output` names."""
    if output == "numpy" and device is not None:
        raise SpecError(
            f'output = "numpy": NumPy has no arrays on {device}; allowed: "torch", "jax", "dlpack"',
            key="output",
            value='"numpy"',
            problem=f"NumPy has no arrays on {device}",
            allowed='"torch", "jax", "dlpack"',
        )
    if output == "numpy":
        return _to_numpy(dtypes)
    if output == "torch":
        torch = _library("torch")
        from_dlpack = torch.from_dlpack
    elif output == "jax":
        _library("jax")
        from_dlpack = _library("jax.dlpack").from_dlpack
    elif output == "dlpack":
        return tuple
    else:
        allowed = ", ".join(f'"{name}"' for name in OUTPUTS)
        raise SpecError(
            f"output = {output!r}: is not allowed; allowed: {allowed}",
            key="output",
            value=repr(output),
            problem="is not allowed",
            allowed=allowed,
        )
    return lambda arrays: tuple([from_dlpack(array) for array in arrays])


def one_array(output: str, *, bfloat16: bool) -> Callable[[Any], Any]:
    """What turns an array of NumPy into one of the library that `output` names, without a copy.

    With `bfloat16`, arrays of uint16 hold its bits.
    """
    converter(output, ["bfloat16"] if bfloat16 else [])
    if output == "numpy":
        if not bfloat16:
            return lambda array: array
        kind = numpy.dtype("bfloat16")
        return lambda array: array.view(kind) if array.dtype == numpy.uint16 else array
    if output == "torch":
        torch = _library("torch")

        def to_torch(array: Any) -> Any:
            if array.dtype.kind in "OSUMmV":
                return array
            tensor = torch.from_numpy(array)
            return tensor.view(torch.bfloat16) if bfloat16 and array.dtype == numpy.uint16 else tensor

        return to_torch
    if output == "jax":
        from_dlpack = _library("jax.dlpack").from_dlpack
        return lambda array: array if array.dtype.kind in "OSUMmV" else from_dlpack(array)
    return lambda array: array


def _library(name: str) -> Any:
    import importlib

    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SpecError(
            f'output = "{package}": {package} cannot be imported ({error}); install it or choose another',
            key="output",
            value=f'"{package}"',
            problem=f"{package} cannot be imported",
        ) from error


def _to_numpy(dtypes: list[str]) -> Convert:
    asarray = numpy.asarray
    if "bfloat16" not in dtypes:
        return lambda arrays: tuple([asarray(array) for array in arrays])
    try:
        from ml_dtypes import bfloat16
    except ImportError as error:
        raise SpecError(
            'output = "numpy": NumPy has no bfloat16 of its own; install ml_dtypes, choose '
            'output="torch" or "jax", or ToDtype("float16")',
            key="output",
            problem="NumPy has no bfloat16 of its own",
        ) from error
    views = [numpy.dtype(bfloat16) if dtype == "bfloat16" else None for dtype in dtypes]

    def convert(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        plain = [asarray(array) for array in arrays]
        return tuple(
            [array if view is None else array.view(view) for array, view in zip(plain, views, strict=True)]
        )

    return convert
