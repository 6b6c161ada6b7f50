"""Workers that are threads: for code that lets go of the interpreter's lock, or has none."""

from __future__ import annotations

import collections
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from feedline import _native
from feedline.workers import seeds, torch_side
from feedline.workers.executor import Begin, Result
from feedline.workers.failure import WorkerError
from feedline.workers.job import Job, Maker, Task, Times
from feedline.workers.seeds import of_row
from feedline.workers.slots import Pin, Slots
from feedline.workers.stack import Stack

# So many samples of an executor are watched for draws from global generators.
_WATCHED = 32


class _Batch:
    """A batch in the making: its rows are shared out among the threads."""

    def __init__(self, sequence: int, task: Task, rows: int) -> None:
        self.sequence, self.task, self.rows = sequence, task, rows
        self.next = 0
        self.under_way = 0
        self.prepared = False
        self.samples: list[Any] = []
        self.stack: Stack | None = None
        self.error: tuple[int, BaseException] | None = None
        # Seconds for the samples, and of these on a core.
        self.code = self.cpu = 0.0
        # From when to when each thread worked on it.
        self.since: dict[int, float] = {}
        self.until: dict[int, float] = {}

    def fail(self, row: int, error: BaseException) -> None:
        # Rows are given out in order: of several failures the first row's is the one that a
        # loop over the samples would have met.
        if self.error is None or row < self.error[0]:
            self.error = row, error
        self.next = self.rows


