"""The transforms of a loader that runs Python code: native stages and callables in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy

from feedline import _native
from feedline._errors import SampleError, refuse
from feedline.code.image import Axes, arranged, as_array, called, for_functions, is_encoded, takes
from feedline.spec.plain import plain
from feedline.transforms import PerBatch, Transform

_BATCH_OPS = ("MixUp", "CutMix", "RandomChoice")


class Row(NamedTuple):
    """What a worker is asked for: one row of a batch."""

    sample: int
    """The sample's number in its source."""
    source: int
    epoch: int
    draws: int
    """The position in the epoch that random draws belong to."""
    position: int
    """The position whose sample it is; another than `draws` where a batch is filled up."""

    def __repr__(self) -> str:
        return f"{self.sample}" if self.source == 0 else f"{self.sample} of source {self.source}"


def has_code(transforms: Any) -> bool:
    """Whether there are callables among the transforms."""
    return any(_is_code(item) for item in as_list(transforms))


def as_list(transforms: Any) -> list[Any]:
    """The transforms as a list; one alone counts as a list of one."""
    if transforms is None:
        return []
    if isinstance(transforms, Transform | Mapping | str | PerBatch) or callable(transforms):
        return [transforms]
    return list(transforms)


def _is_code(item: Any) -> bool:
    return isinstance(item, PerBatch) or (callable(item) and not isinstance(item, Transform | Mapping | str))


def name_of(function: Any) -> str:
    """What a callable is called in messages and in a state."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


class _NativeOps:
    """Some native ops in a row."""

    def __init__(self, chain: _native.Chain, seed: int, first: bool, final: bool) -> None:
        self.chain, self.seed, self.first, self.final = chain, seed, first, final

    def __call__(self, value: Any, row: Row, path: str | None) -> Any:
        if type(value) is not bytes:
            value = _pixels(value)
        ready = self.chain.prepare(
            value,
            self.seed,
            row.epoch,
            row.draws,
            channels_last=not self.first,
            index=row.sample,
            source=row.source,
            path=path,
        )
        return ready if self.final else numpy.asarray(ready)


class _Call:
    """A callable of the program: it takes an image [height, width, channels], on every path."""

    def __init__(
        self, function: Callable[[Any], Any], number: int, *, first: bool, axes: Axes, turned: bool
    ) -> None:
        """`first`: it sees the data set's own images. What it returns gets these `axes`; `turned`: the
        loader turns the finished batch, so three axes must be an image's."""
        self.function, self.number = function, number
        self._first, self._axes, self._turned = first, axes, turned
        self._takes = takes(function)

    def __call__(self, value: Any, row: Row, path: str | None, *, decoded: bool = False) -> Any:
        """`decoded`: the native decoder has just made this, so its axes are known."""
        try:
            image = for_functions(value, channels_first=self._first and not decoded)
            result, given = called(self.function, self._takes, image)
            return arranged(result, self._axes, given, strict=self._turned)
        except Exception as error:
            what = f"transforms[{self.number}] ({name_of(self.function)})"
            raise failed(row, "transform", error, path, what) from error


def failed(row: Row, stage: str, error: Exception, path: str | None = None, what: str = "") -> SampleError:
    """The error of a sample whose Python code failed."""
    reason = f"{type(error).__name__}: {error}"
    file = "" if path is None else f" ({path})"
    text = f"sample {row}{file}: cannot {stage}: {what + ': ' if what else ''}{reason}"
    return SampleError(text, index=row.sample, source=row.source, path=path, stage=stage, reason=reason)


