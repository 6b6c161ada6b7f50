"""The loader of data sets that are Python code: the engine's order, the program's samples."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from feedline import _native
from feedline._errors import (
    ClosedError,
    SampleError,
    SourceError,
    StaleIteratorError,
    StateError,
    TooManyFailuresError,
)
from feedline.code.collate import (
    Finish,
    Joined,
    UnevenError,
    WithFailures,
    at_image,
    collate,
    map_arrays,
)
from feedline.code.open import (
    check_arguments,
    check_last_batch,
    check_stream,
    field_names,
    make_order,
    open_quarantine,
    open_sources,
)
from feedline.code.rows import Rows
from feedline.code.sources import ArraySource, ListSource, NativeSource
from feedline.code.stages import Row, Stages, as_list, name_of, refuse
from feedline.code.stream import ANEW, Called, Stream, stream_name, warn_of_the_long_way
from feedline.deliver.batch import Batch, Made, one_array, rows_of
from feedline.observe.counters import Counters
from feedline.observe.live import Live
from feedline.observe.tuning import CodeTuning
from feedline.spec.plain import with_paths
from feedline.spec.source import is_iterable, length_of, reads_once
from feedline.transforms import Transform
from feedline.workers import (
    Begin,
    Choice,
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
    choose,
    mixed,
)

_CLOSED = "the loader is closed: make a new one"
_STALE = "this iterator is over: the loader was iterated, seeked or resumed again since it was made"


class CodeLoader:
    """What `feedline.Loader` has inside where Python code makes the samples.

    It has the methods of the native loader; batches come out as the program sees them.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        source: Any,
        output: str,
        *,
        executor: str = "auto",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
    ) -> None:
        self._given = {**spec, "source": source}
        self._extra = {"executor": executor, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
        self._asked = executor
        check_arguments(spec, executor, collate_fn, worker_init_fn)
        self._streams = is_iterable(source)
        if self._streams and not hasattr(source, "__iter__"):
            source = Called(source)
        # It can be read from its beginning once: a second time would begin wherever the first one stopped.
        self._once = self._streams and reads_once(source)
        self.begun = False
        self._source = source
        sources, weights, paths = ([source], [None], []) if self._streams else open_sources(source)
        self._sources = sources
        if self._streams:
            check_stream(spec)
        self._order, self._paths = make_order(spec, sources, weights, paths, streams=self._streams)
        about = json.loads(self._order.about)
        self._plain_spec: dict[str, Any] = about.pop("spec")
        self._about: dict[str, Any] = about
        if self._streams:
            check_last_batch(self._plain_spec.get("last_batch", "short"), about["world_size"])
        seed = self._plain_spec.get("seed", 0)
        fields = None if self._streams else field_names(sources)
        decode = spec.get("decode")
        native = any(
            one.has_images if isinstance(one, NativeSource) else isinstance(one, ListSource) and one.has_files
            for one in sources
        )
        layout = spec.get("layout") or "CHW"
        self._stages = Stages(spec.get("transforms"), layout, decode, seed, decodes=native)
        for one in sources:
            if isinstance(one, NativeSource):
                one.check(self._stages, (decode or {}).get("mode") == "gray")
        whole = Finish(self._stages.per_batch)
        plain_batches = collate_fn is None and not self._stages.per_batch
        if not plain_batches and (self._stages.turned or self._stages.bfloat16):
            what = "PerBatch" if self._stages.per_batch else "collate_fn"
            key = "layout" if self._stages.turned else "transforms"
            raise refuse(key, f"{what} sees NumPy arrays in C order, which these are not")
        self._fields = fields if collate_fn is None else None
        self._convert = one_array(output, bfloat16=self._stages.bfloat16)
        self._output = output
        joined = collate_fn or collate
        self._skips = self._plain_spec.get("on_error") == "skip"
        function: Callable[[Any], Any]
        if self._skips:
            function = WithFailures(joined, whole)
        else:
            function = joined if not self._stages.per_batch else Joined(joined, whole)
        if self._streams:
            rows: Any = Stream(
                source,
                self._stages,
                eager=not plain_batches,
                batch_size=self._plain_spec.get("batch_size", 1),
                rank=about["rank"],
                world_size=about["world_size"],
            )
        else:
            order = self._order if self._skips else None
            rows = Rows(sources, self._stages, eager=not plain_batches, order=order)
        workers = about["workers"] if executor != "inline" else 0
        if workers == 0 and executor not in ("auto", "inline"):
            raise refuse("executor", f'"{executor}" needs workers, and num_workers is 0')
        # The order of an iterable would depend on the number of its readers.
        self._workers = min(workers, 1) if self._streams else workers
        about["workers"] = self._workers
        self._tuning = CodeTuning("num_workers" not in self._plain_spec, self._workers)
        self._rows = rows
        self._job = Job(
            rows,
            "iterable" if self._streams else "map",
            function,
            stacks=plain_batches,
            drop_last=self._plain_spec.get("last_batch") == "drop",
            init=worker_init_fn,
            num_workers=self._workers,
        )
        self._data = json.dumps(_identity(source) if self._streams else [one.identity for one in sources])
        self._pixels = self._stages.canonical + (name_of(collate_fn) if collate_fn is not None else "")
        self._quarantine = open_quarantine(spec.get("quarantine"))
        self._lock = threading.RLock()
        self._process = os.getpid()
        # The next batch's epoch and number, and where an iterable stands before it, if it tells. One
        # tuple, so that a state is taken in one look while another thread waits for a batch.
        self._place: tuple[int, int, Any] = (0, 0, None)
        self._iterated = 0
        self._placed = True
        self._resumed = False
        self._generation = 0
        self._failed: frozenset[tuple[int, int]] = frozenset()
        self._executor: Executor | None = None
        self._choice: Choice | None = None
        self._feed: _Stoppable | None = None
        self._expected = (0, 0)
        self._closing: Any = None
        self.closed = False
        self._stopped = threading.Event()
        self._figures = Counters()
        self._before: dict[str, Any] = {}
        self._padding = 0
        self._live = Live(
            " + ".join(self._names), self._plain_spec.get("batch_size", 1), spec.get("quarantine")
        )

    @property
    def _position(self) -> tuple[int, int]:
        return self._place[:2]

    @property
    def spec(self) -> dict[str, Any]:
        """The description: plain data, but for the program's own objects."""
        spec: dict[str, Any] = with_paths(self._plain_spec, self._paths)
        described = [
            op.spec() if isinstance(op, Transform) else op for op in as_list(self._given["transforms"])
        ]
        for key, value in (("transforms", described), ("decode", self._given.get("decode"))):
            if value:
                spec[key] = value
        for key, value in self._extra.items():
            if value is not None and value != "auto":
                spec[key] = value
        layout = self._given.get("layout")
        if layout not in (None, "CHW"):
            spec["layout"] = layout
        return {"source": self._given["source"], **{k: v for k, v in spec.items() if k != "source"}}

    @property
    def _names(self) -> list[str]:
        return [_type_name(self._source)] if self._streams else [one.name for one in self._sources]

    @property
    def about(self) -> dict[str, Any]:
        """Fields, sizes, classes, workers."""
        classes = [] if self._streams else self._sources[0].classes
        fields = [{"name": name, "dtype": None, "shape": None} for name in self._fields or ()]
        unused = [
            (one.name, one.unused) for one in self._sources if isinstance(one, NativeSource) and one.unused
        ]
        about = {
            **self._about,
            "fields": fields,
            "classes": classes,
            "sources": self._names,
            "unused_columns": unused,
        }
        if self._streams:
            length = length_of(self._source)
            whole = self._plain_spec.get("batch_size", 1) * about["world_size"]
            short = self._plain_spec.get("last_batch", "short") == "short"
            about["samples"] = length
            about["batches"] = (
                None if length is None else (math.ceil if short else math.floor)(length / whole)
            )
        return about

    def begin(self) -> int:
        """Begins the next epoch and returns its iterator's number."""
        with self._locked():
            self._check_open()
            epoch, number = self._position
            if not self._placed and number > 0:
                self._go_to(epoch + 1, 0)
            self._placed = False
            self._generation += 1
            self._iterated = self._position[0]
            self._figures.between_epochs()
            self._before = self._figures.mark()
            return self._generation

    def next(self, iterator: int) -> tuple[Any, bool] | None:
        """The next batch, and whether it is known to be its epoch's last; None if there is none left."""
        with self._locked():
            self._check_open()
            if self._generation != iterator:
                raise StaleIteratorError(_STALE)
            if self._iterated != self._position[0]:
                return None
            begun, begins = self._figures.asked(), self._position[1] == 0
            self._live.asked(self)
            try:
                try:
                    task, result = self._running().next()
                except StopIteration:
                    self._wait_no_longer()
                    return self._end(iterator)
                if result.error is not None:
                    # The batch stays the next one: after the cause is mended, a resumed run makes it.
                    raise self._named(result.error, task)
                batch = self._finished(task, result)
            except BaseException:
                self._wait_no_longer()
                self._halt()
                raise
            self._move_past(result)
            rows, _ = task.note
            if self._streams:
                # Its last batch may be short.
                rows = min(rows, rows_of(batch, rows))
            self._figures.handed(task.number, rows, begun, begins=begins, result=result)
            self._live.handed(self)
            self._tuning.handed(None if self._streams else self._executor, self._figures)
            return batch, self._iterated != self._position[0]

    def ended(self, iterator: int) -> None:
        """The program asks for more after its epoch's last batch, and so is done with it."""
        with self._locked():
            if self._generation == iterator:
                self._figures.asked()
                self._wait_no_longer()

    def _wait_no_longer(self) -> None:
        """There is no batch for the program."""
        self._figures.between_epochs()
        self._live.left(self)

    def _end(self, iterator: int) -> tuple[Any, bool] | None:
        """An iterable is over."""
        epoch, number = self._position
        resumed, self._resumed = self._resumed, False
        self._halt()
        if resumed and number > 0:
            # The state was taken after the last batch: what was resumed is the next epoch.
            self._place = (epoch + 1, 0, None)
            self._iterated = epoch + 1
            return self.next(iterator)
        self._next_epoch(epoch)
        return None

    def _move_past(self, result: Result) -> None:
        epoch, number = self._position
        number += 1
        inner = None
        self._resumed = False
        if self._streams:
            state = result.state or {}
            if state.get("ended"):
                # A short batch tells that it is the last.
                self._halt()
                self._next_epoch(epoch)
                return
            inner = state.get("dataset", {}).get("inner")
        elif number >= self._about["batches"]:
            epoch, number = epoch + 1, 0
        self._place, self._expected = (epoch, number, inner), (epoch, number)

    def _next_epoch(self, epoch: int) -> None:
        self._place = (epoch + 1, 0, None)
        if self._executor is not None and self._executor.name != "inline" and not self._once:
            # The worker begins with the next epoch while the program finishes this one.
            self._running()

    def _finished(self, task: Task, result: Result) -> Any:
        rows, padding = task.note
        value = result.value
        if self._skips:
            failures, value = value
            for text in failures:
                for told in json.loads(text) if text else ():
                    self._record(told)
        self._padding = padding
        if self._stages.turned:
            value = at_image(value, lambda array: array.transpose(0, 3, 1, 2) if array.ndim == 4 else array)
        if self._fields is None:
            return map_arrays(self._convert, value)
        if not isinstance(value, Mapping):
            raise TypeError(f"PerBatch must return a dict of arrays here, not a {type(value).__name__}")
        made = Made(value, rows, self._position, padding, self._stages.bfloat16)
        convert = self._convert
        return Batch(
            made, tuple(value), lambda arrays: tuple([map_arrays(convert, array) for array in arrays])
        )

    def _record(self, told: dict[str, Any]) -> None:
        """Counts a sample that failed, and names it in the quarantine file."""
        text = told.pop("text")
        pick = told["source"], told["index"]
        if pick not in self._failed:
            if self._quarantine is not None:
                self._quarantine.write(json.dumps(told) + "\n")
                self._quarantine.flush()
            self._failed |= {pick}
        allowed = self._plain_spec.get("max_failures")
        if allowed is not None and len(self._failed) > allowed:
            self._halt()
            failed = len(self._failed)
            raise TooManyFailuresError(
                f"{failed} samples failed, more than max_failures = {allowed} allows; the last: {text}",
                failed=failed,
                allowed=allowed,
                **told,
            )

    def _named(self, error: BaseException, task: Task) -> BaseException:
        """An error with the sample that it is about."""
        if not isinstance(error, UnevenError):
            return error
        if self._streams:
            # The samples are counted over all ranks.
            before = task.number * self._about["world_size"] + self._about["rank"]
            place = before * self._plain_spec.get("batch_size", 1) + error.row
            row = Row(place, 0, self._position[0], place, place)
        else:
            row = task.index[error.row]
        advice = "add a Resize or a crop to the transforms, or give collate_fn"
        named = SampleError(
            f"sample {row}: cannot collate: {error.problem}; {advice}",
            index=row.sample,
            source=row.source,
            stage="collate",
            reason=error.problem,
        )
        named.__cause__ = error
        return named

    def _running(self) -> _Stoppable:
        """The feed, at the present position."""
        if self._feed is not None and self._expected == self._position:
            return self._feed
        self._halt()
        epoch, number, inner = self._place
        tasks = _tasks(self._order, self._about, self._plain_spec, self._streams, epoch, number)
        if self._executor is None:
            first = next(tasks)
            self._executor = self._start(first)
            tasks = itertools.chain([first], tasks)
        begin = Begin(rows=self._plain_spec.get("batch_size", 1))
        if self._once and self.begun:
            raise SourceError(
                f"{stream_name(self._source)}: can be read once, and was begun before; allowed: {ANEW}"
            )
        self.begun = True
        if self._streams:
            if number and inner is None:
                whole = begin.rows * self._about["world_size"]
                warn_of_the_long_way(number * whole, _type_name(self._source))
            at = {"epoch": epoch, "batch": number, "inner": inner}
            begin.states = [{"dataset": at, "iterator": None, "ended": False}]
        self._executor.begin(begin)
        helps = not self._streams and self._job.init is None and self._executor.name == "processes"
        self._feed = _Stoppable(
            self._executor,
            tasks,
            turns=self._streams and self._executor.name == "processes",
            helper=self._helper() if helps else None,
        )
        self._feed.stopped = self._stopped
        self._expected = self._position
        if self._executor.name != "inline":
            self._feed.fill()
        return self._feed

    def _start(self, first: Task) -> Executor:
        workers, seed = self._workers, self._plain_spec.get("seed", 0)
        if workers == 0:
            why = "it was asked for" if self._asked == "inline" else "num_workers is 0"
            self._choice = Choice("inline", why)
            return Inline(self._job)
        if self._asked != "auto":
            self._choice = Choice(self._asked, "it was asked for")
        elif self._choice is None:
            self._choice = self._choose(first)
        made: Executor
        prefetch = self._plain_spec.get("prefetch_factor") or 2
        if self._choice.name == "processes":
            try:
                made = Processes(self._job, workers, prefetch, seed)
            except WorkerError as error:
                if self._asked != "auto" or not (self._streams or self._choice.reason.startswith("a sample")):
                    raise
                self._choice = Choice("threads", f"{self._choice.reason}, but {error}").tell()
                made = self._threads(prefetch, seed)
        else:
            made = self._threads(prefetch, seed)
        # Whatever happens to this object, its workers end with it.
        self._closing = weakref.finalize(self, made.close)
        return made

    def _threads(self, prefetch: int, seed: int) -> Executor:
        if self._streams:
            return Reader(self._job, prefetch)
        return Threads(self._job, self._workers, prefetch, seed)

    def _choose(self, first: Task) -> Choice:
        if self._streams:
            return Choice("processes", "an iterable is read by one worker, beside the program").tell()
        native = all(
            isinstance(one, NativeSource | ArraySource) or (isinstance(one, ListSource) and one.has_files)
            for one in self._sources
        )
        if native and not self._stages.functions:
            return Choice("threads", "all per-sample work is native").tell()
        # What is still to be written counts as part of a sample's time.
        with self._rows.trying():
            choice = choose(self._job, self._workers, first).tell()
        first.made = None
        return choice

    def _helper(self) -> Callable[[Task], tuple[Any, Any]]:
        """Makes a batch here while the workers are still starting."""
        maker, executor = Maker(self._job), self._executor
        assert executor is not None

        def look(_: int) -> None:
            executor.wait(0)

        def help_out(task: Task) -> tuple[Any, Any]:
            # Workers that become ready meanwhile get their tasks between two samples.
            made: tuple[Any, Any] = apart(task.seed, lambda: maker.timed(task, None, look))
            return made

        return help_out

    def _halt(self) -> None:
        """Nothing of what is under way is wanted."""
        feed, self._feed = self._feed, None
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

    def _go_to(self, epoch: int, number: int) -> None:
        self._place = (epoch, number, None)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch."""
        if not 0 <= epoch <= _native.Order.most_epochs:
            raise OverflowError(f"epoch {epoch} is beyond any real run")
        with self._locked():
            self._check_open()
            self._go_to(epoch, 0)
            self._generation += 1
            self._placed = True

    def position(self) -> tuple[int, int]:
        """The epoch and the number of the next batch."""
        self._check_open()
        return self._position

    @property
    def padding(self) -> int:
        """Of the batch that was handed over last: how many of its last rows only fill it up."""
        return self._padding

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands."""
        self._check_open()
        epoch, number, inner = self._place
        text = self._order.state(epoch, number, self._data, self._pixels, sorted(self._failed))
        state: dict[str, Any] = json.loads(text)
        if self._streams:
            state["iterable"] = inner
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken."""
        with self._locked():
            self._check_open()
            core = dict(state) if isinstance(state, Mapping) else {}
            inner = core.pop("iterable", None) if self._streams else None
            try:
                text = json.dumps(core, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise StateError(f"cannot resume: this is no state of feedline: {error}") from None
            epoch, number, skipped = self._order.check(text, self._data, self._pixels)
            self._halt()
            self._failed = frozenset(skipped)
            self._place = (epoch, number, inner)
            self._generation += 1
            self._placed = self._resumed = True

    @property
    def workers(self) -> int:
        """Workers that make batches now."""
        return self._tuning.workers

    def decisions(self, seen: int) -> tuple[int, str]:
        """How many decisions there were, and as JSON those after the first `seen`."""
        return self._tuning.decisions(seen)

    def stats(self) -> dict[str, Any]:
        """What happened so far."""
        self._check_open()
        # Another thread may end the epoch meanwhile.
        choice, executor, feed = self._choice, self._executor, self._feed
        return {
            **self._figures.stats(),
            "failed_samples": len(self._failed),
            "queue": None if feed is None else feed.queue,
            "executor": None if choice is None else {"name": choice.name, "reason": choice.reason},
            "workers": {"number": self._tuning.workers, "restarted": getattr(executor, "restarts", 0)},
            "tuning": self._tuning.stats(),
        }

    def report(self) -> dict[str, Any]:
        """How the epoch went so far, and why the program waited."""
        return {**self.report_since(self._before), "epoch": self._iterated}

    def report_since(self, before: dict[str, Any]) -> dict[str, Any]:
        """The same since a mark of its figures."""
        choice = self._choice
        return self._figures.report(
            before,
            executor="inline" if choice is None else choice.name,
            batch_size=float(self._plain_spec.get("batch_size", 1)),
            workers=self._tuning.workers,
        )

    def mark(self) -> dict[str, Any]:
        """Its figures as they stand, for `report_since`."""
        return self._figures.mark()

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
            self._live.close()
            if self._quarantine is not None:
                self._quarantine.close()

    def _locked(self) -> threading.RLock:
        if self._process != os.getpid():
            # A thread that does not exist in this process may have held the old one.
            self._lock = threading.RLock()
            if self._closing is not None:
                self._closing.detach()
            # The workers are the parent's; this process gets its own.
            self._process, self._feed, self._executor = os.getpid(), None, None
        return self._lock

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(_CLOSED)


class _Stoppable(Feed):
    """A feed whose wait ends when the loader is closed."""

    stopped: threading.Event

    def _wait(self, begun: float) -> None:
        if self.stopped.is_set():
            raise ClosedError(_CLOSED)
        self._executor.wait(0.1)


def _tasks(
    order: _native.Order, about: dict[str, Any], spec: dict[str, Any], streams: bool, epoch: int, number: int
) -> Iterator[Task]:
    """All batches from here on; of an iterable, those of one epoch. It does not know the loader, which
    would otherwise live as long as its own feed."""
    seed, size = spec.get("seed", 0), spec.get("batch_size", 1)
    while True:
        drawn = mixed(seed, epoch, number, about["rank"])
        if streams:
            yield Task(number, range(size), drawn, snapshot=True, note=(size, 0))
            number += 1
            continue
        rows, padding = order.batch(epoch, number)
        index = [Row(at, source, epoch, draws, position) for source, at, draws, position in rows]
        yield Task(number, index, drawn, note=(len(index), padding))
        number += 1
        if number >= about["batches"]:
            epoch, number = epoch + 1, 0


def _type_name(stream: Any) -> str:
    named = stream.function if isinstance(stream, Called) else type(stream)
    return getattr(named, "__qualname__", type(named).__qualname__)


def _identity(stream: Any) -> list[Any]:
    if isinstance(stream, Called):
        return [name_of(stream.function)]
    return [f"{type(stream).__module__}.{type(stream).__qualname__}"]
