"""`feedline pack --to`: what goes in comes out, from every format, after kills, and in other programs."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import CLASSES, HANG, files_below, picture, until
from feedline import transforms as T
from PIL import Image

FORMATS = ["tar", "tfrecord", "lmdb", "hdf5", "npy", "parquet", "arrow", "zarr"]
# Those that hold bytes of any length, and so images as they are.
ENCODED = ["tar", "tfrecord", "lmdb", "parquet", "arrow"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "feedline", *map(str, arguments)]


def run(*arguments: object, code: int = 0) -> Any:
    """What a command says as JSON."""
    done = subprocess.run(command(*arguments, "--json"), capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def complaint(*arguments: object) -> str:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    assert done.returncode in (1, 2), done.stdout
    return done.stderr


def pack(source: Path, destination: Path, *flags: object) -> Any:
    return run("pack", source, destination, "--no-trial", *flags)["packed"]


def samples(path: Path) -> dict[int, tuple[bytes, int]]:
    """Pixels and label of every picture, by the number that is in its last channel."""
    found = {}
    for batch in feedline.Loader(path, batch_size=7, num_workers=2):
        for image, label in zip(np.asarray(batch["image"]), np.asarray(batch["label"]), strict=True):
            found[int(image[2, 0, 0]) // 8] = (image.tobytes(), int(label))
    return found


@pytest.fixture(scope="module")
def expected(photos: Path) -> dict[int, tuple[bytes, int]]:
    found = samples(photos)
    assert len(found) == 30
    return found


@pytest.mark.parametrize("name", ENCODED)
def test_pictures_labels_and_classes_survive(
    photos: Path, tmp_path: Path, name: str, expected: dict[int, tuple[bytes, int]]
) -> None:
    packed = pack(photos, tmp_path / "packed", "--to", name)
    assert packed["samples"] == 30
    assert samples(tmp_path / "packed") == expected
    assert list(feedline.Loader(tmp_path / "packed", batch_size=1).classes) == list(CLASSES)
    verified = run("verify", tmp_path / "packed")
    assert (verified["bad_files"], verified["bad_samples"], verified["samples"]) == (0, 0, 30)
    inspected = run("inspect", tmp_path / "packed", "--no-trial")
    assert [c["samples"] for c in inspected["classes"]] == [10, 10, 10]
    # The same again is kept; other options are refused.
    assert pack(photos, tmp_path / "packed", "--to", name)["kept"]
    again = ["pack", photos, tmp_path / "packed", "--to", name, "--seed", 1, "--no-trial"]
    assert "other options" in complaint(*again)


@pytest.mark.parametrize("name", FORMATS)
def test_decoded_arrays_in_every_format(photos: Path, tmp_path: Path, name: str) -> None:
    pack(photos, tmp_path / "packed", "--to", name, "--transform", "CenterCrop(size=16)", "--no-shuffle")
    online = feedline.Loader(photos, batch_size=30, transforms=[T.CenterCrop(16)])
    (wanted,) = online
    loader = feedline.Loader(tmp_path / "packed", batch_size=30)
    (batch,) = loader
    images = np.asarray(batch["image"])
    assert images.shape == (30, 16, 16, 3)
    np.testing.assert_array_equal(images.transpose(0, 3, 1, 2), np.asarray(wanted["image"]))
    np.testing.assert_array_equal(np.asarray(batch["label"]), np.asarray(wanted["label"]))
    assert list(loader.classes) == list(CLASSES)
    assert run("verify", tmp_path / "packed")["bad_samples"] == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_webdataset_reads_shards(photos: Path, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    packed = tmp_path / "packed"
    pack(photos, packed, "--to", "tar", "--shard-samples", 8)
    names = sorted(packed.glob("*.tar"))
    assert [path.name for path in names] == [f"packed-{n:06}.tar" for n in range(4)]
    data = wds.WebDataset([str(name) for name in names], shardshuffle=False)
    seen = {}
    for sample in data:
        image = np.asarray(Image.open(io.BytesIO(sample["png"])))
        seen[int(image[0, 0, 2]) // 8] = (image, int(sample["cls"]))
    # It leaves its files to the collector, which complains; here, not in some later test.
    del data
    gc.collect()
    assert len(seen) == 30
    for number, (image, label) in seen.items():
        np.testing.assert_array_equal(image, picture(number))
        assert label == number // 10


def test_the_order_is_shuffled_with_a_seed(photos: Path, tmp_path: Path) -> None:
    def order(*flags: object) -> list[int]:
        packed = tmp_path / "-".join(map(str, ("packed", *flags)))
        pack(photos, packed, "--to", "tar", *flags)
        with tarfile.open(next(packed.glob("*.tar"))) as tar:
            pixels = [np.asarray(Image.open(tar.extractfile(m))) for m in tar if m.name.endswith("png")]  # type: ignore[arg-type]
        return [int(image[0, 0, 2]) // 8 for image in pixels]

    assert order("--no-shuffle") == list(range(30))
    first, second = order("--seed", 0), order("--seed", 1)
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second and first != list(range(30))
    description = json.loads((tmp_path / "packed---seed-1" / "feedline.json").read_text())
    assert description["job"]["options"]["shuffle_seed"] == 1


def test_crop_indexed_jpegs_inside_a_tar(tmp_path: Path) -> None:
    source = tmp_path / "jpegs"
    for number in range(12):
        (source / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(picture(number, 60, 90))
        image.save(source / "ab"[number % 2] / f"{number}.jpg", quality=90, progressive=number % 3 == 0)
    packed = tmp_path / "packed"
    assert pack(source, packed, "--to", "tar", "--crop-index", "--no-shuffle")["unchanged_files"] == 0
    with tarfile.open(next(packed.glob("*.tar"))) as tar:
        jpegs = [tar.extractfile(m).read() for m in tar if m.name.endswith("jpg")]  # type: ignore[union-attr]
    names = sorted(source.glob("*/*.jpg"), key=lambda path: (path.parent.name, path.name))
    assert len(jpegs) == len(names)
    for jpeg, name in zip(jpegs, names, strict=True):
        assert b"\xff\xd0" in jpeg
        with Image.open(io.BytesIO(jpeg)) as after, Image.open(name) as before:
            np.testing.assert_array_equal(np.asarray(after), np.asarray(before))


def digest(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".feedline-index"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def written(folder: Path) -> int:
    """Bytes of all files in a folder in which another process works."""
    size = 0
    for path in files_below(folder):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_blocks * 512
    return size


@pytest.mark.parametrize("name", ["tar", "tfrecord", "parquet", "npy"])
def test_killed_at_any_moment_it_goes_on_to_the_same_files(tmp_path: Path, name: str) -> None:
    source = tmp_path / "photos"
    subprocess.run(command("sample-data", source, "--count", 120), check=True, capture_output=True)
    flags = ["--to", name, "--no-trial", "--num-workers", 2]
    flags += ["--transform", "Resize(size=[64, 64])"] if name == "npy" else ["--shard-samples", 7]
    whole = tmp_path / "x" / "set"
    whole.parent.mkdir()
    subprocess.run(command("pack", source, whole, *flags), check=True, capture_output=True)
    size = written(whole.parent)
    killed = tmp_path / "y" / "set"
    killed.parent.mkdir()
    for part in range(10):
        process = subprocess.Popen(
            command("pack", source, killed, *flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # At the first byte, and then each time a tenth later.
        wanted = max(1, part * size // 10)
        until(lambda wanted=wanted, process=process: written(killed.parent) >= wanted or process.poll() == 0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if killed.exists():
            break
        with pytest.raises(feedline.Error):
            feedline.Loader(killed, batch_size=1)
    done = run("pack", source, killed, *flags)["packed"]
    assert done["samples"] == 120
    assert not (killed.parent / "set.partial").exists()
    assert digest(killed) == digest(whole)


def test_two_packs_at_once_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    subprocess.run(command("sample-data", source, "--count", 200), check=True, capture_output=True)
    flags = [source, tmp_path / "set", "--to", "tar", "--crop-index", "--no-trial", "--num-workers", 1]
    first = subprocess.Popen(command("pack", *flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until((tmp_path / "set.partial" / "feedline-job.json").exists)
        os.kill(first.pid, signal.SIGSTOP)
        assert "another process is packing" in complaint("pack", *flags)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert first.wait(HANG) == 0
    assert run("verify", tmp_path / "set")["bad_samples"] == 0


def test_a_changed_byte_is_found(photos: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack(photos, packed, "--to", "tar", "--shard-samples", 10)
    victim = packed / "packed-000001.tar"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    found = run("verify", packed, code=1)
    assert (found["files"], found["bad_files"]) == (3, 1)
    assert "packed-000001.tar" in found["bad"][0]["path"]


def test_bad_samples_are_named_or_left_out(photos: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", photos, source], check=True)
    (source / "bee" / "13.png").write_bytes(b"no picture")
    flags = ["--to", "tar", "--transform", "CenterCrop(size=8)", "--no-trial"]
    assert "13.png" in complaint("pack", source, tmp_path / "strict", *flags)
    assert not (tmp_path / "strict").exists()
    packed = run("pack", source, tmp_path / "lenient", *flags, "--skip-bad")["packed"]
    assert (packed["samples"], packed["left_out"]) == (29, 1)
    assert "13.png" in packed["bad"][0]["path"]
    # As they are, nothing is decoded and nothing is bad.
    assert pack(source, tmp_path / "plain", "--to", "tar")["samples"] == 30


def test_transforms_up_to_a_point(photos: Path, tmp_path: Path) -> None:
    spec = tmp_path / "train.toml"
    spec.write_text(
        f"""
