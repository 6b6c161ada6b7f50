"""Workers for user code: memory, values between processes, the choice of an executor, ends of processes."""

from __future__ import annotations

import collections
import gc
import io
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from pathlib import Path

import feedline
import numpy as np
import pytest
import torch
from conftest import HANG, another_thread, as_a_job, until
from feedline import _native
from feedline.torch import DataLoader
from feedline.workers import Job, Task, choose
from feedline.workers.failure import Failure
from feedline.workers.packing import pack, unpack
from feedline.workers.seeds import apart, mixed
from feedline.workers.server import Server
from feedline.workers.slots import Slot, Slots
from feedline.workers.stack import Stack, _node
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torchvision import tv_tensors

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

Point = collections.namedtuple("Point", ["x", "y"])


def through_a_slot(value, code=False):
    """What the other process would see: the same memory through another mapping."""
    if code:
        return as_a_job(value)
    slot = Slot()
    packed = pack(value, slot)
    there = Slot(os.dup(slot.fd))
    there.map(packed.size)
    return unpack(packed, there.view(0, packed.size))


arrays = hnp.arrays(
    st.sampled_from(
        [np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64, np.bool_, np.complex64]
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary(), arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3), st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@settings(max_examples=150, deadline=None)
@given(values)
def test_any_value_comes_out_of_a_slot_as_it_went_in(value):
    assert_same(value, through_a_slot(value))


@pytest.mark.parametrize("code", [False, True])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).view(2, 3, 4),
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        torch.arange(48).view(2, 3, 2, 4).contiguous(memory_format=torch.channels_last),
        torch.tensor(5),
        torch.empty(0, 3, dtype=torch.bfloat16),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
    ],
)
def test_tensors_keep_type_shape_and_strides(tensor, code):
    assert_same(tensor, through_a_slot({"x": tensor}, code)["x"])


def test_sparse_meta_and_gradients_cross_too():
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(through_a_slot(sparse).to_dense(), torch.eye(3))
    assert through_a_slot(torch.empty(2, 3, device="meta")).device.type == "meta"
    leaf = through_a_slot(torch.ones(2, requires_grad=True))
    assert leaf.requires_grad and leaf.is_leaf
    with pytest.raises(RuntimeError, match="detach"):
        through_a_slot(torch.ones(2, requires_grad=True) * 2)


def test_a_data_set_that_shares_memory_shares_it_afterwards():
    whole = torch.arange(10.0)
    one, other = through_a_slot((whole, whole[2:5]), code=True)
    one[3] = 99
    assert other[1] == 99


def test_what_lies_in_the_slot_is_not_copied():
    slot = Slot()
    at = slot.reserve(4000)
    array = slot.view(at, 4000).view(np.float32)
    array[:] = 7
    packed = pack({"x": array, "y": array[10:20]}, slot)
    assert packed.places == [(at, 4000), (at + 40, 40)]
    assert packed.size == slot.used < 4100


def test_a_slot_that_grows_keeps_what_was_written():
    slot = Slot()
    first = slot.reserve(10)
    early = slot.view(first, 10)
    early[:] = 3
    slot.reserve(5 << 20)
    assert (slot.view(first, 10) == 3).all()
    early[:] = 4
    assert (slot.view(first, 10) == 4).all()
    assert slot.locate(int(early.ctypes.data), 10) == first


def test_a_row_is_in_its_place_whenever_another_thread_asks_for_one():
    """One thread finds the slot grown and mapped anew; another asks after each of its steps in turn."""
    for step in range(60):
        stack = Stack(4, Slot(), list, None, _native.Copier())
        array = _node(stack, {"x": np.zeros(4), "y": np.zeros(1 << 18)}).fields[0]
        seen = []
        steps = iter(range(1000))

        def look(frame, event, _argument, array=array, step=step, steps=steps, seen=seen):
            if next(steps) == step:
                seen.append(array.row(2) - array.stack.slot.address)
            return look

        def ask(array=array, seen=seen, look=look):
            sys.settrace(look)
            try:
                place = array.row(2)
            finally:
                sys.settrace(None)
            seen.append(place - array.stack.slot.address)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert set(seen) == {array.offset + 2 * 32}