def _pixels(value: Any) -> Any:
    """What native ops can look at: bytes, or an array in C order."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if type(value) is not numpy.ndarray:
        array = as_array(value)
        if array is None:
            # The engine says what it would take.
            return value
        value = array
    return value if value.flags.carray else numpy.require(value, requirements=("C", "A"))


class Stages:
    """What becomes of a sample's image, and of the finished batch."""

    def __init__(
        self,
        transforms: Any,
        layout: str,
        decode: Mapping[str, Any] | None,
        seed: int,
        *,
        decodes: bool,
    ) -> None:
        """With `decodes`, even a first callable gets pixels where the source has encoded images."""
        items = as_list(transforms)
        self.seed = seed
        self.per_batch: list[Callable[[Any], Any]] = []
        while items and isinstance(items[-1], PerBatch):
            self.per_batch.insert(0, _for_batches(items.pop().function, len(items)))
        self._steps: list[_NativeOps | _Call] = []
        self._layout = layout
        self._decode = json.dumps(plain("decode", decode or {}))
        as_bytes = (decode or {}).get("mode") == "bytes"
        groups = _groups(items)
        if as_bytes and groups and groups[0][1] is not None:
            raise refuse("transforms", "have no pixels to work on", 'none with decode.mode = "bytes"')
        if (decodes or decode) and not as_bytes and (not groups or groups[0][1] is None):
            groups.insert(0, (0, []))
        turned = layout == "channels_last"
        # Memory of the second, shape of the first: the loader turns the finished batch.
        self.turned = turned and bool(groups)
        self.bfloat16 = False
        self._written: Axes = "CHW" if layout == "CHW" else "HWC"
        for at, (number, ops) in enumerate(groups):
            last = at == len(groups) - 1
            if ops is None:
                axes: Axes = self._written if last else "HWC"
                call = _Call(items[number], number, first=at == 0, axes=axes, turned=turned and last)
                self._steps.append(call)
                continue
            written = layout if last and not turned else "HWC"
            chain = _native.Chain(json.dumps(ops), written, self._decode, number)
            if chain.bfloat16 and not last:
                raise refuse(f"transforms[{number}]", "NumPy has no bfloat16 for the callable that follows")
            self.bfloat16 = chain.bfloat16
            self._steps.append(_NativeOps(chain, seed, at == 0, last))
        # A function that comes first gets pixels too where a data set has encoded images.
        self._decoder: _NativeOps | None = None
        if not as_bytes and self._steps and isinstance(self._steps[0], _Call):
            self._decoder = _NativeOps(_native.Chain("[]", "HWC", self._decode), seed, True, False)

    @property
    def first(self) -> _native.Chain | None:
        """The native ops that come first, if any do."""
        step = self._steps[0] if self._steps else None
        return step.chain if isinstance(step, _NativeOps) else None

    @property
    def functions(self) -> list[Any]:
        """The program's functions for samples."""
        return [step.function for step in self._steps if isinstance(step, _Call)]

    @property
    def is_empty(self) -> bool:
        """Whether samples stay as they are."""
        return not self._steps

    @property
    def settings(self) -> dict[str, Any]:
        """All of it with every parameter: what a state must agree on. The names in it are for good."""
        transforms: list[Any] = []
        decode = None
        for step in self._steps:
            if isinstance(step, _Call):
                transforms.append(name_of(step.function))
                continue
            native = json.loads(step.chain.settings)
            transforms += native["transforms"]
            decode = native["decode"]
        return {
            "transforms": transforms,
            "per_batch": [name_of(function) for function in self.per_batch],
            "decode": decode,
            "layout": self._layout if self._steps else None,
        }

    def run(self, image: Any, row: Row, path: str | None = None, *, after_first: bool = False) -> Any:
        """What goes into the batch; what the last native ops make is still to be written."""
        steps = self._steps[1:] if after_first else self._steps
        if (
            self._decoder is not None
            and isinstance(image, bytes | bytearray | memoryview)
            and is_encoded(image)
        ):
            image = self._decoder(image, row, path)
            if isinstance(steps[0], _Call):
                image, steps = steps[0](image, row, path, decoded=True), steps[1:]
        for step in steps:
            image = step(image, row, path)
        return image

    @property
    def only_first(self) -> bool:
        """Whether the first native ops are all there is."""
        return len(self._steps) == 1


def _for_batches(function: Any, number: int) -> Any:
    if takes(function) != "array":
        raise refuse(
            f"transforms[{number}]",
            f"{name_of(function)} would leave the NumPy arrays of PerBatch as they are, without a word",
            "a function that makes tensors of the arrays it needs and calls it with them, or a call "
            'in the training loop, with output="torch"',
        )
    return function


def _groups(items: list[Any]) -> list[tuple[int, list[Any] | None]]:
    """Native ops in a row with the number of the first, and callables with None."""
    groups: list[tuple[int, list[Any] | None]] = []
    for number, item in enumerate(items):
        if isinstance(item, PerBatch):
            raise refuse(f"transforms[{number}]", "PerBatch works on whole batches", "at the end of the list")
        if isinstance(item, type) and issubclass(item, Transform | PerBatch):
            raise refuse(f"transforms[{number}]", "is a class", f"an op: {item.__name__}(...)")
        if _is_code(item):
            groups.append((number, None))
            continue
        op = plain(f"transforms[{number}]", item.spec() if isinstance(item, Transform) else item)
        name = op.get("op") if isinstance(op, dict) else op
        if name in _BATCH_OPS:
            raise refuse(
                f"transforms[{number}]",
                f"{name} mixes the batches of native sources without Python code",
                "PerBatch(function) at the end of the list",
            )
        if groups and groups[-1][1] is not None:
            groups[-1][1].append(op)
        else:
            groups.append((number, [op]))
    return groups
