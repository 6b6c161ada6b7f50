"""Exceptions on their way from one process to another."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

import cloudpickle

from feedline._errors import Error


class WorkerError(Error, RuntimeError):
    """A worker process ended while it was making a batch, or could not be started."""

    pid: int | None
    signal: int | None
    """The signal that ended it."""
    exit_code: int | None
    sample: Any
    """The index of the sample that it was working on, if it was known."""

    def __init__(
        self,
        text: str,
        *,
        pid: int | None = None,
        signal: int | None = None,
        exit_code: int | None = None,
        sample: Any = None,
    ) -> None:
        super().__init__(text)
        self.pid, self.signal, self.exit_code, self.sample = pid, signal, exit_code, sample


class RemoteTraceback(Exception):
    """Where an exception was raised in a worker: the cause of the exception that the program sees."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def _travels(value: Any) -> bool:
    try:
        cloudpickle.loads(cloudpickle.dumps(value))
    except Exception:
        return False
    return True


class Failure:
    """An exception as it crosses from a worker to the consumer."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.where = where
        self.text = f"{where}:\n" + "".join(traceback.format_exception(error))
        self.parts: bytes | None = None
        self.error: bytes | None = None
        try:
            # What does not come back is found out here, not in the consumer.
            pickled = cloudpickle.dumps(error.with_traceback(None))
            cloudpickle.loads(pickled)
            self.error = pickled
        except Exception:
            # A constructor that wants more than `args`, or something inside that stays here.
            kept = {name: value for name, value in vars(error).items() if _travels(value)}
            args = tuple(value if _travels(value) else repr(value) for value in error.args)
            with contextlib.suppress(Exception):
                self.parts = cloudpickle.dumps((type(error), args, kept))

    def exception(self) -> BaseException:
        """The exception to raise: the original one, or the nearest to it that there is."""
        made: Any = None
        if self.error is not None:
            made = cloudpickle.loads(self.error)
        elif self.parts is not None:
            with contextlib.suppress(Exception):
                kind, args, kept = cloudpickle.loads(self.parts)
                # Without its constructor, which has run in the worker.
                built = kind.__new__(kind, *args)
                built.args = args
                built.__dict__.update(kept)
                str(built)
                made = built
        if not isinstance(made, BaseException):
            made = RuntimeError(self.text)
        if hasattr(made, "add_note"):
            made.add_note(f"({self.where})")
        error: BaseException = made
        # A feedline error brings its own cause along.
        last = error
        while last.__cause__ is not None:
            last = last.__cause__
        last.__cause__ = RemoteTraceback(self.text)
        return error
