"""`feedline bench` over data sets, loaders and training steps of a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from feedline.bench import cost, feed
from feedline.bench.target import TargetError
from feedline.deliver.batch import rows_of

#: What needs no torch, which takes long to import in each of a benchmark's processes.
LIGHT = """
import os
import sys
import time

import feedline
import numpy as np


class Numbers:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return np.full(3, index, np.float32), index


class Slow(Numbers):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)


class SlowAtHome(Slow):
    # Leaves worker processes time to start: until then, the program makes its batches itself.

    def __init__(self):
        self.home = os.getpid()

    def __getitem__(self, index):
        if os.getpid() == self.home:
            time.sleep(0.2)
        return super().__getitem__(index)


def make_dataset():
    return Numbers()


class Unlucky(Numbers):
    def __init__(self):
        # One more look at it in each process; the fourth (one looks, then come the runs) fails.
        with open("looks", "a") as looks:
            looks.write("x")
        with open("looks") as looks:
            self.fails = len(looks.read()) > 3

    def __getitem__(self, index):
        if self.fails:
            raise RuntimeError("out of luck")
        return super().__getitem__(index)


class Endless:
    def __iter__(self):
        while True:
            yield np.zeros(3, np.float32)


def loader_of_a_stream():
    return feedline.Loader(Endless(), batch_size=4, num_workers=0)


def leave():
    sys.exit(3)


def needs(path):
    return None


def nothing():
    pass


seven = 7
"""

PROGRAM = """
import ctypes
import os
import signal
import sys
import time

import light
import numpy as np
import torch
from light import seven
from torch.utils.data import DataLoader, Dataset


class Numbers(light.Numbers, Dataset):
    pass


class Loud(Numbers):
    def __getitem__(self, index):
        # Anything, also what looks like an answer, and without an end of line.
        print('{"failed": "a lie"}', end="")
        print("noise " * 50, file=sys.stderr)
        return super().__getitem__(index)


class Broken(Numbers):
    def __getitem__(self, index):
        raise ValueError("sample 7 is rotten")


class Signalled(Numbers):
    # Interrupts whatever the threads of its process wait for, as the end of a child does.

    def __getitem__(self, index):
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        for thread in os.listdir("/proc/self/task"):
            ctypes.CDLL(None).tgkill(os.getpid(), int(thread), signal.SIGUSR1)
        time.sleep(0.005)
        return super().__getitem__(index)


def make_dataset():
    return Numbers()


def make_loader():
    return DataLoader(Numbers(), batch_size=8, num_workers=1, shuffle=True)


def batches():
    for number in range(5):
        yield {"x": torch.zeros(4, 2), "name": ["a"] * 4}


def step(batch):
    x, y = batch
    assert x.shape[1] == 3 and x.dtype == torch.float32
    time.sleep(0.02)
