"""The native part of feedline; use the package `feedline`."""

import os
from collections.abc import Sequence
from typing import Any, final

__all__ = [
    "Array",
    "Batch",
    "Chain",
    "Copier",
    "DeviceArray",
    "DeviceBatch",
    "Loader",
    "LockProbe",
    "Order",
    "Pending",
    "Pin",
    "Row",
    "Rows",
    "Samples",
    "Writer",
    "__version__",
    "apply_transforms",
    "cuda_problem",
    "decode_image",
    "drawn_mix",
    "drawn_transforms",
    "hash_arrays",
    "main",
    "pin",
    "read_spec",
    "read_spec_file",
]

__version__: str

@final
class Loader:
    def __new__(
        cls,
        spec: str,
        arrays: Sequence[Sequence[tuple[str, str | None, Any]]],
        paths: Sequence[bytes],
        device: str | None = None,
        device_prefetch: int = 2,
        pin_memory: bool = False,
    ) -> Loader: ...
    @property
    def spec(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def begin(self) -> int: ...
    def next(self, iterator: int) -> tuple[Batch | DeviceBatch, bool] | None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def position(self) -> tuple[int, int]: ...
    def state(self) -> str: ...
    def resume(self, state: str) -> None: ...
    def stats(self) -> str: ...
    def close(self) -> None: ...

@final
class Batch:
    @property
    def rows(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def padding(self) -> int: ...
    def arrays(self) -> tuple[Array | Rows, ...]: ...
    def hash(self) -> int: ...

@final
class Rows:
    def __len__(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    def row(self, row: int) -> Row: ...
    def texts(self) -> list[str]: ...

@final
class Row:
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@final
class Array:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class DeviceBatch:
    @property
    def rows(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def padding(self) -> int: ...
    def arrays(self) -> tuple[DeviceArray, ...]: ...
    def hash(self) -> int: ...

@final
class DeviceArray:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Pin:
    def mark(self) -> None: ...
    def busy(self) -> bool: ...
    def wait(self) -> None: ...

def cuda_problem(device: int = 0) -> str | None: ...
def pin(address: int, bytes: int, device: int | None = None) -> Pin: ...

@final
class Chain:
    def __new__(
        cls, ops_json: str, layout: str = "CHW", decode_json: str = "{}", first: int = 0
    ) -> Chain: ...
    @property
    def canonical(self) -> str: ...
    @property
    def bfloat16(self) -> bool: ...
    def check(self, channels: int, dtype: str) -> None: ...
    def prepare(
        self,
        sample: Any,
        seed: int = 0,
        epoch: int = 0,
        position: int = 0,
        *,
        channels_last: bool = False,
        index: int = 0,
        source: int = 0,
        path: str | os.PathLike[str] | None = None,
    ) -> Pending: ...

@final
class Pending:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def write(self, address: int, bytes: int) -> None: ...
    def tobytes(self) -> bytearray: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...

@final
class Order:
    most_epochs: int
    def __new__(
        cls, spec: str, sizes: Sequence[int], labels: Sequence[Sequence[int] | None] | None = None
    ) -> Order: ...
    @property
    def about(self) -> str: ...
    def batch(self, epoch: int, number: int) -> tuple[list[tuple[int, int, int, int]], int]: ...
    def substitute(self, epoch: int, draws: int, position: int, attempt: int) -> tuple[int, int]: ...
    def state(
        self, epoch: int, number: int, data: str, pixels: str, skipped: Sequence[tuple[int, int]]
    ) -> str: ...
    def check(self, state: str, data: str, pixels: str) -> tuple[int, int, list[tuple[int, int]]]: ...

@final
class Samples:
    def __new__(
        cls, described: str, paths: Sequence[bytes], expected: tuple[int, int] | None = None
    ) -> Samples: ...
    def __len__(self) -> int: ...
    @property
    def about(self) -> str: ...
    def read(self, index: int, field: int, source: int = 0) -> Any: ...
    def prepare(
        self,
        index: int,
        field: int,
        chain: Chain,
        seed: int = 0,
        epoch: int = 0,
        position: int = 0,
        source: int = 0,
    ) -> Pending: ...
    def path(self, index: int) -> str | None: ...
    def labels(self) -> list[int] | None: ...

@final
class Writer:
    def __new__(
        cls,
        path: str | os.PathLike[str],
        fields: str | None = None,
        format: str | None = None,
        shard_size: int | None = None,
        shard_samples: int | None = None,
        compression: str | None = None,
        level: int | None = None,
        block_samples: int | None = None,
    ) -> Writer: ...
    def write(
        self,
        parts: Sequence[tuple[str, str, Any, str | None, Sequence[int]]],
        key: str | None = None,
    ) -> None: ...
    @property
    def samples(self) -> int: ...
    def finish(self) -> list[str]: ...
    def abort(self) -> None: ...

@final
class Copier:
    def __new__(cls) -> Copier: ...
    def copy(self, to: int, source: int, bytes: int) -> int: ...
    def wait(self, number: int) -> None: ...

@final
class LockProbe:
    def __new__(cls) -> LockProbe: ...
    def stop(self) -> tuple[int, int]: ...

def hash_arrays(arrays: Sequence[tuple[str, str, Sequence[int], Any]]) -> int: ...
def read_spec(text: str, toml: bool) -> str: ...
def read_spec_file(path: str | os.PathLike[str]) -> str: ...
def main(arguments: Sequence[str]) -> int: ...
def decode_image(
    data: bytes,
    mode: str = "rgb",
    exif_orientation: bool = False,
    max_pixels: int | None = None,
    allow_truncated: bool = False,
) -> tuple[bytes, tuple[int, int, int]]: ...
def apply_transforms(
    ops_json: str,
    layout: str,
    pixels: bytes,
    height: int,
    width: int,
    channels: int,
    planar: bool,
    dtype: str,
    seed: int = 0,
    epoch: int = 0,
    position: int = 0,
) -> tuple[bytes, list[int], str]: ...
def drawn_transforms(
    ops_json: str,
    height: int,
    width: int,
    channels: int,
    seed: int = 0,
    epoch: int = 0,
    position: int = 0,
) -> str: ...
def drawn_mix(
    ops_json: str, height: int, width: int, seed: int = 0, epoch: int = 0, batch: int = 0
) -> str: ...
