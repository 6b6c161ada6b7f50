"""The process that worker processes are forked from.

It has one thread and has imported what the data set needs, so a worker starts in milliseconds
and shares those modules' memory with all others. It is started once for a program and ends with
it. It stands in for the program where that should not be forked itself: it may have threads, a GPU and
locks (`launch.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import math
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

from feedline.workers.channel import Channel, Closed
from feedline.workers.child import start
from feedline.workers.launch import launch


def main(fd: int) -> None:
    """The server's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=fd)
    channel = Channel(end)
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    children: set[int] = set()
    # Not select(): it refuses descriptors above 1023, and the program may have had that many open.
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.register(wake, select.POLLIN)
    try:
        while True:
            poll.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            _reap(channel, children)
            while (received := channel.poll()) is not None:
                (kind, *details), fds = received
                if kind == "import":
                    _import(*details)
                elif kind == "fork":
                    _fork(channel, children, fds[0], details[0], (end, wake, woken))
    except Closed:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _reap(channel: Channel, children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        channel.send(("exit", pid, os.waitstatus_to_exitcode(status)))


def _import(modules: list[str], path: list[str]) -> None:
    sys.path[:] = path
    for name in modules:
        # Whoever needs it imports it again and sees what is wrong.
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _fork(channel: Channel, children: set[int], fd: int, token: int, ends: tuple[Any, ...]) -> None:
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in ends:
            if isinstance(end, int):
                os.close(end)
            else:
                end.close()
        start(socket.socket(fileno=fd))
    os.close(fd)
    children.add(pid)
    # Modules that start threads do not survive a fork; the consumer hears of it.
    channel.send(("forked", token, pid, len(os.listdir("/proc/self/task"))))


class Server:
    """The consumer's side of it."""

    _one: Server | None = None

    def __init__(self) -> None:
        self._channel, theirs = Channel.pair()
        try:
            self._process = launch("from feedline.workers.server import main; main", theirs)
        finally:
            theirs.close()
        self.owner = os.getpid()
        self._imported: set[str] = set()
        self._exits: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._next = 0
        self.threads = 1
        # Whether it was ended from here, because it was stopped or did not answer.
        self.replaced = False

    @classmethod
    def get(cls) -> Server:
        """The program's server, started if it is not there."""
        one = cls._one
        if one is None or one.owner != os.getpid() or one._process.poll() is not None:
            one = cls._one = Server()
            atexit.register(one.close)
        return one

    @property
    def ended(self) -> int | None:
        """The server's own exit code, if it has one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(0.5)
        return None

    def load(self, modules: set[str]) -> None:
        """Imports modules there, once."""
        new = sorted(modules - self._imported)
        if new:
            self._imported.update(new)
            self._channel.post(("import", new, list(sys.path)))

    def fork(self, end: socket.socket) -> int:
        """Asks for a worker with `end` as its connection; `pid` says which one it became."""
        token = self._next
        self._next += 1
        self._channel.post(("fork", token), (end.fileno(),))
        return token

    def _read(self) -> None:
        self._channel.flush()
        while (received := self._channel.poll()) is not None:
            kind, *details = received[0]
            if kind == "forked":
                self._pids[details[0]] = details[1]
                self.threads = max(self.threads, details[2])
            else:
                self._exits[details[0]] = details[1]

    def pid(self, token: int) -> int | None:
        """The process that a request became, once it is known."""
        with contextlib.suppress(Closed, OSError):
            self._read()
        return self._pids.get(token)

    def exit_code(self, pid: int, seconds: float) -> int | None:
        """How a worker ended, negative for a signal; waits a moment for the news."""
        while pid not in self._exits:
            poll = select.poll()
            if self._channel.fileno() >= 0:
                poll.register(self._channel, select.POLLIN)
            if self._channel.fileno() < 0 or not poll.poll(math.ceil(seconds * 1000)):
                return None
            try:
                self._read()
            except Closed:
                return None
        # A later process may have the same number.
        return self._exits.pop(pid)

    @property
    def process(self) -> int:
        """The server's own number."""
        return self._process.pid

    def replace(self) -> None:
        """Ends a server that is stopped or gone; the next worker is forked from a new one. Those that
        it has forked live on."""
        self.replaced = True
        if Server._one is self:
            Server._one = None
        if self.owner == os.getpid():
            with contextlib.suppress(Closed, OSError):
                self._read()
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            self._channel.close()

    def close(self) -> None:
        """Ends the server and with it all workers."""
        if self.owner == os.getpid():
            self._channel.close()
            # One that is stopped would neither see that nor end its workers.
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self.replace()
