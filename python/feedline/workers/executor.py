"""What all executors have in common: tasks go in, results come out by their number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from feedline.workers.job import Job, Task, Times

Span = tuple[int, str, float, float]
"""A worker, what it did ("code" or "copy"), and from when to when (see `Times.began`)."""


def spans_of(worker: int, times: Times) -> list[Span]:
    """What a worker did that made a batch alone."""
    made = times.began + times.code
    return [
        (worker, "code", times.began, made),
        (worker, "copy", made, made + times.join + times.hand_over),
    ]


@dataclass
class Result:
    """What became of a task."""

    value: Any = None
    error: BaseException | None = None
    ended: bool = False
    """An iterable had no more samples."""
    state: Any = None
    """The data set's state after this batch, if it was asked for."""
    times: Times | None = None
    spans: list[Span] = field(default_factory=list)
    """What which worker did for it; nothing if there are no workers."""


@dataclass
class Begin:
    """How an epoch begins."""

    states: list[Any] | None = None
    """The data set's state in each worker, or None to begin afresh."""
    skips: list[int] | None = None
    """Batches that each worker passes over where there is no state."""
    rows: int = 0
    """Samples of a batch, for passing over."""
    ended: bool = False
    """Whether the data set was read to its end before, where only the consumer knows that."""
    reports: bool = False
    """Whether `begins` will be asked."""


class Executor(Protocol):
    """Runs tasks. Sequence numbers are the executor's own and never come twice."""

    workers: int
    owner: int
    """The process that made it; workers do not follow a fork."""
    broken: BaseException | None
    """Why it can do nothing any more."""

    @property
    def name(self) -> str:
        """How it runs them: "processes", "threads" or "inline"."""

    @property
    def capacity(self) -> int:
        """Tasks that may be under way at once."""

    @property
    def ready(self) -> int:
        """Results that nobody has taken yet."""

    @property
    def starting(self) -> bool:
        """Whether all workers are still on their way: no sample has had a chance yet."""

    def begin(self, begin: Begin) -> None:
        """An epoch begins: iterables start anew."""

    def begins(self) -> Mapping[int, Any]:
        """The state of each worker's data set when this epoch began, where it was not given one and has
        one; waits for workers that have not begun."""

    def submit(self, task: Task) -> int:
        """Takes a task; its result will have this sequence number."""

    def take(self, sequence: int) -> Result | None:
        """The result, if it is there."""

    def wait(self, seconds: float | None) -> bool:
        """Waits until something has happened; False if nothing did in that time."""

    def withdraw(self, sequence: int) -> bool:
        """Takes a task back that no worker has begun, while no worker is ready for it."""

    def forget(self) -> None:
        """Nothing that was submitted so far is wanted any more."""

    def renew(self, job: Job, base_seed: int) -> None:
        """Workers get the data set and all that goes with it as they are now."""

    def rest(self) -> None:
        """Workers let go of the data set and of memory until they are renewed."""

    def close(self) -> None:
        """Ends all workers."""
