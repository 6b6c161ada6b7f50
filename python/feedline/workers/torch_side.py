"""What torch needs in a worker: its worker info, one thread, and stacks that avoid /dev/shm."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from feedline.workers.job import Job
    from feedline.workers.slots import Slot

_local = threading.local()
_writing: Slot | None = None


def torch_module() -> Any:
    """torch, which the program has loaded."""
    return sys.modules["torch"]


def default_functions() -> dict[Any, Any]:
    """torch's own entries of default_collate_fn_map."""
    from torch.utils.data._utils import collate

    numbers = (numpy.bool_, numpy.number, numpy.object_)
    return {
        sys.modules["torch"].Tensor: collate.collate_tensor_fn,
        numpy.ndarray: collate.collate_numpy_array_fn,
        numbers: collate.collate_numpy_scalar_fn,
        float: collate.collate_float_fn,
        int: collate.collate_int_fn,
        str: collate.collate_str_fn,
        bytes: collate.collate_str_fn,
    }


def added_functions() -> dict[Any, Any]:
    """What the program has added to or changed in default_collate_fn_map."""
    from torch.utils.data._utils.collate import default_collate_fn_map

    known = default_functions()
    return {
        kind: function for kind, function in default_collate_fn_map.items() if known.get(kind) is not function
    }


def make_info(job: Job, worker: int, seed: int, method: str, asked: Callable[[], None] | None = None) -> Any:
    """torch's WorkerInfo; its constructor differs between torch's versions. `asked` is called
    whenever somebody reads its fields."""
    from torch.utils.data._utils.worker import WorkerInfo

    kind: Any = WorkerInfo
    if asked is not None:
        report = asked

        class Watched(WorkerInfo):
            def __getattribute__(self, name: str) -> Any:
                if not name.startswith("_"):
                    report()
                return super().__getattribute__(name)

        kind = Watched
    info = {"id": worker, "num_workers": job.num_workers, "seed": seed, "dataset": job.dataset}
    try:
        return kind(**info, worker_method=method)
    except TypeError:
        return kind(**info)


@contextmanager
def info_is(info: Any) -> Iterator[None]:
    """Meanwhile, torch's get_worker_info() says this; None leaves it alone."""
    if info is None:
        yield
        return
    from torch.utils.data._utils import worker

    before, worker._worker_info = worker._worker_info, info
    try:
        yield
    finally:
        worker._worker_info = before


