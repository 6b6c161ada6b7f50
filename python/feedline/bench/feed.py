"""A program's data set, loader or training step as something that gives batches and is measured."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from feedline import _native
from feedline.bench.cost import evidence
from feedline.bench.lanes import TorchLanes
from feedline.bench.target import TargetError, make, resolve, resolve_step
from feedline.code.core import LoaderCore
from feedline.deliver.batch import rows_of
from feedline.loader.loader import Loader
from feedline.spec.source import is_array, is_stream, length_of

_LOADERS = ("feedline", "feedline.torch", "torch")
_BATCH_SIZE = 64
# A step is warmed up, then timed so often, or less often in so many seconds.
_WARM, _TIMED, _TIMED_SECONDS = 3, 10, 20.0
# Arguments of torch's DataLoader that are kept when it is made again, where this torch has them.
_TORCH_ARGUMENTS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)


def kind_of(made: Any) -> str:
    """ "dataset", "torch_loader" or "loader"."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(made, data.DataLoader):
        return "torch_loader"
    if isinstance(made, Loader):
        return "loader"
    if isinstance(made, str | os.PathLike | Mapping) or is_array(made) or is_stream(made):
        return "dataset"
    if hasattr(made, "__getitem__") and hasattr(made, "__len__"):
        return "dataset"
    if hasattr(made, "__iter__"):
        return "loader"
    raise TargetError(
        f"a {type(made).__name__} is neither a data set nor a loader: it has no __len__ and __getitem__, "
        "and cannot be iterated"
    )


def look(target: str) -> str:
    """What a target is, as JSON."""
    made = make(target, resolve(target))
    kind = kind_of(made)
    facts: dict[str, Any] = {
        "kind": kind,
        "name": type(made).__qualname__,
        "torch": importlib.util.find_spec("torch") is not None,
    }
    source = made.dataset if kind == "torch_loader" else made
    if isinstance(made, Loader):
        facts["samples"], facts["workers"] = made._about["samples"], made.num_workers
        facts["batch_size"] = made.spec.get("batch_size", 1)
    elif kind != "loader":
        facts["samples"] = _length(source)
    if kind == "torch_loader":
        facts["workers"], facts["batch_size"] = made.num_workers, made.batch_size
    return json.dumps(facts)


def _length(made: Any) -> int | None:
    return None if isinstance(made, str | os.PathLike | Mapping) else length_of(made)


class Recorded(Protocol):
    """What keeps a timeline."""

    def record(self, most: int) -> None:
        """From now on, keeps the last `most` spans of each worker."""

    def timeline(self) -> str:
        """What was done when since then, as JSON."""


