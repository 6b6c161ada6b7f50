"""Threads and processes that are measured against each other while they make the batches."""

from __future__ import annotations

import threading

import feedline
import numpy as np
import pytest
import torch
from comparison import WARNINGS, assert_same
from conftest import until
from feedline import _native
from feedline.torch import DataLoader
from feedline.torch.epoch import _Ready
from feedline.torch.order import Guess
from feedline.workers import Comparison, contest
from feedline.workers.executor import Result
from feedline.workers.job import Job, Task, Times
from torch.utils.data import RandomSampler

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]


def play(comparison, seconds, batches, rows=32):
    """Gives it batches whose samples take so many seconds of a worker's; returns who made them."""
    made = []
    for _ in range(batches):
        name = comparison.current
        made.append(name)
        comparison.made(name, rows, rows * seconds[name])
        if comparison.settled:
            break
    return made


@pytest.mark.parametrize(
    ("threads", "processes", "better"),
    [
        # Recorded: xarray over Dask over Zarr, two workers, 53 % of the time with the lock.
        (2 / 221, 2 / 172, "threads"),
        # Recorded: Pillow and torchvision, two workers.
        (2 / 94, 2 / 105, "processes"),
        # As fast as processes is not fast enough: the program needs the lock too.
        (2 / 100, 2 / 100, "processes"),
    ],
)
def test_the_better_one_makes_nearly_all_of_the_first_epoch(threads, processes, better):
    comparison = Comparison(2)
    made = play(comparison, {"threads": threads, "processes": processes}, 10_000)
    assert comparison.settled and comparison.current == better
    assert made[:8] == ["threads"] * 4 + ["processes"] * 4
    assert made.count(better) > 0.95 * len(made)


def test_a_better_one_that_becomes_slow_is_noticed_within_the_epoch():
    comparison = Comparison(2)
    play(comparison, {"threads": 0.01, "processes": 0.02}, 40)
    assert comparison.current == "threads" and not comparison.settled
    made = play(comparison, {"threads": 0.05, "processes": 0.02}, 40)
    assert made[-1] == comparison.current == "processes"


def test_batches_that_take_long_are_few_in_a_turn():
    made = play(Comparison(4), {"threads": 1.0, "processes": 2.0}, 6)
    assert made == ["threads"] * 2 + ["processes"] * 2 + ["threads"] * 2


class Fake:
    """Workers that answer at once, with recorded times."""

    broken, starting, workers = None, False, 2

    def __init__(self, name, seconds, capacity):
        self.name, self.seconds, self.capacity = name, seconds, capacity
        self.ready, self.sequence, self.closed, self.given = 0, 100, False, []

    def begin(self, begin):
        pass

    def submit(self, task):
        assert not self.closed
        self.sequence += 1
        self.given.append(task.number)
        return self.sequence

    def take(self, sequence):
        return Result((self.name, sequence), times=Times(self.seconds, 0.0, 0.0, 0.0, 0.0))

    def wait(self, seconds):
        return False

    def close(self):
        self.closed = True


def test_only_what_was_made_alone_is_evidence_and_the_loser_ends_with_its_last_batch():
    threads, processes = Fake("threads", 1.0, 2), Fake("processes", 9.0, 4)
    seen = []
    both = contest.Contest(threads, processes, lambda comparison: seen.append(str(comparison)))
    decisions = []
    both.comparison.made, decide = (
        lambda *evidence: decisions.append(evidence) or decide(*evidence),
        (both.comparison.made),
    )
    waiting = []
    for number in range(4000):
        waiting.append((number, both.submit(Task(number, [0] * 10))))
        while len(waiting) >= both.capacity:
            number_of, sequence = waiting.pop(0)
            result = both.take(sequence)
            assert result.value[0] == ("threads" if number_of in threads.given else "processes")
    assert both.winner is threads and processes.closed and not threads.closed
    assert sorted(threads.given + processes.given) == list(range(4000))
    # What each made while the other still had work says nothing.
    assert len([one for one in decisions if one[0] == "processes"]) < len(processes.given)
    assert {one[2] for one in decisions if one[0] == "processes"} == {9.0}
    assert seen[-1] == "2 samples/s with processes and 20 samples/s with threads"


def test_what_the_second_epoch_settles_is_reported():
    seen = []
    both = contest.Contest(Fake("threads", 9.0, 2), Fake("processes", 1.0, 4), seen.append)
    both.begin(None)
    both.comparison.rates = {"threads": 1.0, "processes": 9.0}
    both.begin(None)
    assert both.winner is not None and both.name == both.winner.name == "processes"
    assert [(one.current, one.settled) for one in seen] == [("processes", True)]
    both.begin(None)
    assert len(seen) == 1


class Troubled(Fake):
    """Processes that have a warning for the program, and refuse another job."""

    starting = True
    news = True

    def wait(self, seconds):
        if self.news:
            self.news = False
            raise RuntimeWarning("worker 0 is stopped")

    def renew(self, job, base_seed):
        raise feedline.WorkerError("cannot be sent")


class Renewed(Fake):
    renewed = False

    def renew(self, job, base_seed):
        self.renewed = True


def test_a_warning_that_is_an_error_loses_no_batch():
    both = contest.Contest(Fake("threads", 1.0, 2), Troubled("processes", 9.0, 4), lambda comparison: None)
    numbers = [both.submit(Task(number, [0] * 10)) for number in range(2)]
    with pytest.raises(RuntimeWarning, match="is stopped"):
        both.take(numbers[0])
    assert [both.take(number).value[0] for number in numbers] == ["threads"] * 2


