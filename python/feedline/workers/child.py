"""A worker process: reads tasks from its connection, writes batches into slots."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import cloudpickle
import numpy

from feedline import _native
from feedline.workers import parcel, torch_side
from feedline.workers.channel import Channel, Closed
from feedline.workers.failure import Failure
from feedline.workers.job import Ended, Job, Maker, Task
from feedline.workers.packing import pack
from feedline.workers.seeds import seed_all
from feedline.workers.slots import Slot

# The page that both processes see: the row that is being made, the oldest task that is still
# wanted, the task that is being made, and whether threads still write to multiprocessing's queues.
ROW, WANTED, MAKING, FEEDING = 0, 1, 2, 3
PAGE = 64


class Stale(BaseException):
    """The consumer no longer wants this batch. Not an Exception: user code must not catch it."""


def run(end: socket.socket, first: Callable[[Worker], None] | None = None) -> None:
    """Works until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(end)
    channel.keep()
    _end_with(end)
    # The server's objects are shared with it as long as nobody writes to them.
    gc.freeze()
    worker = Worker(channel)
    try:
        if first is not None:
            first(worker)
        while True:
            message, fds = channel.receive()
            getattr(worker, f"on_{message[0]}")(*message[1:], fds=fds)
    except Closed:
        return


def _end_with(end: socket.socket) -> None:
    """Ends this process when the consumer is gone, also in the middle of a sample."""

    def watch() -> None:
        poll = select.poll()
        poll.register(end, select.POLLRDHUP)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, name="feedline-watch", daemon=True).start()


