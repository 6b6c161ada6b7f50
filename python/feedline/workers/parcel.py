"""A job on its way to worker processes: what cannot be shared travels once, for as long as it does not
change.

Arrays lie in memory that all workers map privately. A job that is packed again, as with every epoch,
compares its arrays with what lies there: comparing takes a tenth of what copying and mapping anew
takes, and nothing is ever out of date.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
from typing import Any, NamedTuple

import numpy

from feedline.workers.packing import ByValue, loads
from feedline.workers.shared_memory import Shared, received
from feedline.workers.slots import ALIGNMENT, Bytes, Slot

# Below this, an array travels again rather than being looked for.
_SMALL = 1 << 16
# Of the head: more than this would not fit into a connection at once.
_SHORT = 1 << 15
# Memory of earlier epochs in which a few arrays are still up to date; beyond that, or where less than half
# of the bytes in it are, all is packed anew.
_MOST = 8


class Parcel(NamedTuple):
    """What a worker is sent; the descriptors of `files` and of what is shared go with it."""

    head: bytes
    places: list[tuple[int, int, int]]
    """For each buffer: in which file, where, and how many bytes."""
    sizes: list[int]
    """Of each file."""


class Store:
    """The program's side: a packed job, and the memory that its arrays lie in."""

    def __init__(self) -> None:
        self.parcel: Parcel | None = None
        self.shared = Shared()
        self._slots: list[Slot] = []
        self._known: dict[tuple[int, int], tuple[Slot, int]] = {}

    def pack(self, value: Any) -> None:
        """Packs `value`; if that fails, what was packed before stays."""
        shared = Shared()
        buffers: list[Bytes] = []
        file = io.BytesIO()
        with shared.passing():
            pickler = ByValue(
                file, lambda one: buffers.append(numpy.frombuffer(one.raw(), numpy.uint8)), shared
            )
            pickler.dump(value)
        head = file.getvalue()
        if len(head) > _SHORT:
            buffers.append(numpy.frombuffer(head, numpy.uint8))
        known = self._place(buffers, self._known)
        slots = list({id(slot): slot for slot, _ in known}.values())
        # As they lie there: aligned, and once however many share them.
        alive = {(id(slot), at): len(data) for data, (slot, at) in zip(buffers, known, strict=True)}
        used = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in alive.values())
        if len(slots) > _MOST or 2 * used < sum(slot.used for slot in slots):
            known = self._place(buffers, {})
            slots = [known[0][0]]
        number = {id(slot): at for at, slot in enumerate(slots)}
        for slot in self._slots:
            if id(slot) not in number:
                slot.close()
        self.shared.close()
        self.shared, self._slots = shared, slots
        self._known = {
            (_address(data), len(data)): place
            for data, place in zip(buffers[: len(buffers) - (len(head) > _SHORT)], known, strict=False)
        }
        if len(head) > _SHORT:
            self._known[0, len(head)] = known[-1]
        self.parcel = Parcel(
            b"" if len(head) > _SHORT else head,
            [(number[id(slot)], at, len(data)) for data, (slot, at) in zip(buffers, known, strict=True)],
            [slot.used for slot in slots],
        )

    @staticmethod
    def _place(
        buffers: list[Bytes], known: dict[tuple[int, int], tuple[Slot, int]]
    ) -> list[tuple[Slot, int]]:
        """Where each buffer lies: where it lay before, or in new memory."""
        found = [_found(data, known, at == len(buffers) - 1) for at, data in enumerate(buffers)]
        missing = [data for data, place in zip(buffers, found, strict=True) if place is None]
        if not missing:
            return [place for place in found if place is not None]
        fresh = Slot()
        fresh.map(sum(len(data) + ALIGNMENT for data in missing))
        return [place or (fresh, fresh.write(data)) for data, place in zip(buffers, found, strict=True)]

    @property
    def files(self) -> tuple[int, ...]:
        """The descriptors of the arrays' memory."""
        return tuple(slot.fd for slot in self._slots)

    def close(self) -> None:
        self.shared.close()
        for slot in self._slots:
            slot.close()
        self._slots, self._known, self.parcel = [], {}, None


def unpack(parcel: Parcel, files: list[int], fds: list[int]) -> Any:
    """The worker's side: the job, with its arrays in private mappings of the files."""
    memory = [_private(fd, size) for fd, size in zip(files, parcel.sizes, strict=True)]
    buffers = [memory[file][at : at + size] for file, at, size in parcel.places]
    head: Any = parcel.head or buffers.pop().data
    with received(fds):
        return loads(head, buffers)


def _private(fd: int, size: int) -> Bytes:
    """Shared with the other workers until somebody writes to it."""
    if size == 0:
        return numpy.empty(0, numpy.uint8)
    flags, access = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
    return numpy.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size, flags=flags, prot=access), numpy.uint8)


def _found(
    data: Bytes, known: dict[tuple[int, int], tuple[Slot, int]], last: bool
) -> tuple[Slot, int] | None:
    """Where the same bytes lie already. The last buffer may be the head, which has no fixed address."""
    if len(data) < _SMALL:
        return None
    place = known.get((_address(data), len(data))) or (known.get((0, len(data))) if last else None)
    return place if place and _alike(data, place[0].view(place[1], len(data))) else None


def _address(data: Bytes) -> int:
    return int(data.ctypes.data)


def _alike(one: Bytes, other: Bytes) -> bool:
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    return bool(compare(_address(one), _address(other), len(one)) == 0)
