"""Batches on a GPU and page-locked memory, with a driver that is not one: `cuda/driver.c` does the
driver's calls over host memory and writes each of them down. Every case is a process of its own, as
a process loads one driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent / "cuda" / "driver.c"

PRELUDE = """
import ctypes, gc, json, os, sys, warnings
import numpy as np
import feedline
from feedline import _native

x = (np.arange(40 * 3 * 16 * 16) * 7 % 251).astype(np.uint8).reshape(40, 3, 16, 16)
y = np.arange(40)

def make(**more):
    settings = dict(batch_size=4, shuffle=True, seed=3, num_workers=2)
    return feedline.Loader({"image": x, "label": y}, **{**settings, **more})

def on_device(**more):
    return make(**{**dict(device="cuda", output="dlpack"), **more})

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]

pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

def tensor(capsule):
    return Tensor.from_address(pointer(capsule, b"dltensor"))
"""


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


def build(folder: Path, *flags: str) -> Path:
    library = folder / "libcuda-mock.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *flags]
    subprocess.run([*command, "-o", str(library), str(SOURCE), "-lpthread"], check=True)
    return library


class Run:
    """What a program printed, and the calls that it made."""

    def __init__(self, library: Path | None, log: Path, code: str, timeout: float = 60, **more: str) -> None:
        environment = {**os.environ, "FEEDLINE_MOCK_LOG": str(log), **more}
        if library is not None:
            environment["FEEDLINE_CUDA_LIBRARY"] = str(library)
        command = [sys.executable, "-c", PRELUDE + code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stderr
        self.printed, self.warned = done.stdout, done.stderr
        self.calls = log.read_text().splitlines() if log.exists() else []
        for call in self.calls:
            assert "without a context" not in call, call

    def named(self, name: str) -> list[list[str]]:
        """The arguments of all calls of that name."""
        return [call.split()[1:] for call in self.calls if call.startswith(name + " ")]

    def first(self, pattern: str) -> int:
        return next(at for at, call in enumerate(self.calls) if re.match(pattern, call))

    def leftovers(self) -> str:
        """What the driver counted when the context was released."""
        (released,) = self.named("cuDevicePrimaryCtxRelease_v2")
        return " ".join(released[1:])


NOTHING_LEFT = "memory 0 locks 0 streams 0 events 0 contexts 0 = 0"

WHOLE_EPOCH = """
expected = [batch.hash() for batch in make()]
loader = on_device()
seen = []
for batch in loader:
    for array in batch:
        array.__dlpack__(stream=0x77)
    seen.append(batch.hash())
