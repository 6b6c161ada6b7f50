"""The loader from outside: what it takes, what it gives."""

from __future__ import annotations

import collections
import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import CLASSES, Array, picture
from feedline import Loader
from feedline import transforms as T

torch = pytest.importorskip("torch")

CROP = [T.CenterCrop(24)]


def hashes(batches: Iterable[feedline.Batch]) -> list[int]:
    return [batch.hash() for batch in batches]


def rows(loader: Iterable[feedline.Batch], field: str | int = -1) -> list[int]:
    return [int(row) for batch in loader for row in batch[field]]


def test_folder_of_classes(photos: Path) -> None:
    loader = Loader(photos, batch_size=4)
    assert len(loader) == 8
    assert loader.classes == list(CLASSES)
    assert loader.num_samples == 30
    number = 0
    for images, labels in loader:
        assert images.dtype == np.uint8 and labels.dtype == np.int64
        for image, label in zip(images, labels, strict=True):
            np.testing.assert_array_equal(image, picture(number).transpose(2, 0, 1))
            assert label == number // 10
            number += 1
    assert number == 30


def test_flat_folder_has_no_labels(photos: Path) -> None:
    loader = Loader(str(photos / "ant"), batch_size=5)
    assert loader.classes == []
    for batch in loader:
        (images,) = batch
        assert batch.keys() == ("image",) and images.shape == (5, 3, 24, 32)


