"""What a campaign does in a process of its own: rounds of damaged files through the installed package.

The process that started it looks at its processor time and memory from outside; each round is a line of JSON.
A number makes the same file in every round, so that a find can be narrowed down to one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import damage
import feedline
import writers

FIXTURES = Path(__file__).parents[2] / "crates/feedline/tests/fixtures"

# Each parser and its fixtures, which the format's own library wrote.
CONTAINERS = {
    "tar": ["plain.tar", "packed.tar.gz", "packed.tar.zst"],
    "tfrecord": ["examples.tfrecord", "examples.tfrecord.gz", "sequences.tfrecord"],
    "lmdb": ["samples.lmdb"],
    "hdf5": ["earliest.h5", "latest.h5"],
    "npy": ["rows.npy", "big-endian.npy", "fortran.npy", "stored.npz", "deflated.npz"],
    "parquet": ["plain.parquet", "packed.parquet", "snappy.parquet"],
    "arrow": ["plain.arrow", "stream.arrow", "packed.feather"],
    "csv": ["table.csv"],
    "jsonl": ["table.jsonl"],
    "zarr": ["v2.zarr", "v3.zarr"],
    "mds": ["mds"],
    "litdata": ["plain-litdata", "packed-litdata"],
    "zip": ["images.zip"],
    "packed": ["crop-index", "shards"],
    "raw": ["raw"],
}
WITHOUT_IMAGES = {"tfrecord", "npy", "csv", "jsonl", "zarr"}

# What `feedline pack` writes of the whole images.
PACKED = {"crop-index": ["--crop-index"], "shards": ["--to", "tar"], "raw": ["--raw"]}

ROUND = 1000
"""Images that are decoded with the same options."""

RESIZE, CROP = feedline.transforms.Resize((16, 16)), feedline.transforms.CenterCrop(16)
OPTIONS: list[tuple[feedline.transforms.Transform, dict[str, Any]]] = [
    (RESIZE, {}),
    (RESIZE, {"allow_truncated": True}),
    (CROP, {"allow_damaged": True}),
    (RESIZE, {"allow_damaged": True, "allow_truncated": True, "exif_orientation": True}),
    (CROP, {"mode": "gray"}),
    (RESIZE, {"mode": "gray", "allow_damaged": True, "allow_truncated": True, "exact": True}),
]

Result = dict[str, bytes]
"""The pixels of each good file, as a hash."""


def _pixels(image: Any) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()


def _loader(manifest: Path, first: int, **how: Any) -> feedline.Loader:
    transform, decode = OPTIONS[first // ROUND % len(OPTIONS)]
    return feedline.Loader(str(manifest), transforms=[transform], memory="64MB", decode=decode, **how)


def _write(manifest: Path, rows: list[str]) -> None:
    manifest.write_text("path,label\n" + "".join(f"{row},{label}\n" for label, row in enumerate(rows)))


def _pass(manifest: Path, rows: list[str], first: int, seed: int, workers: int) -> tuple[Result, set[str]]:
    """What each good file became, and which were bad, in one order with one set of workers."""
    quarantine = manifest.with_name("bad.jsonl")
    how = {"shuffle": True, "seed": seed, "num_workers": workers, "quarantine": quarantine}
    good: Result = {}
    with contextlib.closing(_loader(manifest, first, batch_size=32, on_error="skip", **how)) as loader:
        for batch in loader:
            for label, image in zip(batch["label"].tolist(), batch["image"], strict=True):
                row = _pixels(image)
                if good.setdefault(rows[label], row) != row:
                    raise AssertionError(f"{rows[label]} has two results in one epoch")
    bad = {rows[json.loads(line)["index"]] for line in quarantine.read_text().splitlines() if line.strip()}
    quarantine.unlink()
    return good, bad


def _fresh(manifest: Path, row: str, first: int) -> bytes | None:
    """What a decoder that never saw another file makes of one."""
    _write(manifest, [row])
    with contextlib.closing(_loader(manifest, first, num_workers=0)) as loader:
        try:
            return _pixels(next(iter(loader))["image"])
        except (feedline.SampleError, feedline.MemoryLimitError):
            return None


def images(folder: Path, first: int, count: int) -> dict[str, Any]:
    """`count` damaged images among whole ones, in two orders of used decoders and some in fresh ones: one
    result each, whatever came before."""
    whole = [f"whole-{name}-{n}" for name, files in damage.seeds().items() for n in range(len(files))]
    if not (folder / whole[0]).exists():
        for row, data in zip(
            whole, (data for files in damage.seeds().values() for data in files), strict=True
        ):
            (folder / row).write_bytes(data)
    damaged = [f"damaged-{number}" for number in range(first, first + count)]
    for number, row in enumerate(damaged, first):
        (folder / row).write_bytes(damage.image(number))
    # Enough good samples to stand in for the bad ones.
    rows = whole + damaged + [whole[n % len(whole)] for n in range(count // 2)]
    manifest = folder / "set.csv"
    _write(manifest, rows)
    (good, bad), two = (_pass(manifest, rows, first, seed, 3 - seed) for seed in (1, 2))
    if bad != two[1]:
        raise AssertionError(f"bad in one order only: {', '.join(sorted(bad ^ two[1])[:3])}")
    if wrong := bad & {*whole, *good}:
        raise AssertionError(f"whole or good elsewhere, but bad: {', '.join(sorted(wrong)[:3])}")
    for row, pixels in good.items():
        if two[0].get(row, pixels) != pixels:
            raise AssertionError(f"{row} depends on what came before it")
    for row in damaged[::8]:
        if _fresh(manifest, row, first) != good.get(row):
            raise AssertionError(f"{row} is another one in a fresh decoder")
    for row in damaged:
        os.unlink(folder / row)
    return {"mutations": count, "refused": len(bad), "fresh": len(damaged[::8])}


def _values(name: str, target: Path, workers: int = 1) -> int:
    """How many values can be had of a file."""
    packed = target.name in PACKED
    loader = feedline.Loader(
        str(target) if packed else {"kind": name, "path": str(target)},
        # Parts of images, for which a crop index is.
        transforms=[feedline.transforms.RandomResizedCrop(16)] if packed else [],
        batch_size=4,
        num_workers=workers,
        memory="64MB",
        decode={} if packed or name in WITHOUT_IMAGES else {"mode": "bytes"},
        on_error="skip",
    )
    values = sum(len(batch) for batch in loader)
    loader.close()
    return values


@functools.cache
def _source(fixture: str, folder: Path) -> Path:
    """Where a fixture lies, which may have to be written."""
    if fixture.endswith("-litdata"):
        writers.litdata(folder / fixture, fixture.startswith("packed"))
    elif fixture in PACKED:
        photos = folder / f"{fixture}-photos"
        for number, name in enumerate(("JPEG", "JPEG", "PNG", "TIFF")):
            path = photos / f"class-{number % 2}/{number}.{name.lower()}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(damage.seeds()[name][number])
        command = ["pack", str(photos), str(folder / fixture), "--no-trial", "--quiet", *PACKED[fixture]]
        subprocess.run([sys.executable, "-m", "feedline", *command], check=True, stdout=subprocess.DEVNULL)
    else:
        return FIXTURES / fixture
    return folder / fixture


def _files(folders: set[str]) -> Iterator[str]:
    for folder in folders:
        with os.scandir(folder) as entries:
            yield from (entry.path for entry in entries if entry.is_file(follow_symlinks=False))


def containers(name: str, folder: Path, first: int, count: int) -> dict[str, Any]:
    """`count` damaged files of one format, each opened and read to its end."""
    result: collections.Counter[str] = collections.Counter()
    fixtures = CONTAINERS[name]
    for which, fixture in enumerate(fixtures):
        numbers = [number for number in range(first, first + count) if number % len(fixtures) == which]
        if not numbers:
            continue
        source, place = _source(fixture, folder), folder / "set"
        target = place / fixture
        place.mkdir()
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        assert _values(name, target) > 0, f"{fixture} is read while it is whole"
        folders = {str(place), *(root for root, _, _ in os.walk(target))}
        # The index that this may have left behind is untrusted like the rest.
        whole = {path: Path(path).read_bytes() for path in sorted(_files(folders))}
        files = [path for path in whole if whole[path]]
        for number in numbers:
            path = files[number // len(fixtures) % len(files)]
            Path(path).write_bytes(damage.damaged(name, whole[path], [whole[file] for file in files], number))
            try:
                result["values"] += _values(name, target, number % 2)
            except (feedline.Error, OSError) as error:
                result["refused"] += 1
                result[type(error).__name__] += 1
            Path(path).write_bytes(whole[path])
            for file in _files(folders):
                if file not in whole:
                    os.unlink(file)
        shutil.rmtree(place)
    return {"mutations": count, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=ROUND)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    parent = os.getppid()
    # Made before the first round, whose time and memory are its own.
    damage.seeds()
    with tempfile.TemporaryDirectory(prefix="feedline-soak-") as folder:
        for number in range(options.rounds):
            if os.getppid() != parent:
                raise SystemExit("nobody watches any more")
            first = options.first + number * options.count
            print(json.dumps({"begin": first}), flush=True)
            if options.campaign == "images":
                result = images(Path(folder), first, options.count)
            else:
                result = containers(options.campaign, Path(folder), first, options.count)
            print(json.dumps({"first": first, **result}), flush=True)


if __name__ == "__main__":
    main()
