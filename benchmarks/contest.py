"""Loaders in processes of their own that run epochs in turn, with an eye on memory and processor time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: Seconds below which a measurement says nothing.
SHORTEST = 1.0
#: A loader that has not finished an epoch by then hangs.
PATIENCE = 600.0


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


def drop_page_cache(paths: Iterable[Path]) -> str:
    """Makes the next read come from the disk; says how."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return "drop_caches"
    except OSError:
        pass
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                descriptor = os.open(file, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
    return "posix_fadvise"


def busy_seconds() -> float:
    """Processor time that all of the machine has spent."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = fields
    ticks = user + nice + system + interrupts + soft_interrupts + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def reason(text: str) -> str:
    """The line of a log that most likely says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]
    return (named or lines or ["no reason given"])[-1]


class Failed(Exception):
    """A loader that ended, hung or complained."""


class Contestant:
    """A loader in its own process."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.peak = 0
        self.epochs: list[dict[str, Any]] = []
        self.log = log
        with log.open("w") as complaints:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=environment,
                text=True,
                # A group of its own, so that the workers of one that hangs end with it.
                start_new_session=True,
            )
        self.running = threading.Event()
        self.ended = threading.Event()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        # Looking costs the kernel milliseconds for each process: often while it does not count,
        # seldom while it does.
        while not self.ended.wait(1.0 if self.epochs else 0.1):
            if self.running.is_set():
                self.peak = max(self.peak, pss(self.process.pid))

    def epoch(self) -> dict[str, Any]:
        """Runs an epoch, or several short ones in a row, and adds them up."""
        cpu, busy, began = cpu_seconds(self.process.pid), busy_seconds(), time.monotonic()
        total = self.ask()
        while total["seconds"] < SHORTEST:
            more = self.ask()
            total["images"] += more["images"]
            total["seconds"] += more["seconds"]
        total["cpu"] = cpu_seconds(self.process.pid) - cpu
        # The part of the machine that was not this loader's to have.
        spare = (time.monotonic() - began) * (os.cpu_count() or 1)
        total["others"] = max(0.0, (busy_seconds() - busy - total["cpu"]) / spare)
        # Once more after the clock: an epoch may be over before anyone has looked.
        self.peak = max(self.peak, pss(self.process.pid))
        return total

    def ask(self) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.running.set()
        alarm = threading.Timer(PATIENCE, self.kill)
        alarm.start()
        try:
            self.process.stdin.write("epoch\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            alarm.cancel()
            self.running.clear()
        if not line:
            raise Failed(self.complaint())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def settle(self) -> None:
        """Waits until it is idle: some prefetch beyond the end of an epoch."""
        deadline, before = time.monotonic() + 3, cpu_seconds(self.process.pid)
        while time.monotonic() < deadline:
            time.sleep(0.1)
            now = cpu_seconds(self.process.pid)
            if now - before < 0.02:
                return
            before = now

    def complaint(self) -> str:
        self.process.wait()
        text = self.log.read_text(errors="replace")
        return reason(text) if text.strip() else f"ended with code {self.process.returncode}"

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self.process.kill()

    def end(self) -> None:
        self.ended.set()
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()
            self.process.wait()
        self.process.stdout.close()


def hold(
    make: Callable[[Path], list[Contestant]], workers: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """A contest of those that `make` starts, whose logs go into the folder that it is given."""
    contestants: list[Contestant] = []
    with tempfile.TemporaryDirectory() as logs:
        try:
            contestants = make(Path(logs))
            failures = compete(contestants, rounds, lambda: None, say)
        finally:
            for one in contestants:
                one.end()
    loaders: dict[str, Any] = {}
    for one in contestants:
        if one.name in failures:
            loaders[one.name] = {"failure": f"did not run: {failures[one.name]}"}
        else:
            loaders[one.name] = {"epochs": one.epochs, "peak_pss": one.peak}
    return {"workers": workers, "loaders": loaders}


def compete(
    contestants: list[Contestant],
    rounds: int,
    before: Callable[[], None],
    say: Callable[[str], None],
) -> dict[str, str]:
    """One round to warm up, then `rounds` that count; returns what went wrong, by name."""
    failures: dict[str, str] = {}
    for number in range(rounds + 1):
        # Each round begins with another one, so that nobody always runs after the same neighbour.
        shift = number % len(contestants)
        for one in contestants[shift:] + contestants[:shift]:
            if one.name in failures:
                continue
            before()
            try:
                epoch = one.epoch()
            except Failed as failure:
                failures[one.name] = str(failure)
                say(f"{one.name}: {failure}")
                continue
            one.settle()
            # The first epoch starts workers and fills the page cache.
            if number:
                one.epochs.append(epoch)
            rate = epoch["images"] / epoch["seconds"]
            say(f"round {number} of {rounds}: {one.name:<18} {rate:10,.0f} images/s")
    return failures