def test_a_lent_slot_comes_back_with_its_last_array():
    slots = Slots(keep=4)
    slot = slots.take()
    slot.reserve(100)
    memory = slots.lend(slot, 100)
    part = memory[10:20]
    del memory
    assert slots.take() is not slot
    del part
    assert slots.take() is slot


def test_free_slots_give_their_pages_back_when_there_is_time():
    slots = Slots(keep=4)
    slot = slots.take()
    slot.reserve(8 << 20)

    def lent():
        memory = slots.lend(slot, 8 << 20)
        memory[:] = 7
        slots.tidy()
        assert os.fstat(slot.fd).st_blocks * 512 == 8 << 20, "it is the program's"
        return memory

    memory = lent()
    del memory
    assert os.fstat(slot.fd).st_blocks * 512 == 8 << 20, "the program's own time is not taken for it"
    slots.tidy()
    assert os.fstat(slot.fd).st_blocks == 0
    assert slots.take() is slot
    memory = lent()
    del memory
    assert slots.take() is slot
    slots.tidy()
    assert os.fstat(slot.fd).st_blocks * 512 == 8 << 20, "it is a worker's"
    # What a forked child may have too is left alone.
    memory = lent()
    kept = os.dup(slot.fd)
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    del memory
    slots.tidy()
    assert os.pread(kept, 1, 0) == b"\x07"
    os.close(kept)


def test_a_loader_that_waits_for_its_workers_gives_pages_back(monkeypatch):
    given = []
    trim = Slot.trim
    monkeypatch.setattr(Slot, "trim", lambda slot: given.append(slot.size) or trim(slot))
    loader = DataLoader(Numbers(64, (512, 1024)), batch_size=4, num_workers=1, executor="processes")
    assert len([batch[0].shape for batch in loader]) == 16
    assert given and min(given) >= 4 * 512 * 1024 * 4


class Images(torch.utils.data.Dataset):
    """Images of torchvision's own type; counts those that are still there."""

    def __init__(self):
        self.alive, self.most = 0, 0

    def __len__(self):
        return 64

    def forget(self):
        self.alive -= 1

    def __getitem__(self, index):
        self.alive += 1
        self.most = max(self.most, self.alive)
        pixels = np.full((3, 224, 224), index, np.float32)
        weakref.finalize(pixels, self.forget)
        return tv_tensors.Image(torch.from_numpy(pixels)), index


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_images_of_torchvision_go_into_the_batch_at_once(executor):
    """Kept until the batch is joined, they would double a worker's memory."""

    def collated(loader):
        return [(type(images), images[:, 0, 0, 0].tolist(), labels.tolist()) for images, labels in loader]

    data = Images()
    mine = DataLoader(data, batch_size=32, num_workers=1, executor=executor, worker_init_fn=says_the_most)
    assert collated(mine) == collated(torch.utils.data.DataLoader(Images(), batch_size=32))


def says_the_most(worker):
    """In a process, the data set checks itself: an error there comes out here."""
    data = feedline.torch.get_worker_info().dataset
    make = type(data).__getitem__

    class Checked(type(data)):
        def __getitem__(self, index):
            made = make(self, index)
            # Four of them may wait to be copied, one is being made, one handed over.
            assert self.most <= 7, f"{self.most} images are kept"
            return made

    data.__class__ = Checked


def test_torchvision_may_want_its_own_type_back():
    """`set_return_type` makes batches of its own type too: ours are then."""

    def kinds(kind):
        return [type(images) for images, _ in kind(Images(), batch_size=32, num_workers=0)]

    with tv_tensors.set_return_type("TVTensor"):
        mine, theirs = kinds(DataLoader), kinds(torch.utils.data.DataLoader)
    assert mine == theirs
    assert kinds(DataLoader) == kinds(torch.utils.data.DataLoader) == [torch.Tensor] * 2


