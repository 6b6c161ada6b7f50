"""Data sets of Python code: feedline.torch.DataLoader beside torch's own, in turn.

    python benchmarks/python_code.py [--works sleeping,photos,tokens,start,stream,objects,state] [--rounds 3]

Prints tables and a verdict for each bar, keeps the record in benchmarks/runs/, and fails if a bar is
missed. Only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import photos
from bars import Bar, judge
from contest import Contestant, hold
from report import median_of, ratio, replace_block, speed, times
from run import QUIET, README, choose, machine, say

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "loaders" / "python_loader.py"
#: Of small objects, in megabytes.
OBJECTS = 1000
SLEEPING = ("torch", "feedline", "feedline_threads", "feedline_processes")
PHOTOS = ("torch", "torch_forkserver", "feedline", "feedline_threads", "feedline_processes")
START = ("torch_fork", "feedline", "torch_spawn", "feedline_spawn", "torch_forkserver", "feedline_forkserver")
#: By kind of data set, those whose memory is measured.
HOLDERS = {
    "objects": ("feedline_threads", "feedline_processes", "torch_fork", "torch_spawn"),
    "arrays": ("feedline_threads", "feedline_processes", "torch_fork"),
    "opened": ("feedline_threads", "feedline_processes", "torch_fork"),
}
FEW, MANY = 1, 8
TOKENS = ("torch", "feedline", "feedline_processes", "feedline_loader")
#: Rows of the file of tokens: 400 MB.
ROWS = 200_000
STREAM = ("torch_fork", "feedline")
STATE = ("feedline", "feedline_processes", "stateful")

TITLES = {
    "torch": "torch",
    "torch_fork": "torch, fork",
    "torch_spawn": "torch, spawn",
    "torch_forkserver": "torch, forkserver",
    "stateful": "StatefulDataLoader",
    "feedline": "feedline",
    "feedline_threads": "feedline, threads",
    "feedline_processes": "feedline, processes",
    "feedline_spawn": "feedline, spawn",
    "feedline_forkserver": "feedline, forkserver",
    "feedline_loader": "feedline.Loader",
    "objects": "a list of dicts",
    "arrays": "arrays",
    "opened": "files that each worker maps",
}


def command(work: str, who: str, workers: int, *arguments: object) -> list[str]:
    return [sys.executable, str(SCRIPT), work, who, str(workers), *map(str, arguments)]


def contest(work: str, names: tuple[str, ...], workers: int, rounds: int, *arguments: object) -> Any:
    """Epochs in turn; the form is that of benchmarks/run.py."""

    def make(logs: Path) -> list[Contestant]:
        return [
            Contestant(name, command(work, name, workers, *arguments), dict(os.environ), logs / f"{name}.txt")
            for name in names
        ]

    return hold(make, workers, rounds, say)


def once(work: str, who: str, workers: int, *arguments: object) -> dict[str, Any]:
    """One answer of a fresh process."""
    done = subprocess.run(command(work, who, workers, *arguments), capture_output=True, text=True)
    if done.returncode != 0:
        say(done.stderr)
        sys.exit(f"{work}: {who} failed")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def sleeping(rounds: int) -> Any:
    return contest("sleeping", SLEEPING, 4, rounds)


def standard_photos() -> Path:
    folder = photos.ensure() / "standard"
    for path in folder.rglob("*.jpg"):
        # Warm, for all alike.
        path.read_bytes()
    return folder


def pillow(rounds: int) -> Any:
    return contest("photos", PHOTOS, 2, rounds, standard_photos())


def tokens(rounds: int) -> Any:
    with tempfile.NamedTemporaryFile() as file:
        np.random.default_rng(0).integers(0, 50_000, ROWS * 1024, np.uint16).tofile(file.name)
        return contest("tokens", TOKENS, 2, rounds, file.name)


def start(rounds: int) -> Any:
    return first_batches("start", START, rounds, standard_photos())


def stream(rounds: int) -> Any:
    return first_batches("stream", STREAM, rounds)


def first_batches(work: str, names: tuple[str, ...], rounds: int, *arguments: object) -> Any:
    figures: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            answer = once(work, name, 2, *arguments)
            figures[name].append(answer)
            second = answer["second_epoch"] * 1e3
            say(
                f"round {number + 1} of {rounds}: {name:<20} first batch {answer['first'] * 1e3:7,.0f} ms, "
                f"of the second epoch {second:7,.1f} ms"
            )
    return figures


def objects(rounds: int) -> Any:
    """Peak memory by kind of data set, loader and number of workers; `rounds` makes no difference."""
    figures: dict[str, Any] = {}
    for kind, names in HOLDERS.items():
        for name in names:
            for workers in (FEW, MANY):
                result = contest(kind, (name,), workers, 1, OBJECTS)["loaders"][name]
                peak = result.get("peak_pss")
                figures.setdefault(kind, {}).setdefault(name, {})[str(workers)] = peak
                shown = result.get("failure") or f"{peak / 1e6:,.0f} MB"
                say(f"{TITLES[kind]}, {TITLES[name]}, {workers} workers: {shown}")
    return figures


def state(rounds: int) -> Any:
    return {name: [once("state", name, 2) for _ in range(max(1, rounds // 2))] for name in STATE}


WORKS: dict[str, Callable[[int], Any]] = {
    "sleeping": sleeping,
    "photos": pillow,
    "tokens": tokens,
    "start": start,
    "stream": stream,
    "objects": objects,
    "state": state,
}


def peak_to(result: Any, name: str) -> float | None:
    peaks = [result["loaders"].get(one, {}).get("peak_pss") for one in (name, "torch")]
    return peaks[0] / peaks[1] if all(peaks) else None


def part_of_memory(result: Any) -> float | None:
    """Without what torch, torchvision and the data set take before there is a loader: most of it."""
    loaders = [result["loaders"].get(one, {}) for one in ("feedline", "torch")]
    if not all(one.get("peak_pss") for one in loaders):
        return None
    mine, theirs = (one["peak_pss"] - one["epochs"][0]["base_pss"] for one in loaders)
    return float(mine / theirs * 100)


def part_of_first(name: str, other: str) -> Callable[[Any], float]:
    return lambda figures: statistics.median(
        mine["first"] / theirs["first"] * 100
        for mine, theirs in zip(figures[name], figures[other], strict=True)
    )


def second_epoch(figures: Any, name: str = "feedline") -> float:
    return float(statistics.median(figure["second_epoch"] for figure in figures[name])) * 1e3


def growth(figures: Any) -> float | None:
    peaks = figures["objects"]["feedline_threads"]
    few, many = peaks[str(FEW)], peaks[str(MANY)]
    return (many / few - 1) * 100 if few and many else None


def part_of_step(figures: Any, name: str = "feedline") -> float:
    return float(statistics.median(figure["mean"] for figure in figures[name])) / 0.01 * 100


BARS = (
    Bar("sleeping: feedline to torch", ("sleeping",), lambda result: ratio(result, "feedline", "torch"), 1.4),
    Bar("photos: feedline to torch", ("photos",), lambda result: ratio(result, "feedline", "torch"), 1.0),
    Bar("photos: the loader's memory, of torch's", ("photos",), part_of_memory, 100, "%", at_most=True),
    Bar(
        "photos, processes: peak memory, to torch's fork",
        ("photos",),
        lambda result: peak_to(result, "feedline_processes"),
        1.1,
        at_most=True,
    ),
    # Of what a worker spends on a row here, the data set's own `__getitem__` is half.
    Bar(
        "mapped tokens, Python code: feedline to torch",
        ("tokens",),
        lambda result: ratio(result, "feedline", "torch"),
        2.5,
    ),
    Bar(
        "mapped tokens, feedline.Loader to torch",
        ("tokens",),
        lambda result: ratio(result, "feedline_loader", "torch"),
        3,
    ),
    Bar(
        "first batch of an iterable, of torch's",
        ("stream",),
        part_of_first("feedline", "torch_fork"),
        100,
        "%",
        at_most=True,
    ),
    Bar(
        "first batch, spawn, of torch's",
        ("start",),
        # Where processes are asked for, a worker makes it and not the program: imports come first.
        part_of_first("feedline_spawn", "torch_spawn"),
        100,
        "%",
        at_most=True,
    ),
    Bar(
        "first batch, forkserver, of torch's",
        ("start",),
        part_of_first("feedline_forkserver", "torch_forkserver"),
        100,
        "%",
        at_most=True,
    ),
    Bar(
        "first batch, of torch's with fork",
        ("start",),
        part_of_first("feedline", "torch_fork"),
        100,
        "%",
        at_most=True,
    ),
    Bar("first batch of the second epoch", ("start",), second_epoch, 5, "ms", at_most=True),
    Bar("1 GB of objects, threads: growth from 1 to 8 workers", ("objects",), growth, 5, "%", at_most=True),
    Bar("a state after every step, of 10 ms", ("state",), part_of_step, 1, "%", at_most=True),
)


def rates(work: str, result: Any) -> list[str]:
    rows = [
        f"| {work} | samples/s | to torch | peak memory | of which the loader's | first batch "
        "| CPU per 1,000 | picked |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, entry in result["loaders"].items():
        if "failure" in entry:
            rows.append(f"| {TITLES[name]} | {entry['failure']} |")
            continue
        picked = entry["epochs"][-1].get("chosen") or {}
        cells = [
            TITLES[name],
            f"{speed(result, name):,.0f}",
            times(ratio(result, name, "torch")),
            f"{entry['peak_pss'] / 1e6:,.0f} MB",
            f"{(entry['peak_pss'] - entry['epochs'][0]['base_pss']) / 1e6:,.0f} MB",
            f"{entry['epochs'][0]['first'] * 1e3:,.0f} ms",
            f"{median_of(entry['epochs'], 'cpu') * 1e3:.3g} s",
            str(picked.get("name", "")),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def starts(figures: Any) -> list[str]:
    rows = ["| start | first batch | first batch of the second epoch |", "|---|---:|---:|"]
    for name, answers in figures.items():
        first = statistics.median(answer["first"] for answer in answers) * 1e3
        rows.append(f"| {TITLES[name]} | {first:,.0f} ms | {second_epoch(figures, name):,.1f} ms |")
    return rows


def memory(figures: Any) -> list[str]:
    """What holds the data set, who loads it, and what that takes with few and many workers."""
    rows = [
        f"| peak memory, {OBJECTS / 1000:g} GB as a list of dicts | held as | 1 worker | {MANY} workers |",
        "|---|---|---:|---:|",
    ]
    for kind, names in figures.items():
        for name, peaks in names.items():
            shown = [f"{peak / 1e6:,.0f} MB" if peak else "did not run" for peak in peaks.values()]
            rows.append(f"| {TITLES[name]} | {TITLES[kind]} | {' | '.join(shown)} |")
    return rows


def states(figures: Any) -> list[str]:
    rows = ["| a state after every step | of a step of 10 ms | worst |", "|---|---:|---:|"]
    for name, answers in figures.items():
        worst = max(answer["worst"] for answer in answers) * 1e3
        rows.append(f"| {TITLES[name]} | {part_of_step(figures, name):.2f} % | {worst:.2f} ms |")
    return rows


ADVICE = (
    "A list of Python objects is copied into every process: at once with spawn or forkserver, page by page "
    "with fork, as reading an object writes to its reference count. Three ways out, best first: let "
    "feedline read the files itself (`feedline.Loader`), so that no Python object stands for a sample; keep "
    "columns in files that a worker maps when it is first asked (`numpy.load(..., mmap_mode='r')`, Arrow), "
    "whose pages all processes share, or at least in arrays; or use `executor='threads'`: one process."
)


def text_of(results: dict[str, Any]) -> list[str]:
    text: list[str] = []
    titles = {
        "sleeping": "`__getitem__` sleeps for 1 ms: 10,000 samples of 3x224x224 float32, batch 64, 4 workers",
        "photos": "Pillow and torchvision v2: RandomResizedCrop(224), flip, normalise, batch 64, 2 workers",
        "tokens": f"{ROWS:,} rows of 1,024 tokens in a mapped file, shuffled, batch 64, 2 workers",
        "stream": "From the loader over an iterable to its first batch, and the next epoch's",
        "start": "From the loader to its first batch, the same photos, and after a pause the next epoch's",
        "objects": "Memory of a data set of small Python objects",
        "state": "`state_dict()` after every step",
    }
    for work, result in results.items():
        rows = {"start": starts, "stream": starts, "objects": memory, "state": states}.get(work)
        text += [f"## {titles[work]}", "", *(rows(result) if rows else rates(work, result)), ""]
        if work == "objects":
            text += [ADVICE, ""]
    return text


def readme_lines(results: dict[str, Any], note: str) -> list[str]:
    """Both loaders side by side."""

    def milliseconds(name: str) -> str:
        return f"{statistics.median(one['first'] for one in results['start'][name]) * 1e3:,.0f} ms"

    def megabytes(peak: int) -> str:
        return f"{peak / 1e6:,.0f} MB"

    slow, shots, held = results["sleeping"], results["photos"], results["objects"]["objects"]
    lines = [
        "| Python data sets | torch's DataLoader | feedline.torch.DataLoader |",
        "|---|---:|---:|",
    ]
    for title, result in {
        "`__getitem__` waits for 1 ms, 4 workers": slow,
        "Pillow + torchvision v2, 2 workers": shots,
    }.items():
        theirs, mine = (f"{speed(result, name):,.0f} samples/s" for name in ("torch", "feedline"))
        lines.append(f"| {title} | {theirs} | {mine} ({times(ratio(result, 'feedline', 'torch'))}) |")
    peaks = [megabytes(shots["loaders"][name]["peak_pss"]) for name in ("torch", "feedline")]
    firsts = [
        " / ".join(milliseconds(name) for name in names)
        for names in (("torch_fork", "torch_spawn"), ("feedline", "feedline_spawn"))
    ]
    seconds = [f"{second_epoch(results['start'], name):,.1f} ms" for name in ("torch_fork", "feedline")]
    many = [megabytes(held[name][str(MANY)]) for name in ("torch_fork", "feedline_threads")]
    lines += [
        f"| peak memory of that | {peaks[0]} | {peaks[1]} |",
        f"| its first batch: by default / with spawn | {firsts[0]} | {firsts[1]} |",
        f"| first batch of its second epoch | {seconds[0]} | {seconds[1]} |",
        f"| 1 GB of small objects, 8 workers (feedline: threads) | {many[0]} | {many[1]} |",
        "",
        note,
    ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", default="", help=f"of {', '.join(WORKS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--update-readme", action="store_true")
    parser.add_argument("--into", type=Path, default=HERE / "runs")
    options = parser.parse_args()
    works = choose(options.works, WORKS) or list(WORKS)
    full = set(works) == set(WORKS)

    began = time.monotonic()
    results = {}
    for work in works:
        say(f"\n{work}")
        results[work] = WORKS[work](options.rounds)
    verdicts = judge(results, BARS)
    text = [*text_of(results), "## Bars", "", "```", *map(str, verdicts), "```"]
    contests = [result for work, result in results.items() if work in ("sleeping", "photos", "tokens")]
    epochs = [
        epoch for result in contests for one in result["loaders"].values() for epoch in one.get("epochs", ())
    ]
    others = statistics.median(epoch["others"] for epoch in epochs) if epochs else 0.0
    if others > QUIET:
        warning = f"The machine was not quiet: others took {others:.0%} of it. Do not trust these figures."
        text = [warning, "", *text]
    print("\n".join(text))

    now = datetime.datetime.now(datetime.timezone.utc)
    names = ("feedline", "torch", "torchvision", "pillow", "torchdata")
    record = {
        "when": now.isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/python_code.py", *sys.argv[1:]]),
        "others": round(others, 3),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": machine(),
        "rounds": options.rounds,
        "versions": {name: importlib.metadata.version(name) for name in names},
        "python": results,
        "bars": [{"title": one.bar.title, "value": one.value, "met": one.met} for one in verdicts],
    }
    options.into.mkdir(parents=True, exist_ok=True)
    kept = options.into / (f"{now:%Y-%m-%d}-python" + ("" if full else f"-part-{'-'.join(works)}") + ".json")
    kept.write_text(json.dumps(record, indent=1) + "\n")
    place = f"{record['machine']['cpu']}, {record['machine']['cores']} cores, {record['machine']['system']}"
    named = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    head = [f"# {now:%Y-%m-%d}, Python code: {place}", "", f"`{record['command']}`", "", named, ""]
    kept.with_suffix(".md").write_text("\n".join([*head, *text]) + "\n")
    missed = [one for one in verdicts if not one.met]
    if options.update_readme and "objects" in results:
        lines = [*memory(results["objects"]), "", ADVICE]
        README.write_text(replace_block(README.read_text(), lines, "benchmark-memory"))
    if options.update_readme and full:
        report = kept.with_suffix(".md").relative_to(README.parent)
        note = (
            f"{place}; {named}; median of {options.rounds} alternating rounds. "
            f"{len(verdicts) - len(missed)} of {len(verdicts)} bars are met. Each executor by itself, what "
            "else was measured and what to do about memory: "
            f"[{kept.stem}]({report}); again: `make bench-python`."
        )
        lines = readme_lines(results, note)
        README.write_text(replace_block(README.read_text(), lines, "benchmark-python"))
    say(f"\n{kept} (also .md), {record['minutes']} minutes, {len(missed)} bars missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
