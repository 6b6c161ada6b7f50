"""Long proofs: campaigns of damaged files, fuzzing, bombs, killed workers, long runs and live diagnoses,
watched from outside.

    make soak                                   all campaigns: hours
    make soak SOAK="images tar" SOAK_SCALE=0.1  some of them, a tenth of the numbers

One line for each campaign. What is done is kept in build/soak, by the package that was tested: a run that is
ended goes on where it was. Campaigns of damaged files run two at a time (--jobs), the others alone. Exit
status 1 if any campaign found something, with the number that makes its file again:
`tests/soak/child.py CAMPAIGN --first NUMBER --count 1`.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bombs
import child

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = ROOT / "build/soak"
SHARED = Path("/dev/shm")


Progress = Callable[[dict[str, Any]], None]
Campaign = Callable[[Progress, dict[str, Any]], str]

MEMORY = 64 << 20
"""The loaders' own limit."""
SLACK = 64 << 20
"""What a process may hold beyond it."""
SECONDS = 10.0
"""Processor time that one file may take. A whole round takes 1 to 2 s; one that takes longer than this is
split until it is known whether a single file does."""
STALLED = 300.0
"""Time without an end of a round, though it takes no processor time."""
TICKS = os.sysconf("SC_CLK_TCK")

IMAGES, EACH = 1_000_000, 100_000

CARGO_TEST = ["cargo", "test", "--release", "--workspace", "--no-default-features"]
"""With the wheel's features, as `make test` has them: nothing is compiled again."""


STOP = threading.Event()
"""Set when the run is ended from outside: nothing that follows is a find."""


def tested() -> str:
    """What the results belong to: the package that is installed, and the campaigns."""
    import feedline

    found = hashlib.blake2b(digest_size=8)
    for folder in (Path(feedline.__file__).parent, HERE):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".so"):
                found.update(path.read_bytes())
    return found.hexdigest()


class Found(Exception):
    """What a campaign exists for."""

    def __init__(self, text: str, first: int = 0, slow: bool = False) -> None:
        super().__init__(text)
        self.first, self.slow = first, slow


