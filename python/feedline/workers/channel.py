"""Messages between two processes over a socket, with file descriptors beside them."""

from __future__ import annotations

import array
import collections
import contextlib
import errno
import os
import pickle
import socket
import struct
import weakref
from collections.abc import Sequence
from typing import Any

from feedline.workers.descriptors import advice

_HEAD = struct.Struct("<QI")
# Of one message.
MOST_FDS = 16
# Ends that this program keeps. A forked child must not keep them open: their end is how the other
# side learns that the program is gone.
_kept: weakref.WeakSet[Channel] = weakref.WeakSet()


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """One end of a connection. A message is anything that pickles; both ends are ours."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._bytes = bytearray()
        self._fds: list[int] = []
        # What is still to be sent, each with its own copies of the file descriptors.
        self._outgoing: collections.deque[tuple[memoryview, list[int]]] = collections.deque()

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """An end to keep and an end to give away."""
        with advice():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = Channel(ours)
        channel.keep()
        return channel, theirs

    def keep(self) -> None:
        """A forked child of this process closes this end."""
        _kept.add(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any, fds: tuple[int, ...] = ()) -> None:
        """Sends a message; waits only if the other side does not read."""
        data = _encoded(message, len(fds))
        try:
            sent = self._socket.sendmsg([data], _rights(fds), socket.MSG_NOSIGNAL)
            if sent < len(data):
                self._socket.sendall(data[sent:], socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def post(self, message: Any, fds: tuple[int, ...] = ()) -> None:
        """Sends a message and never waits: the other side may be stopped. What finds no room now goes
        with a later `flush`."""
        data, copies = _encoded(message, len(fds)), []
        try:
            with advice():
                for fd in fds:
                    copies.append(os.dup(fd))
        except BaseException:
            for fd in copies:
                os.close(fd)
            raise
        self._outgoing.append((data, copies))
        self.flush()

    @property
    def is_full(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._outgoing)

    def flush(self) -> None:
        """Sends what there is room for."""
        while self._outgoing:
            data, fds = self._outgoing[0]
            flags = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
            try:
                sent = self._socket.sendmsg([data], _rights(fds), flags)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError) as error:
                self._drop_outgoing()
                raise Closed from error
            for fd in fds:
                os.close(fd)
            if sent < len(data):
                self._outgoing[0] = data[sent:], []
            else:
                self._outgoing.popleft()

    def _drop_outgoing(self) -> None:
        while self._outgoing:
            for fd in self._outgoing.popleft()[1]:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def receive(self) -> tuple[Any, list[int]]:
        """The next message and its file descriptors; waits for it."""
        while True:
            message = self._next()
            if message is not None:
                return message
            self._read(0)

    def poll(self) -> tuple[Any, list[int]] | None:
        """The next message if it has arrived."""
        message = self._next()
        while message is None:
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            message = self._next()
        return message

    def _read(self, flags: int) -> None:
        space = socket.CMSG_SPACE(MOST_FDS * 4)
        try:
            data, rights, got, _ = self._socket.recvmsg(1 << 16, space, flags | socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError as error:
            raise Closed from error
        for level, kind, content in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        if not data:
            raise Closed
        if got & socket.MSG_CTRUNC:
            with advice():
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._bytes += data

    def _next(self) -> tuple[Any, list[int]] | None:
        if len(self._bytes) < _HEAD.size:
            return None
        length, count = _HEAD.unpack_from(self._bytes)
        end = _HEAD.size + length
        if len(self._bytes) < end:
            return None
        with memoryview(self._bytes) as data, data[_HEAD.size : end] as body:
            message = pickle.loads(body)
        del self._bytes[:end]
        fds, self._fds = self._fds[:count], self._fds[count:]
        return message, fds

    def close(self) -> None:
        """Ends the connection; the other side sees it at once."""
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds.clear()
        self._drop_outgoing()
        self._socket.close()


def _encoded(message: Any, fds: int) -> memoryview:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return memoryview(_HEAD.pack(len(body), fds) + body)


def _rights(fds: Sequence[int]) -> list[Any]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def _close_kept() -> None:
    for channel in list(_kept):
        channel.close()


os.register_at_fork(after_in_child=_close_kept)
