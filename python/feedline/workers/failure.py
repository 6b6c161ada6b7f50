"""Exceptions on their way from one process to another."""

from __future__ import annotations

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


class Failure:
    """An exception as it crosses from a worker to the consumer."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.where = where
        self.text = f"{where}:\n" + "".join(traceback.format_exception(error))
        self.type: Any = None
        self.error: bytes | None = None
        try:
            # What does not come back is found out here, not in the consumer.
            pickled = cloudpickle.dumps(error.with_traceback(None))
            cloudpickle.loads(pickled)
            self.error = pickled
        except Exception:
            try:
                self.type = cloudpickle.dumps(type(error))
            except Exception:
                self.type = None

    def exception(self) -> BaseException:
        """The exception to raise: the original one, or the nearest to it that there is."""
        made: Any = None
        if self.error is not None:
            made = cloudpickle.loads(self.error)
        elif self.type is not None:
            try:
                made = cloudpickle.loads(self.type)(self.text)
            except Exception:
                made = None
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
