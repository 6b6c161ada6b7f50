"""What the program is told while it trains: a line for each epoch, a warning if it waits."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Hashable
from typing import Any

from feedline._errors import Error

LOGGER = logging.getLogger("feedline")

# A loader that is used for less, or for fewer batches, is no reason to warn.
_LEAST_SECONDS = 5.0
_LEAST_BATCHES = 8
_TOO_MUCH = 0.1
# Between two looks, in seconds.
_PAUSE = 1.0
# Loaders that the program was warned of. Who was warned of so many has heard enough.
_warned_of: set[Hashable] = set()
_MOST_WARNED = 64


def _level(level: int) -> int:
    """The processes of a job on one machine have the same to tell: the first one does."""
    return level if os.environ.get("LOCAL_RANK", "0") in ("", "0") else logging.DEBUG


class Teller:
    """Tells how an epoch went, and warns once if the program waits for its batches.

    `report` gives the figures of the epoch so far, as `_native.judge` returns them. `name` is the same
    for a loader that is made again with the same settings, which is then not warned of again.
    """

    def __init__(self, report: Callable[[], dict[str, Any]], name: Hashable) -> None:
        self._report, self._name = report, name
        self._warned, self._due = False, 0.0
        # Of the epochs before; without the very first batch, which waits for the start of everything.
        self._seconds, self._batches = 0.0, 0
        # The newest epoch's number, and whether there is something to tell of it.
        self._newest, self._untold = 0, False

    def begin(self) -> Telling:
        """An epoch begins; called before the figures are of it. The one before may have been left
        early, or nobody has asked for its end: it is told now."""
        self.tell()
        self._newest += 1
        if self._due == 0.0:
            self._due = time.monotonic() + _LEAST_SECONDS
        return Telling(self, self._newest)

    def handed(self, number: int) -> None:
        """A batch of this epoch was handed over. Most of the time there is nothing to do."""
        if number != self._newest:
            return
        self._untold = True
        if self._warned:
            return
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _PAUSE
            with contextlib.suppress(Error):
                report = self._report()
                # The step of the newest batch is not over yet: of few batches that says nothing.
                if report["batches"] >= _LEAST_BATCHES:
                    self._warn(report)

    def tell(self, number: int | None = None) -> None:
        """Tells how the newest epoch went, once; nothing if `number` is that of another one."""
        if not self._untold or number not in (None, self._newest):
            return
        self._untold = False
        tells = LOGGER.isEnabledFor(_level(logging.INFO))
        if not tells and self._warned:
            return
        # A loader that another thread has closed meanwhile has nothing to tell.
        with contextlib.suppress(Error):
            report = self._report()
            if tells and report["samples"] > 0:
                LOGGER.log(_level(logging.INFO), "%s", line(report))
            if number is None and report["batches"] < _LEAST_BATCHES:
                # It was left early: how long the last step took is not known.
                return
            self._warn(report)
            self._seconds += report["seconds"]
            self._batches += report["batches"]

    def forget(self, number: int) -> None:
        """The epoch failed: there is nothing to tell."""
        if number == self._newest:
            self._untold = False

    def _warn(self, report: dict[str, Any]) -> None:
        long = self._seconds + report["seconds"] >= _LEAST_SECONDS
        enough = long and self._batches + report["batches"] >= _LEAST_BATCHES
        if self._warned or not enough or report["wait_share"] <= _TOO_MUCH:
            return
        self._warned = True
        if self._name in _warned_of or len(_warned_of) >= _MOST_WARNED:
            return
        _warned_of.add(self._name)
        sentence = report["verdict"]["sentence"]
        told = "%s (told once; `feedline diagnose` measures the cause)"
        LOGGER.log(_level(logging.WARNING), told, sentence)


class Telling:
    """What is to be told of one epoch. The teller does not hold on to it: a loader must die with its
    last name, not with the next garbage collection."""

    __slots__ = ("_number", "_teller")

    def __init__(self, teller: Teller, number: int) -> None:
        self._teller, self._number = teller, number

    def handed(self) -> None:
        """A batch was handed over."""
        self._teller.handed(self._number)

    def gone(self) -> None:
        """The epoch failed."""
        self._teller.forget(self._number)

    def ended(self) -> None:
        """The program asked for more than the last batch. It may ask again."""
        self._teller.tell(self._number)


def line(report: dict[str, Any]) -> str:
    """An epoch in one line."""
    limit = report["next_limit"]
    text = (
        f"epoch {report['epoch']}: {report['samples']:,} samples, {report['samples_per_second']:,.0f}/s, "
        f"trainer waited {100 * report['wait_share']:.1f} %"
    )
    return text if limit is None else f"{text}, next limit: {limit}"
