"""Every format beside the image folder, and beside the format's usual Python reader, in turn.

    python benchmarks/formats.py [--works loading,lmdb,tar,...] [--rounds 3]

Prints tables and a verdict for each bar, keeps the record in benchmarks/runs/, and fails if a bar is
missed. Only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import photos
from bars import Bar, judge
from contest import Contestant, hold, pss
from report import disturbance, ratio, speed, times
from run import QUIET, choose, machine, say

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "loaders" / "format_loader.py"
WORKERS = 2
#: Formats that hold encoded photos.
CONTAINERS = ("tar", "lmdb", "tfrecord", "parquet", "arrow")
#: Rows of the HDF5 file: 3x96x96 bytes each.
ROWS = 10_000
SHARDS = 100


def packed(folder: Path, name: str, *arguments: str) -> Path:
    """The standard photos in a format, made once beside them."""
    made = folder / "formats" / name
    if not (made / "feedline.json").exists():
        made.parent.mkdir(exist_ok=True)
        pack(folder / "standard", made, *arguments)
    return made


def pack(source: Path, made: Path, *arguments: str) -> None:
    command = ["feedline", "pack", str(source), str(made), "--no-trial", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)


def warm(path: Path) -> None:
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            file.read_bytes()


def contest(entries: dict[str, tuple[str, Path]], rounds: int) -> Any:
    """Epochs in turn, by name: who reads what. The form is that of benchmarks/run.py."""

    def make(logs: Path) -> list[Contestant]:
        contestants = []
        for name, (who, path) in entries.items():
            warm(path)
            line = [sys.executable, str(SCRIPT), who, str(WORKERS), str(path)]
            contestants.append(Contestant(name, line, dict(os.environ), logs / f"{name}.txt"))
        return contestants

    return hold(make, WORKERS, rounds, say)


def loading(folder: Path, rounds: int) -> Any:
    entries = {"folder": ("feedline_loading", folder / "standard")}
    for name in CONTAINERS:
        entries[name] = ("feedline_loading", packed(folder, name, "--to", name))
    return contest(entries, rounds)


def reading(name: str, rival: str) -> Callable[[Path, int], Any]:
    def work(folder: Path, rounds: int) -> Any:
        path = packed(folder, name, "--to", name)
        theirs = next(path.glob("*.lmdb")) if name == "lmdb" else path
        return contest({"feedline": ("feedline_reading", path), rival: (rival, theirs)}, rounds)

    return work


def rows(folder: Path, rounds: int) -> Any:
    """Rows of an array, as people keep small images in HDF5."""
    path = folder / "formats" / "rows.h5"
    if not path.exists():
        import h5py
        import numpy

        path.parent.mkdir(exist_ok=True)
        with h5py.File(path.with_suffix(".partial"), "w") as file:
            pixels = numpy.random.default_rng(0).integers(0, 256, (ROWS, 3, 96, 96), dtype=numpy.uint8)
            file.create_dataset("x", data=pixels, chunks=(1, 3, 96, 96))
            file["y"] = numpy.arange(ROWS) % 10
        path.with_suffix(".partial").rename(path)
    return contest({"feedline": ("feedline_rows", path), "h5py": ("h5py", path)}, rounds)


def start(folder: Path, rounds: int) -> Any:
    """Seconds until a loader over many shards with their indexes is there."""
    path = packed(folder, "shards", "--to", "tar", "--shard-samples", "40")
    code = (
        "import sys, time, feedline\n"
        "for _ in range(2):\n"
        "    began = time.perf_counter()\n"
        "    loader = feedline.Loader(sys.argv[1], decode={'mode': 'bytes'}, batch_size=64)\n"
        "    seconds = time.perf_counter() - began\n"
        "print(seconds)"
    )
    seconds = []
    count = len(list(path.glob("*.tar")))
    pattern = str(path / "*.tar")
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", code, pattern], capture_output=True, text=True, check=True
        )
        seconds.append(float(done.stdout))
    say(f"{count} shards: {statistics.median(seconds) * 1e3:.1f} ms")
    return {"seconds": seconds, "shards": count}


def timed(command: list[str]) -> dict[str, float]:
    """How long a command takes, and the most memory that it had."""
    began, peak = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            peak = max(peak, pss(process.pid))
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        if process.returncode:
            assert process.stderr
            sys.exit(f"{command} failed: {process.stderr.read().decode()}")
    return {"seconds": seconds, "peak_pss": peak}


WRITE = """
import sys
from pathlib import Path
import webdataset
with webdataset.ShardWriter(sys.argv[2] + "/%06d.tar", maxsize=256e6, verbose=0) as writer:
    folders = sorted(Path(sys.argv[1]).iterdir())
    for label, folder in enumerate(folders):
        for path in sorted(folder.iterdir()):
            key = f"{folder.name}_{path.stem}"
            writer.write({"__key__": key, "jpg": path.read_bytes(), "cls": label})
