"""Which device batches are handed over on, and whether their memory on the host is page-locked."""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple

from feedline import _native
from feedline._errors import SpecError

MOST_PREFETCH = 1024
"""More batches on a device than this are a slip of the pen."""


class DeviceSettings(NamedTuple):
    """What the arguments mean to the engine."""

    name: str | None
    prefetch: int
    pin: bool


class _Warned:
    """Whether the program was warned that there is no CUDA."""

    done = False


def device_settings(device: object, prefetch: int, pin: bool | None, output: str) -> DeviceSettings:
    """What the arguments `device`, `device_prefetch` and `pin_memory` of a loader mean."""
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 0 <= prefetch <= MOST_PREFETCH:
        raise SpecError(
            f"device_prefetch = {prefetch!r}: is not a number of batches; allowed: 0 to {MOST_PREFETCH}",
            key="device_prefetch",
            value=repr(prefetch),
            problem="is not a number of batches",
            allowed=f"0 to {MOST_PREFETCH}",
        )
    name = _named(device, output)
    if name is not None:
        return DeviceSettings(name, prefetch, True if pin is None else bool(pin))
    return DeviceSettings(None, prefetch, bool(pin) and can_pin())


def can_pin() -> bool:
    """Whether memory can be page-locked for a GPU; if not, the reason is a warning, once."""
    problem = _native.cuda_problem()
    if problem is not None and not _Warned.done:
        _Warned.done = True
        warnings.warn(
            f"pin_memory=True does nothing here, as no GPU can be used: {problem}",
            RuntimeWarning,
            stacklevel=6,
        )
    return problem is None


def _named(device: object, output: str) -> str | None:
    """The device's name as the engine knows it; torch's objects have such a name too."""
    name = None if device is None else str(device)
    if name is None or name == "cpu":
        return None
    if name == "cuda":
        # As in torch: the GPU that the program has chosen.
        torch: Any = sys.modules.get("torch")
        if output == "torch" and torch is not None and torch.cuda.is_initialized():
            return f"cuda:{torch.cuda.current_device()}"
        return "cuda:0"
    kind, colon, number = name.partition(":")
    if kind != "cuda" or not colon or not (number.isascii() and number.isdigit() and len(number) <= 4):
        allowed = '"cpu", "cuda", or "cuda:1" for another than the first'
        raise SpecError(
            f"device = {name!r}: is no device; allowed: {allowed}",
            key="device",
            value=repr(name),
            problem="is no device",
            allowed=allowed,
        )
    return f"cuda:{int(number)}"
