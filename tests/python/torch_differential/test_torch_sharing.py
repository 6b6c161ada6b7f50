"""What a data set shares with the program stays shared with its workers, as with torch's: shared memory,
mapped files, multiprocessing's objects. Each also where the program is not forked."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import mmap
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline.torch
import numpy as np
import pytest
import torch
import torch.multiprocessing
import torch.utils.data
from conftest import HANG, another_thread
from feedline.workers import channel, descriptors, parcel, shared_memory
from torch.utils.data import Dataset, IterableDataset, get_worker_info

LOADERS = ["torch", "feedline", "feedline beside a thread", "feedline, forkserver"]


@contextlib.contextmanager
def loading(name: str) -> Iterator[Any]:
    """A loader's class, in a program as the name says."""

    def make(dataset: Any, **options: Any) -> Any:
        kind = torch.utils.data.DataLoader if name == "torch" else feedline.torch.DataLoader
        if name != "torch" and not isinstance(dataset, IterableDataset):
            options["executor"] = "processes"
        if name == "feedline, forkserver":
            options["multiprocessing_context"] = "forkserver"
        return kind(dataset, **options)

    with another_thread() if name == "feedline beside a thread" else contextlib.nullcontext():
        yield make


class Counting(IterableDataset[Any]):
    """Tells its epoch, which the program sets in a shared tensor, as Hugging Face's streams do."""

    def __init__(self) -> None:
        self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        yield int(self.epoch) * 10 + info.id


@pytest.mark.parametrize("name", LOADERS)
def test_a_shared_tensor_is_shared_with_persistent_workers(name: str) -> None:
    with loading(name) as make:
        data = Counting()
        loader = make(data, batch_size=None, num_workers=2, persistent_workers=True)
        seen = []
        for epoch in range(3):
            data.epoch.fill_(epoch)
            seen.append(list(loader))
        assert seen == [[0, 1], [10, 11], [20, 21]]
        del loader


class Signalling(Dataset[int]):
    """Uses all that multiprocessing has."""

    def __init__(self, context: Any) -> None:
        self.value, self.array = context.Value("i", 0), context.Array("d", 3)
        self.lock, self.queue, self.event = context.Lock(), context.Queue(), context.Event()
        self.receiver, self.sender = context.Pipe(duplex=False)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        with self.value.get_lock():
            self.value.value += 1
        with self.lock:
            self.array[0] += 1
            self.sender.send(index)
        self.queue.put(index)
        return index + 100 * self.event.is_set()