"""


def packing(folder: Path, rounds: int) -> Any:
    """Writing all photos into tar, by turns."""
    source, target = folder / "standard", folder / "formats" / "packing"
    plain = ["feedline", "pack", str(source), str(target), "--no-trial", "--to", "tar"]
    commands = {
        "feedline": plain,
        "feedline, crop index": [*plain, "--crop-index"],
        "feedline, crop index, no check": [*plain, "--crop-index", "--no-check"],
        "webdataset": [sys.executable, "-c", WRITE, str(source), str(target)],
    }
    warm(source)
    figures: dict[str, list[Any]] = {name: [] for name in commands}
    for number in range(rounds):
        for name, command in commands.items():
            shutil.rmtree(target, ignore_errors=True)
            if name == "webdataset":
                target.mkdir(parents=True)
            figures[name].append(timed(command))
            figure = figures[name][-1]
            say(
                f"round {number + 1} of {rounds}: {name:<32} {figure['seconds']:6.2f} s, "
                f"{figure['peak_pss'] / 1e6:,.0f} MB"
            )
    shutil.rmtree(target, ignore_errors=True)
    return figures


def blocks(folder: Path, rounds: int) -> Any:
    """What a full shuffle costs where data is compressed in blocks."""
    path = packed(folder, "tar-zstd", "--to", "tar", "--compression", "zstd", "--shard-samples", "100")
    entries = {"open_blocks=auto": ("feedline_blocks", path), "open_blocks=all": ("feedline_all", path)}
    return contest(entries, rounds)


WORKS: dict[str, Callable[[Path, int], Any]] = {
    "loading": loading,
    "lmdb": reading("lmdb", "py_lmdb"),
    "tar": reading("tar", "webdataset"),
    "hdf5": rows,
    "tfrecord": reading("tfrecord", "tf_data"),
    "parquet": reading("parquet", "pyarrow"),
    "blocks": blocks,
    "start": start,
    "packing": packing,
}


def to(name: str, other: str) -> Callable[[Any], float | None]:
    return lambda result: ratio(result, name, other)


def of_folder(name: str) -> Callable[[Any], float | None]:
    def part(result: Any) -> float | None:
        value = ratio(result, name, "folder")
        return value * 100 if value else None

    return part


def as_fast(name: str) -> Callable[[Any], float]:
    return lambda figures: statistics.median(
        theirs["seconds"] / mine["seconds"]
        for mine, theirs in zip(figures[name], figures["webdataset"], strict=True)
    )


def most_memory(figures: Any) -> float:
    ours = [figure["peak_pss"] for name in figures if name != "webdataset" for figure in figures[name]]
    return float(max(ours)) / 1e6


BARS = (
    *(
        Bar(f"loading: {name}, of the folder's", ("loading",), of_folder(name), 97, "%")
        for name in CONTAINERS
    ),
    Bar("reading LMDB: to py-lmdb with torch", ("lmdb",), to("feedline", "py_lmdb"), 5),
    Bar("reading tar: to webdataset with torch", ("tar",), to("feedline", "webdataset"), 5),
    Bar("reading HDF5 rows: to h5py with torch", ("hdf5",), to("feedline", "h5py"), 5),
    Bar("reading TFRecord: to tf.data", ("tfrecord",), to("feedline", "tf_data"), 2),
    Bar("reading Parquet: to pyarrow", ("parquet",), to("feedline", "pyarrow"), 1),
    Bar(
        "start with 100 shards and their indexes",
        ("start",),
        lambda result: statistics.median(result["seconds"]) * 1e3,
        100,
        "ms",
        at_most=True,
    ),
    Bar("packing tar: to webdataset's writer", ("packing",), as_fast("feedline"), 4),
    Bar("packing crop-indexed tar: to the same", ("packing",), as_fast("feedline, crop index"), 4),
    Bar("packing: peak memory", ("packing",), most_memory, 300, "MB", at_most=True),
)


def rates(work: str, result: Any) -> list[str]:
    first = next(iter(result["loaders"]))
    rows = [f"| {work} | samples/s | to {first} | peak memory | first batch |", "|---|---:|---:|---:|---:|"]
    for name, entry in result["loaders"].items():
        if "failure" in entry:
            rows.append(f"| {name} | {entry['failure']} |")
            continue
        cells = [
            name,
            f"{speed(result, name):,.0f}",
            times(ratio(result, name, first)),
            f"{entry['peak_pss'] / 1e6:,.0f} MB",
            f"{entry['epochs'][0]['first'] * 1e3:,.0f} ms",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def packs(figures: Any) -> list[str]:
    rows = ["| packing 4,000 photos | seconds | peak memory |", "|---|---:|---:|"]
    for name, each in figures.items():
        seconds = statistics.median(figure["seconds"] for figure in each)
        peak = max(figure["peak_pss"] for figure in each) / 1e6
        rows.append(f"| {name} | {seconds:.2f} | {peak:,.0f} MB |")
    return rows


def text_of(results: dict[str, Any]) -> list[str]:
    text: list[str] = []
    for work, result in results.items():
        if work == "start":
            milliseconds = statistics.median(result["seconds"]) * 1e3
            text += [f"A loader over {result['shards']} shards with indexes: {milliseconds:.1f} ms", ""]
        else:
            text += [*(packs(result) if work == "packing" else rates(work, result)), ""]
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", default="", help=f"of {', '.join(WORKS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--into", type=Path, default=HERE / "runs")
    options = parser.parse_args()
    works = choose(options.works, WORKS) or list(WORKS)
    began = time.monotonic()
    folder = photos.ensure()
    results = {}
    for work in works:
        say(f"\n{work}")
        results[work] = WORKS[work](folder, options.rounds)
    verdicts = judge(results, BARS)
    text = [*text_of(results), "```", *map(str, verdicts), "```"]
    contests = {work: result for work, result in results.items() if "loaders" in result}
    others = disturbance(contests)
    if others > QUIET:
        text = [f"The machine was not quiet: others took {others:.0%} of it.", "", *text]
    print("\n".join(text))
    now = datetime.datetime.now(datetime.timezone.utc)
    names = ("feedline", "torch", "webdataset", "lmdb", "h5py", "pyarrow", "tensorflow-cpu")
    record = {
        "when": now.isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/formats.py", *sys.argv[1:]]),
        "others": round(others, 3),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": machine(),
        "rounds": options.rounds,
        "versions": {name: importlib.metadata.version(name) for name in names},
        "formats": results,
        "bars": [{"title": one.bar.title, "value": one.value, "met": one.met} for one in verdicts],
    }
    part = "" if set(works) == set(WORKS) else f"-part-{'-'.join(works)}"
    options.into.mkdir(parents=True, exist_ok=True)
    kept = options.into / f"{now:%Y-%m-%d}-formats{part}.json"
    kept.write_text(json.dumps(record, indent=1) + "\n")
    place = f"{record['machine']['cpu']}, {record['machine']['cores']} cores, {record['machine']['system']}"
    named = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    head = [f"# {now:%Y-%m-%d}, formats: {place}", "", f"`{record['command']}`", "", named, ""]
    kept.with_suffix(".md").write_text("\n".join([*head, *text]) + "\n")
    missed = sum(not one.met for one in verdicts)
    say(f"\n{kept} (also .md), {record['minutes']} minutes, {missed} bars missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
