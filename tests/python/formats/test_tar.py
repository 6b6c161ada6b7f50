"""Tar shards: what the webdataset package writes is read, and what is written it reads."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pyarrow
import pytest
import webdataset
from conftest import picture
from PIL import Image

# The package leaves the shards that it read open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEYS = ("a", "b/c", "über", "数据/样本", "x" * 120)


def encoded(number: int, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(number)).save(out, kind)
    return out.getvalue()


def samples(count: int = 12) -> list[dict[str, Any]]:
    return [
        {
            "__key__": f"{KEYS[number % len(KEYS)]}{number:03}",
            "png": encoded(number),
            "cls": number % 3,
            "txt": "" if number == 1 else f"né {number}",
            "emb.npy": np.arange(4, dtype=np.float32) + number,
            "boxes.npy": np.arange(number % 4 * 2, dtype=np.int32).reshape(-1, 2),
            "json": {"id": number, "score": number / 2, "name": "x"},
            "bin": bytes(range(number)),
        }
        for number in range(count)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with webdataset.TarWriter(str(path), encoder=True) as writer:
        for row in rows:
            # The package's own encoder takes arrays of one kind only.
            writer.write({k: npy(v) if k.endswith("npy") else v for k, v in row.items()})
    return path


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def read(source: Any, **options: Any) -> list[dict[str, Any]]:
    """All samples, in order, as plain values."""
    loader = feedline.Loader(source, batch_size=5, num_workers=2, **options)
    rows = []
    for batch in loader:
        columns = {name: batch[name] for name in batch.keys()}  # noqa: SIM118
        count = len(next(iter(columns.values())))
        rows += [{name: column[row] for name, column in columns.items()} for row in range(count)]
    return rows


def check(found: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    assert len(found) == len(rows)
    for number, (sample, row) in enumerate(zip(found, rows, strict=True)):
        assert np.array_equal(np.moveaxis(np.asarray(sample["image"]), 0, -1), picture(number))
        assert int(sample["label"]) == row["cls"]
        assert sample["txt"] == row["txt"]
        assert np.array_equal(sample["emb"], row["emb.npy"])
        assert np.array_equal(sample["boxes"], row["boxes.npy"])
        assert sample["boxes"].shape == row["boxes.npy"].shape
        assert json.loads(sample["json"]) == row["json"]
        assert bytes(np.asarray(sample["bin"])) == row["bin"]


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.zst"])
def test_what_webdataset_writes_is_read(tmp_path: Path, ending: str) -> None:
    rows = samples()
    path = write(tmp_path / "data.tar", rows)
    if ending == "tar.gz":
        path = tmp_path / "packed.tar.gz"
        path.write_bytes(gzip.compress((tmp_path / "data.tar").read_bytes()))
    if ending == "tar.zst":
        path = tmp_path / "packed.tar.zst"
        path.write_bytes(pyarrow.compress((tmp_path / "data.tar").read_bytes(), "zstd", asbytes=True))
    check(read(path), rows)


def test_shards_by_braces_stars_and_folder(tmp_path: Path) -> None:
    rows = samples(12)
    for shard in range(3):
        write(tmp_path / f"train-{shard:04}.tar", rows[shard * 4 : shard * 4 + 4])
    for pattern in ["train-{0000..0002}.tar", "train-*.tar", "", "train-000?.tar"]:
        check(read(tmp_path / pattern), rows)
    assert len(read(tmp_path / "train-{0002,0000}.tar")) == 8
    with pytest.raises(Exception, match="No such file"):
        read(tmp_path / "train-{0000..0003}.tar")
    with pytest.raises(Exception, match="matches no file"):
        read(tmp_path / "test-*.tar")


def test_order_resume_and_ranks(tmp_path: Path) -> None:
    rows = samples(30)
    for shard in range(3):
        write(tmp_path / f"{shard}.tar", rows[shard * 10 : shard * 10 + 10])
    fields = {"path": str(tmp_path), "kind": "tar", "fields": {"id": "json.id", "txt": "txt"}}

    def loader(**options: Any) -> feedline.Loader:
        return feedline.Loader(fields, batch_size=4, shuffle=True, seed=3, **options)

    def ids(batches: Any) -> list[int]:
        return [int(each) for batch in batches for each in batch["id"]]

    whole = ids(loader())
    assert sorted(whole) == list(range(30)) and whole != sorted(whole)
    # The order is that of any set of thirty.
    assert [row["txt"] for row in read(fields, shuffle=True, seed=3)] == [rows[at]["txt"] for at in whole]
    first = loader()
    iterator = iter(first)
    begun = ids([next(iterator), next(iterator)])
    state = json.loads(json.dumps(first.state_dict()))
    again = loader()
    again.load_state_dict(state)
    assert begun + ids(again) == whole
    parts = [ids(loader(rank=rank, world_size=2)) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(30))


def test_fields_are_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "data.tar", samples())

    def chosen(fields: Any) -> list[dict[str, Any]]:
        return read({"kind": "tar", "path": str(path), "fields": fields})

    found = chosen({"y": "cls", "score": "json.score", "raw": {"column": "png", "role": "bytes"}})
    assert list(found[3]) == ["y", "score", "raw"]
    assert (int(found[3]["y"]), float(found[3]["score"])) == (0, 1.5)
    assert bytes(np.asarray(found[3]["raw"])) == encoded(3)
    assert list(chosen(["emb.npy"])[0]) == ["emb.npy"]
    assert list(chosen({"picture": "jpg;png"})[0]) == ["picture"]
    with pytest.raises(Exception, match=r'has no field "jpgs", only bin, boxes.npy, cls'):
        chosen(["jpgs"])


def members(path: Path, files: Mapping[str, bytes], format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_dialect_of_tar(tmp_path: Path, format: int) -> None:
    long = f"{'d' * 90}/{'e' * 60}"
    files = {f"{long}.cls": b"4", f"{long}.a.B.txt": b"x", "ÿ.cls": b" 7\n", "ÿ.a.B.txt": b""}
    path = members(tmp_path / "x.tar", files, format)
    found = read(path)
    assert [int(row["label"]) for row in found] == [4, 7]
    assert [row["a.B"] for row in found] == ["x", ""]


def test_arrays_of_every_kind(tmp_path: Path) -> None:
    arrays = {
        "big": [np.arange(3, dtype=">i4"), np.arange(3, 6, dtype=">i4")],
        "fortran": [np.asfortranarray(np.arange(6.0).reshape(2, 3)) + n for n in range(2)],
        "scalar": [np.float64(1.5), np.float64(2.5)],
        "ragged": [np.zeros((0, 2), np.float16), np.ones((3, 2), np.float16)],
        "flags": [np.array([True, False]), np.array([False, True])],
    }
    files = {
        f"{number}.{name}.npy": npy(values[number]) for number in range(2) for name, values in arrays.items()
    }
    found = read(members(tmp_path / "x.tar", files))
    for name, values in arrays.items():
        for row, value in zip(found, values, strict=True):
            assert np.array_equal(row[name], value), name
            assert np.asarray(row[name]).shape == np.asarray(value).shape, name
    assert np.asarray(found[0]["big"]).dtype == np.dtype("int32")
    with pytest.raises(Exception, match="runs code"):
        read(members(tmp_path / "y.tar", {"a.npy": npy(np.array([{}], dtype=object))}))


def test_what_is_refused(tmp_path: Path) -> None:
    path = members(tmp_path / "p.tar", {"a.txt": b"x", "a.pyd": pickle.dumps(1)})
    with pytest.raises(Exception, match="reading a pickle runs code"):
        read(path)
    assert read({"kind": "tar", "path": str(path), "fields": ["txt"]})[0]["txt"] == "x"
    twice = members(tmp_path / "t.tar", {"a.txt": b"x", "b.txt": b"y", "a.cls": b"1"})
    with pytest.raises(Exception, match="must follow each other"):
        read(twice)
    absent = members(tmp_path / "a.tar", {"a.txt": b"x", "a.cls": b"1", "b.txt": b"y"})
    with pytest.raises(Exception, match='sample "b" has no "label"'):
        read(absent)
    # What is skipped is replaced, so that batches keep their size.
    assert {row["txt"] for row in read(absent, on_error="skip")} == {"x"}
    whole = path.read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:700])
    with pytest.raises(Exception, match="cut short"):
        read(tmp_path / "cut.tar")


def test_names_that_are_passed_over_are_those_of_webdataset(tmp_path: Path) -> None:
    names = ["__index__", "__meta__/x.txt", "README", "a.txt", "b/c.d.txt", "e/f.TXT", "dir.x/g", "h.i/j.txt"]
    path = members(tmp_path / "x.tar", {name: name.encode() for name in names})
    expected = [
        {key: value for key, value in sample.items() if not key.startswith("__")}
        for sample in webdataset.WebDataset(str(path), shardshuffle=False)
    ]
    source = {"kind": "tar", "path": str(path), "fields": {"text": "txt;d.txt"}}
    assert [row["text"].encode() for row in read(source)] == [next(iter(e.values())) for e in expected]


def test_an_index_is_kept_and_made_anew(tmp_path: Path) -> None:
    rows = samples(40)
    for row in rows:
        row["bin"] = bytes(4000)
    path = write(tmp_path / "data.tar", rows)
    check(read(path), rows)
    index = tmp_path / "data.tar.feedline-index"
    assert index.is_file()
    written = index.stat().st_mtime_ns
    check(read(path), rows)
    assert index.stat().st_mtime_ns == written
    damaged = bytearray(index.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    index.write_bytes(damaged)
    check(read(path), rows)
    assert index.read_bytes() != bytes(damaged)
    write(path, rows[::-1])
    assert read(path)[0]["txt"] == rows[-1]["txt"]


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_what_is_written_webdataset_reads(tmp_path: Path, compression: str | None) -> None:
    rows = samples()
    ending = {None: "tar", "gzip": "tar.gz", "zstd": "tar.zst"}[compression]
    path = tmp_path / f"out.{ending}"
    fields = {
        "image": "image",
        "label": "int64",
        "txt": "text",
        "emb": ("float32", (4,)),
        "boxes": ("int32", (None, 2)),
        "score": "float32",
        "bin": "bytes",
    }
    with feedline.Writer(path, fields=fields, format="tar", compression=compression) as writer:
        for row in rows:
            sample = {
                "image": row["png"],
                "label": row["cls"],
                "txt": row["txt"],
                "emb": row["emb.npy"],
                "boxes": row["boxes.npy"],
                "score": row["json"]["score"],
                "bin": row["bin"],
            }
            writer.write(sample, key=row["__key__"])
    found = read(path)
    for sample, row in zip(found, rows, strict=True):
        assert float(sample["score"]) == row["json"]["score"]
        sample["json"] = json.dumps(row["json"])
    check(found, rows)
    if compression == "zstd":
        return  # Python's tarfile knows it from 3.14 on.
    back = list(webdataset.WebDataset(str(path), shardshuffle=False).decode("rgb8"))
    for number, (sample, row) in enumerate(zip(back, rows, strict=True)):
        assert sample["__key__"] == row["__key__"]
        assert np.array_equal(sample["png"], picture(number))
        assert sample["cls"] == row["cls"]
        assert sample["txt.txt"] == row["txt"]
        assert np.array_equal(sample["emb.npy"], row["emb.npy"])
        assert np.array_equal(sample["boxes.npy"], row["boxes.npy"])
        assert sample["bin.bin"] == row["bin"]
