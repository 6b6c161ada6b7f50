"""Mistakes that were once made, each with the smallest program that showed it."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import subprocess
import sys
import time

import feedline
import numpy as np
import pytest
import torch
from conftest import as_a_job, until
from feedline.torch import DataLoader
from feedline.workers import is_stateful
from feedline.workers.packing import pack, unpack
from feedline.workers.slots import Slot
from torch.utils.data import IterableDataset, Subset, WeightedRandomSampler, default_collate

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Indices(torch.utils.data.Dataset):
    def __init__(self, length=12):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


class Lazy(Indices):
    """Opens its file with the first sample."""

    file = None

    def __init__(self, path):
        super().__init__(64)
        self.path, self.file = path, None

    def __getitem__(self, index):
        if self.file is None:
            self.file = open(self.path, "rb", buffering=0)  # noqa: SIM115
        self.file.seek(index)
        time.sleep(0.001)
        return self.file.read(1)[0]


class Around(Indices):
    def __init__(self, inner):
        super().__init__(64)
        self.inner = inner

    def __getitem__(self, index):
        return self.inner[index]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wrap", [lambda inner: Subset(inner, range(64)), Around])
def test_a_file_that_is_opened_below_the_top_level_is_not_shared_by_threads(tmp_path, wrap):
    path = tmp_path / "data"
    path.write_bytes(bytes(range(64)))
    loader = DataLoader(wrap(Lazy(path)), batch_size=8, num_workers=2)
    for _ in range(2):
        assert torch.cat(list(loader)).tolist() == list(range(64))
    assert loader.stats()["executor"]["name"] == "processes"
    loader.close()
    del loader
    # The files that nobody closes go here, and not in the next test.
    gc.collect()


class Fresh:
    """Makes its array while it is pickled, so that its memory is new."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return np.asarray, (np.full(1_200_000, self.value, np.float64),)


def test_an_address_that_was_given_up_is_not_the_slots():
    slot = Slot()
    packed = pack([Fresh(value) for value in range(8)], slot)
    assert [array[0] for array in unpack(packed, slot.view(0, packed.size))] == list(range(8))
    assert [array[0] for array in as_a_job([Fresh(value) for value in range(8)])] == list(range(8))


class Keeping(Indices):
    def __init__(self):
        super().__init__(12)
        self.kept = {}

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = default_collate([torch.full((70_000,), float(index))])
        return self.kept[index]


def test_what_a_data_set_collates_for_itself_is_its_own():
    loader = DataLoader(
        Keeping(), batch_size=2, num_workers=1, persistent_workers=True, worker_init_fn=do_nothing
    )
    for _ in range(3):
        assert [batch[:, 0, 0].tolist() for batch in loader] == [[at, at + 1] for at in range(0, 12, 2)]
    loader.close()


def do_nothing(worker):
    pass


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(40))


def test_a_streams_worker_that_dies_is_never_begun_anew():
    loader = DataLoader(Stream(), batch_size=2, num_workers=1)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    os.kill(loader._epoch()._executor._processes[0].pid, signal.SIGKILL)
    with pytest.raises(feedline.WorkerError, match="SIGKILL"):
        for _ in range(20):
            next(batches)
    del batches
    assert len(list(loader)) == 20


def test_a_sampler_that_changes_between_epochs_is_noticed():
    def epochs(kind, **options):
        torch.manual_seed(0)
        sampler = WeightedRandomSampler([1.0, 0, 0, 0], 8)
        loader = kind(Indices(4), 2, sampler=sampler, num_workers=1, persistent_workers=True, **options)
        seen = [[batch.tolist() for batch in loader]]
        sampler.weights = torch.tensor([0, 0, 0, 1.0])
        return [*seen, [batch.tolist() for batch in loader]]

    expected = epochs(torch.utils.data.DataLoader)
    assert epochs(DataLoader, executor="threads") == expected
    assert expected[0] != expected[1]


class Eager:
    """Draws when it is iterated over, not with its first element."""

    def __init__(self, generator=None):
        self.generator = generator

    def __iter__(self):
        return iter(torch.randperm(12, generator=self.generator).view(4, 3).tolist())

    def __len__(self):
        return 4


@pytest.mark.parametrize("own", [False, True])
def test_a_sampler_that_draws_at_once_resumes(own):
    def make(seed):
        generator = torch.Generator().manual_seed(seed) if own else None
        torch.manual_seed(seed)
        return DataLoader(Indices(), batch_sampler=Eager(generator), generator=generator)

    loader = make(1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    following = [batch.tolist() for batch in loader] if own else None
    other = make(2)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest
    if own:
        assert [batch.tolist() for batch in other] == following


class Drawing(Indices):
    def __getitem__(self, index):
        return torch.tensor([float(index), torch.rand(1).item(), random.random()])


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1, "executor": "processes", "persistent_workers": True}]
)
def test_random_samples_after_a_finished_epoch_are_the_same(options):
    def make():
        return DataLoader(Drawing(6), batch_size=2, generator=torch.Generator().manual_seed(4), **options)

    loader = make()
    for _ in loader:
        pass
    state = loader.state_dict()
    expected = torch.cat(list(loader))
    other = make()
    other.load_state_dict(state)
    assert torch.cat(list(other)).equal(expected)
    loader.close()
    other.close()


