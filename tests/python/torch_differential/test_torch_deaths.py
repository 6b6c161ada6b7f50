"""Workers that die or hang, and programs that end: nobody waits for ever, and nobody is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import feedline
import pytest
from comparison import WARNINGS, Raised, build, epochs, no_init, numbers, steps
from conftest import HANG, until
from failures import Deadly, Failing, Hanging, hanging_collate
from map_sets import Large, Squares

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in WARNINGS),
    pytest.mark.filterwarnings("ignore:.*Its batch is made again:RuntimeWarning"),
    # One that is killed before it has its data set.
    pytest.mark.filterwarnings("ignore:.*A new worker takes its place:RuntimeWarning"),
    # torch's loader, when its worker is killed from here.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(not os.path.exists("/proc/self"), reason="processes are counted in /proc"),
]

OURS = {"executor": "processes", "worker_init_fn": no_init}
ENDINGS = {"exit": 3, "kill": -9, "segfault": -11, "abort": -6}


def family(root: int) -> set[int]:
    """All living descendants of a process, from /proc: workers, servers, whatever was started."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if stat[0] != "Z":
                parents[int(entry)] = int(stat[1])
    found, todo = set(), [root]
    while todo:
        parent = todo.pop()
        children = {pid for pid, its in parents.items() if its == parent} - found
        found |= children
        todo.extend(children)
    return found


def alive(pids: set[int]) -> set[int]:
    left = set()
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if stat[0] != "Z":
            left.add(pid)
    return left


def gone(pids: set[int]) -> None:
    """Waits until they have ended."""
    until(lambda: not alive(pids), f"the end of {pids}")


def workers_of(pid: int) -> set[int]:
    """Of a family, those that call themselves workers."""
    named = set()
    for one in family(pid):
        try:
            if Path(f"/proc/{one}/comm").read_text().strip() == "feedline-worker":
                named.add(one)
        except OSError:
            continue
    return named


def started(pid: int, count: int, before: set[int] = frozenset()) -> set[int]:  # type: ignore[assignment]
    """So many workers, which may still be on their way."""
    until(lambda: len(workers_of(pid) - before) >= count, f"{count} workers")
    found = workers_of(pid) - before
    assert len(found) == count
    return found


def earlier() -> set[int]:
    """The workers of earlier loaders, which are not ours to count."""
    gc.collect()
    return workers_of(os.getpid())


@pytest.mark.parametrize(("loader", "way"), [("torch", "kill"), *(("feedline", way) for way in ENDINGS)])
def test_a_worker_that_always_dies_is_reported(loader: str, way: str) -> None:
    """As a RuntimeError with the process's number; ours also names the signal and the sample."""
    settings: dict[str, Any] = OURS if loader == "feedline" else {"multiprocessing_context": "fork"}
    iterator = iter(build(loader, Deadly(way), batch_size=2, num_workers=2, **settings))
    with pytest.raises(RuntimeError, match="pid") as caught:
        for _ in range(6):
            next(iterator)
    if loader == "feedline":
        error = caught.value
        assert isinstance(error, feedline.WorkerError)
        assert error.sample == 5 and "5" in str(error)
        code = ENDINGS[way]
        assert (error.exit_code, error.signal) == (code, None if code > 0 else -code)


@pytest.mark.parametrize("way", ["exit", "kill"])
def test_a_worker_that_dies_once_is_replaced(way: str, tmp_path: Path) -> None:
    """Nothing is lost, nothing comes twice; torch's loader ends here."""
    data = Deadly(way, str(tmp_path / "died"))
    [batches] = epochs("feedline", data, batch_size=2, num_workers=2, **OURS)
    assert (tmp_path / "died").exists()
    assert numbers(batches) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_a_worker_killed_from_outside_is_replaced() -> None:
    before = earlier()
    made = build("feedline", Squares(60), batch_size=2, num_workers=2, persistent_workers=True, **OURS)
    iterator = iter(made)
    taken = [next(iterator)]
    ours = started(os.getpid(), 2, before)
    os.kill(min(ours), signal.SIGKILL)
    taken += steps(iterator)
    assert [batch[0].tolist() for batch in taken] == [[n, n + 1] for n in range(0, 60, 2)]
    assert_ended(made, workers_of(os.getpid()) - before)


def test_exit_is_no_way_out_for_a_sample() -> None:
    """SystemExit ends a torch worker; ours must neither hang nor end the program."""
    with pytest.raises((RuntimeError, SystemExit)):
        list(build("feedline", Deadly("system exit"), batch_size=2, num_workers=1, timeout=HANG, **OURS))


@pytest.mark.parametrize("loader", ["torch", "feedline"])
@pytest.mark.parametrize("place", ["sample", "collate_fn"])
def test_what_hangs_is_ended_by_the_timeout(loader: str, place: str) -> None:
    settings: dict[str, Any] = OURS if loader == "feedline" else {"multiprocessing_context": "fork"}
    data: Any = Hanging() if place == "sample" else list(range(8))
    collate = hanging_collate if place == "collate_fn" else None
    before = earlier()
    made = build(loader, data, batch_size=2, num_workers=1, timeout=HANG, collate_fn=collate, **settings)
    iterator = iter(made)
    assert len([next(iterator), next(iterator)]) == 2
    # From now on, so that the start of a worker takes what it takes.
    waiting = made._core.feed if loader == "feedline" else iterator
    assert waiting._timeout == HANG
    waiting._timeout = 0.2
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(iterator)
    if loader == "feedline":
        assert_ended(made, workers_of(os.getpid()) - before)
    else:
        # torch's worker would be waited for; it is this process's child.
        for worker in iterator._workers:
            worker.kill()


