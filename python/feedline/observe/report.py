"""What a loader logs while the program trains: a line for each epoch, a warning if it waits."""

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
    """The processes of a job on one machine have the same to report: the first one does."""
    return level if os.environ.get("LOCAL_RANK", "0") in ("", "0") else logging.DEBUG


class Reporter:
    """Logs how each epoch went, and warns once if the program waits for its batches.

    `report` gives the figures of the epoch so far, as `_native.judge` returns them. `name` is the same
    for a loader that is made again with the same settings, which is then not warned of again.
    """

    def __init__(self, report: Callable[[], dict[str, Any]], name: Hashable) -> None:
        self._report, self._name = report, name
        self._warned, self._due = False, 0.0
        # Of the epochs before; without the very first batch, which waits for the start of everything.
        self._seconds, self._batches = 0.0, 0
        # The newest epoch's number, and whether there is something to report of it.
        self._newest, self._unreported = 0, False

    def begin(self) -> EpochReporter:
        """An epoch begins; called before the figures are of it. The one before may have been left
        early, or nobody has asked for its end: it is reported now."""
        self.flush()
        self._newest += 1
        if self._due == 0.0:
            self._due = time.monotonic() + _LEAST_SECONDS
        return EpochReporter(self, self._newest)

    def handed(self, number: int) -> None:
        """A batch of this epoch was handed over. Most of the time there is nothing to do."""
        if number != self._newest:
            return
        self._unreported = True
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

    def flush(self, number: int | None = None) -> None:
        """Reports how the newest epoch went, once; nothing if `number` is that of another one."""
        if not self._unreported or number not in (None, self._newest):
            return
        self._unreported = False
        logs = LOGGER.isEnabledFor(_level(logging.INFO))
        if not logs and self._warned:
            return
        # A loader that another thread has closed meanwhile has nothing to report.
        with contextlib.suppress(Error):
            report = self._report()
            if logs and report["samples"] > 0:
                LOGGER.log(_level(logging.INFO), "%s", line(report))
            if number is None and report["batches"] < _LEAST_BATCHES:
                # It was left early: how long the last step took is not known.
                return
            self._warn(report)
            self._seconds += report["seconds"]
            self._batches += report["batches"]

    def forget(self, number: int) -> None:
        """The epoch failed: there is nothing to report."""
        if number == self._newest:
            self._unreported = False

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
        text = "%s (reported once; `feedline diagnose` measures the cause)"
        LOGGER.log(_level(logging.WARNING), text, sentence)


class EpochReporter:
    """What is to be reported of one epoch. The reporter does not hold on to it: a loader must die with
    its last name, not with the next garbage collection."""

    __slots__ = ("_number", "_reporter")

    def __init__(self, reporter: Reporter, number: int) -> None:
        self._reporter, self._number = reporter, number

    def handed(self) -> None:
        """A batch was handed over."""
        self._reporter.handed(self._number)

    def failed(self) -> None:
        """The epoch failed."""
        self._reporter.forget(self._number)

    def ended(self) -> None:
        """The program asked for more than the last batch. It may ask again."""
        self._reporter.flush(self._number)


def line(report: dict[str, Any]) -> str:
    """An epoch in one line."""
    limit = report["next_limit"]
    text = (
        f"epoch {report['epoch']}: {report['samples']:,} samples, {report['samples_per_second']:,.0f}/s, "
        f"trainer waited {100 * report['wait_share']:.1f} %"
    )
    return text if limit is None else f"{text}, next limit: {limit}"
