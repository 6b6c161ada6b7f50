"""Data sets, collate functions and samplers that fail, and the exceptions they fail with."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset


class Odd(Exception):
    """Its constructor wants two arguments, which pickle does not know."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Plain(ValueError):
    pass


class Unpicklable(Exception):
    """Holds something that no pickle takes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.frame = (number for number in range(3))


class WithMessage(Exception):
    """torch looks for this attribute."""

    message = "a class attribute"

    def __init__(self, message: str) -> None:
        super().__init__(message)


def _os_error() -> Exception:
    return FileNotFoundError(2, "No such file or directory", "photo.jpg")


def _unicode_error() -> Exception:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


#: Makes the exception. Made where it is raised, so that it never had to travel there.
ERRORS: dict[str, Any] = {
    "ValueError": lambda: ValueError("a bad value"),
    "TypeError": lambda: TypeError("a bad type"),
    "KeyError": lambda: KeyError("missing"),
    "IndexError": lambda: IndexError("too far"),
    "RuntimeError": lambda: RuntimeError("runs no more"),
    "ZeroDivisionError": lambda: ZeroDivisionError("by zero"),
    "AssertionError": lambda: AssertionError(),
    "NotImplementedError": lambda: NotImplementedError(),
    "MemoryError": lambda: MemoryError("much too large"),
    "StopIteration": lambda: StopIteration("not here"),
    "StopAsyncIteration": lambda: StopAsyncIteration(),
    "OSError": _os_error,
    "UnicodeDecodeError": _unicode_error,
    "UserWarning": lambda: UserWarning("a warning, raised"),
    "subclass": lambda: Plain("of one's own"),
    "odd constructor": lambda: Odd(7, "odd"),
    "keyword constructor": lambda: KeywordOnly(code=3),
    "unpicklable": lambda: Unpicklable("heavy"),
    "with message": lambda: WithMessage("words"),
}

if sys.version_info >= (3, 11):
    ERRORS["exception group"] = lambda: ExceptionGroup("several", [ValueError(1), KeyError(2)])  # noqa: F821

#: Errors whose type torch's workers replace: the class cannot be made from one string. Ours arrive with
#: their own type, arguments and attributes. (A group: torch's own call of its constructor fails.)
TORCH_REPLACES = {
    "odd constructor": RuntimeError,
    "keyword constructor": RuntimeError,
    "UnicodeDecodeError": RuntimeError,
    "exception group": TypeError,
}


def raise_deep_inside(name: str) -> None:
    """The function whose name a traceback must show."""
    raise ERRORS[name]()


class Failing(Dataset[Any]):
    """Sample 3 fails."""

    def __init__(self, name: str, at: int = 3) -> None:
        self.name = name
        self.at = at

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            raise_deep_inside(self.name)
        return index


class Caused(Failing):
    def __getitem__(self, index: int) -> int:
        try:
            return super().__getitem__(index)
        except Exception as error:
            raise Plain("because of something else") from error


class FailingTogether(Failing):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class FailingToOpen(Failing):
    """Cannot be opened in another process."""

    def __reduce__(self) -> Any:
        return _open, (self.name,)


def _open(name: str) -> Any:
    raise_deep_inside(name)


class FailingCollate:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, batch: list[int]) -> list[int]:
        if 3 in batch:
            raise_deep_inside(self.name)
        return batch


class FailingInit:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, worker: int) -> None:
        raise_deep_inside(self.name)


class FailingSampler:
    def __init__(self, name: str, batches: bool = False) -> None:
        self.name = name
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        for number in range(8):
            if number == 5:
                raise_deep_inside(self.name)
            yield [number] if self.batches else number

    def __len__(self) -> int:
        return 8


class BreakingBy(IterableDataset[Any]):
    """A stream that fails after some samples."""

    def __init__(self, length: int, name: str) -> None:
        self.length = length
        self.name = name

    def __iter__(self) -> Iterator[Any]:
        yield from range(self.length)
        raise_deep_inside(self.name)


class Deadly(Dataset[Any]):
    """A sample that ends its worker: always, or the first time only, which a file remembers."""

    def __init__(self, way: str, marker: str | None = None, at: int = 5) -> None:
        self.way = way
        self.marker = marker
        self.at = at
        self.home = os.getpid()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == self.at and os.getpid() != self.home:
            if self.marker is None:
                self.die()
            elif not os.path.exists(self.marker):
                with open(self.marker, "w"):
                    pass
                self.die()
        return index

    def die(self) -> None:
        if self.way == "exit":
            os._exit(3)
        elif self.way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.way == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif self.way == "abort":
            os.abort()
        else:
            raise SystemExit(4)


class Hanging(Dataset[Any]):
    """A sample that takes for ever."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            time.sleep(3600)
        return index


def hanging_collate(batch: list[int]) -> list[int]:
    if 5 in batch:
        time.sleep(3600)
    return batch
