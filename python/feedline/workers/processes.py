"""Workers that are processes: forked from a server, spawned, or forked from the program."""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import os
import pickle
import select
import signal
import subprocess
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy

from feedline.workers import watch
from feedline.workers.auto import made_for_processes
from feedline.workers.channel import Closed
from feedline.workers.child import FEEDING, MAKING, ROW, WANTED
from feedline.workers.executor import Begin, Result, spans_of
from feedline.workers.failure import WorkerError
from feedline.workers.job import Job, Task, is_stateful
from feedline.workers.launch import how_it_ended, wait_for_child
from feedline.workers.packing import Packed, unpack
from feedline.workers.process import Process
from feedline.workers.slots import Pin, Slot, Slots
from feedline.workers.starter import Starter

# More than any task's number: a worker that sees it as the oldest wanted one makes nothing more.
_NOTHING = 1 << 62
# Seconds that the end of a worker is waited for, when it was killed or its connection has ended.
_END = 2.0
# Seconds that a sample which may hold a lock of multiprocessing has to come to its end; torch's workers have
# as many.
_LEAVE = 5.0


class Processes:
    """Runs tasks in worker processes."""

    name = "processes"

    def __init__(
        self,
        job: Job,
        workers: int,
        prefetch: int,
        base_seed: int,
        method: str = "default",
        pin: Callable[[int, int], Pin] | None = None,
        made: list[Any] | None = None,
    ) -> None:
        """`made` are the first task's, which workers that are forks of the program have by birth."""
        self.workers, self.capacity = workers, max(1, workers * prefetch)
        self.active = workers
        self._prefetch = max(1, prefetch)
        self._job = job
        self.slots = Slots(self.capacity + 2, pin)
        self._slot_numbers: weakref.WeakKeyDictionary[Slot, int] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._sequence = 0
        self._wanted = 0
        self._queue: collections.deque[tuple[int, Task]] = collections.deque()
        self._results: dict[int, Result] = {}
        # How often a task's worker has ended or was stopped; how often one ended before it began.
        self._deaths: collections.Counter[int] = collections.Counter()
        self._false_starts: collections.Counter[int] = collections.Counter()
        self._begin: Begin | None = None
        # Counts the beginnings; what the workers said about this one.
        self._epoch = 0
        self._begins: dict[int, Any] = {}
        self._processes: list[Process] = []
        # Stopped workers whose place another one has: they may still write to their slots.
        self._aside: list[Process] = []
        self._looked, self._patience = watch.clock(), watch.patience()
        self.owner = os.getpid()
        self.restarts = 0
        self.broken: BaseException | None = None
        self._helpless = made_for_processes(job.dataset) is not None
        self._starter = Starter(job, base_seed, method, made)
        try:
            forks = self._starter.prepare()
            self._processes = [self._start(number, forks) for number in range(workers)]
            self._starter.made = None
        except BaseException:
            self.close()
            raise

    def _start(self, number: int, forks: bool | None = None) -> Process:
        process = self._starter.start(number, self._wanted, forks)
        if self._begin is not None:
            self._send_begin(process)
        return process

    @property
    def ready(self) -> int:
        return len(self._results)

    @property
    def starting(self) -> bool:
        return not any(process.ready for process in self._processes)

    def begin(self, begin: Begin) -> None:
        self._begin = begin
        self._epoch += 1
        self._begins.clear()
        for process in self._processes:
            self._send_begin(process)

    def _send_begin(self, process: Process) -> None:
        assert self._begin is not None
        at, begin = process.number, self._begin
        process.answered, process.ended = 0, False
        state = None if begin.states is None else begin.states[at]
        skip = 0 if begin.skips is None else begin.skips[at]
        with contextlib.suppress(Closed):
            process.channel.post(("begin", self._epoch, state, skip, begin.rows, begin.reports))

    def begins(self) -> Mapping[int, Any]:
        while len(self._begins) < len(self._processes) and self.broken is None:
            # A worker that ends meanwhile is replaced by one that says it.
            self._collect(None)
        return self._begins

    def renew(self, job: Job, base_seed: int) -> None:
        # Where it fails, the workers are still there, for a job that can be sent.
        forks = self._starter.renew(job, base_seed)
        self._job = job
        # New workers begin with the next epoch, not with the state that the last one began with.
        self._begin = None
        try:
            if forks or not self._processes:
                self._stop()
                self._processes = [self._start(number, forks) for number in range(self.workers)]
            else:
                self._end(self._aside)
                for process in self._processes:
                    self._starter.give_job(process)
        except BaseException as error:
            # Also where only some have the new job: they would work on two versions of the data set.
            self.broken = WorkerError(f"workers could not be started again: {error}")
            raise
        self._helpless = made_for_processes(job.dataset) is not None

    def rest(self) -> None:
        self.forget()
        self._end(self._aside)
        self.slots.rest()
        if any(process.forked for process in self._processes):
            # The data set is theirs by birth.
            self._stop()
        for process in self._processes:
            process.ready = False
            with contextlib.suppress(Closed):
                process.channel.post(("rest", list(process.slots)))
            process.slots.clear()

    def submit(self, task: Task) -> int:
        sequence = self._sequence
        self._sequence += 1
        self._queue.append((sequence, task))
        self._hand_out()
        return sequence

    def _hand_out(self) -> None:
        """Gives tasks to workers that are ready for them."""
        waiting: list[tuple[int, Task]] = []
        while self._queue:
            sequence, task = self._queue.popleft()
            if task.worker is not None and self._processes[task.worker].ended:
                # A new worker in the place of one that was done would read its part again.
                self._results[sequence] = Result(ended=True)
                continue
            process = self._choose(task)
            if process is None:
                waiting.append((sequence, task))
                if task.worker is None:
                    break
                continue
            try:
                self._give(process, sequence, task)
            except OSError as error:
                # The task is nobody's now: whoever asks again must not get the next batch instead.
                self.broken = error
                raise
        self._queue.extendleft(reversed(waiting))

    def _choose(self, task: Task) -> Process | None:
        if task.worker is not None:
            process = self._processes[task.worker]
            # Its turn is fixed; what it cannot take yet waits in its connection.
            return process if process.ready else None
        active = self._processes[: self.active]
        ready = [one for one in active if one.ready and len(one.open) < self._prefetch]
        return min(ready, key=lambda one: len(one.open), default=None)

    def _are_busy(self) -> bool:
        """Whether a free slot will wait before it is written to."""
        return all(one.open for one in self._processes[: self.active])

    def adjust(self, active: int) -> None:
        """From now on so many workers get tasks that any of them may do; the others rest. No batch
        changes by it."""
        self.active = max(1, min(active, self.workers))
        self._hand_out()

    def _give(self, process: Process, sequence: int, task: Task) -> None:
        slot = self.slots.take(lambda one: self._slot_numbers.get(one) in process.slots)
        number = self._slot_numbers.get(slot)
        if number is None:
            number = self._slot_numbers[slot] = next(self._numbers)
        gone = [at for at, one in process.slots.items() if one.fd < 0]
        for at in gone:
            del process.slots[at]
        fds = () if number in process.slots else (slot.fd,)
        process.slots[number] = slot
        process.open[sequence] = task, slot
        has_made = task.made is not None and process.made is task.made
        # It lets them go with its first task, whichever that is.
        process.made = None
        kept, task.note, task.made = task.note, None, None
        try:
            if gone:
                process.channel.post(("drop", gone))
            process.channel.post(("task", sequence, task, number, has_made), fds)
            process.drawn += task.worker is not None
        except Closed:
            # It has ended and was given nothing; `wait` finds out what happened to it.
            pass
        finally:
            task.note = kept

    def take(self, sequence: int) -> Result | None:
        self._collect(0)
        return self._results.pop(sequence, None)

    def wait(self, seconds: float | None) -> bool:
        return self._collect(seconds)

    def _collect(self, seconds: float | None) -> bool:
        if os.getpid() != self.owner:
            raise WorkerError("the workers belong to another process: make a new loader after a fork")
        if self.broken is not None:
            raise self.broken
        ends = {process.channel.fileno(): process for process in (*self._processes, *self._aside)}
        poll = select.poll()
        for fd, process in ends.items():
            poll.register(fd, select.POLLIN | (select.POLLOUT if process.channel.is_full else 0))
        most = max(0.0, self._looked + watch.INTERVAL - watch.clock())
        most = most if seconds is None else min(seconds, most)
        happened = False
        events = poll.poll(0)
        if not events and most > 0:
            if self._are_busy():
                self.slots.tidy()
            # Rounded up: half a millisecond must not be many looks at nothing.
            events = poll.poll(math.ceil(most * 1000))
        for fd, event in events:
            happened = True
            process = ends[fd]
            try:
                if event & select.POLLOUT:
                    with contextlib.suppress(Closed):
                        process.channel.flush()
                while (received := process.channel.poll()) is not None:
                    self._hear(process, *received[0])
            except Closed:
                self._bury(process)
        news = self._look() if watch.clock() - self._looked >= watch.INTERVAL else []
        if happened or news:
            self._hand_out()
        for text in news:
            # Last, as a program may turn warnings into errors.
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        return happened

    def _look(self) -> list[str]:
        """Looks after the workers, and returns what the program should hear of them."""
        now = watch.clock()
        # While the program itself was stopped, nobody is late.
        passed, self._looked = min(now - self._looked, 2 * watch.INTERVAL), now
        news: list[str] = []
        for process in list(self._processes):
            if self._processes[process.number] is not process:
                continue
            stopped = process.sight().is_stopped()
            if stopped and (bound := self._bound(process)) is None:
                news.append(self._set_aside(process))
                continue
            progress = int(process.status[MAKING]), int(process.status[ROW]), process.ready, len(process.open)
            if not stopped:
                process.stop_named = False
            if progress != process.progress or (process.ready and not process.open):
                process.still, process.slow_named = 0.0, False
            elif stopped:
                if not process.stop_named:
                    cause = f"{bound}, so its batches wait until it is continued: kill -CONT {process.pid}"
                    news.append(f"{self._who(process)} is stopped{self._where(process)[0]}; {cause}")
                process.stop_named = True
            else:
                process.still += passed
                if process.still >= self._patience and not process.slow_named:
                    process.slow_named = True
                    news.append(self._slow(process))
            process.progress = progress
        return news

    def _slow(self, process: Process) -> str:
        doing = self._where(process)[0] or " while it was taking its tasks"
        return (
            f"{self._who(process)} has made no progress for {process.still:.0f} s{doing}; it is waited for. "
            f"If it hangs, `py-spy dump --pid {process.pid or process.sight().pid}` shows where. "
            "FEEDLINE_STALL_WARNING sets after how many seconds this is said (0: never); the timeout of "
            "feedline.torch.DataLoader ends the wait"
        )

    def _bound(self, process: Process) -> str | None:
        """Why no other worker can make what this one was to make, if none can."""
        if self._job.kind == "iterable":
            over = process.ended or not process.has_begun()
            return None if over else "a stream goes on only in the worker that reads it"
        if process.has_begun() and is_stateful(self._job.dataset):
            return "each worker has its own state of the data set"
        if process.drawn:
            return "each worker has its own random numbers (random='worker')"
        return None

    def _set_aside(self, process: Process) -> str:
        """Gives a stopped worker's place to another one. Its slots stay its own until it has answered
        or is dead, as it may be continued at any time."""
        where, sample = self._where(process)
        text, server = f"{self._who(process)} is stopped{where}", process.server
        if process.pid is None and server is not None:
            # The server is stopped, and all that it was asked to fork waits with it.
            error = WorkerError(text, pid=server.process)
            waiting = [one for one in self._processes if one.server is server and one.pid is None]
            self._end(waiting)
            server.replace()
            for one in waiting:
                self._exchange(one, {}, error, None)
            return f"{text}. Workers are forked from a new one."
        process.aside = True
        self._aside.append(process)
        # Continued, it leaves what it was at, answers, and ends.
        process.status[WANTED] = _NOTHING
        with contextlib.suppress(Closed):
            process.channel.post(("leave",))
        if len(self._aside) > self.workers:
            self._aside[0].sight().kill()
        error = WorkerError(text, pid=process.pid, sample=sample)
        again = self._exchange(process, dict(process.open), error, process.making())
        end = _AGAIN if again else _REPLACED
        return f"{text}. {end} Continued (kill -CONT {process.pid}), the old one ends."

    def _hear(self, process: Process, kind: str, *details: Any) -> None:
        if kind == "ready":
            process.pid, process.ready, process.worked = details[0], True, True
            process.sight()
            if not process.aside:
                del self._false_starts[process.number]
            return
        if kind == "begun":
            epoch, state = details
            if epoch == self._epoch and not process.aside:
                self._begins[process.number] = pickle.loads(state)
            return
        sequence = details[0]
        _, slot = process.open.pop(sequence)
        late = sequence < self._wanted
        process.answered += not late
        # An end that is reported late is the end of an earlier epoch.
        process.ended = process.ended or (kind == "ended" and not late)
        if process.aside or late or kind == "stale":
            # One that was stopped comes late: somebody else has made this batch, with the same bytes.
            self.slots.give_back(slot)
            return
        packed: Packed = details[1]
        try:
            if packed.places:
                memory = self.slots.lend(slot, packed.size)
            else:
                memory = numpy.empty(0, numpy.uint8)
                self.slots.give_back(slot)
            value, state = unpack(packed, memory)
        except Exception as error:
            # The batch is answered with it: whoever asks for it would wait for ever else.
            error.__cause__ = WorkerError(f"what worker {process.number} made cannot be read here")
            self._results[sequence] = Result(error=error)
            return
        if kind == "made":
            spans = spans_of(process.number, details[2])
            self._results[sequence] = Result(value, state=state, times=details[2], spans=spans)
        elif kind == "ended":
            self._results[sequence] = Result(ended=True, state=state)
        else:
            self._results[sequence] = Result(error=value.exception())

    def _bury(self, process: Process) -> None:
        """Names a worker that has ended, and puts another one in its place if that helps."""
        code = self._exit_code(process)
        process.dead = code is not None
        where, sample = self._where(process)
        text = f"{self._who(process)} {how_it_ended(code)}{where}"
        number = None if code is None or code >= 0 else -code
        if number == signal.SIGKILL and not (process.pid is None and self._is_replaced(process)):
            text += (
                "; the kernel kills like this when memory runs out: try fewer workers, a smaller "
                "prefetch_factor or a smaller batch"
            )
        error = WorkerError(text, pid=process.pid, signal=number, exit_code=code, sample=sample)
        lost, making, bound = dict(process.open), process.making(), self._bound(process)
        if process.pid is None and process.server is not None:
            # It has closed its connections, but may not be known to have ended: nobody asks it again.
            process.server.replace()
        self._end([process])
        if process.aside:
            self._aside.remove(process)
            return
        again = self._exchange(process, lost, error, making, bound)
        if again or not process.worked:
            # Last, as a program may turn warnings into errors.
            warnings.warn(f"{error}. {_AGAIN if again else _REPLACED}", RuntimeWarning, stacklevel=4)

    def _exchange(
        self,
        process: Process,
        lost: dict[int, tuple[Task, Slot]],
        error: WorkerError,
        making: int | None,
        bound: str | None = None,
    ) -> bool:
        """Puts another worker in the place of one that ended or is stopped; whether some of its batches
        are made again. A batch is made again once: what it does to workers it would do to all."""
        wanted = [
            (sequence, task) for sequence, (task, _) in sorted(lost.items()) if sequence >= self._wanted
        ]
        if not process.worked:
            self._false_starts[process.number] += 1
        if bound is not None or self._false_starts[process.number] > 1:
            # A new one would begin from the start, or not at all.
            for at, _ in wanted:
                self._results[at] = Result(error=error)
            self.broken = error
            raise error
        guilty = making if making is not None else min(lost, default=None)
        if guilty is not None:
            self._deaths[guilty] += 1
            if self._deaths[guilty] > 1 and guilty >= self._wanted:
                self._results[guilty] = Result(error=error)
                wanted = [(at, task) for at, task in wanted if at != guilty]
        self._queue.extendleft(reversed(wanted))
        self.restarts += 1
        try:
            self._processes[process.number] = self._start(process.number)
            self._processes[process.number].ended = process.ended
        except BaseException as cause:
            # Also a Ctrl-C: the place in the list has no worker now.
            reason = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
            self.broken = WorkerError(f"{error}, and no other worker could be started: {reason}")
            if isinstance(cause, Exception):
                raise self.broken from cause
            raise
        return bool(wanted) and not process.ended

    @staticmethod
    def _is_replaced(process: Process) -> bool:
        """Whether the server that was to fork it was ended for another loader's workers."""
        return process.server is not None and process.server.replaced

    def _exit_code(self, process: Process) -> int | None:
        if process.spawned is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.spawned.wait(_END)
        elif process.server is not None:
            # Its pid is the server's while there is no worker.
            forked = process.sight().pid == process.pid
            server = process.server
            return server.exit_code(process.sight().pid, _END) if forked else server.ended
        elif process.pid is not None:
            return wait_for_child(process.pid, _END)
        return None

    def _who(self, process: Process) -> str:
        if process.pid is None and process.server is not None:
            return f"the process that workers are forked from (pid {process.server.process})"
        return f"worker {process.number} (pid {process.pid})"

    def _where(self, process: Process) -> tuple[str, Any]:
        """What a worker is at, in words, and the sample if it is known."""
        sequence = process.making()
        if sequence is None:
            # A server that is stopped or gone is named in its worker's place.
            whom = f"worker {process.number}" if process.pid is None and process.server is not None else "it"
            return ("" if process.ready else f" before {whom} could begin"), None
        task, sample = process.open[sequence][0], None
        text = f" while it was making batch {task.number}"
        if self._job.kind == "map":
            with contextlib.suppress(Exception):
                sample = task.index[int(process.status[ROW])] if self._job.batched else task.index
                text += f", sample {sample!r}"
        return text, sample

    def withdraw(self, sequence: int) -> bool:
        if self._helpless:
            return False
        if self.restarts or any(process.worked or process.forked for process in self._processes):
            # What has killed a worker must not be tried here; one that takes a renewed data set over is
            # soon back; and a fork is there at once, while what a sample opens here would be open in it.
            return False
        for at, (one, _) in enumerate(self._queue):
            if one == sequence:
                del self._queue[at]
                return True
        return False

    def forget(self) -> None:
        self._wanted = self._sequence
        for process in self._processes:
            process.status[WANTED] = self._wanted
        self._queue.clear()
        self._results.clear()

    def _end(self, processes: list[Process]) -> None:
        """Ends workers, whatever they are at and whether they are stopped or not, in bounded time."""
        self._let_them_leave([one for one in processes if self._helpless or one.status[FEEDING]])
        for process in processes:
            process.channel.close()
            sight = process.sight()
            if sight.pid == process.pid and not process.dead:
                # Closing the connection ends it too; this also ends code that never returns.
                sight.kill()
        end = time.monotonic() + _END
        for process in processes:
            left = max(0.0, end - time.monotonic())
            if process.dead:
                # Its exit code was collected: a second wait for it would last until `end`.
                pass
            elif process.spawned is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.spawned.wait(left)
            elif process.server is None and process.pid is not None:
                wait_for_child(process.pid, left)
            elif process.server is not None and process.pid is not None:
                with contextlib.suppress(OSError):
                    process.server.exit_code(process.pid, left)
            gone = process.dead or process.sight().is_gone()
            for _, slot in process.open.values():
                # What may still write to a slot has it for good.
                if gone:
                    self.slots.give_back(slot)
                else:
                    slot.close()
            process.open.clear()
            process.page.close()
        if processes is self._aside:
            self._aside = []

    def _let_them_leave(self, processes: list[Process]) -> None:
        """Killed in a sample, a worker would hold a lock of multiprocessing for ever, a queue's too; and what
        was put into a queue is on its way in a thread of the worker. They end by themselves after the
        sample that they are at."""
        # The sight comes first: it finds out whether there is a process by now.
        waiting = [one for one in processes if not one.dead and one.sight().pid == one.pid]
        for process in waiting:
            process.status[WANTED] = _NOTHING
            with contextlib.suppress(Closed, OSError):
                process.channel.post(("leave",))
        end = time.monotonic() + _LEAVE
        while waiting and time.monotonic() < end:
            for process in waiting:
                with contextlib.suppress(Closed, OSError):
                    process.channel.flush()
                    # So that none waits for room to answer.
                    while process.channel.poll() is not None:
                        pass
            waiting = [one for one in waiting if not (one.sight().is_gone() or one.sight().is_stopped())]
            time.sleep(0.001)

    def _stop(self) -> None:
        self._end([*self._processes, *self._aside])
        self._processes, self._aside = [], []

    def close(self) -> None:
        if os.getpid() == self.owner:
            # Slots that come back are freed.
            self.slots.close()
            self._stop()
        self._results.clear()
        self._queue.clear()
        self.slots.close()
        self._starter.close()


_AGAIN = "Its batch is made again by a new worker."
_REPLACED = "A new worker takes its place."