CONTEXTS = {
    "the default": multiprocessing,
    "torch's": torch.multiprocessing,
    "spawn": multiprocessing.get_context("spawn"),
    "forkserver": multiprocessing.get_context("forkserver"),
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", LOADERS)
def test_what_multiprocessing_made_works_in_a_data_set(name: str, context: str) -> None:
    if name == "feedline, forkserver" and context in ("the default", "torch's"):
        pytest.skip("torch refuses these too")
    with loading(name) as make:
        data = Signalling(CONTEXTS[context])
        loader = make(data, batch_size=4, num_workers=2)
        assert torch.cat(list(loader)).tolist() == list(range(8))
        data.event.set()
        assert torch.cat(list(loader)).tolist() == list(range(100, 108))
        assert (data.value.value, data.array[0]) == (16, 16)
        assert sorted(data.queue.get(timeout=HANG) for _ in range(16)) == sorted([*range(8)] * 2)
        assert sorted(data.receiver.recv() for _ in range(16)) == sorted([*range(8)] * 2)
        data.queue.close()


class Holding(Dataset[int]):
    """Holds a lock in every sample, from the second one on also while the program leaves the epoch."""

    def __init__(self, context: Any) -> None:
        self.lock, self.held, self.left = context.Lock(), context.Event(), context.Event()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        with self.lock:
            if index:
                self.held.set()
                assert self.left.wait(HANG)
                # The program ends its workers meanwhile.
                sum(range(5_000_000))
        return index


@pytest.mark.parametrize("name", LOADERS)
def test_leaving_an_epoch_leaves_no_lock_held(name: str) -> None:
    """Neither for the program nor for the next epoch's workers."""
    context = CONTEXTS["forkserver" if name == "feedline, forkserver" else "the default"]
    with loading(name) as make:
        data = Holding(context)
        loader = make(data, batch_size=None, num_workers=1)
        for sample in loader:
            assert sample == 0 and data.held.wait(HANG)
            data.left.set()
            break
        del sample
        gc.collect()
        assert data.lock.acquire(timeout=HANG)
        data.lock.release()
        assert list(loader) == [0, 1, 2, 3]


def test_a_lock_that_cannot_be_sent_says_how_to_make_it() -> None:
    data = Signalling(multiprocessing)
    with pytest.raises(feedline.WorkerError, match=r"multiprocessing.get_context\('spawn'\)"):
        list(feedline.torch.DataLoader(data, num_workers=1, multiprocessing_context="spawn"))


class Tokens(Dataset[Any]):
    """Windows of a mapped file, in every form that a view of it has."""

    def __init__(self, path: Path, mode: Any) -> None:
        self.whole = np.memmap(path, np.int64, mode, shape=(1000, 4), offset=32)
        self.turned, self.plain = self.whole.T[::-1, 3:], np.asarray(self.whole)[5:900:3]
        self.tensor = torch.from_numpy(self.plain) if mode == "r+" else None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        tensor = -1 if self.tensor is None else int(self.tensor[index, 1])
        return self.whole[index].copy(), self.turned[:, index].copy(), self.plain[index].copy(), tensor


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_mapped_file_stays_one(name: str, mode: str, tmp_path: Path) -> None:
    np.arange(4004).tofile(tmp_path / "tokens")
    with loading(name) as make:
        data = Tokens(tmp_path / "tokens", mode)
        loader = make(data, batch_size=4, num_workers=1)
        for change in range(2):
            expected = [data[at] for at in range(12)]
            got = list(loader)
            for column in range(4):
                values = torch.cat([batch[column] for batch in got]).tolist()
                assert values == [np.asarray(sample[column]).tolist() for sample in expected]
            if mode != "r":
                data.whole[change + 5] = -7


def test_a_map_takes_no_memory_on_its_way(tmp_path: Path) -> None:
    """Also a file larger than memory: it has no blocks here, and copying it would fill them."""
    size = 1 << 40
    with open(tmp_path / "large", "wb") as file:
        file.truncate(size)
    store = parcel.Store()
    tokens = np.memmap(tmp_path / "large", np.uint16, "r")
    store.pack([tokens, tokens[10:20], np.asarray(tokens)])
    assert store.files == () and store.parcel is not None and len(store.parcel.head) < 4096
    whole, part, plain = parcel.unpack(store.parcel, [], store.shared.fds)
    assert isinstance(whole, np.memmap) and whole.shape == (size // 2,) and whole.filename == tokens.filename
    assert np.shares_memory(whole[10:20], part) and type(plain) is np.ndarray and not plain.flags.writeable
    store.close()


@pytest.mark.parametrize("numbers", ["the same", "others for mappings", "another file's"])
def test_a_mapped_file_is_known_by_device_and_inode(
    numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """btrfs and overlays give mappings another device's number than os.stat; other files are copied."""
    mapped, times = shared_memory._mapped, itertools.count()

    def elsewhere() -> Iterator[Any]:
        other = numbers == "others for mappings" or (numbers == "another file's" and next(times) == 0)
        for region in mapped():
            region.file = region.file[0] + other, region.file[1]
            yield region

    monkeypatch.setattr(shared_memory, "_mapped", elsewhere)
    np.arange(100_000).tofile(tmp_path / "numbers")
    array = np.memmap(tmp_path / "numbers", np.int64, "r")
    store = parcel.Store()
    store.pack(array)
    assert (store.files == ()) == (numbers != "another file's")
    assert store.parcel is not None
    there = parcel.unpack(store.parcel, list(store.files), store.shared.fds)
    assert there.tolist() == array.tolist()
    region = shared_memory.Shared().find(array.ctypes.data, array.nbytes)
    if region is not None:
        assert region.seen is not None
        region.seen = region.seen[0] + 1, region.seen[1]
        kind, arguments = region.__reduce__()
        with pytest.raises(FileNotFoundError, match="was replaced"):
            kind(*arguments)


def test_a_mapped_device_is_copied() -> None:
    with open("/dev/zero", "r+b", 0) as file:
        memory = mmap.mmap(file.fileno(), 1 << 17, mmap.MAP_PRIVATE)
    store = parcel.Store()
    store.pack(np.frombuffer(memory, np.uint8))
    assert store.parcel is not None
    there = parcel.unpack(store.parcel, list(store.files), store.shared.fds)
    assert len(there) == 1 << 17 and not there.any()


def test_a_mapped_file_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many views there are of it: looking reads a long list."""
    looks, is_clean = [], shared_memory._is_clean
    monkeypatch.setattr(shared_memory, "_is_clean", lambda region: looks.append(region) or is_clean(region))
    np.arange(1000).tofile(tmp_path / "numbers")
    array = np.memmap(tmp_path / "numbers", np.int64, "c")
    parcel.Store().pack([array[at:] for at in range(50)])
    array[0] = 1
    parcel.Store().pack([array[at:] for at in range(50)])
    assert len(looks) == 2


def test_arrays_travel_once_for_as_long_as_they_do_not_change() -> None:
    store = parcel.Store()
    data = {"kept": np.arange(100_000), "changed": np.arange(100_000), "tensor": torch.arange(100_000)}
    found = []
    for epoch in range(20):
        data["changed"][7] = epoch
        store.pack(data)
        assert store.parcel is not None
        places = {(store.files[file], at) for file, at, size in store.parcel.places if size >= 800_000}
        found.append(places)
        there = parcel.unpack(store.parcel, list(store.files), store.shared.fds)
        assert there["changed"][7] == epoch and (there["kept"] == data["kept"]).all()
        assert torch.equal(there["tensor"], data["tensor"])
    assert all(len(one & other) == 2 for one, other in itertools.pairwise(found))
    assert len(store.files) <= 3
    store.close()


def test_memory_of_arrays_that_are_gone_is_not_kept() -> None:
    """A small array that does not change held the memory of all that was packed with it."""
    store = parcel.Store()
    data = {"kept": np.arange(100_000), "large": np.arange(1_000_000)}
    store.pack(data)
    del data["large"]
    store.pack(data)
    assert store.parcel is not None and sum(store.parcel.sizes) < 2 * data["kept"].nbytes
    there = parcel.unpack(store.parcel, list(store.files), store.shared.fds)
    assert (there["kept"] == data["kept"]).all()
    store.close()


class Array(Dataset[Any]):
    def __init__(self) -> None:
        self.rows = np.zeros((8, 20_000))

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return float(self.rows[index, 11])


@pytest.mark.parametrize("name", LOADERS)
def test_an_array_that_changes_between_epochs_is_seen_as_it_is(name: str) -> None:
    with loading(name) as make:
        data = Array()
        loader = make(data, batch_size=4, num_workers=2)
        for epoch in range(3):
            data.rows[:, 11] = epoch
            assert torch.cat(list(loader)).tolist() == [epoch] * 8


class Odd(Dataset[int]):
    def __init__(self) -> None:
        self.held: Any = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_workers_survive_a_data_set_that_cannot_be_sent() -> None:
    data = Odd()
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "forkserver"}
    loader = feedline.torch.DataLoader(data, 2, **options)
    assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3]
    workers = [process.pid for process in loader._idle._processes]  # type: ignore[union-attr]
    data.held = (one for one in "ab")
    with pytest.raises(feedline.WorkerError, match="cannot be sent"):
        list(loader)
    data.held = None
    assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3]
    assert [process.pid for process in loader._idle._processes] == workers  # type: ignore[union-attr]
    loader.close()


class Version(Dataset[int]):
    def __init__(self) -> None:
        self.version = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return self.version


def test_no_two_workers_have_two_versions_of_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where descriptors run out while they are given the new one."""
    data = Version()
    options: dict[str, Any] = {"multiprocessing_context": "forkserver", "persistent_workers": True}
    loader = feedline.torch.DataLoader(data, 1, num_workers=2, **options)
    assert torch.cat(list(loader)).tolist() == [0] * 8
    # The one thing that gives workers that stay the data set again.
    loader.load_state_dict(loader.state_dict())
    data.version = 1
    workers, dup, copies = loader._idle, os.dup, []

    def fail(fd: int) -> int:
        copies.append(fd)
        if len(copies) == 4:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return dup(fd)

    # Of two descriptors for each worker, a page and an array's memory, the last one is missing.
    data.large = np.ones(1 << 17)  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", fail)
        with pytest.raises(descriptors.OutOfDescriptors):
            list(loader)
    assert len(copies) == 4
    # Of the old ones, only one had the new version.
    assert workers is not None and workers.broken is not None
    assert torch.cat(list(loader)).tolist() == [1] * 8
    loader.close()


def test_a_message_that_cannot_be_posted_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = channel.Channel.pair()
    dup, copies = os.dup, []

    def fail(fd: int) -> int:
        if copies:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        copies.append(dup(fd))
        return copies[0]

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", fail)
        with pytest.raises(OSError, match="ulimit"):
            ours.post("message", (theirs.fileno(), theirs.fileno()))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copies[0])
    ours.close()
    theirs.close()


PROGRAM = """
import os, threading
from feedline.torch import DataLoader
from torch.utils.data import IterableDataset

class Parent(IterableDataset):
    def __iter__(self):
        yield os.getppid()

assert list(DataLoader(Parent(), None, num_workers=1)) == [os.getpid()]
over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
[parent] = list(DataLoader(Parent(), None, num_workers=1))
assert parent != os.getpid()
over.set()
"""


def test_workers_are_forks_of_the_program_where_that_is_safe() -> None:
    """As torch's, they begin at once; beside a thread they come from the server."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
