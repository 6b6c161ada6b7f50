"""What the samples of a data set cost, found by making some of them in the calling thread."""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from feedline import _native
from feedline.spec.source import is_stream
from feedline.workers.stand_in import shallow_copy

# So many samples are made, or fewer in so much time, for the times and for the lock each.
_SAMPLES, _SECONDS, _FEW = 32, 0.5, 2
# What torchvision's data sets keep under these names is code that can be timed by itself.
_PARTS = (
    ("loader", "read+decode"),
    ("transform", "transform"),
    ("transforms", "transform"),
    ("target_transform", "target_transform"),
)
# A data set in a Subset in a ConcatDataset, and one more.
_DEEP = 4


class _Clock:
    """Adds up time that passed and time on a core, by name; what is inside counts once."""

    def __init__(self) -> None:
        self.times: dict[str, tuple[float, float]] = {}
        self._inside: list[list[float]] = []

    def run(self, name: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self._inside.append([0.0, 0.0])
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return function(*args, **named)
        finally:
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            inner = self._inside.pop()
            if self._inside:
                self._inside[-1][0] += wall
                self._inside[-1][1] += cpu
            before = self.times.get(name, (0.0, 0.0))
            own = (max(0.0, wall - inner[0]), max(0.0, cpu - inner[1]))
            self.times[name] = (before[0] + own[0], before[1] + own[1])


class _Timed:
    """A function of a data set, timed; otherwise as it was."""

    def __init__(self, function: Callable[..., Any], name: str, clock: _Clock) -> None:
        self._function, self._name, self._clock = function, name, clock

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._clock.run(self._name, self._function, *args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def _timed_view(dataset: Any, clock: _Clock, depth: int = _DEEP) -> Any:
    """A copy of the data set whose parts are timed. What cannot be copied or changed is left alone."""
    view = shallow_copy(dataset)
    if view is dataset or depth == 0:
        return dataset
    for attribute, name in _PARTS:
        part = getattr(view, attribute, None)
        if callable(part) and not isinstance(part, _Timed):
            _set(view, attribute, _Timed(part, name, clock))
    inner = getattr(view, "dataset", None)
    if inner is not None:
        _set(view, "dataset", _timed_view(inner, clock, depth - 1))
    return view


def _set(view: Any, attribute: str, value: Any) -> None:
    try:
        setattr(view, attribute, value)
    except (AttributeError, TypeError, ValueError):
        # A property, or a module that takes no such value: it stays untimed.
        return


def _is_numbered(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not is_stream(dataset)


def _calls(dataset: Any, count: int) -> Iterator[Callable[[], Any]]:
    """Calls that make one sample each, spread over the data set."""
    if not _is_numbered(dataset):
        made = iter(dataset)
        yield from itertools.repeat(lambda: next(made), count)
        return
    length = len(dataset)
    for number in range(min(count, length)):
        index = number * length // min(count, length)
        yield functools.partial(operator.getitem, dataset, index)


def _make_some(calls: Iterator[Callable[[], Any]], made: Callable[[Callable[[], Any]], Any]) -> list[Any]:
    samples: list[Any] = []
    begun = time.perf_counter()
    for call in calls:
        try:
            samples.append(made(call))
        except StopIteration:
            break
        if len(samples) >= _FEW and time.perf_counter() - begun > _SECONDS:
            break
    return samples


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """As in a worker: torch divides no work among threads of its own."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stage_costs(dataset: Any, collate: Callable[[list[Any]], Any] | None = None) -> list[dict[str, Any]]:
    """The stages of a sample with their seconds, and those of them on a core, in the order of its life.

    A data set that keeps `loader`, `transform` or `target_transform`, as torchvision's do, has these
    as stages; everything else that it does is "__getitem__". `collate` joins samples into a batch.
    """
    clock = _Clock()
    name = "__getitem__" if _is_numbered(dataset) else "__iter__"
    with _one_torch_thread():
        calls = _calls(_timed_view(dataset, clock), _SAMPLES)
        samples = _make_some(calls, lambda call: clock.run(name, call))
        if collate is not None and samples:
            clock.run("collate", collate, samples)
    order = [name for _, name in _PARTS]
    names = sorted(clock.times, key=lambda name: order.index(name) if name in order else len(order))
    return [
        {
            "name": name,
            "seconds": clock.times[name][0] / max(1, len(samples)),
            "cpu_seconds": clock.times[name][1] / max(1, len(samples)),
        }
        for name in names
    ]


def lock_share(dataset: Any) -> float | None:
    """The share of the time in which samples of this data set hold the interpreter's lock."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0.0
    with _one_torch_thread():
        probe = _native.LockProbe()
        try:
            _make_some(_calls(shallow_copy(dataset), _SAMPLES), lambda call: call())
        finally:
            looks, held = probe.stop()
    return held / looks if looks >= 5 else None


def evidence(
    dataset: Any,
    *,
    executor: str = "inline",
    workers: int = 0,
    collate: Callable[[list[Any]], Any] | None = None,
) -> dict[str, Any]:
    """What is known of a data set's samples by making some, in the words of the engine's `Evidence`.

    executor: who makes the batches: "inline", "threads", "processes" or "torch".
    """
    try:
        stages = stage_costs(dataset, collate)
        share = lock_share(dataset)
    except Exception:
        # The run has reported it already if it matters; a view that does not work says nothing.
        stages, share = [], None
    return {"executor": executor, "workers": workers, "stages": stages, "interpreter_lock": share}
