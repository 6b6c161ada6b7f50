"""Whose memory a batch is: shared, kept, given back."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import Array
from feedline import Loader

OUTPUTS = ["numpy", "torch", "jax"]


def address(array: Any) -> int:
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.unsafe_buffer_pointer())


def to_numpy(array: Any) -> Array:
    return np.array(array.numpy() if hasattr(array, "numpy") else array)


@pytest.fixture(params=OUTPUTS)
def output(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.fixture
def numbers() -> Array:
    """Row n is all n. float32, which every library takes as it is."""
    return np.repeat(np.arange(200, dtype=np.float32)[:, None], 1000, axis=1)


def test_no_copy_is_made(numbers: Array, output: Any) -> None:
    native = next(iter(Loader(numbers, batch_size=10, output="dlpack")))
    wanted = native[0].__array_interface__["data"][0]
    assert wanted % 64 == 0
    from feedline.deliver.batch import converter

    (array,) = converter(output, ["float32"])((native[0],))
    assert address(array) == wanted
    (by_interface,) = (np.asarray(native[0]),)
    assert address(by_interface) == wanted


def test_dlpack_protocol(numbers: Array) -> None:
    (array,) = next(iter(Loader(numbers, batch_size=10, output="dlpack")))
    assert array.__dlpack_device__() == (1, 0)
    assert '"dltensor"' in repr(array.__dlpack__())
    assert '"dltensor"' in repr(array.__dlpack__(max_version=(0, 8)))
    assert '"dltensor_versioned"' in repr(array.__dlpack__(max_version=(1, 3)))
    for wrong in ({"stream": 1}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError, match="CPU memory"):
            array.__dlpack__(**wrong)
    copy = np.from_dlpack(array, copy=True)
    view = np.from_dlpack(array)
    assert address(copy) != address(view) == array.__array_interface__["data"][0]
    # NumPy before 2.2 takes what it is lent by DLPack for read-only.
    np.asarray(array)[:] = -1
    assert (view == -1).all()
    assert (copy[:, 0] == np.arange(10)).all()


def test_arrays_may_be_written_to(numbers: Array) -> None:
    for output in ("numpy", "torch"):
        loader = Loader(numbers, batch_size=10, output=output)
        for _ in range(3):
            for batch in loader:
                expected = np.arange(10) + batch.number * 10
                assert (to_numpy(batch[0])[:, 0] == expected).all()
                assert (to_numpy(batch[0])[:, -1] == expected).all()
                batch[0][:] = -1
    assert (numbers[:, 0] == np.arange(200)).all()


def test_kept_batches_keep_their_bytes(numbers: Array, output: Any) -> None:
    kept = [batch for _, batch in zip(range(20), Loader(numbers, batch_size=10, output=output), strict=False)]
    loader = Loader(numbers, batch_size=10, output=output, num_workers=4)
    for _ in range(3):
        kept.extend(loader)
    del loader
    gc.collect()
    assert len(kept) == 80
    assert len({address(batch[0]) for batch in kept}) == 80
    for batch in kept:
        assert (to_numpy(batch[0])[:, 0] == np.arange(10) + batch.number * 10).all()


def test_an_array_outlives_everything(numbers: Array, output: Any) -> None:
    loader = Loader(numbers, batch_size=10, output=output)
    epoch = iter(loader)
    (array,) = next(epoch)
    inner = array[3:5, ::7]
    del loader, epoch, array
    gc.collect()
    other = Loader(numbers, batch_size=10)
    for _ in other:
        pass
    assert (to_numpy(inner)[:, 0] == [3, 4]).all()
    del other
    gc.collect()
    assert (to_numpy(inner)[:, -1] == [3, 4]).all()


def test_arrays_dropped_in_other_threads(numbers: Array, output: Any) -> None:
    loader = Loader(numbers, batch_size=10, output=output, num_workers=2)
    wrong: list[object] = []

    def hold(batch: feedline.Batch) -> None:
        number, (array,) = batch.number, batch
        del batch
        for _ in range(5):
            if not (to_numpy(array)[:, 0] == np.arange(10) + number * 10).all():
                wrong.append(number)

    threads = []
    for _ in range(3):
        for batch in loader:
            threads.append(threading.Thread(target=hold, args=(batch,)))
            threads[-1].start()
            del batch
    del loader
    gc.collect()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_goes_round(numbers: Array) -> None:
    loader = Loader(numbers, batch_size=10)
    seen = set()
    for _ in range(20):
        for batch in loader:
            seen.add(address(batch[0]))
    # The ring (8 small batches), the one in use, and the one being dropped.
    assert len(seen) <= 10
    del batch
    assert loader.stats()["memory"]["held_by_program"] == 0


def test_the_source_is_let_go(numbers: Array) -> None:
    mine = numbers.copy()
    reference = weakref.ref(mine)
    loader = Loader(mine, batch_size=10)
    next(iter(loader))
    del mine
    gc.collect()
    assert reference() is not None
    loader.close()
    gc.collect()
    assert reference() is None


def test_holding_all_the_memory_is_an_error(numbers: Array) -> None:
    loader = Loader(numbers, batch_size=100, memory=1_900_000, num_workers=1)
    kept = []
    with pytest.raises(feedline.MemoryLimitError, match="drop batches sooner") as caught:
        for _ in range(5):
            for batch in loader:
                kept.append(batch)
    assert isinstance(caught.value, MemoryError)


def test_too_little_memory_is_an_error(numbers: Array) -> None:
    with pytest.raises(feedline.MemoryLimitError, match="raise memory or lower batch_size"):
        Loader(numbers, batch_size=100, memory=1_000_000)


PEAK = """
import json, sys
import feedline
from feedline import transforms as T

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

