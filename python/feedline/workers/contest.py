"""Threads and processes in turn, where only measuring says which of them makes more samples.

How often one sample holds the interpreter's lock says little in the middle: what waits for the lock may
as well wait for a disk, and what a sample gives to threads of its own runs in two places. So both make
batches for a moment, the better one goes on, and a few times more in the first epoch the other one has
another turn. Both make the same batches, so which one made which is nobody's concern.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from feedline.workers.executor import Begin, Result
from feedline.workers.failure import WorkerError
from feedline.workers.job import Job, Task
from feedline.workers.processes import Processes
from feedline.workers.stand_in import shallow_copy
from feedline.workers.threads import Threads

# Threads also take the lock from the program's own code: with no more than this they are not worth it.
_GAIN = 1.1
# A turn is over after so many batches and seconds of each worker, or fewer batches that take long.
_BATCHES, _SECONDS, _FEW, _LONG = 4, 0.25, 2, 2.0
# The other one's next turns come after so many turns of the better one.
_GAPS = (16, 64, 256)
# Seconds between two looks where two executors have work.
_LOOK = 0.005


class Comparison:
    """Which of the two is better, by what their batches took. It looks at no clock."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.current = "threads"
        self.rates: dict[str, float] = {}
        """Samples per second of all workers of each, in its last turn."""
        self.settled = False
        self._gaps = list(_GAPS)
        # Turns that the better one has before the other's next, which is on trial then.
        self._left = 0
        self._on_trial = False
        self._batches = self._rows = 0
        self._seconds = 0.0

    def made(self, name: str, rows: int, seconds: float) -> bool:
        """A batch that only `name` worked on took its workers so many seconds in all; whether that
        ended a turn."""
        if self.settled or name != self.current:
            return False
        self._batches += 1
        self._rows += rows
        self._seconds += seconds
        each = self._seconds / self._workers
        many = self._batches >= max(_BATCHES, self._workers) and each >= _SECONDS
        if not (many or (self._batches >= _FEW and each >= _LONG)):
            return False
        self._end_turn(name, self._rows / each)
        self._batches = self._rows = 0
        self._seconds = 0.0
        return True

    def _end_turn(self, name: str, rate: float) -> None:
        self.rates[name] = rate
        other = "processes" if name == "threads" else "threads"
        if self._on_trial:
            self._on_trial, self.current = False, self.better
            self.settled = not self._gaps
            self._left = self._gaps.pop(0) if self._gaps else 0
            return
        self._left -= 1
        # Slower than the other one has ever been seen: the data have changed.
        if self._left <= 0 or rate * _GAIN < self.rates.get(other, 0.0):
            self.current, self._on_trial = other, True

    @property
    def better(self) -> str:
        """The one to go on with."""
        if len(self.rates) < 2:
            return self.current
        return "threads" if self.rates["threads"] > self.rates["processes"] * _GAIN else "processes"

    def settle(self) -> bool:
        """Ends the turns, if both have had one; whether that was now."""
        if self.settled or len(self.rates) < 2:
            return False
        self.settled, self.current = True, self.better
        return True

    def __str__(self) -> str:
        return " and ".join(f"{rate:.0f} samples/s with {name}" for name, rate in sorted(self.rates.items()))


