"""A training process for tests of the live view, started apart: `python live_process.py KIND [FOLDER]`.

It prints "ready" and the address of its page after its first batch, and runs until its input ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np


class Squares:
    """A data set of Python code. One sample of it may take for ever."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        if str(index) == os.environ.get("TEST_STUCK"):
            time.sleep(3600)
        return {"value": np.full((8, 8), index, dtype=np.float32), "label": index}


def loader_of(kind: str, folder: str) -> Any:
    import feedline

    dashboard = True if os.environ.get("TEST_DASHBOARD") else None
    if kind == "code":
        return feedline.Loader(
            Squares(), batch_size=4, executor="threads", num_workers=2, shuffle=False, dashboard=dashboard
        )
    if kind == "torch":
        from feedline.torch import DataLoader

        return DataLoader(Squares(), batch_size=4, dashboard=dashboard)
    if kind == "bad":
        bad: dict[str, Any] = {"on_error": "skip", "quarantine": Path(folder).parent / "bad.jsonl"}
        return feedline.Loader(folder, batch_size=2, dashboard=dashboard, **bad)
    arrays = {"image": np.zeros((400, 3, 8, 8), dtype=np.uint8), "label": np.arange(400)}
    return feedline.Loader(
        arrays, batch_size=4, num_workers=1, shuffle=True, memory="64MB", dashboard=dashboard
    )


def main() -> None:
    """Trains for ever."""
    # As programs do whose output is piped into `head`: a closed connection is then deadly.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    kind, folder = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    step = float(os.environ.get("TEST_STEP", "0.02"))
    loader = loader_of(kind, folder)
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    announced = False
    while not over.is_set():
        for _ in loader:
            time.sleep(step)
            if not announced:
                print("ready", loader.dashboard_url or "-", flush=True)
                announced = True
            if over.is_set():
                break


if __name__ == "__main__":
    main()