def test_a_page_locked_slot_waits_for_the_device_that_reads_it():
    calls = []

    class Pin:
        still = True

        def __init__(self, address, size):
            calls.append(("lock", size))

        def mark(self):
            calls.append("mark")

        def busy(self):
            return Pin.still

        def __del__(self):
            calls.append("unlock")

    slots = Slots(keep=4, pin=Pin)
    slot = slots.take()
    slot.reserve(100)
    memory = slots.lend(slot, 100)
    del memory
    assert calls == [("lock", slot.size)]
    assert slots.take() is not slot, "the copy is not done"
    Pin.still = False
    assert slots.take() is slot
    assert calls[1:] == ["mark"]
    # Used again it stays locked, and what is asked of the device from now on counts anew.
    memory = slots.lend(slot, 100)
    del memory
    assert slots.take() is slot
    assert calls[2:] == ["mark"]
    slots.give_back(slot)
    slots.close()
    assert calls[3:] == ["unlock"]


class Numbers(torch.utils.data.Dataset):
    def __init__(self, length=64, shape=(3, 32, 32)):
        self.length, self.shape = length, shape

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full(self.shape, float(index)), index


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_slots_are_used_again_and_kept_batches_keep_their_bytes(executor):
    with_workers = {"num_workers": 2, "executor": executor, "persistent_workers": True}
    loader = DataLoader(Numbers(400), batch_size=8, **with_workers)
    for _ in loader:  # The workers are up after this.
        pass
    kept = []
    for number, (images, labels) in enumerate(loader):
        if number % 10 == 0:
            kept.append((images, labels))
    workers = loader._idle or loader._guess[2]
    assert workers.slots.made <= workers.capacity + 4 + len(kept)
    for images, labels in kept:
        assert (images[:, 0, 0, 0].long() == labels).all()
        images += 1
    loader.close()
    assert (kept[0][0][:, 0, 0, 0].long() == kept[0][1] + 1).all()


def test_processes_take_nothing_from_dev_shm():
    # Tests before this one ran torch's own workers, which leave such mappings, and a fork has them too; what
    # garbage still holds of them goes first.
    gc.collect()
    before = set().union(*map(shared_files, ["self", *children()]))
    loader = DataLoader(
        Numbers(64), batch_size=4, num_workers=2, executor="processes", collate_fn=collate_with_torchs
    )
    for _ in loader:
        for process in ["self", *children()]:
            assert shared_files(process) <= before
    loader.close()


def shared_files(process: str) -> set[str]:
    """The files that torch made in /dev/shm and a process has in its memory."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:
        return set()  # It ended.
    return {line.split()[5] for line in lines if "/dev/shm/torch" in line}


def children() -> list[str]:
    """The ids of the processes that this one started."""
    return [
        child for task in Path("/proc/self/task").glob("*/children") for child in task.read_text().split()
    ]


def collate_with_torchs(samples):
    return torch.utils.data.default_collate(samples)


class Pool(torch.utils.data.Dataset):
    def __init__(self):
        self.array = np.ones((64 << 20) // 8)
        self.tensor = torch.ones((64 << 20) // 4)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        private = 0
        with open("/proc/self/smaps_rollup") as file:
            for line in file:
                if line.startswith(("Private_Clean", "Private_Dirty")):
                    private += int(line.split()[1])
        # Reading all of it must not make it this process's own.
        time.sleep(0.001)
        return float(self.array.sum() + self.tensor.sum().item()), private, os.getpid()


def test_workers_share_the_arrays_of_a_data_set():
    loader = DataLoader(Pool(), batch_size=1, num_workers=3, executor="processes", worker_init_fn=do_nothing)
    seen = {}
    for total, private, pid in loader:
        assert total.item() == (64 << 20) // 8 + (64 << 20) // 4
        seen.setdefault(pid.item(), []).append(private.item())
    loader.close()
    assert len(seen) > 1
    assert all(min(values) < 100_000 for values in seen.values()), seen  # kB; 131,072 are in the arrays


def do_nothing(worker):
    pass


# The choice of an executor.


class Sleeping:
    share = 0.02

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return index


class Computing(Sleeping):
    share = 0.98


class Drawing(Sleeping):
    def __getitem__(self, index):
        return random.random() + float(np.random.rand())  # noqa: NPY002


class DrawingNumpy(Sleeping):
    def __getitem__(self, index):
        return float(np.random.rand())  # noqa: NPY002


class DrawingTorch(Sleeping):
    def __getitem__(self, index):
        return index, torch.rand(2), torch.empty(1).uniform_(), torch.randint(5, (2,)), torch.randperm(3)


class SeedingTorch(Sleeping):
    """As torchvision's FakeData."""

    def __getitem__(self, index):
        state = torch.get_rng_state()
        torch.manual_seed(index)
        sample = torch.randn(3)
        torch.set_rng_state(state)
        return sample


