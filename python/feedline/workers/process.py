"""One worker process, as the consumer sees it."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy

from feedline.workers.channel import Channel
from feedline.workers.child import MAKING, PAGE, WANTED
from feedline.workers.job import Task
from feedline.workers.server import Server
from feedline.workers.slots import Slot
from feedline.workers.watch import Sight


class Process:
    """The consumer's view of one worker."""

    def __init__(self, number: int, end: Channel) -> None:
        self.number, self.channel = number, end
        self.pid: int | None = None
        self.token: int | None = None
        self.server: Server | None = None
        self.spawned: subprocess.Popen[bytes] | None = None
        # Whether it is a fork of the program.
        self.forked = False
        # Samples of the first task that it was born with.
        self.made: list[Any] | None = None
        self.ready = False
        self.worked = False
        # Answers to tasks of this epoch; tasks that it was given since it has its data set.
        self.answered = self.drawn = 0
        # Whether its iterable has come to its end in this epoch.
        self.ended = False
        # Whether another one has its place, and whether it is known to have ended.
        self.aside = self.dead = False
        self.slots: dict[int, Slot] = {}
        self.open: dict[int, tuple[Task, Slot]] = {}
        self.page = Slot()
        self.page.map(PAGE * 8)
        self.status = self.page.view(0, PAGE * 8).view(numpy.int64)
        self._sight: Sight | None = None
        # What it was making when it was looked at, for how long, and what was said of it.
        self.progress: tuple[int, ...] = ()
        self.still = 0.0
        self.slow_named = self.stop_named = False

    def sight(self) -> Sight:
        """The process, or as long as there is none, the server that is to fork it."""
        if self.pid is None and self.server is not None and self.token is not None:
            self.pid = self.server.pid(self.token)
        pid = self.pid
        if pid is None:
            assert self.server is not None
            pid = self.server.process
        if self._sight is None or self._sight.pid != pid:
            self._sight = Sight(pid)
        return self._sight

    def making(self) -> int | None:
        """The number of the task that it is at."""
        sequence = int(self.status[MAKING])
        return sequence if self.ready and sequence in self.open else None

    def has_begun(self) -> bool:
        """Whether it has begun a task of this epoch. One that ended with its tasks unread has not, nor has
        one that was still at a task of the epoch before."""
        making = self.making()
        return self.answered > 0 or (making is not None and making >= self.status[WANTED])
