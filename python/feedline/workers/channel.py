"""Messages between two processes over a socket, with file descriptors beside them."""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import socket
import struct
import weakref
from typing import Any

_HEAD = struct.Struct("<QI")
_MOST_FDS = 16
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

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """An end to keep and an end to give away."""
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
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        data = memoryview(_HEAD.pack(len(body), len(fds)) + body)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._socket.sendmsg([data], rights, socket.MSG_NOSIGNAL)
            if sent < len(data):
                self._socket.sendall(data[sent:], socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

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
        space = socket.CMSG_SPACE(_MOST_FDS * 4)
        try:
            data, rights, _, _ = self._socket.recvmsg(1 << 16, space, flags | socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError as error:
            raise Closed from error
        for level, kind, content in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        if not data:
            raise Closed
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
        self._socket.close()


def _close_kept() -> None:
    for channel in list(_kept):
        channel.close()


os.register_at_fork(after_in_child=_close_kept)
