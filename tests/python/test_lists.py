"""Plain lists as sources: samples are a data set, sources are joined or mixed, the rest is refused."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import picture
from feedline import Loader
from feedline.transforms import CenterCrop, Resize

EXECUTORS = ["inline", "threads", "processes"]
Pair = collections.namedtuple("Pair", ["image", "label"])


def files(photos: Path) -> list[Path]:
    return sorted(photos.glob("*/*.png"))


def epoch(source: Any, *args: Any, **settings: Any) -> list[Any]:
    with Loader(source, *args, **{"num_workers": 0, **settings}) as loader:
        return list(loader)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_paths_and_labels_are_samples(photos: Path, executor: Any) -> None:
    # The labels begin at 0 and would pass for weights from 1 on.
    for shift in (0, 1):
        pairs = [(path, number // 10 + shift) for number, path in enumerate(files(photos))]
        with Loader(
            pairs, [CenterCrop(8)], 7, shuffle=True, executor=executor, num_workers=1 - (executor == "inline")
        ) as loader:
            native = Loader(photos, [CenterCrop(8)], 7, shuffle=True)
            assert len(loader) == len(native) and loader.num_samples == 30
            for (images, labels), (theirs, numbers) in zip(loader, native, strict=True):
                assert np.array_equal(images, theirs) and np.array_equal(labels, numbers + shift)


def test_paths_of_image_files_are_samples(photos: Path) -> None:
    for paths in (
        files(photos),
        [str(path) for path in files(photos)],
        [bytes(path) for path in files(photos)],
    ):
        (batch,) = epoch(paths, batch_size=30)
        assert np.array_equal(batch, np.stack([picture(n).transpose(2, 0, 1) for n in range(30)]))
    named = [{"image": path, "name": path.stem} for path in files(photos)]
    (batch,) = epoch(named, [CenterCrop(8)], batch_size=30)
    assert batch["image"].shape == (30, 3, 8, 8) and batch["name"][:2] == ["00", "01"]
    described = [{"path": str(path), "label": 3} for path in files(photos)]
    (batch,) = epoch(described, [CenterCrop(8)], batch_size=30)
    assert batch["path"].shape == (30, 3, 8, 8) and batch["label"].tolist() == [3] * 30
    (batch,) = epoch([Pair(path, "cat") for path in files(photos)], [CenterCrop(8)], batch_size=30)
    assert batch.image.shape == (30, 3, 8, 8) and batch.label == ["cat"] * 30


def test_other_samples(photos: Path) -> None:
    assert [batch.tolist() for batch in epoch([5, 6, 7], batch_size=2)] == [[5, 6], [7]]
    assert epoch([0.5, True, np.float32(2)], batch_size=3)[0].tolist() == [0.5, 1, 2]
    assert epoch([{"a": 1}, {"a": 2}], batch_size=2)[0]["a"].tolist() == [1, 2]
    first, second = epoch([("hello", "bonjour"), ("cat", "chat")], batch_size=2)[0]
    assert first == ["hello", "cat"] and second == ["bonjour", "chat"]
    assert epoch([(1, 2), (3, 4)], batch_size=2)[0][1].tolist() == [2, 4]
    assert epoch([[1, 2], [3, 4]], batch_size=2)[0][1].tolist() == [2, 4]
    texts, labels = epoch([("great", 1), ("bad", 0)], batch_size=2)[0]
    assert texts == ["great", "bad"] and labels.tolist() == [1, 0]
    images = [picture(number) for number in range(4)]
    assert epoch(images, [CenterCrop(8)], batch_size=4)[0].shape == (4, 3, 8, 8)
    pixels, labels = epoch([(one, 1 + at) for at, one in enumerate(images)], [CenterCrop(8)], batch_size=4)[0]
    assert pixels.shape == (4, 3, 8, 8) and labels.tolist() == [1, 2, 3, 4]
    boxes = [{"image": one, "boxes": np.zeros((2, 4)), "label": 1} for one in images]
    assert epoch(boxes, [CenterCrop(8)], batch_size=4)[0]["boxes"].shape == (4, 2, 4)
    sizes = [np.zeros((height, 20, 3), np.uint8) for height in (10, 12, 14)]
    assert epoch(sizes, [Resize((8, 8))], batch_size=3)[0].shape == (3, 3, 8, 8)
    encoded = [path.read_bytes() for path in files(photos)[:3]]
    assert epoch(encoded, [CenterCrop(8)], batch_size=3)[0].shape == (3, 3, 8, 8)
    assert epoch([np.array(3.0), np.array(4.0)], batch_size=2)[0].tolist() == [3, 4]
    masks = [{"image": one, "mask": one[:, :, 0]} for one in images]
    assert epoch(masks, [CenterCrop(8)], batch_size=4)[0]["mask"].shape == (4, *images[0].shape[:2])
    turned = [(one.transpose(2, 0, 1), np.zeros(3)) for one in images]
    assert epoch(turned, [CenterCrop(8)], batch_size=4)[0][1].shape == (4, 3)
    texts, labels = epoch([["great", 1], ["bad", 0]], batch_size=2)[0]
    assert texts == ["great", "bad"] and labels.tolist() == [1, 0]
    assert epoch(tuple(range(3)), batch_size=3)[0].tolist() == [0, 1, 2]
    # These fit neither beside each other nor end to end.
    assert [one.shape for one in epoch([np.zeros((2, 5)), np.zeros((3, 6))])] == [(1, 2, 5), (1, 3, 6)]


def test_sources_are_joined_and_mixed(photos: Path, arrays: Any) -> None:
    images, labels = arrays
    settings: dict[str, Any] = {"batch_size": 60}
    assert epoch([photos, str(photos)], [CenterCrop(8)], **settings)[0][0].shape == (60, 3, 8, 8)
    assert len(Loader([{"path": photos}, {"kind": "image_folder", "path": str(photos)}]).classes) == 3
    assert epoch([range(3), range(5, 7)], **settings)[0].tolist() == [0, 1, 2, 5, 6]
    with Loader([(photos, 3), (str(photos), 1)], [CenterCrop(8)]) as mixed:
        assert mixed.spec["source"][0]["weight"] == 3
    named = {"kind": "arrays", "image": images, "label": labels}
    assert Loader([named, named]).num_samples == 200
    assert Loader([(named, 2), (named, 1)]).num_samples == 200
    assert Loader((images, labels)).num_samples == 100
    assert next(iter(Loader(named))).keys() == ("image", "label")


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ([np.zeros(9), np.zeros(9)], ["numpy.stack", "numpy.concatenate", "a tuple"]),
        ([np.zeros((9, 3, 8, 8)), np.zeros(9)], ["numpy.stack", "numpy.concatenate", "a tuple"]),
        ([np.zeros((9, 5)), np.zeros((7, 5))], ["numpy.stack", "numpy.concatenate", "a tuple"]),
        ([(np.zeros(50), 3), (np.zeros(9), 1)], ["a sample and its label", "a source and its weight"]),
        ([({"x": np.zeros(9)}, 0.5), ({"x": np.zeros(9)}, 0.7)], ["sample and its label", "kind", "weight"]),
        ([("great film", 1), ("fine film", 2)], ["text", "label", '{"path": path}']),
        ([{"ids": np.zeros(5), "mask": np.zeros(5)}] * 2, ["samples", "arrays", "to join"]),
        ([(np.zeros(5), np.zeros(5))] * 2, ["samples", "to join"]),
        ([["photos", 0.7], ["other", 0.3]], ["a list (text, number) can be", "label", "weight"]),
        ([{"x": np.zeros((9, 16, 3)), "y": np.zeros(9)}] * 2, ["samples", "to join"]),
        ([({"x": np.zeros((9, 16, 3))}, 0.5)] * 2, ["sample and its label", "weight"]),
        ([np.zeros((9, 16, 3)), np.zeros(9)], ["numpy.stack", "numpy.concatenate", "a tuple"]),
        ([("text\udc80\ud800", 1)], ["text", "label"]),
        (["photos", "a.jpg"], [r"source[0] ('photos') is a source", r"source[1] ('a.jpg') is a sample"]),
        ([range(3), 4], [r"source[0] (range(0, 3)) is a source", r"source[1] (4) is a sample"]),
        (("a.jpg", 0), ["put the pairs into a list", "label"]),
        ([iter([1]), iter([2])], ["is not a source", "a list of samples"]),
    ],
)
def test_what_can_be_meant_in_two_ways_is_refused(source: Any, texts: list[str]) -> None:
    with pytest.raises(feedline.SpecError) as caught:
        Loader(source)
    for text in texts:
        assert text in str(caught.value)
    assert caught.value.key == "source"


def test_a_bad_file_of_a_list_is_named(photos: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    pairs = [(path, 1) for path in files(photos)[:5]] + [(bad, 1), (tmp_path / "none.png", 1)]
    for at, stage in ((5, "decode"), (6, "read")):
        loader = Loader(pairs, [CenterCrop(8)], subset=[at], num_workers=0)
        with pytest.raises(feedline.SampleError, match=f"sample {at}") as caught:
            next(iter(loader))
        assert caught.value.path == str(pairs[at][0]) and caught.value.stage == stage
    quarantine = tmp_path / "bad.jsonl"
    settings: dict[str, Any] = {"batch_size": 7, "on_error": "skip", "quarantine": quarantine}
    (batch,) = epoch(pairs, [CenterCrop(8)], **settings)
    assert batch[0].shape == (7, 3, 8, 8) and len(quarantine.read_text().splitlines()) == 2


def test_lists_are_balanced_and_resumed(photos: Path) -> None:
    pairs = [(path, int(number < 3)) for number, path in enumerate(files(photos))]
    drawn = epoch(pairs, [CenterCrop(8)], weights="balanced", num_samples=2000, batch_size=500)
    assert 850 < sum(int(labels.sum()) for _, labels in drawn) < 1150
    loader = Loader(pairs, [CenterCrop(8)], 7, shuffle=True, num_workers=0)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = [labels.tolist() for _, labels in iterator]
    other = Loader(pairs, [CenterCrop(8)], 7, shuffle=True, num_workers=0)
    other.load_state_dict(state)
    assert [labels.tolist() for _, labels in other] == rest
    with pytest.raises(feedline.StateError, match="data set"):
        Loader(pairs[::-1], [CenterCrop(8)], 7, shuffle=True, num_workers=0).load_state_dict(state)
