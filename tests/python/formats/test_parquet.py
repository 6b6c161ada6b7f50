"""Parquet: files of pyarrow and Hugging Face's datasets are read, and ours are read by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from columns import KINDS, ROWS, check, check_back, check_written, png, rows, same, sample, table
from conftest import picture


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_all_kinds_of_columns(tmp_path: Path, compression: str, version: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, compression=compression, data_page_version=version, row_group_size=13)
    check(rows(path, "parquet"), table())


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False},
        {"use_dictionary": ["text", "blob"], "compression": "none"},
        {"data_page_size": 64, "write_page_index": True},
        {"write_page_checksum": True, "store_schema": False},
        {
            "use_dictionary": False,
            "column_encoding": {"text": "DELTA_BYTE_ARRAY", "label": "DELTA_BINARY_PACKED"},
        },
        {
            "use_dictionary": False,
            "column_encoding": {"blob": "DELTA_LENGTH_BYTE_ARRAY", "score": "BYTE_STREAM_SPLIT"},
        },
    ],
)
def test_ways_of_writing(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "a.parquet"
    chosen = ["image", "label", "score", "text", "blob", "words"]
    pq.write_table(table().select(chosen), path, **options)
    check(rows(path, "parquet"), table().select(chosen))


def test_many_files_and_projection(tmp_path: Path) -> None:
    whole = table()
    for part in range(5):
        pq.write_table(whole.slice(part * 10, 10), tmp_path / f"part-{part:03}.parquet", row_group_size=4)
    check(rows(tmp_path, "parquet"), whole)
    check(
        rows(tmp_path / "part-{000..004}.parquet", "parquet", ["text", "label"]),
        whole.select(["text", "label"]),
    )
    found = rows(
        tmp_path / "part-*.parquet",
        "parquet",
        {"class": "label", "raw": {"column": "image", "role": "bytes"}},
    )
    same(found["class"], whole.column("label").to_pylist())
    same(found["raw"], [png(n) for n in range(ROWS)])


def test_a_shuffled_epoch_has_every_row(tmp_path: Path) -> None:
    for compression in ("none", "zstd"):
        path = tmp_path / f"{compression}.parquet"
        numbers = pa.table(
            {
                "n": range(1000),
                "text": [f"row {n}" for n in range(1000)],
                "blob": [b"x" * n for n in range(1000)],
            }
        )
        pq.write_table(numbers, path, compression=compression, row_group_size=100)
        found = rows(path, "parquet", shuffle=True, seed=3)
        assert found["n"] != list(range(1000))
        assert sorted(found["n"]) == list(range(1000))
        assert all(
            text == f"row {n}" and len(blob) == n for n, text, blob in zip(*found.values(), strict=True)
        )


def test_nulls_are_failures_of_their_rows(tmp_path: Path) -> None:
    for compression in ("none", "snappy"):
        path = tmp_path / f"{compression}.parquet"
        columns = {
            "x": [1, None, 3],
            "text": ["a", "b", None],
            "image": [{"bytes": png(n), "path": None} for n in range(3)],
        }
        pq.write_table(pa.table(columns), path, compression=compression)
        with pytest.raises(feedline.SampleError, match=r'column "x", row 1 .* \(null\)'):
            rows(path, "parquet", ["x"])
        with pytest.raises(feedline.SampleError, match=r'column "text", row 2 .* \(null\)'):
            rows(path, "parquet", ["text"])
        assert len(rows(path, "parquet", ["image"])["image"]) == 3


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {
        "price": pa.array([1, 2], pa.decimal128(5, 1)),
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
    pq.write_table(pa.table({**columns, "x": [1, 2]}), path)
    with pytest.raises(feedline.SourceError, match="choose the other fields with fields"):
        rows(path, "parquet")
    assert list(rows(path, "parquet", ["x"])) == ["x"]
    for column, problem in [("price", "Decimal128"), ("map", "Map"), ("y", "has no column")]:
        with pytest.raises(feedline.SourceError, match=problem):
            rows(path, "parquet", [column])
    pq.write_table(table().slice(0, 0), path)
    with pytest.raises(feedline.SourceError, match="has no rows"):
        rows(path, "parquet")
    pq.write_table(pa.table({"x": [1, 2]}), path, compression="brotli")
    with pytest.raises(feedline.SourceError, match="compressed with brotli"):
        rows(path, "parquet")
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(feedline.SourceError, match="Parquet"):
        rows(path, "parquet")


def test_binary_columns_of_images_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"jpg": [png(n) for n in range(9)], "other": [b"no image"] * 9}), path)
    found = rows(path, "parquet")
    same(found["image"], [picture(n).transpose(2, 0, 1) for n in range(9)])
    assert bytes(found["other"][0]) == b"no image"


def test_hugging_face_reads_and_writes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine": datasets.ClassLabel(names=["ant", "bee"]),
            "note": datasets.Value("string"),
        }
    )
    columns = {
        "img": [{"bytes": png(n), "path": None} for n in range(20)],
        "fine": [n % 2 for n in range(20)],
    }
    theirs = datasets.Dataset.from_dict({**columns, "note": [f"n{n}" for n in range(20)]}, features=features)
    theirs.to_parquet(str(tmp_path / "theirs.parquet"))
    loader = feedline.Loader({"kind": "parquet", "path": str(tmp_path / "theirs.parquet")}, batch_size=20)
    assert loader.classes == ["ant", "bee"]
    batch = next(iter(loader))
    same(list(batch["image"]), [picture(n).transpose(2, 0, 1) for n in range(20)])
    same(list(batch["label"]), [n % 2 for n in range(20)])
    assert list(batch["note"]) == [f"n{n}" for n in range(20)]

    with feedline.Writer(tmp_path / "ours.parquet", {"image": "image", "label": "int64"}) as writer:
        for n in range(20):
            writer.write({"image": png(n), "label": n})
    ours = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "ours.parquet"), cache_dir=str(tmp_path / "cache")
    )
    ours = ours["train"]
    assert ours.features["image"] == datasets.Image()
    np.testing.assert_array_equal(np.asarray(ours[7]["image"]), picture(7))
    assert ours["label"][:] == list(range(20))


@pytest.mark.parametrize("compression", [None, "zstd", "snappy", "gzip", "lz4"])
def test_pyarrow_reads_ours(tmp_path: Path, compression: str | None) -> None:
    path = tmp_path / "ours.parquet"
    with feedline.Writer(path, KINDS, compression=compression, block_samples=8) as writer:
        for n in range(20):
            writer.write(sample(n), key=f"é{n}")
    file = pq.ParquetFile(path)
    assert file.metadata.num_row_groups == 3
    found = file.read()
    check_written(found)
    check_back(rows(path, "parquet"))
