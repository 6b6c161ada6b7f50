"""One iteration over a torch DataLoader: what it hands over, and how far it has come."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import pin_memory

from feedline.code.core import helper
from feedline.deliver.batch import rows_of
from feedline.torch.draws import from_text
from feedline.torch.made_from import is_same, made_from
from feedline.torch.order import Guess, SamplerOrder, draw_base_seed, is_known, resume_between
from feedline.torch.state import Progress, kind_of
from feedline.workers import (
    Begin,
    Contest,
    Executor,
    Feed,
    Job,
    Processes,
    Result,
    StandIn,
    Task,
    is_stateful,
    mixed,
)

if TYPE_CHECKING:
    from feedline.torch.loader import DataLoader


# Programs filter warnings by torch's words.
_REPLICAS = (
    "For multiprocessing data-loading, this happens where each worker reads all of the data set: let its "
    "__iter__ read the part that torch.utils.data.get_worker_info() names, see "
    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset"
)


class Epoch(Iterator[Any]):
    """One iteration over a loader. With persistent workers it is used for one epoch after the other,
    as torch's iterator is: what subclasses of torch's loader do with that one goes for this."""

    def __init__(self) -> None:
        self._loader: DataLoader[Any] | None = None
        self._executor: Executor | None = None

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begins the next epoch, with the workers that there are."""
        loader._notice_fork()
        self._leave()
        self._begin(loader)

    def _begin(self, loader: DataLoader[Any]) -> None:
        resumed = loader._resumed
        self._start(loader, resumed)
        loader._resumed = None
        loader._epoch = weakref.ref(self)
        loader._progress = self._progress

    def _start(self, loader: DataLoader[Any], resumed: dict[str, Any] | None) -> None:
        self._loader, self._executor = loader, None
        self._made_ahead = False
        self._maker = weakref.ref(loader)
        self._index_sampler = loader._index_sampler
        # What the epoch before came to is reported before the figures are of this one.
        self._reporter = loader._reporter.begin()
        loader._core.begin_epoch(loader._epochs)
        loader._epochs += 1
        self._pin = loader.pin_memory and torch.accelerator.is_available()
        self._kind = kind_of(loader.dataset)
        # Each worker has its own part of the data or its own state: the tasks go round.
        self._own = self._kind == "iterable" or is_stateful(loader.dataset)
        self._len_called = loader._IterableDataset_len_called
        within, draws = resumed, loader._draws
        if resumed is not None:
            draws.resume(from_text(resumed["draws"]))
            if resumed["finished"] or not resumed["begun"]:
                self._go_on(loader, resumed)
                within = None
        # What is left of an epoch was drawn before.
        with draws.drawing() if within is None else contextlib.nullcontext():
            order, base_seed, number, guess = self._draw(loader, within)
        progress = self._progress = Progress(self._kind, base_seed, number, order, lambda: draws.text)
        if within is not None:
            progress.resume(within)
        elif order.is_stateful:
            progress.own = order.sampler_state()
        if guess is not None:
            self._feed, self._executor = guess[1], guess[2]
            loader._core.feed = self._feed
            return
        self._open(loader, resumed)

    @staticmethod
    def _go_on(loader: DataLoader[Any], resumed: dict[str, Any]) -> None:
        """The state was taken between two epochs: the next one begins."""
        resume_between(loader, resumed)
        if loader.persistent_workers and loader.num_workers > 0 and resumed["begun"]:
            loader._base_seed, loader._round = resumed["base_seed"], resumed["round"] + 1

    @staticmethod
    def _draw(
        loader: DataLoader[Any], resumed: dict[str, Any] | None
    ) -> tuple[SamplerOrder, int, int, tuple[Guess, Feed, Executor] | None]:
        """The epoch's order, its base seed and number, and what of it was made ahead."""
        guess, loader._guess = loader._guess, None
        persistent = loader.persistent_workers and loader.num_workers > 0
        if guess is not None and (
            resumed is not None or not loader._suits(guess[2]) or not _holds(loader, guess)
        ):
            guess[1].close()
            # The program draws between epochs: it would be in vain the next time too.
            loader._guesses = resumed is not None
            loader._give_executor(guess[2])
            guess = None
        order = SamplerOrder(loader) if guess is None else guess[0].order
        if resumed is not None:
            order.resume(resumed, resumed["yielded"])
            base_seed, number = resumed["base_seed"], resumed["round"]
        else:
            if guess is None:
                order.begin()
            if persistent and loader._base_seed is not None:
                base_seed, number = loader._base_seed, loader._round
            else:
                base_seed, number = draw_base_seed(loader), loader._round
        loader._base_seed, loader._round = base_seed, number + (1 if persistent else 0)
        return order, base_seed, number, guess

    def _open(self, loader: DataLoader[Any], resumed: dict[str, Any] | None) -> None:
        job, progress = loader._job(), self._progress
        tasks = self._tasks(loader, progress.order, self._progress)
        own = self._own
        turns = loader.num_workers > 0 and (own or loader.random == "worker")
        first = None
        if loader.num_workers > 0 and loader._idle is None and loader.executor == "auto" and not own:
            first = next(tasks, None)
            if first is not None:
                tasks = _chain(first, tasks)
        idle = loader._idle
        executor = self._executor = loader._take_executor(job, progress.base_seed, first)
        # Workers that stay have the data set as it was: the caller's would be another one.
        stays = executor is idle and loader.persistent_workers
        turns = turns and executor.name == "processes"
        begin, turn, active = Begin(rows=loader.batch_size or 1), 0, None
        workers = max(1, loader.num_workers)
        if own:
            active = self._begin_rows(loader, begin, resumed)
            turn = progress.turn
            begin.ended, begin.reports = executor.name == "inline" and loader._exhausted, True
            progress.begins = executor.begins
            loader._exhausted = False
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
            helper=None if own or stays else _helper(loader, job, executor),
        )
        self._feed.progress = progress
        loader._core.feed = self._feed
        if loader.num_workers > 0:
            self._feed.fill()

    def _begin_rows(
        self, loader: DataLoader[Any], begin: Begin, resumed: dict[str, Any] | None
    ) -> list[bool] | None:
        """Gives each worker its part or its state, and returns which of them have more to give."""
        progress = self._progress
        progress.workers = [
            {"state": None, "batches": 0, "all": 0, "ended": False} for _ in range(max(1, loader.num_workers))
        ]
        if resumed is None or resumed["workers"] is None:
            return None
        stay = loader.num_workers == 0 or loader.persistent_workers
        if resumed["finished"] and not stay:
            # The next epoch's workers are new ones, with the program's data set.
            return None
        progress.workers = [dict(row) for row in resumed["workers"]]
        if resumed["finished"]:
            for row in progress.workers:
                row["ended"] = False
        elif resumed["begun"]:
            progress.turn = int(resumed["turn"])
        begin.states = [row["state"] for row in progress.workers]
        begin.skips = [row["batches"] for row in progress.workers]
        if self._kind == "iterable":
            self._announce_skips(begin)
        return [not row["ended"] for row in progress.workers]

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

    @staticmethod
    def _tasks(loader: DataLoader[Any], order: SamplerOrder, progress: Progress) -> Iterator[Task]:
        every = loader.snapshot_every_n_steps
        iterable, stateful = kind_of(loader.dataset) == "iterable", is_stateful(loader.dataset)
        seeded, collates = loader.random == "batch", loader._auto_collation

        # A generator of its own, which does not hold on to the loader.
        def tasks() -> Iterator[Task]:
            number = progress.yielded
            while True:
                try:
                    index = next(order)
                except StopIteration:
                    return
                if collates and not hasattr(index, "__getitem__"):
                    index = list(index)
                if number not in progress.ahead:
                    yield Task(
                        number,
                        index,
                        seed=mixed(progress.base_seed, progress.round, number) if seeded else None,
                        # Passing over batches brings an iterable to its place, but no other state.
                        snapshot=bool(every and (number + 1) % every == 0) if iterable else stateful,
                        note=order.sampler_state() if order.is_stateful else None,
                    )
                number += 1

        return tasks()

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        core = loader._core
        asked, begins = core.asked(), self._progress.handed == 0
        try:
            task, result = self._feed.next()
        except BaseException as error:
            core.left()
            if isinstance(error, StopIteration):
                self._reporter.ended()
                self._finish()
            elif isinstance(error, KeyboardInterrupt):
                loader.close()
            raise
        self._note(task, result)
        if result.error is not None:
            core.left()
            raise result.error
        rows = self._rows(loader, task.index, result.value)
        # Where each worker has a state or a seed, their number stays.
        fixed = self._own or loader.random == "worker"
        adjusted = None if fixed else self._executor
        core.handed(task.number, rows, asked, begins=begins, result=result, adjusted=adjusted)
        loader._decisions.look(self._feed.exhausted)
        self._reporter.handed()
        if self._feed.exhausted and loader.persistent_workers:
            self._guess_next(loader)
        progress = self._progress
        if self._len_called is not None and self._kind == "iterable" and progress.yielded > self._len_called:
            warnings.warn(
                f"Length of IterableDataset {loader.dataset} was reported to be {self._len_called} (when "
                f"accessing len(dataloader)), but {progress.yielded} samples have been fetched. "
                + (_REPLICAS if loader.num_workers > 0 else ""),
                stacklevel=2,
            )
        if self._pin:
            device = torch.accelerator.current_accelerator()
            pin: Any = pin_memory.pin_memory
            return pin(result.value, None if device is None else device.type)
        return result.value

    def _rows(self, loader: DataLoader[Any], index: Any, batch: Any) -> int:
        """How many samples a batch has: as many as were asked for, where that is known."""
        if not loader._auto_collation and not isinstance(index, list):
            # Whoever asks for no batches has a data set that makes them.
            return rows_of(batch)
        asked = len(index)
        # The last batch of a stream may be short.
        return min(asked, rows_of(batch, asked)) if self._kind == "iterable" else asked

    def _note(self, task: Task, result: Result) -> None:
        """Counts a batch that is handed over; a failed one counts too, as with torch."""
        progress = self._progress
        progress.count(task.number, task.note)
        progress.handed += 1
        if progress.workers is not None:
            at = task.worker or 0
            worker = progress.workers[at]
            worker["all"] += 1
            if result.state is None:
                worker["batches"] += 1
            elif result.state["iterator"] is not None or result.state["dataset"] is not None:
                worker.update(state=result.state, batches=0)
            else:
                # There is no state to be had: only counting helps.
                worker["batches"] = worker["all"]
            progress.turn = (at + 1) % len(progress.workers)

    def _guess_next(self, loader: DataLoader[Any]) -> None:
        """Lets the workers begin with the next epoch while the program finishes this one."""
        if loader._guess is not None:
            loader._guess[1].fill(self._feed.pending)
            return
        executor = self._executor
        if executor is None or executor.name == "inline" or loader._resumed is not None:
            return
        if isinstance(executor, Contest):
            # All of this epoch is given out: there is nothing left to compare.
            executor.settle()
            if executor.winner is None:
                # Who makes the next epoch, and from which copy of the data set, is open.
                return
        if self._made_ahead or not loader._guesses or self._own or not is_known(loader):
            return
        self._made_ahead = True
        source = _source(loader, executor)
        if source is None:
            return
        with loader._draws.drawing():
            guess = Guess(loader, executor.capacity)
        guess.made_from = source
        progress = Progress("map", self._progress.base_seed, loader._round, guess.order, str)
        tasks = self._tasks(loader, _Ready(guess), progress)
        feed = _EpochFeed(
            executor,
            tasks,
            in_order=loader.in_order,
            timeout=loader.timeout,
            turns=loader.random == "worker" and executor.name == "processes",
        )
        feed.fill(self._feed.pending)
        loader._guess = guess, feed, executor

    def _finish(self) -> None:
        self._progress.finished = True
        if self._progress.order.is_stateful:
            # Where the sampler itself has come to its end.
            self._progress.own = self._progress.order.sampler_state()
        loader, self._loader = self._loader, None
        if loader is None:
            return
        loader._exhausted = True
        executor, self._executor = self._executor, None
        if loader._guess is not None:
            loader._guess[1].fill()
        elif executor is not None:
            loader._give_executor(executor)

    def _leave(self) -> None:
        """Gives the workers up before the epoch is over."""
        loader, self._loader = self._loader, None
        if loader is None or (self._executor is not None and self._executor.owner != os.getpid()):
            return
        if loader._guess is not None and loader._guess[2] is self._executor:
            loader._guess = None
        feed: Feed | None = getattr(self, "_feed", None)
        if feed is not None:
            feed.close()
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.forget()
            loader._give_executor(executor)

    def _shutdown_workers(self) -> None:
        """What programs call to end the workers of torch's iterator early."""
        self._leave()
        loader = self._maker()
        if loader is not None:
            loader._end_idle()

    def __reduce__(self) -> Any:
        # As torch: what is under way cannot be taken along.
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")

    def __del__(self) -> None:
        if getattr(self, "_loader", None) is not None:
            try:  # noqa: SIM105 - the interpreter may be going down, and contextlib gone
                self._leave()
            except Exception:
                pass


