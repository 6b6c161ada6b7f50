"""Threads, processes, signals and long lives."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import feedline
import numpy as np
import pytest
from conftest import HANG, Array, until
from feedline import Loader
from feedline import transforms as T

CHAIN = [T.RandomResizedCrop(16), T.ToDtype("float32", scale=True)]

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/proc/self"), reason="threads and memory are read from /proc"),
    # Python warns about every fork of a process with threads, which is what is tested here; JAX
    # has a hook that warns as well.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
]


def figures() -> tuple[int, int, int]:
    """Resident bytes, threads, open files."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def in_child(work: Callable[[], bool]) -> None:
    """Forks, works in the child, and fails unless it ends well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    # Ends a hang.
    killer = threading.Timer(HANG, os.kill, (child, signal.SIGKILL))
    killer.start()
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        killer.cancel()
        killer.join()


@pytest.mark.parametrize("workers", [0, 2])
def test_fork_after_the_start(photos: Path, workers: int) -> None:
    expected = [batch.hash() for batch in Loader(photos, CHAIN, 4, shuffle=True)]
    loader = Loader(photos, CHAIN, 4, shuffle=True, num_workers=workers)
    epoch = iter(loader)
    kept = [next(epoch), next(epoch)]

    def child() -> bool:
        rest = [batch.hash() for batch in epoch]
        again = loader.state_dict()["epoch"] == 1 and next(iter(loader)).epoch == 1
        same = [batch.hash() for batch in kept] == expected[:2]
        kept.clear()
        loader.close()
        return rest == expected[2:] and again and same

    in_child(child)
    in_child(child)
    assert [batch.hash() for batch in epoch] == expected[2:]


def test_fork_while_another_thread_waits(arrays: tuple[Array, Array]) -> None:
    loader = Loader(arrays, batch_size=10)
    stop = threading.Event()

    def use() -> None:
        while not stop.is_set():
            for _ in loader:
                pass

    thread = threading.Thread(target=use)
    thread.start()

    def child() -> bool:
        try:
            loader.set_epoch(0)
            return len(list(loader)) == 10
        except feedline.EngineError as error:
            return "forked" in str(error)

    try:
        for _ in range(20):
            in_child(child)
    finally:
        stop.set()
        thread.join()


def _hashes(queue: multiprocessing.Queue[list[int]], loader: Loader) -> None:
    queue.put([batch.hash() for batch in loader])


def test_multiprocessing_by_fork(photos: Path) -> None:
    loader = Loader(photos, CHAIN, 4, shuffle=True)
    next(iter(loader))
    loader.set_epoch(3)
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[list[int]] = context.Queue()
    process = context.Process(target=_hashes, args=(queue, loader))
    process.start()
    made = queue.get(timeout=HANG)
    process.join(HANG)
    assert process.exitcode == 0
    assert made == [batch.hash() for batch in loader]


def test_many_epochs_do_not_grow(arrays: tuple[Array, Array]) -> None:
    loader = Loader(tuple(array[:20] for array in arrays), batch_size=10, shuffle=True)

    def epochs(count: int) -> None:
        for _ in range(count):
            for _ in loader:
                pass

    epochs(2000)
    before = figures()
    epochs(10_000)
    after = figures()
    assert loader.epoch == 12_000
    # A thread that a test before this one left may end meanwhile.
    assert after[1] <= before[1] and after[2] <= before[2], (before, after)
    assert after[0] - before[0] < 4_000_000


def test_many_loaders_do_not_grow(photos: Path) -> None:
    def cycle(count: int) -> None:
        for number in range(count):
            loader = Loader(photos, CHAIN, 4, num_workers=2)
            if number % 2:
                next(iter(loader))

    cycle(200)
    before = figures()
    cycle(1000)
    after = figures()
    # A thread that a test before this one left may end meanwhile.
    assert after[1] <= before[1] and after[2] <= before[2], (before, after)
    assert after[0] - before[0] < 8_000_000


def test_dropped_in_the_middle(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "feedline",
        "sample-data",
        str(tmp_path / "p"),
        "--count",
        "40",
        "--classes",
        "2",
    ]
    subprocess.run(command, check=True, capture_output=True)
    threads = figures()[1]
    loader = Loader(tmp_path / "p", [T.RandomResizedCrop(224)], 32, shuffle=True, num_workers=8)
    next(iter(loader))
    assert figures()[1] > threads
    # Of the processor, so that a busy machine does not count: what is open is not made to the end.
    began = time.process_time()
    del loader
    gc.collect()
    assert time.process_time() - began < 1
    assert figures()[1] <= threads


SLOW = """
import sys, time
import feedline, numpy as np
from feedline import transforms as T