class Feed:
    """Batches of a program's loader, one epoch after the other, and its training step."""

    def __init__(self, target: str, settings: dict[str, Any], step: str | None, samples: int | None) -> None:
        self._target, self._settings, self._samples = target, settings, samples
        self._found = resolve(target)
        self._step = None if step is None else resolve_step(step)
        self._loader: Any = None
        self._dataset: Any = None
        self._iterator: Iterator[Any] | None = None
        self._used = False
        self._batch: Any = None
        self._recorded: Recorded | None = None
        self._open()

    def _open(self) -> None:
        made = make(self._target, self._found)
        self._kind, self._used = kind_of(made), False
        self._loader, self._dataset = _wrap(made, self._kind, self._settings, self._samples)

    def record(self, most: int) -> None:
        """Keeps the last `most` spans of each worker; called before the first epoch."""
        loader = self._loader
        data = sys.modules.get("torch.utils.data")
        if isinstance(loader, Loader):
            self._recorded = loader._backend
        elif isinstance(getattr(loader, "_core", None), LoaderCore):
            self._recorded = loader._core
        elif data is not None and isinstance(loader, data.DataLoader) and loader.num_workers > 0:
            self._recorded = TorchLanes(loader)
        if self._recorded is not None:
            self._recorded.record(most)

    def timeline(self) -> str:
        """What the program and each worker did when, as JSON; the program's part is empty where only
        the caller knows it."""
        return "[[]]" if self._recorded is None else self._recorded.timeline()

    def begin(self) -> None:
        """Begins the next epoch."""
        self._batch = self._iterator = None
        begun = iter(self._loader)
        if begun is self._loader and self._used:
            # A generator is over after one epoch: its function makes another.
            if self._found is self._loader:
                raise TargetError(f"{self._target!r} can be iterated once: name a function that makes it")
            self._open()
            begun = iter(self._loader)
        self._iterator, self._used = begun, True

    def next(self) -> int | None:
        """The rows of the next batch, which is kept until the next call; None at the epoch's end."""
        self._batch = None
        if self._iterator is None:
            return None
        try:
            self._batch = next(self._iterator)
        except StopIteration:
            self._iterator = None
            return None
        return rows_of(self._batch)

    def train(self) -> None:
        """Runs the program's own step over the batch in hand."""
        if self._step is not None and self._batch is not None:
            self._step(self._batch)
            # Otherwise the next wait would hide behind a queue of steps that are not done yet.
            _wait_for_device()

    def time_step(self) -> list[float]:
        """Seconds of the program's own step over one batch again and again, the first ones left out."""
        if self._step is None:
            raise TargetError("there is no training step to measure: give --train-step module:name")
        self.begin()
        if self.next() is None:
            raise TargetError(f"{self._target!r} gives no batch")
        times: list[float] = []
        begun = time.perf_counter()
        for number in range(_WARM + _TIMED):
            start = time.perf_counter()
            self.train()
            _wait_for_device()
            if number >= _WARM:
                times.append(time.perf_counter() - start)
            if times and time.perf_counter() - begun > _TIMED_SECONDS:
                break
        return times

    def evidence(self) -> str:
        """What is known of the workers and of a sample's stages, as JSON."""
        self._batch = self._iterator = None
        loader, kind = self._loader, self._kind
        known: dict[str, Any] = {}
        if isinstance(loader, Loader):
            known = _of_loader(loader, self._dataset)
        elif hasattr(loader, "num_workers") and self._dataset is not None:
            stats = loader.stats() if hasattr(loader, "stats") else {}
            choice = stats.get("executor") if isinstance(stats, dict) else None
            workers = int(loader.num_workers)
            executor = choice["name"] if choice else "torch" if workers else "inline"
            if kind == "torch_loader" and hasattr(loader, "close"):
                # Workers that make the next batches would be in the way of what is timed.
                loader.close()
            collate = getattr(loader, "collate_fn", None) if kind != "loader" or executor == "torch" else None
            if getattr(loader, "batch_size", None) is None and getattr(loader, "batch_sampler", None) is None:
                collate = None
            known = evidence(self._dataset, executor=executor, workers=workers, collate=collate)
        return json.dumps(known)


def _of_loader(loader: Loader, dataset: Any) -> dict[str, Any]:
    known = loader._backend.evidence()
    if known is not None:
        return known
    choice, workers = loader.stats()["executor"], loader.num_workers
    executor = choice["name"] if choice else "inline"
    if dataset is None:
        return {"executor": executor, "workers": workers}
    return evidence(dataset, executor=executor, workers=workers)


def _wait_for_device() -> None:
    """A step on a GPU is over when the GPU is done."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _wrap(made: Any, kind: str, settings: dict[str, Any], samples: int | None) -> tuple[Any, Any]:
    """The loader that the settings ask for, and the data set in it if that can be looked into."""
    settings = dict(settings)
    name = settings.pop("loader", None)
    if name is not None and name not in _LOADERS:
        raise TargetError(f"loader = {name!r}: is not one of {', '.join(_LOADERS)}")
    if kind == "dataset":
        if name in (None, "feedline"):
            return _in_feedline(made, settings, samples), made
        return _in_torch(made, name, settings, samples), made
    if kind == "torch_loader":
        if name == "feedline":
            raise TargetError("a torch DataLoader goes into feedline.torch.DataLoader: loader=feedline.torch")
        again = made if name is None and not settings else _remade(made, name, settings)
        return again, again.dataset
    if name is not None or settings:
        given = ", ".join(["loader"] * (name is not None) + list(settings))
        raise TargetError(f"a {type(made).__name__} is taken as it is: {given} cannot be set")
    source = made.spec.get("source") if isinstance(made, Loader) else getattr(made, "dataset", None)
    return made, source if hasattr(source, "__getitem__") else None


def _in_feedline(made: Any, settings: dict[str, Any], samples: int | None) -> Any:
    arguments = {"batch_size": _BATCH_SIZE, **settings}
    arguments.pop("persistent_workers", None)
    if isinstance(made, list | tuple) and not any(is_array(one) for one in made):
        made = _Samples(made)
    length = None if is_stream(made) else _length(made)
    if samples is not None and length is not None and samples < length and hasattr(made, "__getitem__"):
        arguments.setdefault("subset", _spread(length, samples))
    if "torch" in sys.modules:
        arguments.setdefault("output", "torch")
    return Loader(made, **arguments)


class _Samples:
    """A list of samples, which would be a list of sources otherwise."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]


