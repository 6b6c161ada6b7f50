"""What a loader of Python code counts, and the verdict over it."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from feedline import _native
from feedline.observe.timeline import Timeline
from feedline.workers import Result

# Waits from a microsecond on, in buckets of which each doubling has so many.
_SHORTEST, _STEPS, _BUCKETS = 1e-6, 16, 16 * 36


def _bucket(seconds: float) -> int:
    if seconds <= _SHORTEST:
        return 0
    return min(_BUCKETS - 1, int(math.log2(seconds / _SHORTEST) * _STEPS))


class Counters:
    """What a loader of Python code counts and times; one for its whole life."""

    def __init__(self) -> None:
        # `used` counts the samples of batches after which the program asked for more.
        self.batches = self.samples = self.used = 0
        self._rows = 0
        self.waited = self.longest_wait = self.stepped = 0.0
        self.first_batch: float | None = None
        self.turnovers, self.turnover = 0, 0.0
        self._waits = [0] * _BUCKETS
        # What workers report of the batches they made: how many samples, and seconds for each part.
        self.timed = 0
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
            self.timed += rows
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
        made, waiting = max(1, self.timed), self.waiting
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

    def worker_stats(self) -> dict[str, Any]:
        """What workers have done, as in the stats of the engine's own."""
        return {
            "samples_made": self.timed,
            "busy_seconds": self.code + self.join + self.hand_over,
            "cpu_seconds": self.cpu + self.join,
            "idle_seconds": None,
            "memory_wait_seconds": None,
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
            # The very first batch waits for the start of everything: it is counted apart.
            batches, waited = batches - 1, waited - first
        timed = since("timed")
        parts = [("your code", "code", "cpu"), ("collate", "join", "join"), ("hand over", "hand_over", None)]
        stages = [
            {
                "name": name,
                "seconds": since(wall) / timed,
                "cpu_seconds": since(cpu) / timed if cpu else since(wall) / timed,
            }
            for name, wall, cpu in parts
            if timed
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