def _source(loader: DataLoader[Any], executor: Executor) -> Any:
    return made_from((loader.dataset, loader.collate_fn), copied=isinstance(executor, Processes))


def _holds(loader: DataLoader[Any], guess: tuple[Guess, Feed, Executor]) -> bool:
    """Whether what was made ahead is what would be made now."""
    return is_same(guess[0].made_from, _source(loader, guess[2])) and guess[0].holds()


def _helper(
    loader: DataLoader[Any], job: Job, executor: Executor
) -> Callable[[Task], tuple[Any, Any]] | None:
    """Makes batches in the program's own thread while the workers are still starting, where nobody
    could tell the difference: a sample that hangs would not be left after `timeout` seconds there."""
    visible = loader.random != "batch" or loader.worker_init_fn is not None or loader.timeout > 0
    if visible or not loader._core.helps(executor):
        return None
    assert loader._base_seed is not None
    return helper(dataclasses.replace(job, dataset=StandIn(job, loader._base_seed)), executor)


class _EpochFeed(Feed):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.progress: Progress | None = None
        self.given: dict[int, int] = {}

    def ended(self, task: Task, result: Result) -> None:
        if self.progress is not None and self.progress.workers is not None:
            row = self.progress.workers[task.worker or 0]
            row["ended"] = True
            if result.state is not None:
                row.update(state=result.state, batches=0)
            self.progress.count(task.number)

    def assigned(self, task: Task) -> None:
        """Batches of a stream are seeded by worker and count: how many numbers are given to workers
        that have ended already is a matter of chance."""
        progress = self.progress
        if progress is None or progress.kind != "iterable" or progress.workers is None or task.seed is None:
            return
        at = task.worker or 0
        count = self.given.setdefault(at, progress.workers[at]["all"])
        self.given[at] = count + 1
        task.seed = mixed(progress.base_seed, progress.round, at + 1, count)


class _Ready(SamplerOrder):
    """An order of which the first lists were drawn already."""

    def __init__(self, guess: Guess) -> None:
        self._guess, self._ready = guess, iter(list(guess.indices))
        self._sampler, self._iterator = guess.order._sampler, None

    def __next__(self) -> Any:
        try:
            return next(self._ready)
        except StopIteration:
            return self._guess.more()


def _chain(first: Task, rest: Iterator[Task]) -> Iterator[Task]:
    yield first
    yield from rest
