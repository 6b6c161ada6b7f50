"""`module:name` and `file.py:name`: the data set, loader or training step that a command is given."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import feedline


class TargetError(Exception):
    """What was named cannot be used; the message says why and what to do."""


def resolve(target: str) -> Any:
    """The object of this name. The current folder is looked into first, as `python -m` does."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise TargetError(f"{target!r}: expected module:name or file.py:name")
    _look_into(Path.cwd())
    found: Any = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    for part in name.split("."):
        holder = found
        try:
            found = getattr(holder, part)
        except AttributeError:
            near = difflib.get_close_matches(part, dir(holder), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TargetError(f"{target!r}: {place} has no {part!r}{hint}") from None
    return found


def _look_into(folder: Path) -> None:
    if str(folder) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(folder))


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            # The module is there, and something that it imports is not.
            raise
        raise TargetError(
            f"there is no module {error.name!r}, neither in {os.getcwd()} nor where Python looks; "
            "a file is named with its ending, as in train.py:make_dataset"
        ) from None


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"there is no file {str(path)!r}")
    path = path.resolve()
    # As for a script, its folder is where it imports from; worker processes find it there, too.
    sys.path.insert(0, str(path.parent))
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    name = path.stem if known is None and path.stem.isidentifier() else f"feedline_target_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if name != path.stem:
        # Nobody finds it under this name: what it defines is sent to workers itself.
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def is_maker(found: Any) -> bool:
    """Whether this is called to get the data set or loader."""
    if inspect.isclass(found) or inspect.isroutine(found):
        return True
    return callable(found) and not hasattr(found, "__getitem__") and not hasattr(found, "__iter__")


def make(target: str, found: Any) -> Any:
    """The data set or loader: the object itself, or what it returns when it is called."""
    if not is_maker(found):
        return found
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    wanted = [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if wanted:
        raise TargetError(
            f"{target!r} is called without arguments, and needs {', '.join(wanted)}: "
            "name a function that needs none"
        )
    made = found()
    if made is None:
        raise TargetError(f"{target!r} returned None: it must return a data set or a loader")
    return made


def resolve_step(step: str) -> Any:
    """A training step: it is called with each batch."""
    found = resolve(step)
    if not callable(found):
        raise TargetError(f"{step!r} is a {type(found).__name__}: a training step is called with a batch")
    return found


def describe(error: BaseException) -> str:
    """An exception for somebody who does not see where it came from."""
    if isinstance(error, TargetError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"the code ended the program: sys.exit({error.code!r})"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Errors of workers bring their traceback along: its last line is what was raised.
    text = lines[0] if lines else ""
    if len(lines) > 1:
        text = f"{lines[0]} {lines[-1]}" if "raceback" in str(error) else " ".join(lines)
    frames = traceback.extract_tb(error.__traceback__)
    here = os.path.dirname(feedline.__file__) + os.sep
    own = [frame for frame in frames if not frame.filename.startswith(here)]
    place = f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    return f"{type(error).__name__}: {text[:2000]}{place}"
