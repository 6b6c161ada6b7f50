"""What can go wrong. All are `feedline.Error`, and each is also the built-in class that fits."""

from __future__ import annotations

import os
from typing import Any


class Error(Exception):
    """The base of all errors of feedline."""


class SpecError(Error, ValueError):
    """A mistake in the arguments or the description of a pipeline."""

    key: str
    """The argument, as a path from the top: `transforms[1].size`."""
    value: str | None
    """The offending value as JSON."""
    problem: str
    allowed: str | None
    """What would be right."""
    nearest: str | None
    """The nearest known name."""

    def __init__(
        self,
        text: str,
        *,
        key: str = "",
        value: str | None = None,
        problem: str = "",
        allowed: str | None = None,
        nearest: str | None = None,
    ) -> None:
        super().__init__(text)
        self.key, self.value, self.problem = key, value, problem or text
        self.allowed, self.nearest = allowed, nearest


def refuse(key: str, problem: str, allowed: str | None = None) -> SpecError:
    """The error of an argument that has no meaning here."""
    text = f"{key}: {problem}" + (f"; allowed: {allowed}" if allowed else "")
    return SpecError(text, key=key, problem=problem, allowed=allowed)


class SampleError(Error, RuntimeError):
    """One sample could not be read, decoded or transformed."""

    index: int
    """The sample's number in its source."""
    source: int
    """The number of its source, if there are several."""
    path: str | None
    """Its file, as `os.fsdecode` writes it."""
    offset: int | None
    """Where in the file the trouble is."""
    stage: str
    """`read`, `decode`, `transform` or `collate`."""
    reason: str

    def __init__(
        self,
        text: str,
        *,
        index: int = 0,
        source: int = 0,
        path: str | None = None,
        offset: int | None = None,
        stage: str = "",
        reason: str = "",
    ) -> None:
        super().__init__(text)
        self.index, self.source, self.path = index, source, path
        self.offset, self.stage, self.reason = offset, stage, reason

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling forgets the cause, which in a worker process is the program's own exception.
        return _with_cause, (type(self), self.args, self.__dict__, _portable(self.__cause__))


def _portable(cause: BaseException | None) -> BaseException | None:
    """A cause that can be sent to another process, or one that describes it."""
    import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(cause))
    except Exception:
        return RuntimeError(f"{type(cause).__name__}: {cause}")
    return cause


def _with_cause(
    kind: type[SampleError], args: tuple[Any, ...], details: dict[str, Any], cause: BaseException | None
) -> SampleError:
    made = kind(*args)
    made.__dict__.update(details)
    made.__cause__ = cause
    return made


class TooManyFailuresError(SampleError):
    """More samples failed than `max_failures` allows; the attributes are those of the last one."""

    failed: int
    allowed: int

    def __init__(self, text: str, *, failed: int = 0, allowed: int = 0, **last: Any) -> None:
        super().__init__(text, **last)
        self.failed, self.allowed = failed, allowed


class SourceError(Error, ValueError):
    """A data set cannot be used as it is: empty, malformed, of unequal length."""


class StateError(Error, ValueError):
    """A resume state does not belong to this loader; the text says why."""


class MemoryLimitError(Error, MemoryError):
    """`memory` is too small for the work, or the program holds all of it in batches."""


class CacheError(Error, ValueError):
    """`cache` was demanded and the data set does not fit."""


class StaleIteratorError(Error, RuntimeError):
    """An iterator was used after its loader was iterated, seeked or resumed again."""


class ClosedError(Error, RuntimeError):
    """The loader was closed."""


class DeviceError(Error, RuntimeError):
    """A device (a GPU) cannot be used, or a call of its driver failed."""

    code: int | None
    """The driver's result, if a call failed."""

    def __init__(self, text: str, *, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class EngineError(Error, RuntimeError):
    """The system refused something that the engine needs, such as a thread."""


class FileError(Error, OSError):
    """A file or folder that is not a sample could not be used; has `errno` and `filename`."""


class MissingFileError(FileError, FileNotFoundError):
    """A path that does not exist."""


class RefusedFileError(FileError, PermissionError):
    """A path that may not be read or written."""


_FILE_ERRORS: dict[type[OSError], type[FileError]] = {
    FileNotFoundError: MissingFileError,
    PermissionError: RefusedFileError,
}


def _file_error(what: str, errno: int | None, reason: str, filename: str) -> FileError:
    if errno is None:
        return FileError(f"{what} {filename}: {reason}")
    fitting = _FILE_ERRORS.get(type(OSError(errno, "")), FileError)
    return fitting(errno, f"{what}: {os.strerror(errno)}", filename)


def make(name: str, text: str, details: dict[str, Any]) -> Error:
    """The error of that name; the native module calls this."""
    if name == "FileError":
        return _file_error(**details)
    made = globals()[name](text, **details)
    assert isinstance(made, Error)
    return made
