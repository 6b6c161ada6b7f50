"""Worker processes that are stopped, slow or killed at any moment: batches stay the same, and nobody waits
for ever without a word."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
import torch
from conftest import until
from feedline.torch import DataLoader
from feedline.workers import watch
from feedline.workers.channel import Channel
from feedline.workers.server import Server
from torch.utils.data import Dataset, IterableDataset

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="processes are seen in /proc"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

METHODS = ["forkserver", "spawn", "fork"]
ROWS, BATCH = 48, 4


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Looks are many; what is seen in them is the same."""
    monkeypatch.setattr(watch, "INTERVAL", 0.01)


def state(pid):
    """A process's state as /proc shows it, or None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def is_gone(pid):
    return state(pid) in (None, "Z", "X")


def stop(pid):
    """Stops a process and returns when it is stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")


class Marker:
    """A file that is made once, whoever comes first; it holds the number of the process that did it."""

    def __init__(self, path):
        self.path = str(path)

    def first(self):
        try:
            fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(fd, str(os.getpid()).encode())
        os.close(fd)
        return True

    @property
    def pid(self):
        return int(Path(self.path).read_text())


class Numbers(Dataset):
    """Samples that say who they are in many bytes; `at` one of them, `act` happens in a worker."""

    def __init__(self, act=None, at=17, rows=ROWS, bound=False):
        self.act, self.at, self.rows, self.home = act, at, rows, os.getpid()
        if bound:
            self.bound = None

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        if index == self.at and self.act is not None and os.getpid() != self.home:
            self.act()
        return np.full(1000, index, np.int32)


class Stateful(Numbers):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Stream(IterableDataset):
    def __init__(self, act=None, at=17):
        self.act, self.at = act, at

    def __iter__(self):
        for index in range(ROWS):
            if index == self.at and self.act is not None:
                self.act()
            yield index


class StopOnce:
    def __init__(self, marker):
        self.marker = marker

    def __call__(self, *_):
        if self.marker.first():
            os.kill(os.getpid(), signal.SIGSTOP)


class KillOnce(StopOnce):
    def __call__(self, *_):
        if self.marker.first():
            os.kill(os.getpid(), signal.SIGKILL)


def stop_always(*_):
    os.kill(os.getpid(), signal.SIGSTOP)