class Contest:
    """Runs tasks in threads or in processes, whichever it is the turn of."""

    def __init__(self, threads: Threads, processes: Processes, report: Callable[[Comparison], None]) -> None:
        # Of each until it has lost.
        self._both: dict[str, Threads | Processes] = {"threads": threads, "processes": processes}
        self.comparison = Comparison(threads.workers)
        self._report = report
        self.workers = threads.workers
        self.owner = os.getpid()
        self.broken: BaseException | None = None
        self._sequence = 0
        self._epochs = 0
        # Who has a task, its number there, how many samples it has, and whether nobody else worked meanwhile.
        self._open: dict[int, tuple[str, int, int, bool]] = {}

    @property
    def name(self) -> str:
        """Whose turn it is."""
        return self.comparison.current if self.comparison.current in self._both else next(iter(self._both))

    @staticmethod
    def job_of_threads(job: Job) -> Job:
        """What threads open must not stay in the data set that is sent to processes."""
        return dataclasses.replace(job, dataset=shallow_copy(job.dataset))

    @property
    def _now(self) -> Threads | Processes:
        processes = self._both.get("processes")
        if self.name == "processes" and processes is not None and processes.starting:
            # Until they are ready, threads do their work.
            return self._both.get("threads", processes)
        return self._both[self.name]

    @property
    def winner(self) -> Threads | Processes | None:
        """The only one that is left."""
        return next(iter(self._both.values())) if len(self._both) == 1 else None

    @property
    def capacity(self) -> int:
        """Tasks that may be under way at once."""
        return self._now.capacity

    @property
    def ready(self) -> int:
        """Results that nobody has taken yet."""
        return sum(one.ready for one in self._both.values())

    @property
    def starting(self) -> bool:
        """Whether no worker has begun."""
        return self._now.starting

    @property
    def restarts(self) -> int:
        """Workers that took the place of others."""
        return sum(getattr(one, "restarts", 0) for one in self._both.values())

    def begin(self, begin: Begin) -> None:
        self._epochs += 1
        if self._epochs > 1:
            self.settle()
        for one in self._both.values():
            one.begin(begin)

    def settle(self) -> None:
        """Ends the turns, if both have had one. The better one goes on when the other's batches are done."""
        if self.comparison.settle():
            self._report(self.comparison)
        self._dismiss()

    def begins(self) -> Mapping[int, Any]:
        return self._now.begins()

    def submit(self, task: Task) -> int:
        sequence, now = self._sequence, self._now
        self._sequence += 1
        alone = all(self._both[who] is now for who, *_ in self._open.values())
        rows = len(task.index) if hasattr(task.index, "__len__") else 1
        # What the trial has made costs nothing any more.
        counts = alone and not task.made
        if not alone:
            self._open = {
                at: (*one[:3], one[3] and self._both[one[0]] is now) for at, one in self._open.items()
            }
        self._open[sequence] = now.name, now.submit(task), rows, counts
        return sequence

    def take(self, sequence: int) -> Result | None:
        if "processes" in self._both and all(who != "processes" for who, *_ in self._open.values()):
            # Here, where nothing is under way that a warning as an error could lose.
            self._look_after_processes()
        name, inner, rows, counts = self._open[sequence]
        try:
            result = self._both[name].take(inner)
        except BaseException as error:
            self.broken = self._both[name].broken
            raise error
        if result is None:
            return None
        del self._open[sequence]
        if counts and result.times is not None:
            times = result.times
            if self.comparison.made(name, rows, times.code + times.join + times.hand_over):
                self._report(self.comparison)
        self._dismiss()
        return result

    def _dismiss(self) -> None:
        """Ends the one that has lost, when all that it was given is done."""
        if not self.comparison.settled or len(self._both) == 1:
            return
        loser = "threads" if self.comparison.current == "processes" else "processes"
        if all(who != loser for who, *_ in self._open.values()):
            self._both.pop(loser).close()

    def wait(self, seconds: float | None) -> bool:
        busy = {who for who, *_ in self._open.values()}
        if len(self._both) == 1 or busy == {"processes"}:
            return self._both["processes" if "processes" in self._both else "threads"].wait(seconds)
        # Threads have work, and processes have some too or may have news of their start.
        self._look_after_processes()
        most = _LOOK if "processes" in self._both else seconds
        return self._both["threads"].wait(most if seconds is None else min(seconds, most or seconds))

    def _look_after_processes(self) -> None:
        processes = self._both["processes"]
        try:
            processes.wait(0)
        except WorkerError:
            if any(who == "processes" for who, *_ in self._open.values()):
                self.broken = processes.broken
                raise
            # They could not be started, and nothing is lost by it.
            self._both.pop("processes").close()
            self.comparison.current, self.comparison.settled = "threads", True
            self._report(self.comparison)

    def withdraw(self, sequence: int) -> bool:
        return False

    def forget(self) -> None:
        self._open.clear()
        for one in self._both.values():
            one.forget()
        self._dismiss()

    def renew(self, job: Job, base_seed: int) -> None:
        # Processes first: where they refuse the job and keep the old one, threads keep it too.
        for name, one in sorted(self._both.items()):
            try:
                one.renew(self.job_of_threads(job) if name == "threads" else job, base_seed)
            except BaseException:
                self.broken = one.broken
                raise

    def rest(self) -> None:
        for one in self._both.values():
            one.rest()

    def close(self) -> None:
        for one in self._both.values():
            one.close()
