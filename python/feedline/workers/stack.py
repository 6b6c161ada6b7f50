"""Samples into a batch, each row written in place as soon as its sample is there.

A batch of a library's default collate function has the structure of its first sample, with each
array one axis larger. So the first sample fixes where everything lies in the slot, and every other
sample is copied to its row, by a thread that copies while the next sample is being made. What
does not fit that picture (other shapes, other types) is given back as a list of samples, for the
library's own function to treat.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy

from feedline import _native
from feedline.workers.slots import Bytes, Slot

# Samples that are kept while they are copied. A whole batch of them would double a worker's memory.
_COPYING = 4

Collate = Callable[[Any], Any]


class Uneven(Exception):
    """A sample that is not like the first one."""


class _Array:
    """The rows of one array."""

    def __init__(self, stack: Stack, shape: tuple[int, ...], size: int) -> None:
        self.stack, self.shape = stack, shape
        self.row_bytes = math.prod(shape) * size
        self.offset = stack.slot.reserve(self.row_bytes * stack.rows)

    def row(self, row: int) -> int:
        # Looked up each time: the slot may have grown meanwhile and be mapped anew, and other threads
        # write other rows at this moment.
        return self.stack.slot.address + self.offset + row * self.row_bytes

    def copy(self, row: int, address: int, owner: Any) -> None:
        stack, size = self.stack, self.row_bytes
        number = stack.copier.copy(stack.slot.address + self.offset + row * size, address, size)
        if number:
            stack.copied_from.append((number, owner))
            if len(stack.copied_from) > _COPYING:
                stack.let_go()

    def bytes(self, rows: int) -> Any:
        size = self.row_bytes * rows
        if self.stack.memory is not None:
            return self.stack.memory[self.offset : self.offset + size]
        return self.stack.slot.view(self.offset, size)


class _Tensors(_Array):
    def __init__(self, stack: Stack, first: Any) -> None:
        self.kind, self.marked = type(first), type(first) is not stack.torch.Tensor
        if self.marked:
            first = _unmarked(first, stack.torch)
        self.layout, self.dtype = first.layout, first.dtype
        self.is_complex = first.is_complex()
        super().__init__(stack, tuple(first.shape), first.element_size())

    def put(self, row: int, value: Any) -> None:
        if type(value) is not self.kind:
            raise Uneven
        if self.marked:
            value = _unmarked(value, self.stack.torch)
        # What torch calls quantized or conjugated shows in the type of the elements.
        if (
            value.layout is not self.layout
            or not value.is_cpu
            or value.requires_grad
            or value.is_nested
            or value.shape != self.shape
            or value.dtype is not self.dtype
            or value.is_neg()
            or (self.is_complex and value.is_conj())
        ):
            raise Uneven
        if value.is_contiguous():
            self.copy(row, value.data_ptr(), value)
        else:
            self.whole(self.stack.rows)[row].copy_(value)

    def whole(self, rows: int) -> Any:
        torch = self.stack.torch
        if self.row_bytes * rows == 0:
            return torch.empty((rows, *self.shape), dtype=self.dtype)
        return torch.from_numpy(self.bytes(rows)).view(self.dtype).view(rows, *self.shape)

    def take(self, row: int) -> Any:
        return self.whole(self.stack.rows)[row]


class _Arrays(_Array):
    def __init__(self, stack: Stack, first: Any) -> None:
        self.dtype = first.dtype
        super().__init__(stack, first.shape, first.dtype.itemsize)

    def put(self, row: int, value: Any) -> None:
        if type(value) is not numpy.ndarray or value.shape != self.shape or value.dtype != self.dtype:
            raise Uneven
        if value.flags.c_contiguous:
            self.copy(row, value.ctypes.data, value)
        elif self.stack.torch is not None and any(stride < 0 for stride in value.strides):
            # torch refuses these, in its own words.
            raise Uneven
        else:
            self.rows(self.stack.rows)[row] = value

    def rows(self, rows: int) -> Any:
        if self.row_bytes * rows == 0:
            return numpy.empty((rows, *self.shape), self.dtype)
        return self.bytes(rows).view(self.dtype).reshape(rows, *self.shape)

    def whole(self, rows: int) -> Any:
        array = self.rows(rows)
        return array if self.stack.torch is None else self.stack.torch.from_numpy(array)

    def take(self, row: int) -> Any:
        return self.rows(self.stack.rows)[row]


class _Pending(_Arrays):
    """What native stages have prepared: they write the row themselves."""

    def __init__(self, stack: Stack, first: Any) -> None:
        self.dtype = numpy.dtype(first.dtype)
        _Array.__init__(self, stack, tuple(first.shape), self.dtype.itemsize)

    def put(self, row: int, value: Any) -> None:
        if type(value) is not _PENDING or tuple(value.shape) != self.shape or value.dtype != self.dtype:
            raise Uneven
        value.write(self.row(row), self.row_bytes)


class _Values:
    """What is not written in place: numbers, text and whatever else."""

    def __init__(self, stack: Stack, ordered: type) -> None:
        self.stack, self.ordered = stack, ordered
        self.values: list[Any] = [None] * stack.rows

    def put(self, row: int, value: Any) -> None:
        self.values[row] = value

    def whole(self, rows: int) -> Any:
        return self.stack.collate(self.ordered(self.values[:rows]))

    def take(self, row: int) -> Any:
        return self.values[row]


class _Fields:
    """A dict, tuple, list or named tuple."""

    def __init__(self, stack: Stack, first: Any) -> None:
        self.type = type(first)
        self.keys = list(first) if isinstance(first, dict) else range(len(first))
        ordered = list if isinstance(first, dict) else tuple
        self.fields = [_node(stack, first[key], ordered) for key in self.keys]
        self.tuples = stack.torch is None

    def put(self, row: int, value: Any) -> None:
        if type(value) is not self.type or len(value) != len(self.fields):
            raise Uneven
        try:
            for key, field in zip(self.keys, self.fields, strict=True):
                field.put(row, value[key])
        except KeyError:
            raise Uneven from None

    def _made(self, fields: list[Any], whole: bool) -> Any:
        if self.type is dict:
            return dict(zip(self.keys, fields, strict=True))
        if hasattr(self.type, "_fields"):
            return self.type(*fields)
        if self.type is tuple and (self.tuples or not whole):
            return tuple(fields)
        # torch's batches have lists where its samples have tuples.
        return fields

    def whole(self, rows: int) -> Any:
        return self._made([field.whole(rows) for field in self.fields], True)

    def take(self, row: int) -> Any:
        return self._made([field.take(row) for field in self.fields], False)


_Node = Any
_PENDING = getattr(_native, "Pending", None)


def _is_plain(tensor: Any, torch: Any) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.is_cpu
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _unmarked(tensor: Any, torch: Any) -> Any:
    """The same tensor without what torchvision says of it, which slows everything down."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def _is_tensor(value: Any, kind: type, torch: Any) -> bool:
    """Whether rows of this kind make a plain tensor. torchvision's images, masks and boxes do, unless the
    program asks for their own type (`tv_tensors.set_return_type`)."""
    if kind is torch.Tensor:
        return _is_plain(value, torch)
    if kind.__module__.startswith("torchvision.tv_tensors.") and isinstance(value, torch.Tensor):
        return _is_plain(_unmarked(value, torch), torch) and type(torch.stack([value])) is torch.Tensor
    return False


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _torch_has(dtype: Any, torch: Any) -> bool:
    try:
        torch.from_numpy(numpy.empty(1, dtype))
    except TypeError:
        return False
    return True


