"""What a data set shares with the program, and its worker processes share too: files that are mapped,
shared memory, and the locks, queues and values of multiprocessing.

None of it is copied. What is mapped travels as its file and place; a file without a name, a pipe or a
connection travels as a descriptor.
"""

from __future__ import annotations

import bisect
import contextlib
import mmap
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy

_DELETED = " (deleted)"
# Of this package's own slots.
_SLOT = "/memfd:feedline"
# Device and inode: an inode's number alone is another file's on another device.
_File = tuple[int, int]
# What a worker was sent, while it unpacks its data set.
_received: list[int] = []


class OnlyByFork(Exception):
    """Something that only a fork of the program can have."""


class Region:
    """A part of a file that this process has mapped. Views of it are pickled with the same region, so
    that a worker maps it once."""

    def __init__(self, begin: int, end: int, flags: str, offset: int, file: _File, path: str) -> None:
        self.begin, self.end, self.offset, self.file, self.path = begin, end, offset, file, path
        self.shared, self.writable = flags[3] == "s", flags[1] == "w"
        self.sent: int | None = None
        """The number of its descriptor, for a file without a name."""
        self.seen: _File | None = None
        """The file as `os.stat` knows it, if workers can have it."""
        self.asked = False
        """Whether `seen` is known."""

    def __reduce__(self) -> tuple[Any, ...]:
        length = self.end - self.begin
        return OpenRegion, (
            self.path,
            self.sent,
            self.seen,
            self.offset,
            length,
            self.shared,
            self.writable,
        )


class OpenRegion:
    """The same part of the file, mapped in another process."""

    def __init__(
        self, path: str, sent: int | None, file: _File, offset: int, length: int, shared: bool, writable: bool
    ) -> None:
        self.offset, self.shared, self.writable = offset, shared, writable
        flags = os.O_CLOEXEC | (os.O_RDWR if shared and writable else os.O_RDONLY)
        self.fd = os.open(path, flags) if sent is None else os.dup(_received[sent])
        status = os.fstat(self.fd)
        if (status.st_dev, status.st_ino) != file:
            raise FileNotFoundError(f"{path}: was replaced since the data set mapped it")
        # The last page may reach beyond the file.
        self.map = self.part(min(length, status.st_size - offset))

    def part(self, length: int) -> mmap.mmap:
        """A mapping of the first bytes."""
        return mmap.mmap(
            self.fd,
            length,
            mmap.MAP_SHARED if self.shared else mmap.MAP_PRIVATE,
            mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0),
            offset=self.offset,
        )

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class Shared:
    """Finds what is shared while a data set is packed."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        """Descriptors that go along; they are this object's own."""
        self._maps: list[Region] | None = None
        self._unnamed: list[tuple[_File, int]] | None = None

    def add(self, fd: int) -> int:
        """Takes a descriptor along and returns its number."""
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Meanwhile, multiprocessing's objects can be pickled, as when it starts a process itself."""
        from multiprocessing import context

        before: Any = context.get_spawning_popen()
        context.set_spawning_popen(_Passing(self))  # type: ignore[arg-type]
        try:
            yield
        finally:
            context.set_spawning_popen(before)

    def reduce(self, value: Any) -> Any:
        """How `value` travels if it is shared; NotImplemented if it is not."""
        kind = type(value)
        if kind is numpy.ndarray or kind is numpy.memmap:
            return self._array(value)
        if kind is mmap.mmap:
            data = numpy.frombuffer(value, numpy.uint8)
            region = self.find(int(data.ctypes.data), len(data))
            if region is None or region.begin != data.ctypes.data:
                return NotImplemented
            return _map, (region, len(data))
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.UntypedStorage:
            return self._storage(value)
        synchronize = sys.modules.get("multiprocessing.synchronize")
        if synchronize is not None and isinstance(value, synchronize.SemLock) and value._semlock.name is None:
            raise OnlyByFork(f"a {kind.__name__} of multiprocessing's start method 'fork'")
        reduce = _reducers().get(kind)
        return NotImplemented if reduce is None else reduce(value)

    def _array(self, array: Any) -> Any:
        if array.dtype.hasobject or array.size == 0:
            return NotImplemented
        address = first = int(array.ctypes.data)
        last = first + array.itemsize
        for length, stride in zip(array.shape, array.strides, strict=True):
            first += min(0, stride * (length - 1))
            last += max(0, stride * (length - 1))
        region = self.find(first, last - first)
        if region is None:
            return NotImplemented
        attributes = {}
        if type(array) is numpy.memmap:
            attributes = {name: getattr(array, name, None) for name in ("offset", "mode", "filename")}
        place = region, address - region.begin
        form = type(array), array.dtype, array.shape, array.strides
        return _view, (*place, *form, array.flags.writeable, attributes)

    def _storage(self, storage: Any) -> Any:
        if storage.device.type != "cpu" or storage.nbytes() == 0:
            return NotImplemented
        region = self.find(storage.data_ptr(), storage.nbytes())
        if region is None:
            return NotImplemented
        offset = storage.data_ptr() - region.begin
        own = storage.is_shared() and offset == 0 and region.offset == 0 and region.shared
        return _storage, (region, offset, storage.nbytes(), own)

    def find(self, address: int, size: int) -> Region | None:
        """The mapped file in which this memory lies."""
        if self._maps is None:
            self._maps = list(_mapped())
        at = bisect.bisect(self._maps, address, key=lambda region: region.begin) - 1
        if at < 0:
            return None
        region = self._maps[at]
        if address + size > region.end:
            return None
        if not region.asked:
            region.seen, region.asked = self._reach(region), True
        return None if region.seen is None else region

    def _reach(self, region: Region) -> _File | None:
        """The region's file, if another process can map it too and would see the same."""
        # A slot is written to again when the program has dropped its batch.
        if region.path.startswith(_SLOT) or not (region.shared or _is_clean(region)):
            return None
        # Shared memory often loses its name as soon as it is mapped.
        named = None if region.path.startswith("/dev/shm/") else _named(region)
        if named is not None:
            return named
        if self._unnamed is None:
            self._unnamed = list(_unnamed())
        for file, fd in self._unnamed:
            if file[1] == region.file[1] and _is_file(fd, region):
                region.sent = self.add(fd)
                return file
        return _named(region)


