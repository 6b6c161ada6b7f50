"""Files of samples that a program makes itself."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy

from feedline import _native
from feedline._errors import SpecError

FieldKind: TypeAlias = "str | tuple[str, Sequence[int | None] | int]"

_PLAIN = ("image", "text", "bytes")
_ALLOWED = (
    '"image", "text", "bytes", a type as "int64", or (type, shape) as ("float32", (512,)) '
    "with None for sides that differ"
)

# A field's name, what it is, the thing itself, and an array's type and shape.
FieldValue: TypeAlias = tuple[str, str, Any, str | None, list[int]]


def _describe(name: str, kind: FieldKind) -> dict[str, Any]:
    """A declared field as the engine reads it."""
    problem = f"fields[{name!r}] = {kind!r}: is not allowed; allowed: {_ALLOWED}"
    wrong = SpecError(problem, key=f"fields[{name!r}]", allowed=_ALLOWED)
    if isinstance(kind, str) and kind in _PLAIN:
        return {"name": name, "kind": kind}
    try:
        dtype, shape = (kind, ()) if isinstance(kind, str | type | numpy.dtype) else kind
        sides = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = "bfloat16" if dtype == "bfloat16" else numpy.dtype(dtype).name
    except (TypeError, ValueError):
        raise wrong from None
    if not all(side is None or (isinstance(side, int) and side >= 0) for side in sides):
        raise wrong
    if None in sides:
        return {"name": name, "kind": "ragged", "dtype": dtype, "axes": len(sides)}
    return {"name": name, "kind": "array", "dtype": dtype, "shape": list(sides)}


def _does_not_fit(name: str, value: Any, dtype: str) -> SpecError:
    allowed = f"values that {dtype} holds, or another type declared in fields"
    return SpecError(f"{name!r} = {value}: is no {dtype}; allowed: {allowed}", key=name, allowed=allowed)


def _cast(name: str, array: numpy.ndarray[Any, Any], dtype: numpy.dtype[Any]) -> numpy.ndarray[Any, Any]:
    """The array as the type that was declared, if that changes no whole number and leaves no number
    without bounds; as it is where types are of different kinds, which is then refused."""
    if array.size == 0:
        return array.astype(dtype)
    if dtype.kind in "biu" and array.dtype.kind not in "biu":
        return array
    with numpy.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype.kind == "f":
        wrong = numpy.isfinite(array) & ~numpy.isfinite(cast)
    else:
        wrong = (cast.astype(array.dtype) != array) | ((cast < 0) != (array < 0))
    if wrong.any():
        raise _does_not_fit(name, array[wrong].flat[0], dtype.name)
    return cast


class Writer:
    """Writes samples to a file, or to shards, of any format that feedline packs.

    with feedline.Writer("out.tar", fields={"image": "image", "label": "int64"}) as writer:
        for number, (jpeg, label) in enumerate(things):
            writer.write({"image": jpeg, "label": label})

    The path's ending says the format (.tar, .tfrecord, .lmdb, .h5, .npy, .parquet, .arrow, .zarr)
    unless `format` does. Shards are written if the path is a pattern such as "out-{000000..}.tar",
    or if `shard_size` (bytes) or `shard_samples` is given.

    `fields` declares what every sample holds: "image" (the bytes of a JPEG, PNG ...), "text",
    "bytes", a scalar as "int64", or an array as ("float32", (512,)); a side that differs from sample
    to sample is None. Without it the first sample decides: a float is then float32, an int int64.

    Nothing is seen under the final name before the writer is closed. Leaving the `with` block by an
    exception, or dropping the writer, leaves nothing behind.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Mapping[str, FieldKind] | None = None,
        *,
        format: str | None = None,
        shard_size: int | None = None,
        shard_samples: int | None = None,
        compression: str | None = None,
        compression_level: int | None = None,
        block_samples: int | None = None,
    ) -> None:
        described = None
        self._dtypes: dict[str, str] = {}
        if fields is not None:
            described = [_describe(name, kind) for name, kind in fields.items()]
            self._dtypes = {field["name"]: field["dtype"] for field in described if "dtype" in field}
        self._files: list[Path] | None = None
        self._native = _native.Writer(
            os.fspath(path),
            None if described is None else json.dumps(described),
            format,
            shard_size,
            shard_samples,
            compression,
            compression_level,
            block_samples,
        )

    def write(self, sample: Mapping[str, Any], key: str | None = None) -> None:
        """Adds a sample: bytes, text, numbers, NumPy arrays and what becomes one.

        A sample that is refused for what it holds leaves the writer as it was. `key` names it where
        the format has names; it must be unique, and is its number if not given.
        """
        self._native.write([self._field(name, value) for name, value in sample.items()], key)

    @property
    def samples(self) -> int:
        """How many samples were written."""
        return self._native.samples

    @property
    def files(self) -> list[Path]:
        """The files, once the writer is closed."""
        return [] if self._files is None else list(self._files)

    def close(self) -> list[Path]:
        """Finishes the files, gives them their names and returns these."""
        if self._files is None:
            self._files = [Path(path) for path in self._native.finish()]
        return list(self._files)

    def abort(self) -> None:
        """Throws away what was written."""
        self._native.abort()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _field(self, name: str, value: Any) -> FieldValue:
        if not isinstance(name, str):
            raise TypeError(f"a field's name is text, not {name!r}")
        if isinstance(value, bytes):
            return name, "bytes", value, None, []
        if isinstance(value, bytearray | memoryview):
            return name, "bytes", bytes(value), None, []
        if isinstance(value, str):
            return name, "text", str(value), None, []
        declared = self._dtypes.get(name)
        if isinstance(value, numpy.generic) and declared is not None:
            value = (value.astype(numpy.float32) if value.dtype.name == "bfloat16" else value).item()
        if isinstance(value, bool):
            value = numpy.bool_(value) if declared is None else int(value)
        if isinstance(value, int):
            if -(2**63) <= value < 2**63:
                return name, "int", value, None, []
            if declared == "uint64" and 0 <= value < 2**64:
                return name, "array", numpy.uint64(value).tobytes(), "uint64", []
            raise _does_not_fit(name, value, declared or "int64")
        if isinstance(value, float):
            return name, "float", value, None, []
        if hasattr(value, "save") and hasattr(value, "getbands"):
            raise TypeError(
                f"{name!r} is an image of Pillow: encode it yourself (image.save(buffer, 'JPEG')) and pass "
                "the bytes, or pass numpy.asarray(image) to store its pixels"
            )
        return self._array(name, value, declared)

    def _array(self, name: str, value: Any, declared: str | None) -> FieldValue:
        is_array = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
        is_list = declared is not None and isinstance(value, list | tuple)
        if not is_array and not is_list:
            kind = type(value).__name__
            raise TypeError(f"{name!r} is a {kind}: pass bytes, text, a number or a NumPy array")
        array = numpy.asarray(value)
        if array.dtype.name == "bfloat16":
            # Of ml_dtypes: NumPy takes it for bytes without a meaning.
            if declared in (None, "bfloat16"):
                return name, "array", array.tobytes(), "bfloat16", list(array.shape)
            array = array.astype(numpy.float32)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{name!r} has elements of type {array.dtype}: pass numbers")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if declared not in (None, "bfloat16", array.dtype.name):
            array = _cast(name, array, numpy.dtype(declared))
        return name, "array", array.tobytes(), array.dtype.name, list(array.shape)
