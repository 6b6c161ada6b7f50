"""torch's DataLoader with feedline's workers."""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
import torch.utils.data
from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe
from torch.utils.data._utils.collate import default_collate

from feedline import _native
from feedline._errors import StateError
from feedline.observe.counters import Counters
from feedline.observe.live import Live, open_dashboard
from feedline.observe.report import Teller
from feedline.observe.tuning import CodeTuning, Decisions, freeze_code
from feedline.torch.epoch import Epoch, Progress, kind_of
from feedline.torch.order import Guess
from feedline.workers import (
    Choice,
    Executor,
    Feed,
    Inline,
    Job,
    Processes,
    Task,
    Threads,
    WorkerError,
    choose,
    is_stateful,
)
from feedline.workers.slots import Pin
from feedline.workers.torch_side import added_functions

_log = logging.getLogger("feedline")
_T_co = TypeVar("_T_co", covariant=True)
# CUDA 12.5, which has cuCtxRecordEvent.
_KNOWS_ALL_STREAMS = 12050
_EXECUTORS = ("auto", "threads", "processes", "inline")


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """Loads batches of any data set, as torch's DataLoader does and with its arguments.

    Beyond torch's and StatefulDataLoader's arguments:

    executor: where the data set's code runs. "processes" start from a server process that has
        imported what they need (or as `multiprocessing_context` says), "threads" share the data
        set and suit code that lets go of the interpreter's lock, "inline" is the caller's thread.
        "auto" tries the first samples and picks; `stats()["executor"]` says what and why.
    num_workers: as torch's, or "auto", which begins with one for each core that the process may use
        (a share of them under torchrun). They are then adjusted to what the program needs; the
        batches are the same, and `stats()["tuning"]` tells what was decided and why. Where each
        worker has a part, a state or a seed of its own, "auto" is 1, with a warning.
    random: "batch" seeds the global generators of random, NumPy and torch for each batch, so
        that batches do not depend on the number of workers and resume exactly; "worker" seeds
        each worker once, as torch does. Threads share the generators and are not seeded.
    dashboard: as of `feedline.Loader`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        executor: Literal["auto", "threads", "processes", "inline"] = "auto",
        random: Literal["batch", "worker"] = "batch",
        dashboard: bool | int | None = None,
    ) -> None:
        if executor not in _EXECUTORS:
            raise ValueError(f"executor = {executor!r}: is not one of {', '.join(_EXECUTORS)}")
        if random not in ("batch", "worker"):
            raise ValueError(f"random = {random!r}: is neither 'batch' nor 'worker'")
        if snapshot_every_n_steps is not None and snapshot_every_n_steps < 1:
            raise ValueError("snapshot_every_n_steps must be at least 1")
        self._adjusts = num_workers == "auto"
        if num_workers == "auto":
            num_workers = _auto_workers(dataset, random)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if executor == "threads" and isinstance(dataset, IterableDataset) and num_workers > 0:
            raise ValueError(
                "an IterableDataset is divided among workers by get_worker_info, which needs processes: "
                'use executor="processes" or num_workers=0'
            )
        if executor == "threads" and multiprocessing_context is not None:
            warnings.warn("multiprocessing_context has no meaning with executor='threads'", stacklevel=2)
        self.executor, self.random = executor, random
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._idle: Executor | None = None
        self._choice: Choice | None = None
        self._progress: Progress | None = None
        self._epoch: weakref.ref[Epoch] | None = None
        self._resumed: dict[str, Any] | None = None
        self._base_seed: int | None = None
        self._round = 0
        self._guess: tuple[Guess, Feed, Executor] | None = None
        self._guesses = True
        self._process = os.getpid()
        self.dashboard_url = open_dashboard(dashboard)
        self._watch()

    def __iter__(self) -> Any:
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super().__iter__()
        self._warn_about_pinning()
        self._notice_fork()
        resumed = self._resumed
        persistent = self.persistent_workers and self.num_workers > 0
        if persistent and self._epoch is not None:
            # There is one set of workers: the epoch before gives them up.
            last = self._epoch()
            if last is not None:
                last._leave()
        epoch = Epoch(self, resumed)
        self._resumed = None
        self._epoch = weakref.ref(epoch)
        self._progress = epoch._progress
        return epoch

    def _notice_fork(self) -> None:
        """In a forked child the workers, and whatever locks they hold, are the parent's."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._idle = self._guess = self._epoch = None

    def _warn_about_pinning(self) -> None:
        if not self.pin_memory:
            return
        if self.pin_memory_device:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the device, "
                f"ignore pin_memory_device='{self.pin_memory_device}'.",
                stacklevel=3,
            )
        if not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned "
                "memory won't be used.",
                stacklevel=3,
            )

    def _job(self) -> Job:
        added = added_functions()
        iterable = isinstance(self.dataset, IterableDataset)
        return Job(
            self.dataset,
            "iterable" if iterable else "map",
            self.collate_fn,
            batched=self._auto_collation,
            stacks=self.collate_fn is default_collate and self._auto_collation and not added,
            torch=True,
            drop_last=self.drop_last,
            init=self.worker_init_fn,
            num_workers=self.num_workers,
            registry=added,
        )

    def _take_executor(self, job: Job, base_seed: int, first: Task | None) -> Executor:
        """The workers of the last epoch, or new ones."""
        if self.num_workers == 0 or self.executor == "inline":
            if self._choice is None:
                self._choice = Choice(
                    "inline", "num_workers=0" if self.num_workers == 0 else "it was asked for"
                )
            return Inline(job)
        idle, self._idle = self._idle, None
        if idle is not None and idle.owner == os.getpid():
            if not self.persistent_workers:
                # torch starts new workers, which see the data set as it is now.
                idle.renew(job, base_seed)
            return idle
        if self._choice is None:
            if self.executor != "auto":
                self._choice = Choice(self.executor, "it was asked for")
            elif self.multiprocessing_context is not None:
                self._choice = Choice("processes", "multiprocessing_context was given")
            elif self.random == "worker":
                self._choice = Choice("processes", "random='worker' seeds each worker process")
            else:
                self._choice = choose(job, self.num_workers, first, base_seed).tell()
        made: Executor
        prefetch, pin = self.prefetch_factor or 1, self._pin_function()
        if self._choice.name == "processes":
            method = self._start_method()
            try:
                made = Processes(job, self.num_workers, prefetch, base_seed, method, pin)
            except WorkerError as error:
                if (
                    self.executor != "auto"
                    or job.kind != "map"
                    or not self._choice.reason.startswith("a sample")
                ):
                    raise
                self._choice = Choice("threads", f"{self._choice.reason}, but {error}").tell()
                made = Threads(job, self.num_workers, prefetch, base_seed, pin)
        else:
            made = Threads(job, self.num_workers, prefetch, base_seed, pin)
        # Whatever happens to this object, its workers end with it.
        weakref.finalize(self, made.close)
        return made

    def _pin_function(self) -> Callable[[int, int], Pin] | None:
        """Locks the pages that batches are written to, so that torch finds them pinned already."""
        if not self.pin_memory or not torch.cuda.is_available() or _native.cuda_problem() is not None:
            return None
        # Older drivers cannot say whether a copy on some stream still reads a slot: torch's own
        # page-locked copies are used there.
        version: Callable[[], int] = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)
        if version() < _KNOWS_ALL_STREAMS:
            return None
        return _native.pin

    def _give_executor(self, executor: Executor) -> None:
        """Keeps the workers for the next epoch."""
        if executor.name == "inline" or executor is self._idle:
            return
        if self._idle is None and executor.broken is None:
            if not self.persistent_workers:
                executor.rest()
            self._idle = executor
        else:
            executor.close()

    def _start_method(self) -> str:
        """How worker processes are started."""
        context = self.multiprocessing_context
        return "forkserver" if context is None else str(context.get_start_method())

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands, after the last batch that was handed over."""
        if self._resumed is not None:
            return dict(self._resumed)
        if self._progress is None:
            return {"feedline": 1, "kind": kind_of(self.dataset), "begun": False}
        return self._progress.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; the next iteration begins there."""
        if not isinstance(state_dict, Mapping):
            raise StateError(f"cannot resume: a state is a dict, not {type(state_dict).__name__}")
        if not state_dict:
            # As StatefulDataLoader: an empty state is no state.
            return
        if "_snapshot" in state_dict or "_num_yielded" in state_dict:
            raise StateError(
                "cannot resume: this state was taken from torchdata's StatefulDataLoader; finish that epoch "
                "with it, or begin the epoch again"
            )
        _check(state_dict, self)
        self._notice_fork()
        self._drop_guess()
        last = None if self._epoch is None else self._epoch()
        if last is not None:
            last._leave()
        self._resumed = dict(state_dict) if state_dict.get("begun", True) else None
        self._progress = None

    def stats(self) -> dict[str, Any]:
        """What happened so far: counts and seconds."""
        choice, progress = self._choice, self._progress
        return {
            **self._figures.stats(),
            "queue": None if progress is None or progress.feed is None else progress.feed.queue,
            "executor": None if choice is None else {"name": choice.name, "reason": choice.reason},
            "workers": {"number": self._tuning.workers},
            "tuning": self._tuning.stats(),
            "made_by_the_caller": 0 if progress is None or progress.feed is None else progress.feed.helped,
        }

    def report(self) -> dict[str, Any]:
        """How the current or last epoch went so far, and why the program waited."""
        return {**self.report_since(self._before), "epoch": self._epochs - 1}

    def report_since(self, before: dict[str, Any]) -> dict[str, Any]:
        """The same since a mark of its figures."""
        choice = self._choice
        return self._figures.report(
            before,
            executor="inline" if choice is None else choice.name,
            batch_size=float(self.batch_size or self._figures.rows),
            workers=self._tuning.workers,
        )

    def mark(self) -> dict[str, Any]:
        """Its figures as they stand, for `report_since`."""
        return self._figures.mark()

    def _watch(self) -> None:
        self._figures, self._before, self._epochs = Counters(), dict[str, Any](), 0
        self._tuning = CodeTuning(self._adjusts, self.num_workers)
        self._decisions = Decisions(self._tuning)
        # The teller must not keep the loader alive.
        loader = weakref.ref(self)

        def report() -> dict[str, Any]:
            alive = loader()
            return {"batches": 0, "wait_share": 0.0, "seconds": 0.0} if alive is None else alive.report()

        made = type(self.dataset).__qualname__, type(self.sampler).__qualname__
        self._teller = Teller(report, (*made, self.batch_size, self.num_workers))
        size = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        # A sampler of the program's may call anything that.
        size = size if isinstance(size, int) and size > 0 else 1
        self._live = Live(type(self.dataset).__qualname__, size)

    def _wait_no_longer(self) -> None:
        """There is no batch for the program."""
        self._figures.between_epochs()
        self._live.left(self)

    def freeze(self, path: str | os.PathLike[str]) -> None:
        """Writes the settings that `num_workers="auto"` has found by now, for
        `DataLoader(my_dataset, ..., **settings)`; .toml has the reason for each and says how to use them."""
        freeze_code(path, self.stats(), self.prefetch_factor, "DataLoader")

    def close(self) -> None:
        """Ends the workers; iterating again starts new ones."""
        self._notice_fork()
        self._teller.tell()
        self._drop_guess()
        last = None if self._epoch is None else self._epoch()
        if last is not None:
            last._leave()
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()
        self._live.close()

    def _drop_guess(self) -> None:
        guess, self._guess = self._guess, None
        if guess is not None:
            guess[1].close()
            self._give_executor(guess[2])

    def __getstate__(self) -> dict[str, Any]:
        kept = dict(self.__dict__)
        for name in (
            "_idle",
            "_progress",
            "_epoch",
            "_guess",
            "_teller",
            "_live",
            "_tuning",
            "_decisions",
            "dashboard_url",
        ):
            kept[name] = None
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch()


