"""Arrow IPC files and streams, and Feather: those of pyarrow and Hugging Face's datasets, and ours."""

from __future__ import annotations

import struct
from pathlib import Path

import feedline
import pyarrow as pa
import pytest
from columns import KINDS, check, check_back, check_written, png, rows, same, sample, table
from conftest import picture
from pyarrow import feather


def write(path: Path, whole: pa.Table, compression: str | None = None, stream: bool = False) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(path, whole.schema, options=options) as writer:
        writer.write_table(whole, max_chunksize=13)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("stream", [False, True])
def test_all_kinds_of_columns(tmp_path: Path, compression: str | None, stream: bool) -> None:
    path = tmp_path / "a.arrow"
    views = pa.array([f"view {n}" * (n % 4) for n in range(table().num_rows)], pa.string_view())
    whole = table().append_column("views", views)
    write(path, whole, compression, stream)
    check(rows(path, "arrow"), whole)
    # A slice has offsets that do not begin with 0.
    write(path, whole.slice(0, 40).slice(0, 33), compression, stream)
    check(rows(path, "arrow"), whole.slice(0, 33))


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather(tmp_path: Path, compression: str) -> None:
    feather.write_feather(table(), tmp_path / "a.feather", compression=compression, chunksize=9)
    check(rows(tmp_path / "a.feather", "arrow"), table())


def test_feather_of_the_first_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(feedline.SourceError, match="first version"):
        rows(tmp_path / "a.feather", "arrow")


def test_many_files_nulls_and_damage(tmp_path: Path) -> None:
    whole = table()
    for part in range(5):
        write(tmp_path / f"{part}.arrow", whole.slice(part * 10, 10))
    check(rows(tmp_path, "arrow"), whole)
    path = tmp_path / "null.arrow"
    write(path, pa.table({"blob": [b"a", None], "x": [None, 1]}))
    with pytest.raises(feedline.SampleError, match=r'column "blob", row 1 .* \(null\)'):
        rows(path, "arrow", ["blob"])
    with pytest.raises(feedline.SampleError, match=r'column "x", row 0 .* \(null\)'):
        rows(path, "arrow", ["x"])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(feedline.SourceError, match="cut short"):
        rows(path, "arrow")


def test_a_footer_that_names_one_batch_again_and_again_is_refused(tmp_path: Path) -> None:
    """Few bytes would otherwise have much read, once for each time that it is named."""
    schema = pa.schema([("x", pa.int64())])
    path = tmp_path / "some.arrow"
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, schema) as writer:
        for length in (5000, 1, 1, 1):
            writer.write_batch(pa.record_batch([pa.array(range(length))], schema=schema))
    assert len(rows(path, "arrow")["x"]) == 5003
    data = bytearray(path.read_bytes())
    # The footer's list: offset, length of the message, padding and length of the body of each batch.
    first = data.rindex(struct.pack("<q", 40_000)) - 16
    data[first : first + 4 * 24] = data[first : first + 24] * 4
    path.write_bytes(data)
    with pytest.raises(feedline.SourceError, match="has messages that overlap"):
        feedline.Loader(path)


def test_dictionaries_that_change_in_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.arrows"
    parts = [pa.array(values).dictionary_encode() for values in (["a", "b"], ["c", "a"], ["b", "d"])]
    schema = pa.schema([("kind", parts[0].type)])
    with pa.ipc.new_stream(path, schema) as writer:
        for part in parts:
            writer.write_batch(pa.record_batch([part], schema=schema))
    assert rows(path, "arrow")["kind"] == ["a", "b", "c", "a", "b", "d"]


def test_hugging_face_folders(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
    )
    columns = {
        "image": [{"bytes": png(n), "path": None} for n in range(20)],
        "label": [n % 2 for n in range(20)],
    }
    theirs = datasets.Dataset.from_dict(columns, features=features)
    theirs.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    loader = feedline.Loader({"kind": "arrow", "path": str(tmp_path / "saved")}, batch_size=20)
    assert loader.classes == ["ant", "bee"]
    batch = next(iter(loader))
    same(list(batch["image"]), [picture(n).transpose(2, 0, 1) for n in range(20)])
    same(list(batch["label"]), [n % 2 for n in range(20)])


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_pyarrow_reads_ours(tmp_path: Path, compression: str | None) -> None:
    path = tmp_path / "ours.arrow"
    with feedline.Writer(path, KINDS, compression=compression, block_samples=8) as writer:
        for n in range(20):
            writer.write(sample(n), key=f"é{n}")
    with pa.ipc.open_file(path) as file:
        assert file.num_record_batches == 3
        found = file.read_all()
    check_written(found)
    check_back(rows(path, "arrow"))
