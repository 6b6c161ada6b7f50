"""How long feedline takes to start and what a sample costs in memory; prints JSON.

    python benchmarks/start.py first FOLDER      # from Loader(...) to its first batch
    python benchmarks/start.py manifest FOLDER   # the same over a manifest of 1,000,000 distinct paths

Each in a fresh process, in which nobody has imported torch.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import feedline
from feedline import transforms as T

SAMPLES = 1_000_000
CHAIN = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_manifest(photos: Path, folder: Path) -> Path:
    """Names that all exist: links to the folder, as many as it takes."""
    files = sorted(path.relative_to(photos) for path in photos.rglob("*.jpg"))
    path = folder / "manifest.csv"
    with path.open("w") as manifest:
        manifest.write("path,label\n")
        for number in range(SAMPLES):
            copy, index = divmod(number, len(files))
            link = folder / f"copy-{copy:03}"
            if index == 0:
                link.symlink_to(photos)
            manifest.write(f"{link.name}/{files[index]},{number % 1000}\n")
    return path


def first(source: Path) -> dict[str, float]:
    began = time.perf_counter()
    next(iter(feedline.Loader(str(source), CHAIN, batch_size=64, shuffle=True, num_workers=2)))
    return {"first_batch_ms": (time.perf_counter() - began) * 1e3}


def manifest(photos: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as work:
        path = write_manifest(photos, Path(work))
        text = path.stat().st_size
        # What the first loader of a process costs is no sample's fault.
        feedline.Loader(str(photos), CHAIN)
        before, began = resident(), time.perf_counter()
        loader = feedline.Loader(str(path), CHAIN, batch_size=64, shuffle=True, num_workers=2)
        built, held = time.perf_counter() - began, resident() - before
        next(iter(loader))
        return {
            "manifest_seconds": time.perf_counter() - began,
            "manifest_built_seconds": built,
            "manifest_text_bytes": text / SAMPLES,
            "manifest_bytes": (held - text) / SAMPLES,
        }


if __name__ == "__main__":
    measure = {"first": first, "manifest": manifest}[sys.argv[1]]
    print(json.dumps(measure(Path(sys.argv[2]).resolve())))
