"""Memory that a batch is written to in one process and read from in another, without a name.

A slot is an anonymous file (memfd): it needs no /dev/shm, has no name that could go stale, and is
gone with the last process that has it open. The consumer owns all slots; a slot is lent to the
program with its batch, and is used again when the last array of that batch has died.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy
import numpy.typing

from feedline.workers.descriptors import Mapping, advice

Bytes = numpy.typing.NDArray[numpy.uint8]

# What one array's beginning is a multiple of: a cache line, and enough for every vector register.
ALIGNMENT = 64
# Batches that the program may keep at the cost of a file descriptor each, to be used again; those beyond
# are freed when the program drops them. By default a program has 1,024.
_MOST_LENT = 64
# What a slot grows by: pages that nobody touches take no memory.
_STEP = 1 << 20
# What is worth a system call to be given back.
_WORTH_IT = 4 << 20
# Of a slot that nothing was written to.
_EMPTY: Bytes = numpy.empty(0, numpy.uint8)
_NOWHERE = int(_EMPTY.ctypes.data)


# How often this process was forked. A child may still read what was lent before.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count_fork)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class Slot:
    """Shared memory that grows as a batch is written to it."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            with advice():
                fd = os.memfd_create("feedline-batch", os.MFD_CLOEXEC)
        self.fd = fd
        self.used = 0
        # Whether somebody had it since it was trimmed.
        self.written = False
        self._memory: Bytes = _EMPTY
        # Where the mapping begins. Asked for each row of a batch: the array's own takes a microsecond.
        self.address = _NOWHERE
        self._mapping: Mapping | None = None
        # Where the slot lies, in all mappings of it that a batch's arrays may still point into.
        # Each with the mapping itself: an address that was given up may soon be somebody else's.
        self._addresses: list[tuple[int, int, Bytes]] = []

    @property
    def size(self) -> int:
        """Bytes that are mapped here."""
        return len(self._memory)

    def map(self, size: int) -> None:
        """Makes sure that `size` bytes are mapped; earlier arrays stay valid."""
        if size <= self.size:
            return
        whole = os.fstat(self.fd).st_size
        if whole < size:
            whole = _rounded(size, _STEP)
            os.ftruncate(self.fd, whole)
        self._mapping = Mapping(self.fd, whole)
        self._memory, self.address = numpy.asarray(self._mapping), self._mapping.address
        self._addresses.append((self.address, whole, self._memory))

    def begin(self) -> None:
        """Forgets what was written; the next batch begins at the front."""
        self.used = 0
        if self.size:
            self._addresses = [(self.address, self.size, self._memory)]

    def reserve(self, size: int) -> int:
        """The offset of `size` bytes that nobody else has."""
        offset = self.used
        self.used = offset + _rounded(size, ALIGNMENT)
        self.map(self.used)
        return offset

    def trim(self) -> None:
        """Gives the pages back; what is written next takes new ones."""
        self.written = False
        if self._mapping is not None and self.size >= _WORTH_IT:
            self._mapping.empty()

    def view(self, offset: int, size: int) -> Bytes:
        """So many bytes."""
        return self._memory[offset : offset + size]

    def locate(self, address: int, size: int) -> int | None:
        """The offset of memory that lies in this slot."""
        for begin, length, _ in self._addresses:
            if begin <= address and address + size <= begin + length:
                return address - begin
        return None

    def write(self, data: Bytes) -> int:
        """Copies bytes into the slot unless they lie in it already; returns their offset."""
        size = data.nbytes
        if size == 0:
            return 0
        offset = self.locate(int(data.ctypes.data), size)
        if offset is None or offset + size > self.used:
            offset = self.reserve(size)
            self.view(offset, size)[:] = data
        return offset

    def seal(self) -> None:
        """Closes the file. What is mapped can be read and written as before, but nobody else can map it."""
        fd, self.fd = self.fd, -1
        with contextlib.suppress(OSError):
            os.close(fd)

    def close(self) -> None:
        """Gives the memory up; what is mapped stays until its arrays die."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
            self.fd = -1
        self._memory, self.address = _EMPTY, _NOWHERE
        self._mapping = None
        self._addresses = []

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)


class Lease:
    """A slot in the program's hands. NumPy keeps this object as long as an array points into it."""

    def __init__(self, slot: Slot, size: int, give_back: Callable[[Slot, bool], None]) -> None:
        slot.map(size)
        self._slot, self._give_back, self._forks = slot, give_back, _forks
        # The mapping must outlive the arrays even if the slot is closed meanwhile.
        self._memory = slot.view(0, size)
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (slot.address, False),
        }

    def bytes(self) -> Bytes:
        """The slot's bytes; the slot comes back when the last view of them dies."""
        return numpy.asarray(self)

    def __del__(self) -> None:
        give_back = getattr(self, "_give_back", None)
        if give_back is not None:
            give_back(self._slot, self._forks == _forks)


