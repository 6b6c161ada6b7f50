"""What the program is told while it trains: a line for each epoch, a warning if it waits."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from feedline import _native
from feedline._errors import Error
from feedline.workers import Result

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


# Waits from a microsecond on, in buckets of which each doubling has so many.
_SHORTEST, _STEPS, _BUCKETS = 1e-6, 16, 16 * 36


def _bucket(seconds: float) -> int:
    if seconds <= _SHORTEST:
        return 0
    return min(_BUCKETS - 1, int(math.log2(seconds / _SHORTEST) * _STEPS))


class Figures:
    """What happened in a loader of Python code; one for its whole life."""

    def __init__(self) -> None:
        # `used` counts the samples of batches after which the program asked for more.
        self.batches = self.samples = self.used = 0
        self._rows = 0
        self.waited = self.longest_wait = self.stepped = 0.0
        self.first_batch: float | None = None
        self.turnovers, self.turnover = 0, 0.0
        self._waits = [0] * _BUCKETS
        # What workers told of the batches they made: how many samples, and seconds for each part.
        self.told = 0
        self.code = self.cpu = self.join = self.hand_over = 0.0
        self._handed: float | None = None
        # Since when the program waits for a batch.
        self._asked: float | None = None
        self._timeline: Timeline | None = None

    def record(self, most: int) -> None:
        """From now on, keeps the last `most` spans of each worker."""
        self._timeline = Timeline(most)

    def lanes(self) -> list[list[dict[str, Any]]]:
        """What each worker did since `record`."""
        return [] if self._timeline is None else self._timeline.lanes()

    def asked(self) -> float:
        """The program asks for a batch; what passed since the last one was its step."""
        now = time.monotonic()
        if self._handed is not None:
            self.stepped += now - self._handed
            self.used += self._rows
            self._handed = None
        self._asked = now
        return now

    @property
    def waiting(self) -> float:
        """Seconds that the program has been waiting for its next batch, if it does."""
        # Another thread may hand the batch over between two looks.
        asked = self._asked
        return 0.0 if asked is None else time.monotonic() - asked

    @property
    def rows(self) -> float:
        """Samples of a batch, as it was so far."""
        return self.samples / self.batches if self.batches else 1.0

    def handed(self, number: int, rows: int, asked: float, *, begins: bool, result: Result) -> None:
        """The program gets a batch that it asked for at `asked`."""
        now, times = time.monotonic(), result.times
        wait, self._asked = now - asked, None
        if self.first_batch is None:
            self.first_batch = wait
        elif begins:
            self.turnovers += 1
            self.turnover += wait
        self.batches += 1
        self.samples += rows
        self._rows = rows
        self.waited += wait
        self.longest_wait = max(self.longest_wait, wait)
        self._waits[_bucket(wait)] += 1
        if times is not None:
            self.told += rows
            self.code += times.code
            self.cpu += times.cpu
            self.join += times.join
            self.hand_over += times.hand_over
        if self._timeline is not None:
            self._timeline.add(number, result)
        self._handed = now

    def between_epochs(self) -> None:
        """What the program does until it asks again is no step."""
        self._handed = self._asked = None

    def mark(self) -> dict[str, Any]:
        """How things stand, to compare with later."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def stats(self) -> dict[str, Any]:
        """The keys that all loaders' stats have."""
        made, waiting = max(1, self.told), self.waiting
        return {
            "batches": self.batches,
            "samples": self.samples,
            "first_batch_seconds": self.first_batch,
            "wait_seconds": self.waited + waiting,
            "waiting_seconds": waiting or None,
            "longest_wait_seconds": max(self.longest_wait, waiting),
            "wait_p50_seconds": self._quantile(0.5),
            "wait_p99_seconds": self._quantile(0.99),
            "step_seconds": self.stepped,
            "seconds_per_sample": {
                "your code": self.code / made,
                "collate": self.join / made,
                "hand over": self.hand_over / made,
            },
        }

    def _quantile(self, share: float) -> float:
        """The wait that so many batches did not exceed, to about 4 %."""
        wanted, seen = math.ceil(share * self.batches), 0
        for number, count in enumerate(self._waits):
            seen += count
            if seen >= max(1, wanted):
                return min(self.longest_wait, float(_SHORTEST * 2 ** ((number + 0.5) / _STEPS)))
        return 0.0

    def report(self, before: dict[str, Any], **about: Any) -> dict[str, Any]:
        """What happened since `before`, judged. `about` says who makes the batches."""

        def since(name: str) -> Any:
            return getattr(self, name) - before.get(name, 0)

        batches, waited = since("batches"), since("waited")
        first = self.first_batch if not before.get("batches") else None
        if first is not None and batches:
            # The very first batch waits for the start of everything: it is told apart.
            batches, waited = batches - 1, waited - first
        told = since("told")
        parts = [("your code", "code", "cpu"), ("collate", "join", "join"), ("hand over", "hand_over", None)]
        stages = [
            {
                "name": name,
                "seconds": since(wall) / told,
                "cpu_seconds": since(cpu) / told if cpu else since(wall) / told,
            }
            for name, wall, cpu in parts
            if told
        ]
        turnovers = since("turnovers")
        busy, cpu = since("code") + since("join") + since("hand_over"), since("cpu") + since("join")
        passed = since("waited") + since("stepped")
        idle = max(0.0, about.get("workers", 0) * passed - busy)
        evidence = {
            **about,
            "batches": batches,
            "samples": since("used"),
            "wait_seconds": max(0.0, waited),
            "step_seconds": since("stepped"),
            "first_batch_seconds": first,
            "turnover_seconds": since("turnover") / turnovers if turnovers else None,
            "turnovers": turnovers,
            "stages": stages,
            "worker_time": {"busy": busy, "cpu": cpu, "idle": idle, "memory": 0.0},
        }
        if about.get("executor") == "threads" and _native.cores() > 1 and since("code") > 1.5 * since("cpu"):
            # Threads that were on one core together, and off it as long as another one was on it.
            evidence["interpreter_lock"] = min(1.0, since("cpu") / passed) if passed else None
        evidence.setdefault("cores", float(_native.cores()))
        report: dict[str, Any] = json.loads(_native.judge(json.dumps(evidence)))
        # All of them, also those of the very first batch, which is left out of the rate.
        return {**report, "samples": since("samples")}


