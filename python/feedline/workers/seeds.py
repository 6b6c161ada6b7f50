"""Seeds for the generators that user code draws from without saying so."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy

_MASK = (1 << 64) - 1


def mixed(*numbers: int) -> int:
    """A seed of 64 bits that depends on all the numbers (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def seed_all(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and, if it is loaded, torch."""
    random.seed(seed)
    numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None:
        # Only the CPU's: torch.manual_seed would wake every other device.
        torch.default_generator.manual_seed(seed)


def states() -> tuple[Any, Any, Any]:
    """The states of the global generators."""
    torch = sys.modules.get("torch")
    return (
        random.getstate(),
        numpy.random.get_state(),  # noqa: NPY002
        None if torch is None else torch.get_rng_state(),
    )


def restore(kept: tuple[Any, Any, Any]) -> None:
    """Puts the global generators back."""
    random.setstate(kept[0])
    numpy.random.set_state(kept[1])  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None and kept[2] is not None:
        torch.set_rng_state(kept[2])


def same(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> bool:
    """Whether nobody drew in between."""
    if one[0] != other[0]:
        return False
    if one[1][2] != other[1][2] or not numpy.array_equal(one[1][1], other[1][1]):
        return False
    return (one[2] is None) == (other[2] is None) and (one[2] is None or bool(one[2].equal(other[2])))


def apart(seed: int | None, work: Callable[[], Any]) -> Any:
    """Runs `work` with generators seeded for it, and puts the program's back afterwards."""
    if seed is None:
        return work()
    kept = states()
    seed_all(seed)
    try:
        return work()
    finally:
        restore(kept)