class Pin(Protocol):
    """A page-locked range, as the device knows it. It ends when this object dies."""

    def mark(self) -> None:
        """Notes everything that the device has been asked to do so far."""

    def busy(self) -> bool:
        """Whether some of what was noted is not done."""


class _Locked:
    """A slot's pages are locked so that a device can copy from them behind the program's back."""

    def __init__(self, slot: Slot, pin: Callable[[int, int], Pin]) -> None:
        self.range = slot.address, slot.size
        # A slot that grows is mapped elsewhere; what is locked must stay until the lock ends.
        self._memory = slot.view(0, slot.size)
        self.pin = pin(*self.range)
        self.marked = False

    def is_free(self) -> bool:
        """Whether no copy that the program began can still be reading the slot."""
        # Not marked when the arrays die: that may be anywhere, and the driver is not called there.
        if not self.marked:
            self.pin.mark()
            self.marked = True
        return not self.pin.busy()


class Slots:
    """The consumer's slots: those that are free, and how many there are."""

    def __init__(
        self,
        keep: int,
        pin: Callable[[int, int], Pin] | None = None,
    ) -> None:
        self._keep = keep
        self._pin = pin
        self._locked: dict[int, _Locked] = {}
        self._free: list[Slot] = []
        # Given up, but perhaps still read by a device.
        self._leaving: list[Slot] = []
        # Those that the program has and that can be used again; a set, as they come back in any thread.
        self._lent: set[int] = set()
        self._closed = self._resting = False
        self.made = 0
        self.process = os.getpid()

    def take(self, wanted: Callable[[Slot], bool] | None = None) -> Slot:
        """A free slot, best one that is `wanted`, or a new one."""
        self._resting = False
        self._sweep()
        fit = [slot for slot in reversed(self._free) if self._is_free(slot)]
        if fit:
            best = next((slot for slot in fit if wanted is None or wanted(slot)), fit[0])
            self._free.remove(best)
            return best
        self.made += 1
        return Slot()

    def tidy(self) -> None:
        """Gives the pages of free slots back. It takes milliseconds, so it is for a time when nobody waits
        for them."""
        for slot in tuple(self._free):
            if slot.written and id(slot) not in self._locked:
                slot.trim()

    def _is_free(self, slot: Slot) -> bool:
        locked = self._locked.get(id(slot))
        return locked is None or locked.is_free()

    def lend(self, slot: Slot, size: int) -> Bytes:
        """The slot's bytes for the program."""
        lease = Lease(slot, size, self.give_back)
        if len(self._lent) < _MOST_LENT:
            self._lent.add(id(slot))
        else:
            slot.seal()
        if self._pin is not None and size:
            locked = self._locked.get(id(slot))
            if locked is None or locked.range != (slot.address, slot.size):
                # The old lock ends first: a page may be locked once.
                self._locked.pop(id(slot), None)
                try:
                    locked = self._locked[id(slot)] = _Locked(slot, self._pin)
                except Exception as error:
                    # Copies to the device are slower then, and nothing else is lost.
                    self._pin = None
                    warnings.warn(f"batches are not page-locked: {error}", RuntimeWarning, stacklevel=2)
                    return lease.bytes()
            locked.marked = False
        return lease.bytes()

    def give_back(self, slot: Slot, own: bool = True) -> None:
        """Takes a slot back; called from wherever a batch's last array died. It is not used again if a
        forked child may have its batch too."""
        self._lent.discard(id(slot))
        useless = slot.fd < 0 or len(self._free) >= self._keep or not own
        if useless or self._closed or self._resting or os.getpid() != self.process:
            self._dismiss(slot)
            return
        slot.written = True
        self._free.append(slot)

    def _dismiss(self, slot: Slot) -> None:
        """Gives a slot up: at once, or when no device reads it any more."""
        if id(slot) in self._locked:
            self._leaving.append(slot)
        else:
            slot.close()

    def _sweep(self) -> None:
        for slot in [slot for slot in self._leaving if self._is_free(slot)]:
            self._leaving.remove(slot)
            del self._locked[id(slot)]
            slot.close()

    def close(self) -> None:
        """Frees what is free; what is lent is freed when it comes back."""
        self._closed = True
        self.rest()

    def rest(self) -> None:
        """Frees what is free, and what comes back before the next one is taken."""
        self._resting = True
        while self._free:
            self._dismiss(self._free.pop())
        self._sweep()