assert seen == expected and len(seen) == 10, (seen, expected)
print(json.dumps(loader.stats()["device"]))
del batch, array
loader.close()
del loader
gc.collect()
"""


def test_an_epoch_arrives_whole_and_leaves_nothing(driver: Path, tmp_path: Path) -> None:
    for lazy in ("0", "3", "40"):
        run = Run(driver, tmp_path / "log", WHOLE_EPOCH, FEEDLINE_MOCK_LAZY=lazy)
        assert run.leftovers() == NOTHING_LEFT
        figures = json.loads(run.printed)
        assert figures["batches"] == 10 and figures["bytes"] == 40 * (3 * 16 * 16 + 8)
        assert figures["slots"] <= 5


def test_the_order_of_the_calls(driver: Path, tmp_path: Path) -> None:
    run = Run(driver, tmp_path / "log", WHOLE_EPOCH)
    assert [call.split()[0] for call in run.calls[:2]] == ["cuInit", "cuDeviceGetCount"]
    # The side stream does not wait for the default one (flag 1); memory is locked for all devices.
    side = run.named("cuStreamCreate")[0]
    assert side[1] == "1"
    copies = run.named("cuMemcpyHtoDAsync_v2")
    assert len(copies) == 20 and {copy[3] for copy in copies} == {side[0]}
    locks = run.named("cuMemHostRegister_v2")
    assert all(lock[2] == "1" for lock in locks)
    # Memory is locked before it is copied from, once however often it is used again, and unlocked.
    starts = [int(lock[0], 16) for lock in locks]
    sources = {max(start for start in starts if start <= int(copy[1], 16)) for copy in copies}
    # How many there are is a matter of how far ahead the workers were; there are ten batches.
    assert sources == set(starts) and len(starts) == len(set(starts)) <= 10
    assert Counter(lock[0] for lock in locks) == Counter(
        unlock[0] for unlock in run.named("cuMemHostUnregister")
    )
    assert run.first("cuMemHostRegister") < run.first("cuMemcpyHtoD") < run.first("cuEventRecord")
    # Behind each batch's copies an event is set on the side stream, and the consumer waits for it.
    records = [record for record in run.named("cuEventRecord") if record[1] == side[0]]
    assert len(records) == 10
    waits = [wait[1] for wait in run.named("cuStreamWaitEvent") if wait[0] == "0x77"]
    assert waits == [event for record in records for event in (record[0], record[0])]
    # Before device memory is used again, the side stream waits for the consumer's.
    assert len(run.named("cuMemAlloc_v2")) <= 5
    last = max(at for at, call in enumerate(run.calls) if call.startswith("cuMemcpyHtoDAsync_v2"))
    reused = [at for at, call in enumerate(run.calls[:last]) if re.match(r"cuEventRecord \S+ 0x77 ", call)]
    assert len(reused) >= 5
    for at in reused:
        event = run.calls[at].split()[1]
        assert run.calls[at + 1].startswith(f"cuStreamWaitEvent {side[0]} {event} ")
    # The context is let go last.
    assert run.calls[-1].startswith("cuDevicePrimaryCtxRelease_v2")


def test_arrays_are_described_as_dlpack_says(driver: Path, tmp_path: Path) -> None:
    run = Run(
        driver,
        tmp_path / "log",
        """
loader = on_device(device="cuda:1", shuffle=False)
batch = next(iter(loader))
image, label = batch
assert image.shape == (4, 3, 16, 16) and image.dtype == "uint8"
assert image.__dlpack_device__() == (2, 1) == label.__dlpack_device__()
capsule = image.__dlpack__()
got = tensor(capsule)
assert (got.device_type, got.device_id, got.ndim, got.code, got.bits) == (2, 1, 4, 1, 8)
assert [got.shape[i] for i in range(4)] == [4, 3, 16, 16]
assert [got.strides[i] for i in range(4)] == [768, 256, 16, 1]
assert got.data % 256 == 0
interface = label.__cuda_array_interface__   # waits for the copy
assert interface["shape"] == (4,) and interface["typestr"] == "<i8" and interface["stream"] is None
address = interface["data"][0]
assert address % 256 == 0
assert np.ctypeslib.as_array((ctypes.c_int64 * 4).from_address(address)).tolist() == [0, 1, 2, 3]
assert bytes((ctypes.c_uint8 * (4 * 768)).from_address(got.data)) == x[:4].tobytes()
assert batch.hash() == next(iter(make(shuffle=False))).hash()
for stream in (None, 1, 2, -1, 0x1234):
    image.__dlpack__(stream=stream)
    image.__dlpack__(stream=stream, max_version=(1, 0), dl_device=(2, 1), copy=False)
for wrong in (0, -2):
    try:
        image.__dlpack__(stream=wrong)
        raise SystemExit("accepted")
    except feedline.DeviceError as error:
        assert "stream" in str(error)
for wrong in (dict(dl_device=(1, 0)), dict(copy=True)):
    try:
        image.__dlpack__(**wrong)
        raise SystemExit("accepted")
    except BufferError:
        pass
assert not hasattr(image, "__array_interface__")
assert "cuda:1" in repr(image) and "on cuda:1" in repr(loader)
# The last array keeps the memory, also after the loader is gone.
del batch, image, label
loader.close()
assert bytes((ctypes.c_uint8 * 768).from_address(got.data)) == x[0].tobytes()
del capsule, loader
gc.collect()
""",
        FEEDLINE_MOCK_DEVICES="2",
    )
    assert run.leftovers() == NOTHING_LEFT
    waited = {wait[0] for wait in run.named("cuStreamWaitEvent")}
    assert {"0x1", "0x2", "0x1234"} <= waited and not any(wait.startswith("0xffff") for wait in waited)


def test_torch_s_own_conversion_takes_the_arrays(driver: Path, tmp_path: Path) -> None:
    # torch without CUDA cannot make the tensor: all of its protocol before that is its own.
    run = Run(
        driver,
        tmp_path / "log",
        """