image = np.random.default_rng(0).integers(0, 256, (1, 2000, 2000, 3), dtype=np.uint8)

def loader(count):
    return feedline.Loader(
        image, [T.Resize((900, 900), "lanczos")], batch_size=count,
        num_workers=int(sys.argv[1]), replacement=True, num_samples=count, memory="1500MB",
    )

began = time.process_time()
for _ in loader(8): pass
each = (time.process_time() - began) / 8
print("ready", flush=True)
began = time.process_time()
try:
    for _ in loader(200): pass
except KeyboardInterrupt:
    print("caught", (time.process_time() - began) / each, flush=True)
"""


def processor_ticks(pid: int) -> int:
    """What a process has used of the processor, in hundredths of a second."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[11]) + int(after_name[12])


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_ends_the_wait_for_a_batch(workers: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(workers)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    before = processor_ticks(process.pid)
    until(lambda: processor_ticks(process.pid) > before + 10, "that it works on the batch")
    process.send_signal(signal.SIGINT)
    word, images = process.stdout.readline().split()
    process.communicate()
    assert word == "caught" and process.returncode == 0
    # Work for so many images was done, of 200: it ended far before the batch was whole.
    assert float(images) < 100


def test_an_interrupted_wait_loses_nothing() -> None:
    # Far more work than until the timer ends, so that the signal falls into it.
    slow = np.zeros((1, 2000, 2000, 3), np.uint8)
    options = {"replacement": True, "num_samples": 16, "memory": "1GB"}
    loader = Loader(slow, [T.Resize((900, 900), "lanczos")], 16, num_workers=1, **options)  # type: ignore[arg-type]
    epoch = iter(loader)

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    # By the processor's time, which the batch needs on a busy machine too.
    before = signal.signal(signal.SIGPROF, handler)
    signal.setitimer(signal.ITIMER_PROF, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(epoch)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    batch = next(epoch)
    assert batch.number == 0 and batch.rows == 16
    assert list(epoch) == []


def test_other_threads_run_while_one_waits() -> None:
    slow = np.zeros((8, 1500, 1500, 3), np.uint8)
    for workers in (0, 1):
        loader = Loader(slow, [T.Resize((2500, 2500), "lanczos")], 8, num_workers=workers, memory="1GB")
        turns = 0
        done = threading.Event()

        def wait(loader: Loader = loader, done: threading.Event = done) -> None:
            next(iter(loader))
            done.set()

        thread = threading.Thread(target=wait)
        thread.start()
        while not done.wait(0.001):
            turns += 1
        thread.join()
        assert turns > 10


def test_a_signal_handler_may_save_the_state(tmp_path: Path) -> None:
    """The usual answer to a cluster that takes the machine away."""
    code = """
import json, signal, sys
import feedline

# A batch without workers takes twenty times as long as the timer, which counts by ticks and may be late: the
# signal comes in the middle of it.
chain = [feedline.transforms.GaussianBlur(15), feedline.transforms.CenterCrop(8)]
loader = feedline.Loader([sys.argv[1]] * 20, chain, batch_size=4000, num_workers=0)

def save(*_):
    print(loader.state_dict()["batch"], loader.stats()["batches"], len(repr(loader)) > 20)
    loader.close()

signal.signal(signal.SIGPROF, save)
signal.setitimer(signal.ITIMER_PROF, 0.2)
try:
    while True:
        for batch in loader:
            pass
except feedline.Error as error:
    print(type(error).__name__)
"""
    photos = tmp_path / "photos"
    subprocess.run(
        [sys.executable, "-m", "feedline", "sample-data", str(photos), "--count", "200", "--classes", "2"],
        check=True,
        capture_output=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(photos)], capture_output=True, text=True, cwd=tmp_path, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 0 True", "ClosedError"]
