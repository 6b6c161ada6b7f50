"""Any Python value as a short head and plain memory: arrays are not pickled, only pointed at.

The head is a pickle in which every array and tensor stands as the number of a buffer. The buffers
lie in a slot: where an array was made there, nothing is copied.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy

from feedline.workers.shared_memory import Shared
from feedline.workers.slots import Bytes, Slot


class Packed:
    """A value without its arrays' bytes: the head, and where in the slot each buffer lies."""

    __slots__ = ("head", "places", "size")

    def __init__(self, head: bytes, places: list[tuple[int, int]], size: int) -> None:
        self.head, self.places, self.size = head, places, size

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (self.head, self.places, self.size)


def pack(value: Any, slot: Slot) -> Packed:
    """Puts `value` into `slot`."""
    places: list[tuple[int, int]] = []

    def place(buffer: pickle.PickleBuffer) -> None:
        data = numpy.frombuffer(buffer.raw(), numpy.uint8)
        places.append((slot.write(data), data.nbytes))

    file = io.BytesIO()
    used = slot.used
    try:
        _Plain(file, place).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        # A class of the program's main module or of a function: by value instead.
        places.clear()
        slot.used = used
        file = io.BytesIO()
        ByValue(file, place).dump(value)
    head = file.getvalue()
    if len(head) > 1 << 15:
        # Messages stay short, so that a process never waits for the other to read.
        at = slot.write(numpy.frombuffer(head, numpy.uint8))
        places.append((at, len(head)))
        head = b""
    return Packed(head, places, slot.used)


def unpack(packed: Packed, memory: Bytes) -> Any:
    """The value, with its arrays in `memory`."""
    buffers = [memory[at : at + size] for at, size in packed.places]
    return loads(packed.head or buffers.pop().data, buffers)


def loads(head: Any, buffers: list[Bytes]) -> Any:
    """The value of a head and its buffers."""
    return pickle.loads(head, buffers=[buffer.data for buffer in buffers])


class _Plain(pickle.Pickler):
    def __init__(self, file: io.BytesIO, place: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, 5, buffer_callback=place)

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor:
            return _reduce_tensor(value, torch)
        return NotImplemented


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and classes of any kind. With `shared`, what is shared with the program stays so,
    and what shared memory before shares it afterwards."""

    def __init__(
        self, file: io.BytesIO, place: Callable[[pickle.PickleBuffer], Any], shared: Shared | None = None
    ) -> None:
        super().__init__(file, 5, buffer_callback=place)
        self._shared = shared
        # Tensors that share a storage must share it again; the pickler knows objects by identity.
        self._storages: dict[Any, Any] | None = None if shared is None else {}

    def reducer_override(self, value: Any) -> Any:
        if self._shared is not None:
            reduced = self._shared.reduce(value)
            if reduced is not NotImplemented:
                return reduced
        torch = sys.modules.get("torch")
        if torch is not None:
            if type(value) is torch.Tensor:
                reduced = _reduce_tensor(value, torch, self._storages)
                if reduced is not NotImplemented:
                    return reduced
            elif type(value) is torch.UntypedStorage and self._storages is not None:
                data = torch.tensor([], dtype=torch.uint8).set_(value).numpy()
                return _storage, (pickle.PickleBuffer(data),)
        return super().reducer_override(value)


def _reduce_tensor(tensor: Any, torch: Any, storages: dict[Any, Any] | None = None) -> Any:
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return NotImplemented
    if tensor.requires_grad:
        if not tensor.is_leaf:
            raise RuntimeError(
                "a tensor that is part of a graph (requires_grad, not a leaf) cannot leave its process; "
                "detach it or do not track gradients in a data set"
            )
        return _with_gradient, (tensor.detach(),)
    if tensor.is_nested:
        # One buffer, and for each tensor in it a shape, strides and a place.
        sizes, strides = tensor._nested_tensor_size(), tensor._nested_tensor_strides()
        return _nested, (tensor.values(), sizes, strides, tensor._nested_tensor_storage_offsets())
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.numel() == 0:
        return _empty, (tuple(tensor.shape), tensor.dtype)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if storages is not None:
        storage = tensor.untyped_storage()
        storage = storages.setdefault((storage.data_ptr(), storage.nbytes()), storage)
        return _on_storage, (storage, tensor.dtype, tensor.storage_offset(), shape, strides)
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    lines = tensor.permute(order)
    if not lines.is_contiguous():
        lines = tensor.contiguous()
        strides = tuple(lines.stride())
    data = lines.reshape(-1).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(data), tensor.dtype, shape, strides)


def _bytes(buffer: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.from_numpy(numpy.frombuffer(buffer, numpy.uint8))


def _tensor(buffer: Any, dtype: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
    return _bytes(buffer).view(dtype).as_strided(shape, strides)


def _storage(buffer: Any) -> Any:
    import torch

    data = numpy.frombuffer(buffer, numpy.uint8)
    return torch.from_numpy(data).untyped_storage() if len(data) else torch.tensor([]).untyped_storage()


def _on_storage(storage: Any, dtype: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
    torch = sys.modules["torch"]
    return torch.tensor([], dtype=dtype).set_(storage, offset, shape, strides)


def _empty(shape: Sequence[int], dtype: Any) -> Any:
    import torch

    return torch.empty(shape, dtype=dtype)


def _nested(buffer: Any, sizes: Any, strides: Any, offsets: Any) -> Any:
    return sys.modules["torch"]._nested_view_from_buffer(buffer, sizes, strides, offsets)


def _with_gradient(tensor: Any) -> Any:
    return tensor.requires_grad_()