class Undecided(Sleeping):
    share = 0.53


class ReadingSeed(Sleeping):
    def __getitem__(self, index):
        return torch.initial_seed() % 1000


class Dropping(Sleeping):
    def __getitem__(self, index):
        return torch.nn.functional.dropout(torch.ones(8))


class Counting(Sleeping):
    def __init__(self):
        self.count = 0

    def __getitem__(self, index):
        self.count += 1
        return index


class WithFile(Sleeping):
    def __init__(self):
        self.file = io.BytesIO(b"x")


class WithGenerator(Sleeping):
    def __init__(self):
        self.transforms = [np.random.default_rng(0)]


class WithConnections(Sleeping):
    def __init__(self):
        self.open = {"first": sqlite3.connect(":memory:")}


class WithState(Sleeping):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Failing(Sleeping):
    def __getitem__(self, index):
        raise KeyError(index)


@pytest.fixture
def lock_share(monkeypatch):
    """Lets samples hold the interpreter's lock for this share of their time, whatever else runs here."""

    def set_share(share):
        class Probe:
            def stop(self):
                return 100, round(100 * share)

        monkeypatch.setattr(_native, "LockProbe", Probe)

    return set_share


class Noting(torch.utils.data.Dataset):
    """Notes in a file which samples were made, and where."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 48

    def __getitem__(self, index):
        with open(self.path, "a") as notes:
            notes.write(f"{index} {os.getpid()}\n")
        return torch.full((3,), index), {"drawn": torch.rand(2), "text": str(index)}


def test_samples_of_the_trial_are_not_made_again(tmp_path, lock_share, monkeypatch):
    """Workers that are forks of the program have them by birth."""
    lock_share(1.0)
    # What else is loaded for these tests.
    monkeypatch.setattr("feedline.workers.starter.not_to_fork", lambda: None)

    def epochs(loader, count=2):
        return [[(x.tolist(), y["drawn"].tolist(), y["text"]) for x, y in loader] for _ in range(count)]

    def loader(path, **options):
        torch.manual_seed(7)
        return DataLoader(Noting(path), batch_size=16, **options)

    expected = epochs(loader(tmp_path / "all", num_workers=1, executor="processes"))
    notes = tmp_path / "notes"
    mine = loader(notes, num_workers=2)
    assert epochs(mine) == expected
    assert mine.stats()["executor"]["name"] == "processes"
    made = [line.split() for line in notes.read_text().splitlines()]
    tried = {int(index) for index, process in made if int(process) == os.getpid()}
    assert tried == set(range(len(tried))) and 1 <= len(tried) <= 16
    # Those of the trial only in the second epoch.
    others = collections.Counter(int(index) for index, process in made if int(process) != os.getpid())
    assert others == {index: 1 if index in tried else 2 for index in range(48)}


def test_code_that_computes_holds_the_lock_longer_than_code_that_waits():
    def share(act):
        probe = _native.LockProbe()
        for _ in range(20):
            act()
        looks, busy = probe.stop()
        assert looks >= 5
        return busy / looks

    assert share(lambda: time.sleep(0.01)) < share(lambda: sum(range(400_000)))


@pytest.mark.parametrize(
    ("dataset", "name", "reason"),
    [
        (Sleeping(), "threads", "holds the interpreter's lock for"),
        (Computing(), "processes", "would wait for each other"),
        (Undecided(), "processes", "leaves open whether threads or processes make more"),
        (Drawing(), "processes", "draw from random's global generator"),
        (DrawingNumpy(), "processes", "draw from NumPy's global generator"),
        (DrawingTorch(), "threads", "hardly wait for each other"),
        (SeedingTorch(), "processes", "seed torch's global generator themselves"),
        (ReadingSeed(), "processes", "ask for get_worker_info or torch.initial_seed"),
        (Dropping(), "processes", "draw from torch's global generator"),
        (Counting(), "processes", "changes itself (count)"),
        (WithFile(), "processes", "holds a _io.BytesIO (file)"),
        (WithGenerator(), "processes", "numpy.random._generator.Generator (transforms[0])"),
        (WithConnections(), "processes", "a sqlite3.Connection (open['first'])"),
        (WithState(), "processes", "has a state"),
        (Failing(), "threads", "the first sample failed"),
    ],
)
def test_auto_says_what_it_picks_and_why(dataset, name, reason, lock_share):
    lock_share(dataset.share)
    task = Task(0, list(range(32)), seed=5)
    # What torch loads at its first call is not the samples' cost.
    choose(Job(dataset, "map", list), 4, Task(0, list(range(32)), seed=5))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    choice = choose(Job(dataset, "map", list), 4, task)
    assert (choice.name, reason in choice.reason) == (name, True), choice
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2] and before[2].equal(after[2])


class Watched(Sleeping):
    """Ends its first sample when the program waits for it."""

    def __init__(self, draw, loaders):
        self.draw, self.loaders = draw, loaders

    def __getitem__(self, index):
        until(lambda: self.loaders and self.loaders[0]._core._executor._asleep, "the program's wait")
        self.draw(index)
        return index


@pytest.mark.parametrize(
    ("draw", "whose"),
    [
        (lambda index: random.random(), "random's"),
        (random.seed, "random's"),
        (lambda index: np.random.rand(), "NumPy's"),  # noqa: NPY002
        (torch.manual_seed, "torch's"),
        (torch.rand, None),
        (np.random.default_rng, None),
    ],
)
def test_threads_that_draw_from_global_generators_warn_once(draw, whose):
    loaders = []
    state = torch.get_rng_state()
    loaders.append(DataLoader(Watched(draw, loaders), batch_size=2, num_workers=1, executor="threads"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            iterator = iter(loaders[0])
            assert next(iterator).tolist() == [0, 1]
            # What the program draws itself is its own affair.
            random.random()
            torch.rand(1)
            next(iterator)
            del iterator
    said = [str(one.message) for one in caught if "global generator" in str(one.message)]
    assert len(said) == (whose is not None), said
    assert not said or (f"draw from {whose}" in said[0] and 'executor="processes"' in said[0])
    loaders[0].close()
    torch.set_rng_state(state)


def test_the_trial_of_auto_is_the_beginning_of_the_first_batch(lock_share):
    lock_share(Sleeping.share)
    calls = collections.Counter()

    class Once(Sleeping):
        def __getitem__(self, index):
            calls[index] += 1
            return index

    loader = DataLoader(Once(), batch_size=16, num_workers=2)
    batches = list(loader)
    assert loader.stats()["executor"]["name"] == "threads"
    assert [batch.tolist() for batch in batches] == [list(range(at, at + 16)) for at in range(0, 64, 16)]
    assert set(calls.values()) == {1}


def test_torchs_draws_are_the_same_in_threads_processes_and_inline(lock_share):
    lock_share(DrawingTorch.share)

    def batches(**options):
        torch.manual_seed(11)
        loader = DataLoader(DrawingTorch(), batch_size=8, shuffle=True, **options)
        made = [*loader, *loader]
        loader.close()
        return made, loader

    expected, _ = batches(num_workers=0)
    state = torch.get_rng_state()
    for options in (
        {"num_workers": 3, "executor": "threads"},
        {"num_workers": 2, "executor": "processes"},
        {"num_workers": 2, "executor": "processes", "worker_init_fn": do_nothing},
        {"num_workers": 2},
    ):
        assert_same(expected, batches(**options)[0])
        assert torch.get_rng_state().equal(state)


def test_a_data_set_that_cannot_be_sent_is_reported_with_the_way_out(lock_share):
    lock_share(Computing.share)

    class Locked(Computing):
        def __init__(self):
            self.lock = threading.Lock()

    with another_thread():
        with pytest.raises(feedline.WorkerError, match=r'cannot be sent .* executor="threads"'):
            list(DataLoader(Locked(), num_workers=1, executor="processes"))
        loader = DataLoader(Locked(), batch_size=8, num_workers=3)
        assert len(list(loader)) == 8
        assert loader.stats()["executor"]["name"] == "threads"
        loader.close()
    # As torch's, a fork of the program has it.
    assert len(list(DataLoader(Locked(), 8, num_workers=1, multiprocessing_context="fork"))) == 8


# Seeds and errors.


def test_seeds_differ_and_the_programs_generators_stay():
    seeds = {mixed(base, epoch, number) for base in range(5) for epoch in range(5) for number in range(50)}
    assert len(seeds) == 5 * 5 * 50
    kept = torch.get_rng_state()
    first = apart(7, lambda: (torch.rand(1).item(), random.random()))
    assert first == apart(7, lambda: (torch.rand(1).item(), random.random()))
    assert torch.get_rng_state().equal(kept)


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__("odd")
        self.one, self.two = one, two


def test_errors_come_home_with_their_type_and_place():
    def raiser():
        raise KeyError("lost")

    try:
        raiser()
    except KeyError as error:
        home = Failure(error, "in worker 3").exception()
    assert type(home) is KeyError and home.args == ("lost",)
    assert "in raiser" in str(home.__cause__) and "in worker 3" in str(home.__cause__)
    # Pickle cannot make this one again from its message alone.
    try:
        raise Odd(1, 2)
    except Odd as error:
        home = Failure(error, "in worker 3").exception()
    assert type(home) is Odd and (home.one, home.two) == (1, 2)
    # One that cannot be sent at all is reported as a RuntimeError with all its text.
    try:
        raise Odd(threading.Lock(), 2)
    except Odd as error:
        home = Failure(error, "in worker 3").exception()
    assert "Odd" in f"{type(home).__name__} {home}"


# Processes and their ends.

PROGRAM = """
import os, sys, time, signal
import torch
from feedline.torch import DataLoader

