"""Chooses between threads and processes by looking at the data set and at its first samples.

What is chosen here may run samples in the program: in threads, in the trial, or in the program's own
thread while the workers start. Code that may end its process (`native_code.py`) is chosen processes
for before any of it has run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import logging
import os
import random
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

import numpy

from feedline import _native
from feedline.workers import seeds
from feedline.workers.job import Job, Task, is_stateful
from feedline.workers.native_code import ends_processes
from feedline.workers.stand_in import PROCESSES, StandIn
from feedline.workers.torch_side import OwnGenerator

_log = logging.getLogger("feedline")

# The trial is over after so many samples, or after so much time and a few samples.
_SAMPLES, _SECONDS, _FEW = 32, 0.04, 4
# Threads share one lock. Two that need it for 16 % each (Pillow, torchvision) made 0.94x of what torch's
# processes make, and two processes of ours 1.05x: so together they must not need more than this.
_LOCK_SHARE = 0.25
# Between these shares of one sample both are measured: xarray over Dask over Zarr holds the lock for 53 % of
# the time, and two threads made 221 samples/s of it, two processes 172.
_CONTESTED = 0.3, 0.7


@dataclasses.dataclass(frozen=True)
class Choice:
    """An executor's name and why it was chosen."""

    name: str
    reason: str
    fallback: Literal["threads"] | None = None
    """An executor that makes the same batches, where this one was chosen for its speed alone."""
    compare: bool = False
    """Whether threads and processes are both measured (`contest.py`)."""
    helps: bool = False
    """Whether the program's own thread may run samples while the workers start. Not where processes
    were asked for: what a sample does to its process must not be done to the program."""
    forks: bool = True
    """Whether workers may be forks of the program: not if the trial has opened files there."""

    def log(self) -> Choice:
        """Writes it to the log."""
        _log.info("executor %r: %s", self.name, self.reason)
        return self


def choose(job: Job, workers: int, task: Task | None, base_seed: int = 0) -> Choice:
    """Decides, and leaves the samples of the trial in the task, whose first ones they are."""
    if job.kind == "iterable":
        return Choice("processes", "an iterable is divided among workers that are processes of their own")
    ends = ends_processes([*_parts(job.dataset), job.collate])
    if ends is not None:
        return Choice("processes", f"the code may reach {ends}: it is kept out of the program's own process")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return Choice("threads", "this interpreter runs threads side by side")
    return dataclasses.replace(_choose(job, workers, task, base_seed), helps=True)


def _choose(job: Job, workers: int, task: Task | None, base_seed: int) -> Choice:
    if job.init is not None:
        return Choice("processes", "worker_init_fn expects a process for each worker")
    if is_stateful(job.dataset):
        return Choice("processes", "the data set has a state, which each worker needs for itself")
    held = made_for_processes(job.dataset)
    if held is not None:
        return Choice("processes", f"the data set holds {held}, which is made for processes")
    held = _not_for_threads(job.dataset)
    if held is not None:
        return Choice("processes", f"the data set holds {held}, which threads cannot share")
    if task is None:
        return Choice("threads", "there is nothing to load")
    before = _open_files()
    choice = _try(job, workers, task, base_seed)
    return dataclasses.replace(choice, forks=_open_files() <= before)


def _open_files() -> set[tuple[str, str]]:
    """What this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return {one for one in found if "/proc/" not in one[1]}


def _try(job: Job, workers: int, task: Task, base_seed: int) -> Choice:
    stand_in = StandIn(job, base_seed)
    before = _attributes(stand_in.copy)
    kept = seeds.states()
    if task.seed is not None:
        seeds.seed_all(task.seed)
    start = seeds.states()
    samples: list[Any] = []
    probe = _native.LockProbe()
    begun = time.perf_counter()
    try:
        # As in a worker thread; what still comes from the program's generators cannot be repeated there.
        with (
            contextlib.nullcontext() if task.seed is None else OwnGenerator() as generator,
            stand_in.seed_watched(),
        ):
            count = _make_some(job, stand_in, task, samples, generator)
        own = generator is not None and generator.drawn
        if own and not _is_repeated(stand_in, task, samples):
            return Choice(
                "processes",
                "samples seed torch's global generator themselves, or cannot be repeated: threads share it",
            )
    except Exception:
        # The executor meets the same error, and reports it with the batch it belongs to.
        return Choice("processes" if stand_in.asked else "threads", "the first sample failed")
    finally:
        seconds = time.perf_counter() - begun
        looks, busy = probe.stop()
        drew = seeds.drawn(start, seeds.states())
        if task.seed is not None or drew is not None:
            seeds.restore(kept)
    if drew is not None:
        return Choice(
            "processes",
            f"samples draw from {drew} global generator, which threads would share in no fixed order",
        )
    if stand_in.asked:
        return Choice(
            "processes",
            "samples ask for get_worker_info or torch.initial_seed, which threads cannot tell apart",
        )
    # What is opened with the first sample is there only now.
    held = _not_for_threads(stand_in.copy)
    if held is not None:
        return Choice("processes", f"the data set holds {held}, which threads cannot share")
    changed = _changed(before, _attributes(stand_in.copy))
    if changed is not None:
        return Choice("processes", f"the data set changes itself ({changed}) when a sample is read")
    task.made = samples
    share = busy / looks if looks >= 5 else 1.0
    cost = seconds / count * 1000
    text = f"a sample takes {cost:.2f} ms and holds the interpreter's lock for {share:.0%} of it"
    if share * workers <= _LOCK_SHARE:
        return Choice("threads", f"{text}, so {workers} threads hardly wait for each other")
    if _CONTESTED[0] <= share <= _CONTESTED[1]:
        reason = f"{text}, which leaves open whether threads or processes make more"
        return Choice("processes", reason, fallback="threads", compare=True)
    reason = f"{text}, so {workers} threads would wait for each other"
    return Choice("processes", reason, fallback="threads")


def _make_some(
    job: Job, stand_in: StandIn, task: Task, samples: list[Any], generator: OwnGenerator | None
) -> int:
    """Makes the first samples of a batch; returns how many calls that took."""
    if not job.batched or stand_in.__getitems__:
        if generator is not None and task.seed is not None:
            generator.seed(task.seed)
        if not job.batched:
            samples.append(stand_in[task.index])
            return 1
        many = stand_in.__getitems__(task.index)
        # What is not a list is a batch already, in a form that only its collate_fn knows.
        samples.extend(many if isinstance(many, list) else ())
        return max(1, len(task.index))
    begun = time.perf_counter()
    for row, index in enumerate(list(task.index)[:_SAMPLES]):
        if generator is not None and task.seed is not None:
            generator.seed(seeds.of_row(task.seed, row))
        samples.append(stand_in[index])
        if len(samples) >= _FEW and time.perf_counter() - begun > _SECONDS:
            break
    return max(1, len(samples))


def _is_repeated(stand_in: StandIn, task: Task, samples: list[Any]) -> bool:
    """Whether a first sample is the same when it is drawn from torch's own generator, as in a process."""
    if len(samples) == 0 or stand_in.__getitems__ or task.seed is None:
        return False
    kept = seeds.states()
    seeds.seed_row(task.seed, 0)
    try:
        again = stand_in[next(iter(task.index))]
    except TypeError:
        return False
    finally:
        seeds.restore(kept)
    return _alike(samples[0], again)