def kill_always(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def do_nothing(*_):
    pass


def build(dataset, init=do_nothing, workers=2, method="forkserver", **options):
    options = {"executor": "processes", "prefetch_factor": 2, **options}
    return DataLoader(
        dataset, BATCH, num_workers=workers, worker_init_fn=init, multiprocessing_context=method, **options
    )


def firsts(batches):
    """The numbers that batches of `Numbers` hold; all bytes of each sample agree."""
    found = []
    for batch in batches:
        rows = np.asarray(batch)
        assert (rows == rows[:, :1]).all()
        found.append(rows[:, 0].tolist())
    return found


EXPECTED = [list(range(at, at + BATCH)) for at in range(0, ROWS, BATCH)]


@contextlib.contextmanager
def hearing(act=None):
    """What the program is warned of; `act` happens with each warning."""
    said = []

    def show(message, *_, **__):
        said.append(str(message))
        if act is not None:
            act(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = show
        yield said


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_worker_is_named_and_its_batch_made_elsewhere(method, workers, tmp_path):
    marker = Marker(tmp_path / "stopped")
    loader = build(Numbers(StopOnce(marker)), workers=workers, method=method)
    with hearing() as said:
        assert firsts(loader) == EXPECTED
    (text,) = said
    assert f"(pid {marker.pid}) is stopped while it was making batch 4, sample 17" in text
    assert text.startswith("worker ") and f"kill -CONT {marker.pid}" in text
    loader.close()
    assert is_gone(marker.pid)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_worker_of_a_loader_is_named_and_its_batch_made_elsewhere(workers, tmp_path):
    marker = Marker(tmp_path / "stopped")

    def hashes(dataset):
        options = {"executor": "processes", "num_workers": workers, "worker_init_fn": do_nothing}
        with feedline.Loader(dataset, batch_size=BATCH, shuffle=True, seed=3, **options) as loader:
            return [np.asarray(batch).tobytes() for batch in loader]

    undisturbed = hashes(Numbers())
    # Not in a last batch, with which the other worker may be making the next epoch's first ones.
    sample = int(np.frombuffer(undisturbed[4], np.int32)[0])
    with hearing() as said:
        assert hashes(Numbers(StopOnce(marker), at=sample)) == undisturbed
    assert len(said) == 1 and f"(pid {marker.pid}) is stopped while it was making batch" in said[0]
    assert is_gone(marker.pid)


def test_a_continued_worker_writes_into_no_batch_of_others(tmp_path):
    """It is stopped in the last row of a batch, so that it writes that row when it goes on."""
    marker = Marker(tmp_path / "stopped")
    loader = build(Numbers(StopOnce(marker), at=19), persistent_workers=True)
    kept = []
    with hearing() as said:
        kept += [batch for _ in range(2) for batch in loader]
    assert len(said) == 1
    assert state(marker.pid) == "T"
    (executor,) = {loader._idle or loader._guess[2]}
    assert [process.pid for process in executor._aside] == [marker.pid]
    os.kill(marker.pid, signal.SIGCONT)
    # It answers, ends by itself, and its answer is dropped.
    while executor._aside:
        executor.wait(1)
    assert is_gone(marker.pid)
    kept += list(loader)
    assert firsts(kept) == EXPECTED * 3
    loader.close()


def test_a_worker_that_is_stopped_while_idle_is_replaced(tmp_path):
    loader = build(Numbers(), persistent_workers=True)
    assert firsts(loader) == EXPECTED
    processes = loader._guess[2]._processes
    until(lambda: all(process.sight().pid == process.pid for process in processes))
    pids = [process.pid for process in processes]
    for pid in pids:
        stop(pid)
    with hearing() as said:
        assert firsts(loader) + firsts(loader) == EXPECTED * 2
    assert {pid for pid in pids if any(f"(pid {pid}) is stopped" in text for text in said)} == set(pids)
    loader.close()
    assert all(map(is_gone, pids))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("act", [StopOnce, KillOnce])
def test_a_worker_that_ends_or_stops_before_it_began_is_replaced(method, act, tmp_path):
    marker = Marker(tmp_path / "happened")
    # Forks of the program end with their epoch, and then nobody is missed.
    loader = build(Numbers(), init=act(marker), method=method, persistent_workers=method == "fork")
    with hearing() as said:
        assert firsts(loader) == EXPECTED
        # The other worker may have made all batches before anybody looked.
        while not said:
            (loader._idle or loader._guess[2]).wait(1)
    what = "is stopped" if act is StopOnce else "was killed by signal 9 (SIGKILL)"
    assert f"(pid {marker.pid}) {what} before it could begin" in said[0]
    loader.close()
    assert is_gone(marker.pid)


def test_a_loaders_worker_that_is_killed_before_it_began_is_replaced(tmp_path):
    for act in (StopOnce, KillOnce):
        marker = Marker(tmp_path / act.__name__)
        options = {"executor": "processes", "num_workers": 1, "worker_init_fn": act(marker)}
        with hearing() as said, feedline.Loader(Numbers(), batch_size=BATCH, **options) as loader:
            assert firsts(loader) == EXPECTED
        assert len(said) == 1 and f"(pid {marker.pid})" in said[0] and "before it could begin" in said[0]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_worker_that_is_killed_at_its_birth_is_replaced(method):
    loader = build(Numbers(), method=method)
    with hearing() as said:
        batches = iter(loader)
        for process in loader._epoch()._executor._processes:
            os.kill(process.pid, signal.SIGKILL)
        assert firsts(batches) == EXPECTED
    assert len(said) == 2
    loader.close()


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_never_begin_are_reported(method):
    with hearing(), pytest.raises(feedline.WorkerError, match=r"SIGKILL.* before it could begin"):
        list(build(Numbers(), init=kill_always, method=method, workers=1))
    with hearing(), pytest.raises(feedline.WorkerError, match="is stopped before it could begin"):
        list(build(Numbers(), init=stop_always, method=method, workers=1))


def test_a_sample_that_always_stops_its_worker_is_reported_and_no_other():
    batches = iter(build(Numbers(stop_always)))
    with hearing() as said:
        taken = [next(batches) for _ in range(4)]
        with pytest.raises(feedline.WorkerError, match="is stopped while it was making batch 4, sample 17"):
            next(batches)
        taken += list(batches)
    assert len(said) == 2
    assert firsts(taken) == EXPECTED[:4] + EXPECTED[5:]


@pytest.mark.parametrize("kind", ["stream", "state", "seed"])
def test_what_only_one_worker_can_make_waits_until_that_goes_on(kind, tmp_path):
    marker = Marker(tmp_path / "stopped")
    act = StopOnce(marker)
    dataset = Stream(act) if kind == "stream" else Stateful(act) if kind == "state" else Numbers(act)
    loader = build(dataset, workers=1, random="worker" if kind == "seed" else "batch")
    with hearing(lambda _: os.kill(marker.pid, signal.SIGCONT)) as said:
        batches = list(loader)
    assert [batch.flatten().tolist()[:: 1 if kind == "stream" else 1000] for batch in batches] == EXPECTED
    (text,) = said
    assert text.startswith(f"worker 0 (pid {marker.pid}) is stopped while it was making batch 4")
    assert f"kill -CONT {marker.pid}" in text
    assert loader._idle.restarts == 0
    loader.close()


def test_a_loaders_stream_waits_until_its_reader_goes_on(tmp_path):
    marker = Marker(tmp_path / "stopped")
    with hearing(lambda _: os.kill(marker.pid, signal.SIGCONT)) as said:
        stream = Stream(StopOnce(marker))
        with feedline.Loader(stream, batch_size=BATCH, executor="processes", num_workers=1) as loader:
            assert [np.asarray(batch).tolist() for batch in loader] == EXPECTED
    assert len(said) == 1 and "a stream goes on only in the worker that reads it" in said[0]


def test_a_worker_with_random_numbers_of_its_own_is_not_begun_anew():
    """Another one would begin its numbers from the start, and batches would differ without a word."""
    loader = build(Numbers(kill_always), workers=1, random="worker")
    with pytest.raises(feedline.WorkerError, match=r"SIGKILL.* sample 17"), hearing() as said:
        list(loader)
    assert said == []


class Parts(IterableDataset):
    """The second worker has all but one batch."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info().id
        return iter(range(4) if worker == 0 else range(4, ROWS))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_streams_worker_that_is_done_may_end(how):
    loader = build(Parts(), persistent_workers=True)
    with hearing():
        for _ in range(2):
            batches = iter(loader)
            taken = [next(batches).tolist()]
            executor = loader._epoch()._executor
            while not (executor._processes[0].ended and not executor._processes[0].open):
                taken.append(next(batches).tolist())
            pid = executor._processes[0].pid
            if how == signal.SIGSTOP:
                stop(pid)
                # Seen before the next epoch begins, in which it would be given work.
                while executor._processes[0].pid == pid:
                    executor._look()
            else:
                os.kill(pid, how)
                until(lambda pid=pid: is_gone(pid))
            taken += [batch.tolist() for batch in batches]
            assert taken == EXPECTED
    loader.close()
    assert is_gone(pid)


class Late(IterableDataset):
    """In its first epoch it comes to its end when somebody lets it go on, after two batches."""

    def __init__(self, marker, waiting):
        self.marker, self.waiting = marker, waiting

    def __iter__(self):
        if not self.marker.first():
            yield from range(ROWS)
            return
        yield from range(2 * BATCH)
        self.waiting()


@pytest.mark.parametrize("how", ["late", "killed"])
def test_an_end_in_the_epoch_before_does_not_end_the_next(how, tmp_path):
    waiting, marker = Waiting(tmp_path), Marker(tmp_path / "first")
    loader = build(Late(marker, waiting), workers=1, persistent_workers=True)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == EXPECTED[:2]
    until(waiting.came.exists)
    batches = iter(loader)
    if how == "late":
        waiting.pipe.write_bytes(b"go")
    else:
        os.kill(marker.pid, signal.SIGKILL)
    with hearing() as said:
        assert [batch.tolist() for batch in batches] == EXPECTED
    assert len(said) == (how == "killed")
    loader.close()


def test_a_streams_worker_that_is_killed_before_its_epoch_began_is_replaced(monkeypatch):
    """It has its tasks, as nobody knows yet that it will not read them."""
    loader = build(Stream(), workers=1, persistent_workers=True)
    assert [batch.tolist() for batch in loader] == EXPECTED
    (process,) = loader._idle._processes
    monkeypatch.setattr(watch, "INTERVAL", 3600.0)
    stop(process.pid)
    batches = iter(loader)
    assert loader._epoch()._executor._processes == [process] and process.open
    os.kill(process.pid, signal.SIGKILL)
    with hearing() as said:
        assert [batch.tolist() for batch in batches] == EXPECTED
    assert len(said) == 1 and f"(pid {process.pid}) was killed by signal 9" in said[0]
    loader.close()


@pytest.mark.parametrize("how", ["killed", "stopped", "killed while it was stopped"])
def test_the_server_may_end_or_stop_at_any_time(how):
    assert firsts(build(Numbers(), workers=1)) == EXPECTED
    server = Server._one.process
    if how == "killed":
        os.kill(server, signal.SIGKILL)
    else:
        stop(server)
    loader = build(Numbers())
    with hearing() as said:
        batches = iter(loader)
        if how == "killed while it was stopped":
            os.kill(server, signal.SIGKILL)
        assert firsts(batches) == EXPECTED
    assert Server._one.process != server and is_gone(server)
    if how == "stopped":
        assert len(said) == 1 and f"forked from (pid {server}) is stopped" in said[0]
    else:
        assert all(f"forked from (pid {server}) was killed by signal 9" in text for text in said)
    loader.close()


def test_workers_outlive_their_server():
    loader = build(Numbers(), persistent_workers=True)
    batches = iter(loader)
    taken = [next(batches)]
    os.kill(Server._one.process, signal.SIGKILL)
    assert firsts([*taken, *batches]) == EXPECTED
    pid = loader._guess[2]._processes[0].pid
    os.kill(pid, signal.SIGKILL)
    with hearing():
        assert firsts(loader) == EXPECTED
    loader.close()


class Keyed(Dataset):
    """Samples whose indices are larger than what a connection holds."""

    def __init__(self, act):
        self.act = act

    def __getitem__(self, key):
        self.act()
        return len(key)


def test_no_task_waits_for_a_stopped_worker_to_read_it(tmp_path):
    keys = ["x" * (1_000_000 + at) for at in range(6)]
    act = StopOnce(Marker(tmp_path / "stopped"))
    options = {"sampler": keys, "num_workers": 1, "executor": "processes", "worker_init_fn": do_nothing}
    with hearing() as said:
        batches = list(DataLoader(Keyed(act), prefetch_factor=4, **options))
    assert torch.cat(batches).tolist() == [len(key) for key in keys] and len(said) == 1


def test_a_message_that_finds_no_room_goes_later_with_its_files(tmp_path):
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    (tmp_path / "file").write_text("content")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    ours.post("x" * 3_000_000, (fd,))
    ours.post("last", (fd,))
    os.close(fd)
    assert ours.is_full
    received = []
    while len(received) < 2:
        ours.flush()
        if (message := other.poll()) is not None:
            received.append(message)
    assert [len(text) for text, _ in received] == [3_000_000, 4] and not ours.is_full
    for _, (copy,) in received:
        assert os.pread(copy, 100, 0) == b"content"
        os.close(copy)
    ours.close()
    other.close()


class Waiting:
    """Blocks until somebody opens the other end of a pipe, and notes who came."""

    def __init__(self, folder):
        self.came, self.pipe = folder / "came", folder / "pipe"
        os.mkfifo(self.pipe)

    def __call__(self):
        with open(self.came, "a") as file:
            file.write(f"{os.getpid()}\n")
        self.pipe.read_bytes()


def test_a_slow_sample_is_named_and_waited_for(tmp_path, monkeypatch):
    """Each look is a second by this clock."""
    now = iter(range(1 << 40))
    monkeypatch.setattr(watch, "clock", lambda: float(next(now)))
    monkeypatch.setattr(watch, "INTERVAL", 1.0)
    monkeypatch.setenv("FEEDLINE_STALL_WARNING", "20")
    waiting = Waiting(tmp_path)
    with hearing(lambda text: "sample 17" in text and waiting.pipe.write_bytes(b"go")) as said:
        loader = build(Numbers(waiting), workers=1)
        assert firsts(loader) == EXPECTED
    slow = [text for text in said if "sample 17" in text]
    assert len(slow) == 1 and "has made no progress for" in slow[0] and "batch 4" in slow[0]
    assert len(waiting.came.read_text().split()) == 1
    assert loader._idle.restarts == 0
    loader.close()


def test_the_time_until_a_slow_sample_is_named_is_checked(monkeypatch):
    assert watch.patience() == 300
    for text, seconds in [("0", float("inf")), ("2.5", 2.5)]:
        monkeypatch.setenv("FEEDLINE_STALL_WARNING", text)
        assert watch.patience() == seconds
    for text in ("soon", "-1", "nan", ""):
        monkeypatch.setenv("FEEDLINE_STALL_WARNING", text)
        with pytest.raises(ValueError, match=r"FEEDLINE_STALL_WARNING = .* number of seconds"):
            watch.patience()


def test_a_program_that_was_stopped_itself_finds_nobody_late_or_stopped(monkeypatch):
    """After Ctrl-Z and `fg`, hours have passed and workers may be continued after the program."""
    sight = watch.Sight(os.getpid())
    assert not sight.is_stopped() and not sight.is_gone()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sight = watch.Sight(child.pid)
    stop(child.pid)
    assert not sight.is_stopped(), "one look is not enough"
    assert sight.is_stopped()
    os.kill(child.pid, signal.SIGCONT)
    until(lambda: state(child.pid) != "T")
    assert not sight.is_stopped()
    stop(child.pid)
    assert not sight.is_stopped() and not sight.is_gone()
    sight.kill()
    child.wait()
    assert sight.is_gone() and not sight.is_stopped()
    child.stdin.close()


def test_a_worker_that_a_debugger_looks_at_is_not_replaced(monkeypatch):
    monkeypatch.setattr(watch, "_stat", lambda pid: ("t", 7, 9))
    sight = watch.Sight(1)
    assert not sight.is_stopped() and not sight.is_stopped()


def test_ctrl_c_while_a_worker_is_replaced_leaves_a_loader_that_begins_anew(tmp_path, monkeypatch):
    loader = build(Numbers(KillOnce(Marker(tmp_path / "killed"))), persistent_workers=True)
    batches = iter(loader)
    executor = loader._epoch()._executor

    def interrupted(number):
        raise KeyboardInterrupt

    monkeypatch.setattr(executor, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt), hearing():
        list(batches)
    assert "no other worker could be started: KeyboardInterrupt" in str(executor.broken)
    assert firsts(loader) == EXPECTED
    loader.close()


def test_a_server_that_was_replaced_for_another_loader_is_not_blamed_on_memory():
    assert firsts(build(Numbers(), workers=1)) == EXPECTED
    server = Server._one
    stop(server.process)
    first, second = build(Numbers()), build(Numbers())
    with hearing() as said:
        batches = iter(first), iter(second)
        assert firsts(batches[0]) == EXPECTED and firsts(batches[1]) == EXPECTED
    assert said and not any("memory runs out" in text for text in said)
    first.close()
    second.close()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("when", ["working", "starting"])
def test_close_ends_stopped_workers(method, when, tmp_path):
    loader = build(Numbers(), method=method, persistent_workers=True)
    batches = iter(loader)
    if when == "working":
        next(batches)
    processes = loader._epoch()._executor._processes
    for process in processes:
        until(lambda process=process: process.sight().pid == process.pid)
        stop(process.pid)
    loader.close()
    assert all(is_gone(process.pid) for process in processes)


@pytest.mark.parametrize("whom", ["workers of every method", "workers and the server"])
def test_a_program_with_stopped_workers_ends_and_leaves_nobody(whom):
    methods = METHODS if whom == "workers of every method" else ["forkserver"]
    program = f"""
        import os, signal, torch
        from feedline.torch import DataLoader
        from feedline.workers.server import Server

        class Mine(torch.utils.data.Dataset):
            def __len__(self):
                return 400
            def __getitem__(self, index):
                return index

        pids, kept = [], []
        for method in {methods}:
            loader = DataLoader(Mine(), 4, num_workers=2, multiprocessing_context=method,
                                worker_init_fn=lambda worker: None)
            batches = iter(loader)
            next(batches)
            pids += [process.sight().pid for process in loader._epoch()._executor._processes]
            kept.append((loader, batches))
        if {whom == "workers and the server"}:
            pids.append(Server._one.process)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        print(*pids, flush=True)
        """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    pids: list[Any] = [int(pid) for pid in ran.stdout.split()]
    assert len(pids) >= 2 * len(methods)
    until(lambda: all(map(is_gone, pids)))