manifest, options, keep = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
# What the interpreter and the library take by themselves is there before the measure.
for _ in feedline.Loader(manifest, [T.RandomResizedCrop(224)], subset="1:3", num_workers=1): pass
before = status("VmRSS:")
loader = feedline.Loader(
    manifest,
    [T.RandomResizedCrop(224), T.ToDtype("float32", scale=True)],
    batch_size=32, shuffle=True, memory="256MB", decode={"exact": True}, **options,
)
kept = []
for batch in loader:
    kept = [*kept, batch][-keep:] if keep else []
print(json.dumps({"growth": status("VmHWM:") - before, **loader.stats()}))
"""


@pytest.fixture(scope="module")
def large_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """480 rows, which are 15 batches, over a few large photos, some of them truncated."""
    folder = tmp_path_factory.mktemp("large")
    command = ["sample-data", str(folder / "photos"), "--preset", "large", "--count", "12", "--classes", "1"]
    subprocess.run([sys.executable, "-m", "feedline", *command], check=True, capture_output=True)
    photos = sorted((folder / "photos").rglob("*.jpg"))
    assert len(photos) == 12
    bad = folder / "bad.jpg"
    bad.write_bytes(photos[0].read_bytes()[:100_000])
    for name, share in (("good.csv", 0), ("bad.csv", 10)):
        rows = [photos[n % 12] if share == 0 or n % share else bad for n in range(480)]
        (folder / name).write_text("path,label\n" + "".join(f"{row},0\n" for row in rows))
    return folder


@pytest.mark.parametrize("name", ["good", "bad"])
@pytest.mark.parametrize(("workers", "keep"), [(1, 3), (16, 3), (16, 0)])
def test_peak_memory_stays_below_the_limit(large_photos: Path, workers: int, name: str, keep: int) -> None:
    options: dict[str, Any] = {"num_workers": workers}
    if name == "bad":
        options["on_error"] = "skip"
    command = [sys.executable, "-c", PEAK, str(large_photos / f"{name}.csv"), json.dumps(options), str(keep)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout)
    assert figures["samples"] == 480
    assert (figures["failed_samples"] > 0) == (name == "bad")
    assert figures["growth"] < 256_000_000 + 64_000_000, figures
    # 16 workers would take far more if they were let: the limit was felt.
    if workers == 16:
        assert figures["growth"] > 100_000_000