def _alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if hasattr(one, "numpy") and hasattr(one, "is_contiguous"):
        one, other = one.numpy(force=True), other.numpy(force=True)
    if hasattr(one, "tobytes"):
        same = getattr(one, "shape", None) == getattr(other, "shape", None)
        return same and bool(one.tobytes() == other.tobytes())
    return bool(one == other)


_GENERATORS = random.Random, numpy.random.Generator, numpy.random.RandomState
_UNSHARED: tuple[str, ...] = (
    "h5py._hl.files.File",
    "h5py._hl.dataset.Dataset",
    "h5py._hl.group.Group",
    "lmdb.cpython.Transaction",
    "lmdb.Transaction",
    "sqlite3.Connection",
    "sqlite3.Cursor",
    "torch._C.Generator",
    "torch.Generator",
    "zipfile.ZipFile",
    "tarfile.TarFile",
    "av.container.input.InputContainer",
    "cv2.VideoCapture",
)

# Of these, a fork has the same place in the same file.
_OPEN = (
    *(name for name in _UNSHARED if not name.startswith("torch")),
    "builtins.Environment",
    "lmdb.cffi.Environment",
    "lmdb.cpython.Environment",
)


def _not_for_threads(dataset: Any) -> str | None:
    """Names something in the data set that two threads must not use at once."""
    return _find_held(dataset, (io.IOBase, *_GENERATORS), _UNSHARED)


def held_open(dataset: Any) -> str | None:
    """Names something in the data set that a process and its forks must not both use."""
    return _find_held(dataset, (io.IOBase, socket.socket), _OPEN)


def made_for_processes(dataset: Any) -> str | None:
    """Names something in the data set by which the program and its workers hear of each other. What a
    sample does to it in the program itself, the program does not expect."""
    return _find_held(dataset, (), (), PROCESSES)


def _find_held(
    dataset: Any, kinds: tuple[type, ...], names: tuple[str, ...], modules: tuple[str, ...] = ()
) -> str | None:
    todo = [(part, "", 0) for part in _parts(dataset)]
    seen: set[int] = set()
    while todo:
        thing, path, depth = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        kind = type(thing)
        name = f"{kind.__module__}.{kind.__qualname__}"
        found = name in names or (modules and name.startswith(modules) and not isinstance(thing, type))
        if found or (isinstance(thing, kinds) and not isinstance(thing, io.StringIO)):
            return f"{'an' if name[0] in 'aeiou' else 'a'} {name}" + (f" ({path})" if path else "")
        if depth < 4:
            for key, value in list(getattr(thing, "__dict__", {}).items())[:100]:
                todo.append((value, f"{path}.{key}" if path else str(key), depth + 1))
            if isinstance(thing, dict):
                values = list(itertools.islice(thing.items(), 20))
                todo.extend((value, f"{path}[{key!r}]", depth + 1) for key, value in values)
            if isinstance(thing, list | tuple) and len(thing) <= 20:
                todo.extend((value, f"{path}[{at}]", depth + 1) for at, value in enumerate(thing))
    return None


def _attributes(dataset: Any) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for at, part in enumerate(_parts(dataset)):
        for name, value in list(getattr(part, "__dict__", {}).items()):
            size = len(value) if isinstance(value, list | dict | set) else 0
            found[f"{name} of part {at}" if at else name] = id(value), size
    return found


def _parts(dataset: Any) -> list[Any]:
    """The objects of the program that a data set of the library's own holds, or the data set."""
    parts = getattr(type(dataset), "__feedline_parts__", None)
    return [dataset] if parts is None else list(parts(dataset))


def _changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> str | None:
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            return name
    return None
