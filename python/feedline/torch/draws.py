"""What a loader draws from torch's default generator, as a state keeps it.

torch's samplers draw each epoch's order from the default generator, from which the program draws too.
As soon as there is a state, what the program draws must not decide about later orders any more: the
program that resumes may draw otherwise. So a state pins the generator as it is then, and later epochs
draw from there, in the program that goes on as in the one that resumes. As long as nobody else draws
that is what torch's own loader does. Each loader has a pin of its own, so that its order depends on its
own state only; where another loader would draw from the same one, the pin is derived from it.
"""

from __future__ import annotations

import base64
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Those that are pinned: no two of them may draw the same.
_pinned_ones: weakref.WeakSet[PinnedDraws] = weakref.WeakSet()
# A derived pin must not be seeded with what the other loader draws as its base seed.
_OTHER = 0x5DEECE66D


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
            self._pin(now)
        assert self._pinned is not None
        return self._pinned

    def _pin(self, now: torch.Tensor) -> None:
        pinned = now
        while self._is_taken(pinned):
            source = torch.Generator()
            source.set_state(pinned)
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=source).item()) ^ _OTHER
            pinned = source.manual_seed(seed).get_state()
        self._hold(pinned, now)

    def _is_taken(self, state: torch.Tensor) -> bool:
        """Whether another loader draws from this next."""
        others = (one._pinned for one in _pinned_ones if one is not self)
        return any(other is not None and other.equal(state) for other in others)

    def _hold(self, pinned: torch.Tensor, now: torch.Tensor) -> None:
        self._pinned = pinned
        _pinned_ones.add(self)
        self._see(now)

    def resume(self, pinned: torch.Tensor) -> None:
        """Goes on from a state: what the program seeded until now is about its own draws."""
        if self.pins:
            self._hold(pinned, torch.default_generator.get_state())

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draws in here are the loader's."""
        default = torch.default_generator
        now = default.get_state()
        if self._pinned is None or self._is_seeded_anew(now):
            self._pinned = None
            if not (self.pins and self._is_taken(now)):
                yield
                return
            self._pin(now)
        assert self._pinned is not None
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
