"""Loaders of data sets that are Python code: any structure, any executor, native stages in between."""

from __future__ import annotations

import collections
import collections.abc
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import HANG, Array, picture, until
from feedline.transforms import (
    CenterCrop,
    ColorJitter,
    Normalize,
    PerBatch,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
)

EXECUTORS = ["inline", "threads", "processes", "auto"]
AUGMENT = [RandomResizedCrop(16), RandomHorizontalFlip(), ColorJitter(0.3), ToDtype("float32", scale=True)]


class Numbers:
    """Sample i is an array full of i, and i."""

    def __init__(self, count: int = 20) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Array, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return np.full((2, 3), index, np.float32), index


class Encoded:
    """The bytes of image files, and their classes, as a folder's loader has them."""

    def __init__(self, root: Path) -> None:
        self.files = sorted(root.glob("*/*.png"))
        self.names = sorted({file.parent.name for file in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        file = self.files[index]
        return file.read_bytes(), self.names.index(file.parent.name)


class Decoded(Encoded):
    """The same as pixels."""

    def __getitem__(self, index: int) -> Any:
        data, label = super().__getitem__(index)
        return feedline.decode_image(data), label


class Structured(Numbers):
    """A bit of everything."""

    Pair = collections.namedtuple("Pair", ["left", "right"])

    def __getitem__(self, index: int) -> Any:
        return {
            "image": np.full((2, 2), index, np.uint8),
            "number": index,
            "share": index / 2,
            "good": index % 2 == 0,
            "name": f"sample {index}",
            "raw": bytes([index]),
            "nothing": None,
            "half": np.float16(index),
            "nested": (np.arange(index, index + 3), [index, {"deep": -index}]),
            "pair": _pair(index),
        }


Pair = collections.namedtuple("Pair", ["left", "right"])


def _pair(index: int) -> Any:
    return Pair(np.array([index]), str(index))


class Drawing(Numbers):
    """Draws from the global generators."""

    def __getitem__(self, index: int) -> Any:
        return random.random(), np.random.random(), index  # noqa: NPY002


class Bad(Numbers):
    """Some samples fail."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.bad = bad

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise ValueError(f"no luck with {index}")
        return super().__getitem__(index)


class Ragged(Numbers):
    def __getitem__(self, index: int) -> Any:
        return np.zeros(1 + (index == 5)), index


class Squares:
    """An iterable without a state."""

    def __init__(self, count: int = 22) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return ((np.array([number]), number * number) for number in range(self.count))


class Counting(Squares):
    """An iterable with a state of its own, and a count of what it had to read."""

    def __init__(self, count: int = 22) -> None:
        super().__init__(count)
        self.at = 0
        self.read = 0

    def __iter__(self) -> Any:
        while self.at < self.count:
            self.at += 1
            self.read += 1
            yield np.array([self.at - 1]), self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def plain(batch: Any) -> Any:
    """A batch as values that compare."""
    if isinstance(batch, np.ndarray):
        return batch.dtype.name, batch.shape, batch.tobytes()
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch).__name__, [plain(value) for value in batch]
    return batch


def epochs(loader: feedline.Loader, count: int = 2) -> list[Any]:
    return [[plain(tuple(batch)) for batch in loader] for _ in range(count)]


def hashes(loader: feedline.Loader, count: int = 2) -> list[list[int]]:
    return [[batch.hash() for batch in loader] for _ in range(count)]


def invert(image: Array) -> Array:
    return np.asarray(255 - image)


def unchanged(image: Array) -> Array:
    return image


def to_float(image: Array) -> Array:
    return image.astype(np.float32) / 255


def scaled(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "image": batch["image"] * 2, "mean": batch["image"].mean(axis=(1, 2, 3))}


def fail_on_seven(image: Array) -> Array:
    if image.max() == 7:
        raise ZeroDivisionError("seven")
    return image


def joined(samples: list[Any]) -> Any:
    return [len(image) for image, _ in samples], sum(number for _, number in samples)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_any_structure(executor: Any) -> None:
    with feedline.Loader(Structured(), batch_size=8, executor=executor, num_workers=2) as loader:
        batches = list(loader)
    assert len(batches) == len(loader) == 3
    first, last = batches[0], batches[-1]
    assert list(first) == list(Structured()[0])
    assert first["image"].shape == (8, 2, 2) and first["image"].dtype == np.uint8
    assert first["number"].dtype == np.int64 and first["number"].tolist() == list(range(8))
    assert first["share"].dtype == np.float64 and first["good"].dtype == np.bool_
    assert first["name"] == [f"sample {number}" for number in range(8)]
    assert first["raw"] == [bytes([number]) for number in range(8)]
    assert first["nothing"] == [None] * 8
    assert first["half"].dtype == np.float16
    array, (number, deep) = first["nested"]
    assert array.shape == (8, 3) and number.tolist() == list(range(8)) and deep["deep"][3] == -3
    assert type(first["pair"]).__name__ == "Pair" and first["pair"].right[2] == "2"
    assert first["pair"].left.shape == (8, 1)
    assert last["number"].tolist() == [16, 17, 18, 19]


def test_bare_samples() -> None:
    assert [batch.tolist() for batch in feedline.Loader(range(10, 15), batch_size=2)] == [
        [10, 11],
        [12, 13],
        [14],
    ]
    texts = collections.deque(["a", "b", "c"])
    assert list(feedline.Loader(texts, batch_size=2, num_workers=0)) == [["a", "b"], ["c"]]


def test_the_order_is_the_engines() -> None:
    numbers = np.arange(23)
    settings: list[dict[str, Any]] = [
        {"shuffle": True, "seed": 5},
        {"shuffle": True, "drop_last": True},
        {"replacement": True, "num_samples": 30},
        {"weights": list(range(23)), "num_samples": 40},
        {"subset": slice(3, 20, 2), "shuffle": True},
        {"last_batch": "pad"},
        {"last_batch": "wrap", "shuffle": True},
    ]
    for setting in settings:
        for rank in range(2):
            shared = {**setting, "batch_size": 3, "rank": rank, "world_size": 2}
            native = feedline.Loader({"x": numbers}, **shared)
            code = feedline.Loader(range(23), **shared, num_workers=0)
            assert len(native) == len(code) and native.num_samples == code.num_samples
            for _ in range(2):
                ours, theirs = iter(code), iter(native)
                for batch in theirs:
                    assert next(ours).tolist() == batch["x"].tolist(), setting
                    assert ours.padding == batch.padding
                assert next(ours, None) is None


def test_joined_and_mixed_data_sets() -> None:
    both = feedline.Loader([range(5), range(100, 103)], batch_size=8, num_workers=0)
    assert next(iter(both)).tolist() == [0, 1, 2, 3, 4, 100, 101, 102]
    weights = [(range(50), 3.0), (range(1000, 1010), 1.0)]
    native = [
        ({"kind": "arrays", "x": np.arange(50)}, 3.0),
        ({"kind": "arrays", "x": np.arange(1000, 1010)}, 1.0),
    ]
    mixed = feedline.Loader(weights, batch_size=10, shuffle=True, num_workers=0)
    expected = feedline.Loader(native, batch_size=10, shuffle=True)
    assert [batch.tolist() for batch in mixed] == [batch["x"].tolist() for batch in expected]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("layout", ["CHW", "HWC", "channels_last"])
def test_encoded_samples_become_the_native_loaders_pixels(photos: Path, executor: Any, layout: Any) -> None:
    shared: dict[str, Any] = {
        "transforms": [*AUGMENT, Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])],
        "batch_size": 7,
        "shuffle": True,
        "seed": 3,
        "layout": layout,
    }
    native = feedline.Loader(photos, **shared)
    with feedline.Loader(Encoded(photos), **shared, executor=executor, num_workers=2) as code:
        assert epochs(code) == epochs(native)
        image = next(iter(code))[0]
        assert image.strides == next(iter(native))[0].strides


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_pixels_of_a_data_set(photos: Path, executor: Any) -> None:
    # A decoder may look at less than the whole image; with `exact` it does so only where it is equal.
    shared: dict[str, Any] = {"transforms": AUGMENT, "batch_size": 6, "seed": 9, "shuffle": True}
    native = feedline.Loader(photos, decode={"exact": True}, **shared)
    code = feedline.Loader(Decoded(photos), **shared, executor=executor, num_workers=2)
    assert epochs(code) == epochs(native)


def test_arrays_through_native_ops(arrays: tuple[Array, Array]) -> None:
    images, labels = arrays
    ops = [RandomCrop(6), RandomHorizontalFlip()]
    native = feedline.Loader((images, labels), ops, batch_size=9, shuffle=True)
    code = feedline.Loader(list_of_pairs(images, labels), ops, batch_size=9, shuffle=True, num_workers=0)
    assert epochs(code) == epochs(native)
    floats = images.astype(np.float32)
    native = feedline.Loader((floats, labels), ops, batch_size=9)
    code = feedline.Loader(list_of_pairs(floats, labels), ops, batch_size=9, num_workers=0)
    assert epochs(code) == epochs(native)


def list_of_pairs(images: Array, labels: Array) -> Any:
    return collections.deque((image, label) for image, label in zip(images, labels, strict=True))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_callables_between_native_ops(photos: Path, executor: Any) -> None:
    # A function that changes nothing stands where a native op that changes nothing does, so that
    # the ops after it draw the same.
    native = feedline.Loader(
        photos,
        [RandomCrop(16), RandomHorizontalFlip(p=0), RandomHorizontalFlip(), ToDtype("float32", scale=True)],
        batch_size=7,
        shuffle=True,
    )
    ops = [RandomCrop(16), unchanged, RandomHorizontalFlip(), ToDtype("float32", scale=True)]
    shared: dict[str, Any] = {"batch_size": 7, "shuffle": True, "executor": executor, "num_workers": 2}
    expected = hashes(native)
    with feedline.Loader(photos, ops, **shared) as code:
        assert hashes(code) == expected
        batch = next(iter(code))
        assert batch["image"].shape == (7, 3, 16, 16) and batch.keys() == ("image", "label")
        assert batch.rows == 7 and code.classes == ["ant", "bee", "cat"]
    with feedline.Loader(Encoded(photos), ops, **shared) as code:
        assert epochs(code) == epochs(feedline.Loader(photos, ops, **shared))


def test_a_first_and_a_last_callable(photos: Path) -> None:
    loader = feedline.Loader(photos, [invert, CenterCrop(8), to_float], batch_size=4, num_workers=0)
    image = next(iter(loader))["image"]
    assert image.shape == (4, 3, 8, 8) and image.dtype == np.float32
    crop = (255 - picture(0)[8:16, 12:20]).astype(np.float32) / 255
    assert np.array_equal(image[0], crop.transpose(2, 0, 1))
    one = feedline.Loader(photos, lambda image: image.mean(), batch_size=4, num_workers=0)
    assert next(iter(one))["image"].shape == (4,)


def test_per_batch(photos: Path) -> None:
    ops = [CenterCrop(8), ToDtype("float32", scale=True), PerBatch(scaled)]
    for executor in ("inline", "threads", "processes"):
        with feedline.Loader(photos, ops, batch_size=5, executor=executor, num_workers=1) as loader:  # type: ignore[arg-type]
            batch = next(iter(loader))
            assert batch.keys() == ("image", "label", "mean")
            assert np.allclose(batch["mean"] * 2, batch["image"].mean(axis=(1, 2, 3)))
    tuples = feedline.Loader(Numbers(), PerBatch(lambda batch: batch[1] + 1), batch_size=5, num_workers=0)
    assert next(iter(tuples)).tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(feedline.SpecError, match="at the end of the list"):
        feedline.Loader(photos, [PerBatch(scaled), CenterCrop(8)])


def test_native_sources_of_every_kind_with_a_callable(
    photos: Path, manifest: Path, arrays: tuple[Array, Array], tmp_path: Path
) -> None:
    from feedline import _native

    packed = tmp_path / "packed"
    assert _native.main(["feedline", "pack", str(photos), str(packed), "--quiet", "--raw"]) == 0
    table = {"kind": "manifest", "path": manifest, "label_columns": ["label"]}
    for source in (photos, table, packed, {"image": arrays[0], "label": arrays[1]}):
        ops = [RandomCrop(6), RandomHorizontalFlip(p=0), RandomHorizontalFlip()]
        code = [RandomCrop(6), unchanged, RandomHorizontalFlip()]
        native = feedline.Loader(source, ops, batch_size=7, shuffle=True)
        with feedline.Loader(source, code, batch_size=7, shuffle=True, num_workers=2) as loader:
            assert hashes(loader) == hashes(native)
            assert loader.classes == native.classes and len(loader) == len(native)


@pytest.mark.parametrize("executor", ["inline", "processes", "auto"])
def test_draws_of_user_code_belong_to_the_batch(executor: Any) -> None:
    shared: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1}
    random.seed(0)
    before = random.getstate()
    expected = epochs(feedline.Loader(Drawing(), **shared, num_workers=0))
    assert random.getstate() == before
    assert expected[0] != expected[1]
    for workers in (1, 2):
        with feedline.Loader(Drawing(), **shared, num_workers=workers, executor=executor) as loader:
            assert epochs(loader) == expected
    if executor == "auto":
        assert loader.spec["batch_size"] == 4


def test_auto_says_what_and_why(photos: Path) -> None:
    with feedline.Loader(Drawing(), num_workers=2) as loader:
        next(iter(loader))
        found = loader.stats()["executor"]
    assert found["name"] == "processes" and "random" in found["reason"]
    with feedline.Loader(photos, [CenterCrop(4), PerBatch(scaled)], num_workers=2) as loader:
        next(iter(loader))
        assert loader.stats()["executor"]["name"] == "threads"
        assert loader.stats()["batches"] == 1


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_resume_at_every_batch(photos: Path, executor: Any) -> None:
    settings: dict[str, Any] = {
        "transforms": [RandomResizedCrop(8), unchanged],
        "batch_size": 7,
        "shuffle": True,
        "executor": executor,
        "num_workers": 2,
    }
    with feedline.Loader(Encoded(photos), **settings) as loader:
        states, expected = [loader.state_dict()], []
        for _ in range(2):
            for batch in loader:
                expected.append(plain(batch))
                states.append(json.loads(json.dumps(loader.state_dict())))
    assert states[-1]["epoch"] == 2 and states[-1]["batch"] == 0
    with feedline.Loader(Encoded(photos), **settings) as other:
        for at in range(0, len(expected), 3) if executor == "processes" else range(len(expected)):
            other.load_state_dict(states[at])
            assert plain(next(iter(other))) == expected[at]
        other.set_epoch(1)
        assert other.epoch == 1
        assert plain(next(iter(other))) == expected[len(other)]
        iterator = iter(other)
        next(iterator)
        other.set_epoch(0)
        with pytest.raises(feedline.StaleIteratorError):
            next(iterator)


def test_states_that_do_not_fit_are_refused(photos: Path) -> None:
    state = feedline.Loader(Numbers(), batch_size=4, num_workers=0).state_dict()
    for change, reason in (
        ({"seed": 1}, "seed"),
        ({"batch_size": 5}, "global batch"),
        ({"shuffle": True}, "order"),
        ({"transforms": [unchanged]}, "pixels"),
    ):
        other = feedline.Loader(Numbers(), **{"batch_size": 4, "num_workers": 0, **change})
        with pytest.raises(feedline.StateError, match=reason):
            other.load_state_dict(state)
    with pytest.raises(feedline.StateError, match="data set is not the same"):
        feedline.Loader(Numbers(21), batch_size=4, num_workers=0).load_state_dict(state)
    with pytest.raises(feedline.StateError):
        feedline.Loader(Numbers(), batch_size=4, num_workers=0).load_state_dict({"feedline_state": object()})


def test_breaking_off_begins_the_next_epoch() -> None:
    loader = feedline.Loader(Numbers(), batch_size=6, shuffle=True, num_workers=0)
    whole = epochs(loader, 3)
    for executor in ("inline", "threads"):
        with feedline.Loader(
            Numbers(), batch_size=6, shuffle=True, executor=executor, num_workers=2
        ) as other:  # type: ignore[arg-type]
            first = iter(other)
            assert plain(next(first)) == whole[0][0]
            assert [plain(batch) for batch in other] == whole[1]
            with pytest.raises(feedline.StaleIteratorError):
                next(first)
            assert [plain(batch) for batch in other] == whole[2]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_iterables(executor: Any) -> None:
    with feedline.Loader(Squares(), batch_size=5, executor=executor, num_workers=3) as loader:
        for _ in range(2):
            batches = list(loader)
            assert [batch[1].tolist() for batch in batches][-1] == [400, 441]
            assert np.concatenate([batch[1] for batch in batches]).tolist() == [n * n for n in range(22)]
        with pytest.raises(TypeError):
            len(loader)
        assert "unknown number" in repr(loader)
    with feedline.Loader(Squares(), batch_size=5, drop_last=True, num_workers=0) as loader:
        assert len(list(loader)) == 4


def test_a_generator_is_read_once() -> None:
    loader = feedline.Loader((number for number in range(5)), batch_size=2)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert loader.stats()["executor"]["name"] == "threads"


class Resetting:
    """An iterator that begins anew when it is iterated."""

    def __iter__(self) -> Resetting:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == 5:
            raise StopIteration
        self.at += 1
        return self.at - 1


class Spent(collections.abc.Iterator):  # type: ignore[type-arg]
    """An iterator whose class has no __iter__ of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> int:
        if self.at == 5:
            raise StopIteration
        self.at += 1
        return self.at - 1


class Keeping:
    """An iterable that hides a generator."""

    def __init__(self) -> None:
        self.inner = iter(range(5))

    def __iter__(self) -> Any:
        return self.inner


def numbers_once() -> Any:
    yield from range(5)


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize(
    "make",
    [
        numbers_once,
        Spent,
        lambda: iter(range(5)),
        lambda: map(abs, range(5)),
        lambda: zip(range(5), strict=True),
    ],
)
def test_what_is_read_once_has_one_epoch(make: Any, executor: Any) -> None:
    settings: dict[str, Any] = {
        "batch_size": 2,
        "executor": executor,
        "num_workers": int(executor == "threads"),
    }
    for taken in (1, 2, 3):
        with feedline.Loader(make(), **settings) as loader:
            for step, _ in enumerate(loader, 1):
                if step == taken:
                    break
            for _ in range(2):
                # Neither an empty epoch nor the rest of the first.
                with pytest.raises(
                    feedline.SourceError, match=r"can be read once.*__iter__ begins anew.*function"
                ):
                    list(loader)
    # A state of its only epoch is good for another one that was made alike.
    with feedline.Loader(make(), **settings) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with feedline.Loader(make(), **settings) as loader, pytest.warns(RuntimeWarning, match="read again"):
        loader.load_state_dict(state)
        assert len(list(loader)) == 2


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_what_begins_anew_has_many_epochs(executor: Any) -> None:
    for source in (numbers_once, lambda: iter(range(5)), Resetting()):
        workers = int(executor != "inline")
        with feedline.Loader(source, batch_size=2, executor=executor, num_workers=workers) as loader:
            for _ in range(3):
                assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_an_epoch_without_samples_is_an_error(executor: Any) -> None:
    settings: dict[str, Any] = {"executor": executor, "num_workers": int(executor != "inline")}
    with feedline.Loader(Keeping(), batch_size=2, **settings) as loader:
        assert len(list(loader)) == 3
        with pytest.raises(feedline.SourceError, match=r"Keeping: gave no samples in epoch 1.*__iter__"):
            list(loader)
    for source in (Squares(0), lambda: iter([])):
        with (
            feedline.Loader(source, **settings) as loader,
            pytest.raises(feedline.SourceError, match="no samples in epoch 0"),
        ):
            list(loader)
    shared: dict[str, Any] = {"batch_size": 3, "drop_last": True, "rank": 1, "world_size": 2, **settings}
    with feedline.Loader(Keeping(), **shared) as loader:
        assert list(loader) == []
        with pytest.raises(feedline.SourceError, match="no samples in epoch 1"):
            list(loader)


def test_ranks_of_an_iterable_share_its_batches() -> None:
    whole = [batch[1] for batch in feedline.Loader(Squares(), batch_size=6, drop_last=True, num_workers=0)]
    parts = [
        feedline.Loader(Squares(), batch_size=3, drop_last=True, num_workers=0, rank=rank, world_size=2)
        for rank in range(2)
    ]
    for batch, low, high in zip(whole, *parts, strict=True):
        assert np.concatenate([low[1], high[1]]).tolist() == batch.tolist()
    with pytest.raises(feedline.SpecError, match="last_batch"):
        feedline.Loader(Squares(), batch_size=3, rank=0, world_size=2)


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize("kind", [Squares, Counting])
def test_iterables_resume_at_every_batch(executor: Any, kind: Any) -> None:
    settings: dict[str, Any] = {"batch_size": 5, "executor": executor, "num_workers": 1}
    with feedline.Loader(kind(), **settings) as loader:
        states, expected = [loader.state_dict()], []
        for _ in range(2):
            for batch in loader:
                expected.append((loader.epoch, plain(batch)))
                states.append(loader.state_dict())
    assert len(expected) == 10
    for at in range(10) if executor == "inline" else (1, 4, 5, 7):
        dataset = kind()
        with feedline.Loader(dataset, **settings) as other:
            other.load_state_dict(states[at])
            if kind is Squares and at % 5:
                with pytest.warns(RuntimeWarning, match="has no state_dict"):
                    batch = next(iter(other))
            else:
                batch = next(iter(other))
            assert plain(batch) == expected[at][1], at
            if executor == "inline" and kind is Counting:
                assert dataset.read <= 5, "a state spares reading again"


@pytest.mark.parametrize("kind", [Squares, Counting])
def test_a_state_after_the_last_whole_batch_is_the_next_epochs(kind: Any) -> None:
    loader = feedline.Loader(kind(20), batch_size=5, num_workers=0)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    other = feedline.Loader(kind(20), batch_size=5, num_workers=0)
    other.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        batches = [batch[1].tolist() for batch in other]
        assert len(batches) == 4 and batches[0][:2] == [0, 1]
        assert other.epoch == 2


class Restless(Squares):
    """Its iterator has the state, and it is given the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return Steps(self.count, self.epoch)


class Steps:
    def __init__(self, count: int, epoch: int) -> None:
        self.count, self.epoch, self.at = count, epoch, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.at == self.count:
            raise StopIteration
        self.at += 1
        return self.epoch * 1000 + self.at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_state_of_the_iterator(executor: Any) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "executor": executor, "num_workers": 1}
    with feedline.Loader(Restless(), **settings) as loader:
        states, seen = [], []
        for _ in range(2):
            for batch in loader:
                seen.append(batch.tolist())
                states.append(loader.state_dict())
    assert seen[0] == [1, 2, 3, 4] and seen[6] == [1001, 1002, 1003, 1004]
    assert states[1]["iterable"] == {"at": 8}
    with feedline.Loader(Restless(), **settings) as other:
        for at in (1, 5, 7):
            other.load_state_dict(states[at])
            assert next(iter(other)).tolist() == seen[at + 1]


def test_errors_of_iterables_are_named() -> None:
    def ragged() -> Any:
        yield from (np.zeros(3), np.zeros(3), np.zeros(4))
        raise KeyError("gone")

    with pytest.raises(feedline.SampleError, match="sample 2: cannot collate") as caught:
        list(feedline.Loader(ragged(), batch_size=3, num_workers=0))
    assert caught.value.index == 2
    with pytest.raises(feedline.SampleError, match="sample 3: cannot read: KeyError") as caught:
        list(feedline.Loader(ragged(), num_workers=0))
    assert type(caught.value.__cause__) is KeyError


def test_samples_are_opened_again_by_their_description(small_folder: Any) -> None:
    from feedline import _native

    folder = small_folder(4)
    samples = _native.Samples(json.dumps(str(folder)), [])
    again = pickle.loads(pickle.dumps(samples))
    assert len(samples) == len(again) == 4 and again.labels() == [0, 0, 0, 0]
    assert again.read(2, 0) == samples.read(2, 0) == Path(samples.path(2) or "").read_bytes()
    assert again.read(2, 1) == 0
    with pytest.raises(IndexError):
        samples.read(4, 0)
    with pytest.raises(IndexError):
        samples.read(0, 2)
    sent = pickle.dumps(samples)
    (folder / "class" / "new.png").write_bytes(b"")
    with pytest.raises(feedline.SourceError, match="has changed"):
        pickle.loads(sent)


def test_what_an_iterable_cannot_have() -> None:
    for change in (
        {"shuffle": True},
        {"subset": "1:"},
        {"weights": [1.0]},
        {"num_samples": 3},
        {"on_error": "skip"},
    ):
        with pytest.raises(feedline.SpecError, match="iterable"):
            feedline.Loader(Squares(), **change)
    for last in ("pad", "wrap"):
        with pytest.raises(feedline.SpecError, match="iterable"):
            feedline.Loader(Squares(), last_batch=last)  # type: ignore[arg-type]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_errors_name_the_sample_and_keep_the_cause(executor: Any) -> None:
    with feedline.Loader(Bad(6), batch_size=4, executor=executor, num_workers=2) as loader:
        iterator = iter(loader)
        assert next(iterator)[1].tolist() == [0, 1, 2, 3]
        with pytest.raises(
            feedline.SampleError, match="sample 6: cannot read: ValueError: no luck"
        ) as caught:
            next(iterator)
        assert caught.value.index == 6 and caught.value.stage == "read"
        assert type(caught.value.__cause__) is ValueError
        assert next(iterator, None) is None
        assert loader.state_dict()["batch"] == 1, "the batch that failed is the next one"


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_errors_of_callables_and_of_native_ops(photos: Path, executor: Any, tmp_path: Path) -> None:
    numbers = collections.deque(np.full((4, 4), number, np.uint8) for number in range(10))
    with feedline.Loader(numbers, [CenterCrop(4), fail_on_seven], executor=executor, num_workers=1) as loader:
        with pytest.raises(
            feedline.SampleError, match=r"sample 7: cannot transform: transforms\[1\]"
        ) as caught:
            list(loader)
        assert type(caught.value.__cause__) is ZeroDivisionError
    broken = collections.deque([(photos / "ant" / "00.png").read_bytes(), b"no image"])
    with feedline.Loader(broken, [CenterCrop(4)], executor=executor, num_workers=1) as loader:
        with pytest.raises(feedline.SampleError, match="sample 1: cannot decode: not an image") as caught:
            list(loader)
        assert caught.value.index == 1 and caught.value.stage == "decode"
    for wrong, reason in (
        (np.zeros((4, 4)), "float64|<f8"),
        (np.zeros(4, np.uint8), "shape"),
        ("text", "str"),
    ):
        with (
            feedline.Loader(
                collections.deque([wrong]), [CenterCrop(4)], executor=executor, num_workers=1
            ) as loader,
            pytest.raises(feedline.SampleError, match=reason),
        ):
            next(iter(loader))


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_ragged_samples(executor: Any) -> None:
    with feedline.Loader(Ragged(), batch_size=8, executor=executor, num_workers=1) as loader:
        iterator = iter(loader)
        with pytest.raises(feedline.SampleError, match=r"sample 5: cannot collate: .*give collate_fn"):
            next(iterator)
    with feedline.Loader(
        Ragged(), batch_size=8, collate_fn=joined, executor=executor, num_workers=1
    ) as loader:
        assert next(iter(loader)) == ([1, 1, 1, 1, 1, 2, 1, 1], 28)


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_skip_takes_the_engines_substitutes(small_folder: Any, tmp_path: Path, executor: Any) -> None:
    folder = small_folder(12, bad=b"no image", worse=b"\xff\xd8\xff nor this")
    quarantine = tmp_path / f"{executor}.jsonl"
    shared: dict[str, Any] = {"batch_size": 5, "shuffle": True, "on_error": "skip", "seed": 2}
    native = feedline.Loader(folder, [RandomCrop(8), RandomHorizontalFlip(p=0)], **shared)
    code = feedline.Loader(
        folder,
        [RandomCrop(8), unchanged],
        **shared,
        executor=executor,
        num_workers=2,
        quarantine=quarantine,
        layout="HWC",
    )
    with code:
        for _ in range(2):
            for theirs, ours in zip(native, code, strict=True):
                assert np.array_equal(theirs["image"].transpose(0, 2, 3, 1), ours["image"])
        assert code.stats()["failed_samples"] == native.stats()["failed_samples"] == 2
        assert code.state_dict()["skipped"] == native.state_dict()["skipped"]
    lines = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert sorted(Path(line["path"]).name for line in lines) == ["bad.jpg", "worse.jpg"]


def test_skip_with_a_data_set(tmp_path: Path) -> None:
    for executor in ("inline", "threads", "processes"):
        shared: dict[str, Any] = {"batch_size": 4, "on_error": "skip", "executor": executor, "num_workers": 2}
        with feedline.Loader(Bad(3, 9), **shared) as loader:
            seen = np.concatenate([batch[1] for batch in loader])
            assert len(seen) == 20 and 3 not in seen and 9 not in seen
            assert loader.stats()["failed_samples"] == 2
        with feedline.Loader(Bad(3, 9), max_failures=1, **shared) as loader:
            with pytest.raises(feedline.TooManyFailuresError) as caught:
                list(loader)
            assert caught.value.failed == 2
        with feedline.Loader(Bad(*range(20)), **shared) as loader, pytest.raises(feedline.SampleError):
            list(loader)


def test_what_has_no_meaning_is_refused(photos: Path) -> None:
    for change, key in (
        ({"memory": "1GB"}, "memory"),
        ({"cache": "memory"}, "cache"),
        ({"in_order": False}, "in_order"),
        ({"device": "cuda", "output": "torch"}, "device"),
        ({"pin_memory": True}, "pin_memory"),
        ({"executor": "fast"}, "executor"),
        ({"executor": "threads", "num_workers": 0}, "executor"),
        ({"collate_fn": 3}, "collate_fn"),
        ({"batch_size": 0}, "batch_size"),
        ({"weights": "balanced"}, "weights"),
        ({"transforms": ["MixUp"]}, r"transforms\[0\]"),
        ({"transforms": [unchanged, "Resise"]}, r"transforms\[1\].op"),
    ):
        with pytest.raises(feedline.SpecError, match=key):
            feedline.Loader(Numbers(), **change)  # type: ignore[arg-type]
    with pytest.raises(feedline.SpecError, match="ToDtype"):
        feedline.Loader(photos, [Normalize([0.5], [0.5]), unchanged])
    with pytest.raises(feedline.SourceError):
        feedline.Loader(Numbers(0))
    with pytest.raises(feedline.SpecError, match="is not a source"):
        feedline.Loader(3)


def test_workers_end_with_the_loader() -> None:
    loader: Any = feedline.Loader(Pids(), batch_size=2, num_workers=2, executor="processes")
    pids: set[int] = set()
    # Until the workers are there, batches are made by the program itself.
    while not pids:
        pids |= {int(pid) for batch in loader for pid in batch[:, 0]} - {os.getpid()}
    gc.disable()
    try:
        del loader
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"the end of {pids}")
    finally:
        gc.enable()


def test_a_state_is_taken_while_another_thread_waits() -> None:
    class Slow(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 2:
                release.wait(HANG)
            return index

    release = threading.Event()
    loader = feedline.Loader(Slow(), batch_size=2, num_workers=1, executor="threads")
    iterator = iter(loader)
    next(iterator)
    waiting = threading.Thread(target=lambda: next(iterator))
    waiting.start()
    try:
        assert loader.state_dict()["batch"] == 1 and loader.stats()["batches"] == 1
    finally:
        release.set()
        waiting.join()
    assert loader.state_dict()["batch"] == 2
    loader.close()


class Many(Bad):
    """Has a way to get many samples at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(image, number + 100) for image, number in map(self.__getitem__, indices)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_data_sets_that_give_many_samples_at_once(executor: Any) -> None:
    shared: dict[str, Any] = {"batch_size": 8, "shuffle": True, "executor": executor, "num_workers": 2}
    with feedline.Loader(Many(), **shared) as loader:
        numbers = np.concatenate([batch[1] for batch in loader])
        assert sorted(numbers) == list(range(100, 120))
    named = pytest.raises(feedline.SampleError, match="sample 7: cannot read: ValueError")
    with feedline.Loader(Many(7), **shared) as loader, named:
        list(loader)


def test_a_hugging_face_data_set() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict(
        {"x": [[i, i] for i in range(10)], "name": [f"a{i}" for i in range(10)]}
    )
    with feedline.Loader(rows.with_format("numpy"), batch_size=4, num_workers=2) as loader:
        first = next(iter(loader))
        assert first["x"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
        assert list(first["name"]) == ["a0", "a1", "a2", "a3"]


class Stuck(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 2:
            time.sleep(3600)
        return index


def test_closing_ends_another_threads_wait() -> None:
    # With worker_init_fn no batch is made by the program itself, which would hang here.
    loader = feedline.Loader(Stuck(), batch_size=2, num_workers=1, worker_init_fn=note_worker)
    iterator = iter(loader)
    next(iterator)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            next(iterator)
        except BaseException as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: loader.stats()["waiting_seconds"], "that it waits")
    loader.close()
    waiting.join(HANG)
    assert not waiting.is_alive()
    assert type(caught[0]) is feedline.ClosedError


def test_transforms_may_come_from_a_generator(photos: Path) -> None:
    for ops in ([CenterCrop(4)], [CenterCrop(4), unchanged]):
        loader = feedline.Loader(photos, (op for op in ops), num_workers=0)
        assert next(iter(loader))["image"].size == 48
    with pytest.raises(feedline.SpecError, match="is a class"):
        feedline.Loader(photos, [CenterCrop])


def test_weights_balanced_with_targets() -> None:
    class Classes(Numbers):
        targets = [0] * 18 + [1] * 2

    loader = feedline.Loader(Classes(), weights="balanced", num_samples=2000, batch_size=100, num_workers=0)
    share = np.mean([batch[1] >= 18 for batch in loader])
    assert 0.4 < share < 0.6


@pytest.mark.parametrize("output", ["torch", "numpy", "dlpack"])
def test_outputs(photos: Path, output: Any) -> None:
    for source in (Encoded(photos), photos):
        with feedline.Loader(
            source, [CenterCrop(4), ToDtype("float16")], batch_size=3, output=output, executor="threads"
        ) as loader:
            images, labels = next(iter(loader))
            assert type(images).__module__.partition(".")[0] == ("torch" if output == "torch" else "numpy")
            assert tuple(images.shape) == (3, 3, 4, 4) and str(images.dtype).endswith("float16")
            assert labels.tolist() == [0, 0, 0]


def test_bfloat16(photos: Path) -> None:
    torch = pytest.importorskip("torch")
    ops = [CenterCrop(4), ToDtype("bfloat16", scale=True)]
    native = feedline.Loader(photos, ops, batch_size=3, output="torch")
    code = feedline.Loader(Encoded(photos), ops, batch_size=3, output="torch", num_workers=0)
    for theirs, ours in zip(native, code, strict=True):
        assert ours[0].dtype == torch.bfloat16 and torch.equal(ours[0], theirs["image"])


def test_worker_init_fn_and_workers() -> None:
    with feedline.Loader(Pids(), batch_size=2, num_workers=2, worker_init_fn=note_worker) as loader:
        made = np.concatenate(list(loader))
        assert loader.num_workers == 2
    assert os.getpid() not in made[:, 0] and set(made[:, 1]) <= {0, 1}


_worker = -1


def note_worker(number: int) -> None:
    global _worker
    _worker = number


class Pids(Numbers):
    def __getitem__(self, index: int) -> Any:
        return np.array([os.getpid(), _worker])


def test_spec_comes_back(photos: Path) -> None:
    loader = feedline.Loader(
        Encoded(photos), [RandomCrop(8), unchanged], batch_size=4, shuffle=True, num_workers=0
    )
    again = feedline.Loader.from_spec(loader.spec)
    assert epochs(again) == epochs(loader)
    loader.close()
    with pytest.raises(feedline.ClosedError):
        next(iter(loader))
    assert "closed" in repr(loader)


def test_a_forked_child_goes_on() -> None:
    loader = feedline.Loader(Numbers(), batch_size=4, executor="threads", num_workers=1)
    iterator = iter(loader)
    next(iterator)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, bytes(next(iterator)[1].astype(np.uint8)))
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 100) == bytes([4, 5, 6, 7])
    os.close(read)
    assert next(iterator)[1].tolist() == [4, 5, 6, 7]
    loader.close()


NO_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
import feedline
from feedline.transforms import CenterCrop

class Images:
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return {"image": np.full((8, 8, 3), index, np.uint8), "label": index}

for executor in ("inline", "threads", "processes", "auto"):
    with feedline.Loader(Images(), [CenterCrop(4), lambda image: image + 1], batch_size=4, num_workers=2,
                         executor=executor) as loader:
        batches = list(loader)
        assert [int(batch["image"][0, 0, 0, 0]) for batch in batches] == [1, 5, 9], executor
assert not [name for name in sys.modules if name.startswith("torch.")]
print("done")
"""


def test_without_torch_in_an_unguarded_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(NO_TORCH)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_chain_says_what_it_will_write(photos: Path) -> None:
    from feedline import _native

    chain = _native.Chain(json.dumps([CenterCrop(5).spec()]), "CHW")
    data = (photos / "ant" / "00.png").read_bytes()
    pending = chain.prepare(data, index=3)
    assert (pending.shape, pending.dtype, pending.nbytes) == ((3, 5, 5), "uint8", 75)
    out = np.zeros(75, np.uint8)
    pending.write(out.ctypes.data, out.nbytes)
    assert np.array_equal(out.reshape(3, 5, 5), np.asarray(pending))
    assert bytes(pending.tobytes()) == out.tobytes()
    with pytest.raises(ValueError, match="takes 75 bytes"):
        pending.write(out.ctypes.data, 74)
    with pytest.raises(feedline.SampleError, match="sample 3"):
        chain.prepare(data[:20], index=3)
    small = np.zeros((4, 3, 3), np.uint8)
    assert chain.prepare(small).shape == (4, 5, 5), "four channels, as an array source reads it"
    assert chain.prepare(small, channels_last=True).shape == (3, 5, 5)
    resized = _native.Chain(json.dumps([Resize(7).spec()]), "HWC", "{}", 2)
    assert resized.prepare(data).shape == (7, 9, 3)


def test_a_state_holds_on_another_number_of_ranks(photos: Path) -> None:
    shared: dict[str, Any] = {"transforms": [RandomResizedCrop(8), unchanged], "shuffle": True, "seed": 4}
    one = feedline.Loader(Encoded(photos), batch_size=6, num_workers=0, **shared)
    iterator = iter(one)
    for _ in range(2):
        next(iterator)
    state = one.state_dict()
    expected = [batch[0] for batch in iterator]
    parts = []
    for rank in range(2):
        shared.update(rank=rank, world_size=2, executor="threads", num_workers=2)
        with feedline.Loader(Encoded(photos), batch_size=3, **shared) as part:
            part.load_state_dict(state)
            parts.append([batch[0].copy() for batch in part])
    for whole, low, high in zip(expected, *parts, strict=True):
        assert np.array_equal(whole, np.concatenate([low, high]))


def test_the_state_of_a_data_set_that_is_asked_by_index_is_named_as_left_out() -> None:
    class Remembering(Numbers):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    loader = feedline.Loader(Remembering(), batch_size=4, num_workers=0)
    with pytest.warns(RuntimeWarning, match="Remembering has a state_dict, which is not part") as caught:
        loader.state_dict()
        loader.state_dict()
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feedline.Loader(Numbers(), batch_size=4, num_workers=0).state_dict()
