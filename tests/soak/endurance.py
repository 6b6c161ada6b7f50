"""Long runs of every kind of loader: what they take must not grow, and where they are resumed must not show.

    python tests/soak/endurance.py leaks --rounds 2000
    python tests/soak/endurance.py loops --rounds 2000

`leaks` iterates the same loader again and again and looks at the process and its workers from outside:
memory, descriptors, threads, processes, shared memory. `loops` breaks an epoch off at a random batch, carries
the state to a new loader, goes on, and compares all batches with those of an undisturbed run. The last line
counts; the exit code is 1 after any growth or difference.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline
import feedline.torch
import numpy as np

ROWS, BATCH = 96, 8
# Rounds after which every pool and cache has what it will have.
WARM = 20
# What chance may add: a pool that grows by a batch, a library's own caches.
MEMORY = 48 << 20


class Numbers:
    """A Python data set of arrays and text."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full((64, 64), index, np.float32), "name": str(index)}


def loaders() -> dict[str, Any]:
    """By name, how each kind is made."""
    arrays = {"image": np.arange(ROWS * 3 * 32 * 32, dtype=np.uint8).reshape(ROWS, 3, 32, 32)}
    ours: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 3}
    crop = [feedline.transforms.RandomCrop(24)]
    torchs: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": 2}
    return {
        "native": lambda: feedline.Loader(arrays, crop, num_workers=2, **ours),
        "inline": lambda: feedline.Loader(Numbers(), num_workers=0, **ours),
        "threads": lambda: feedline.Loader(Numbers(), num_workers=2, executor="threads", **ours),
        "processes": lambda: feedline.Loader(Numbers(), num_workers=2, executor="processes", **ours),
        "torch": lambda: feedline.torch.DataLoader(Numbers(), executor="processes", **torchs),
        "torch, persistent": lambda: feedline.torch.DataLoader(
            Numbers(), executor="processes", persistent_workers=True, **torchs
        ),
        "torch, threads": lambda: feedline.torch.DataLoader(Numbers(), executor="threads", **torchs),
    }


def taken() -> dict[str, int]:
    """What this process has of the system."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    # Pages that are shared with forks count too: what is private varies with those that live.
    memory = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "memory": memory,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(children),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
    }


def leaks(rounds: int) -> list[str]:
    found = []
    for name, make in loaders().items():
        loader = make()
        for _ in range(WARM):
            for _ in loader:
                pass
        before = taken()
        for _ in range(max(1, rounds // len(loaders()))):
            for _ in loader:
                pass
        after = taken()
        allowed = {"memory": MEMORY, "descriptors": 2, "threads": 0, "processes": 0, "maps": 40}
        grown = {key: after[key] - before[key] for key in before if after[key] - before[key] > allowed[key]}
        if grown:
            found.append(f"{name}: grew by {grown}")
        print(json.dumps({"loader": name, "before": before, "after": after}), flush=True)
        loader.close()
    return found


def digest(batch: Any) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for value in batch.values() if isinstance(batch, dict) else batch:
        whole.update(repr(value).encode() if isinstance(value, list) else np.asarray(value).tobytes())
    return whole.hexdigest()


def stream(make: Any, draws: random.Random | None) -> Iterator[str]:
    """All batches of epoch after epoch; with `draws`, broken off and resumed at random."""
    loader = make()
    while True:
        stops = None if draws is None else draws.randrange(1, ROWS // BATCH + 1)
        for number, batch in enumerate(loader, start=1):
            yield digest(batch)
            if number == stops:
                state = loader.state_dict()
                loader.close()
                loader = make()
                loader.load_state_dict(json.loads(json.dumps(state)))
                break


def loops(rounds: int) -> list[str]:
    found = []
    for name, make in loaders().items():
        if name.startswith("torch"):
            # Its later epochs are drawn from torch's generator, which this process shares with the
            # undisturbed run: tests/python/torch_differential compares those.
            continue
        count = max(1, rounds // 4) * (ROWS // BATCH)
        disturbed = stream(make, random.Random(7))
        for at, pair in enumerate(itertools.islice(zip(stream(make, None), disturbed, strict=False), count)):
            if pair[0] != pair[1]:
                found.append(f"{name}: batch {at} differs")
                break
        print(json.dumps({"loader": name, "batches": count}), flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", choices=["leaks", "loops"])
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    found = {"leaks": leaks, "loops": loops}[options.campaign](options.rounds)
    print("; ".join(found) if found else f"{options.rounds:,} rounds of {len(loaders())} kinds of loaders")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
