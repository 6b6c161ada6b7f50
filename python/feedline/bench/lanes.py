"""What the workers of torch's own DataLoader do when, which it does not report."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
import time
import weakref
from collections.abc import Callable
from typing import Any

from feedline.observe.timeline import Timeline

# A worker, what it did, from when to when, and the number of the batch.
_SPAN = struct.Struct("<qqddq")
_ACTIVITIES = ("code", "copy")


class TorchLanes:
    """Follows a DataLoader that has not started its workers yet. It is changed in nothing but its
    worker_init_fn, which calls the one that it had."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._read = loader, 0
        descriptor, self._path = tempfile.mkstemp(prefix="feedline-lanes-")
        os.close(descriptor)
        self._close = weakref.finalize(self, _remove, self._path)

    def record(self, most: int) -> None:
        """From now on, keeps the last `most` spans of each worker."""
        self._timeline = Timeline(most)
        self._loader.worker_init_fn = _Follow(self._path, most, self._loader.worker_init_fn)

    def timeline(self) -> str:
        """What each worker did since `record`, as JSON, behind an empty list for the program."""
        # The file stays, as long as the loader may start more workers.
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._read)
            written = file.read()
            written = written[: len(written) // _SPAN.size * _SPAN.size]
            self._read += len(written)
            for worker, activity, begin, end, number in _SPAN.iter_unpack(written):
                self._timeline.span(worker, _ACTIVITIES[activity & 1], begin, end, number)
        return json.dumps([[], *self._timeline.lanes()])


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


class _Follow:
    """A worker_init_fn: runs in each worker before its first batch, and travels there."""

    def __init__(self, path: str, most: int, inner: Callable[[int], Any] | None) -> None:
        self._path, self._most, self._inner = path, most, inner

    def __call__(self, worker: int) -> None:
        if self._inner is not None:
            self._inner(worker)
        # Without it there is a timeline without workers.
        with contextlib.suppress(ImportError, AttributeError, OSError):
            self._follow(worker)

    def _follow(self, worker: int) -> None:
        from torch.utils.data import get_worker_info
        from torch.utils.data._utils import fetch

        info = get_worker_info()
        workers = 1 if info is None else info.num_workers
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            setattr(kind, "fetch", _timed(kind.fetch, file, worker, workers, self._most))  # noqa: B010


def _timed(fetch: Callable[..., Any], file: int, worker: int, workers: int, most: int) -> Callable[..., Any]:
    """A fetcher's `fetch` that writes down when it made and when it joined its samples."""
    left = most

    def timed(self: Any, index: Any) -> Any:
        nonlocal left
        if left < 2:
            return fetch(self, index)
        collate, joins = self.collate_fn, 0.0

        def joining(samples: Any) -> Any:
            nonlocal joins
            joins = time.perf_counter()
            return collate(samples)

        began, self.collate_fn = time.perf_counter(), joining
        try:
            made = fetch(self, index)
        finally:
            self.collate_fn = collate
        ended, joins = time.perf_counter(), joins or time.perf_counter()
        # Workers get their batches in turn, in every epoch from the first on.
        number = getattr(self, "_feedline_batch", worker)
        self._feedline_batch = number + workers
        spans = (worker, 0, began, joins, number), (worker, 1, joins, ended, number)
        left -= len(spans)
        with contextlib.suppress(OSError):
            os.write(file, b"".join(_SPAN.pack(*span) for span in spans))
        return made

    return timed
