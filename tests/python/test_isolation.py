"""Which process a sample runs in: what would end it, or hang in it, is kept out of the program."""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import subprocess
import sys
import threading
import time

import feedline
import lmdb
import numpy as np
import pytest
import torch
from conftest import HANG
from feedline.torch import DataLoader
from feedline.workers import Feed, Task, feed
from feedline.workers.native_code import ends_processes
from torch.utils.data import Subset, default_collate

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Where(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, os.getpid()


@pytest.mark.parametrize(
    "options",
    [
        {"executor": "processes"},
        {"executor": "processes", "persistent_workers": True},
        {"multiprocessing_context": "forkserver"},
        {"timeout": HANG},
    ],
    ids=str,
)
def test_where_processes_were_asked_for_no_sample_runs_in_the_program(options):
    loader = DataLoader(Where(), batch_size=2, num_workers=2, **options)
    for _ in range(2):
        indices, pids = zip(*loader, strict=True)
        assert torch.cat(indices).tolist() == list(range(12))
        assert os.getpid() not in torch.cat(pids).tolist()
    assert loader.stats()["made_by_the_caller"] == 0
    loader.close()


def test_where_a_loader_was_asked_for_processes_no_sample_runs_in_the_program():
    with feedline.Loader(Where(), batch_size=2, num_workers=2, executor="processes") as loader:
        pids = [pid for batch in loader for pid in np.asarray(batch[1]).tolist()]
    assert len(pids) == 12 and os.getpid() not in pids


class Deadly(Where):
    def __init__(self, way):
        self.way = way

    def __getitem__(self, index):
        if index == 2:
            self.way()
        return index


def leave():
    os._exit(3)


def crash():
    ctypes.string_at(0)


DEADLY = """
import sys
sys.path.insert(0, sys.argv[1])
import test_isolation as here
from feedline.torch import DataLoader
if __name__ == "__main__":
    try:
        list(DataLoader(here.Deadly(getattr(here, sys.argv[2])), 4, num_workers=2, executor=sys.argv[3]))
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("executor", "way", "end"),
    [
        ("auto", "leave", "exited with code 3"),
        ("auto", "crash", "was killed by signal 11"),
        ("processes", "leave", "exited with code 3"),
    ],
)
def test_a_sample_that_ends_its_process_does_not_end_the_program(executor, way, end):
    command = [sys.executable, "-W", "ignore", "-c", DEADLY, os.path.dirname(__file__), way, executor]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert end in ran.stdout and "sample 2" in ran.stdout and ran.returncode == 0, (ran.stdout, ran.stderr)


class Held:
    def __init__(self, thing):
        self.thing = thing


class Imports(Where):
    def __getitem__(self, index):
        import ctypes.util

        return ctypes.util


class Method(Where):
    def __getitem__(self, index):
        return self._read(index)

    def _read(self, index):
        return [leave() for _ in range(index)]


class Transformed(Where):
    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(np.full(3, index))


def with_lmdb(index):
    return lmdb.open(str(index))


@pytest.mark.parametrize(
    ("thing", "found"),
    [
        (Where(), None),
        (Deadly(leave), "posix._exit, which can end its process"),
        (Deadly(crash), "ctypes, so native code of its own"),
        (Imports(), "ctypes, so native code of its own"),
        (Method(), "posix._exit, which can end its process"),
        (Subset(Transformed(Held(leave)), [0]), "posix._exit, which can end its process"),
        (Transformed(with_lmdb), "lmdb, whose native code is not known to be safe"),
        (Transformed(lambda array: torch.from_numpy(array).sum()), None),
        (list(range(1000)), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_end_a_process_is_seen_in_the_code(thing, found):
    assert ends_processes([thing, default_collate]) == found


def test_the_program_helps_while_workers_start_where_it_was_left_the_choice():
    class Draws(Where):
        def __getitem__(self, index):
            return index + np.random.randint(1)  # noqa: NPY002

    for options, helps in (({}, True), ({"executor": "processes"}, False), ({"timeout": HANG}, False)):
        loader = DataLoader(Draws(), batch_size=2, num_workers=2, **options)
        iterator = iter(loader)
        assert (loader._core.feed._helper is not None) == helps
        assert [batch.tolist() for batch in iterator] == [[n, n + 1] for n in range(0, 12, 2)]
        loader.close()


class Stuck(Where):
    """Never makes a sample, and fails where nobody could leave it."""

    def __init__(self, program):
        self.program = program

    def __getitem__(self, index):
        if os.getpid() == self.program and threading.current_thread() is threading.main_thread():
            raise AssertionError("the program itself would hang")
        time.sleep(10 * HANG)


@pytest.mark.parametrize("executor", ["auto", "processes", "threads"])
def test_a_first_sample_that_hangs_is_left_after_the_timeout(executor):
    loader = DataLoader(Stuck(os.getpid()), num_workers=2, timeout=0.2, executor=executor)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(iter(loader))
    loader.close()


class Late:
    """Workers that take their time to start, and never answer. Time passes only while it is waited."""

    name, workers, capacity, ready = "processes", 1, 2, 0

    def __init__(self, start):
        self.now, self.start = 0.0, start

    @property
    def starting(self):
        return self.now < self.start

    def submit(self, task):
        return task.number

    def take(self, sequence):
        return None

    def wait(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(("start", "end"), [(0, 2), (30, 32), (1e9, 62)])
def test_a_timeout_begins_when_workers_have_begun(start, end, monkeypatch):
    late = Late(start)
    monkeypatch.setattr(feed.time, "monotonic", lambda: late.now)
    waiting = Feed(late, iter([Task(0, [0])]), timeout=2)
    with pytest.raises(RuntimeError, match="timed out after 2 seconds"):
        waiting.next()
    assert late.now == pytest.approx(end, abs=0.2)


def test_a_program_with_native_code_that_nobody_knows_is_not_forked(tmp_path):
    """What threads a library has started by itself shows in nothing, and a fork would not have them."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from torch.utils.data import Dataset\n"
        "from feedline.torch import DataLoader\n"
        "class Parents(Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index): return os.getppid()\n"
        "def parents():\n"
        "    return {int(one) for batch in DataLoader(Parents(), num_workers=1, executor='processes')"
        " for one in batch}\n"
        "assert parents() == {os.getpid()}\n"
        "import vendor\n"
        "assert os.getpid() not in parents()\n"
    )
    # Any extension module will do.
    native = importlib.machinery.PathFinder.find_spec("_struct")
    assert native is not None and native.origin is not None
    (tmp_path / "vendor.py").write_text(f"import sys\nsys.modules[__name__].__file__ = {native.origin!r}\n")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=HANG)
    assert run.returncode == 0, run.stderr