class Uneven(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info().id
        for number in range(2 + 6 * worker):
            yield torch.tensor([worker, number, torch.rand(1).item()])


def test_streams_that_end_unevenly_resume_with_their_draws():
    torch.manual_seed(3)
    loader = DataLoader(Uneven(), batch_size=1, num_workers=2)
    whole, states = [], []
    for batch in loader:
        whole.append(batch)
        states.append(loader.state_dict())
    assert len(whole) == loader.stats()["batches"] == 10
    for at in (1, 5, 7):
        other = DataLoader(Uneven(), batch_size=1, num_workers=2)
        other.load_state_dict(states[at])
        with pytest.warns(UserWarning, match="read again"):
            rest = list(other)
        assert torch.cat(rest).equal(torch.cat(whole[at + 1 :]))
        other.close()


def test_file_descriptors_do_not_pile_up():
    options = {"worker_init_fn": do_nothing, "multiprocessing_context": "forkserver"}
    loader = DataLoader(Indices(), batch_size=4, num_workers=1, **options)

    def in_worker():
        return len(os.listdir(f"/proc/{loader._idle._processes[0].pid}/fd"))

    for _ in loader:
        pass
    here, there = len(os.listdir("/proc/self/fd")), in_worker()
    for _ in range(10):
        for _ in loader:
            pass
    assert len(os.listdir("/proc/self/fd")) <= here + 2
    # It hears soon that the epoch is over.
    until(lambda: in_worker() <= there + 2, "files that are closed")
    loader.close()


def test_tensors_that_begin_at_one_address():
    array = np.arange(8.0)
    short, long = torch.from_numpy(array[:4]), torch.from_numpy(array)
    one, other = as_a_job((short, long))
    assert one.tolist() == [0, 1, 2, 3] and other.tolist() == list(range(8))


def test_a_forked_child_that_drops_a_loader_does_not_wait_for_its_locks():
    code = """
import os
from feedline.torch import DataLoader
from feedline.workers import is_stateful
loader = DataLoader(list(range(40)), 4, num_workers=2, executor="threads")
list(loader)
loader._idle._changed.acquire()  # As if another thread held it when the process forks.
child = os.fork()
if child == 0:
    loader._idle.close()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.stdout == "7\n", ran.stderr


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_workers_that_run_out_of_files_say_so_and_what_to_do(executor):
    code = f"""
import resource, torch
from feedline.torch import DataLoader
from feedline.workers import is_stateful
list(DataLoader(list(range(4)), 2, num_workers=1, executor="{executor}"))
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
loader = DataLoader([torch.full((10,), i) for i in range(100)], 2, num_workers=1, executor="{executor}")
iterator, kept = iter(loader), []
try:
    kept.extend(iterator)
except OSError as error:
    print(error.errno, isinstance(error, RuntimeError), "ulimit -n" in str(error))
assert [batch[0, 0].item() for batch in kept] == list(range(0, 2 * len(kept), 2))
"""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 40
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.stdout == "24 True True\n", ran.stderr


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_batches_that_are_kept_cost_few_files(executor):
    """torch's cost one each."""
    loader = DataLoader([torch.full((10,), n) for n in range(400)], 2, num_workers=1, executor=executor)
    for _ in range(2):
        before = len(os.listdir("/proc/self/fd"))
        kept = list(loader)
        assert len(os.listdir("/proc/self/fd")) < before + 100
        assert [batch[:, 3].tolist() for batch in kept] == [[n, n + 1] for n in range(0, 400, 2)]
        del kept
    loader.close()


@pytest.mark.parametrize(
    "damage",
    [
        {"generators": []},
        {"generators": 5},
        {"generators": ["?"]},
        {"generators": ["eJwDAAAAAAE="]},
        {"draws": None},
        {"draws": "eJwDAAAAAAE="},
        {"own": 1},
        {"workers": [1]},
        {"workers": [{"state": None}]},
        {"yielded": -1},
        {"yielded": "x"},
        {"kind": "iterable"},
        {"feedline": 3},
    ],
)
def test_damaged_states_are_refused(damage):
    loader = DataLoader(Indices(), batch_size=2)
    next(iter(loader))
    with pytest.raises(feedline.StateError, match="cannot resume"):
        loader.load_state_dict({**loader.state_dict(), **damage})


class WithState(Indices):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_class_is_not_taken_for_an_object_with_a_state():
    """Pickling an object of some classes asks its class for what the object has."""
    assert is_stateful(WithState()) and not is_stateful(WithState)
