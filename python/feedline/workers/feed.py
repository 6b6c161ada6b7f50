"""Tasks in, batches out in their order: the part that all loaders and executors share."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator
from typing import Any

from feedline.workers.executor import Executor, Result
from feedline.workers.job import Task

# A program that waits can be interrupted; between two looks not longer than this passes.
_LOOK = 5.0
# A timeout is about samples: so many seconds beside it may pass before the workers have begun. A worker may
# have to import modules that the program has long imported.
_START, _START_LOOK = 60.0, 0.1


class Feed:
    """Keeps an executor busy with tasks and hands the batches over.

    `turns` gives the tasks to the workers in turn, as long as their iterables last. `helper` makes
    a batch in the calling thread (and times it) while no worker is ready yet.
    """

    def __init__(
        self,
        executor: Executor,
        tasks: Iterator[Task],
        *,
        in_order: bool = True,
        timeout: float = 0,
        turns: bool = False,
        turn: int = 0,
        active: list[bool] | None = None,
        helper: Callable[[Task], tuple[Any, Any]] | None = None,
    ) -> None:
        self._executor, self._tasks = executor, tasks
        self._in_order, self._timeout, self._helper = in_order, timeout, helper
        self._turns, self._turn = turns, turn
        self.active = active or [True] * max(1, executor.workers)
        self._under_way = [0] * len(self.active)
        self._pending: collections.deque[tuple[int, Task]] = collections.deque()
        self._exhausted = False
        self._error: Exception | None = None
        # When the next batch was asked for, and from when on the timeout counts.
        self._asked = self._begun = 0.0
        self.helped = 0

    def fill(self, others: int = 0) -> None:
        """Gives the executor work up to its capacity, of which `others` have a part."""
        while not self._exhausted and len(self._pending) + others < self._executor.capacity:
            worker = None
            if self._turns:
                if not any(self.active):
                    self._exhausted = True
                    return
                worker = self._next_worker()
                if worker is None:
                    return
            try:
                task = next(self._tasks)
            except StopIteration:
                self._exhausted = True
                return
            except Exception as error:
                # A sampler's error comes after the batches that it has named before.
                self._exhausted, self._error = True, error
                return
            if worker is not None:
                task.worker = worker
                self._under_way[worker] += 1
                self._turn = (worker + 1) % len(self.active)
            self.assigned(task)
            self._pending.append((self._executor.submit(task), task))

    def _next_worker(self) -> int | None:
        """Whose turn it is. Out of order, a slow worker's turn passes while it has its part of the work:
        the others go on without it."""
        most = max(1, self._executor.capacity // sum(self.active))
        for step in range(len(self.active)):
            at = (self._turn + step) % len(self.active)
            if self.active[at] and (self._in_order or self._under_way[at] < most):
                return at
        return None

    @property
    def queue(self) -> dict[str, int]:
        """Batches that are made and wait, that are under way or wait, and that may be."""
        executor = self._executor
        return {"ready": executor.ready, "open": len(self._pending), "most": executor.capacity}

    @property
    def pending(self) -> int:
        """Tasks that are under way or waiting to be taken."""
        return len(self._pending)

    @property
    def exhausted(self) -> bool:
        """Whether all tasks have been given out."""
        return self._exhausted

    def next(self) -> tuple[Task, Result]:
        """The next batch, or StopIteration. A failed one is a result with an error."""
        self._asked = self._begun = time.monotonic()
        while True:
            self.fill()
            if not self._pending:
                error, self._error = self._error, None
                raise StopIteration if error is None else error
            found = self._find()
            if found is None:
                self._wait()
                continue
            at, result = found
            _, task = self._pending[at]
            del self._pending[at]
            if self._turns and task.worker is not None:
                self._under_way[task.worker] -= 1
            if result.ended:
                if task.worker is not None:
                    self.active[task.worker] = False
                else:
                    self._exhausted = True
                task.note = result.state
                self.ended(task, result)
                continue
            if self._executor.name != "inline":
                # Workers get their next task before the program goes on with this batch. Without
                # workers, the sampler is asked when its answer is needed, as torch does.
                self.fill()
            return task, result

    def assigned(self, task: Task) -> None:
        """Hears that a task is about to be given to its worker."""

    def ended(self, task: Task, result: Result) -> None:
        """Hears that a worker's iterable is over."""

    def _find(self) -> tuple[int, Result] | None:
        for at in range(1 if self._in_order else len(self._pending)):
            result = self._executor.take(self._pending[at][0])
            if result is not None:
                return at, result
        sequence, task = self._pending[0]
        if self._helper is not None and self._executor.withdraw(sequence):
            self.helped += 1
            try:
                value, times = self._helper(task)
                return 0, Result(value, times=times)
            except Exception as error:
                return 0, Result(error=error)
        return None

    def _wait(self) -> None:
        if not self._timeout:
            self._executor.wait(_LOOK)
            return
        now = time.monotonic()
        if self._executor.starting and now - self._asked < _START:
            self._begun = now
            self._executor.wait(min(self._timeout, _START_LOOK))
            return
        left = self._begun + self._timeout - now
        if left <= 0:
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        self._executor.wait(left)

    def close(self) -> None:
        """Nothing of what is under way is wanted."""
        self._exhausted = True
        if self._pending:
            self._pending.clear()
            self._executor.forget()