def _in_torch(made: Any, name: str, settings: dict[str, Any], samples: int | None) -> Any:
    data = _torch_data()
    arguments = _for_workers({"batch_size": _BATCH_SIZE, **settings}, name)
    length = None if is_stream(made) else _length(made)
    if samples is not None and length is not None and samples < length:
        indices = _spread(length, samples)
        arguments["sampler"] = (
            data.SubsetRandomSampler(indices) if arguments.pop("shuffle", False) else indices
        )
    return _torch_class(name)(made, **arguments)


def _spread(length: int, samples: int) -> list[int]:
    """So many samples of all parts of a data set."""
    return [number * length // samples for number in range(samples)]


def _torch_data() -> Any:
    try:
        import torch.utils.data
    except ImportError:
        raise TargetError("torch is not installed: use --loaders feedline") from None
    return torch.utils.data


def _torch_class(name: str) -> type[Any]:
    data = _torch_data()
    if name == "feedline.torch":
        from feedline.torch import DataLoader

        return DataLoader
    made: type[Any] = data.DataLoader
    return made


def _for_workers(arguments: dict[str, Any], name: str) -> dict[str, Any]:
    """Without workers torch refuses what is for them; with "auto" there is one for each core."""
    ours = name == "feedline.torch"
    if (ours and "num_workers" not in arguments) or (not ours and arguments.get("num_workers") == "auto"):
        arguments["num_workers"] = _native.auto_workers()
    if not arguments.get("num_workers"):
        for key in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
            arguments.pop(key, None)
    if not ours and arguments.pop("executor", None) is not None:
        raise TargetError("executor is for feedline's loaders: torch's DataLoader has processes only")
    return arguments


def _remade(loader: Any, name: str | None, changes: dict[str, Any]) -> Any:
    """The same data set with the same arguments in another loader, or with some changed."""
    data = _torch_data()
    kind = type(loader) if name is None else _torch_class(name)
    ours = issubclass(kind, _torch_class("feedline.torch"))
    arguments = {key: getattr(loader, key) for key in _TORCH_ARGUMENTS if hasattr(loader, key)}
    if loader.batch_size is not None or loader.batch_sampler is None:
        arguments["batch_size"] = loader.batch_size
        if loader.batch_size is not None:
            arguments["drop_last"] = loader.drop_last
        if not is_stream(loader.dataset):
            arguments["sampler"] = loader.sampler
    else:
        arguments["batch_sampler"] = loader.batch_sampler
        if "batch_size" in changes:
            raise TargetError("batch_size cannot be set: the loader has a batch_sampler of its own")
    if "shuffle" in changes:
        raise TargetError("shuffle cannot be set: the loader has its order already")
    if isinstance(loader, kind):
        # What it takes beyond torch's arguments, and keeps under the same name.
        own = inspect.signature(kind).parameters.keys() - inspect.signature(data.DataLoader).parameters
        arguments.update({key: getattr(loader, key) for key in own if hasattr(loader, key)})
    if ours and getattr(loader, "_adjusts", False):
        arguments["num_workers"] = "auto"
    arguments.update(changes)
    arguments = _for_workers(arguments, "feedline.torch" if ours else "torch")
    try:
        return kind(loader.dataset, **arguments)
    except TypeError as error:
        if name is not None:
            raise
        raise TargetError(
            f"a {kind.__qualname__} cannot be made again with other settings: {error}; "
            "with loader=torch or loader=feedline.torch its data set is in one of these"
        ) from error


def open_feed(target: str, settings: str, step: str | None, samples: int | None) -> Feed:
    """Opens a target with settings as JSON."""
    return Feed(target, json.loads(settings), step, samples)
