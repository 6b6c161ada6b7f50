"""The photos out of one format, by feedline or by the format's usual Python reader, in a process of its own.

    python loaders/format_loader.py WHO WORKERS PATH

WHO is a name in `WHO`: with `loading` images are decoded and augmented, else read alone. Runs an epoch
for each line it is sent.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from works import MEAN, SIZE, STD

BATCH = 64


def feedline_loading(path: str, workers: int) -> Iterable[Any]:
    import feedline
    from feedline import transforms as T

    chain = [
        T.RandomResizedCrop(SIZE),
        T.RandomHorizontalFlip(),
        T.ToDtype("float32", scale=True),
        T.Normalize(MEAN, STD),
    ]
    return feedline.Loader(path, chain, batch_size=BATCH, shuffle=True, num_workers=workers)


def feedline_reading(path: str, workers: int, open_blocks: Any = "auto", memory: Any = None) -> Iterable[Any]:
    import feedline

    return feedline.Loader(
        path,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        decode={"mode": "bytes"},
        open_blocks=open_blocks,
        memory=memory,
    )


#: Little enough that few blocks fit.
LITTLE = "256MB"


def feedline_blocks(path: str, workers: int) -> Iterable[Any]:
    return feedline_reading(path, workers, memory=LITTLE)


def feedline_all(path: str, workers: int) -> Iterable[Any]:
    return feedline_reading(path, workers, "all", LITTLE)


def feedline_rows(path: str, workers: int) -> Iterable[Any]:
    import feedline

    return feedline.Loader(path, batch_size=BATCH, shuffle=True, num_workers=workers)


def torch_loader(dataset: Any, workers: int, *, shuffle: bool = False) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, BATCH, shuffle=shuffle, num_workers=workers, persistent_workers=True)


def py_lmdb(path: str, workers: int) -> Iterable[Any]:
    import lmdb
    from torch.utils.data import Dataset

    with lmdb.open(path, readonly=True, lock=False) as environment, environment.begin() as transaction:
        keys = [bytes(key) for key, _ in transaction.cursor() if not bytes(key).endswith(b".cls")]

    class Samples(Dataset[Any]):
        environment: Any = None

        def __len__(self) -> int:
            return len(keys)

        def __getitem__(self, index: int) -> Any:
            if self.environment is None:
                self.environment = lmdb.open(path, readonly=True, lock=False, readahead=False)
            key = keys[index]
            with self.environment.begin() as transaction:
                image = transaction.get(key)
                label = transaction.get(key.rpartition(b".")[0] + b".cls")
            return image, int(label)

    return torch_loader(Samples(), workers, shuffle=True)


def webdataset(path: str, workers: int) -> Iterable[Any]:
    import webdataset as wds

    shards = sorted(str(shard) for shard in Path(path).glob("*.tar"))
    samples = wds.WebDataset(shards, shardshuffle=False).to_tuple("jpg", "cls")
    return torch_loader(samples, workers)


def h5py(path: str, workers: int) -> Iterable[Any]:
    import h5py
    from torch.utils.data import Dataset

    with h5py.File(path) as file:
        count = len(file["x"])

    class Rows(Dataset[Any]):
        file: Any = None

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            if self.file is None:
                self.file = h5py.File(path)
            return self.file["x"][index], self.file["y"][index]

    return torch_loader(Rows(), workers, shuffle=True)


class Epochs:
    """A loader whose epochs are begun by a function."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self.begin()


def tf_data(path: str, workers: int) -> Iterable[Any]:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(workers)
    shards = sorted(str(shard) for shard in Path(path).glob("*.tfrecord"))
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> Any:
        example = tf.io.parse_single_example(record, features)
        return example["image"], example["label"]

    data = tf.data.TFRecordDataset(shards).map(parse, num_parallel_calls=workers)
    data = data.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return Epochs(lambda: data.as_numpy_iterator())


def pyarrow(path: str, workers: int) -> Iterable[Any]:
    import pyarrow
    import pyarrow.parquet

    pyarrow.set_cpu_count(workers)
    shards = sorted(Path(path).glob("*.parquet"))

    def epoch() -> Iterator[Any]:
        for shard in shards:
            file = pyarrow.parquet.ParquetFile(shard)
            for batch in file.iter_batches(BATCH, columns=["image", "label"]):
                yield batch.column(0), batch.column(1)

    return Epochs(epoch)


WHO: dict[str, Callable[[str, int], Iterable[Any]]] = {
    "feedline_loading": feedline_loading,
    "feedline_reading": feedline_reading,
    "feedline_all": feedline_all,
    "feedline_blocks": feedline_blocks,
    "feedline_rows": feedline_rows,
    "py_lmdb": py_lmdb,
    "webdataset": webdataset,
    "h5py": h5py,
    "tf_data": tf_data,
    "pyarrow": pyarrow,
}


def main() -> None:
    # What a loader prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    who, workers, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    loader: Iterable[Any] | None = None
    answer: dict[str, Any] = {"first": None}
    for _ in sys.stdin:
        if loader is None:
            began = time.perf_counter()
            loader = WHO[who](path, workers)
        start, images = time.perf_counter(), 0
        for _, labels in loader:
            if answer["first"] is None:
                answer["first"] = time.perf_counter() - began
            images += len(labels)
        answer |= {"images": images, "seconds": time.perf_counter() - start}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