class Threads:
    """Runs tasks in threads of this process, several on one batch: the first batch is there soon,
    and few batches are in memory at a time."""

    name = "threads"
    broken: BaseException | None = None
    starting = False

    def __init__(
        self,
        job: Job,
        workers: int,
        prefetch: int,
        base_seed: int,
        pin: Callable[[int, int], Pin] | None = None,
    ) -> None:
        self.workers = self.active = workers
        # All threads work on the same batch, so `prefetch` batches keep them all busy.
        self.capacity = max(2, prefetch)
        self._job, self._base_seed = job, base_seed
        self._many = bool(getattr(job.dataset, "__getitems__", None))
        self.slots = Slots(self.capacity + 2, pin)
        self._copier = _native.Copier()
        self._changed = threading.Condition()
        self._open: collections.deque[_Batch] = collections.deque()
        self._results: dict[int, Result] = {}
        self._sequence = 0
        self._wanted = 0
        self._closed = False
        self._renewals = 0
        self._begins: Any = None
        # Whether a result came that nobody has looked for yet.
        self._news = False
        self._trouble: BaseException | None = None
        # Whether the caller waits for a batch, and how often it got one.
        self._asleep, self._naps = False, 0
        self._watched = 0
        # Whose global generator samples draw from or seed, and whether the program has heard of it.
        self._drew: str | None = None
        self._drew_named = False
        self.owner = os.getpid()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"feedline-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def ready(self) -> int:
        return len(self._results)

    def begin(self, begin: Begin) -> None:
        # The data set is one for all threads, and its state too.
        state = None if begin.states is None else begin.states[0]
        self._begins = Maker(self._job).begin(state)

    def begins(self) -> Mapping[int, Any]:
        return dict.fromkeys(range(self.workers), self._begins)

    def submit(self, task: Task) -> int:
        whole = not self._job.batched or self._many
        batch = _Batch(self._sequence, task, 1 if whole else len(task.index))
        if task.made and not whole:
            self._prepare(batch)
            for row, sample in enumerate(task.made):
                self._keep(batch, row, sample)
                batch.next = row + 1
            task.made = None
        with self._changed:
            self._sequence += 1
            self._open.append(batch)
            self._changed.notify_all()
        return batch.sequence

    def _prepare(self, batch: _Batch) -> None:
        """Makes room for a batch; called as late as possible, so that little memory is in use."""
        batch.prepared = True
        if not self._job.batched or self._many:
            return
        if self._job.stacks:
            torch = torch_side.torch_module() if self._job.torch else None
            batch.stack = Stack(batch.rows, self.slots.take(), self._job.collate, torch, self._copier)
            batch.stack.slot.begin()
        else:
            batch.samples = [None] * batch.rows

    def _keep(self, batch: _Batch, row: int, sample: Any) -> None:
        if batch.stack is not None:
            batch.stack.add(row, sample)
        else:
            batch.samples[row] = sample

    def _enter(self, number: int) -> None:
        try:
            if self._job.torch:
                seed = self._base_seed + number
                torch_side.enter_thread(torch_side.make_info(self._job, number, seed, "thread"))
            if self._job.init is not None:
                self._job.init(number)
        except BaseException as error:
            with self._changed:
                self._trouble = error
                self._changed.notify_all()

    def _run(self, number: int) -> None:
        self._enter(number)
        with torch_side.OwnGenerator() as generator:
            self._work_on(number, generator)

    def _work_on(self, number: int, generator: torch_side.OwnGenerator) -> None:
        renewals = self._renewals
        while True:
            with self._changed:
                while not (self._closed or (number < self.active and self._is_open())):
                    self._changed.wait()
                if self._closed:
                    return
                batch = next(batch for batch in self._open if self._has_work(batch))
                if not batch.prepared:
                    try:
                        self._prepare(batch)
                    except Exception as error:
                        batch.prepared = True
                        batch.fail(0, error)
                row = batch.next
                batch.next += 1
                batch.under_way += 1
                renewed, renewals = renewals != self._renewals, self._renewals
            if renewed:
                # As torch, whose workers are new in every epoch.
                self._enter(number)
            self._work(number, batch, row, generator)

    def _is_open(self) -> bool:
        return any(self._has_work(batch) for batch in self._open)

    def adjust(self, active: int) -> None:
        """From now on so many threads work; the others rest. No batch changes by it."""
        with self._changed:
            self.active = max(1, min(active, self.workers))
            self._changed.notify_all()

    @staticmethod
    def _has_work(batch: _Batch) -> bool:
        # A batch whose rows all came ready-made still has to be finished by somebody.
        return batch.next < batch.rows or (batch.next == batch.rows and batch.under_way == 0)

    def _work(self, number: int, batch: _Batch, row: int, generator: torch_side.OwnGenerator) -> None:
        result, seed = None, batch.task.seed
        began, cpu = time.perf_counter(), time.thread_time()
        if row < batch.rows:
            try:
                if self._trouble is not None:
                    raise self._trouble
                if seed is not None:
                    whole = not self._job.batched or self._many
                    generator.seed(seed if whole else of_row(seed, row))
                self._watch(lambda: self._make(batch, row))
            except BaseException as error:
                batch.fail(row, error)
        code, cpu = time.perf_counter() - began, time.thread_time() - cpu
        with self._changed:
            batch.code += code
            batch.cpu += cpu
            batch.since.setdefault(number, began)
            batch.until[number] = began + code
            batch.under_way -= 1
            last = batch.next >= batch.rows and batch.under_way == 0 and batch in self._open
            if last:
                self._open.remove(batch)
        if last:
            if seed is not None and self._job.batched and not self._many:
                generator.seed(of_row(seed, -1))
            result = self._finish(batch, number)
            with self._changed:
                if batch.sequence >= self._wanted and not self._closed:
                    self._results[batch.sequence] = result
                    self._news = True
                self._changed.notify_all()

    def _watch(self, make: Callable[[], None]) -> None:
        """Makes a sample; looks whether it draws from global generators, while nobody else does."""
        nap = self._naps
        if self._drew is not None or self._watched >= _WATCHED or not self._asleep:
            make()
            return
        before = seeds.states_seen_from_a_thread()
        try:
            make()
        finally:
            self._watched += 1
            drew = seeds.drawn(before, seeds.states_seen_from_a_thread())
            if self._asleep and self._naps == nap:
                self._drew = self._drew or drew

    def _name_draws(self) -> None:
        if self._drew is None or self._drew_named:
            return
        self._drew_named = True
        warnings.warn(
            f"samples draw from {self._drew} global generator or seed it, and threads share it: what a "
            "sample draws depends on what other threads do, and a second or resumed run draws other numbers. "
            'Use executor="processes" (or "auto"), or give each sample a generator of its own, such as '
            "numpy.random.default_rng((seed, index))",
            UserWarning,
            stacklevel=6,
        )

    def _make(self, batch: _Batch, row: int) -> None:
        dataset, index = self._job.dataset, batch.task.index
        made, batch.task.made = batch.task.made, None
        if not self._job.batched:
            batch.samples = made[0] if made else dataset[index]
        elif self._many:
            batch.samples = made or dataset.__getitems__(index)
        else:
            self._keep(batch, row, dataset[index[row]])

    def _finish(self, batch: _Batch, number: int) -> Result:
        stack, lent = batch.stack, False
        began = time.perf_counter()
        try:
            if batch.error is not None:
                return Result(error=batch.error[1])
            if stack is None:
                value = self._job.collate(batch.samples)
            else:
                lent = True
                stack.memory = self.slots.lend(stack.slot, stack.slot.used)
                value = stack.finish()
            state = None
            if batch.task.snapshot:
                state = {"dataset": self._job.dataset.state_dict(), "iterator": None, "ended": False}
            ended, first = time.perf_counter(), min(batch.since.values())
            times = Times(batch.code, min(batch.code, batch.cpu), ended - began, 0.0, first)
            spans = [(one, "code", since, batch.until[one]) for one, since in batch.since.items()]
            return Result(value, state=state, times=times, spans=[*spans, (number, "copy", began, ended)])
        except BaseException as error:
            return Result(error=error)
        finally:
            if stack is not None:
                # A thread that still copies to it would write into the next batch.
                stack.settle()
                if not lent:
                    self.slots.give_back(stack.slot)

    def take(self, sequence: int) -> Result | None:
        if os.getpid() != self.owner:
            raise WorkerError("the workers belong to another process: make a new loader after a fork")
        self._name_draws()
        with self._changed:
            result = self._results.pop(sequence, None)
            if result is not None:
                self._asleep, self._naps = False, self._naps + 1
            return result

    def wait(self, seconds: float | None) -> bool:
        with self._changed:
            # Until it has its batch, the caller draws nothing.
            self._asleep = True
            if not self._news:
                self._changed.wait(seconds)
            news, self._news = self._news, False
            return news

    def withdraw(self, sequence: int) -> bool:
        return False

    def forget(self) -> None:
        with self._changed:
            self._wanted = self._sequence
            for batch in self._open:
                # What is under way ends; the rest is not begun.
                batch.next = max(batch.next, batch.rows)
            idle = [batch for batch in self._open if batch.under_way == 0]
            for batch in idle:
                self._open.remove(batch)
            self._results.clear()
        for batch in idle:
            if batch.stack is not None:
                batch.stack.settle()
                self.slots.give_back(batch.stack.slot)

    def renew(self, job: Job, base_seed: int) -> None:
        with self._changed:
            self._job, self._base_seed = job, base_seed
            self._many = bool(getattr(job.dataset, "__getitems__", None))
            self._trouble = None
            self._renewals += 1

    def rest(self) -> None:
        self.slots.rest()

    def close(self) -> None:
        if os.getpid() != self.owner:
            # In a forked child nobody will ever let go of a lock that a worker held.
            return
        with self._changed:
            self._closed = True
            self._open.clear()
            self._results.clear()
            self._changed.notify_all()
        end = time.monotonic() + 0.5
        for thread in self._threads:
            if thread is not threading.current_thread():
                # A sample that takes longer is left to end by itself.
                thread.join(max(0, end - time.monotonic()))
        self.slots.close()
