"""What a loader draws from torch's default generator, as a state keeps it.

torch's samplers draw each epoch's order from the default generator, from which the program draws too.
As soon as there is a state, what the program draws must not decide about later orders any more: the
program that resumes may draw otherwise. So a state pins the generator as it is then, and later epochs
draw from there, in the program that goes on as in the one that resumes. As long as nobody else draws
that is what torch's own loader does.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PinnedDraws:
    """The default generator as one loader sees it: torch's own until it is pinned."""

    def __init__(self) -> None:
        # Whether a state pins it. accelerate takes one after every batch, unasked: pinned by that, the
        # program's own draws would not be those that it has with torch's loader.
        self.pins = True
        self._pinned: torch.Tensor | None = None
        # The program's generator and its seed when this was last used: a program that seeds torch
        # anew means the loader too.
        self._seen: torch.Tensor | None = None
        self._seed = 0
        self._text: tuple[torch.Tensor, str] | None = None

    @property
    def text(self) -> str:
        """What is pinned, for a state."""
        pinned = self.pin()
        if self._text is None or self._text[0] is not pinned:
            self._text = pinned, to_text(pinned)
        return self._text[1]

    def pin(self) -> torch.Tensor:
        """What the next epoch is drawn from, whatever the program draws until then."""
        now = torch.default_generator.get_state()
        if self._pinned is None or self._is_seeded_anew(now):
            if not self.pins:
                return now
            self._pinned = now
            self._see(now)
        return self._pinned

    def resume(self, pinned: torch.Tensor) -> None:
        """Goes on from a state: what the program seeded until now is about its own draws."""
        self._pinned = pinned
        self._see(torch.default_generator.get_state())

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draws in here are the loader's."""
        default = torch.default_generator
        now = default.get_state()
        if self._pinned is None or self._is_seeded_anew(now):
            self._pinned = None
            yield
            return
        apart = not now.equal(self._pinned)
        if apart:
            default.set_state(self._pinned)
        try:
            yield
        finally:
            self._pinned = default.get_state()
            if apart:
                default.set_state(now)
            self._see(now if apart else self._pinned)

    def _see(self, now: torch.Tensor) -> None:
        self._seen, self._seed = now, torch.default_generator.initial_seed()

    def _is_seeded_anew(self, now: torch.Tensor) -> bool:
        if self._seen is None or now.equal(self._seen):
            return False
        seed = torch.default_generator.initial_seed()
        # The same seed again shows only before the first draw.
        return seed != self._seed or torch.Generator().manual_seed(seed).get_state().equal(now)


def to_text(state: torch.Tensor) -> str:
    """A generator's state for a file of any kind: 5 KB, of which half are zeros."""
    return base64.b64encode(zlib.compress(state.numpy().tobytes(), 1)).decode()


def from_text(text: str) -> torch.Tensor:
    """The state again; ValueError where the text is not one."""
    try:
        return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.uint8)
    except zlib.error as error:
        raise ValueError(str(error)) from error
