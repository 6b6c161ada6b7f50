"""torch's DataLoader with feedline's workers."""

from __future__ import annotations

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
from feedline.code.core import EXECUTORS, LoaderCore
from feedline.observe.live import open_dashboard
from feedline.observe.report import Reporter
from feedline.observe.tuning import Decisions, freeze_code
from feedline.torch.accelerate import AskedByPrepare
from feedline.torch.draws import PinnedDraws
from feedline.torch.epoch import Epoch
from feedline.torch.order import Guess
from feedline.torch.state import Progress, check, fresh, kind_of
from feedline.workers import Choice, Executor, Feed, Job, Task, choose, is_stateful
from feedline.workers.slots import Pin
from feedline.workers.torch_side import added_functions

_T_co = TypeVar("_T_co", covariant=True)
# CUDA 12.5, which has cuCtxRecordEvent.
_KNOWS_ALL_STREAMS = 12050


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """Loads batches of any data set, as torch's DataLoader does and with its arguments.

    Beyond torch's and StatefulDataLoader's arguments:

    executor: where the data set's code runs. "processes" are forks of the program where that is safe,
        else of a server process that has imported what they need, or as `multiprocessing_context` says.
        "threads" share the data set and suit code that lets go of the interpreter's lock, "inline" is
        the caller's thread. "auto" tries the first samples and picks; `stats()["executor"]` says what
        and why. With "processes", a `multiprocessing_context` or a `timeout` no sample runs in the
        program. "auto" may run samples in it (to try them, in threads, and the first ones while
        processes start), unless their code can be seen to end processes or to use native code of its
        own or of libraries that are not in wide use: a crash there would be the program's.
    num_workers: as torch's, or "auto", which begins with one for each core that the process may use
        (a share of them under torchrun). They are then adjusted to what the program needs; the
        batches are the same, and `stats()["tuning"]` has what was decided and why. Where each
        worker has a part, a state or a seed of its own, "auto" is 1, with a warning.
    random: "batch" seeds the global generators of random, NumPy and torch for each batch, so
        that batches do not depend on the number of workers and resume exactly; "worker" seeds
        each worker once, as torch does. Threads share the generators and are not seeded.
    dashboard: as of `feedline.Loader`.
    """

    _is_accelerate_prepared = AskedByPrepare()
    # Read when torch's own __init__ sets `_iterator`.
    _kept: Any = None
    _idle: Executor | None = None
    _guess: tuple[Guess, Feed, Executor] | None = None
    _epoch: weakref.ref[Epoch] | None = None

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
        if executor not in EXECUTORS:
            raise ValueError(f"executor = {executor!r}: is not one of {', '.join(EXECUTORS)}")
        if random not in ("batch", "worker"):
            raise ValueError(f"random = {random!r}: is neither 'batch' nor 'worker'")
        if snapshot_every_n_steps is not None and snapshot_every_n_steps < 0:
            raise ValueError("snapshot_every_n_steps must not be negative; 0 and None take no snapshots")
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
        self._progress: Progress | None = None
        self._started: weakref.WeakKeyDictionary[Executor, tuple[Any, ...]] = weakref.WeakKeyDictionary()
        self._resumed: dict[str, Any] | None = None
        self._base_seed: int | None = None
        self._round = 0
        self._draws = PinnedDraws()
        # Whether the data set's iterator was at its end when the last epoch was over.
        self._exhausted = False
        # Whether workers that stay must get the program's data set again.
        self._renews = False
        self._warned_of_order = False
        self._guesses = True
        self.dashboard_url = open_dashboard(dashboard)
        self._make_core()

    def __iter__(self) -> Any:
        if not (self.persistent_workers and self.num_workers > 0):
            return self._get_iterator()
        iterator = self._iterator
        if iterator is None:
            iterator = self._iterator = self._get_iterator()
        else:
            iterator._reset(self)
        return iterator

    def _get_iterator(self) -> Any:
        """An iterator with workers of its own. As with torch, subclasses may override and call it."""
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super()._get_iterator()
        if self.num_workers > 0:
            self.check_worker_number_rationality()
        self._warn_about_pinning()
        self._notice_fork()
        if self.persistent_workers:
            self._end_idle()
            self._base_seed, self._round = None, 0
        epoch = Epoch()
        epoch._begin(self)
        return epoch

    @property
    def _iterator(self) -> Any:
        """The iterator whose workers persist. Programs set it to None to get new ones."""
        if not isinstance(self._kept, weakref.ref):
            return self._kept
        # An epoch holds its loader; held by it in turn, neither would go with its last name.
        epoch = self._kept()
        if epoch is None:
            epoch = Epoch()
            self._kept = weakref.ref(epoch)
        return epoch

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        self._kept = weakref.ref(iterator) if isinstance(iterator, Epoch) else iterator
        if iterator is None:
            self._end_idle()

    def _end_idle(self) -> None:
        """Ends the workers that wait for the next epoch or have begun with it."""
        guess, self._guess = self._guess, None
        idle, self._idle = self._idle, None
        last = None if self._epoch is None else self._epoch()
        if guess is not None and (last is None or last._executor is not guess[2]):
            guess[1].close()
            idle = guess[2]
        if idle is not None:
            idle.close()

    def _notice_fork(self) -> None:
        """In a forked child the workers, and whatever locks they hold, are the parent's."""
        if self._core.notice_fork():
            self._idle = self._guess = self._epoch = None

    def _warn_about_pinning(self) -> None:
        if not self.pin_memory:
            return
        if self.pin_memory_device:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the device, "
                f"ignore pin_memory_device='{self.pin_memory_device}'.",
                stacklevel=4,
            )
        if not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned "
                "memory won't be used.",
                stacklevel=4,
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
        workers, prefetch = self.num_workers, self.prefetch_factor or 1
        choice = self._core.choose(self.executor, workers, lambda: self._choose(job, base_seed, first))
        if choice.name == "inline":
            return self._core.start(choice, job, workers, prefetch, base_seed)
        idle = self._idle
        renews, self._renews = self._renews, False
        if idle is not None and idle.owner == os.getpid():
            if self._suits(idle):
                if not self.persistent_workers or renews:
                    # torch starts new workers, which see the data set as it is now.
                    self._renew(idle, job, base_seed)
                self._idle = None
                return idle
            idle.close()
        self._idle = None
        method, pin = self._start_method(), self._pin_function()
        samples = None if first is None else first.made
        executor = self._core.start(
            choice, job, workers, prefetch, base_seed, method=method, pin=pin, samples=samples
        )
        self._started[executor] = self._start_settings()
        # Whatever happens to this object, its workers end with it.
        weakref.finalize(self, executor.close)
        return executor

    def _start_settings(self) -> tuple[Any, ...]:
        """What workers are started with; programs may change it between two epochs."""
        return self.num_workers, self.prefetch_factor, self._start_method()

    def _suits(self, executor: Executor) -> bool:
        return self._started.get(executor) == self._start_settings()

    def _renew(self, idle: Executor, job: Job, base_seed: int) -> None:
        """Gives the workers their job. If that fails, they are kept for one that can be given."""
        try:
            idle.renew(job, base_seed)
        except BaseException:
            if idle.broken is not None:
                self._idle = None
                idle.close()
            raise

    def _choose(self, job: Job, base_seed: int, first: Task | None) -> Choice:
        """Where the data set's code runs, if the program leaves it open."""
        if self.multiprocessing_context is not None:
            return Choice("processes", "multiprocessing_context was given")
        if self.random == "worker":
            return Choice("processes", "random='worker' seeds each worker process")
        if self.timeout > 0:
            return Choice("processes", "a timeout was given: only a process can be left while it hangs")
        return choose(job, self.num_workers, first, base_seed).log()

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
        return "default" if context is None else str(context.get_start_method())

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands, after the last batch that was handed over.

        It pins what later epochs are drawn from: with `shuffle=True` and without a generator they are
        torch's own as long as nobody but the loader draws from torch's default generator, and are the
        same after a resume in any case. Seeding torch anew undoes that.
        """
        if not self.in_order and self.num_workers > 0 and not self._warned_of_order:
            self._warned_of_order = True
            warnings.warn(
                "with in_order=False a loader that resumes gives each remaining sample once, but in "
                "which order is a matter of chance, as it was before",
                stacklevel=2,
            )
        if self._resumed is not None:
            return dict(self._resumed)
        return (self._progress or fresh(self)).state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; the next iteration begins there."""
        if not isinstance(state_dict, Mapping):
            raise StateError(f"cannot resume: a state is a dict, not {type(state_dict).__name__}")
        if not state_dict:
            # As StatefulDataLoader: an empty state is no state.
            return
        check(state_dict, self)
        self._notice_fork()
        self._drop_guess()
        last = None if self._epoch is None else self._epoch()
        if last is not None:
            last._leave()
        self._resumed, self._renews = dict(state_dict), True
        self._progress = self._core.feed = None

    def stats(self) -> dict[str, Any]:
        """What happened so far, with the keys of `feedline.Loader.stats()`."""
        return self._core.stats()

    def _make_core(self, choice: Choice | None = None) -> None:
        size = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        self._core = LoaderCore(
            type(self.dataset).__qualname__,
            workers=self.num_workers,
            adjusts=self._adjusts,
            batch_size=self.batch_size,
            # A sampler of the program's may call anything that.
            shown_batch_size=size if isinstance(size, int) and size > 0 else 1,
        )
        self._core.choice = choice
        self._epochs = 0
        self._decisions = Decisions(self._core.tuning)
        kinds = type(self.dataset).__qualname__, type(self.sampler).__qualname__
        self._reporter = Reporter(self._core.report, (*kinds, self.batch_size, self.num_workers))

    def freeze(self, path: str | os.PathLike[str]) -> None:
        """Writes the settings that `num_workers="auto"` has found by now, for
        `DataLoader(my_dataset, ..., **settings)`; .toml has the reason for each and says how to use them."""
        freeze_code(path, self.stats(), self.prefetch_factor, "DataLoader")

    def close(self) -> None:
        """Ends the workers; iterating again starts new ones."""
        self._notice_fork()
        self._reporter.flush()
        self._drop_guess()
        last = None if self._epoch is None else self._epoch()
        if last is not None:
            last._leave()
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()
        self._core.close()

    def _drop_guess(self) -> None:
        guess, self._guess = self._guess, None
        if guess is not None:
            guess[1].close()
            self._give_executor(guess[2])

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        left = "_idle", "_progress", "_epoch", "_kept", "_guess", "_reporter", "_decisions", "dashboard_url"
        for name in left:
            state[name] = None
        del state["_started"]
        # Of the core, the choice of an executor is all that goes along.
        state["_core"] = self._core.choice
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._started = weakref.WeakKeyDictionary()
        self._make_core(state["_core"])


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