MAIN = os.getpid()

class Mine(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return index * 2

{body}
"""


def run_program(body, *arguments, **options):
    code = PROGRAM.format(body=textwrap.dedent(body))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, **options
    )


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_script_without_a_guard_with_its_own_classes_and_lambdas(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        PROGRAM.format(
            body=textwrap.dedent(
                f"""
                twice = lambda samples: [MAIN == os.getpid(), sum(samples)]
                loader = DataLoader(Mine(), 4, num_workers=2, collate_fn=twice,
                                    multiprocessing_context="{method}", worker_init_fn=lambda worker: None)
                batches = list(loader)
                expected = [sum(2 * i for i in range(at, at + 4)) for at in range(0, 400, 4)]
                assert [total for _, total in batches] == expected
                assert not any(here for here, _ in batches)
                print("fine")
                """
            )
        )
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert (ran.stdout, ran.stderr) == ("fine\n", "")


def test_a_killed_worker_is_named_and_its_batch_made_again(tmp_path):
    once = tmp_path / "once"
    loader = DataLoader(Deadly(once), batch_size=4, num_workers=2, worker_init_fn=do_nothing)
    with pytest.warns(
        RuntimeWarning, match=r"worker \d \(pid \d+\) was killed by signal 9 .* sample 17;"
    ) as caught:
        batches = list(loader)
    assert torch.cat(batches).tolist() == list(range(40))
    assert len(caught) == 1
    with pytest.warns(RuntimeWarning), pytest.raises(feedline.WorkerError) as error:
        list(DataLoader(Deadly(None), batch_size=4, num_workers=2, worker_init_fn=do_nothing))
    assert (error.value.signal, error.value.sample) == (signal.SIGKILL, 17)
    assert error.value.pid != os.getpid()


def test_a_killed_worker_is_waited_for_once(tmp_path, monkeypatch):
    asked, ask = [], Server.exit_code

    def exit_code(server, pid, seconds):
        asked.append(pid)
        return ask(server, pid, seconds)

    monkeypatch.setattr(Server, "exit_code", exit_code)
    dataset = Deadly(tmp_path / "once")
    loader = DataLoader(
        dataset, 4, num_workers=2, multiprocessing_context="forkserver", worker_init_fn=do_nothing
    )
    with pytest.warns(RuntimeWarning, match="was killed by signal 9"):
        assert torch.cat(list(loader)).tolist() == list(range(40))
    # Its exit code was collected with the first answer; a second one never comes.
    assert asked and len(asked) == len(set(asked))


class Deadly(torch.utils.data.Dataset):
    def __init__(self, once):
        self.once = once

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 17 and (self.once is None or not self.once.exists()):
            if self.once is not None:
                self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def members(session):
    shown = subprocess.run(["ps", "-o", "stat=", "-s", str(session)], capture_output=True, text=True).stdout
    return [line for line in shown.split() if not line.startswith("Z")]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_no_process_outlives_the_program(method, how):
    body = f"""
        loader = DataLoader(Mine(), 2, num_workers=2, multiprocessing_context="{method}",
                            worker_init_fn=lambda worker: None)
        for number, batch in enumerate(loader):
            if number == 3:
                print("ready", flush=True)
                time.sleep(3600)
        """
    code = PROGRAM.format(body=textwrap.dedent(body))
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout.readline() == "ready\n"
    assert len(members(program.pid)) >= 3
    if how == signal.SIGINT:
        os.killpg(program.pid, how)
    else:
        program.kill()
    _, errors = program.communicate(timeout=HANG)
    assert errors.count("Traceback") == (1 if how == signal.SIGINT else 0), errors
    until(lambda: not members(program.pid), "the end of its workers")


def test_a_forked_child_makes_its_own_workers():
    ran = run_program(
        """
        loader = DataLoader(Mine(), 50, num_workers=1, executor="processes", persistent_workers=True)
        assert len(list(loader)) == 8
        child = os.fork()
        if child == 0:
            assert len(list(loader)) == 8
            loader.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(list(loader)) == 8
        print("fine")
        """
    )
    assert ran.stdout == "fine\n", ran.stderr


def test_leaving_an_epoch_early_and_two_at_once():
    loader = DataLoader(Numbers(40), batch_size=4, num_workers=2, executor="processes")
    for _, labels in loader:
        assert labels.tolist() == [0, 1, 2, 3]
        break
    both = [(one[1].tolist(), other[1].tolist()) for one, other in zip(loader, loader, strict=True)]
    assert both == [([at, at + 1, at + 2, at + 3],) * 2 for at in range(0, 40, 4)]
    loader.close()
    assert len(list(loader)) == 10
    del loader
    gc.collect()


def test_workers_that_do_not_persist_let_the_data_set_go_and_see_it_anew():
    dataset = Changing()
    options = {"worker_init_fn": do_nothing, "multiprocessing_context": "forkserver"}
    loader = DataLoader(dataset, 4, num_workers=1, executor="processes", **options)
    assert torch.cat(list(loader)).tolist() == [0] * 8
    dataset.value = 5
    assert torch.cat(list(loader)).tolist() == [5] * 8
    # One that is killed while it rests is replaced.
    os.kill(loader._idle._processes[0].pid, signal.SIGKILL)
    dataset.value = 6
    assert torch.cat(list(loader)).tolist() == [6] * 8
    assert loader._idle.slots._free == []
    loader.close()


class Changing(torch.utils.data.Dataset):
    value = 0

    def __init__(self):
        self.value = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.value


def test_the_next_epoch_is_made_ahead_unless_the_program_draws():
    def epochs(kind, draw, **options):
        torch.manual_seed(3)
        loader = kind(Numbers(48, (1,)), 8, shuffle=True, num_workers=2, persistent_workers=True, **options)
        seen = []
        for _ in range(4):
            seen.append([labels.tolist() for _, labels in loader])
            if draw:
                torch.rand(1)
        return seen, loader

    for draw in (False, True):
        expected, _ = epochs(torch.utils.data.DataLoader, draw)
        seen, loader = epochs(DataLoader, draw, executor="threads")
        assert seen == expected
        assert (loader._guess is not None) is not draw
        loader.close()


def test_stale_modules_are_not_needed(tmp_path):
    """A class that exists only in the program's main module is sent by value."""
    folder = Path(tmp_path)
    (folder / "mine.py").write_text(
        "import torch\nclass Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, index): return index\n"
    )
    ran = run_program(
        """
        sys.path.insert(0, sys.argv[1])
        import mine
        print(len(list(DataLoader(mine.Data(), num_workers=1, worker_init_fn=lambda worker: None))))
        """,
        str(folder),
    )
    assert ran.stdout == "8\n", ran.stderr


def test_timeouts_are_torchs():
    class Slow(Sleeping):
        def __getitem__(self, index):
            time.sleep(3600)

    loader = DataLoader(Slow(), num_workers=1, timeout=0.2, executor="processes", worker_init_fn=do_nothing)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        list(loader)
    loader.close()


def test_nothing_warns_without_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(DataLoader(Numbers(8), num_workers=1, executor="threads"))) == 8