"""
TINY = ("--epochs", "2", "--batches", "3", "--repeats", "1", "--batch-size", "8")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "light.py").write_text(LIGHT)
    (folder / "train.py").write_text(PROGRAM)
    (folder / "random-name.py").write_text(PROGRAM)
    return folder


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "feedline", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)


def result(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = bench(folder, *arguments, "--json")
    assert done.returncode == code, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_data_set_in_every_loader(program: Path) -> None:
    found = result(program, "train:make_dataset", *TINY)
    names = [one["name"] for one in found["configurations"]]
    assert names[0] == "torch, no workers" and names[-2:] == ["feedline.torch.DataLoader", "feedline.Loader"]
    assert len(names) == 5 and len(found["ranking"]) == 5 and found["best"] in names
    for one in found["configurations"]:
        assert one["error"] is None, one["error"]
        run = one["runs"][0]
        assert (run["batches"], run["samples"]) == (6, 48), one["name"]
        assert len(run["turnovers"]) == 1 and run["peak_memory"] > 1e6
    evidence = [one["runs"][0]["evidence"] for one in found["configurations"]]
    assert evidence[0]["executor"] == "inline" and evidence[0]["workers"] == 0
    assert evidence[1]["executor"] == "torch" and evidence[1]["workers"] >= 1
    assert evidence[3]["executor"] in ("threads", "processes")
    stages = [stage["name"] for stage in evidence[0]["stages"]]
    assert stages == ["__getitem__", "collate"]


def test_one_of_which_a_run_failed_is_no_best(program: Path) -> None:
    arguments = ("--loaders", "feedline", "--epochs", "2", "--repeats", "3", "--batch-size", "8")
    found = result(program, "light:Unlucky", *arguments, code=1)
    (only,) = found["configurations"]
    assert len(only["runs"]) == 2 and "run 3 of 3 failed" in only["error"] and "out of luck" in only["error"]
    assert only["summary"] is None and found["ranking"] == [] and found["best"] is None


def test_the_line_for_a_program_makes_the_loader_that_was_measured(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--transform", "Resize(size=[24, 32])", "--set", "decode.mode=gray", "--shuffle")
    one = ("--config", "workers=1,cache=encoded", "--epochs", "2", "--repeats", "1")
    found = result(tmp_path, str(photos), *one, *flags, "--batch-size", "2")
    loader = eval(found["use"][-1], {"feedline": feedline})
    spec = loader.spec
    assert (spec["batch_size"], spec["num_workers"], spec["shuffle"]) == (2, 1, True)
    assert spec["cache"]["hold"] == "encoded"
    assert next(iter(loader))["image"].shape == (2, 1, 24, 32)
    # Photos have any size: without the crop that was measured there would be no batch.
    found = result(tmp_path, str(photos), *one)
    loader = eval(found["use"][-1], {"feedline": feedline})
    assert next(iter(loader))["image"].shape[1:] == (3, 224, 224)
    # A spec stays a spec, whatever its name.
    name = "it's a spec.toml"
    crop = '[[transforms]]\nop = "CenterCrop"\nsize = 16\n'
    Path(name).write_text(f'source = "{photos}"\nbatch_size = 3\n{crop}')
    found = result(tmp_path, name, "--config", "workers=0", "--epochs", "1", "--repeats", "1")
    loader = eval(found["use"][-1], {"feedline": feedline})
    assert loader.spec["num_workers"] == 0
    assert next(iter(loader))["image"].shape == (3, 3, 16, 16)


def test_a_loader_as_it_is(program: Path) -> None:
    found = result(program, "train.py:make_loader", "--epochs", "2", "--repeats", "1")
    assert [one["name"] for one in found["configurations"]] == ["as it is", "feedline.torch.DataLoader"]
    for one in found["configurations"]:
        assert one["error"] is None, one["error"]
        assert (one["runs"][0]["batches"], one["runs"][0]["samples"]) == (16, 128)
        assert one["runs"][0]["evidence"]["workers"] == 1
    generator = result(program, "random-name.py:batches", "--epochs", "2", "--repeats", "1")
    (only,) = generator["configurations"]
    assert only["error"] is None and only["runs"][0]["samples"] == 40


def test_a_stream_without_a_length(program: Path) -> None:
    found = result(program, "light:loader_of_a_stream", "--epochs", "1", "--batches", "5", "--repeats", "1")
    (only,) = found["configurations"]
    assert only["error"] is None and only["runs"][0]["samples"] == 20


def test_a_grid_of_loaders_and_executors(program: Path) -> None:
    grid = ("--loaders", "feedline.torch", "--executors", "threads,processes", "--workers", "1")
    found = result(program, "train:Numbers", *TINY, *grid, "--config", "loader=torch,executor=threads")
    executors = [one["runs"] and one["runs"][0]["evidence"]["executor"] for one in found["configurations"]]
    assert executors == ["threads", "processes", []]
    assert "executor is for feedline's loaders" in found["configurations"][2]["error"]


TIMELINES = {
    "loader=feedline.torch,workers=2,executor=threads": 2,
    "loader=feedline.torch,workers=2,executor=processes": 2,
    "loader=feedline,workers=2,executor=threads": 2,
    "loader=feedline,workers=2,executor=processes": 2,
    "loader=torch,workers=2": 2,
    "loader=torch,workers=0": 0,
}


@pytest.fixture(scope="module")
def timelines(program: Path) -> dict[str, list[dict[str, Any]]]:
    """The events of each of them, which two benchmarks measure."""
    found: dict[str, list[dict[str, Any]]] = {}
    long = ("--epochs", "2", "--batches", "20", "--repeats", "1", "--batch-size", "8")
    for data in ("light:Slow", "light:SlowAtHome"):
        names = [name for name in TIMELINES if ("processes" in name) == (data == "light:SlowAtHome")]
        configs = [flag for name in names for flag in ("--config", name)]
        result(program, data, *configs, "--train-step", "1ms", *long, "--trace", "trace.json")
        events = json.loads((program / "trace.json").read_text())["traceEvents"]
        for number, name in zip(sorted({one["pid"] for one in events}), names, strict=True):
            found[name] = [one for one in events if one["pid"] == number]
    return found


@pytest.mark.parametrize(("settings", "workers"), TIMELINES.items())
def test_a_timeline_has_a_row_for_each_worker(timelines: Any, settings: str, workers: int) -> None:
    events = timelines[settings]
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert list(names.values()) == ["trainer", *(f"worker {number}" for number in range(workers))]
    spans = [one for one in events if one["ph"] == "X"]
    for lane, name in names.items():
        own = [one for one in spans if one["tid"] == lane]
        assert own, f"{name} did nothing"
        if name != "trainer":
            assert {one["name"] for one in own} <= {"code", "copy"}
    # A batch is 8 samples of 2 ms: that is how long somebody worked for each that a worker made.
    code = [one for one in spans if one["name"] == "code"]
    made = {(one["tid"], one["args"]["batch"], one["ts"]) for one in code}
    assert sum(one["dur"] for one in code) >= len(made) * 8 * 2_000 / max(1, workers)
    ends = [max(one["ts"] + one["dur"] for one in spans if one["tid"] == lane) for lane in names]
    assert all(abs(end - ends[0]) < 5_000_000 for end in ends), "one clock for all rows"


def test_the_programs_own_step(program: Path) -> None:
    one = ("--config", "loader=feedline.torch,workers=0", *TINY)
    found = result(program, "train:make_dataset", *one, "--train-step", "train:step")
    assert found["workload"]["step"] == "own"
    assert all(step >= 0.02 for step in found["configurations"][0]["runs"][0]["steps"])
    measured = result(program, "train:make_dataset", *one, "--train-step", "train:step", "--measure-step")
    assert 0.02 <= measured["workload"]["step"]["fixed"] < 0.5
    assert measured["configurations"][0]["error"] is None
    wrong = bench(program, "train:make_dataset", *one, "--train-step", "train:seven")
    assert "training step is called with a batch" in wrong.stdout + wrong.stderr


def test_what_code_prints_is_no_answer(program: Path) -> None:
    config = ("--config", "loader=torch,workers=1", "--config", "loader=feedline,workers=0")
    found = result(program, "train:Loud", *TINY, *config)
    assert [one["error"] for one in found["configurations"]] == [None, None]
    shown = bench(program, "train:Loud", *TINY, "--config", "loader=torch,workers=0", "--show-output")
    assert "noise" in shown.stderr and "noise" not in shown.stdout


def test_a_signal_is_not_the_end_of_the_command(program: Path) -> None:
    # torch's DataLoader gets one whenever a worker ends.
    found = result(program, "train:Signalled", *TINY, "--config", "loader=torch,workers=0")
    (only,) = found["configurations"]
    assert only["error"] is None and only["runs"][0]["batches"] == 6


def test_code_that_raises_is_named(program: Path) -> None:
    config = ("--config", "loader=torch,workers=1", "--config", "loader=feedline.torch,workers=0")
    found = result(program, "train:Broken", *TINY, *config, code=1)
    for one in found["configurations"]:
        assert "sample 7 is rotten" in one["error"], one["error"]
    assert found["best"] is None


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("no_such_module:x", "no module 'no_such_module'"),
        ("light:make_datase", "did you mean make_dataset"),
        ("nowhere.py:x", "no file 'nowhere.py'"),
        ("light:needs", "needs path"),
        ("light:nothing", "returned None"),
        ("light:seven", "neither a data set nor a loader"),
        ("light:leave", "sys.exit(3)"),
    ],
)
def test_targets_that_cannot_be_used(program: Path, target: str, expected: str) -> None:
    done = bench(program, target)
    assert done.returncode == 1 and expected in done.stderr, done.stderr


def test_native_data_in_the_command_of_the_package(photos: Path) -> None:
    found = result(photos.parent, str(photos), *TINY, "--config", "workers=1")
    assert found["configurations"][0]["error"] is None
    assert found["configurations"][0]["runs"][0]["evidence"]["executor"] == "native"


class Slow:
    """A set as torchvision's are: reading and the transform are distinguishable."""

    def __init__(self) -> None:
        self.loader = self._load
        self.transform: Any = self._turn

    def _load(self, index: int) -> Any:
        return np.arange(300_000) % (index + 2)

    def _turn(self, image: Any) -> Any:
        for _ in range(40):
            image = np.sort(image)[::-1].copy()
        return image

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.loader(index))


