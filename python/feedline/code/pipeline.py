"""What a loader of Python code is made of: sources, an order, stages, and the job of its workers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from feedline._errors import SampleError, refuse
from feedline.code.collate import Finish, Joined, UnevenError, WithFailures, at_image, collate, map_arrays
from feedline.code.open import (
    check_arguments,
    check_last_batch,
    check_stream,
    field_names,
    make_order,
    open_sources,
)
from feedline.code.rows import Rows
from feedline.code.sources import ArraySource, ListSource, NativeSource
from feedline.code.stages import Row, Stages, as_list, name_of
from feedline.code.stream import Called, Stream
from feedline.deliver.batch import Batch, CodeBatch, one_array
from feedline.spec.plain import with_paths
from feedline.spec.source import is_iterable, length_of, reads_once
from feedline.transforms import Transform
from feedline.workers import Choice, Job, Task, choose, is_stateful, mixed


class Pipeline:
    """A description over Python code, opened and checked. Nothing of it changes while it runs."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        output: str,
        *,
        executor: str,
        collate_fn: Callable[[list[Any]], Any] | None,
        worker_init_fn: Callable[[int], Any] | None,
    ) -> None:
        check_arguments(spec, executor, collate_fn, worker_init_fn)
        self.executor = executor
        self._given = dict(spec)
        self._code = {"executor": executor, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
        source: Any = spec.get("source")
        self.streams = is_iterable(source)
        if self.streams and not hasattr(source, "__iter__"):
            source = Called(source)
        # It can be read from its beginning once: a second time would begin wherever the first one stopped.
        self.reads_once = self.streams and reads_once(source)
        self.source = source
        self._sources, weights, paths = ([source], [None], []) if self.streams else open_sources(source)
        if self.streams:
            check_stream(spec)
        sources = () if self.streams else self._sources
        own = (one.name for one in sources if is_stateful(getattr(one, "dataset", None)))
        self.stateful = next(own, None)
        """The first data set with a state of its own that is asked for samples by their index."""
        self.order, self._paths = make_order(spec, self._sources, weights, paths, streams=self.streams)
        self._about: dict[str, Any] = json.loads(self.order.about)
        self._plain: dict[str, Any] = self._about.pop("spec")
        self.rank, self.world_size = self._about["rank"], self._about["world_size"]
        self.batch_size: int = self._plain.get("batch_size", 1)
        self.seed: int = self._plain.get("seed", 0)
        self.prefetch: int | None = self._plain.get("prefetch_factor")
        self.adjusts = "num_workers" not in self._plain
        self.max_failures: int | None = self._plain.get("max_failures")
        self.skips = self._plain.get("on_error") == "skip"
        if self.streams:
            check_last_batch(self._last_batch, self.world_size)
        fields = None if self.streams else field_names(self._sources)
        self._fields = fields if collate_fn is None else None
        self._stages = self._make_stages()
        plain_batches = collate_fn is None and not self._stages.per_batch
        if not plain_batches and (self._stages.turned or self._stages.bfloat16):
            what = "PerBatch" if self._stages.per_batch else "collate_fn"
            key = "layout" if self._stages.turned else "transforms"
            raise refuse(key, f"{what} sees NumPy arrays in C order, which these are not")
        self._convert = one_array(output, bfloat16=self._stages.bfloat16)
        workers = self._about["workers"] if executor != "inline" else 0
        if workers == 0 and executor not in ("auto", "inline"):
            raise refuse("executor", f'"{executor}" needs workers, and num_workers is 0')
        # The order of an iterable would depend on the number of its readers.
        self.workers = self._about["workers"] = min(workers, 1) if self.streams else workers
        self._rows = self._make_rows(eager=not plain_batches)
        self.job = Job(
            self._rows,
            "iterable" if self.streams else "map",
            self._make_collate(collate_fn or collate),
            stacks=plain_batches,
            drop_last=self._plain.get("last_batch") == "drop",
            init=worker_init_fn,
            num_workers=self.workers,
        )
        # What a state must agree on, beyond the order.
        described = [_identity(source)] if self.streams else [one.identity for one in self._sources]
        self.data = json.dumps(described)
        joined = None if collate_fn is None else name_of(collate_fn)
        self.pixels = json.dumps({**self._stages.settings, "collate_fn": joined})

    @property
    def _last_batch(self) -> str:
        last: str = self._plain.get("last_batch", "short")
        return last

    def _make_stages(self) -> Stages:
        spec, sources = self._given, self._sources
        decode = spec.get("decode")
        native = any(
            one.has_images if isinstance(one, NativeSource) else isinstance(one, ListSource) and one.has_files
            for one in sources
        )
        layout = spec.get("layout") or "CHW"
        stages = Stages(spec.get("transforms"), layout, decode, self.seed, decodes=native)
        for one in sources:
            if isinstance(one, NativeSource):
                one.check(stages, (decode or {}).get("mode") == "gray")
        return stages

    def _make_rows(self, *, eager: bool) -> Any:
        if not self.streams:
            order = self.order if self.skips else None
            return Rows(self._sources, self._stages, eager=eager, order=order)
        return Stream(
            self.source,
            self._stages,
            eager=eager,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
        )

    def _make_collate(self, joined: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
        whole = Finish(self._stages.per_batch)
        if self.skips:
            return WithFailures(joined, whole)
        return Joined(joined, whole) if self._stages.per_batch else joined

    @property
    def spec(self) -> dict[str, Any]:
        """The description: plain data, but for the program's own objects."""
        spec: dict[str, Any] = with_paths(self._plain, self._paths)
        described = [
            op.spec() if isinstance(op, Transform) else op for op in as_list(self._given.get("transforms"))
        ]
        for key, value in (("transforms", described), ("decode", self._given.get("decode"))):
            if value:
                spec[key] = value
        for key, value in self._code.items():
            if value is not None and value != "auto":
                spec[key] = value
        layout = self._given.get("layout")
        if layout not in (None, "CHW"):
            spec["layout"] = layout
        return {"source": self._given.get("source"), **{k: v for k, v in spec.items() if k != "source"}}

    @property
    def names(self) -> list[str]:
        """What the sources are called."""
        return [self.source_name] if self.streams else [one.name for one in self._sources]

    @property
    def source_name(self) -> str:
        """What the source is called in messages, without its module."""
        named = self.source.function if isinstance(self.source, Called) else type(self.source)
        return getattr(named, "__qualname__", type(named).__qualname__)

    @property
    def about(self) -> dict[str, Any]:
        """Fields, sizes, classes, workers."""
        native = [one for one in self._sources if isinstance(one, NativeSource)]
        about = {
            **self._about,
            "fields": [{"name": name, "dtype": None, "shape": None} for name in self._fields or ()],
            "classes": [] if self.streams else self._sources[0].classes,
            "sources": self.names,
            "unused_columns": [(one.name, one.unused) for one in native if one.unused],
        }
        if self.streams:
            length = length_of(self.source)
            whole = self.batch_size * self.world_size
            rounded = math.ceil if self._last_batch == "short" else math.floor
            about["samples"] = length
            about["batches"] = None if length is None else rounded(length / whole)
        return about

    @property
    def batches(self) -> int:
        """Batches of an epoch; of an iterable, more than there can be."""
        batches: int = self._about["batches"]
        return batches

    def tasks(self, epoch: int, number: int) -> Iterator[Task]:
        """All batches from here on; of an iterable, those of one epoch."""
        while True:
            drawn = mixed(self.seed, epoch, number, self.rank)
            if self.streams:
                rows = range(self.batch_size)
                yield Task(number, rows, drawn, snapshot=True, note=(self.batch_size, 0))
                number += 1
                continue
            found, padding = self.order.batch(epoch, number)
            index = [Row(at, source, epoch, draws, position) for source, at, draws, position in found]
            yield Task(number, index, drawn, note=(len(index), padding))
            number += 1
            if number >= self.batches:
                epoch, number = epoch + 1, 0

    def choose(self, first: Task) -> Choice:
        """Where the code runs, found with the samples of the first batch."""
        if self.streams:
            reason = "an iterable is read by one worker, beside the program"
            return Choice("processes", reason, fallback="threads").log()
        native = all(
            isinstance(one, NativeSource | ArraySource) or (isinstance(one, ListSource) and one.has_files)
            for one in self._sources
        )
        if native and not self._stages.functions:
            return Choice("threads", "all per-sample work is native").log()
        # What is still to be written counts as part of a sample's time.
        with self._rows.trying():
            choice = choose(self.job, self.workers, first).log()
        first.made = None
        return choice

    def batch(self, value: Any, rows: int, position: tuple[int, int], padding: int) -> Any:
        """What the workers have made, as the program sees it."""
        if self._stages.turned:
            value = at_image(value, lambda array: array.transpose(0, 3, 1, 2) if array.ndim == 4 else array)
        if self._fields is None:
            return map_arrays(self._convert, value)
        if not isinstance(value, Mapping):
            raise TypeError(f"PerBatch must return a dict of arrays here, not a {type(value).__name__}")
        made = CodeBatch(value, rows, position, padding, self._stages.bfloat16)
        convert = self._convert
        return Batch(
            made, tuple(value), lambda arrays: tuple([map_arrays(convert, array) for array in arrays])
        )

    def named(self, error: BaseException, task: Task, epoch: int) -> BaseException:
        """An error with the sample that it is about."""
        if not isinstance(error, UnevenError):
            return error
        if self.streams:
            # The samples are counted over all ranks.
            before = task.number * self.world_size + self.rank
            number = before * self.batch_size + error.row
            row = Row(number, 0, epoch, number, number)
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


def _identity(stream: Any) -> dict[str, Any]:
    if isinstance(stream, Called):
        return {"iterable": name_of(stream.function)}
    return {"iterable": f"{type(stream).__module__}.{type(stream).__qualname__}"}
