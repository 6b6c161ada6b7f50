"""The samples that a loader with Python code reads, as workers are asked for them: row by row."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy

from feedline import _native
from feedline._collate import as_arrays, at_image, image_key, is_named_tuple
from feedline._errors import SampleError, SourceError
from feedline._source import is_image_path
from feedline._stages import Row, Stages, failed, name_of
from feedline.workers.job import is_stateful

# How many stand-ins are tried for one bad sample, as in the engine.
_SUBSTITUTES = 32


class Dataset:
    """A data set of the program: anything with `__len__` and `__getitem__`."""

    fields: tuple[str, ...] | None = None
    """Names of a batch's fields, where they are known before the first sample."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return type(self.dataset).__qualname__

    @property
    def identity(self) -> Any:
        """What a state must agree on."""
        return [f"{type(self.dataset).__module__}.{type(self.dataset).__qualname__}", len(self)]

    @property
    def classes(self) -> list[str]:
        """The names of the classes, as torchvision's data sets keep them."""
        names = getattr(self.dataset, "classes", None)
        return [str(name) for name in names] if isinstance(names, list | tuple) else []

    def labels(self) -> list[int] | None:
        """The classes of all samples, as torchvision's data sets keep them."""
        targets = getattr(self.dataset, "targets", None)
        if targets is None:
            return None
        return [int(label) for label in targets]

    def sample(self, row: Row, stages: Stages) -> Any:
        """One sample, through the stages."""
        try:
            sample = self.dataset[row.sample]
        except Exception as error:
            raise failed(row, "read", error) from error
        return through(sample, row, stages)


def through(sample: Any, row: Row, stages: Stages, path: str | None = None) -> Any:
    """A sample with its image replaced by what the stages make of it."""
    if not stages.is_empty:
        sample = at_image(sample, lambda image: stages.run(image, row, path))
    try:
        return as_arrays(sample)
    except Exception as error:
        raise failed(row, "collate", error) from error


class Listed(Dataset):
    """A list of samples. Where the image is the path of an image file, the file is read."""

    def __init__(self, samples: Sequence[Any]) -> None:
        super().__init__(samples)
        self.has_files = any(is_image_path(_image(sample)) for sample in samples)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"a list of {len(self):,} samples"

    @property
    def identity(self) -> Any:
        """What a state must agree on: the files' names, and the number of samples."""
        names = hashlib.blake2b(digest_size=8)
        for sample in self.dataset if self.has_files else ():
            image = _image(sample)
            names.update(os.fsencode(image) if is_image_path(image) else b"")
            names.update(b"\0")
        return ["list", len(self), names.hexdigest()]

    def labels(self) -> list[int] | None:
        """The classes of all samples: the field "label", or the second of two."""
        labels = []
        for sample in self.dataset:
            if isinstance(sample, Mapping):
                label = sample.get("label")
            else:
                label = sample[1] if isinstance(sample, tuple | list) and len(sample) == 2 else None
            if isinstance(label, bool) or not isinstance(label, int | numpy.integer):
                return None
            labels.append(int(label))
        return labels

    def sample(self, row: Row, stages: Stages) -> Any:
        """One sample, through the stages."""
        sample = self.dataset[row.sample]
        image, path = _image(sample), None
        if is_image_path(image):
            path = os.fsdecode(image)
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except Exception as error:
                raise failed(row, "read", error, path) from error
            sample = at_image(sample, lambda _: data)
        elif stages.first is None and not stages.is_empty:
            # A function may write to what it gets, and the next epoch must find it as it was.
            sample = at_image(sample, _copied)
        return through(sample, row, stages, path)


def _copied(image: Any) -> Any:
    """An array or a tensor of its own; what else there is cannot be written to in place."""
    if isinstance(image, numpy.ndarray):
        return image.copy()
    return image.clone() if callable(getattr(image, "clone", None)) else image


def _image(sample: Any) -> Any:
    key = image_key(sample)
    return sample if key is None else sample[key]


