"""Whether the next epoch's first batches may be made before the program asks for them.

They may if what they are made from is known, and is the same when the program asks. Workers that are
processes keep their copy of the data set, so only what they share with the program can change; threads have
the program's own. What code reads from files is taken to stay as it is while a loader is used.
"""

from __future__ import annotations

import collections
import ctypes
import enum
import functools
import logging
import mmap
import sys
import sysconfig
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
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
# Written in another language, and sharing nothing with another process: what can be seen of a copy.
_ITS_OWN = (slice, bytearray, type(...), type(NotImplemented), *_DESCRIPTORS)
_HIDE = ("builtins", "itertools", "weakref")


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
        if isinstance(base, memoryview):
            base = base.obj if isinstance(base.obj, ctypes.Array) else base
        # What can only be read is a file. multiprocessing's arrays are ctypes'.
        if isinstance(base, mmap.mmap | memoryview):
            return bool(thing.flags.writeable)
        return isinstance(base, ctypes.Array) or (isinstance(base, torch.Tensor) and _is_shared(base))
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
    if isinstance(thing, list | tuple | set | frozenset | range | collections.deque):
        return _some(list(thing) if not isinstance(thing, list | tuple) else thing, copied)
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, types.FunctionType):
        return list(_of_function(thing, copied))
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    slots = _slots(thing)
    if not hasattr(thing, "__dict__") and not slots:
        return [] if copied and _shares_nothing(thing) else None
    new: Any = type(thing).__new__
    if not copied and new is not object.__new__:
        # Written in another language: it may hold what does not show.
        return None
    parts = [*getattr(thing, "__dict__", {}).values(), *slots]
    for kind in type(thing).__mro__[:-1]:
        if copied and not _is_library(kind.__module__):
            parts += _of_class(kind)
        elif not copied and kind.__module__.split(".")[0] not in _LIBRARIES:
            parts += [
                value for value in vars(kind).values() if isinstance(value, (*_PLAIN, types.FunctionType))
            ]
    return parts


def _slots(thing: Any) -> list[Any]:
    """What an object holds outside its `__dict__`."""
    members = [
        value
        for kind in type(thing).__mro__
        if "__slots__" in vars(kind)
        for value in vars(kind).values()
        if isinstance(value, types.MemberDescriptorType)
    ]
    return [one.__get__(thing) for one in members if hasattr(thing, one.__name__)]


def _of_class(kind: type) -> Iterator[Any]:
    """A class's values, and what its functions name."""
    for name, value in vars(kind).items():
        if isinstance(value, staticmethod | classmethod):
            yield value.__func__
        elif isinstance(value, property):
            yield value.fget
        elif isinstance(value, types.FunctionType) or not name.startswith(("__", "_abc_")):
            yield value


def _is_library(module: str) -> bool:
    """Whether nobody changes what a module's code names: it was installed and not written here."""
    top = module.split(".")[0]
    if top in _LIBRARIES or top in sys.stdlib_module_names:
        return True
    return (getattr(sys.modules.get(module), "__file__", None) or "").startswith(_INSTALLED)


def _shares_nothing(thing: Any) -> bool:
    """Whether a copy of an object that does not show what it holds is known to share nothing."""
    top = type(thing).__module__.split(".")[0]
    known = top in _LIBRARIES or top == "pyarrow" or (top in sys.stdlib_module_names and top not in _HIDE)
    return known or isinstance(thing, _ITS_OWN) or type(thing) is object


def _some(values: Any, copied: bool) -> list[Any]:
    return list(values[:: max(1, len(values) // _SOME)]) if copied else [len(values), *values[: _MOST + 1]]


def _cells(function: types.FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]


def _of_function(function: types.FunctionType, copied: bool) -> Iterator[Any]:
    """What a function reads beside its arguments."""
    module = function.__module__ or ""
    library = _is_library(module) if copied else module.split(".")[0] in _LIBRARIES
    if copied or not library:
        yield from (function.__defaults__, function.__kwdefaults__, *_cells(function))
    if library:
        return
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        # Loggers hold the program's files, and samples are not made of them.
        if not isinstance(value, (*_CODE, logging.Logger)):
            yield value
        elif not copied:
            yield None


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of a function and of those that are written within it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
