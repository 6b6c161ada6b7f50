"""What it costs to observe loaders of Python code: with their figures, and with all of that taken out.

Runs alternate in one process, and which side begins alternates too, since machines drift; the median of the
pairs' ratios is checked against the bar. Few rounds scatter by more than the bar is about. What workers time
while they make a batch (a few clock readings for each, not for each sample) is on both sides, so it is not in
the figure. The loader that is looked at has its live page open besides.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import feedline
import numpy as np
from feedline.torch import DataLoader

BAR = 0.99
# Half a second an epoch.
SAMPLES, BATCH = 16384, 64


class Small:
    """Images of 3x32x32, as in `benches/overhead.rs`: observing weighs most where samples are small."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = np.full((3, 32, 32), index % 251, np.uint8)
        return {"image": image[:, :, ::-1].astype(np.float32) / 255, "label": index}


class Blind:
    """Takes all calls and does nothing."""

    def __getattr__(self, _: str) -> Callable[..., float]:
        return self._nothing

    @staticmethod
    def _nothing(*_: Any, **__: Any) -> float:
        return 0.0


LOADERS: dict[str, Callable[[], Any]] = {
    "feedline.Loader, inline": lambda: feedline.Loader(Small(), batch_size=BATCH, num_workers=0),
    "feedline.Loader, a thread": lambda: feedline.Loader(
        Small(), batch_size=BATCH, num_workers=1, executor="threads"
    ),
    "feedline.Loader, a process": lambda: feedline.Loader(
        Small(), batch_size=BATCH, num_workers=1, executor="processes"
    ),
    "feedline.torch.DataLoader": lambda: DataLoader(Small(), batch_size=BATCH),
    # The page stays open from here on: it comes last.
    "the same, looked at": lambda: DataLoader(Small(), batch_size=BATCH, dashboard=True),
}


def rate(loader: Any) -> float:
    """Samples a second over an epoch."""
    began = time.perf_counter()
    for _ in loader:
        pass
    return SAMPLES / (time.perf_counter() - began)


def blinded(loader: Any) -> Any:
    """The same loader without figures, live view, tuning and reports."""
    inner = getattr(loader, "_native", loader)
    inner._figures = inner._live = inner._tuning = Blind()
    loader._reporter = _Silent()
    if hasattr(loader, "_decisions"):
        loader._decisions = Blind()
    return loader


class _Silent:
    def begin(self) -> Blind:
        return Blind()

    def tell(self) -> None:
        pass


def main() -> int:
    """Prints a line for each loader; 1 if one of them is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found, missed = {}, 0
    for name, make in LOADERS.items():
        seen, blind = make(), blinded(make())
        rates: tuple[list[float], list[float]] = ([], [])
        for number in range(arguments.rounds):
            sides = list(zip((seen, blind), rates, strict=True))
            for loader, kept in sides if number % 2 == 0 else reversed(sides):
                kept.append(rate(loader))
        ratio = statistics.median(a / b for a, b in zip(*rates, strict=True))
        found[name] = {"samples_per_second": statistics.median(rates[0]), "ratio": ratio}
        missed |= ratio < BAR
        if not arguments.json:
            verdict = "ok" if ratio >= BAR else f"below {BAR}"
            print(f"{name:28}{statistics.median(rates[0]):12,.0f} samples/s  {ratio:.3f}x  {verdict}")
        seen.close()
        blind.close()
    if arguments.json:
        print(json.dumps(found))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