def assert_ended(made: Any, pids: set[int]) -> None:
    """A loader that is closed leaves no worker, also one that is in the middle of a sample."""
    made.close()
    gone(pids)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("how", ["whole epoch", "left early", "after an error", "never asked"])
def test_a_deleted_loader_leaves_no_worker(how: str, persistent: bool) -> None:
    before = earlier()
    data = Failing("KeyError") if how == "after an error" else Large(40)
    # Forks of the program end with their epoch; others rest until the next one.
    method = {"multiprocessing_context": "forkserver"} if how == "whole epoch" else {}
    settings: dict[str, Any] = {"persistent_workers": persistent, **OURS, **method}
    made = build("feedline", data, batch_size=2, num_workers=2, **settings)
    iterator = iter(made)
    if how == "whole epoch":
        steps(iterator)
    elif how == "left early":
        next(iterator)
    elif how == "after an error":
        assert any(isinstance(step, Raised) for step in steps(iterator, most=3))
    ours = started(os.getpid(), 2, before)
    del iterator, made
    gc.collect()
    gone(ours)


PROGRAM = """
import os, sys, time
sys.path.insert(0, {folder!r})
from feedline.torch import DataLoader
from map_sets import Large
loader = DataLoader(Large(400), batch_size=4, num_workers=2, executor={executor!r},
                    persistent_workers={persistent}, multiprocessing_context={context!r})
iterator = iter(loader)
for _ in range(4):
    batch = next(iterator)
print("ready", flush=True)
{rest}
"""

WAIT = "for batch in iterator: time.sleep(3600)"


def start(rest: str, executor: str = "processes", context: str | None = None, **extra: Any) -> Any:
    """Runs a program that has a loader with workers, up to the point where it says so."""
    text = PROGRAM.format(
        folder=os.path.dirname(__file__), executor=executor, context=context, persistent=True, rest=rest
    )
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    program = subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line == "ready\n", program.communicate()
    return program


@pytest.mark.parametrize(
    ("executor", "context"),
    [("processes", None), ("processes", "fork"), ("threads", None)],
)
def test_ctrl_c_ends_everything_at_once(executor: str, context: str | None) -> None:
    """The whole group gets the signal, as from a terminal."""
    program = start(WAIT, executor, context)
    started(program.pid, 2 if executor == "processes" else 0)
    everybody = family(program.pid)
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=HANG)
    gone(everybody)
    assert "KeyboardInterrupt" in errors and program.returncode != 0
    # One traceback: the workers do not print theirs.
    assert errors.count("Traceback (most recent call last)") == 1, errors


@pytest.mark.parametrize(
    ("rest", "code"),
    [("", 0), ("os._exit(6)", 6), ("raise ValueError('the end')", 1)],
    ids=["end", "_exit", "error"],
)
def test_a_program_that_ends_leaves_nobody(rest: str, code: int) -> None:
    program = start("input()\n" + rest)
    started(program.pid, 2)
    everybody = family(program.pid)
    _, errors = program.communicate("go on\n", timeout=HANG)
    assert program.returncode == code, errors
    gone(everybody)
    if code == 0:
        assert errors == ""


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_forked_child_may_drop_the_loader(executor: str) -> None:
    """torch's own workers are such children; the loader's threads and processes are not theirs to end."""
    rest = """
import gc
child = os.fork()
if child == 0:
    del iterator, loader, batch
    gc.collect()
    os._exit(0)
_, status = os.waitpid(child, 0)
rest = sum(1 for _ in iterator)
sys.exit(os.waitstatus_to_exitcode(status) or (0 if rest == 96 else 9))
"""
    program = start(rest, executor)
    _, errors = program.communicate(timeout=HANG)
    assert (program.returncode, errors) == (0, "")


@pytest.mark.parametrize("context", [None, "spawn"])
def test_kill_9_of_the_program_leaves_nobody(context: str | None) -> None:
    program = start(WAIT, "processes", context)
    started(program.pid, 2)
    everybody = family(program.pid)
    program.kill()
    program.communicate(timeout=HANG)
    gone(everybody)


class Unkept(Squares):
    """Its state cannot leave its process."""

    def state_dict(self) -> dict[str, Any]:
        return {"lock": threading.Lock()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


@pytest.mark.parametrize("context", [None, "forkserver"])
def test_a_state_that_cannot_be_pickled_is_named(context: str | None) -> None:
    """It used to end each worker at the beginning of each epoch."""
    made = build("feedline", Unkept(8), batch_size=2, num_workers=2, multiprocessing_context=context, **OURS)
    for _ in range(2):
        iterator = iter(made)
        with pytest.raises(TypeError, match=r"cannot pickle.*lock"):
            made.state_dict()
            next(iterator)