def test_stages_of_a_sample_are_distinguished() -> None:
    slow = Slow()
    known = cost.evidence(slow, executor="threads", workers=2)
    costs = {stage["name"]: stage for stage in known["stages"]}
    assert list(costs) == ["read+decode", "transform", "__getitem__"]
    # Forty sorts beside one remainder: far more than any noise.
    assert costs["transform"]["seconds"] > 5 * costs["read+decode"]["seconds"]
    assert costs["transform"]["cpu_seconds"] <= costs["transform"]["seconds"] * 1.1
    assert (known["executor"], known["workers"]) == ("threads", 2)
    assert callable(slow.transform) and slow.transform.__name__ == "_turn", "the set itself is untouched"
    assert cost.evidence(object())["stages"] == []


class Strange:
    """As torch's nested tensors, which have no shape."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape")


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (np.zeros((5, 2)), 5),
        ([np.zeros((6, 2)), np.zeros(6)], 6),
        ({"name": ["a", "b"], "x": np.zeros((2, 3))}, 2),
        (["a", "b", "c"], 3),
        ((1.0, np.zeros(4)), 4),
        (7, 1),
        (["a"] * 1_000_000, 1_000_000),
        (Strange(), 1),
    ],
)
def test_rows_of_a_batch(batch: Any, rows: int) -> None:
    assert rows_of(batch) == rows


def remade(made: Any, **settings: Any) -> Any:
    again, _ = feed._wrap(made, "torch_loader", settings, None)
    return again


def test_a_batch_sampler_is_kept() -> None:
    data = pytest.importorskip("torch.utils.data")
    sampler = data.BatchSampler(data.RandomSampler(range(64)), 32, True)
    again = remade(data.DataLoader(range(64), batch_sampler=sampler), num_workers=0)
    assert again.batch_sampler is sampler and [len(batch) for batch in again] == [32, 32]
    with pytest.raises(TargetError, match="batch_sampler of its own"):
        remade(again, batch_size=8)
    assert [len(batch) for batch in remade(data.DataLoader(range(64), 32), batch_size=64)] == [64]


def test_a_loader_is_made_again_as_what_it_was() -> None:
    data = pytest.importorskip("torch.utils.data")
    from feedline.torch import DataLoader

    loader: Any = DataLoader(range(64), 8, executor="processes", random="worker")
    again = remade(loader, num_workers=1)
    assert type(again) is DataLoader and (again.num_workers, again.batch_size) == (1, 8)
    assert (again.executor, again.random) == ("processes", "worker")
    assert remade(loader, executor="threads").executor == "threads"
    assert remade(DataLoader(range(64), num_workers="auto"), batch_size=8)._adjusts
    assert type(remade(loader, loader="torch", num_workers=1)) is data.DataLoader

    class Named(data.DataLoader):  # type: ignore[misc, name-defined]
        def __init__(self, dataset: Any, name: str, **arguments: Any) -> None:
            super().__init__(dataset, **arguments)
            self.name = name

    again = remade(Named(range(64), "mine"), num_workers=1)
    assert type(again) is Named and (again.name, again.num_workers) == ("mine", 1)

    class Fixed(data.DataLoader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(range(64), 8)

    with pytest.raises(TargetError, match=r"a .*Fixed cannot be made again with other settings"):
        remade(Fixed(), num_workers=1)
    assert len(remade(Fixed(), loader="torch", num_workers=1)) == 8


def test_samples_of_a_stream_are_not_chosen() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Counted(data.IterableDataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Any:
            return iter(range(10))

    class Uncounted(Counted):
        def __len__(self) -> int:
            raise NotImplementedError

    for stream in (Counted(), Uncounted()):
        for name in feed._LOADERS:
            loader, _ = feed._wrap(stream, "dataset", {"loader": name, "num_workers": 0}, 5)
            assert sum(len(batch) for batch in loader) == 10, name
