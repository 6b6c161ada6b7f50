"""What `Loader(source)` may be, and which of them it is: paths, descriptions, arrays, and lists of them."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, Literal

import numpy
import numpy.typing

from feedline._errors import SourceError, SpecError
from feedline._native import IMAGE_ENDINGS, SET_ENDINGS
from feedline.code.image import axes_of

Column = tuple[str, str | None, numpy.typing.NDArray[Any]]

_TEXT: Any = str | bytes | os.PathLike
_KINDS = (
    "a path, a description, arrays, a data set with __len__ and __getitem__, an iterable, a function that "
    "returns an iterator, a list of samples, or a list of sources (but iterables) or (source, weight) pairs"
)
_DTYPES = "bool, integers, float16, bfloat16, float32 or float64"
# No path is longer, and an image file's bytes hardly ever have no zero byte.
_LONGEST_PATH = 4096

Reading = Literal["sample", "source", "either"]


def is_array(value: object) -> bool:
    """Whether this is an array of NumPy, torch, JAX or anything that speaks their language."""
    return not isinstance(value, type | numpy.generic) and any(
        hasattr(value, name) for name in ("__array_interface__", "__array__", "__dlpack__")
    )


def is_dataset(value: object) -> bool:
    """Whether this is a data set of the program: its samples have numbers, and it is nothing else."""
    if isinstance(value, type | _TEXT | Mapping | list | tuple) or is_array(value):
        return False
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not is_stream(value)


def is_iterable(value: object) -> bool:
    """Whether this is an iterable of the program, or a function that makes one: its samples have no
    numbers."""
    if isinstance(value, type | _TEXT | Mapping | list | tuple) or is_array(value):
        return False
    return (hasattr(value, "__iter__") or callable(value)) and not is_dataset(value)


def reads_once(iterable: Any) -> bool:
    """Whether this is an iterator that cannot begin anew, as generators, files, map and zip are.

    One with an `__iter__` of its own code may begin anew there.
    """
    begins = getattr(type(iterable), "__iter__", None)
    own = isinstance(begins, types.FunctionType) and begins is not Iterator.__iter__
    return hasattr(type(iterable), "__next__") and not own


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


def is_image_path(value: object) -> bool:
    """Whether this names an image file."""
    if not isinstance(value, str | bytes | os.PathLike):
        return False
    text = os.fspath(value)
    if isinstance(text, bytes):
        return _is_path(text) and os.fsdecode(text).lower().endswith(IMAGE_ENDINGS)
    return text.lower().endswith(IMAGE_ENDINGS)


def is_code(source: Any) -> bool:
    """Whether samples of this source are made by Python code."""
    if isinstance(source, list | tuple) and not _are_fields(source):
        return holds_samples(source) or any(
            is_dataset(item[0] if _is_pair(item) else item) for item in source
        )
    return is_dataset(source) or is_iterable(source)


def holds_samples(items: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list holds samples rather than sources. What can be meant either way is refused.

    | an element of the list | is |
    |---|---|
    | the path of an image file, encoded bytes, a number, an image as an array | a sample |
    | a tuple or list of such and of anything else, a dict that is no description | a sample |
    | another path, a description, a data set with `__len__` and `__getitem__` | a source |
    | `(source, number)` | a source and its weight |
    | an array, or a tuple or dict of nothing but arrays of one length | whatever the others are |
    | `(such an array or dict, number)`, `(text that names no file, number)` | whatever the others are |
    """
    if _is_pair(items):
        raise _alone()
    found: dict[Reading, int] = {}
    for at, item in enumerate(items):
        reading = _reading(item)
        if reading is None:
            # Not a sample that anybody could join; reading it as a source says so.
            return False
        found.setdefault(reading, at)
    if "sample" in found and "source" in found:
        sample, source = found["sample"], found["source"]
        raise _refused(
            f"source[{source}] ({_shown(items[source])}) is a source and source[{sample}] "
            f"({_shown(items[sample])}) is a sample",
            "a list of sources, which are joined or mixed, or a list of samples",
        )
    if {"sample", "either"} <= found.keys() and all(map(is_array, items)):
        # Columns with an axis of 1, 3 or 4 at their end look like images.
        if _reading_of_arrays(list(items)) == "either":
            raise _either(items[0])
    elif "either" in found and len(found) == 1:
        if _only_samples(items):
            return True
        raise _either(items[0])
    return "sample" in found