def test_a_program_with_many_open_files_has_workers() -> None:
    """select() knows descriptors up to 1023 only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1200)]
    try:
        if Server._one is not None:
            Server._one.close()
        options = {"num_workers": 2, "multiprocessing_context": "forkserver", "worker_init_fn": do_nothing}
        loader = DataLoader(list(range(40)), 4, **options)
        assert [batch.tolist() for batch in loader] == [list(range(at, at + 4)) for at in range(0, 40, 4)]
        os.kill(loader._idle._processes[0].pid, signal.SIGKILL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert len(list(loader)) == 10
        loader.close()
    finally:
        for fd in taken:
            os.close(fd)


def test_no_thread_waits_for_torchs_generator(monkeypatch):
    """torch holds its generator's lock while it makes a tensor of its state. Garbage that is collected then
    may let another thread run: if that one asks for the state too, both wait for ever."""
    seen = []

    def state():
        seen.append((threading.current_thread() is threading.main_thread(), gc.isenabled()))
        return torch.default_generator.get_state()

    monkeypatch.setattr(torch, "get_rng_state", state)
    for executor in ("threads", "auto"):
        loader = DataLoader(Sleeping(), batch_size=2, num_workers=2, executor=executor)
        assert len(list(loader)) == len(loader)
        loader.close()
    assert set(seen) <= {(True, False)} and gc.isenabled()
