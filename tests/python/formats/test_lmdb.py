"""LMDB, beside py-lmdb."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest

lmdb = pytest.importorskip("lmdb")

from records import jpeg, read, same, sample, write  # noqa: E402

Entry = tuple[bytes, bytes]


def put(path: Path, entries: Iterable[Entry], delete: Iterable[bytes] = (), **options: Any) -> list[Entry]:
    """Writes entries and returns them as py-lmdb reads them."""
    with lmdb.open(str(path), map_size=1 << 28, **options) as env:
        with env.begin(write=True) as transaction:
            for key, value in entries:
                transaction.put(key, value)
        with env.begin(write=True) as transaction:
            for key in delete:
                transaction.delete(key)
        with env.begin() as transaction:
            return [(bytes(key), bytes(value)) for key, value in transaction.cursor()]


@pytest.mark.parametrize("subdir", [True, False])
def test_values_of_all_sizes(tmp_path: Path, subdir: bool) -> None:
    random = np.random.default_rng(0)
    sizes = [0, 1, 10, 500, 2000, 2030, 2040, 4080, 4096, 20000]
    entries = [(f"schlüssel-{n}-日本".encode(), random.bytes(int(random.choice(sizes)))) for n in range(2000)]
    path = tmp_path / "a.lmdb"
    there = put(path, entries, delete=[key for key, _ in entries[::7]], subdir=subdir)
    found = [each["data"] for each in read(path)]
    assert found == [value for _, value in there]


def test_images_alone(tmp_path: Path) -> None:
    there = put(tmp_path / "a", [(f"{n:05}".encode(), jpeg(n)) for n in range(20)])
    assert [each["image"] for each in read(tmp_path / "a")] == [value for _, value in there]
    assert next(iter(feedline.Loader(tmp_path / "a", batch_size=20)))["image"].shape == (20, 3, 6, 8)


def test_text_recognition_layout(tmp_path: Path) -> None:
    entries = [(b"num-samples", b"12")]
    for number in range(1, 13):
        entries.append((b"image-%09d" % number, jpeg(number)))
        entries.append((b"label-%09d" % number, f"wört {number}".encode()))
    put(tmp_path / "a", entries)
    for number, found in enumerate(read(tmp_path / "a"), 1):
        same(found, {"image": jpeg(number), "label": f"wört {number}"})


def test_keys_as_in_tar(tmp_path: Path) -> None:
    entries = []
    for number in range(12):
        entries.append((f"a/{number:06}.jpg".encode(), jpeg(number)))
        entries.append((f"a/{number:06}.cls".encode(), str(number % 3).encode()))
        entries.append((f"a/{number:06}.note.txt".encode(), b"hi"))
    put(tmp_path / "a", entries)
    for number, found in enumerate(read(tmp_path / "a")):
        same(found, {"image": jpeg(number), "label": np.int64(number % 3), "note": "hi"})


def test_what_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "pickles", [(str(n).encode(), pickle.dumps((n, n))) for n in range(4)])
    with pytest.raises(feedline.SourceError, match="pickle, which runs code"):
        feedline.Loader(tmp_path / "pickles")
    with lmdb.open(str(tmp_path / "named"), max_dbs=2, map_size=1 << 20) as env:
        named = env.open_db(b"inside")
        with env.begin(write=True, db=named) as transaction:
            transaction.put(b"a", b"b")
    with pytest.raises(feedline.SourceError, match='named databases, as "inside"'):
        feedline.Loader(tmp_path / "named")
    with lmdb.open(str(tmp_path / "empty"), map_size=1 << 20):
        pass
    with pytest.raises(feedline.SourceError, match="no samples"):
        feedline.Loader(tmp_path / "empty")


@pytest.mark.parametrize("count", [1, 3, 500, 3000])
def test_lmdb_reads_what_is_written(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.lmdb"
    write(path, count)
    samples = read(path)
    assert len(samples) == count
    for number, found in enumerate(samples):
        same(found, sample(number))
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        entries = {bytes(key).decode(): bytes(value) for key, value in transaction.cursor()}
        assert env.stat()["entries"] == len(entries) == count * len(sample(0))
        for number in range(count):
            start = f"{number:09}_k{number}"
            assert entries[f"{start}.jpg"] == jpeg(number)
            assert entries[f"{start}.cls"] == str(number - 3).encode()
            assert transaction.get(f"{start}.raw.bin".encode()) == sample(number)["raw"]


def test_what_is_written_can_be_changed(tmp_path: Path) -> None:
    """The library accepts the tree: it splits and merges its pages."""
    path = tmp_path / "a.lmdb"
    with feedline.Writer(path, {"raw": "bytes"}) as writer:
        for number in range(3000):
            writer.write({"raw": bytes(number % 300)}, key=f"{number}")
    random = np.random.default_rng(1)
    with lmdb.open(str(path), map_size=1 << 28) as env:
        with env.begin(write=True) as transaction:
            keys = [bytes(key) for key, _ in transaction.cursor()]
            for key in random.permutation(len(keys))[:2000]:
                transaction.delete(keys[key])
            for number in range(1000):
                transaction.put(f"{number:09}_new.raw.bin".encode(), b"x" * (number * 7 % 5000))
        with env.begin() as transaction:
            there = [bytes(value) for _, value in transaction.cursor()]
    assert [each["raw"] for each in read(path)] == there
