"""A loader that adjusts itself: the same batches, reported decisions, and settings that can be kept."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from feedline import _native
from feedline.bench.feed import _for_workers
from feedline.torch import DataLoader
from torch.utils.data import IterableDataset

RECIPE: dict[str, Any] = {
    "transforms": [{"op": "RandomResizedCrop", "size": 16}],
    "batch_size": 6,
    "shuffle": True,
    "seed": 5,
}


def rows(batch: feedline.Batch) -> tuple[bytes, bytes]:
    return batch["image"].tobytes(), batch["label"].tobytes()


def test_auto_makes_the_same_batches(photos: Path) -> None:
    one = feedline.Loader(photos, **RECIPE, num_workers=1)
    expected = [rows(batch) for _ in range(4) for batch in one]
    loader = feedline.Loader(photos, **RECIPE)
    assert 1 <= loader.num_workers <= len(os.sched_getaffinity(0))
    assert [rows(batch) for _ in range(4) for batch in loader] == expected
    assert loader.stats()["tuning"]["auto"]


@pytest.mark.live
def test_auto_makes_the_same_batches_and_tells_what_it_changes(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = feedline.Loader(photos, **RECIPE, num_workers=1)
    expected = [rows(batch) for _ in range(4) for batch in one]
    loader = feedline.Loader(photos, **RECIPE)
    cores = len(os.sched_getaffinity(0))
    assert 1 <= loader.num_workers <= cores
    found, begun = [], time.monotonic()
    with caplog.at_level(logging.INFO, logger="feedline"):
        # A loaded machine has a minute to see that one worker does.
        while len(found) < 20 or (loader.num_workers > 1 and time.monotonic() - begun < 60):
            for batch in loader:
                found.append(rows(batch))
                time.sleep(0.02)
    assert found[:20] == expected
    tuning = loader.stats()["tuning"]
    assert tuning["auto"] and tuning["num_workers"] == loader.num_workers == 1
    assert "1 workers" in repr(loader)
    logged = [record for record in caplog.records if record.message.startswith("auto: ")]
    assert len(logged) == len(tuning["decisions"])
    assert all(record.name == "feedline" and record.levelno == logging.INFO for record in logged)
    if tuning["most_workers"] > 1:
        lowered = [one for one in tuning["decisions"] if one["setting"] == "num_workers"]
        assert lowered[0]["to"] < lowered[0]["from"] and lowered[0]["reason"]
        assert f"num_workers {lowered[0]['from']} -> {lowered[0]['to']}" in caplog.text


def test_frozen_settings_are_run_as_they_are(photos: Path, tmp_path: Path) -> None:
    loader = feedline.Loader(photos, **RECIPE)
    expected = [rows(batch) for batch in loader]
    for name in ("frozen.toml", "frozen.json"):
        file = tmp_path / name
        loader.freeze(file)
        again = feedline.Loader.from_spec(file)
        assert again.num_workers == loader.num_workers
        assert again.spec["prefetch_factor"] >= 1
        tuning = again.stats()["tuning"]
        assert not tuning["auto"] and tuning["decisions"] == []
        assert [rows(batch) for batch in again] == expected
    text = (tmp_path / "frozen.toml").read_text()
    assert text.index("# ") < text.index("num_workers = ")
    assert f'source = "{photos.absolute()}"' in text
    with pytest.raises(FileNotFoundError):
        loader.freeze(tmp_path / "none" / "frozen.toml")


def test_arrays_are_given_again(arrays: tuple[Any, Any], tmp_path: Path) -> None:
    loader = feedline.Loader(arrays, batch_size=8, num_workers=2)
    expected = [batch["1"].tolist() for batch in loader]
    loader.freeze(tmp_path / "arrays.toml")
    again = feedline.Loader.from_spec(tmp_path / "arrays.toml", source=arrays)
    assert again.num_workers == 2
    assert [batch["1"].tolist() for batch in again] == expected


class Squares:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return np.float32(index * index)


def test_python_code_says_that_it_is_fixed(tmp_path: Path) -> None:
    loader = feedline.Loader(Squares(), batch_size=4, num_workers=2, executor="threads")
    assert sum(len(batch) for batch in loader) == 12
    tuning = loader.stats()["tuning"]
    assert not tuning["auto"] and tuning["num_workers"] == 2 and "stay as they are" in tuning["reason"]
    loader.freeze(tmp_path / "code.toml")
    text = (tmp_path / "code.toml").read_text()
    assert "Loader(my_dataset" in text
    settings: dict[str, Any] = {"num_workers": 2, "executor": "threads"}
    assert all(f"{key} = {json.dumps(value)}\n" in text for key, value in settings.items())
    again = feedline.Loader(Squares(), batch_size=4, **settings)
    assert again.num_workers == 2
    loader.freeze(tmp_path / "code.json")
    assert json.loads((tmp_path / "code.json").read_text()) == settings
    again.close()
    loader.close()


def test_a_file_of_settings_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "code.json", tmp_path / "link.json"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    loader = feedline.Loader(Squares(), batch_size=4, num_workers=0)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            loader.freeze(link)
    assert file.read_text() == "old"
    loader.freeze(link)
    assert json.loads(file.read_text()) == {"num_workers": 0}
    assert file.stat().st_mode & 0o777 == 0o640 and link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [file, link], "nothing is left behind"
    planted, precious = tmp_path / f"code.json.{os.getpid()}.partial", tmp_path / "precious"
    planted.symlink_to(precious)
    loader.freeze(link)
    assert not precious.exists(), "nothing is written through a link that could be guessed"
    planted.unlink()
    link.unlink()
    os.mkfifo(link)
    reader = os.open(link, os.O_RDONLY | os.O_NONBLOCK)
    loader.freeze(link)
    assert link.is_fifo() and json.loads(os.read(reader, 1000)) == {"num_workers": 0}
    os.close(reader)
    loader.close()


class Many(Squares):
    """Epochs that are long beside their beginning, when workers take the data set over."""

    def __len__(self) -> int:
        return 200


class SlowTrainer:
    """The controller, with a clock of its own: each batch is one second of a trainer that hardly waits."""

    def __init__(self, workers: int, prefetch: int) -> None:
        self._real = CONTROLLER(workers, prefetch)

    def look(
        self, _seconds: float, batches: int, samples: int, _wait: float, _step: float, _busy: float
    ) -> tuple[int, float]:
        wanted, _due = self._real.look(batches, batches, samples, 0.0005 * batches, batches, 0.01 * batches)
        return wanted, 0.0

    def tuning(self) -> str:
        return self._real.tuning()

    def decisions(self, seen: int) -> tuple[int, str]:
        return self._real.decisions(seen)


CONTROLLER = _native.Controller


def train_until_one_does(loader: Any, expected: list[Any], seconds: float = 0.0, step: float = 0.0) -> None:
    """Epochs of the same batches until one worker works."""
    begun, rounds = time.monotonic(), 0
    while rounds < 2 or (loader.stats()["workers"]["number"] > 1 and time.monotonic() - begun < seconds):
        found = []
        for batch in loader:
            found.append(batch.tolist())
            time.sleep(step)
        assert found == expected
        rounds += 1
    tuning = loader.stats()["tuning"]
    assert tuning["auto"] and tuning["num_workers"] == loader.stats()["workers"]["number"] == 1


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_workers_that_run_python_code_come_down_too(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "Controller", SlowTrainer)
    expected = [batch.tolist() for batch in feedline.Loader(Many(), batch_size=4, num_workers=1)]
    with feedline.Loader(Many(), batch_size=4, executor=executor) as loader:
        train_until_one_does(loader, expected)
        assert loader.num_workers == 1


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_torch_style_auto_adjusts_workers(
    caplog: pytest.LogCaptureFixture, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "Controller", SlowTrainer)
    one: Any = DataLoader(Many(), batch_size=4, num_workers=1, executor=executor)
    expected = [batch.tolist() for batch in one]
    loader: Any = DataLoader(Many(), batch_size=4, num_workers="auto", executor=executor)
    assert loader.num_workers == _native.auto_workers()
    with caplog.at_level(logging.INFO, logger="feedline"):
        train_until_one_does(loader, expected)
    logged = [record.message for record in caplog.records if record.message.startswith("auto: ")]
    if loader.num_workers > 1:
        assert any(f"auto: num_workers {loader.num_workers} -> " in line for line in logged), logged
        assert loader._idle.active == 1, "the others rest"
    loader.close()
    one.close()


@pytest.mark.live
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("kind", [feedline.Loader, DataLoader])
def test_workers_come_down_by_what_was_measured(kind: Any, executor: str) -> None:
    expected = [batch.tolist() for batch in feedline.Loader(Many(), batch_size=4, num_workers=1)]
    # Handing a batch over from a process takes up to 0.7 ms where cores sleep in between, and a trainer
    # that waits more than 0.5 % of the time keeps its workers.
    step = 0.02 if executor == "threads" else 0.3
    auto = {"num_workers": "auto"} if kind is DataLoader else {}
    loader = kind(Many(), batch_size=4, executor=executor, **auto)
    train_until_one_does(loader, expected, 60, step)
    loader.close()


def test_torch_style_settings_are_frozen(tmp_path: Path) -> None:
    loader: Any = DataLoader(Many(), batch_size=4, num_workers="auto", executor="threads")
    next(iter(loader))
    loader.freeze(tmp_path / "found.json")
    settings = json.loads((tmp_path / "found.json").read_text())
    assert settings["num_workers"] == loader.stats()["workers"]["number"]
    assert settings["executor"] == "threads"
    again: Any = DataLoader(Many(), batch_size=4, **settings)
    assert not again.stats()["tuning"]["auto"]
    loader.freeze(tmp_path / "found.toml")
    assert "DataLoader(my_dataset, ..., **tomllib" in (tmp_path / "found.toml").read_text()
    for one in (loader, feedline.Loader({"x": np.arange(4)})):
        with pytest.raises(ValueError, match=r"must end in \.toml or \.json"):
            one.freeze(tmp_path / "found.yaml")
    loader.close()


def test_torch_style_auto_shares_the_cores_and_keeps_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(_native.cores()))
    assert DataLoader(Many(), num_workers="auto").num_workers == 1
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    # What a worker's share or seed goes into must not depend on how many cores there are.
    for dataset, more in ((Stream(), {}), (Many(), {"random": "worker"})):
        with pytest.warns(UserWarning, match="'auto' is 1 here"):
            loader: Any = DataLoader(dataset, num_workers="auto", **more)  # type: ignore[arg-type]
        assert loader.num_workers == 1


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


class Counting(Squares):
    """A data set with a state, which each worker has."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_torch_style_auto_says_what_stays() -> None:
    with pytest.warns(UserWarning, match="'auto' is 1 here: each worker has its own state"):
        loader: Any = DataLoader(Counting(), batch_size=4, num_workers="auto", executor="processes")
    assert loader.stats()["tuning"]["auto"]
    assert sum(len(batch) for batch in loader) == 12
    tuning = loader.stats()["tuning"]
    assert not tuning["auto"] and tuning["num_workers"] == 1
    assert "state" in tuning["reason"] and "stay as they are" in tuning["reason"]
    loader.close()
    given: Any = DataLoader(Squares(), batch_size=4, num_workers=2)
    assert not given.stats()["tuning"]["auto"] and given.stats()["workers"]["number"] == 2
    with pytest.raises(TypeError):
        # As torch's.
        DataLoader(Squares(), num_workers="many")  # type: ignore[arg-type]


def test_bench_counts_cores_as_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    # A quota leaves fewer than the affinity has.
    monkeypatch.setattr(_native, "auto_workers", lambda: 77)
    assert _for_workers({"num_workers": "auto"}, "torch") == {"num_workers": 77}
    assert _for_workers({}, "feedline.torch") == {"num_workers": 77}
    assert _for_workers({"num_workers": "auto"}, "feedline.torch") == {"num_workers": "auto"}