class Native:
    """A folder, a manifest or a packed set."""

    def __init__(self, described: Any, paths: list[bytes]) -> None:
        self._samples = _native.Samples(json.dumps(described), paths)
        self._read_about()

    def _read_about(self) -> None:
        about = json.loads(self._samples.about)
        self._fields: list[dict[str, Any]] = about["fields"]
        self.fields = tuple(field["name"] for field in self._fields)
        self.classes: list[str] = about["classes"]
        self.name: str = about["name"]
        self.unused: list[str] = about["unused_columns"]
        self.identity = [about["fingerprint"], len(self._samples)]
        kinds = [field["kind"] for field in self._fields]
        self._image = next((at for at, kind in enumerate(kinds) if kind in ("encoded", "pixels")), None)

    @property
    def has_images(self) -> bool:
        """Whether it has encoded images, or pixels as images."""
        return self._image is not None

    def __len__(self) -> int:
        return len(self._samples)

    def labels(self) -> list[int] | None:
        """The classes of all samples."""
        return self._samples.labels()

    def check(self, stages: Stages, gray: bool) -> None:
        """Finds ops that cannot work on these images, before anything runs."""
        if self._image is not None and stages.first is not None:
            packed = self._fields[self._image].get("channels")
            stages.first.check(packed or (1 if gray else 3), "uint8")

    def sample(self, row: Row, stages: Stages) -> Any:
        """One sample by its fields' names, through the stages."""
        fields: dict[str, Any] = {}
        first = stages.first
        for at, field in enumerate(self._fields):
            if at == self._image and first is not None:
                ready: Any = self._samples.prepare(
                    row.sample, at, first, stages.seed, row.epoch, row.draws, row.source
                )
                if not stages.only_first:
                    path = self._samples.path(row.sample)
                    ready = stages.run(numpy.asarray(ready), row, path, after_first=True)
                fields[field["name"]] = as_arrays(ready)
                continue
            value = self._value(row, at, field)
            if at == (self._image or 0) and not stages.is_empty:
                # Bytes as they are, or arrays, whose first field is the image as in the engine.
                own = value.copy() if isinstance(value, numpy.ndarray) else value
                value = as_arrays(stages.run(own, row, self._samples.path(row.sample)))
            fields[field["name"]] = value
        return fields

    def _value(self, row: Row, at: int, field: dict[str, Any]) -> Any:
        value = self._samples.read(row.sample, at, row.source)
        if field["kind"] == "pixels":
            pixels, shape = value
            return numpy.frombuffer(pixels, numpy.uint8).reshape(shape)
        if field["kind"] in ("encoded", "bytes", "text"):
            return value
        dtype = numpy.dtype(field["dtype"])
        if isinstance(value, tuple):
            elements, shape = value
            return numpy.frombuffer(elements, dtype).reshape(shape)
        if isinstance(value, bytes):
            return numpy.frombuffer(value, dtype).reshape(field.get("shape", -1))
        return dtype.type(value)


class Arrays:
    """Arrays of the program, the first axis of each being the samples."""

    classes: list[str]

    def __init__(self, columns: list[tuple[str, str | None, Any]]) -> None:
        self.classes = []
        first, _, samples = columns[0]
        for name, dtype, array in columns:
            if dtype is not None:
                raise SourceError(f"array {name!r}: has elements of {dtype}, which Python code cannot see")
            if len(array) != len(samples):
                raise SourceError(
                    f"array {name!r}: has {len(array)} samples, while {first!r} has {len(samples)}"
                )
        self.fields = tuple(name for name, _, _ in columns)
        self._arrays = [array for _, _, array in columns]
        self.name = "arrays"
        parts = [(name, array.dtype.name, array.shape[1:], array) for name, _, array in columns]
        self.identity = [_native.hash_arrays(parts), len(self)]

    def __len__(self) -> int:
        return len(self._arrays[0])

    def labels(self) -> list[int] | None:
        """The classes of all samples: the first int64 array with one number for each."""
        for array in self._arrays:
            if array.ndim == 1 and array.dtype == numpy.int64:
                return [int(label) for label in array]
        return None

    def sample(self, row: Row, stages: Stages) -> Any:
        """One sample by its fields' names, the first of which is the image."""
        fields = {name: array[row.sample] for name, array in zip(self.fields, self._arrays, strict=True)}
        if not stages.is_empty:
            image = self.fields[0]
            # A function may write to what it gets, and the next epoch must find the array as it was.
            own = fields[image] if stages.first is not None else fields[image].copy()
            fields[image] = as_arrays(stages.run(own, row))
        return fields


class Rows:
    """All sources of a loader, asked for rows: what travels to the workers."""

    def __init__(self, sources: list[Any], stages: Stages, *, eager: bool, order: Any = None) -> None:
        """With `eager`, native stages write arrays of their own; with `order`, others stand in for
        bad samples, and each sample comes with what failed before it, as JSON."""
        self._sources, self._stages = sources, stages
        self._eager, self._order = eager or order is not None, order
        only = sources[0] if len(sources) == 1 and isinstance(sources[0], Dataset) else None
        if order is None and only is not None and callable(getattr(only.dataset, "__getitems__", None)):
            self.__getitems__ = self._many

    def _many(self, rows: Sequence[Row]) -> list[Any]:
        """All rows of a batch at once, from a data set that can do so."""
        try:
            samples = self._sources[0].dataset.__getitems__([row.sample for row in rows])
        except Exception:
            # One by one, the sample that fails is found and named.
            return [self[row] for row in rows]
        made_of = zip(samples, rows, strict=True)
        whole = [through(sample, row, self._stages) for sample, row in made_of]
        return [made(sample) for sample in whole] if self._eager else whole

    def __feedline_parts__(self) -> list[Any]:
        """The program's own objects, which decide where this can run."""
        datasets = [one.dataset for one in self._sources if isinstance(one, Dataset)]
        return datasets + self._stages.functions

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Samples are whole meanwhile, so that their time is all of what they take."""
        kept, self._eager = self._eager, True
        try:
            yield
        finally:
            self._eager = kept

    def __getitem__(self, row: Row) -> Any:
        if self._order is None:
            return self._make(row)
        failures: list[dict[str, Any]] = []
        wanted = row
        for attempt in itertools.count():
            try:
                sample = self._make(wanted)
            except SampleError as error:
                if attempt == _SUBSTITUTES:
                    raise
                failures.append(told(error))
                source, index = self._order.substitute(row.epoch, row.draws, row.position, attempt)
                wanted = row._replace(source=source, sample=index)
            else:
                break
        return (json.dumps(failures) if failures else "", sample)

    def _make(self, row: Row) -> Any:
        sample = self._sources[row.source].sample(row, self._stages)
        return made(sample) if self._eager else sample


def told(error: SampleError) -> dict[str, Any]:
    """An error as a line of a quarantine file."""
    return {
        "source": error.source,
        "index": error.index,
        "path": error.path,
        "offset": error.offset,
        "stage": error.stage,
        "reason": error.reason,
        "text": str(error),
    }


def made(value: Any) -> Any:
    """A sample with the pixels of its image made."""
    if type(value) is _native.Pending:
        return numpy.asarray(value)
    if type(value) is dict:
        return {key: made(item) for key, item in value.items()}
    if is_named_tuple(value):
        return type(value)(*(made(item) for item in value))
    if type(value) in (tuple, list):
        return type(value)([made(item) for item in value])
    return value


ANEW = "an iterable whose __iter__ begins anew each time, or a function that returns an iterator"


class Called:
    """A function that returns an iterator, as an iterable: each epoch calls it anew."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        return iter(self.function())


