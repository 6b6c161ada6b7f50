"""TFRecord, beside TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

from records import FIELDS, jpeg, read, same, sample, write  # noqa: E402


def feature(*values: Any) -> Any:
    if not values:
        return tf.train.Feature()
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(features: dict[str, Any]) -> bytes:
    message = tf.train.Example(features=tf.train.Features(feature=features))
    return message.SerializeToString()  # type: ignore[no-any-return]


def record(number: int) -> bytes:
    return example(
        {
            "image/encoded": feature(jpeg(number)),
            "image/class/label": feature(number - 5),
            "image/class/text": feature(f"Klasse ü {number}".encode()),
            "box": feature(*[number + 0.5] * 4),
            "boxes": feature(*[float(each) for each in range(number % 3)]),
            "tokens": feature(*range(-number, 0)),
            "pair": feature(number, -1),
            "score": feature(number / 2),
            "raw": feature(bytes([0, 255, number])),
            "nothing": feature(),
        }
    )


def put(path: Path, records: list[bytes], compression: str = "") -> Path:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for each in records:
            writer.write(each)
    return path


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_what_tensorflow_writes_is_read(tmp_path: Path, compression: str) -> None:
    put(tmp_path / "a.tfrecord-00000-of-00002", [record(n) for n in range(6)], compression)
    put(tmp_path / "a.tfrecord-00001-of-00002", [record(n) for n in range(6, 11)], compression)
    samples = read(tmp_path)
    assert len(samples) == 11
    for number, found in enumerate(samples):
        wanted = {
            "image": jpeg(number),
            "label": np.int64(number - 5),
            "image/class/text": f"Klasse ü {number}",
            "box": np.full(4, number + 0.5, np.float32),
            "boxes": np.arange(number % 3, dtype=np.float32),
            "tokens": np.arange(-number, 0),
            "pair": np.array([number, -1]),
            "score": np.float32(number / 2),
            "raw": bytes([0, 255, number]),
        }
        same(found, wanted)


def test_images_are_decoded_and_shuffled(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tfrecord", [record(n) for n in range(9)])
    source = {
        "path": str(path),
        "kind": "tfrecord",
        "fields": {"image": "image/encoded", "y": "image/class/label"},
    }
    loader = feedline.Loader(source, batch_size=9, shuffle=True, seed=4)
    images, labels = next(iter(loader))
    assert images.shape == (9, 3, 6, 8)
    assert sorted(labels.tolist()) == list(range(-5, 4))


def test_sequence_examples(tmp_path: Path) -> None:
    def sequence(number: int) -> bytes:
        lists = {
            "words": [feature(each) for each in range(number)],
            "frames": [feature(float(each), 0.5) for each in range(3)],
            "sound": [feature(float(each), 0.5) for each in range(number + 1)],
            "pictures": [feature(jpeg(each)) for each in range(2)],
        }
        message = tf.train.SequenceExample(
            context=tf.train.Features(feature={"label": feature(number)}),
            feature_lists=tf.train.FeatureLists(
                feature_list={name: tf.train.FeatureList(feature=each) for name, each in lists.items()}
            ),
        )
        return message.SerializeToString()  # type: ignore[no-any-return]

    path = put(tmp_path / "a.tfrecord", [sequence(n) for n in range(4)])
    with pytest.raises(feedline.SourceError, match=r"pictures.*several"):
        feedline.Loader(path)
    chosen = {"path": str(path), "kind": "tfrecord", "fields": ["label", "words", "frames", "sound"]}
    for number, found in enumerate(read(chosen)):
        wanted = {
            "label": np.int64(number),
            "words": np.arange(number),
            "frames": np.array([[each, 0.5] for each in range(3)], np.float32),
            "sound": np.array([[each, 0.5] for each in range(number + 1)], np.float32),
        }
        same(found, wanted)


def test_a_feature_that_a_record_lacks_fails_that_sample(tmp_path: Path) -> None:
    records = [example({"a": feature(n), **({"b": feature(n)} if n != 2 else {})}) for n in range(4)]
    path = put(tmp_path / "a.tfrecord", records)
    loader = feedline.Loader(path, batch_size=1)
    with pytest.raises(feedline.SampleError, match='sample "2" has no "b"'):
        list(loader)
    source = {"path": str(path), "kind": "tfrecord", "fields": ["a"]}
    assert [int(each["a"]) for each in read(source)] == [0, 1, 2, 3]


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_tensorflow_reads_what_is_written(tmp_path: Path, compression: str | None) -> None:
    path = tmp_path / "a.tfrecord"
    write(path, 20, compression=compression)
    for number, found in enumerate(read(path)):
        same(found, sample(number))
    names = {None: "", "gzip": "GZIP", "zlib": "ZLIB"}
    kinds = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "score": tf.io.FixedLenFeature([], tf.float32),
        "text": tf.io.FixedLenFeature([], tf.string),
        "raw": tf.io.FixedLenFeature([], tf.string),
        "ints": tf.io.FixedLenFeature([2, 3], tf.int64),
        "floats": tf.io.FixedLenFeature([4], tf.float32),
        "wide": tf.io.FixedLenFeature([], tf.string),
        "wide/dtype": tf.io.FixedLenFeature([], tf.string),
        "wide/shape": tf.io.FixedLenFeature([2], tf.int64),
        "tokens": tf.io.VarLenFeature(tf.int64),
        "wave": tf.io.RaggedFeature(tf.float32),
    }
    count = 0
    for number, each in enumerate(tf.data.TFRecordDataset(str(path), names[compression])):
        found, wanted = tf.io.parse_single_example(each, kinds), sample(number)
        assert found["image"].numpy() == wanted["image"]
        assert found["label"].numpy() == wanted["label"]
        assert found["score"].numpy() == wanted["score"]
        assert found["text"].numpy().decode() == wanted["text"]
        assert found["raw"].numpy() == wanted["raw"]
        for name in ("ints", "floats", "wave"):
            assert np.array_equal(found[name].numpy(), wanted[name]), name
        assert np.array_equal(tf.sparse.to_dense(found["tokens"]).numpy(), wanted["tokens"])
        assert found["wide/dtype"].numpy() == b"float64"
        wide = tf.reshape(tf.io.decode_raw(found["wide"], tf.float64), found["wide/shape"])
        assert np.array_equal(wide.numpy(), wanted["wide"])
        count += 1
    assert count == 20


def test_damage_is_noticed(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tfrecord", [record(n) for n in range(4)])
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        changed = bytearray(whole)
        changed[at] ^= 4
        path.write_bytes(changed)
        with pytest.raises(feedline.SourceError, match=r"record \d at byte \d+|no TFRecord"):
            feedline.Loader(path)
    path.write_bytes(whole[:-3])
    with pytest.raises(feedline.SourceError, match=r"record 3 .* cut short"):
        feedline.Loader(path)


def test_fields_cover_all_kinds() -> None:
    assert set(sample(0)) == set(FIELDS)
