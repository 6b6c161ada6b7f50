"""One loader in a process of its own: runs an epoch for each line it is sent."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

BATCH = 64
SIZE = 224
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def serve(make: Callable[[str, int], Iterable[tuple[Any, Any]]]) -> None:
    """Builds the loader over sys.argv[1] with sys.argv[2] workers, then obeys standard input."""
    # What the loader prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    began = time.perf_counter()
    loader = make(sys.argv[1], int(sys.argv[2]))
    first: float | None = None
    for _ in sys.stdin:
        start, images = time.perf_counter(), 0
        for pixels, labels in loader:
            if first is None:
                first = time.perf_counter() - began
            assert tuple(pixels.shape[1:]) == (3, SIZE, SIZE), pixels.shape
            images += len(labels)
        seconds = time.perf_counter() - start
        answer = {"images": images, "seconds": seconds, "first": first}
        print(json.dumps(answer), file=answers, flush=True)
