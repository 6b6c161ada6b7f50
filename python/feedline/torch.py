"""torch's DataLoader with feedline's workers: change the import, keep the rest.

from feedline.torch import DataLoader
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
import torch.utils.data
from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe
from torch.utils.data._utils.collate import default_collate
from torch.utils.data._utils.pin_memory import pin_memory as pin_batch

from feedline._errors import StateError
from feedline._torch_order import Guess, Order, draw_base_seed, is_known
from feedline.workers import (
    Begin,
    Choice,
    Executor,
    Feed,
    Inline,
    Job,
    Maker,
    Processes,
    Result,
    Task,
    Threads,
    WorkerError,
    apart,
    choose,
    is_stateful,
    mixed,
)
from feedline.workers.torch_side import added_functions, get_worker_info

__all__ = ["DataLoader", "get_worker_info"]

_log = logging.getLogger("feedline")
_EXECUTORS = ("auto", "threads", "processes", "inline")


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads batches of any data set, as torch's DataLoader does and with its arguments.

    Beyond torch's and StatefulDataLoader's arguments:

    executor: where the data set's code runs. "processes" start from a server process that has
        imported what they need (or as `multiprocessing_context` says), "threads" share the data
        set and suit code that lets go of the interpreter's lock, "inline" is the caller's thread.
        "auto" tries the first samples and picks; `stats()["executor"]` says what and why.
    random: "batch" seeds the global generators of random, NumPy and torch for each batch, so
        that batches do not depend on the number of workers and resume exactly; "worker" seeds
        each worker once, as torch does. Threads share the generators and are not seeded.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
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
    ) -> None:
        if executor not in _EXECUTORS:
            raise ValueError(f"executor = {executor!r}: is not one of {', '.join(_EXECUTORS)}")
        if random not in ("batch", "worker"):
            raise ValueError(f"random = {random!r}: is neither 'batch' nor 'worker'")
        if snapshot_every_n_steps is not None and snapshot_every_n_steps < 1:
            raise ValueError("snapshot_every_n_steps must be at least 1")
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
        self._progress: _Progress | None = None
        self._epoch: weakref.ref[_Epoch] | None = None
        self._resumed: dict[str, Any] | None = None
        self._base_seed: int | None = None
        self._round = 0
        self._guess: tuple[Guess, Feed, Executor] | None = None
        self._guesses = True

    def __iter__(self) -> Any:
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super().__iter__()
        self._warn_about_pinning()
        resumed, self._resumed = self._resumed, None
        persistent = self.persistent_workers and self.num_workers > 0
        if persistent and self._epoch is not None:
            # There is one set of workers: the epoch before gives them up.
            last = self._epoch()
            if last is not None:
                last._leave()
        epoch = _Epoch(self, resumed)
        self._epoch = weakref.ref(epoch)
        self._progress = epoch._progress
        return epoch

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
        if idle is not None:
            if not self.persistent_workers:
                # torch starts new workers, which see the data set as it is now.
                idle.renew(base_seed)
            return idle
        if self._choice is None:
            if self.executor != "auto":
                self._choice = Choice(self.executor, "it was asked for")
            elif self.multiprocessing_context is not None:
                self._choice = Choice("processes", "multiprocessing_context was given")
            elif self.random == "worker":
                self._choice = Choice("processes", "random='worker' seeds each worker process")
            else:
                self._choice = choose(job, self.num_workers, first).tell()
        made: Executor
        prefetch = self.prefetch_factor or 1
        if self._choice.name == "processes":
            method = self._start_method()
            try:
                made = Processes(job, self.num_workers, prefetch, base_seed, method)
            except WorkerError as error:
                if (
                    self.executor != "auto"
                    or job.kind != "map"
                    or not self._choice.reason.startswith("a sample")
                ):
                    raise
                self._choice = Choice("threads", f"{self._choice.reason}, but {error}").tell()
                made = Threads(job, self.num_workers, prefetch, base_seed)
        else:
            made = Threads(job, self.num_workers, prefetch, base_seed)
        # Whatever happens to this object, its workers end with it.
        weakref.finalize(self, made.close)
        return made

    def _give_executor(self, executor: Executor) -> None:
        """Keeps the workers for the next epoch."""
        if executor.name == "inline" or executor is self._idle:
            return
        if self._idle is None:
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
            return {"feedline": 1, "kind": _kind(self.dataset), "begun": False}
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
        self._drop_guess()
        last = None if self._epoch is None else self._epoch()
        if last is not None:
            last._leave()
        self._resumed = dict(state_dict) if state_dict.get("begun", True) else None
        self._progress = None

    def stats(self) -> dict[str, Any]:
        """What happened in the current or last epoch."""
        choice, progress = self._choice, self._progress
        return {
            "executor": None if choice is None else {"name": choice.name, "reason": choice.reason},
            "batches": 0 if progress is None else progress.yielded,
            "wait_seconds": 0.0 if progress is None else progress.feed_figure("waited"),
            "longest_wait_seconds": 0.0 if progress is None else progress.feed_figure("longest_wait"),
            "made_by_the_caller": 0 if progress is None else int(progress.feed_figure("helped")),
        }

    def close(self) -> None:
        """Ends the workers; iterating again starts new ones."""
        self._drop_guess()
        last = None if self._epoch is None else self._epoch()
        if last is not None:
            last._leave()
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()

    def _drop_guess(self) -> None:
        guess, self._guess = self._guess, None
        if guess is not None:
            guess[1].close()
            self._give_executor(guess[2])

    def __getstate__(self) -> dict[str, Any]:
        kept = dict(self.__dict__)
        for name in ("_idle", "_progress", "_epoch", "_guess"):
            kept[name] = None
        return kept


def _kind(dataset: Any) -> str:
    return "iterable" if isinstance(dataset, IterableDataset) else "map"


def _check(state: Mapping[str, Any], loader: DataLoader) -> None:
    kind = _kind(loader.dataset)
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
    workers = max(1, loader.num_workers)
    if state.get("workers") is not None and len(state["workers"]) != workers:
        raise StateError(
            f"cannot resume: each worker has its own part of this data set, and the state is of "
            f"{len(state['workers'])} workers; use num_workers={len(state['workers'])}"
        )


class _Progress:
    """How far an epoch has come. The loader keeps it when the epoch's iterator is gone."""

    def __init__(self, kind: str, base_seed: int, number: int, order: Order) -> None:
        self.kind, self.base_seed, self.round, self.order = kind, base_seed, number, order
        self.yielded = 0
        self.finished = False
        # With in_order=False: batches that were handed over before an earlier one.
        self.ahead: set[int] = set()
        self.own: Any = None
        # For data sets that keep a state in each worker, or are divided among them.
        self.workers: list[dict[str, Any]] | None = None
        self.since_snapshot = 0
        self.turn = 0
        self.feed: Feed | None = None

    def count(self, number: int) -> None:
        self.ahead.add(number)
        while self.yielded in self.ahead:
            self.ahead.remove(self.yielded)
            self.yielded += 1

    def feed_figure(self, name: str) -> float:
        return 0.0 if self.feed is None else float(getattr(self.feed, name))

    def state(self) -> dict[str, Any]:
        sampler = dict(self.order._snapshot() if self.finished else self.order.state())
        if self.own is not None:
            sampler["own"] = self.own
        state: dict[str, Any] = {
            "feedline": 1,
            "kind": self.kind,
            "yielded": self.yielded,
            "ahead": sorted(self.ahead),
            "finished": self.finished,
            "base_seed": self.base_seed,
            "round": self.round,
            "sampler": sampler,
            "workers": None,
        }
        if self.workers is not None:
            state["workers"] = [dict(worker) for worker in self.workers]
            state["turn"] = self.turn
        return state


