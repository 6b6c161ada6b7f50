"""feedline keeps a GPU fed: it reads, decodes, augments, batches and prefetches training data.

import feedline
from feedline.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype

loader = feedline.Loader(
    "photos",
    transforms=[
        RandomResizedCrop(224),
        RandomHorizontalFlip(),
        ToDtype("float32", scale=True),
        Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ],
    batch_size=64,
    shuffle=True,
    output="torch",
)
for images, labels in loader:
    ...
"""

from feedline import transforms
from feedline._decode import decode_image
from feedline._errors import (
    CacheError,
    ClosedError,
    DeviceError,
    EngineError,
    Error,
    FileError,
    MemoryLimitError,
    MissingFileError,
    RefusedFileError,
    SampleError,
    SourceError,
    SpecError,
    StaleIteratorError,
    StateError,
    TooManyFailuresError,
)
from feedline._native import __version__
from feedline._writer import Writer
from feedline.deliver.batch import Batch
from feedline.deliver.ragged import Ragged
from feedline.loader.loader import Epoch, Loader
from feedline.workers.failure import WorkerError

__all__ = [
    "Batch",
    "CacheError",
    "ClosedError",
    "DeviceError",
    "EngineError",
    "Epoch",
    "Error",
    "FileError",
    "Loader",
    "MemoryLimitError",
    "MissingFileError",
    "Ragged",
    "RefusedFileError",
    "SampleError",
    "SourceError",
    "SpecError",
    "StaleIteratorError",
    "StateError",
    "TooManyFailuresError",
    "WorkerError",
    "Writer",
    "__version__",
    "decode_image",
    "transforms",
]

# Tracebacks and documentation show the names that programs use.
for _public in __all__:
    _thing = globals()[_public]
    if isinstance(_thing, type):
        _thing.__module__ = "feedline"