source = "{photos}"
batch_size = 4
layout = "CHW"
[[transforms]]
op = "Resize"
size = [20, 20]
[[transforms]]
op = "RandomHorizontalFlip"
[[transforms]]
op = "ToDtype"
dtype = "float32"
scale = true
"""
    )
    flags = ["--spec", spec, "--no-trial"]
    assert "random" in complaint("pack", photos, tmp_path / "a", "--to", "npy", *flags, "--until", "ToDtype")
    said = complaint("pack", photos, tmp_path / "a", "--to", "npy", *flags, "--until", "mel")
    assert "tokenise, mel" in said
    run("pack", photos, tmp_path / "b", "--to", "npy", *flags, "--until", "Resize", "--no-shuffle")
    (batch,) = feedline.Loader(tmp_path / "b", batch_size=30)
    (wanted,) = feedline.Loader(photos, batch_size=30, transforms=[T.Resize((20, 20))])
    np.testing.assert_array_equal(np.asarray(batch["image"]), np.asarray(wanted["image"]))
    run("pack", photos, tmp_path / "c", "--to", "tar", *flags, "--until", "1", "--encode", "jpeg")
    with tarfile.open(next((tmp_path / "c").glob("*.tar"))) as tar:
        jpegs = [m for m in tar if m.name.endswith(".jpg")]
        assert len(jpegs) == 30
        assert Image.open(tar.extractfile(jpegs[0])).size == (20, 20)  # type: ignore[arg-type]


def test_a_format_is_packed_to_another(
    photos: Path, tmp_path: Path, expected: dict[int, tuple[bytes, int]]
) -> None:
    pack(photos, tmp_path / "one", "--to", "tar", "--shard-samples", 9)
    pack(tmp_path / "one", tmp_path / "two", "--to", "tfrecord", "--seed", 3)
    pack(tmp_path / "two", tmp_path / "three", "--to", "tar", "--compression", "zstd")
    assert samples(tmp_path / "three") == expected
    assert list(feedline.Loader(tmp_path / "three", batch_size=1).classes) == list(CLASSES)


def test_a_dry_run_predicts_and_writes_nothing(photos: Path, tmp_path: Path) -> None:
    said = run("pack", photos, tmp_path / "x", "--to", "tar", "--dry-run")
    assert said["dry_run"] and said["format"] == "tar"
    assert said["expected"]["bytes_after"] > said["expected"]["bytes_before"] > 0
    assert said["expected"]["seconds"] > 0
    assert said["expected"]["loading"]["images_per_second_after"] > 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_block_shuffle_does_is_reported(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    labels = np.repeat(np.arange(10), 1000)
    values = np.random.default_rng(0).random((10_000, 2048), dtype=np.float32)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 2048)
    table = pa.table({"x": rows, "label": pa.array(labels)})
    pq.write_table(table, tmp_path / "sorted.parquet", row_group_size=250, compression="zstd")
    # Columns that are kept as a whole have no blocks: this one is too large for that.
    few = ["--set", "open_blocks=2", "--set", 'memory="6MB"']
    found = run("inspect", tmp_path / "sorted.parquet", "--no-trial", *few)["mixing"]
    assert found["label_correlation"] > 0.99
    assert found["variance_inflation"] > 1.25 and found["warning"]
    order = np.random.default_rng(1).permutation(10_000)
    table = table.take(pa.array(order))
    pq.write_table(table, tmp_path / "mixed.parquet", row_group_size=250, compression="zstd")
    found = run("inspect", tmp_path / "mixed.parquet", "--no-trial", *few)["mixing"]
    assert abs(found["label_correlation"]) < 0.05 and not found["warning"]
