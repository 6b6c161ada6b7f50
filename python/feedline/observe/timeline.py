"""What each worker of a loader did when."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from feedline.workers import Result


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