def test_manifest(manifest: Path) -> None:
    with pytest.warns(UserWarning, match=r"not used: score; .*label_columns") as caught:
        loader = Loader(manifest, CROP, batch_size=4)
    assert caught[0].filename == __file__
    assert rows(loader) == [n // 10 for n in range(30)]
    assert "columns not used: score" in repr(loader)
    # Once said is enough.
    assert "not used: score" in repr(Loader(manifest, [*CROP, lambda image: image], executor="inline"))
    source = {"kind": "manifest", "path": manifest, "label_columns": ["score", "label"]}
    assert "not used" not in repr(Loader({**source, "label_columns": ["label"]}))
    batch = next(iter(Loader(source, CROP, batch_size=4)))
    assert batch.keys() == ("image", "score", "label")
    np.testing.assert_array_equal(batch["score"], np.array([0, 0.5, 1, 1.5], np.float32))


def table(path: Path, photos: Path, *columns: str) -> Path:
    """A manifest of all photos with these columns, each value of them "column-class"."""
    rows = [["filename", *columns]]
    for number, photo in enumerate(sorted(photos.glob("*/*.png"))):
        rows.append([str(photo), *(f"{column}-{number // 10}" for column in columns)])
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[1:]]
    else:
        lines = [",".join(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_the_only_other_column_of_a_manifest_is_the_label(photos: Path, tmp_path: Path, ending: str) -> None:
    loader = Loader(table(tmp_path / f"one.{ending}", photos, "category"), CROP, batch_size=30)
    assert loader.classes == ["category-0", "category-1", "category-2"]
    (batch,) = loader
    assert batch.keys() == ("image", "category")
    assert batch["category"].tolist() == [n // 10 for n in range(30)]
    assert "not used" not in repr(loader)
    # An index that has no name counts for nothing.
    path = table(tmp_path / f"two.{ending}", photos, "category")
    if ending == "csv":
        lines = path.read_text().splitlines()
        path.write_text("\n".join([f",{lines[0]}", *(f"{n},{line}" for n, line in enumerate(lines[1:]))]))
        assert Loader(path, CROP).classes == loader.classes
    left_out = {"kind": "manifest", "path": path, "label_columns": []}
    assert next(iter(Loader(left_out, CROP))).keys() == ("image",)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_columns_that_are_not_used_are_named(photos: Path, tmp_path: Path, ending: str) -> None:
    for code in (False, True):
        path = table(tmp_path / f"{code}.{ending}", photos, "category", "split")
        ops: list[Any] = [*CROP, lambda image: image] if code else CROP
        with pytest.warns(UserWarning, match=f"{code}.{ending}.* not used: category, split; "):
            loader = Loader(path, ops)
        assert next(iter(loader)).keys() == ("image",)
        assert "columns not used: category, split" in repr(loader)
    command = [sys.executable, "-m", "feedline", "inspect", str(path), "--no-trial"]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert "columns not used: category, split (source.label_columns" in " ".join(shown.stdout.split())
    plain = subprocess.run([*command, "--json"], capture_output=True, text=True)
    (source,) = json.loads(plain.stdout)["sources"]
    assert source["unused_columns"] == ["category", "split"]


def test_a_column_that_cannot_be_a_label_is_left_out_by_name(photos: Path, tmp_path: Path) -> None:
    photo = str(next(photos.glob("*/*.png")))
    boxes = tmp_path / "boxes.jsonl"
    boxes.write_text(json.dumps({"path": photo, "boxes": [[1, 2, 3, 4]]}) + "\n")
    with pytest.warns(UserWarning, match="not used: boxes"):
        assert next(iter(Loader(boxes, CROP))).keys() == ("image",)
    holes = tmp_path / "holes.csv"
    holes.write_text(f"path,category\n{photo},cat\n{photo},\n")
    with pytest.raises(
        feedline.SourceError, match=r"line 3: has no value for category.*label_columns = \[\]"
    ):
        Loader(holes, CROP)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
    ],
)
def test_arrays_of_every_type(dtype: str) -> None:
    array = (np.arange(60).reshape(10, 3, 2) % 2).astype(dtype)
    for output, to_numpy in (
        ("numpy", np.asarray),
        ("torch", lambda t: t.numpy()),
        ("dlpack", np.from_dlpack),
    ):
        (batch,) = Loader(array, batch_size=10, output=output)  # type: ignore[arg-type]
        made = to_numpy(batch["0"])
        assert made.dtype == array.dtype
        np.testing.assert_array_equal(made, array)


def test_names_of_array_fields(arrays: tuple[Array, Array]) -> None:
    images, labels = arrays
    assert next(iter(Loader(arrays))).keys() == ("0", "1")
    with pytest.raises(feedline.SpecError, match=r"numpy\.stack.*numpy\.concatenate.*tuple"):
        Loader(list(arrays))
    assert next(iter(Loader({"x": images, "y": labels}))).keys() == ("x", "y")
    assert next(iter(Loader(images))).keys() == ("0",)


def test_arrays_that_do_not_lie_in_order(arrays: tuple[Array, Array]) -> None:
    images, labels = arrays
    turned = images.transpose(0, 2, 3, 1)
    (batch,) = Loader((turned, labels[::-1], labels.astype(">i4")), batch_size=100)
    np.testing.assert_array_equal(batch[0], turned)
    np.testing.assert_array_equal(batch[1], labels[::-1])
    np.testing.assert_array_equal(batch[2], labels)
    assert batch[2].dtype == np.int32


def test_torch_tensors_as_source() -> None:
    x = torch.arange(12.0, requires_grad=True).reshape(4, 3)
    y = torch.arange(4, dtype=torch.bfloat16)
    (batch,) = Loader((x, y), batch_size=4, output="torch")
    assert torch.equal(batch[0], x.detach()) and torch.equal(batch[1], y)


def test_arrays_are_read_where_they_lie(arrays: tuple[Array, Array]) -> None:
    labels = arrays[1]
    loader = Loader(arrays, batch_size=100, num_workers=0)
    labels[0] = 77
    assert next(iter(loader))[1][0] == 77


def test_access_to_fields(arrays: tuple[Array, Array]) -> None:
    batch = next(iter(Loader({"image": arrays[0], "label": arrays[1]}, batch_size=3)))
    images, labels = batch
    assert batch["image"] is images and batch[0] is images and batch[-1] is labels
    assert len(batch) == 2 and batch.rows == 3 and "label" in batch and "x" not in batch
    assert dict(batch.items()).keys() == {"image", "label"} and batch.values() == (images, labels)
    assert (batch.epoch, batch.number, batch.padding) == (0, 0, 0)
    with pytest.raises(KeyError, match="'x'; the fields are 'image', 'label'"):
        batch["x"]
    with pytest.raises(IndexError):
        batch[2]
    assert "uint8 [3, 3, 8, 8]" in repr(batch)


def test_epochs_follow_each_other(arrays: tuple[Array, Array]) -> None:
    loader = Loader(arrays, batch_size=7, shuffle=True, seed=3)
    first, second = rows(loader), rows(loader)
    assert sorted(first) == sorted(second) == list(range(100)) and first != second
    loader.set_epoch(0)
    assert loader.epoch == 0
    assert rows(loader) == first
    assert rows(loader) == second
    again = Loader(arrays, batch_size=7, shuffle=True, seed=3, num_workers=0)
    again.set_epoch(1)
    assert rows(again) == second
    assert rows(Loader(arrays, batch_size=7, shuffle=True, seed=4)) != first


def test_an_epoch_left_early_is_over(arrays: tuple[Array, Array]) -> None:
    loader = Loader(arrays, batch_size=10)
    for batch in loader:
        if batch.number == 3:
            break
    assert [(batch.epoch, batch.number) for batch in loader] == [(1, n) for n in range(10)]


def test_an_old_iterator_says_so(arrays: tuple[Array, Array]) -> None:
    loader = Loader(arrays, batch_size=10)
    old = iter(loader)
    next(old)
    new = iter(loader)
    next(new)
    with pytest.raises(feedline.StaleIteratorError, match="iterated, seeked or resumed again"):
        next(old)
    assert list(old) == []
    next(new)
    loader.set_epoch(5)
    with pytest.raises(feedline.StaleIteratorError):
        next(new)
    done = iter(loader)
    assert len(list(done)) == 10
    next(iter(loader))
    assert list(done) == []


def test_close_and_context(arrays: tuple[Array, Array]) -> None:
    with Loader(arrays, batch_size=10) as loader:
        epoch = iter(loader)
        batch = next(epoch)
        kept = batch[1].copy()
    np.testing.assert_array_equal(batch[1], kept)
    for use in (lambda: next(epoch), lambda: iter(loader), loader.state_dict, lambda: loader.set_epoch(0)):
        with pytest.raises(feedline.ClosedError, match="closed"):
            use()
    loader.close()
    assert "closed" in repr(loader) and len(loader) == 10


def test_repr(photos: Path, arrays: tuple[Array, Array]) -> None:
    text = repr(Loader(photos, [T.CenterCrop(16), T.ToDtype("float32")], batch_size=4, num_workers=3))
    for part in (
        str(photos),
        "30 samples in 3 classes",
        "8 batches of 4",
        "float32 [4, 3, 16, 16]",
        "3 workers",
    ):
        assert part in text
    assert "rank 1 of 2" in repr(Loader(arrays, rank=1, world_size=2))


def test_stats(photos: Path) -> None:
    loader = Loader(photos, CROP, batch_size=4, cache={"hold": "decoded", "limit": "10MB"})
    for _ in range(2):
        for _ in loader:
            pass
    stats = loader.stats()
    assert stats["batches"] == 16 and stats["samples"] == 60
    assert stats["cache"]["hits"] > 0 and stats["cache"]["bytes"] > 0 and stats["read_bytes"] > 0
    assert stats["wait_seconds"] >= 0 and stats["first_batch_seconds"] > 0
    assert stats["seconds_per_sample"].keys() >= {"read", "decode", "transform"}
    assert stats["memory"]["used"] <= stats["memory"]["limit"]


@pytest.mark.parametrize("workers", [0, 1, 2, 7])
def test_any_number_of_workers_makes_the_same(photos: Path, workers: int) -> None:
    chain = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]
    one = Loader(photos, chain, batch_size=7, shuffle=True, num_workers=0)
    other = Loader(photos, chain, batch_size=7, shuffle=True, num_workers=workers, prefetch_factor=2)
    for _ in range(2):
        assert hashes(one) == hashes(other)


