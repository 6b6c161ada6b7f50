"""Fields whose rows have no length in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy
import numpy.typing

from feedline import _native


class Ragged(Sequence[Any]):
    """One array for each row of a batch, each with its own shape; bytes are arrays of uint8.

    The arrays share the engine's memory. `lengths` are those of their first axes, `values` all of
    them end to end, and `pad` makes one array of them.
    """

    __slots__ = ("_convert", "_dtype", "_rows")

    def __init__(
        self, rows: _native.Rows, convert: Callable[[Any], Any], dtype: numpy.dtype[Any] | None
    ) -> None:
        self._rows, self._convert, self._dtype = rows, convert, dtype

    def _row(self, row: int) -> numpy.typing.NDArray[Any]:
        array = numpy.asarray(self._rows.row(row))
        return array if self._dtype is None else array.view(self._dtype)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> Any: ...
    @overload
    def __getitem__(self, row: slice) -> list[Any]: ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        if row < 0:
            row += len(self)
        if not 0 <= row < len(self):
            raise IndexError(f"there are {len(self)} rows")
        return self._convert(self._row(row))

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    @property
    def dtype(self) -> str:
        """The name of the elements' type."""
        return self._rows.dtype

    @property
    def lengths(self) -> numpy.typing.NDArray[numpy.int64]:
        """The length of each row's first axis."""
        return numpy.array([len(self._row(row)) for row in range(len(self))], numpy.int64)

    @property
    def values(self) -> Any:
        """All rows end to end, in one array: a copy. The other axes must be alike."""
        return self._convert(numpy.concatenate([self._row(row) for row in range(len(self))]))

    def pad(self, value: float = 0, length: int | None = None) -> Any:
        """One array of all rows, filled up with `value` (and cut, if `length` is given): a copy."""
        rows = [self._row(row) for row in range(len(self))]
        shape = numpy.max([row.shape for row in rows], axis=0)
        if length is not None:
            shape[0] = length
        padded = numpy.full((len(rows), *shape), value, rows[0].dtype)
        for place, row in zip(padded, rows, strict=True):
            part = row[: shape[0]]
            place[tuple(slice(n) for n in part.shape)] = part
        return self._convert(padded)

    def __repr__(self) -> str:
        lengths = self.lengths
        return f"Ragged({len(self)} rows of {self.dtype}, {lengths.min()} to {lengths.max()} long)"
