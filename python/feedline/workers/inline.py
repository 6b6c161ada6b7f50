"""No workers: batches are made where they are asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from feedline.workers.executor import Begin, Result
from feedline.workers.job import Ended, Job, Maker, Task
from feedline.workers.seeds import apart


class Inline:
    """Runs tasks in the calling thread, one at a time, when their result is taken."""

    name = "inline"
    workers = 0
    capacity = 1
    broken: BaseException | None = None
    starting = False

    def __init__(self, job: Job) -> None:
        self._maker = Maker(job)
        self._tasks: dict[int, Task] = {}
        self._sequence = 0
        self._begins: Any = None
        self.owner = os.getpid()

    @property
    def ready(self) -> int:
        return 0

    def begin(self, begin: Begin) -> None:
        state = None if begin.states is None else begin.states[0]
        skip = 0 if begin.skips is None else begin.skips[0]
        self._begins = self._maker.begin(state, skip, begin.rows, begin.ended)

    def begins(self) -> Mapping[int, Any]:
        return {0: self._begins}

    def submit(self, task: Task) -> int:
        sequence = self._sequence
        self._sequence += 1
        self._tasks[sequence] = task
        return sequence

    def take(self, sequence: int) -> Result | None:
        task = self._tasks.pop(sequence)
        try:
            value, times = apart(task.seed, lambda: self._maker.timed(task))
        except Ended:
            return Result(ended=True, state=self._maker.state())
        except Exception as error:
            return Result(error=error)
        return Result(value, state=self._maker.state() if task.snapshot else None, times=times)

    def wait(self, seconds: float | None) -> bool:
        return True

    def withdraw(self, sequence: int) -> bool:
        return False

    def forget(self) -> None:
        self._tasks.clear()

    def renew(self, job: Job, base_seed: int) -> None:
        pass

    def rest(self) -> None:
        pass

    def close(self) -> None:
        self._tasks.clear()
