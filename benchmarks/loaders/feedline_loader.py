"""feedline with its defaults; `indexed` and `raw` read what `feedline pack` wrote."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import feedline
from feedline import transforms as T
from serve import Batches, Task, serve
from works import ARRAY_MEAN, ARRAY_STD, MEAN, SHORTER, SIZE, STD

PACK = {"indexed": ["--crop-index"], "raw": ["--resize", str(SHORTER), "--raw"]}


def prepare(task: Task) -> None:
    if task.variant not in PACK:
        return
    # Always anew: this is the program under test.
    into = task.prepared(f"-feedline-{task.variant}")
    for left in (into, into.with_name(f"{into.name}.partial")):
        shutil.rmtree(left, ignore_errors=True)
    command = [sys.executable, "-m", "feedline", "pack", str(task.data), str(into), *PACK[task.variant]]
    done = subprocess.run(command, stdout=sys.stderr)
    if done.returncode != 0:
        sys.exit(done.returncode)


def make(task: Task) -> Batches:
    source: Any = str(task.prepared(f"-feedline-{task.variant}") if task.variant else task.data)
    mean, std = MEAN, STD
    chain: list[Any]
    if task.work.transform == "train":
        chain = [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()]
    elif task.work.transform == "eval":
        chain = [T.Resize(SHORTER), T.CenterCrop(SIZE)]
    else:
        source, mean, std = task.arrays, ARRAY_MEAN, ARRAY_STD
        chain = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()]
    chain += [T.ToDtype("float32", scale=True), T.Normalize(mean, std)]
    shuffle = task.work.transform != "eval"
    # A batch unpacks into its fields, as a tuple does.
    loader: Any = feedline.Loader(
        source, chain, batch_size=task.work.batch, shuffle=shuffle, num_workers=task.workers
    )
    batches: Batches = loader
    return batches


serve(make, prepare)