class Timeline:
    """The last spans of each worker."""

    def __init__(self, most: int) -> None:
        self._most, self._began = most, time.perf_counter()
        self._spans: dict[int, deque[dict[str, Any]]] = {}

    def add(self, number: int, result: Result) -> None:
        """Adds what the workers did for the batch of this number."""
        for worker, activity, begin, end in result.spans:
            self.span(worker, activity, begin, end, number)

    def span(self, worker: int, activity: str, begin: float, end: float, number: int) -> None:
        """Adds a span; the oldest gives way. What was before the beginning is left out."""
        begin, end = begin - self._began, end - self._began
        if begin < 0.0 or end < begin:
            return
        lane = self._spans.setdefault(worker, deque(maxlen=self._most))
        times = {"begin": int(begin * 1e9), "end": int(end * 1e9)}
        lane.append({"activity": activity, **times, "batch": number})

    def lanes(self) -> list[list[dict[str, Any]]]:
        """A list for each worker, in the order of time, from the moment on from which none has lost
        anything: one that made less would seem to have been alone before."""
        workers = range(max(self._spans, default=-1) + 1)
        full = [lane[0]["begin"] for lane in self._spans.values() if len(lane) == self._most]
        since = max(full, default=-1)
        kept = ([span for span in self._spans.get(worker, ()) if span["end"] > since] for worker in workers)
        return [sorted(lane, key=lambda span: span["begin"]) for lane in kept]
