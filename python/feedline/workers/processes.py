"""Workers that are processes: forked from a server, spawned, or forked from the program."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy

from feedline.workers.channel import Channel, Closed
from feedline.workers.child import MAKING, PAGE, ROW, WANTED, Worker, start
from feedline.workers.executor import Begin, Result, spans_of
from feedline.workers.failure import WorkerError
from feedline.workers.job import Job, Task, is_stateful
from feedline.workers.packing import Packed, pack, unpack
from feedline.workers.server import Server, launch
from feedline.workers.slots import Pin, Slot, Slots


class _Process:
    """The consumer's view of one worker."""

    def __init__(self, number: int, end: Channel) -> None:
        self.number, self.channel = number, end
        self.pid: int | None = None
        self.token: int | None = None
        self.server: Server | None = None
        self.spawned: subprocess.Popen[bytes] | None = None
        self.ready = False
        self.worked = False
        # Tasks that it was given in this epoch.
        self.given = 0
        self.slots: dict[int, Slot] = {}
        self.open: dict[int, tuple[Task, Slot]] = {}
        self.page = Slot()
        self.page.map(PAGE * 8)
        self.status = self.page.view(0, PAGE * 8).view(numpy.int64)


class Processes:
    """Runs tasks in worker processes."""

    name = "processes"

    def __init__(
        self,
        job: Job,
        workers: int,
        prefetch: int,
        base_seed: int,
        method: str = "forkserver",
        pin: Callable[[int, int], Pin] | None = None,
    ) -> None:
        self.workers, self.capacity, self.method = workers, max(1, workers * prefetch), method
        self.active = workers
        self._prefetch = max(1, prefetch)
        self._job, self._base_seed = job, base_seed
        self.slots = Slots(self.capacity + 2, pin)
        self._slot_numbers: weakref.WeakKeyDictionary[Slot, int] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._sequence = 0
        self._wanted = 0
        self._queue: collections.deque[tuple[int, Task]] = collections.deque()
        self._results: dict[int, Result] = {}
        self._deaths: collections.Counter[int] = collections.Counter()
        self._begin: Begin | None = None
        self._processes: list[_Process] = []
        self.owner = os.getpid()
        self.restarts = 0
        self.broken: BaseException | None = None
        self._packed: tuple[Packed, Slot] | None = None
        try:
            if method != "fork":
                self._pack()
            self._processes = [self._start(number) for number in range(workers)]
        except BaseException:
            self.close()
            raise

    def _pack(self) -> None:
        slot = Slot()
        try:
            packed = pack(self._job, slot, code=True)
        except Exception as error:
            slot.close()
            raise WorkerError(
                f"the data set cannot be sent to worker processes ({type(error).__name__}: {error}); "
                'make what it holds picklable, open files in the worker, or use executor="threads"'
            ) from error
        if self._packed is not None:
            self._packed[1].close()
        self._packed = packed, slot

    def _start(self, number: int) -> _Process:
        channel, theirs = Channel.pair()
        process = _Process(number, channel)
        process.status[WANTED] = self._wanted
        try:
            if self.method == "fork":
                self._fork(process, theirs)
            elif self.method == "spawn":
                process.spawned = launch("from feedline.workers.child import main; main", theirs)
                process.pid = process.spawned.pid
            else:
                server = Server.get()
                server.load(_modules(self._job))
                if server.threads > 1:
                    # A module that it imported has started threads, which a fork would not survive.
                    process.spawned = launch("from feedline.workers.child import main; main", theirs)
                    process.pid = process.spawned.pid
                else:
                    process.server, process.token = server, server.fork(theirs)
        except Closed:
            code = None if process.server is None else process.server.ended
            raise WorkerError(
                f"the process that workers are forked from has ended (code {code})", exit_code=code
            ) from None
        finally:
            theirs.close()
        if self.method != "fork":
            self._give_job(process)
        if self._begin is not None:
            self._send_begin(process)
        return process

    def _give_job(self, process: _Process) -> None:
        assert self._packed is not None
        packed, slot = self._packed
        around = {
            "path": list(sys.path),
            "argv": list(sys.argv),
            "environ": dict(os.environ),
            "folder": os.getcwd(),
        }
        process.ready = False
        with contextlib.suppress(Closed):
            message = ("job", packed, process.number, self._base_seed, around)
            process.channel.send(message, (slot.fd, process.page.fd))

    def _fork(self, process: _Process, theirs: socket.socket) -> None:
        pid = os.fork()
        if pid:
            process.pid = pid
            return
        job, seed, page = self._job, self._base_seed, process.page

        def work(worker: Worker) -> None:
            worker.take_job(job, process.number, seed, page)

        start(theirs, work)

    @property
    def ready(self) -> int:
        return len(self._results)

    def begin(self, begin: Begin) -> None:
        self._begin = begin
        for process in self._processes:
            self._send_begin(process)

    def _send_begin(self, process: _Process) -> None:
        assert self._begin is not None
        at, begin = process.number, self._begin
        process.given = 0
        state = None if begin.states is None else begin.states[at]
        skip = 0 if begin.skips is None else begin.skips[at]
        with contextlib.suppress(Closed):
            process.channel.send(("begin", state, skip, begin.rows))

    def renew(self, job: Job, base_seed: int) -> None:
        self._job, self._base_seed = job, base_seed
        if self.method == "fork":
            self._stop()
            self._processes = [self._start(number) for number in range(self.workers)]
            return
        self._pack()
        for process in self._processes:
            self._give_job(process)

    def rest(self) -> None:
        self.forget()
        self.slots.rest()
        for process in self._processes:
            process.ready = False
            with contextlib.suppress(Closed):
                process.channel.send(("rest", list(process.slots)))
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
            process = self._choose(task)
            if process is None:
                waiting.append((sequence, task))
                if task.worker is None:
                    break
                continue
            self._give(process, sequence, task)
        self._queue.extendleft(reversed(waiting))

    def _choose(self, task: Task) -> _Process | None:
        if task.worker is not None:
            process = self._processes[task.worker]
            # Its turn is fixed; what it cannot take yet waits in its connection.
            return process if process.ready else None
        active = self._processes[: self.active]
        ready = [one for one in active if one.ready and len(one.open) < self._prefetch]
        return min(ready, key=lambda one: len(one.open), default=None)

    def adjust(self, active: int) -> None:
        """From now on so many workers get tasks that any of them may do; the others rest. No batch
        changes by it."""
        self.active = max(1, min(active, self.workers))
        self._hand_out()

    def _give(self, process: _Process, sequence: int, task: Task) -> None:
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
        process.given += 1
        kept, task.note, task.made = task.note, None, None
        try:
            if gone:
                process.channel.send(("drop", gone))
            process.channel.send(("task", sequence, task, number), fds)
        except Closed:
            # `wait` finds out what happened to it.
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
        ends = {process.channel.fileno(): process for process in self._processes}
        poll = select.poll()
        for fd in ends:
            poll.register(fd, select.POLLIN)
        happened = False
        for fd, _ in poll.poll(None if seconds is None else seconds * 1000):
            happened = True
            process = ends[fd]
            try:
                while (received := process.channel.poll()) is not None:
                    self._hear(process, *received[0])
            except Closed:
                self._bury(process)
        if happened:
            self._hand_out()
        return happened

    def _hear(self, process: _Process, kind: str, *details: Any) -> None:
        if kind == "ready":
            process.pid, process.ready, process.worked = details[0], True, True
            return
        sequence = details[0]
        _, slot = process.open.pop(sequence)
        if sequence < self._wanted or kind == "stale":
            self.slots.give_back(slot)
            return
        packed: Packed = details[1]
        if packed.places:
            memory = self.slots.lend(slot, packed.size)
        else:
            memory = numpy.empty(0, numpy.uint8)
            self.slots.give_back(slot)
        try:
            value, state = unpack(packed, memory)
        except Exception as error:
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

    def _bury(self, process: _Process) -> None:
        """Names a worker that has ended, and puts another one in its place if that helps."""
        code = self._exit_code(process)
        making = int(process.status[MAKING])
        busy = process.open.get(making) if process.ready else None
        error = self._obituary(process, code, busy)
        process.channel.close()
        lost = sorted(process.open.items())
        for _, (_, slot) in lost:
            self.slots.give_back(slot)
        process.open.clear()
        guilty = making if busy is not None else (lost[0][0] if lost else -1)
        self._deaths[guilty] += 1
        can_repeat = self._job.kind == "map" and not any(task.snapshot for _, (task, _) in lost)
        wanted = [(sequence, task) for sequence, (task, _) in lost if sequence >= self._wanted]
        if not process.worked:
            # It never came to work, and another one would not either.
            self.broken = error
            raise error
        if wanted and (not can_repeat or self._deaths[guilty] > 1):
            for sequence, _ in wanted:
                self._results[sequence] = Result(error=error)
        if process.given and (self._job.kind == "iterable" or is_stateful(self._job.dataset)):
            # A new one would begin from the start: what is lost cannot be told from what was seen.
            self.broken = error
            raise error
        repeat = wanted and can_repeat and self._deaths[guilty] <= 1
        if repeat:
            self._queue.extendleft(reversed(wanted))
        self.restarts += 1
        self._processes[process.number] = self._start(process.number)
        if repeat:
            # Last, as a program may turn warnings into errors.
            warnings.warn(f"{error}. Its batch is made again by a new worker.", RuntimeWarning, stacklevel=4)

    def _exit_code(self, process: _Process) -> int | None:
        if process.spawned is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.spawned.wait(2)
        elif process.server is not None and process.token is not None:
            server = process.server
            pid = process.pid or server.pid(process.token)
            return server.ended if pid is None else server.exit_code(pid, 2)
        elif process.pid is not None:
            with contextlib.suppress(ChildProcessError):
                return os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        return None

    def _obituary(self, process: _Process, code: int | None, busy: tuple[Task, Slot] | None) -> WorkerError:
        text = f"worker {process.number} (pid {process.pid}) "
        number = None
        if code is None:
            text += "ended"
        elif code < 0:
            number = -code
            with contextlib.suppress(ValueError):
                text += f"was killed by signal {number} ({signal.Signals(number).name})"
        else:
            text += f"exited with code {code}"
        sample = None
        if busy is not None:
            task, row = busy[0], int(process.status[ROW])
            text += f" while it was making batch {task.number}"
            if self._job.kind == "map":
                with contextlib.suppress(Exception):
                    sample = task.index[row] if self._job.batched else task.index
                    text += f", sample {sample!r}"
        elif not process.ready:
            text += " before it could begin"
        if number == signal.SIGKILL:
            text += (
                "; the kernel kills like this when memory runs out: try fewer workers, a smaller "
                "prefetch_factor or a smaller batch"
            )
        return WorkerError(text, pid=process.pid, signal=number, exit_code=code, sample=sample)

    def withdraw(self, sequence: int) -> bool:
        if self.restarts or any(process.worked for process in self._processes):
            # What has killed a worker must not be tried here; and one that takes a renewed data
            # set over is soon back.
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

    def _stop(self) -> None:
        for process in self._processes:
            server = process.server
            process.channel.close()
            pid = process.pid
            if pid is None and process.token is not None and server is not None:
                pid = server.pid(process.token)
            if pid is not None:
                # Closing the connection ends it too; this also ends code that never returns.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if process.spawned is not None:
                process.spawned.wait()
            elif process.token is None and process.pid is not None:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)
            elif pid is not None and server is not None:
                with contextlib.suppress(OSError):
                    server.exit_code(pid, 1)
            for _, slot in process.open.values():
                slot.close()
            process.page.close()
        self._processes = []

    def close(self) -> None:
        if os.getpid() == self.owner:
            self._stop()
        self._results.clear()
        self._queue.clear()
        self.slots.close()
        if self._packed is not None:
            self._packed[1].close()
            self._packed = None


def _modules(job: Job) -> set[str]:
    """The modules that the data set's classes and functions come from."""
    found = {"numpy"}
    if job.torch:
        found.update(("torch", "torch.utils.data", "torch.utils.data._utils.worker"))
    seen: set[int] = set()
    todo: list[tuple[Any, int]] = [(job.dataset, 0), (job.collate, 0), (job.init, 0)]
    while todo:
        thing, depth = todo.pop()
        if id(thing) in seen or depth > 5 or len(seen) > 2000:
            continue
        seen.add(id(thing))
        kind = thing if isinstance(thing, type | types.FunctionType) else type(thing)
        module = getattr(kind, "__module__", None)
        if isinstance(module, str) and module in sys.modules:
            found.add(module)
        if isinstance(thing, list | tuple):
            todo.extend((one, depth + 1) for one in thing[:50])
        elif isinstance(thing, dict):
            todo.extend((one, depth + 1) for one in list(thing.values())[:50])
        elif not isinstance(thing, type):
            todo.extend((one, depth + 1) for one in list(getattr(thing, "__dict__", {}).values()))
    return {name for name in found if name not in ("__main__", "builtins")}