def _mapped() -> Iterator[Region]:
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and fields[4] != "0":
                begin, end = (int(text, 16) for text in fields[0].split("-"))
                major, minor = (int(text, 16) for text in fields[3].split(":"))
                path = fields[5].replace("\\012", "\n")
                file = os.makedev(major, minor), int(fields[4])
                yield Region(begin, end, fields[1], int(fields[2], 16), file, path)


def _unnamed() -> Iterator[tuple[_File, int]]:
    """Files without a name, and shared memory, that this process has open."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{name}")
            if (path.endswith(_DELETED) or path.startswith("/dev/shm/")) and not path.startswith(_SLOT):
                status = os.fstat(int(name))
                yield (status.st_dev, status.st_ino), int(name)


def _named(region: Region) -> _File | None:
    """What `os.stat` says of the region's file, if that is still there by its name."""
    with contextlib.suppress(OSError):
        # Asked before it is opened: that would do something to a device.
        status = os.stat(region.path)
        file = status.st_dev, status.st_ino
        if not stat.S_ISREG(status.st_mode):
            return None
        if file == region.file:
            return file
        fd = os.open(region.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return file if _is_file(fd, region) else None
        finally:
            os.close(fd)
    return None


def _is_file(fd: int, region: Region) -> bool:
    """Whether a descriptor is of the region's file."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return False
    if (status.st_dev, status.st_ino) == region.file:
        return True
    # btrfs and overlays give their mappings other numbers than `os.stat`. Mapped once more, the file has
    # the same ones.
    with contextlib.suppress(OSError, ValueError):
        again = mmap.mmap(fd, 1, mmap.MAP_SHARED, mmap.PROT_READ)
        address = int(numpy.frombuffer(again, numpy.uint8).ctypes.data)
        return any(one.begin <= address < one.end and one.file == region.file for one in _mapped())
    return False


def _is_clean(region: Region) -> bool:
    """Whether nobody has written to a private mapping: then its file has the same bytes."""
    with open("/proc/self/smaps") as lines:
        inside = False
        for line in lines:
            name, _, rest = line.partition(" ")
            if not name.endswith(":"):
                inside = name == f"{region.begin:08x}-{region.end:08x}"
            elif inside and name in ("Anonymous:", "Swap:") and rest.split()[0] != "0":
                return False
    return True


class _Passing:
    """What multiprocessing's reducers ask for while a process is started."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def duplicate_for_child(self, fd: int) -> int:
        return self._shared.add(fd)

    @staticmethod
    def DupFd(number: int) -> _Received:
        return _Received(number)


class _Received:
    """A descriptor on the worker's side."""

    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        """Another one for the same file, for the caller to close."""
        return os.dup(_received[self._number])


@contextlib.contextmanager
def received(fds: list[int]) -> Iterator[None]:
    """Meanwhile, what is unpacked finds the descriptors that came with it."""
    _received[:] = fds
    try:
        yield
    finally:
        _received.clear()


def _reducers() -> dict[type, Callable[[Any], Any]]:
    """How multiprocessing pickles what belongs to it: connections, ctypes, the memory of its values."""
    reduction = sys.modules.get("multiprocessing.reduction")
    if reduction is None:
        return {}
    known: dict[type, Callable[[Any], Any]] = reduction.ForkingPickler._extra_reducers
    if len(known) != _own[0]:
        _own[0] = len(known)
        _own[1] = {
            kind: reduce
            for kind, reduce in known.items()
            if str(getattr(reduce, "__module__", "")).startswith("multiprocessing.")
        }
    found: dict[type, Callable[[Any], Any]] = _own[1]
    return found


_own: list[Any] = [-1, {}]


def _map(region: OpenRegion, length: int) -> mmap.mmap:
    return region.part(length)


def _view(
    region: OpenRegion,
    offset: int,
    kind: Any,
    dtype: Any,
    shape: Any,
    strides: Any,
    writable: bool,
    attributes: dict[str, Any],
) -> Any:
    array = numpy.ndarray.__new__(kind, shape, dtype, region.map, offset, strides)
    if not writable:
        array.flags.writeable = False
    if attributes:
        array.__dict__.update(attributes, _mmap=region.map)
    return array


def _storage(region: OpenRegion, offset: int, size: int, own: bool) -> Any:
    import torch

    if own:
        kind: Any = torch.UntypedStorage
        return kind._new_shared_fd_cpu(region.fd, size)
    with warnings.catch_warnings():
        # That the memory may be read-only is as it was in the program.
        warnings.simplefilter("ignore")
        data = torch.from_numpy(numpy.frombuffer(region.map, numpy.uint8, size, offset))
    return data.untyped_storage()
