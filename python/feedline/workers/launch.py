"""How worker processes begin: as forks of the program where that is safe, else in an interpreter of their
own, and what there is to know of how they end."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from typing import Any

from feedline.workers import torch_side
from feedline.workers.descriptors import advice
from feedline.workers.job import Job
from feedline.workers.native_code import KNOWN, is_native


def launch(code: str, end: socket.socket) -> subprocess.Popen[bytes]:
    """Starts an interpreter like this one that runs `code` with `end` as its connection."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    environment = dict(os.environ)
    # Workers are many; each computes on one core unless the program says otherwise.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    # Of pyarrow's allocator, which would start a thread when it is imported.
    environment.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # `-c` puts the current folder in front of sys.path; the program's own path follows it.
    program = f"import sys; sys.path[:] = {sys.path!r}; {code}({end.fileno()})"
    # A Ctrl-C in the terminal is the program's to answer, also while the interpreter starts.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with advice():
            return subprocess.Popen(
                [sys.executable, *flags, "-c", program],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=(end.fileno(),),
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# Libraries whose threads hold locks that a fork would leave held for ever, or that say so themselves.
_THREADED = ("cv2", "grpc", "jax", "polars", "ray", "tensorflow")
# Native code that starts no threads, beside that of the libraries in wide use that torch's users fork.
_QUIET = frozenset(
    {
        *("Cython", "_brotli", "_cffi_backend", "_soundfile", "_yaml", "aiohttp", "bcrypt", "brotli"),
        *("charset_normalizer", "contourpy", "cramjam", "cryptography", "cuda", "cytoolz", "frozendict"),
        *("frozenlist", "google", "google_crc32c", "greenlet", "jiter", "kiwisolver", "lmdb", "lxml"),
        *("markupsafe", "ml_dtypes", "msgspec", "multidict", "nltk", "optree", "propcache", "psutil"),
        *("pydantic_core", "requests", "rpds", "shapely", "simplejson", "snappy", "tornado", "tree"),
        *("triton", "ujson", "websockets", "wrapt", "xxhash", "yarl"),
    }
)
# Threads that wait and do nothing else. tqdm's is there as soon as there is a progress bar.
_HARMLESS = ("TMonitor",)


def not_to_fork() -> str | None:
    """Why the program should not be forked now, if there is a reason.

    A fork is how torch starts its workers: at once, with all that the program has, and sharing its
    memory. But only the thread that forks is there in the child, and what the others held is held for
    ever; and a GPU's driver does not survive it.
    """
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method != "fork":
        return f"multiprocessing's start method is {method!r}"
    this = threading.current_thread()
    for thread in threading.enumerate():
        if thread is not this and type(thread).__name__ not in _HARMLESS:
            return f"the program has a thread {thread.name!r}"
    loaded = next((name for name in _THREADED if name in sys.modules), None)
    if loaded is not None:
        return f"{loaded} is loaded, which does not survive it"
    unknown = _unknown_native_code(len(sys.modules))
    if unknown is not None:
        return f"{unknown} is loaded, whose native code may have threads that it needs"
    torch = sys.modules.get("torch")
    if torch is not None and any(
        device is not None and device.is_initialized() for device in (torch.cuda, getattr(torch, "xpu", None))
    ):
        return "the program uses a GPU"
    return None


@functools.lru_cache(1)
def _unknown_native_code(_loaded: int) -> str | None:
    """A library that is loaded of which nobody has said that it survives a fork. Only Python's own threads
    can be asked for; what a library has started by itself shows in nothing."""
    known = KNOWN | _QUIET | sys.stdlib_module_names
    for name, module in list(sys.modules.items()):
        if module is None or not is_native(module):
            continue
        # Some give themselves names without their package's.
        below = str(module.__file__).replace(os.sep, "/").rpartition("-packages/")[2]
        tops = {name.partition(".")[0], below.partition("/")[0].partition(".")[0]}
        if known.isdisjoint(tops) and not any(top.endswith("__mypyc") for top in tops):
            return name
    return None


def fork() -> int:
    """As os.fork, with what is printed so far printed once. Who calls this has asked `not_to_fork`, or
    was asked for a fork."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()
    if sys.version_info < (3, 12):
        return os.fork()
    with warnings.catch_warnings():
        # Libraries' own threads, which Python warns of, are always there.
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        return os.fork()


def enter_fork() -> None:
    """Makes a forked child a worker's process."""
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None:
        # As multiprocessing does in its own children: queues and locks begin anew.
        process._children = set()
        util._finalizer_registry.clear()
        util._run_after_forkers()
    if callable(signal.getsignal(signal.SIGTERM)):
        # The program's handler would save a state, or stop a training.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The program's other OpenMP threads are not here, and GNU's would wait for them.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    torch_side.one_openmp_thread()


def how_it_ended(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"was killed by signal {-code}"


def wait_for_child(pid: int, seconds: float) -> int | None:
    """A child's exit code, as soon as there is one."""
    end, pause = time.monotonic() + seconds, 0.0005
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def modules_of(job: Job) -> set[str]:
    """The modules that the data set's classes and functions come from."""
    found = {"numpy"}
    if job.torch:
        found.update(("torch", "torch.utils.data", "torch.utils.data._utils.worker"))
    seen: set[int] = set()
    todo: list[tuple[Any, int]] = [(job.dataset, 0), (job.collate, 0), (job.init, 0)]
    while todo:
        thing, depth = todo.pop()
        if id(thing) in seen or depth > 5 or len(seen) > 2000:
            continue
        seen.add(id(thing))
        kind = thing if isinstance(thing, type | types.FunctionType) else type(thing)
        module = getattr(kind, "__module__", None)
        if isinstance(module, str) and module in sys.modules:
            found.add(module)
        if isinstance(thing, list | tuple):
            todo.extend((one, depth + 1) for one in thing[:50])
        elif isinstance(thing, dict):
            todo.extend((one, depth + 1) for one in list(thing.values())[:50])
        elif not isinstance(thing, type):
            todo.extend((one, depth + 1) for one in list(getattr(thing, "__dict__", {}).values()))
    return {name for name in found if name not in ("__main__", "builtins")}
