"""The native part of feedline; use the package `feedline`."""

import os
from collections.abc import Sequence
from typing import Any, final

__all__ = [
    "Array",
    "Batch",
    "Copier",
    "DeviceArray",
    "DeviceBatch",
    "Loader",
    "LockProbe",
    "Pin",
    "__version__",
    "apply_transforms",
    "cuda_problem",
    "decode_image",
    "drawn_mix",
    "drawn_transforms",
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
    def arrays(self) -> tuple[Array, ...]: ...
    def hash(self) -> int: ...

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
class Copier:
    def __new__(cls) -> Copier: ...
    def copy(self, to: int, source: int, bytes: int) -> int: ...
    def wait(self, number: int) -> None: ...

@final
class LockProbe:
    def __new__(cls) -> LockProbe: ...
    def stop(self) -> tuple[int, int]: ...

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