def _auto_workers(dataset: Any, random: str) -> int:
    """What "auto" begins with. Where each worker has its own part, state or seed, their number is part
    of the batches and must not depend on the machine."""
    own = (
        "its own part of an IterableDataset"
        if kind_of(dataset) == "iterable"
        else "its own state of the data set"
        if is_stateful(dataset)
        else "its own seed (random='worker')"
        if random == "worker"
        else None
    )
    if own is None:
        return _native.auto_workers()
    warnings.warn(
        f"num_workers='auto' is 1 here: each worker has {own}, so their number changes the batches; "
        "give a number for more",
        stacklevel=3,
    )
    return 1


def _check(state: Mapping[str, Any], loader: DataLoader[Any]) -> None:
    kind = kind_of(loader.dataset)
    if state.get("feedline") != 1 or not isinstance(state.get("kind"), str):
        raise StateError("cannot resume: this is no state of feedline.torch.DataLoader")
    if state["kind"] != kind:
        raise StateError(
            f"cannot resume: the state is of {state['kind']}-style data, the data set is {kind}-style"
        )
    if not state.get("begun", True):
        return
    for name, types in (("yielded", int), ("base_seed", int), ("round", int), ("sampler", Mapping)):
        if not isinstance(state.get(name), types) or isinstance(state.get(name), bool):
            raise StateError(f"cannot resume: the state's {name!r} is missing or not what it should be")
    if state["yielded"] < 0:
        raise StateError("cannot resume: the state's 'yielded' is negative")
    if not isinstance(state["sampler"].get("torch"), list | tuple):
        raise StateError("cannot resume: the state's 'sampler' has no generators")
    rows = state.get("workers")
    if rows is not None and not (
        isinstance(rows, list | tuple)
        and all(isinstance(row, Mapping) and {"state", "batches", "all", "ended"} <= set(row) for row in rows)
    ):
        raise StateError("cannot resume: the state's 'workers' are not what they should be")
    workers = max(1, loader.num_workers)
    if state.get("workers") is not None and len(state["workers"]) != workers:
        raise StateError(
            f"cannot resume: each worker has its own part of this data set, and the state is of "
            f"{len(state['workers'])} workers; use num_workers={len(state['workers'])}"
        )