def _node(stack: Stack, value: Any, ordered: type = list) -> _Node:
    kind = type(value)
    torch = sys.modules.get("torch")
    if torch is not None and stack.torch is not None and isinstance(value, torch.Tensor):
        return _Tensors(stack, value) if _is_tensor(value, kind, torch) else _Values(stack, ordered)
    if kind is numpy.ndarray:
        plain = value.dtype.kind in "biufc" and value.dtype.isnative
        if plain and (stack.torch is None or _torch_has(value.dtype, stack.torch)):
            return _Arrays(stack, value)
    elif _PENDING is not None and kind is _PENDING:
        return _Pending(stack, value)
    elif len(value) if kind in (dict, tuple, list) or _is_named_tuple(value) else 0:
        return _Fields(stack, value)
    return _Values(stack, ordered)


class Stack:
    """A batch of at most `rows` rows in the making. Rows may come in any order, from any thread."""

    def __init__(self, rows: int, slot: Slot, collate: Collate, torch: Any, copier: _native.Copier) -> None:
        self.rows, self.slot, self.collate = rows, slot, collate
        self.torch, self.copier = torch, copier
        # Copies under way, and what must live until they are done.
        self.copied_from: collections.deque[tuple[int, Any]] = collections.deque()
        # What the batch's arrays are views of, where that is not the slot itself.
        self.memory: Bytes | None = None
        self._node: _Node | None = None
        self._first = threading.Lock()
        self._process = os.getpid()
        self._odd: dict[int, Any] = {}

    def add(self, row: int, sample: Any) -> None:
        """Writes a row, or keeps the sample if it is not like the first one."""
        if self._node is None:
            with self._first:
                if self._node is None:
                    self._node = _node(self, sample)
        try:
            self._node.put(row, sample)
        except Uneven:
            self._odd[row] = sample

    def let_go(self) -> None:
        """Lets the sample go that has waited longest: by now it is copied."""
        with contextlib.suppress(IndexError):
            number, _ = self.copied_from.popleft()
            self.copier.wait(number)

    def settle(self) -> None:
        """Waits until nothing is being copied to this batch any more."""
        if self._process != os.getpid():
            # The thread that copies did not come along into this forked child.
            self.copied_from.clear()
        if self.copied_from:
            self.copier.wait(max(number for number, _ in self.copied_from))
            self.copied_from.clear()

    def __del__(self) -> None:
        # Samples must not go while they are being copied.
        if getattr(self, "copied_from", None):
            self.settle()

    def finish(self, rows: int | None = None) -> Any:
        """The batch of the first `rows` rows."""
        rows = self.rows if rows is None else rows
        self.settle()
        node = self._node
        try:
            if node is None:
                return self.collate([])
            if self._odd:
                odd = self._odd
                return self.collate([odd[at] if at in odd else node.take(at) for at in range(rows)])
            return node.whole(rows)
        finally:
            # The nodes point back here: left alone, the memory would wait for the cycle collector.
            self._node = self.memory = None
            self._odd = {}