import torch
class Stream:
    cuda_stream = 0
torch.cuda.current_stream = lambda device: Stream
name = ctypes.pythonapi.PyCapsule_GetName
name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
torch._C._from_dlpack = name
for number, batch in enumerate(on_device(output="torch")):
    assert list(batch) == [b"dltensor_versioned"] * 2
    Stream.cuda_stream = 0x99
del batch
gc.collect()
""",
    )
    waits = [wait[0] for wait in run.named("cuStreamWaitEvent")]
    assert waits.count("0x1") == 2 and waits.count("0x99") == 18
    assert run.leftovers() == NOTHING_LEFT


def test_readers_without_a_known_stream_are_waited_for(driver: Path, tmp_path: Path) -> None:
    code = """
for batch in on_device():
    for array in batch:
        array.__dlpack__(stream=-1)
del batch, array
gc.collect()
"""
    run = Run(driver, tmp_path / "log", code)
    assert len(run.named("cuCtxRecordEvent")) >= 5 and run.leftovers() == NOTHING_LEFT
    # Drivers before CUDA 12.5 have no event for a whole context: the default stream stands for it.
    (tmp_path / "old").mkdir()
    run = Run(build(tmp_path / "old", "-DWITHOUT_RECORD_ALL"), tmp_path / "log", code)
    assert sum(record[1] == "0x1" for record in run.named("cuEventRecord")) >= 5
    assert run.leftovers() == NOTHING_LEFT


def test_a_stream_that_is_gone_is_made_up_for(driver: Path, tmp_path: Path) -> None:
    run = Run(
        driver,
        tmp_path / "log",
        """
for batch in on_device():
    try:
        batch[0].__dlpack__(stream=0xBAD)
        raise SystemExit("accepted")
    except feedline.DeviceError as error:
        assert "cuStreamWaitEvent" in str(error) and error.code == 400
del batch
gc.collect()
""",
    )
    assert run.named("cuCtxRecordEvent") and run.leftovers() == NOTHING_LEFT


def test_states_count_what_was_handed_over(driver: Path, tmp_path: Path) -> None:
    Run(
        driver,
        tmp_path / "log",
        """
plain, loader = make(), on_device()
assert plain.spec == loader.spec
for step, (a, b) in zip(range(7), zip(plain, loader)):
    assert a.hash() == b.hash() and (a.epoch, a.number) == (b.epoch, b.number)
    assert plain.state_dict() == loader.state_dict() and plain.epoch == loader.epoch
state = loader.state_dict()
rest = [batch.hash() for batch in plain]                      # the next epoch
again = on_device(device_prefetch=5)
again.load_state_dict(state)
assert [batch.number for batch in again] == [7, 8, 9]
assert [batch.hash() for batch in again] == rest
host = make()
host.load_state_dict(state)                                    # a device is no part of the state
assert [batch.number for batch in host] == [7, 8, 9]
again.set_epoch(1)
assert [batch.hash() for batch in again] == rest
""",
    )


CALLS = [
    "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode", "cuMemHostRegister_v2",
    "cuMemAlloc_v2", "cuStreamCreate", "cuMemcpyHtoDAsync_v2", "cuEventCreate", "cuEventRecord",
    "cuEventQuery", "cuStreamWaitEvent",
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_named_and_leaves_nothing(call: str, driver: Path, tmp_path: Path) -> None:
    code = """
errors = 0
for attempt in range(3):
    loader = batch = None
    try:
        loader = on_device()
        for batch in loader:
            batch[0].__dlpack__(stream=0x77)
            batch.hash()
        assert batch.number == 9
    except feedline.DeviceError as error:
        call = os.environ["FEEDLINE_MOCK_FAIL"].split(":")[0]
        assert str(error).startswith(f"{call} failed: CUDA_ERROR_UNKNOWN (999): unknown error"), error
        assert error.code == 999
        errors += 1