def test_where_processes_refuse_a_job_threads_have_the_old_one_too():
    threads = Renewed("threads", 1.0, 2)
    both = contest.Contest(threads, Troubled("processes", 9.0, 4), lambda comparison: None)
    with pytest.raises(feedline.WorkerError, match="cannot be sent"):
        both.renew(Job(Mixed(), "map", list), 0)
    assert not threads.renewed


class Mixed(torch.utils.data.Dataset):
    def __init__(self, length=60):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, torch.rand(3), {"x": np.full(4, index)}


@pytest.fixture
def contested(monkeypatch):
    """Code that holds the lock for half of its time, and turns of one batch."""

    class Probe:
        def stop(self):
            return 100, 50

    monkeypatch.setattr(_native, "LockProbe", Probe)
    monkeypatch.setattr(contest, "_BATCHES", 1)
    monkeypatch.setattr(contest, "_SECONDS", 0.0)


def one_after_the_other(self, name, rate):
    self.rates[name] = rate
    self.current = "processes" if name == "threads" else "threads"


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"in_order": False}], ids=str)
def test_batches_are_the_same_whoever_has_the_turn(options, contested, monkeypatch):
    monkeypatch.setattr(Comparison, "_end_turn", one_after_the_other)
    monkeypatch.setattr(Comparison, "settle", lambda self: None)
    ours, expected = (
        DataLoader(
            Mixed(),
            batch_size=4,
            shuffle=True,
            num_workers=2,
            executor=executor,
            generator=torch.Generator().manual_seed(4),
            **options,
        )
        for executor in ("auto", "processes")
    )
    turns = set()

    def same_by_both():
        made = list(ours), list(expected)
        if "in_order" in options:
            made = tuple(sorted(epoch, key=str) for epoch in made)
        assert_same(*made)
        turns.update(ours._core._executor.comparison.rates)
        return len(turns) == 2

    until(same_by_both, "batches by both")
    ours.close()
    expected.close()


@pytest.mark.parametrize("better", ["threads", "processes"])
def test_the_winner_stays_and_is_named_with_the_figures(better, contested, monkeypatch):
    monkeypatch.setattr(contest, "_GAPS", (2,))
    monkeypatch.setattr(Comparison, "better", property(lambda self: better))
    loader = DataLoader(Mixed(400), batch_size=4, num_workers=2)
    before = threading.active_count()

    assert next(iter(loader))[0].tolist() == [0, 1, 2, 3]
    assert loader.stats()["executor"]["name"] == "threads"

    def settled():
        assert [batch[0].tolist() for batch in loader] == [[*range(n, n + 4)] for n in range(0, 400, 4)]
        return loader._core._executor.winner is not None

    until(settled, "an epoch in which both had their turns")
    about = loader.stats()["executor"]
    assert (
        about["name"] == loader._core._executor.name == better and "samples/s with threads" in about["reason"]
    )
    assert (loader._core._executor.winner is loader._core._executor._both.get("threads")) == (
        better == "threads"
    )
    assert settled()
    loader.close()
    until(lambda: threading.active_count() <= before, "the end of the threads")


def test_the_end_of_the_first_epoch_settles_so_that_the_next_one_is_made_ahead(contested):
    def both_had_their_turns():
        with_workers = {"num_workers": 2, "persistent_workers": True}
        loader = DataLoader(Mixed(1200), batch_size=4, **with_workers)
        assert [int(at) for batch in loader for at in batch[0]] == [*range(1200)]
        both = loader._core._executor
        if compared := len(both.comparison.rates) == 2:
            assert loader._guess is not None
            assert both.winner is not None and loader.stats()["executor"]["name"] == both.winner.name
        assert [int(at) for batch in loader for at in batch[0]] == [*range(1200)]
        loader.close()
        return compared

    until(both_had_their_turns, "a first epoch in which both had their turns")


def test_a_loader_of_a_data_set_compares_too(contested, monkeypatch):
    monkeypatch.setattr(Comparison, "_end_turn", one_after_the_other)
    with feedline.Loader(Mixed(), batch_size=4, num_workers=2) as loader:
        for _ in range(2):
            assert [np.asarray(batch[0]).tolist() for batch in loader] == [
                [*range(n, n + 4)] for n in range(0, 60, 4)
            ]


def test_nothing_is_made_ahead_while_both_take_turns(contested, monkeypatch):
    """Their room differs, and only processes have a copy of the data set."""
    monkeypatch.setattr(Comparison, "_end_turn", one_after_the_other)
    monkeypatch.setattr(Comparison, "settle", lambda self: None)
    loader = DataLoader(Mixed(), batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(3):
        assert [int(at) for batch in loader for at in batch[0]] == [*range(60)]
        assert loader._core._executor.winner is None and loader._guess is None
    loader.close()


@pytest.mark.parametrize("replacement", [False, True])
def test_what_is_drawn_beyond_a_guess_comes_once(replacement):
    """The room may grow between the guess and the next epoch."""

    def made():
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(range(90), replacement=replacement, generator=generator)
        return DataLoader(range(90), batch_size=4, sampler=sampler, num_workers=1)

    loader, expected = made(), list(made()._index_sampler)
    guess = Guess(loader, 2)
    ready = _Ready(guess)
    lists = [next(ready) for _ in range(5)]
    if guess.holds():
        lists += ready
    else:
        # Later lists depend on what was drawn in between: that guess is dropped.
        assert replacement
        lists = list(loader._index_sampler)
    assert lists == expected