def _reading(item: Any) -> Reading | None:
    """What an element of a list is; None if it is neither."""
    if isinstance(item, _TEXT):
        if isinstance(item, bytes) and not _is_path(item):
            return "sample"
        return "sample" if is_image_path(item) else "source"
    if isinstance(item, bytearray | memoryview | Real | complex | numpy.generic):
        return "sample"
    if _is_pair(item):
        return _reading_of_pair(item[0], item[1])
    if isinstance(item, list) and _is_pair(tuple(item)):
        # Sources and weights are tuples; read from JSON they are not.
        return "sample" if _reading_of_pair(item[0], item[1]) == "sample" else "either"
    if isinstance(item, Mapping):
        if isinstance(item.get("kind"), str):
            return "source"
        if isinstance(item.get("path"), _TEXT):
            return "sample" if is_image_path(item["path"]) else "source"
        return _reading_of_arrays(list(item.values()))
    if isinstance(item, list | tuple):
        return _reading_of_arrays(list(item))
    if is_array(item):
        return _reading_of_arrays([item])
    return "source" if is_dataset(item) else None


def _reading_of_pair(first: Any, number: Any) -> Reading | None:
    if isinstance(first, Mapping) and first and all(map(is_array, first.values())):
        reading: Reading | None = "either"
    elif isinstance(first, _TEXT) and not is_image_path(first) and not _names_a_set(first):
        reading = "either"
    else:
        reading = _reading(first)
    # No weight is 0 or less.
    return "sample" if reading == "either" and not number > 0 else reading


def _reading_of_arrays(values: list[Any]) -> Reading:
    """Arrays of one length may be columns of a source; with anything else among them they are not.
    Neither are images with masks of their size."""
    shapes = [getattr(value, "shape", None) if is_array(value) else None for value in values]
    known = [tuple(shape) for shape in shapes if shape is not None]
    if len(known) < len(values) or not known or any(len(shape) == 0 for shape in known):
        return "sample"
    if len({shape[0] for shape in known}) > 1:
        return "sample"
    images = [(shape, axes_of(shape, channels_first=True)) for shape in known]
    if any(axes == "CHW" for _, axes in images):
        return "sample"
    sizes = {shape[:2] for shape, axes in images if axes == "HWC"}
    return "sample" if sizes and all(shape[:2] in sizes for shape in known) else "either"


def _only_samples(items: Any) -> bool:
    """Whether arrays fit neither side by side, as fields, nor end to end."""
    if not all(is_array(item) for item in items):
        return False
    shapes = [tuple(item.shape) for item in items]
    rests = {(shape[1:], str(item.dtype)) for shape, item in zip(shapes, items, strict=True)}
    return len({shape[0] for shape in shapes}) > 1 and len(rests) > 1


def _either(item: Any) -> SpecError:
    if is_array(item):
        return _refused(
            "a list of arrays can be samples, or arrays to join, or fields",
            "numpy.stack(arrays) if each is a sample, numpy.concatenate(arrays) to join them, a tuple "
            "or a dict of arrays if each is a field",
        )
    if _is_pair(tuple(item)):
        what = "text" if isinstance(item[0], _TEXT) else "array"
        kind = type(item).__name__
        source = '{"path": path}' if what == "text" else '{"kind": "arrays", "x": array}'
        return _refused(
            f"a {kind} ({what}, number) can be a sample and its label, or a source and its weight",
            f'[{{"{what}": {what}, "label": number}}, ...] or a data set with __len__ and __getitem__ for '
            f"samples, [({source}, weight), ...] to mix sources",
        )
    what = "dicts" if isinstance(item, Mapping) else "tuples"
    return _refused(
        f"a list of {what} of arrays of one length can be samples, or sources of that many samples",
        'a data set with __len__ and __getitem__ for samples, [{"kind": "arrays", "x": array}, ...] to join '
        "sources",
    )


def _refused(problem: str, allowed: str) -> SpecError:
    return SpecError(f"source: {problem}; allowed: {allowed}", key="source", problem=problem, allowed=allowed)


