"""What the program learns while it trains: stats, a line for each epoch, one warning."""

from __future__ import annotations

import gc
import logging
import pickle
import re
import time
import weakref

import feedline
import numpy
import pytest
import torch
from conftest import until
from feedline import _native
from feedline.observe import report as observe_report
from feedline.observe.counters import Counters
from feedline.observe.live import Live
from feedline.torch import DataLoader

LINE = re.compile(r"epoch (\d+): ([\d,]+) samples, ([\d,]+)/s, trainer waited ([\d.]+) %, next limit: (.+)")


@pytest.fixture(autouse=True)
def _unwarned(monkeypatch):
    """A program of its own for each test."""
    monkeypatch.setattr(observe_report, "_warned_of", set())


class Slow(torch.utils.data.Dataset):
    """Samples that take 2 ms without a core."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(0.002)
        return numpy.full((4, 4), index, numpy.float32)


def native(**settings):
    arrays = {"image": numpy.zeros((96, 8, 8, 3), numpy.uint8), "label": numpy.arange(96)}
    return feedline.Loader(arrays, batch_size=8, **settings)


def code(**settings):
    return feedline.Loader(Slow(), batch_size=8, num_workers=2, **settings)


def as_torch(**settings):
    return DataLoader(Slow(), batch_size=8, num_workers=2, **settings)


LOADERS = {
    "native": native,
    "threads": lambda: code(executor="threads"),
    "processes": lambda: code(executor="processes"),
    "inline": lambda: feedline.Loader(Slow(), batch_size=8, num_workers=0),
    "torch": as_torch,
    "torch, processes": lambda: as_torch(executor="processes"),
    "torch, no workers": lambda: DataLoader(Slow(), batch_size=8),
}


@pytest.mark.parametrize("name", LOADERS)
def test_each_epoch_is_reported_in_a_line(name, caplog):
    loader = LOADERS[name]()
    with caplog.at_level(logging.INFO, "feedline"):
        for _ in range(2):
            for _ in loader:
                time.sleep(0.001)
    lines = [LINE.fullmatch(record.message) for record in caplog.records]
    reported = [line for line in lines if line]
    assert [line[1] for line in reported] == ["0", "1"]
    assert [line[2] for line in reported] == ["96", "96"]
    assert all(float(line[4]) <= 100 for line in reported)
    if name != "native":
        assert all(line[5] == "your code" for line in reported)
    stats = loader.stats()
    assert stats["batches"] == 24 and stats["samples"] == 192
    assert stats["wait_seconds"] >= 0 and stats["step_seconds"] > 0.015
    assert 0 < stats["wait_p50_seconds"] <= stats["wait_p99_seconds"] <= stats["longest_wait_seconds"]
    assert stats["queue"] is None or 0 <= stats["queue"]["ready"] <= stats["queue"]["most"]
    assert stats["first_batch_seconds"] <= stats["longest_wait_seconds"] + 1e-6
    if name != "native":
        assert stats["seconds_per_sample"]["your code"] >= 0.0019
    loader.close()


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("end", ["end", "break"])
def test_epochs_that_are_left_early_are_reported_and_warned_of(name, end, caplog, monkeypatch):
    monkeypatch.setattr(observe_report, "_LEAST_SECONDS", 0.0)
    loader = LOADERS[name]()
    with caplog.at_level(logging.INFO, "feedline"):
        for _ in range(3):
            for number, _ in enumerate(loader):
                if number == 9 and end == "break":
                    break
        loader.close()
    reported = [line for line in (LINE.fullmatch(record.message) for record in caplog.records) if line]
    assert [line[1] for line in reported] == ["0", "1", "2"]
    assert {line[2] for line in reported} == {"96" if end == "end" else "80"}
    if name != "native":
        assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1


@pytest.mark.parametrize("name", ["threads", "torch", "torch, processes"])
def test_waiting_is_warned_of_once_with_the_reason(name, caplog, monkeypatch):
    monkeypatch.setattr(observe_report, "_LEAST_SECONDS", 0.0)
    loader = LOADERS[name]()
    for _ in range(3):
        for _ in loader:
            pass
    loader.close()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, [record.message for record in warnings]
    assert warnings[0].name == "feedline"
    assert re.match(r"The trainer waited \d+ % of the time\. Cause: ", warnings[0].message)
    sentences = warnings[0].message.split(". ")
    assert len(set(sentences)) == len(sentences), "nothing is said twice"


def warnings_of(caplog):
    return [record for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("name", ["inline", "torch, no workers"])
def test_a_loader_that_is_made_anew_is_not_warned_of_again(name, caplog, monkeypatch):
    monkeypatch.setattr(observe_report, "_LEAST_SECONDS", 0.0)
    for _ in range(2):
        loader = LOADERS[name]()
        for _ in loader:
            pass
        loader.close()
    assert len(warnings_of(caplog)) == 1
    # With another setting it may wait for another reason.
    other = DataLoader(Slow(), batch_size=4)
    for _ in other:
        pass
    assert len(warnings_of(caplog)) == 2


def test_one_process_of_a_machine_tells(caplog, monkeypatch):
    monkeypatch.setattr(observe_report, "_LEAST_SECONDS", 0.0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    loader = LOADERS["inline"]()
    with caplog.at_level(logging.DEBUG, "feedline"):
        for _ in loader:
            pass
    reported = [record for record in caplog.records if "trainer waited" in record.message.lower()]
    assert [record.levelno for record in reported] == [logging.DEBUG] * 2
    loader.close()


def test_a_long_epoch_is_warned_of_before_its_end(caplog, monkeypatch):
    monkeypatch.setattr(observe_report, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(observe_report, "_PAUSE", 0.0)
    loader = code(executor="threads")
    for number, _ in enumerate(loader):
        if number == 10:
            break
    assert any(record.levelno == logging.WARNING for record in caplog.records)
    loader.close()


def test_a_trainer_that_never_waits_is_left_in_peace(caplog, monkeypatch):
    monkeypatch.setattr(observe_report, "_LEAST_SECONDS", 0.0)
    loader = native(num_workers=1)
    for _ in range(2):
        for _ in loader:
            # A step that lasts until the next batch is there, the next epoch's too, and then some.
            until(lambda: loader.stats()["queue"]["ready"])
            time.sleep(0.02)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    stats = loader.stats()
    assert stats["wait_seconds"] - stats["first_batch_seconds"] < stats["step_seconds"] / 4


def test_a_short_use_is_no_reason_to_warn(caplog):
    loader = code(executor="threads")
    assert len(list(loader)) == 12
    loader.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("batches", [1, 2, 12])
@pytest.mark.parametrize("name", ["native", "threads", "inline", "torch"])
def test_the_last_step_of_an_epoch_counts(name, batches, caplog):
    rows = 96 // batches
    made = {
        "native": lambda: feedline.Loader({"x": numpy.arange(96)}, batch_size=rows),
        "threads": lambda: feedline.Loader(list_of(96), batch_size=rows, executor="threads", num_workers=1),
        "inline": lambda: feedline.Loader(list_of(96), batch_size=rows, num_workers=0),
        "torch": lambda: DataLoader(list_of(96), batch_size=rows),
    }
    loader = made[name]()
    began = time.monotonic()
    with caplog.at_level(logging.INFO, "feedline"):
        for _ in range(3):
            for _ in loader:
                time.sleep(0.01)
    passed = time.monotonic() - began
    stats = loader.stats()
    assert stats["step_seconds"] >= 3 * batches * 0.01
    # No step is counted as a wait, too.
    assert stats["wait_seconds"] + stats["step_seconds"] <= passed
    lines = [LINE.fullmatch(record.message) for record in caplog.records]
    rates = [int(line[3].replace(",", "")) for line in lines if line]
    # A step takes 10 ms at least: nobody can be faster than that.
    assert len(rates) == 3 and all(rate <= rows / 0.01 for rate in rates), rates
    loader.close()


def list_of(length):
    return torch.utils.data.StackDataset(numpy.arange(length))


def test_an_epoch_whose_end_nobody_asks_for_is_reported_with_the_next(caplog):
    loader = native()
    with caplog.at_level(logging.INFO, "feedline"):
        for _ in range(3):
            iterator = iter(loader)
            for _ in range(12):
                next(iterator)
    reported = [record.message for record in caplog.records if LINE.fullmatch(record.message)]
    assert [line.split(":")[0] for line in reported] == ["epoch 0", "epoch 1"]
    with caplog.at_level(logging.INFO, "feedline"):
        assert next(iterator, None) is None and next(iterator, None) is None
    assert sum("epoch 2:" in record.message for record in caplog.records) == 1


def test_many_short_epochs_are_a_reason_to_warn(caplog, monkeypatch):
    monkeypatch.setattr(observe_report, "_LEAST_SECONDS", 0.0)
    eight = torch.utils.data.Subset(Slow(), range(8))
    loader = feedline.Loader(eight, batch_size=8, num_workers=0)
    for _ in range(12):
        for _ in loader:
            pass
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1
    loader.close()


def test_what_happens_between_epochs_is_no_step():
    for name in ("native", "threads", "torch"):
        loader, passed = LOADERS[name](), 0.0
        for _ in range(2):
            began = time.monotonic()
            for _ in loader:
                pass
            passed += time.monotonic() - began
            time.sleep(0.3)
        stats = loader.stats()
        assert stats["wait_seconds"] + stats["step_seconds"] <= passed, name
        loader.close()


def test_reporting_keeps_no_loader_alive():
    for name in ("native", "threads", "torch"):
        loader = LOADERS[name]()
        assert len(list(loader)) == 12
        gone = weakref.ref(loader)
        del loader
        gc.collect()
        assert gone() is None, name


def test_a_pickled_torch_loader_counts_anew():
    loader = DataLoader(Slow(), batch_size=8)
    assert len(list(loader)) == 12
    again = pickle.loads(pickle.dumps(loader))
    assert again.stats()["batches"] == 0
    assert len(list(again)) == again.stats()["batches"] == 12


def test_evidence_that_is_none_is_refused():
    with pytest.raises(RuntimeError, match="no evidence"):
        _native.judge('{"batches": "many"}')


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_dies_with_its_last_name(name):
    loader = LOADERS[name]()
    # All batches, without asking for the end.
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    gone = weakref.ref(loader)
    gc.collect()
    gc.disable()
    try:
        del loader, batches
        assert gone() is None, gc.get_referrers(gone())
    finally:
        gc.enable()


class Rotten(Slow):
    def __getitem__(self, index):
        if index % 4 == 0:
            raise ValueError("rotten")
        return super().__getitem__(index)


def test_a_wait_ends_with_its_failure():
    loader = feedline.Loader(Rotten(), batch_size=8, num_workers=0, on_error="skip", max_failures=1)
    with pytest.raises(feedline.TooManyFailuresError):
        next(iter(loader))
    assert loader.stats()["waiting_seconds"] is None


def test_a_wait_may_end_while_it_is_looked_at():
    asked = [None, 1.0]

    class Handed(Counters):
        """The batch is handed over after the first look."""

        _asked = property(lambda self: asked.pop(), lambda self, value: None)

    assert Handed().waiting > 0.0


def test_an_epoch_that_has_just_begun_is_no_reason_to_warn(caplog, monkeypatch):
    monkeypatch.setattr(observe_report, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(observe_report, "_PAUSE", 0.0)
    for name in ("native", "threads", "torch"):
        loader = LOADERS[name]()
        # No wait is too much in the first epochs, and any is in the ones that are left at once.
        monkeypatch.setattr(observe_report, "_TOO_MUCH", 1.0)
        for _ in range(2):
            for _ in loader:
                pass
        monkeypatch.setattr(observe_report, "_TOO_MUCH", 0.0)
        for _ in range(12):
            next(iter(loader))
        loader.close()
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]


class Ten(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(numpy.arange(10))


class Chunks(torch.utils.data.IterableDataset):
    """A stream of batches."""

    def __iter__(self):
        return iter([{"x": numpy.zeros((size, 2)), "y": numpy.zeros(size)} for size in (4, 4, 2)])


BY_FOUR = torch.utils.data.BatchSampler(range(10), 4, False)


@pytest.mark.parametrize(
    ("make", "batches"),
    [
        (lambda: DataLoader(Ten(), batch_size=8), 2),
        (lambda: DataLoader(Ten(), batch_size=8, num_workers=1), 2),
        (lambda: feedline.Loader(Ten(), batch_size=8, num_workers=0), 2),
        (lambda: feedline.Loader(Ten(), batch_size=8, num_workers=1), 2),
        (lambda: DataLoader(Chunks(), batch_size=None), 3),
        (lambda: DataLoader(list_of(10), batch_sampler=BY_FOUR), 3),
        (lambda: DataLoader(list_of(10), batch_size=None, sampler=BY_FOUR), 3),
    ],
)
def test_samples_that_were_handed_over_are_counted(make, batches):
    loader = make()
    for _ in loader:
        pass
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (batches, 10)
    loader.close()


def test_the_size_of_batches_that_another_makes_is_known(monkeypatch):
    live = []

    def seen_live(name, size, quarantine=None):
        live.append(size)
        return Live(name, size, quarantine)

    monkeypatch.setattr("feedline.code.core.Live", seen_live)
    loader = DataLoader(list_of(12), batch_sampler=torch.utils.data.BatchSampler(range(12), 4, False))
    assert len(list(loader)) == 3
    seen = {}
    monkeypatch.setattr(loader._core.counters, "report", lambda before, **about: seen.update(about))
    loader._core.report_since({})
    assert seen["batch_size"] == 4.0 and live == [4]
    loader.close()


def test_all_loaders_have_the_same_stats():
    loaders = [
        feedline.Loader(numpy.arange(10), batch_size=5, num_workers=1),
        feedline.Loader(Ten(), batch_size=5, num_workers=1),
        DataLoader(Ten(), batch_size=5, num_workers=1),
    ]
    for loader in loaders:
        assert len(list(loader)) == 2
    native, *code = [loader.stats() for loader in loaders]
    for stats in code:
        assert stats.keys() == native.keys()
        for part in ("workers", "tuning"):
            assert stats[part].keys() == native[part].keys(), part
        assert stats["workers"]["samples_made"] == 10
    for loader in loaders:
        loader.close()


def test_a_loader_of_torch_has_no_methods_but_those_of_its_users():
    ours = {name for name in vars(DataLoader) if not name.startswith("_")}
    assert ours == {"state_dict", "load_state_dict", "stats", "freeze", "close"}
