"""A worker that is one thread and reads an iterable: it cannot be shared by several."""

from __future__ import annotations

import collections
import dataclasses
import os
import threading
from collections.abc import Mapping
from typing import Any

from feedline.workers.executor import Begin, Result, spans_of
from feedline.workers.failure import WorkerError
from feedline.workers.job import Ended, Job, Maker, Task


class Reader:
    """Runs tasks in a thread of this process, one after the other."""

    name = "threads"
    workers = 1
    broken: BaseException | None = None
    starting = False

    def __init__(self, job: Job, prefetch: int) -> None:
        self.capacity = max(1, prefetch)
        self._job, self._maker = job, Maker(job)
        self._changed = threading.Condition()
        self._open: collections.deque[tuple[int, Task | Begin]] = collections.deque()
        self._results: dict[int, Result] = {}
        self._sequence = 0
        self._wanted = 0
        self._closed = False
        self.owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="feedline-reader", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> int:
        return len(self._results)

    def begin(self, begin: Begin) -> None:
        self._put(begin)

    def begins(self) -> Mapping[int, Any]:
        # Its one user gives the state with every beginning.
        return {}

    def submit(self, task: Task) -> int:
        # The global generators are the whole program's: seeding them here would disturb it.
        return self._put(dataclasses.replace(task, seed=None))

    def _put(self, item: Task | Begin) -> int:
        with self._changed:
            sequence = self._sequence
            self._sequence += 1
            self._open.append((sequence, item))
            self._changed.notify_all()
        return sequence

    def _run(self) -> None:
        trouble: Exception | None = None
        failed: Exception | None = None
        try:
            if self._job.init is not None:
                self._job.init(0)
        except Exception as error:
            trouble = error
        while True:
            with self._changed:
                while not (self._closed or self._open):
                    self._changed.wait()
                if self._closed:
                    return
                sequence, item = self._open.popleft()
            if isinstance(item, Begin):
                failed = self._begin(item)
                continue
            wrong = trouble or failed
            result = Result(error=wrong) if wrong is not None else self._make(item)
            with self._changed:
                if sequence >= self._wanted and not self._closed:
                    self._results[sequence] = result
                self._changed.notify_all()

    def _begin(self, begin: Begin) -> Exception | None:
        try:
            self._maker.begin(None if begin.states is None else begin.states[0])
        except Exception as error:
            return error
        return None

    def _make(self, task: Task) -> Result:
        try:
            value, times = self._maker.timed(task)
        except Ended:
            return Result(ended=True, state=self._maker.state())
        except BaseException as error:
            return Result(error=error)
        state = self._maker.state() if task.snapshot else None
        return Result(value, state=state, times=times, spans=spans_of(0, times))

    def take(self, sequence: int) -> Result | None:
        if os.getpid() != self.owner:
            raise WorkerError("the workers belong to another process: make a new loader after a fork")
        with self._changed:
            return self._results.pop(sequence, None)

    def wait(self, seconds: float | None) -> bool:
        with self._changed:
            return bool(self._results) or self._changed.wait(seconds)

    def withdraw(self, sequence: int) -> bool:
        return False

    def forget(self) -> None:
        with self._changed:
            self._wanted = self._sequence
            # An epoch that has not begun is not wanted either: whoever forgets begins one.
            self._open.clear()
            self._results.clear()

    def renew(self, job: Job, base_seed: int) -> None:
        # Between epochs: the next one begins with the new data set.
        self._job, self._maker = job, Maker(job)

    def rest(self) -> None:
        pass

    def close(self) -> None:
        if os.getpid() != self.owner:
            # In a forked child nobody will ever let go of a lock that a worker held.
            return
        with self._changed:
            self._closed = True
            self._open.clear()
            self._results.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            # A sample that takes longer is left to end by itself.
            self._thread.join(0.5)