def test_layouts(photos: Path) -> None:
    chain = [T.CenterCrop((8, 16)), T.ToDtype("float32", scale=True)]
    (chw,) = (b[0] for b in Loader(photos, chain, 30))
    (hwc,) = (b[0] for b in Loader(photos, chain, 30, layout="HWC"))
    (last,) = (b[0] for b in Loader(photos, chain, 30, layout="channels_last"))
    (tensor,) = (b[0] for b in Loader(photos, chain, 30, layout="channels_last", output="torch"))
    assert chw.shape == last.shape == (30, 3, 8, 16) and hwc.shape == (30, 8, 16, 3)
    np.testing.assert_array_equal(chw, last)
    np.testing.assert_array_equal(chw, hwc.transpose(0, 3, 1, 2))
    assert last.strides == (8 * 16 * 3 * 4, 4, 16 * 3 * 4, 3 * 4)
    assert tensor.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(tensor.numpy(), chw)


def test_bfloat16(photos: Path) -> None:
    chain = [T.CenterCrop(8), T.ToDtype("bfloat16", scale=True)]
    (tensors,) = Loader(photos, chain, 30, output="torch")
    (floats,) = Loader(photos, [T.CenterCrop(8), T.ToDtype(torch.float32, scale=True)], 30, output="torch")
    assert tensors[0].dtype == torch.bfloat16
    assert torch.equal(tensors[0], floats[0].to(torch.bfloat16))
    ml_dtypes = pytest.importorskip("ml_dtypes")
    (plain,) = Loader(photos, chain, 30)
    assert plain[0].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(plain[0].astype(np.float32), tensors[0].float().numpy())