print(errors)
loader = batch = None
gc.collect()
"""
    for number in (1, 2, 7):
        run = Run(driver, tmp_path / "log", code, FEEDLINE_MOCK_FAIL=f"{call}:{number}")
        # The driver is initialised once and for all; every other call fails once and then works.
        assert int(run.printed) == (3 if call == "cuInit" else 1) or number > 1, run.printed
        if run.named("cuDevicePrimaryCtxRelease_v2"):
            assert run.calls[-1].endswith(NOTHING_LEFT), (call, number, run.calls[-1])


@pytest.mark.parametrize(
    "call", [*CALLS, "cuEventSynchronize", "cuCtxSynchronize", "cuMemHostUnregister", "cuMemFree_v2"]
)
def test_a_driver_that_is_dead_hangs_nobody(call: str, driver: Path, tmp_path: Path) -> None:
    Run(
        driver,
        tmp_path / "log",
        """
try:
    for batch in on_device():
        batch[0].__dlpack__(stream=0x77)
except feedline.DeviceError as error:
    print(error)
""",
        FEEDLINE_MOCK_FAIL=call,
        timeout=300,
    )


def test_pinned_batches_stay_on_the_host(driver: Path, tmp_path: Path) -> None:
    run = Run(
        driver,
        tmp_path / "log",
        """
expected = [batch.hash() for batch in make()]
for output in ("numpy", "torch"):
    loader = make(pin_memory=True, output=output)
    assert [batch.hash() for batch in loader] == expected
    loader.close()
    del loader
gc.collect()
""",
    )
    locks, unlocks = run.named("cuMemHostRegister_v2"), run.named("cuMemHostUnregister")
    assert 0 < len(locks) == len(unlocks)
    # Before memory is written again, all that the device was given is waited for.
    assert run.named("cuCtxRecordEvent") and not run.named("cuMemcpyHtoDAsync_v2")
    assert run.calls[-1].endswith(NOTHING_LEFT)


def test_a_pinned_batch_that_is_dropped_early_is_not_written_to(driver: Path, tmp_path: Path) -> None:
    # The program's own copy, as of tensor.to("cuda", non_blocking=True), on a stream of its own.
    Run(
        driver,
        tmp_path / "log",
        """
cuda = ctypes.CDLL(os.environ["FEEDLINE_CUDA_LIBRARY"])
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 50)
cuda.cuCtxPushCurrent_v2(context)
expected = [batch["image"].copy() for batch in make()]
targets = []
for batch in make(pin_memory=True):
    memory = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(batch["image"].nbytes)) == 0
    source = ctypes.c_void_p(batch["image"].ctypes.data)
    bytes_, stream = ctypes.c_size_t(batch["image"].nbytes), ctypes.c_void_p(0x55)
    assert cuda.cuMemcpyHtoDAsync_v2(memory, source, bytes_, stream) == 0
    targets.append(memory.value)
    del batch
gc.collect()
cuda.cuCtxSynchronize()
for address, image in zip(targets, expected, strict=True):
    assert bytes((ctypes.c_uint8 * image.nbytes).from_address(address)) == image.tobytes()
""",
        FEEDLINE_MOCK_LAZY="5",
    )


def test_memory_of_others_is_pinned(driver: Path, tmp_path: Path) -> None:
    run = Run(
        driver,
        tmp_path / "log",
        """
assert _native.cuda_problem() is None
assert "there is no device cuda:7" in _native.cuda_problem(7)
memory = np.zeros(1 << 20, np.uint8)
pin = _native.pin(memory.ctypes.data, memory.nbytes)
assert not pin.busy()
pin.mark()
assert pin.busy() and not pin.busy()
pin.mark()
pin.wait()
assert not pin.busy()
for wrong in ((0, 10), (10, 0), (2**64 - 5, 10)):
    try:
        _native.pin(*wrong)
        raise SystemExit("accepted")
    except ValueError:
        pass
try:
    _native.pin(memory.ctypes.data, memory.nbytes)
    raise SystemExit("accepted")