def processor_time(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


def rounds(campaign: str, first: int, count: int, number: int, seen: Progress) -> int:
    """Runs a child for some rounds; the memory that it took beyond its own."""
    arguments = [campaign, f"--first={first}", f"--count={count}", f"--rounds={number}"]
    command = [sys.executable, str(HERE / "child.py"), *arguments]
    with (
        # In memory, and removed whatever becomes of the child.
        tempfile.TemporaryDirectory(
            prefix="feedline-soak-", dir=SHARED if SHARED.is_dir() else None
        ) as folder,
        # Files, as a pipe that nobody reads would hold the child up.
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as complaints,
    ):
        environment = {**os.environ, "TMPDIR": folder}
        # A group of its own: Ctrl-C is for this process, which ends its children.
        process = subprocess.Popen(command, stdout=out, stderr=complaints, env=environment, process_group=0)
        base = most = read = 0
        used, since, at = 0.0, time.monotonic(), first
        try:
            while not STOP.is_set():
                status = process.poll()
                whole = os.pread(out.fileno(), 1 << 20, read).rpartition(b"\n")
                read += len(whole[0]) + len(whole[1])
                for line in whole[0].splitlines():
                    result = json.loads(line)
                    used, since = processor_time(process.pid), time.monotonic()
                    if "begin" in result:
                        at = result["begin"]
                        base = base or peak(process.pid)
                    else:
                        seen(result)
                most = max(most, peak(process.pid) - base if base else 0)
                if most > MEMORY + SLACK:
                    raise Found(f"{most >> 20} MB, beyond {(MEMORY + SLACK) >> 20} MB", at)
                if base and processor_time(process.pid) - used > SECONDS:
                    raise Found(f"takes more than {SECONDS:.0f} s of a processor", at, slow=True)
                if time.monotonic() - since > STALLED:
                    raise Found("does not end", at)
                if status is not None and not whole[1]:
                    if status != 0:
                        complaints.seek(0)
                        text = complaints.read()[-2000:].decode(errors="replace")
                        raise Found(f"exit status {status}: {text}", at)
                    return most
                time.sleep(0.05)
            raise KeyboardInterrupt
        finally:
            process.kill()
            process.wait()


def narrow(campaign: str, found: Found, count: int) -> None:
    """Looks for the file of a round that shows what the round did. Nothing, if the round was only slow as a
    whole."""
    first = found.first
    if count > 1:
        for start, part in ((first, count // 2), (first + count // 2, count - count // 2)):
            try:
                rounds(campaign, start, part, 1, lambda _: None)
            except Found as again:
                narrow(campaign, again, part)
        if found.slow:
            return
    what = f"file {first}" if count == 1 else f"files {first} to {first + count - 1} together"
    raise Found(f"{what}: {found}", first)


def damaged_files(campaign: str, total: int, progress: Progress, done: dict[str, Any]) -> str:
    count = child.ROUND if campaign == "images" else 500

    def seen(result: dict[str, Any]) -> None:
        for key, number in result.items():
            if key != "first":
                done[key] = done.get(key, 0) + number
        done["next"] = result["first"] + count
        progress(done)

    while done.get("mutations", 0) < total:
        left = -(-(total - done.get("mutations", 0)) // count)
        try:
            # A process now and then, as the first look at a limit is from a fresh one.
            most = rounds(campaign, done.get("next", 0), count, min(left, 50), seen)
        except Found as found:
            narrow(campaign, found, count)
            seen({"first": found.first, "mutations": count, "slow": 1})
            continue
        done["most"] = max(done.get("most", 0), most)
        progress(done)
    refused, most = done.get("refused", 0), done.get("most", 0)
    fresh = f", {done['fresh']:,} also in fresh decoders" if "fresh" in done else ""
    return f"{done['mutations']:,} mutations, {refused:,} refused{fresh}, peak +{most >> 20} MB"


def measured(*arguments: str) -> tuple[float, int]:
    """Processor time and peak memory of a process that makes or loads a bomb."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(sys.executable, [sys.executable, str(HERE / "bombs.py"), *arguments])
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        raise Found(f"{' '.join(arguments)}: wait status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def crafted() -> str:
    """Each bomb alone in a process, its time and memory from the system."""
    base = measured("load", "nothing", ".")[1]
    longest, largest, finds = (0.0, ""), (0, ""), []
    for name in bombs.names():
        with tempfile.TemporaryDirectory(prefix="feedline-bomb-") as folder:
            measured("make", name, folder)
            # With little memory most are refused; with much, what they do is done.
            for limit in (MEMORY, 2 << 30):
                try:
                    seconds, memory = measured("load", name, folder, str(limit))
                except Found as found:
                    finds.append(str(found))
                    continue
                if memory > base + limit + SLACK:
                    finds.append(f"{name}: {memory >> 20} MB, beyond {(base + limit + SLACK) >> 20} MB")
                if seconds > bombs.SECONDS:
                    finds.append(f"{name}: {seconds:.1f} s of processor time")
                longest = max(longest, (seconds, name))
                largest = max(largest, (memory - base, name))
    if finds:
        raise Found("; ".join(finds))
    return (
        f"{len(bombs.names())} crafted files, at most {longest[0]:.1f} s ({longest[1]}) "
        f"and +{largest[0] >> 20} MB ({largest[1]})"
    )


def rust(test: str, total: int) -> str:
    environment = {**os.environ, "FEEDLINE_MUTATIONS": str(total)}
    command = [*CARGO_TEST, "--test", test, "--", "--nocapture"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if run.returncode != 0:
        raise Found((run.stdout + run.stderr)[-2000:])
    lines = [
        line for line in run.stdout.splitlines() if "damaged images" in line or line.startswith("test result")
    ]
    return "; ".join(lines)


def script(*arguments: str) -> str:
    """Runs one of the scripts beside this one; its last line counts."""
    command = [sys.executable, str(HERE / arguments[0]), *arguments[1:]]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        raise Found((run.stdout + run.stderr)[-2000:])
    return run.stdout.strip().splitlines()[-1]


def fuzzing(seconds: int) -> str:
    """Each format's reader and the JPEG decoder for so many seconds; needs cargo-fuzz (`make fuzz`)."""
    run = subprocess.run(["fuzz/run.sh", str(seconds)], cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        raise Found((run.stdout + run.stderr)[-2000:])
    runs = [int(line.split()[-1]) for line in run.stdout.splitlines() if "number_of_executed_units" in line]
    return f"{sum(runs):,} runs of {len(runs)} targets, {seconds} s each"


def diagnosis() -> str:
    """What is judged from live runs wants idle cores: faults are injected, and each must be named."""
    live = ["--ignored", "--test-threads=1", "diagnose::", "online::"]
    commands = [
        [*CARGO_TEST, "--test", "suite", "--", *live],
        [sys.executable, "-m", "pytest", "-q", "-m", "live", str(HERE / "live_diagnosis.py"), "tests/python"],
    ]
    lines = []
    for command in commands:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if run.returncode != 0:
            raise Found((run.stdout + run.stderr)[-2000:])
        lines += [line for line in run.stdout.splitlines() if " passed" in line]
    return "; ".join(lines)


def campaigns(scale: float) -> dict[str, Campaign]:
    def scaled(number: int) -> int:
        return max(1, int(number * scale))

    all_of_them: dict[str, Campaign] = {
        "images": lambda progress, done: damaged_files("images", scaled(IMAGES), progress, done),
        "bombs": lambda _progress, _done: crafted(),
        "history": lambda _progress, _done: rust("history", scaled(IMAGES)),
        "hostile": lambda _progress, _done: rust("hostile", scaled(10 * EACH)),
        "workers": lambda _progress, _done: script("workers.py", f"--rounds={scaled(500)}"),
        "leaks": lambda _progress, _done: script("endurance.py", "leaks", f"--rounds={scaled(20_000)}"),
        "loops": lambda _progress, _done: script("endurance.py", "loops", f"--rounds={scaled(20_000)}"),
        "fuzz": lambda _progress, _done: fuzzing(scaled(600)),
        "diagnose": lambda _progress, _done: diagnosis(),
    }
    for name in child.CONTAINERS:
        all_of_them[name] = lambda progress, done, name=name: damaged_files(
            name, scaled(EACH), progress, done
        )
    return all_of_them


def run(name: str, campaign: Campaign, kept: Path) -> bool:
    """Runs what is left of a campaign; whether it found nothing."""
    state = json.loads(kept.read_text()) if kept.exists() else {}
    if "line" in state:
        print(f"{name:10} {state['line']} (done {state['date']})", flush=True)
        return True

    def progress(done: dict[str, Any]) -> None:
        # Whole or not at all, as a run may be ended at any moment.
        kept.with_suffix(".new").write_text(json.dumps(done))
        kept.with_suffix(".new").replace(kept)

    began = time.monotonic()
    try:
        line = campaign(progress, state)
    except Found as found:
        print(f"{name:10} FOUND {found}", flush=True)
        return False
    line += f", 0 found, {time.monotonic() - began:.0f} s"
    state.update(line=line, date=datetime.date.today().isoformat())
    progress(state)
    print(f"{name:10} {line}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaigns", nargs="*", help="names; all without")
    parser.add_argument("--scale", type=float, default=1.0, help="times the numbers of mutations")
    parser.add_argument("--jobs", type=int, default=2, help="campaigns of damaged files at a time [2]")
    options = parser.parse_args()
    known = campaigns(options.scale)
    if unknown := set(options.campaigns) - set(known):
        parser.error(f"no campaign {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    KEPT.mkdir(parents=True, exist_ok=True)
    version = tested()
    names = options.campaigns or list(known)
    together = [name for name in names if name == "images" or name in child.CONTAINERS]

    def start(name: str) -> bool:
        return run(name, known[name], KEPT / f"{name}-{version}-{options.scale}.json")

    with ThreadPoolExecutor(options.jobs) as pool:
        results = [pool.submit(start, name) for name in together]
        try:
            good = [result.result() for result in results]
        except BaseException:
            STOP.set()
            pool.shutdown(cancel_futures=True)
            raise
    good += [start(name) for name in names if name not in together]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
