"""Seeds for the generators that user code draws from without saying so."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy

_MASK = (1 << 64) - 1
# What torch.initial_seed() returns must fit into a tensor, as the seeds of torch's own workers do. The
# generator looks at the lower 32 bits, so no draw depends on the rest.
_TORCH_MASK = (1 << 63) - 1
# torch's default generator, of which there is one, once torch is there.
_generator: Any = None


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
        torch.default_generator.manual_seed(seed & _TORCH_MASK)


def of_row(seed: int, row: int) -> int:
    """The seed of torch's generator for one sample of a batch. torch looks at 32 bits of it."""
    return (seed + (row + 1) * 0x9E3779B1) & _TORCH_MASK


def seed_row(seed: int, row: int) -> None:
    """Seeds torch's generator for one sample, so that samples of a batch can be made side by side;
    row -1 is for what joins them. The others' generators cost too much to be seeded so often."""
    global _generator
    if _generator is None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        # Looking it up takes longer than seeding it.
        _generator = torch.default_generator
    # As `of_row`, without a call: this is done for each sample.
    _generator.manual_seed((seed + (row + 1) * 0x9E3779B1) & _TORCH_MASK)


def states() -> tuple[Any, Any, Any]:
    """The states of the global generators, for the program's own thread."""
    torch = sys.modules.get("torch")
    return (
        random.getstate(),
        numpy.random.get_state(),  # noqa: NPY002
        None if torch is None else _torch_state(torch),
    )


def _torch_state(torch: Any) -> Any:
    # torch holds its generator's lock while it makes the tensor. If Python collects garbage then, what is
    # ended by it may let another thread run, which waits for that lock with the interpreter's: for ever.
    enabled = gc.isenabled()
    gc.disable()
    try:
        return torch.get_rng_state()
    finally:
        if enabled:
            gc.enable()


def states_seen_from_a_thread() -> tuple[Any, Any, Any]:
    """The same for any thread: of torch's only the seed, which is had without its lock."""
    torch = sys.modules.get("torch")
    return (
        random.getstate(),
        numpy.random.get_state(),  # noqa: NPY002
        None if torch is None else torch.default_generator.initial_seed(),
    )


def restore(kept: tuple[Any, Any, Any]) -> None:
    """Puts the global generators back."""
    random.setstate(kept[0])
    numpy.random.set_state(kept[1])  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None and kept[2] is not None:
        torch.set_rng_state(kept[2])


def drawn(before: tuple[Any, Any, Any], after: tuple[Any, Any, Any]) -> str | None:
    """Whose generator somebody drew from in between."""
    if before[0] != after[0]:
        return "random's"
    if before[1][2] != after[1][2] or not numpy.array_equal(before[1][1], after[1][1]):
        return "NumPy's"
    if isinstance(after[2], int):
        return None if before[2] == after[2] else "torch's"
    if after[2] is not None and (before[2] is None or not before[2].equal(after[2])):
        return "torch's"
    return None


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