def test_bfloat16_without_ml_dtypes(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(feedline.SpecError, match="install ml_dtypes"):
        Loader(photos, [T.CenterCrop(8), T.ToDtype("bfloat16")])


def test_jax(arrays: tuple[Array, Array]) -> None:
    jax = pytest.importorskip("jax")
    images, labels = arrays
    for (image, label), start in zip(
        Loader(arrays, batch_size=10, output="jax"), range(0, 100, 10), strict=True
    ):
        assert isinstance(image, jax.Array)
        np.testing.assert_array_equal(image, images[start : start + 10])
        np.testing.assert_array_equal(label, labels[start : start + 10])


def test_order(arrays: tuple[Array, Array]) -> None:
    assert rows(Loader(arrays, subset=slice(10, 20, 3))) == [10, 13, 16, 19]
    assert rows(Loader(arrays, subset="-3:")) == [97, 98, 99]
    assert rows(Loader(arrays, subset=[5, 3, 5])) == [5, 3, 5]
    assert rows(Loader(arrays, subset=np.array([8, 1]))) == [8, 1]
    drawn = rows(Loader(arrays, replacement=True, num_samples=1000, batch_size=50))
    assert len(drawn) == 1000 and len(set(drawn)) > 90
    weights = np.zeros(100)
    weights[[3, 4]] = [1, 3]
    weighted = rows(Loader(arrays, weights=weights, num_samples=4000, batch_size=50))
    assert set(weighted) == {3, 4} and 2800 < weighted.count(4) < 3200
    labels = np.array([0] * 90 + [1] * 10)
    balanced = rows(Loader((arrays[0], labels), weights="balanced", num_samples=4000, batch_size=50))
    assert 1800 < sum(balanced) < 2200


def test_several_sources(photos: Path, arrays: tuple[Array, Array]) -> None:
    assert rows(Loader([photos, str(photos)], CROP, batch_size=8)) == [n // 10 for n in range(30)] * 2
    zeros, ones = np.zeros(50, np.int64), np.ones(1000, np.int64)
    shares = [({"kind": "arrays", "x": zeros}, 3), ({"kind": "arrays", "x": ones}, np.float64(1))]
    mixed = rows(Loader(shares, num_samples=4000, batch_size=40))
    assert 900 < sum(mixed) < 1100
    with pytest.raises(feedline.SpecError, match="put the pairs into a list"):
        Loader((photos, 2.0))
    with pytest.raises(feedline.SpecError, match=r"the fields of source\[0\]"):
        Loader([photos, arrays])


@pytest.mark.parametrize("last_batch", ["short", "drop", "pad", "wrap"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_the_global_batch(arrays: tuple[Array, Array], last_batch: Any, world: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "last_batch": last_batch}
    whole = Loader(arrays, batch_size=12, rank=0, world_size=1, **options)
    ranks = [
        Loader(arrays, batch_size=12 // world, rank=r, world_size=world, **options) for r in range(world)
    ]
    assert {len(loader) for loader in ranks} == {len(whole)}
    for batch, *parts in zip(whole, *ranks, strict=True):
        np.testing.assert_array_equal(batch[1], np.concatenate([part[1] for part in parts]))
        assert batch.padding == sum(part.padding for part in parts)


def test_rank_from_the_environment(arrays: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    given = hashes(Loader(arrays, batch_size=10, rank=1, world_size=2))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert hashes(Loader(arrays, batch_size=10)) == given
    assert len(Loader(arrays, batch_size=10, rank=0, world_size=1)) == 10
    monkeypatch.delenv("RANK")
    with pytest.raises(feedline.SpecError, match="WORLD_SIZE but not RANK"):
        Loader(arrays)
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(feedline.SpecError, match="RANK"):
        Loader(arrays)


def test_drop_last(arrays: tuple[Array, Array]) -> None:
    assert [b.rows for b in Loader(arrays, batch_size=30)] == [30, 30, 30, 10]
    assert [b.rows for b in Loader(arrays, batch_size=30, drop_last=True)] == [30, 30, 30]


def test_out_of_order_gives_the_same_set(photos: Path) -> None:
    loader = Loader(photos, CROP, batch_size=3, in_order=False, num_workers=4)
    assert sorted(hashes(loader)) == sorted(hashes(Loader(photos, CROP, batch_size=3)))


def test_from_several_threads(arrays: tuple[Array, Array]) -> None:
    epoch = iter(Loader(arrays, batch_size=5))
    seen: list[int] = []

    def consume() -> None:
        for batch in epoch:
            seen.extend(batch[1].tolist())

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(100))


def test_the_way_through_python_is_short(arrays: tuple[Array, Array]) -> None:
    small = tuple(array[:10] for array in arrays)
    loader = Loader(small, batch_size=1, num_workers=0)
    calls: collections.Counter[str] = collections.Counter()
    assert len(list(loader)) == 10
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        for _ in loader:
            pass
    finally:
        sys.setprofile(None)
    # About 19 calls a batch.
    assert calls["call"] + calls["c_call"] < 40 * len(loader), calls


def test_only_what_torch_users_pass_by_position_has_one(arrays: tuple[Array, Array]) -> None:
    parameters = list(inspect.signature(Loader).parameters.values())
    positional = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
    assert positional == ["source", "transforms", "batch_size", "shuffle"]
    with pytest.raises(TypeError, match="positional"):
        Loader(arrays, (), 4, True, 7)  # type: ignore[misc]


def test_version() -> None:
    assert feedline.__version__ == "0.1.0"
