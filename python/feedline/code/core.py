"""What all loaders of Python code share: who runs the code, and what is counted and reported."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sized
from typing import Any

from feedline.observe.counters import Counters
from feedline.observe.live import Live
from feedline.observe.tuning import CodeTuning
from feedline.workers import (
    Choice,
    Comparison,
    Contest,
    Executor,
    Feed,
    Inline,
    Job,
    Maker,
    Processes,
    Reader,
    Result,
    Task,
    Threads,
    WorkerError,
    apart,
)
from feedline.workers.slots import Pin

EXECUTORS = ("auto", "threads", "processes", "inline")


class LoaderCore:
    """The part of a loader that knows neither its order nor its samples.

    It does not hold on to the loader, which ends its workers when the program drops it.
    """

    def __init__(
        self,
        name: str,
        *,
        workers: int,
        adjusts: bool,
        batch_size: int | None,
        shown_batch_size: int,
        quarantine: Any = None,
    ) -> None:
        """Without a `batch_size` the mean of the batches is reported. The dashboard shows `name` and
        `shown_batch_size`."""
        self.counters = Counters()
        self.tuning = CodeTuning(adjusts, workers)
        self.choice: Choice | None = None
        self.feed: Feed | None = None
        self.failed: Sized = ()
        self.epoch = 0
        self._batch_size = batch_size
        self._executor: Executor | None = None
        self._epoch_begin: dict[str, Any] = {}
        self._process = os.getpid()
        self._live = Live(name, shown_batch_size, quarantine)

    def choose(self, requested: str, workers: int, decide: Callable[[], Choice]) -> Choice:
        """Which executor runs the code; `decide` is asked once, if the program leaves it open."""
        if requested == "inline" or workers == 0:
            reason = "it was asked for" if requested == "inline" else "num_workers is 0"
            self.choice = Choice("inline", reason)
        elif self.choice is None or self.choice.name == "inline":
            self.choice = Choice(requested, "it was asked for") if requested != "auto" else decide()
        return self.choice

    def start(
        self,
        choice: Choice,
        job: Job,
        workers: int,
        prefetch: int,
        seed: int,
        *,
        method: str = "default",
        pin: Callable[[int, int], Pin] | None = None,
        samples: list[Any] | None = None,
    ) -> Executor:
        """Starts the executor that was chosen, or its fallback if it cannot be started. `samples` of the
        first task are made already."""
        if choice.name == "inline":
            return Inline(job)
        made: Executor | None = None
        if choice.name == "processes" or choice.compare:
            try:
                if method == "default" and not choice.forks:
                    method = "forkserver"
                made = Processes(job, workers, prefetch, seed, method, pin, samples)
            except WorkerError as error:
                if choice.fallback is None:
                    raise
                self.choice = Choice(choice.fallback, f"{choice.reason}, but {error}").log()
        if made is None and job.kind == "iterable":
            made = Reader(job, prefetch)
        elif made is None:
            made = Threads(job, workers, prefetch, seed, pin)
        elif choice.compare and isinstance(made, Processes):
            threads = Threads(Contest.job_of_threads(job), workers, prefetch, seed, pin)
            made = Contest(threads, made, lambda comparison: self._compared(choice, comparison))
            self._compared(choice, made.comparison)
        self._executor = made
        return made

    def _compared(self, choice: Choice, comparison: Comparison) -> None:
        """Notes who goes on, and by what figures."""
        reason = choice.reason.partition("; measured: ")[0]
        reason += f"; measured: {comparison}" if comparison.rates else ""
        now = dataclasses.replace(
            choice, name=comparison.current, reason=reason, compare=not comparison.settled
        )
        self.choice = now.log() if comparison.settled else now

    def helps(self, executor: Executor) -> bool:
        """Whether the caller's thread may make batches while the workers start."""
        return executor.name == "processes" and self.choice is not None and self.choice.helps

    def notice_fork(self) -> bool:
        """Whether this is a forked child that asks for the first time: the workers, and whatever locks
        they hold, are the parent's."""
        if self._process == os.getpid():
            return False
        self._process, self.feed, self._executor = os.getpid(), None, None
        return True

    def begin_epoch(self, epoch: int) -> None:
        """Reports are about this epoch from now on."""
        self.epoch = epoch
        self.counters.between_epochs()
        self._epoch_begin = self.counters.mark()

    def asked(self) -> float:
        """The program asks for a batch; returns when."""
        asked = self.counters.asked()
        self._live.asked(self)
        return asked

    def handed(
        self, number: int, rows: int, asked: float, *, begins: bool, result: Result, adjusted: Executor | None
    ) -> None:
        """The program gets a batch of an executor whose workers may be adjusted, unless it is None."""
        self.counters.handed(number, rows, asked, begins=begins, result=result)
        self._live.handed(self)
        # What is still compared is not adjusted beside that.
        adjusted = adjusted.winner if isinstance(adjusted, Contest) else adjusted
        self.tuning.handed(adjusted, self.counters)

    def left(self) -> None:
        """The program waits no longer, and there is no batch for it."""
        self.counters.between_epochs()
        self._live.left(self)

    def close(self) -> None:
        """Takes the loader off the dashboard."""
        self._live.close()

    def stats(self) -> dict[str, Any]:
        """What happened so far: the keys of every loader's `stats()`, None where there is no such thing."""
        # Another thread may end the epoch meanwhile.
        choice, feed = self.choice, self.feed
        return {
            **self.counters.stats(),
            "failed_samples": len(self.failed),
            "read_bytes": None,
            "read_ahead": None,
            "queue": None if feed is None else feed.queue,
            "executor": None if choice is None else {"name": choice.name, "reason": choice.reason},
            "workers": {
                "number": self.tuning.workers,
                "restarted": getattr(self._executor, "restarts", 0),
                **self.counters.worker_stats(),
            },
            "memory": None,
            "tuning": self.tuning.stats(),
            "cache": None,
            "device": None,
            "made_by_the_caller": 0 if feed is None else feed.helped,
        }

    def report(self) -> dict[str, Any]:
        """How the epoch went so far, and why the program waited."""
        return {**self.report_since(self._epoch_begin), "epoch": self.epoch}

    def report_since(self, before: dict[str, Any]) -> dict[str, Any]:
        """The same since a mark of the counters."""
        choice = self.choice
        return self.counters.report(
            before,
            executor="inline" if choice is None else choice.name,
            batch_size=float(self._batch_size or self.counters.rows),
            workers=self.tuning.workers,
        )

    def mark(self) -> dict[str, Any]:
        """The counters as they stand, for `report_since`."""
        return self.counters.mark()

    def record(self, most: int) -> None:
        """From now on, keeps the last `most` spans of each worker."""
        self.counters.record(most)

    def timeline(self) -> str:
        """What each worker did since `record`, as JSON; the program's own spans come first, and only
        the caller knows them."""
        return json.dumps([[], *self.counters.lanes()])


def helper(job: Job, executor: Executor) -> Callable[[Task], tuple[Any, Any]]:
    """Makes batches in the calling thread while the workers are still starting."""
    maker = Maker(job)

    def look(_: int) -> None:
        # Workers that become ready meanwhile get their tasks between two samples.
        executor.wait(0)

    return lambda task: apart(task.seed, lambda: maker.timed(task, None, look))