class _Epoch(Iterator[Any]):
    """One iteration over a loader."""

    def __init__(self, loader: DataLoader, resumed: dict[str, Any] | None) -> None:
        self._loader: DataLoader | None = loader
        self._pin = loader.pin_memory and torch.accelerator.is_available()
        self._kind = _kind(loader.dataset)
        self._len_called = loader._IterableDataset_len_called
        self._executor: Executor | None = None
        self._helper: Maker | None = None
        finished = resumed is not None and bool(resumed.get("finished"))
        if finished:
            # The epoch was over: what matters is where the generators stood.
            assert resumed is not None
            for one, state in zip(_own_generators(loader), resumed["sampler"]["torch"][1:], strict=False):
                one.set_state(state)
            loader._round = resumed["round"] + 1
            if loader.persistent_workers:
                loader._base_seed = resumed["base_seed"]
            resumed = None
        guess, loader._guess = loader._guess, None
        persistent = loader.persistent_workers and loader.num_workers > 0
        if guess is not None and (resumed is not None or not guess[0].holds()):
            guess[1].close()
            # The program draws between epochs: it would be in vain the next time too.
            loader._guesses = resumed is not None
            loader._give_executor(guess[2])
            guess = None
        if guess is not None:
            order = guess[0].order
        else:
            order = Order(loader, None if resumed is None else resumed["sampler"], _first(resumed))
            if resumed is None:
                order.begin()
        if resumed is not None:
            base_seed, number = resumed["base_seed"], resumed["round"]
        elif persistent and loader._base_seed is not None:
            base_seed, number = loader._base_seed, loader._round
        else:
            base_seed, number = draw_base_seed(loader), loader._round
        loader._base_seed, loader._round = base_seed, number + (1 if persistent else 0)
        self._progress = _Progress(self._kind, base_seed, number, order)
        if resumed is not None:
            self._progress.yielded = resumed["yielded"]
            self._progress.ahead = set(resumed.get("ahead", ()))
            self._progress.own = resumed["sampler"].get("own")
        if guess is not None:
            self._feed, self._executor = guess[1], guess[2]
            self._progress.feed = self._feed
            self._snapshots = False
            return
        self._open(loader, resumed)

    def _open(self, loader: DataLoader, resumed: dict[str, Any] | None) -> None:
        job, progress = loader._job(), self._progress
        tasks = self._tasks(loader, progress.order, self._progress)
        # Each worker has its own part or its own state: the tasks go round.
        own = self._kind == "iterable" or is_stateful(loader.dataset)
        turns = loader.num_workers > 0 and (own or loader.random == "worker")
        self._snapshots = own and (self._kind == "iterable" or is_stateful(loader.dataset))
        first = None
        if loader.num_workers > 0 and loader._idle is None and loader.executor == "auto" and not own:
            first = next(tasks, None)
            if first is not None:
                tasks = _chain(first, tasks)
        executor = self._executor = loader._take_executor(job, progress.base_seed, first)
        if turns and executor.name == "threads":
            turns = False
        begin, turn, active = Begin(rows=loader.batch_size or 1), 0, None
        workers = max(1, loader.num_workers)
        if self._snapshots:
            progress.workers = [{"state": None, "batches": 0, "ended": False} for _ in range(workers)]
            if resumed is not None and resumed.get("workers") is not None:
                progress.workers = [dict(worker) for worker in resumed["workers"]]
                begin.states = [worker["state"] for worker in progress.workers]
                begin.skips = [worker["batches"] for worker in progress.workers]
                turn = progress.turn = int(resumed.get("turn", 0))
                active = [not worker["ended"] for worker in progress.workers]
                if self._kind == "iterable":
                    self._announce_skips(begin)
        else:
            turn = progress.yielded % workers
        executor.begin(begin)
        self._feed = _EpochFeed(
            executor,
            tasks,
            in_order=loader.in_order or loader.num_workers == 0,
            timeout=loader.timeout,
            turns=turns,
            turn=turn,
            active=active,
            helper=self._help if self._may_help(loader, own) else None,
        )
        self._feed.progress = progress
        progress.feed = self._feed
        if loader.num_workers > 0:
            self._feed.fill()

    def _announce_skips(self, begin: Begin) -> None:
        assert begin.states is not None and begin.skips is not None
        without = [
            skip
            for state, skip in zip(begin.states, begin.skips, strict=True)
            if skip and (state is None or (state.get("iterator") is None and state.get("dataset") is None))
        ]
        if without:
            warnings.warn(
                f"neither the data set nor its iterator has state_dict and load_state_dict: {sum(without)} "
                "batches are read again and thrown away to find the place",
                stacklevel=4,
            )

    def _may_help(self, loader: DataLoader, own: bool) -> bool:
        return (
            loader.num_workers > 0
            and not own
            and loader.random == "batch"
            and loader.worker_init_fn is None
            and loader._start_method() != "fork"
        )

    def _help(self, task: Task) -> Any:
        """Makes a batch here while the workers are still starting."""
        assert self._loader is not None and self._executor is not None
        if self._helper is None:
            self._helper = Maker(self._loader._job())
        executor, helper = self._executor, self._helper
        # Workers that become ready meanwhile get their tasks between two samples.
        return apart(task.seed, lambda: helper.make(task, None, lambda _: executor.wait(0) and None))

    @staticmethod
    def _tasks(loader: DataLoader, order: Order, progress: _Progress) -> Iterator[Task]:
        every = loader.snapshot_every_n_steps
        own = _kind(loader.dataset) == "iterable" or is_stateful(loader.dataset)
        seeded = loader.random == "batch"
        number = progress.yielded
        while True:
            try:
                index = next(order)
            except StopIteration:
                return
            if loader._auto_collation and not hasattr(index, "__getitem__"):
                index = list(index)
            if number not in progress.ahead:
                yield Task(
                    number,
                    index,
                    seed=mixed(progress.base_seed, progress.round, number) if seeded else None,
                    snapshot=own and every is not None and (number + 1) % every == 0,
                    note=order.sampler_state() if order.is_stateful else None,
                )
            number += 1

    def __iter__(self) -> _Epoch:
        return self

    def __len__(self) -> int:
        assert self._loader is not None
        return len(self._loader._index_sampler)

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        try:
            task, result = self._feed.next()
        except StopIteration:
            self._finish()
            raise
        except KeyboardInterrupt:
            loader.close()
            raise
        self._note(task, result)
        if result.error is not None:
            raise result.error
        if self._feed.exhausted and loader.persistent_workers:
            self._guess_next(loader)
        progress = self._progress
        if self._len_called is not None and self._kind == "iterable" and progress.yielded > self._len_called:
            warnings.warn(
                f"Length of IterableDataset {loader.dataset} was reported to be {self._len_called} (when accessing "
                f"len(dataloader)), but {progress.yielded} samples have been fetched. ",
                stacklevel=2,
            )
        if self._pin:
            device = torch.accelerator.current_accelerator()
            return pin_batch(result.value, None if device is None else device.type)
        return result.value

    def _note(self, task: Task, result: Result) -> None:
        """Counts a batch that is handed over; a failed one counts too, as with torch."""
        progress = self._progress
        progress.count(task.number)
        if task.note is not None:
            progress.own = task.note
        if progress.workers is not None:
            at = task.worker or 0
            worker = progress.workers[at]
            worker["batches"] += 1
            if result.state is not None:
                worker.update(state=result.state, batches=0)
                if result.state["iterator"] is None and result.state["dataset"] is None:
                    # It has no state: only counting helps.
                    worker.update(state=None, batches=worker.get("all", 0) + 1)
            worker["all"] = worker.get("all", 0) + 1
            progress.turn = (at + 1) % len(progress.workers)

    def _guess_next(self, loader: DataLoader) -> None:
        """Lets the workers begin with the next epoch while the program finishes this one."""
        executor = self._executor
        if (
            loader._guess is not None
            or not loader._guesses
            or executor is None
            or loader._resumed is not None
        ):
            return
        if (
            self._kind != "map"
            or is_stateful(loader.dataset)
            or not is_known(loader)
            or executor.name == "inline"
        ):
            return
        guess = Guess(loader, executor.capacity)
        progress = _Progress("map", self._progress.base_seed, loader._round, guess.order)
        tasks = self._tasks(loader, _Ready(guess.order, guess.indices), progress)
        feed = _EpochFeed(
            executor,
            tasks,
            in_order=loader.in_order,
            timeout=loader.timeout,
            turns=loader.random == "worker" and executor.name == "processes",
        )
        feed.fill()
        loader._guess = guess, feed, executor

    def _finish(self) -> None:
        self._progress.finished = True
        loader, self._loader = self._loader, None
        if loader is None:
            return
        executor, self._executor = self._executor, None
        if executor is not None and loader._guess is None:
            loader._give_executor(executor)

    def _leave(self) -> None:
        """Gives the workers up before the epoch is over."""
        loader, self._loader = self._loader, None
        if loader is None:
            return
        if loader._guess is not None and loader._guess[2] is self._executor:
            loader._guess = None
        self._feed.close()
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.forget()
            loader._give_executor(executor)

    def __del__(self) -> None:
        if getattr(self, "_loader", None) is not None:
            try:
                self._leave()
            except Exception:
                pass


class _EpochFeed(Feed):
    progress: _Progress | None = None

    def ended(self, task: Task, result: Result) -> None:
        if self.progress is not None and self.progress.workers is not None:
            self.progress.workers[task.worker or 0]["ended"] = True


class _Ready(Order):
    """An order of which the first lists were drawn already."""

    def __init__(self, order: Order, indices: list[Any]) -> None:
        self._order, self._indices = order, iter(indices)
        self._sampler, self._iterator = order._sampler, None

    def __next__(self) -> Any:
        try:
            return next(self._indices)
        except StopIteration:
            return next(self._order)


def _chain(first: Task, rest: Iterator[Task]) -> Iterator[Task]:
    yield first
    yield from rest


def _first(resumed: dict[str, Any] | None) -> int:
    return 0 if resumed is None else int(resumed["yielded"])


def _own_generators(loader: DataLoader) -> list[Any]:
    from feedline._torch_order import generators

    return generators(loader)[1:]
