"""Whole loaders on the same photos and the same work, epoch by epoch in turn.

    python benchmarks/run.py SAMPLE_DATA [--rounds 5] [--workers 2] [--update-readme]

Prints a table, keeps the raw figures in benchmarks/runs/, and fails if feedline is below its bar.
Machines drift by more than loaders differ, so only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
#: Name in the table, script, packages whose versions matter.
LOADERS = [
    ("feedline", "feedline_loader.py", ["feedline", "numpy"]),
    ("torch DataLoader + Pillow", "torch_pillow.py", ["torch", "torchvision", "pillow"]),
]
#: feedline must be at least so many times as fast as torch with Pillow.
BAR = 3.0


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for parent in found:
        tasks = Path(f"/proc/{parent}/task")
        try:
            children = [(task / "children").read_text() for task in tasks.iterdir()]
        except OSError:
            continue
        found += [int(child) for text in children for child in text.split()]
    return found


def pss(pid: int) -> int:
    """Bytes of memory, pages that processes share counted once."""
    total = 0
    for member in family(pid):
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants."""
    ticks = 0
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Contestant:
    """A loader in its own process, with an eye on its memory."""

    def __init__(self, name: str, script: str, data: str, workers: int) -> None:
        self.name = name
        self.peak = 0
        self.epochs: list[dict[str, Any]] = []
        command = [sys.executable, str(HERE / "loaders" / script), data, str(workers)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.running = threading.Event()
        self.ended = threading.Event()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while not self.ended.wait(0.5):
            if self.running.is_set():
                self.peak = max(self.peak, pss(self.process.pid))

    def epoch(self) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        cpu = cpu_seconds(self.process.pid)
        self.running.set()
        self.process.stdin.write("epoch\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        self.running.clear()
        if not line:
            raise SystemExit(f"{self.name} ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        answer["cpu"] = cpu_seconds(self.process.pid) - cpu
        return answer

    def end(self) -> None:
        self.ended.set()
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def rate(epoch: dict[str, Any]) -> float:
    return float(epoch["images"] / epoch["seconds"])


def machine() -> dict[str, Any]:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": model[0].split(":")[1].strip() if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def table(contestants: list[Contestant]) -> list[str]:
    base = contestants[-1]
    rows = [
        "| loader | images/s | ratio | peak memory | first batch | CPU per image |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for one in contestants:
        ratios = [rate(a) / rate(b) for a, b in zip(one.epochs, base.epochs, strict=True)]
        speed = statistics.median(map(rate, one.epochs))
        cpu = statistics.median(epoch["cpu"] / epoch["images"] for epoch in one.epochs)
        rows.append(
            f"| {one.name} | {speed:,.0f} | {statistics.median(ratios):.2f}x | {one.peak / 1e6:,.0f} MB "
            f"| {one.epochs[0]['first'] * 1e3:,.0f} ms | {cpu * 1e3:.2f} ms |"
        )
    return rows


def update_readme(rows: list[str], note: str) -> None:
    text = README.read_text()
    begin, end = "<!-- benchmark -->", "<!-- /benchmark -->"
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    README.write_text(head + begin + "\n" + "\n".join(rows) + "\n\n" + note + "\n" + end + tail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--update-readme", action="store_true")
    options = parser.parse_args()

    contestants = [Contestant(name, script, options.data, options.workers) for name, script, _ in LOADERS]
    for round_number in range(options.rounds + 1):
        for one in contestants:
            epoch = one.epoch()
            # The first epoch starts workers and fills the page cache.
            if round_number > 0:
                one.epochs.append(epoch)
            print(f"round {round_number}: {one.name:<28} {rate(epoch):8,.0f} images/s", file=sys.stderr)
    for one in contestants:
        one.end()

    rows = table(contestants)
    print("\n".join(rows))
    versions = {name: importlib.metadata.version(name) for _, _, names in LOADERS for name in names}
    now = datetime.datetime.now(datetime.timezone.utc)
    record = {
        "when": now.isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/run.py", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions,
        "epochs": {one.name: one.epochs for one in contestants},
        "peak_pss": {one.name: one.peak for one in contestants},
    }
    kept = HERE / "runs" / f"{now:%Y-%m-%d}-photos.json"
    kept.write_text(json.dumps(record, indent=1) + "\n")
    if options.update_readme:
        where = f"{record['machine']['cpu']}, {record['machine']['cores']} cores"
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        note = (
            "2,000 sample photos (500x375, 99 kB), RandomResizedCrop(224), flip, normalise to float32, "
            f"batch 64, {options.workers} workers, warm page cache, median of {options.rounds} alternating "
            f"epochs. {where}; {named}. "
            f"Raw data: `{kept.relative_to(HERE.parent)}`; again: `make bench`."
        )
        update_readme(rows, note)

    ratio = statistics.median(
        rate(a) / rate(b) for a, b in zip(contestants[0].epochs, contestants[-1].epochs, strict=True)
    )
    print(f"feedline is {ratio:.2f}x torch with Pillow; the bar is {BAR}x")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