class Worker:
    """One worker's state, with a method for each message."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._slots: dict[int, Slot] = {}
        self._page = numpy.zeros(PAGE, numpy.int64).data
        self._maker: Maker | None = None
        self._trouble: BaseException | None = None
        self._worker = 0
        # Descriptors of what the data set shares with the program.
        self._carried: list[int] = []
        # The first batch's first samples, if the program had made them before it was forked.
        self._made: list[Any] | None = None

    def on_carry(self, *, fds: list[int]) -> None:
        """Takes descriptors for the job that comes next."""
        self._carried += fds

    def on_job(
        self, packed: Any, worker: int, base_seed: int, around: dict[str, Any], *, fds: list[int]
    ) -> None:
        """Takes the work over; a data set that cannot be opened here is reported with the first task."""
        self._worker, self._maker, self._trouble = worker, None, None
        page = Slot(fds.pop(0))
        page.map(PAGE * 8)
        self._page = page.view(0, PAGE * 8).view(numpy.int64).data
        try:
            _take_over(around)
            job: Job = parcel.unpack(packed, fds, self._carried)
            self._maker = self._open(job, worker, base_seed)
        except Exception as error:
            self._trouble = error
        for fd in (*fds, *self._carried):
            os.close(fd)
        self._carried = []
        self._channel.send(("ready", os.getpid()))

    def take_job(
        self, job: Job, worker: int, base_seed: int, page: Slot, made: list[Any] | None = None
    ) -> None:
        """As `on_job`, in a process that was forked from the consumer."""
        self._worker, self._made = worker, made
        self._page = page.view(0, PAGE * 8).view(numpy.int64).data
        try:
            self._maker = self._open(job, worker, base_seed)
        except Exception as error:
            self._trouble = error
        self._channel.send(("ready", os.getpid()))

    def _open(self, job: Job, worker: int, base_seed: int) -> Maker:
        # Whoever wants to look looks at the process that this one works for.
        _native.stay_hidden()
        seed = base_seed + worker
        seed_all(seed & (1 << 64) - 1)
        if job.torch:
            import torch
            from torch.utils.data._utils.worker import _generate_state

            torch_side.enter_process(job)
            torch.manual_seed(seed)
            random.seed(seed)
            state: Any = _generate_state
            numpy.random.seed(state(base_seed, worker))  # noqa: NPY002
            torch_side.set_info(torch_side.make_info(job, worker, seed, "multiprocessing"))
        if job.init is not None:
            job.init(worker)
        maker = Maker(job)
        if job.torch:
            # Only there: what a data set collates for itself may outlive the batch.
            maker.joining = torch_side.writing_to
        return maker

    def on_begin(
        self, epoch: int, state: Any, skip: int, rows: int, reports: bool, *, fds: list[int]
    ) -> None:
        """Begins an epoch; `reports`, the consumer wants to know where the data set stood."""
        begins = cloudpickle.dumps(None)
        try:
            if self._maker is not None:
                self._trouble = None
                state = self._maker.begin(state, skip, rows)
                if reports:
                    begins = cloudpickle.dumps(state)
        except Exception as error:
            # Comes with the first batch: also a state that cannot be pickled.
            self._trouble = error
        if reports:
            self._channel.send(("begun", epoch, begins))

    def on_drop(self, slots: list[int], *, fds: list[int]) -> None:
        """Forgets slots that the consumer has given up."""
        for number in slots:
            slot = self._slots.pop(number, None)
            if slot is not None:
                slot.close()

    def on_rest(self, slots: list[int], *, fds: list[int]) -> None:
        """Lets go of the data set: another one comes with the next epoch."""
        self._maker = None
        self.on_drop(slots, fds=fds)
        gc.collect()

    def on_leave(self, *, fds: list[int]) -> None:
        """Ends: another worker has taken this one's place while it was stopped."""
        raise Closed

    def on_task(self, sequence: int, task: Task, number: int, made: bool, *, fds: list[int]) -> None:
        """Makes a batch in slot `number`, whose file comes along when it is new here. `made`, its first
        samples are here since this process was forked."""
        task.made, self._made = self._made if made else None, None
        if fds:
            self._slots[number] = Slot(fds[0])
        slot = self._slots[number]
        page = self._page
        if page[WANTED] > sequence:
            self._channel.send(("stale", sequence))
            return

        def row(at: int) -> None:
            page[ROW] = at
            if page[WANTED] > sequence:
                raise Stale

        page[MAKING] = sequence
        slot.begin()
        answer: tuple[Any, ...]
        try:
            answer = self._make(sequence, task, slot, row)
        except Stale:
            answer = ("stale", sequence)
        except Exception as error:
            slot.begin()
            answer = ("failed", sequence, pack((self._failure(error, task), None), slot))
        page[FEEDING] = _feeds_queues()
        self._channel.send(answer)

    def _make(self, sequence: int, task: Task, slot: Slot, row: Any) -> tuple[Any, ...]:
        if self._trouble is not None or self._maker is None:
            raise self._trouble or RuntimeError("the worker has no data set")
        try:
            value, times = self._maker.timed(task, slot, row)
        except Ended:
            # Also without a snapshot: it is what the next epoch begins from.
            return "ended", sequence, pack((None, self._maker.state()), slot)
        began = time.perf_counter()
        packed = pack((value, self._state(task)), slot)
        return "made", sequence, packed, times._replace(hand_over=time.perf_counter() - began)

    def _state(self, task: Task) -> Any:
        return self._maker.state() if task.snapshot and self._maker is not None else None

    def _failure(self, error: BaseException, task: Task) -> Failure:
        where = f"in worker {self._worker} (pid {os.getpid()}), batch {task.number}"
        at = int(self._page[ROW])
        with contextlib.suppress(Exception):
            if self._maker is not None and self._maker.job.kind == "map" and self._maker.job.batched:
                where += f", sample {task.index[at]!r}"
        return Failure(error, where)


def _feeds_queues() -> bool:
    """Whether what was put into a queue of multiprocessing may still be on its way."""
    if "multiprocessing.queues" not in sys.modules:
        return False
    return any(thread.name == "QueueFeederThread" for thread in threading.enumerate())


def _take_over(around: dict[str, Any]) -> None:
    """What code may look at beside its arguments: paths, environment, arguments."""
    sys.path[:] = around["path"]
    sys.argv[:] = around["argv"]
    for name in set(os.environ) - set(around["environ"]):
        if not name.endswith("_NUM_THREADS"):
            del os.environ[name]
    os.environ.update(around["environ"])
    with contextlib.suppress(OSError):
        os.chdir(around["folder"])


def start(end: socket.socket, first: Callable[[Worker], None] | None = None) -> NoReturn:
    """Runs a worker and ends the process without the parent's exit handlers."""
    code = 0
    try:
        with contextlib.suppress(OSError, ValueError):
            faulthandler.enable()
        _name_process()
        # What user code prints is there at once; a worker's end is not announced to it.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        run(end, first)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            if _feeds_queues():
                # They write what they have.
                sys.modules["multiprocessing.util"]._run_finalizers()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _name_process() -> None:
    """So that `top` shows what this is."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(15, b"feedline-worker", 0, 0, 0)


def main(fd: int) -> None:
    """The beginning of a spawned worker."""
    start(socket.socket(fileno=fd))