except feedline.DeviceError as error:
    assert error.code == 712
del pin
gc.collect()
""",
    )
    assert run.leftovers() == NOTHING_LEFT


def test_without_a_driver_everything_else_works(tmp_path: Path) -> None:
    run = Run(
        None,
        tmp_path / "log",
        """
os.environ["FEEDLINE_CUDA_LIBRARY"] = "libno-such-driver.so"
assert "libno-such-driver.so" in _native.cuda_problem()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    seen = [[batch.hash() for batch in make(pin_memory=True)] for _ in range(2)]
    assert seen == [[batch.hash() for batch in make()]] * 2
(only,) = caught
assert only.category is RuntimeWarning and "libno-such-driver.so" in str(only.message)
assert only.filename == "<string>", only.filename
for device in ("cuda", "cuda:3"):
    try:
        on_device(device=device)
        raise SystemExit("accepted")
    except feedline.DeviceError as error:
        assert "libno-such-driver.so" in str(error)
wrongs = dict(device="gpu"), dict(device="cuda:x"), dict(device_prefetch=-1), dict(device_prefetch=True)
for wrong in wrongs:
    try:
        on_device(**wrong)
        raise SystemExit("accepted")
    except feedline.SpecError as error:
        assert error.key in ("device", "device_prefetch")
assert len(list(make(device="cpu"))) == 10
""",
    )
    assert run.calls == []


def test_numpy_has_no_arrays_on_a_gpu(driver: Path, tmp_path: Path) -> None:
    Run(
        driver,
        tmp_path / "log",
        """
try:
    make(device="cuda")
    raise SystemExit("accepted")
except feedline.SpecError as error:
    assert error.key == "output" and "torch" in str(error)
try:
    on_device(device="cuda:1")
    raise SystemExit("accepted")
except feedline.DeviceError as error:
    assert "there is no device cuda:1: the driver sees 1" in str(error)
""",
    )


def test_a_fork_does_not_take_the_device_along(driver: Path, tmp_path: Path) -> None:
    Run(
        driver,
        tmp_path / "log",
        """
loader = on_device()
iterator = iter(loader)
batch = next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
        os._exit(3)
    except feedline.DeviceError as error:
        if "fork" not in str(error):
            os._exit(4)
    del batch
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert len(list(iterator)) == 9
""",
    )


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "feedline", "bench", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_bench_measures_and_verifies(driver: Path, tmp_path: Path) -> None:
    mock = {"FEEDLINE_CUDA_LIBRARY": str(driver), "FEEDLINE_MOCK_LOG": str(tmp_path / "log")}
    done = command("--device", "cuda", "--batch", "1MB", "--rounds", "3", "--json", **mock)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["verified"] and result["name"] == "Mock GPU 0" and result["batch_bytes"] == 1_000_000
    assert 0 <= result["overlap"] <= 1 and result["pinned_seconds"] > 0
    assert (tmp_path / "log").read_text().splitlines()[-1].endswith(NOTHING_LEFT)
    done = command("--device", "cuda", "--batch", "1MB", "--rounds", "3", **mock)
    assert done.returncode == 0 and "every byte came back" in done.stdout and "GB/s" in done.stdout
    failing = {**mock, "FEEDLINE_MOCK_FAIL": "cuMemcpyDtoHAsync_v2"}
    done = command("--device", "cuda", "--batch", "1MB", **failing)
    assert done.returncode == 1 and "cuMemcpyDtoHAsync_v2 failed: CUDA_ERROR_UNKNOWN" in done.stderr


def test_bench_without_a_gpu_says_so() -> None:
    missing = {"FEEDLINE_CUDA_LIBRARY": "libno-such-driver.so"}
    done = command("--device", "cuda", "--json", **missing)
    assert done.returncode == 1
    assert "the CUDA driver libno-such-driver.so cannot be used" in done.stderr
    assert json.loads(done.stdout)["error"]["kind"] == "device"
    assert command("--device", "tpu", **missing).returncode == 1
    assert command("--device", "cuda", "--batch", "x", **missing).returncode == 2
