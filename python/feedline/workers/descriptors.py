"""File descriptors: what to do when a program has none left, and memory that needs none."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class OutOfDescriptors(OSError, RuntimeError):
    """The program may open no more files. A RuntimeError too, as torch's is."""


@contextlib.contextmanager
def advice() -> Iterator[None]:
    """Says what to do when there are no file descriptors left."""
    try:
        yield
    except OutOfDescriptors:
        raise
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise OutOfDescriptors(
            error.errno,
            f"{os.strerror(error.errno)}: workers need a few file descriptors each, and so do the first of "
            "the batches that the program keeps. Please increase the limit using `ulimit -n` in the shell, "
            "or keep fewer files open; torch's sharing strategy has no part in this",
        ) from error


class Mapping:
    """Shared memory of a file. Python's own mapping keeps a descriptor for as long as it lives."""

    def __init__(self, fd: int, size: int) -> None:
        self.size, self.address = 0, 0
        place = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if place == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.size, self.address = size, int(place)
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def empty(self) -> None:
        """Gives the file's pages back; it reads as zeros from now on."""
        _libc.madvise(self.address, self.size, mmap.MADV_REMOVE)

    def __del__(self) -> None:
        if self.size and _libc is not None:
            _libc.munmap(self.address, self.size)
