"""The inside of a `Loader` over Python code: the engine's order, the program's samples."""

from __future__ import annotations

import itertools
import json
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from feedline import _native
from feedline._errors import ClosedError, SourceError, StaleIteratorError
from feedline.code.core import LoaderCore, helper
from feedline.code.failures import FailedSamples
from feedline.code.pipeline import Pipeline
from feedline.code.stream import ANEW, stream_name, warn_of_the_long_way
from feedline.deliver.batch import rows_of
from feedline.observe.tuning import freeze_code
from feedline.spec.plain import state_text
from feedline.workers import Begin, Executor, Feed, Result, Task

_CLOSED = "the loader is closed: make a new one"
_STALE = "this iterator is over: the loader was iterated, seeked or resumed again since it was made"


class CodeBackend:
    """Makes the batches of a `Pipeline` (see `feedline.loader.backend.Backend`)."""

    device: str | None = None

    def __init__(
        self,
        spec: Mapping[str, Any],
        output: str,
        *,
        executor: str,
        collate_fn: Callable[[list[Any]], Any] | None,
        worker_init_fn: Callable[[int], Any] | None,
    ) -> None:
        self._pipeline = pipeline = Pipeline(
            spec, output, executor=executor, collate_fn=collate_fn, worker_init_fn=worker_init_fn
        )
        self.begun = self.closed = False
        self._warned = False
        self._failures = FailedSamples(pipeline.max_failures, spec.get("quarantine"))
        self._core = LoaderCore(
            " + ".join(pipeline.names),
            workers=pipeline.workers,
            adjusts=pipeline.adjusts,
            batch_size=pipeline.batch_size,
            shown_batch_size=pipeline.batch_size,
            quarantine=spec.get("quarantine"),
        )
        self._core.failed = self._failures
        self._lock = threading.RLock()
        # The next batch's epoch and number, and where an iterable stands before it, if it has a state. One
        # tuple, so that a state is taken in one look while another thread waits for a batch.
        self._next: tuple[int, int, Any] = (0, 0, None)
        self._iterated = 0
        # Whether the program has chosen the position, by seeking or resuming.
        self._placed = True
        self._resumed = False
        self._generation = 0
        self._executor: Executor | None = None
        self._feed: _Stoppable | None = None
        self._expected = (0, 0)
        self._closing: Any = None
        self._stopped = threading.Event()

    @property
    def spec(self) -> dict[str, Any]:
        return self._pipeline.spec

    @property
    def about(self) -> dict[str, Any]:
        return self._pipeline.about

    @property
    def workers(self) -> int:
        return self._core.tuning.workers

    @property
    def _position(self) -> tuple[int, int]:
        return self._next[:2]

    def begin(self) -> int:
        with self._locked():
            self._check_open()
            epoch, number = self._position
            if not self._placed and number > 0:
                self._next = (epoch + 1, 0, None)
            self._placed = False
            self._generation += 1
            self._iterated = self._position[0]
            self._core.begin_epoch(self._iterated)
            return self._generation

    def next(self, iterator: int) -> tuple[Any, bool, int] | None:
        with self._locked():
            self._check_open()
            if self._generation != iterator:
                raise StaleIteratorError(_STALE)
            if self._iterated != self._position[0]:
                return None
            pipeline, begins = self._pipeline, self._position[1] == 0
            asked = self._core.asked()
            try:
                try:
                    task, result = self._running().next()
                except StopIteration:
                    self._core.left()
                    return self._end(iterator)
                if result.error is not None:
                    # The batch stays the next one: after the cause is fixed, a resumed run makes it.
                    raise pipeline.named(result.error, task, self._position[0])
                rows, padding = task.note
                batch = pipeline.batch(self._without_failures(result.value), rows, self._position, padding)
            except BaseException:
                self._core.left()
                self._halt()
                raise
            self._move_past(result)
            if pipeline.streams:
                # Its last batch may be short.
                rows = min(rows, rows_of(batch, rows))
            adjusted = None if pipeline.streams else self._executor
            self._core.handed(task.number, rows, asked, begins=begins, result=result, adjusted=adjusted)
            return batch, self._iterated != self._position[0], padding

    def ended(self, iterator: int) -> None:
        with self._locked():
            if self._generation == iterator:
                self._core.counters.asked()
                self._core.left()

    def _end(self, iterator: int) -> tuple[Any, bool, int] | None:
        """An iterable is over."""
        epoch, number = self._position
        resumed, self._resumed = self._resumed, False
        self._halt()
        if resumed and number > 0:
            # The state was taken after the last batch: what was resumed is the next epoch.
            self._next = (epoch + 1, 0, None)
            self._iterated = epoch + 1
            return self.next(iterator)
        self._next_epoch(epoch)
        return None

    def _without_failures(self, value: Any) -> Any:
        """A batch without the failures that came with it, which are counted."""
        if not self._pipeline.skips:
            return value
        failures, value = value
        for text in failures:
            for record in json.loads(text) if text else ():
                self._failures.add(record)
        return value

    def _move_past(self, result: Result) -> None:
        epoch, number = self._position
        number += 1
        inner = None
        self._resumed = False
        if self._pipeline.streams:
            state = result.state or {}
            if state.get("ended"):
                # A short batch is the last.
                self._halt()
                self._next_epoch(epoch)
                return
            inner = state.get("dataset", {}).get("inner")
        elif number >= self._pipeline.batches:
            epoch, number = epoch + 1, 0
        self._next, self._expected = (epoch, number, inner), (epoch, number)

    def _next_epoch(self, epoch: int) -> None:
        self._next = (epoch + 1, 0, None)
        if self._executor is not None and self._executor.name != "inline" and not self._pipeline.reads_once:
            # The worker begins with the next epoch while the program finishes this one.
            self._running()

    def _running(self) -> _Stoppable:
        """The feed, at the present position."""
        if self._feed is not None and self._expected == self._position:
            return self._feed
        self._halt()
        pipeline = self._pipeline
        epoch, number, inner = self._next
        tasks = pipeline.tasks(epoch, number)
        if self._executor is None:
            first = next(tasks)
            self._executor = self._start(first)
            tasks = itertools.chain([first], tasks)
        begin = Begin(rows=pipeline.batch_size)
        if pipeline.reads_once and self.begun:
            raise SourceError(
                f"{stream_name(pipeline.source)}: can be read once, and was begun before; allowed: {ANEW}"
            )
        self.begun = True
        if pipeline.streams:
            if number and inner is None:
                warn_of_the_long_way(number * begin.rows * pipeline.world_size, pipeline.source_name)
            at = {"epoch": epoch, "batch": number, "inner": inner}
            begin.states = [{"dataset": at, "iterator": None, "ended": False}]
        self._executor.begin(begin)
        helps = not pipeline.streams and pipeline.job.init is None and self._core.helps(self._executor)
        self._feed = self._core.feed = _Stoppable(
            self._executor,
            tasks,
            turns=pipeline.streams and self._executor.name == "processes",
            helper=helper(pipeline.job, self._executor) if helps else None,
        )
        self._feed.stopped = self._stopped
        self._expected = self._position
        if self._executor.name != "inline":
            self._feed.fill()
        return self._feed

    def _start(self, first: Task) -> Executor:
        pipeline, workers = self._pipeline, self._pipeline.workers
        choice = self._core.choose(pipeline.executor, workers, lambda: pipeline.choose(first))
        executor = self._core.start(choice, pipeline.job, workers, pipeline.prefetch or 2, pipeline.seed)
        # Whatever happens to this object, its workers end with it.
        self._closing = weakref.finalize(self, executor.close)
        return executor

    def _halt(self) -> None:
        """Nothing of what is under way is needed any more."""
        feed, self._feed, self._core.feed = self._feed, None, None
        executor = self._executor
        if executor is not None and executor.broken is not None:
            # Workers that cannot go on are not asked again.
            self._executor = None
            self._end_workers(executor)
        elif feed is not None:
            feed.close()

    def _end_workers(self, executor: Executor) -> None:
        if self._closing is not None:
            self._closing.detach()
        executor.close()

    def set_epoch(self, epoch: int) -> None:
        if not 0 <= epoch <= _native.Order.most_epochs:
            raise OverflowError(f"epoch {epoch} is beyond any real run")
        with self._locked():
            self._check_open()
            self._next = (epoch, 0, None)
            self._generation += 1
            self._placed = True

    def position(self) -> tuple[int, int]:
        self._check_open()
        return self._position

    def state_dict(self) -> dict[str, Any]:
        self._check_open()
        pipeline = self._pipeline
        if pipeline.stateful and not self._warned:
            self._warned = True
            warnings.warn(
                f"{pipeline.stateful} has a state_dict, which is not part of this loader's state: any worker "
                "makes any sample, so samples must depend on their index alone to come again after a resume. "
                "feedline.torch.DataLoader keeps the data set's state in each worker",
                RuntimeWarning,
                stacklevel=3,
            )
        epoch, number, inner = self._next
        text = pipeline.order.state(epoch, number, pipeline.data, pipeline.pixels, self._failures.picks)
        state: dict[str, Any] = json.loads(text)
        if pipeline.streams:
            state["iterable"] = inner
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pipeline = self._pipeline
        with self._locked():
            self._check_open()
            core = dict(state) if isinstance(state, Mapping) else {}
            inner = core.pop("iterable", None) if pipeline.streams else None
            epoch, number, failed = pipeline.order.check(state_text(core), pipeline.data, pipeline.pixels)
            self._halt()
            self._failures.restore(failed)
            self._next = (epoch, number, inner)
            self._generation += 1
            self._placed = self._resumed = True

    def decisions(self, seen: int) -> tuple[int, str]:
        return self._core.tuning.decisions(seen)

    def stats(self) -> dict[str, Any]:
        self._check_open()
        return self._core.stats()

    def report(self) -> dict[str, Any]:
        return self._core.report()

    def freeze(self, path: str | os.PathLike[str]) -> None:
        freeze_code(path, self.stats(), self._pipeline.prefetch, "Loader")

    def record(self, most: int) -> None:
        self._core.record(most)

    def timeline(self) -> str:
        return self._core.timeline()

    def evidence(self) -> dict[str, Any] | None:
        return None

    def close(self) -> None:
        """Ends the workers, also while another thread waits for a batch."""
        self._stopped.set()
        with self._locked():
            self.closed = True
            self._generation += 1
            self._halt()
            executor, self._executor = self._executor, None
            if executor is not None:
                self._end_workers(executor)
            self._core.close()
            self._failures.close()

    def _locked(self) -> threading.RLock:
        if self._core.notice_fork():
            # A thread that does not exist in this process may have held the old one.
            self._lock = threading.RLock()
            if self._closing is not None:
                self._closing.detach()
            # This process gets workers of its own.
            self._feed = self._executor = None
        return self._lock

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(_CLOSED)


class _Stoppable(Feed):
    """A feed whose wait ends when the loader is closed."""

    stopped: threading.Event

    def _wait(self) -> None:
        if self.stopped.is_set():
            raise ClosedError(_CLOSED)
        self._executor.wait(0.1)
