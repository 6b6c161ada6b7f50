"""Values of a Python program as plain data that JSON can hold."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy

from feedline._errors import SpecError, StateError


def plain(key: str, value: Any, paths: list[bytes] | None = None) -> Any:
    """`value` as JSON types; `key` is its name in messages.

    A path that is no UTF-8 goes to `paths`, and its number behind a zero byte takes its place.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str | bytes | os.PathLike):
        return _text(key, os.fspath(value), paths)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _wrong(key, repr(value), "is not a finite number")
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(f"{key}.{name}", item, paths) for name, item in value.items()}
    if isinstance(value, slice):
        bounds = (value.start, value.stop, value.step)
        return ":".join("" if bound is None else str(int(bound)) for bound in bounds)
    if isinstance(value, numpy.generic):
        return plain(key, value.item(), paths)
    if hasattr(value, "__array__"):
        array = numpy.asarray(value)
        if array.dtype.kind == "f" and not numpy.isfinite(array).all():
            raise _wrong(key, None, "has elements that are not finite numbers")
        return array.tolist()
    if isinstance(value, list | tuple | range | set | frozenset):
        return [plain(f"{key}[{at}]", item, paths) for at, item in enumerate(value)]
    if hasattr(value, "spec"):
        return plain(key, value.spec(), paths)
    raise _wrong(key, repr(value), f"a {type(value).__name__} has no place in a description")


def _text(key: str, text: str | bytes, paths: list[bytes] | None) -> str:
    raw = os.fsencode(text)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        if paths is None:
            raise _wrong(key, repr(text), "is not valid UTF-8") from None
        paths.append(raw)
        return f"\0{len(paths) - 1}"


def with_paths(value: Any, paths: list[bytes]) -> Any:
    """What `plain` made, with the paths back in their places."""
    if isinstance(value, str) and value.startswith("\0") and value[1:].isdecimal():
        return os.fsdecode(paths[int(value[1:])])
    if isinstance(value, dict):
        return {name: with_paths(item, paths) for name, item in value.items()}
    if isinstance(value, list):
        return [with_paths(item, paths) for item in value]
    return value


def state_text(state: Any) -> str:
    """A state as JSON."""
    try:
        return json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StateError(f"cannot resume: this is no state of feedline: {error}") from None


def _wrong(key: str, value: str | None, problem: str) -> SpecError:
    shown = key if value is None else f"{key} = {value[:80]}"
    return SpecError(f"{shown}: {problem}", key=key, value=value, problem=problem)
