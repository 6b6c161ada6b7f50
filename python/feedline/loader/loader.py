"""The loader."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn

import numpy.typing

from feedline import _native
from feedline._errors import ClosedError, Error, SpecError, refuse
from feedline.code.stages import as_list
from feedline.loader.backend import Backend, Delivery, open_backend
from feedline.observe.live import hide_workers, open_dashboard
from feedline.observe.report import EpochReporter, Reporter
from feedline.observe.tuning import Decisions
from feedline.transforms import PerBatch, Transform

Output = Literal["numpy", "torch", "jax", "dlpack"]
Executor = Literal["auto", "threads", "processes", "inline"]


# Every program that reads JSON has such numbers exactly.
_SEED_BITS = 53


class Loader:
    """Makes batches of a data set, epoch after epoch.

    Iterating gives one epoch; iterating again gives the next one, in a new order and with new
    augmentation. What a batch holds depends on the arguments, the epoch and the batch's number
    alone: not on the number of workers, on time or on restarts.

    source: a path (a folder of class folders or of images, a manifest, shards of tar, TFRecord, Parquet,
        Arrow, MDS, LitData or zip, a table in CSV or JSON lines, an LMDB, HDF5, .npy, .npz or Zarr array,
        a packed set; docs/formats.md says what each of them holds); a dict
        as in a description (`{"kind": "manifest", "path": ..., "label_columns": [...]}`); arrays
        (one, a tuple or a dict of them, of NumPy or torch: the fields are called "0", "1", ... or
        by the dict's keys); any object with `__len__` and `__getitem__`; an iterable, or a function
        that returns an iterator; or a list. Arrays are read where they lie and must not be written
        to meanwhile; rows may overlap or lie apart (`sliding_window_view`), but one whose rows are not
        contiguous in themselves is copied once. A data set's samples may be arrays,
        numbers, text, bytes, None, and dicts, tuples and lists of them; a batch has their structure.
        An iterable is read by one worker, from its beginning in each epoch: a generator, which has
        only one, has one epoch.
        A list of samples is a data set: paths of image files, `(path, label)`, dicts, tuples, images
        as arrays (1, 3 or 4 channels), encoded bytes, numbers. A list of other paths, descriptions
        or data sets joins them end to end; `(source, weight)` pairs of these mix them. Arrays that
        could be samples, columns or sets of samples are refused in a list, and so is a number beside
        them or beside a text that names no file; `{"kind": "arrays", "x": array}` is always a source.
    transforms: ops of `feedline.transforms` for the image: a sample's field "image" or else its first
        one, encoded bytes or an array. Python functions may stand among them; wherever they stand
        they get a NumPy array [height, width, channels] of the elements' type at that point, and
        return one (or [channels, height, width], or torch's tensor), which `layout` is applied to;
        what is not an image of 1, 3 or 4 channels goes in and out as it is. torchvision's ops and
        torch's modules get tensors [channels, height, width] (v2: `tv_tensors.Image`; those with
        ToTensor or PILToTensor: Pillow's images). `PerBatch(function)` at the end gets whole batches.
    batch_size: samples of a batch, on each rank.
    seed: the root of all randomness. None draws one, which `seed`, `spec` and the state of the loader
        then hold: a loader made with None goes on with the seed of the state that it is given. Several
        ranks need the same number, so None is refused there.
    num_workers: threads, or what `executor` says; 0 makes batches in the calling thread. "auto" begins
        with one for each core and comes down to the fewest that keep the program from waiting
        (`stats()["tuning"]` and the log say what was changed and why; no batch changes by it).
    prefetch_factor: batches in the making for each worker; a few in all by default.
    memory: bytes that the loader may hold, as a number or as "2GB". Not with Python code, nor is cache.
    drop_last: leave an incomplete last batch out.
    cache: "memory" keeps encoded samples and refuses a data set that does not fit; a dict with
        hold ("encoded" or "decoded"), limit and required says more.
    on_error: "raise" names the sample; "skip" puts another one, always the same, in its place.
    rank, world_size: this process among those that share the work; RANK and WORLD_SIZE of the
        environment by default.
    output: the library whose arrays a batch holds. None of them copies.
    layout: "CHW", "HWC", or "channels_last" (shape of the first, memory of the second), also for what
        the last function returns.
    open_blocks: blocks that are shuffled together where data is read a block at a time (compressed
        chunks, row groups, shards); "auto" is what half of the memory for blocks holds, "all" a full
        shuffle, which may read each block many times.
    decode: a dict with mode ("rgb", "gray", or "bytes" for the files as they are),
        exif_orientation, max_pixels, allow_truncated (take what there is of files that end early,
        as Pillow's LOAD_TRUNCATED_IMAGES), allow_damaged (take JPEGs whose data do not all decode,
        as Pillow does), exact (never decode a JPEG at a smaller size, even where a resize makes it
        less than half as large).
    replacement, weights, subset, num_samples: draw with replacement; in proportion to weights
        (one for each sample, or "balanced"); only from these samples (a slice or a list); so many.
    last_batch: "short", "drop", "pad" or "wrap".
    in_order: False hands batches over as they are ready, which is not deterministic.
    max_failures, quarantine: with on_error="skip", how many samples may fail, and a file that
        lists them, a JSON object a line.
    executor: where Python code runs: "processes", "threads" (for code that lets go of the
        interpreter's lock), "inline" (the calling thread), or "auto", which tries the first samples
        and picks; `stats()["executor"]` says what and why. Code that draws from the global generators
        of random, NumPy or torch finds them seeded for its batch, but in "threads".
    collate_fn: makes a batch of a list of samples, in place of stacking them.
    worker_init_fn: is called in each worker with its number.
    device: "cuda" or "cuda:1": batches are copied there ahead of the program, on a stream of their
        own; output must be "torch", "jax" or "dlpack". No part of the description or the state.
    device_prefetch: batches that wait on the device.
    pin_memory: page-lock batches on the host, so that copies to a GPU run beside the program; the
        default is to do so if there is a device. Without CUDA it warns once and goes on without.
    dashboard: True serves a page with live figures on this machine, a number at that port,
        or at any that is free if another process has it; `dashboard_url` is its address, which is also
        printed. FEEDLINE_DASHBOARD=1, or a port, in the environment does the same for every loader.
    """

    _backend: Backend
    _url: str | None

    def __init__(
        self,
        source: Any,
        transforms: Iterable[Transform | Mapping[str, Any] | str | Callable[[Any], Any] | PerBatch]
        | None = (),
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int | None = 0,
        num_workers: int | Literal["auto"] = "auto",
        prefetch_factor: int | None = None,
        memory: int | str | None = None,
        drop_last: bool = False,
        cache: Literal["memory"] | Mapping[str, Any] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        rank: int | None = None,
        world_size: int | None = None,
        output: Output = "numpy",
        layout: Literal["CHW", "HWC", "channels_last"] = "CHW",
        decode: Mapping[str, Any] | None = None,
        open_blocks: int | Literal["auto", "all"] = "auto",
        replacement: bool = False,
        weights: Literal["balanced"] | Sequence[float] | numpy.typing.NDArray[Any] | None = None,
        subset: slice | Sequence[int] | numpy.typing.NDArray[Any] | str | None = None,
        num_samples: int | None = None,
        last_batch: Literal["short", "drop", "pad", "wrap"] | None = None,
        in_order: bool = True,
        max_failures: int | None = None,
        quarantine: str | bytes | os.PathLike[str] | None = None,
        executor: Executor = "auto",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        device: object = None,
        device_prefetch: int = 2,
        pin_memory: bool | None = None,
        dashboard: bool | int | None = None,
    ) -> None:
        self._open(
            {
                "source": source,
                "transforms": transforms,
                "batch_size": batch_size,
                "shuffle": shuffle,
                "seed": seed,
                "num_workers": num_workers,
                "prefetch_factor": prefetch_factor,
                "memory": memory,
                "drop_last": drop_last or None,
                "cache": cache,
                "on_error": on_error,
                "rank": rank,
                "world_size": world_size,
                "layout": layout,
                "decode": decode,
                "open_blocks": open_blocks,
                "replacement": replacement,
                "weights": weights,
                "subset": subset,
                "num_samples": num_samples,
                "last_batch": last_batch,
                "in_order": in_order,
                "max_failures": max_failures,
                "quarantine": quarantine,
                "executor": executor,
                "collate_fn": collate_fn,
                "worker_init_fn": worker_init_fn,
            },
            Delivery(output, device, device_prefetch, pin_memory),
        )
        self._show(dashboard)

    @classmethod
    def from_spec(
        cls,
        spec: Mapping[str, Any] | str | os.PathLike[str],
        *,
        output: Output = "numpy",
        source: Any = None,
        device: object = None,
        device_prefetch: int = 2,
        pin_memory: bool | None = None,
        dashboard: bool | int | None = None,
        **changes: Any,
    ) -> Loader:
        """A loader as a description says: a dict, a .toml or .json file, or the text of one.

        Text that ends in .toml or .json is the path of a file; relative paths in that file are
        relative to its folder. `source` and `changes` replace what
        the description says; arrays must be given as `source`, as a file cannot hold them.
        """
        described = dict(spec) if isinstance(spec, Mapping) else _read(os.fspath(spec))
        if "last_batch" in changes or "drop_last" in changes:
            described.pop("last_batch", None)
            described.pop("drop_last", None)
        described.update(changes)
        if source is not None:
            described["source"] = source
        loader = cls.__new__(cls)
        loader._open(described, Delivery(output, device, device_prefetch, pin_memory))
        loader._show(dashboard)
        return loader

    def _show(self, dashboard: bool | int | None) -> None:
        try:
            self._url = open_dashboard(dashboard)
        except BaseException:
            # Nobody gets this loader, who could close it.
            self.close()
            raise

    def _open(self, spec: dict[str, Any], delivery: Delivery) -> None:
        if "transforms" in spec:
            spec["transforms"] = as_list(spec["transforms"])
        self._delivery = delivery
        # With a seed that was drawn: what the loader is opened with again for a state of another seed.
        self._without_seed = dict(spec) if "seed" in spec and spec["seed"] is None else None
        if self._without_seed is not None:
            spec["seed"] = secrets.randbits(_SEED_BITS)
        self._use(open_backend(spec, delivery))
        _warn_of_unused(self._about["unused_columns"])
        if self._without_seed is not None and self._about["world_size"] > 1:
            self._backend.close()
            raise refuse(
                "seed",
                f"None would draw another seed on each of the {self._about['world_size']} ranks, and their "
                "batches would not fit together",
                "the same number on all ranks",
            )

    def _use(self, backend: Backend) -> None:
        self._backend = backend
        self._about = backend.about
        self._decisions = Decisions(backend)
        self._reporter = Reporter(backend.report, _name(self._about))

    def __iter__(self) -> Epoch:
        """Begins the next epoch, or goes on where `set_epoch` or `load_state_dict` put it."""
        hide_workers()
        # Of the epoch before all is known by now, and reported before the figures are of the next.
        reporter = self._reporter.begin()
        return Epoch(self, self._backend.begin(), reporter)

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        if self._about["batches"] is None:
            raise TypeError("an iterable without __len__ has no number of batches")
        return int(self._about["batches"])

    @property
    def spec(self) -> dict[str, Any]:
        """The description of this loader: plain data, only what differs from the defaults.

        Data sets and functions of the program stand in it as they are.
        """
        return self._backend.spec

    @property
    def classes(self) -> list[str]:
        """The names of the classes in the order of their numbers; empty if there are none."""
        return list(self._about["classes"])

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        if self._about["samples"] is None:
            raise TypeError("an iterable without __len__ has no number of samples")
        return int(self._about["samples"])

    @property
    def seed(self) -> int:
        """The root of all randomness, which was drawn if the loader was made with None."""
        return int(self.spec.get("seed", 0))

    @property
    def num_workers(self) -> int:
        """Workers that make batches now."""
        try:
            return int(self._about["workers"]) if self._backend.closed else self._backend.workers
        except Error:
            # In a forked child, while a thread of the parent held the loader.
            return int(self._about["workers"])

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._backend.position()[0]

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of `epoch`: the next iteration is that one."""
        self._backend.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, after the last batch that was handed over: plain data.

        Taken after an epoch's last batch, it resumes with the next epoch's first.
        """
        return self._backend.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken; the next iteration begins there.

        A loader that was made with `seed=None` takes the state's seed.
        """
        seed, without_seed = _seed_of(state), self._without_seed
        if self._backend.closed:
            raise ClosedError("the loader is closed: make a new one")
        if without_seed is None or seed is None or seed == self.seed:
            self._backend.load_state_dict(state)
            return
        other = open_backend({**without_seed, "seed": seed}, self._delivery)
        try:
            other.load_state_dict(state)
        except BaseException:
            # This one stays as it was.
            other.close()
            raise
        # What can be read once has been begun, whatever the seed.
        other.begun = self._backend.begun
        self._backend.close()
        self._use(other)

    def stats(self) -> dict[str, Any]:
        """What happened so far: counts, seconds and bytes. All loaders have the same keys; what a loader
        does not have is None."""
        return self._backend.stats()

    @property
    def dashboard_url(self) -> str | None:
        """The address of the page with live figures; None if there is none."""
        return self._url

    def freeze(self, path: str | os.PathLike[str]) -> None:
        """Writes a description with the settings that this loader has now; .toml has the reason for each.

        `Loader.from_spec(path)` and `feedline run` then have them from the start and change nothing.
        Arrays have to be given again, as `from_spec(path, source=arrays)`. Of a loader over Python
        code only the settings are written, with a line that says how to use them.
        """
        self._backend.freeze(path)

    def close(self) -> None:
        """Ends the workers. Batches that the program has stay valid; iterating is an error."""
        self._reporter.flush()
        self._backend.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        about, spec = self._about, self.spec
        size = spec.get("batch_size", 1)
        classes = f" in {len(about['classes']):,} classes" if about["classes"] else ""
        order = "shuffled" if spec.get("shuffle") else "in order"
        if "weights" in spec or spec.get("replacement"):
            order = "drawn with replacement"
        drawn = "" if self._without_seed is None else " (drawn)"
        lines = [
            f"Loader({' + '.join(about['sources'])}",
            f"  {_count(about['samples'])} samples{classes}, {order}, seed {self.seed}{drawn}",
            f"  {_count(about['batches'])} batches of {size:,}"
            + (f" on rank {about['rank']} of {about['world_size']}" if about["world_size"] > 1 else ""),
        ]
        width = max((len(field["name"]) for field in about["fields"]), default=0)
        for field in about["fields"]:
            known = f"  {field['variable']}" if "variable" in field else ""
            if field["shape"] is not None:
                known = f"  {field['dtype']} {[size, *field['shape']]}"
            lines.append(f"  {field['name']:<{width}}{known}")
        for name, columns in about["unused_columns"]:
            of = f" of {name}" if len(about["sources"]) > 1 else ""
            lines.append(f"  columns{of} not used: {_some(columns)}")
        closed = ", closed" if self._backend.closed else ""
        device = f" on {self._backend.device}" if self._backend.device else ""
        lines.append(f"  {self.num_workers} workers, output {self._delivery.output}{device}{closed})")
        return "\n".join(lines)


# What was said once need not be said again.
_warned: set[tuple[str, ...]] = set()


def _warn_of_unused(sources: list[tuple[str, list[str]]]) -> None:
    for name, columns in sources:
        if (name, *columns) not in _warned:
            _warned.add((name, *columns))
            warnings.warn(
                f"{name}: these columns are not used: {_some(columns)}; "
                '{"kind": "manifest", "path": ..., "label_columns": [...]} as the source chooses those that '
                "become fields, and leaves the others out without this warning",
                UserWarning,
                stacklevel=4,
            )


def _some(columns: list[str]) -> str:
    more = f" and {len(columns) - 10:,} more" if len(columns) > 10 else ""
    return ", ".join(column[:80] for column in columns[:10]) + more


def _seed_of(state: Any) -> int | None:
    identity = state.get("identity") if isinstance(state, Mapping) else None
    seed = identity.get("seed") if isinstance(identity, Mapping) else None
    return seed if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 1 << 64 else None


def _count(number: int | None) -> str:
    return "an unknown number of" if number is None else f"{number:,}"


def _name(about: dict[str, Any]) -> tuple[Any, ...]:
    """What a loader that is made again with the same settings is known by."""
    return tuple(about["sources"]), *(about[key] for key in ("samples", "batches", "workers"))


class Epoch(Iterator[Any]):
    """The batches of one epoch. It is over when its loader is iterated again.

    A batch is a `feedline.Batch`, or has the structure of a data set's samples.
    """

    __slots__ = ("_backend", "_decisions", "_number", "_over", "_padding", "_reporter")

    def __init__(self, loader: Loader, number: int, reporter: EpochReporter) -> None:
        self._backend, self._number, self._over = loader._backend, number, False
        self._decisions, self._reporter, self._padding = loader._decisions, reporter, 0

    def __iter__(self) -> Epoch:
        return self

    @property
    def padding(self) -> int:
        """How many of the last rows of the batch that came last only fill it up."""
        return self._padding

    def __next__(self) -> Any:
        if self._over:
            self._end()
        try:
            made = self._backend.next(self._number)
        except Exception:
            self._over = True
            self._reporter.failed()
            raise
        if made is None:
            self._over = True
            self._end()
        batch, self._over, self._padding = made
        self._reporter.handed()
        self._decisions.look(self._over)
        return batch

    def _end(self) -> NoReturn:
        """The program is done with the last batch: how long its step took is known now."""
        with contextlib.suppress(Error):
            self._backend.ended(self._number)
        self._reporter.ended()
        raise StopIteration


def _read(spec: str) -> dict[str, Any]:
    if spec.endswith((".toml", ".json")) and "\n" not in spec:
        text = _native.read_spec_file(spec)
    elif spec.lstrip().startswith("{"):
        text = _native.read_spec(spec, toml=False)
    elif "=" in spec:
        text = _native.read_spec(spec, toml=True)
    else:
        raise SpecError(
            f"spec: {spec[:80]!r} is neither the path of a .toml or .json file nor the text of one",
            key="spec",
        )
    described: dict[str, Any] = json.loads(text)
    return described