def stream_name(stream: Any) -> str:
    """What an iterable is called in messages."""
    return name_of(stream.function) if isinstance(stream, Called) else type(stream).__qualname__


class Stream:
    """An iterable of the program, as the one worker that reads it sees it."""

    def __init__(
        self, dataset: Any, stages: Stages, *, eager: bool, batch_size: int, rank: int, world_size: int
    ) -> None:
        self._dataset, self._stages, self._eager = dataset, stages, eager
        self._batch_size, self._rank, self._world = batch_size, rank, world_size
        self._epoch = 0
        self._batch = 0
        self._inner: Any = None
        self._iterator: Any = None
        self._taken = 0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Where the next iteration begins."""
        self._epoch, self._batch, self._inner = state["epoch"], state["batch"], state.get("inner")

    def state_dict(self) -> dict[str, Any]:
        """Where the iterable stands, if it tells."""
        holder = self._holder()
        return {"inner": None if holder is None else holder.state_dict()}

    def _holder(self) -> Any:
        """What has a state: the iterable, or else its iterator."""
        for holder in (self._dataset, self._iterator):
            if is_stateful(holder):
                return holder
        return None

    def __iter__(self) -> Iterator[Any]:
        dataset, inner = self._dataset, self._inner
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(self._epoch)
        if inner is not None and is_stateful(dataset):
            dataset.load_state_dict(inner)
        iterator = self._iterator = iter(dataset)
        self._taken = self._batch * self._batch_size * self._world
        if inner is None:
            # Without a state there is only the long way.
            self._taken = sum(1 for _ in itertools.islice(iterator, self._taken))
        elif not is_stateful(dataset):
            self._holder().load_state_dict(inner)
        return self._rows(iterator, begins=inner is None and self._batch == 0)

    def _rows(self, iterator: Iterator[Any], *, begins: bool) -> Iterator[Any]:
        """The samples from here on; `begins`, this is the epoch's beginning."""
        if self._world == 1:
            while True:
                row = Row(self._taken, 0, self._epoch, self._taken, self._taken)
                try:
                    sample = next(iterator)
                except StopIteration:
                    if begins and self._taken == 0:
                        raise self._empty() from None
                    return
                except Exception as error:
                    raise failed(row, "read", error) from error
                self._taken += 1
                yield self._make(sample, row)
        first, last = self._rank * self._batch_size, (self._rank + 1) * self._batch_size
        while True:
            # Whether a batch is whole is known when all ranks' samples have been seen.
            begin, mine, count = self._taken, [], 0
            for count, sample in enumerate(itertools.islice(iterator, self._batch_size * self._world), 1):
                if first < count <= last:
                    mine.append(sample)
            if begins and begin == count == 0:
                raise self._empty()
            if count < self._batch_size * self._world:
                return
            self._taken += count
            for at, sample in enumerate(mine, begin + first):
                yield self._make(sample, Row(at, 0, self._epoch, at, at))

    def _empty(self) -> SourceError:
        return SourceError(
            f"{stream_name(self._dataset)}: gave no samples in epoch {self._epoch}; allowed: {ANEW}"
        )

    def _make(self, sample: Any, row: Row) -> Any:
        sample = through(sample, row, self._stages)
        return made(sample) if self._eager else sample


def warn_of_the_long_way(samples: int, name: str) -> None:
    """Says that resuming an iterable without a state reads again what was read before."""
    warnings.warn(
        f"{name} has no state_dict: to resume, its first {samples:,} samples are read again and thrown away",
        RuntimeWarning,
        stacklevel=5,
    )
