"""A process as the kernel shows it: whether it is there, whether it is stopped, whether it does anything."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time

# Seconds between two looks at the workers. A worker counts as stopped when two looks in a row find it
# so: after Ctrl-Z and `fg` the program may run a moment before its workers do.
INTERVAL = 1.0
# Seconds without progress after which a worker is named. A sample may take minutes, so this is no
# more than a warning.
PATIENCE = 300.0
_VARIABLE = "FEEDLINE_STALL_WARNING"
clock = time.monotonic


def patience() -> float:
    """Seconds that a worker may spend on one sample before the program hears of it."""
    text = os.environ.get(_VARIABLE)
    if text is None:
        return PATIENCE
    with contextlib.suppress(ValueError):
        seconds = float(text)
        if seconds == 0:
            return math.inf
        if seconds > 0:
            return seconds
    raise ValueError(f"{_VARIABLE} = {text!r}: must be a number of seconds, or 0 for no warning")


class Sight:
    """What is seen of one process. Its start time distinguishes it from a later one with the same number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        seen = _stat(pid)
        self._start = None if seen is None else seen[2]
        self._stopped_at: int | None = None

    def _look(self) -> tuple[str, int, int] | None:
        seen = _stat(self.pid)
        return None if seen is None or seen[2] != self._start else seen

    def is_stopped(self) -> bool:
        """Whether it is stopped, was so at the look before, and did nothing in between.

        A debugger's stop ("t") does not count: it ends with what the debugger looks at.
        """
        seen = self._look()
        before = self._stopped_at
        self._stopped_at = None if seen is None or seen[0] != "T" else seen[1]
        return self._stopped_at is not None and self._stopped_at == before

    def is_gone(self) -> bool:
        """Whether it has ended, so that it writes nowhere any more."""
        seen = self._look()
        return seen is None or seen[0] in "ZX"

    def kill(self) -> None:
        """Ends it, also while it is stopped."""
        if not self.is_gone():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """A process's state, the processor time it has had and when it was started, in ticks."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name before them may hold anything.
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[11]) + int(fields[12]), int(fields[19])