@contextmanager
def seed_watched(asked: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, `asked` is called whenever somebody reads torch.initial_seed(): it is the program's in a
    thread, and in a process the seed that the sample was given."""
    torch = torch_module()
    kept = torch.initial_seed

    def initial_seed() -> int:
        asked()
        return int(kept())

    places = [place for place in (torch, torch.random) if place.initial_seed is kept]
    for place in places:
        place.initial_seed = initial_seed
    try:
        yield
    finally:
        for place in places:
            place.initial_seed = kept


def set_info(info: Any) -> None:
    """What torch.utils.data.get_worker_info() says in this process."""
    from torch.utils.data._utils import worker

    worker._worker_info = info


def get_worker_info() -> Any:
    """As torch's, and also in a worker that is a thread, where torch's says None."""
    from torch.utils.data._utils import worker

    info = getattr(_local, "info", None)
    return worker._worker_info if info is None else info


def enter_thread(info: Any) -> None:
    """Makes this thread a worker: it has a worker info, and torch's ops in it use one core."""
    _local.info = info
    torch = sys.modules["torch"]
    # torch.set_num_threads would set the whole program's number. OpenMP's own is the thread's; torch
    # sets it when a thread first asks, so that comes first.
    torch.get_num_threads()
    one_openmp_thread()


def one_openmp_thread() -> None:
    """What this thread runs with OpenMP runs on one core."""
    for library in _openmp_libraries():
        library.omp_set_num_threads(1)


@functools.cache
def _openmp_libraries() -> list[Any]:
    """The OpenMP libraries that are loaded; wheels carry them under names of their own."""
    try:
        with open("/proc/self/maps") as maps:
            mapped = {
                line.split(None, 5)[5].rstrip("\n") for line in maps if line.count(" ") > 5 and "/" in line
            }
    except OSError:
        return []
    names = ("libgomp", "libiomp", "libomp")
    found = [path for path in mapped if path.rsplit("/", 1)[-1].startswith(names)]
    return [ctypes.CDLL(path) for path in sorted(found)]


class OwnGenerator:
    """While this is entered, torch's functions draw from a generator of this thread's own instead
    of the program's, which all threads share. What has no generator argument (dropout, rand_like)
    is out of its reach, and a sample that calls torch.manual_seed itself does not reach this one."""

    def __init__(self) -> None:
        self._generator: Any = None
        self._mode: Any = None
        self.drawn = False
        """Whether somebody has drawn from it."""

    def __enter__(self) -> OwnGenerator:
        torch = sys.modules.get("torch")
        if torch is not None:
            from torch.overrides import TorchFunctionMode

            functions = _drawing_functions()
            own, outer = torch.Generator(), self
            self._generator = own

            class Mode(TorchFunctionMode):
                def __torch_function__(
                    self, func: Any, types: Any, args: Any = (), kwargs: Any = None
                ) -> Any:
                    kwargs = kwargs or {}
                    if func in functions and kwargs.get("generator") is None:
                        kwargs = {**kwargs, "generator": own}
                        outer.drawn = True
                    return func(*args, **kwargs)

            self._mode = Mode()
            self._mode.__enter__()
        return self

    def seed(self, seed: int) -> None:
        """Begins anew with this seed."""
        if self._generator is not None:
            self._generator.manual_seed(seed)

    def __exit__(self, *error: object) -> None:
        if self._mode is not None:
            self._mode.__exit__(*error)


@functools.cache
def _drawing_functions() -> frozenset[Any]:
    torch = torch_module()
    plain = ["rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "poisson"]
    methods = [
        "uniform_",
        "normal_",
        "random_",
        "bernoulli_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "cauchy_",
        "bernoulli",
        "multinomial",
    ]
    return frozenset(
        [getattr(torch, name) for name in plain] + [getattr(torch.Tensor, name) for name in methods]
    )


def enter_process(job: Job) -> None:
    """Makes this process a worker."""
    import torch
    from torch.utils.data._utils.collate import default_collate_fn_map

    torch.set_num_threads(1)
    default_collate_fn_map.update(job.registry)
    if torch.Tensor not in job.registry:
        default_collate_fn_map[torch.Tensor] = _stack_tensors


@contextmanager
def writing_to(slot: Slot | None) -> Iterator[None]:
    """Tensors that are collated meanwhile are stacked in `slot`."""
    global _writing
    _writing = slot
    try:
        yield
    finally:
        _writing = None


def _stack_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """As torch's collate_tensor_fn, which in a worker takes memory from /dev/shm; this takes a slot's."""
    import torch
    from torch.utils.data._utils import worker
    from torch.utils.data._utils.collate import collate_tensor_fn

    first = batch[0]
    size = first.numel() * first.element_size() * len(batch)
    alike = all(
        type(one) is torch.Tensor
        and one.layout == torch.strided
        and one.device.type == "cpu"
        and one.shape == first.shape
        and one.dtype == first.dtype
        and not one.requires_grad
        and not one.is_quantized
        for one in batch
    )
    if _writing is not None and size and alike:
        offset = _writing.reserve(size)
        memory = torch.from_numpy(_writing.view(offset, size))
        return torch.stack(tuple(batch), 0, out=memory.view(first.dtype).view(len(batch), *first.shape))
    info, worker._worker_info = worker._worker_info, None
    try:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    finally:
        worker._worker_info = info
