"""The sources of a loader that runs Python code: each gives one sample at a time, through the stages."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from feedline import _native
from feedline._errors import SourceError
from feedline.code.collate import as_arrays, at_image, image_key, is_named_tuple
from feedline.code.stages import Row, Stages, failed
from feedline.spec.source import is_image_path


class DatasetSource:
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
        name = f"{type(self.dataset).__module__}.{type(self.dataset).__qualname__}"
        return {"dataset": name, "samples": len(self)}

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


class ListSource(DatasetSource):
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
        return {"dataset": "list", "samples": len(self), "fingerprint": names.hexdigest()}

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


class NativeSource:
    """Whatever the engine reads itself: images in folders, shards, tables, arrays in files, packed sets."""

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
        self.identity = {"samples": len(self._samples), "fingerprint": about["fingerprint"]}
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


class ArraySource:
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
        self.identity = {"samples": len(self), "fingerprint": _native.hash_arrays(parts)}

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


def materialized(value: Any) -> Any:
    """A sample whose image is an array: what native ops have left to write is written."""
    if type(value) is _native.Pending:
        return numpy.asarray(value)
    if type(value) is dict:
        return {key: materialized(item) for key, item in value.items()}
    if is_named_tuple(value):
        return type(value)(*(materialized(item) for item in value))
    if type(value) in (tuple, list):
        return type(value)([materialized(item) for item in value])
    return value