def _shown(item: Any) -> str:
    text = repr(item)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_path(raw: bytes) -> bool:
    return len(raw) <= _LONGEST_PATH and b"\0" not in raw


def _names_a_set(path: Any) -> bool:
    text = os.fsdecode(path)
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        return False
    is_pattern = any(sign in text for sign in "*?{")
    # What holds many samples: a path in a list is not a text there.
    return is_pattern or text.lower().endswith(SET_ENDINGS) or (_is_path(raw) and os.path.exists(text))


def read_parts(source: Any) -> list[tuple[str, Any, float | None]]:
    """The sources by themselves: ("dataset", object), ("samples", list), ("arrays", columns) or
    ("described", plain data), each with its share in a mix."""
    many = isinstance(source, list | tuple) and not _are_fields(source)
    if many and holds_samples(source):
        return [("samples", source, None)]
    parts: list[tuple[str, Any, float | None]] = []
    for item in source if many else [source]:
        weight = _weight(item[1]) if _is_pair(item) else None
        inner = item[0] if _is_pair(item) else item
        if is_dataset(inner):
            parts.append(("dataset", inner, weight))
            continue
        arrays: list[list[Column]] = []
        described = _read_one(inner, arrays)
        parts.append(("arrays", arrays[0], weight) if arrays else ("described", described, weight))
    return parts


def _alone() -> SpecError:
    return SpecError(
        "source: a (source, weight) or (sample, label) pair stands alone; put the pairs into a list",
        key="source",
    )


def read_source(source: Any) -> tuple[Any, list[list[Column]]]:
    """The source as a description holds it, and the arrays that the description cannot hold."""
    arrays: list[list[Column]] = []
    if isinstance(source, list | tuple) and not _are_fields(source):
        return [_read_one(item, arrays) for item in source], arrays
    return _read_one(source, arrays), arrays


def _are_fields(source: Any) -> bool:
    """A tuple of arrays is a source, with a field for each."""
    return isinstance(source, tuple) and len(source) > 0 and all(is_array(item) for item in source)


def _is_pair(item: Any) -> bool:
    if not (isinstance(item, tuple) and len(item) == 2):
        return False
    weight = item[1]
    return isinstance(weight, Real) and not isinstance(weight, bool) and not isinstance(item[0], Real)


def _weight(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        raise _refused("a weight is too large for a float", "a positive number") from None


def _read_one(source: Any, arrays: list[list[Column]]) -> Any:
    if _is_pair(source):
        inner = _read_one(source[0], arrays)
        inner = dict(inner) if isinstance(inner, Mapping) else {"path": inner}
        return {**inner, "weight": _weight(source[1])}
    if isinstance(source, _TEXT):
        return source
    if isinstance(source, Mapping):
        if not any(is_array(value) for value in source.values()):
            return source
        named = {name: value for name, value in source.items() if name != "kind" or value != "arrays"}
        columns = [(str(name), value) for name, value in named.items()]
    elif is_array(source):
        columns = [("0", source)]
    elif _are_fields(source):
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
    """An array whose rows are in C order and native byte order; copied only if they are not already."""
    dtype = None
    if type(value).__module__.partition(".")[0] == "torch":
        import torch

        value = value.detach()
        if value.device.type != "cpu":
            raise SourceError(f"array {name!r}: is on {value.device}; move it to the CPU first")
        if value.dtype == torch.bfloat16:
            dtype, value = "bfloat16", value.view(torch.uint16)
        value = value.numpy()
    array = numpy.asarray(value)
    if array.dtype.name == "bfloat16":
        dtype, array = "bfloat16", array.view(numpy.uint16)
    if array.ndim == 0:
        raise SourceError(f"array {name!r}: has no axis; the first axis counts the samples")
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise SourceError(f"array {name!r}: has elements of {array.dtype}; allowed: {_DTYPES}")
    native = array.dtype.newbyteorder("=")
    if array.dtype == native and _has_whole_rows(array):
        return name, dtype, array
    return name, dtype, numpy.ascontiguousarray(array, dtype=native)


def _has_whole_rows(array: numpy.ndarray[Any, Any]) -> bool:
    """Whether it can be read where it lies: windows over a long array, some of its columns, each n-th row."""
    return array.strides[0] >= 0 and (len(array) == 0 or bool(array[:1].flags.c_contiguous))
