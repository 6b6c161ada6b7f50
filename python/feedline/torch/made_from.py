"""Whether the next epoch's first batches may be made before the program asks for them.

They may if what they are made from is known, and is the same when the program asks. Workers that are
processes keep their copy of the data set, so only what they share with the program can change; threads have
the program's own. What code reads from files is taken to stay as it is while a loader is used.
"""

from __future__ import annotations

import enum
import mmap
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch

# Objects that are looked at, and bytes of arrays that are compared: a look takes milliseconds.
_MOST, _BYTES = 10_000, 1 << 20
# Of a long list as many elements, at even distances, where only sharing is looked for.
_SOME = 100
_SHARING = ("multiprocessing", "_multiprocessing", "ctypes", "_ctypes", "mmap", "_io", "socket", "ray")
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    enum.Enum,
    torch.dtype,
    numpy.generic,
    numpy.dtype,
)
_LIBRARIES = ("torch", "torchvision", "numpy", "PIL")
_CODE = (type, types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType)


def made_from(things: Sequence[Any], *, copied: bool) -> Any:
    """What batches depend on, to be compared later; None where that cannot be known. `copied`, workers
    have copies of it."""
    seen: dict[int, Any] = {}
    found: list[Any] = []
    pending, left = list(things), _BYTES
    while pending:
        thing = pending.pop()
        if isinstance(thing, _PLAIN):
            found.append(thing)
            continue
        if id(thing) in seen:
            found.append(id(thing))
            continue
        # Kept, so that its number is not another one's.
        seen[id(thing)] = thing
        if len(seen) > _MOST or _is_shared(thing):
            return None
        found.append((type(thing).__qualname__, id(thing)))
        if isinstance(thing, numpy.ndarray | torch.Tensor):
            if copied:
                continue
            left -= thing.nbytes
            if left < 0 or not _is_plain_array(thing):
                return None
            found.append(numpy.asarray(thing).tobytes())
        elif isinstance(thing, _CODE):
            continue
        else:
            parts = _parts(thing, copied)
            if parts is None:
                return None
            pending.extend(parts)
    return [] if copied else (found, list(seen.values()))


def is_same(one: Any, other: Any) -> bool:
    """Whether nothing has changed between two looks."""
    if one is None or other is None:
        return False
    return bool(one == other or (one and other and one[0] == other[0]))


def _is_shared(thing: Any) -> bool:
    if isinstance(thing, torch.Tensor):
        held: Any = thing
        return held.device.type != "cpu" or bool(held.is_shared())
    if isinstance(thing, numpy.ndarray):
        base: Any = thing
        while isinstance(base, numpy.ndarray) and base.base is not None:
            base = base.base
        # What can only be read is a file.
        return thing.flags.writeable and isinstance(base, mmap.mmap | memoryview)
    module = type(thing).__module__
    return any(module == name or module.startswith(name + ".") for name in _SHARING)


def _is_plain_array(thing: Any) -> bool:
    if isinstance(thing, torch.Tensor):
        return thing.layout == torch.strided and not thing.requires_grad and thing.dtype != torch.bfloat16
    return not thing.dtype.hasobject


def _parts(thing: Any, copied: bool) -> list[Any] | None:
    """What an object consists of; None if that cannot be seen."""
    if isinstance(thing, dict):
        return [*_some(list(thing), copied), *_some(list(thing.values()), copied)]
    if isinstance(thing, list | tuple | set | frozenset | range):
        return _some(list(thing) if not isinstance(thing, list | tuple) else thing, copied)
    if isinstance(thing, types.FunctionType):
        return list(_of_function(thing)) if not copied else [thing.__defaults__, *_cells(thing)]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if not hasattr(thing, "__dict__"):
        return [] if copied else None
    new: Any = type(thing).__new__
    if not copied and new is not object.__new__:
        # Written in another language: it may hold what does not show.
        return None
    parts = list(vars(thing).values())
    if not copied:
        for kind in type(thing).__mro__[:-1]:
            if kind.__module__.split(".")[0] not in _LIBRARIES:
                parts += [
                    value for value in vars(kind).values() if isinstance(value, (*_PLAIN, types.FunctionType))
                ]
    return parts


def _some(values: Any, copied: bool) -> list[Any]:
    return list(values[:: max(1, len(values) // _SOME)]) if copied else [len(values), *values[: _MOST + 1]]


def _cells(function: types.FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    """What a function reads beside its arguments."""
    if (function.__module__ or "").split(".")[0] in _LIBRARIES:
        return
    yield from (function.__defaults__, *_cells(function))
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        yield value if not isinstance(value, _CODE) else None
