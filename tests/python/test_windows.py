"""Arrays whose rows overlap or lie apart: read where they are, never copied."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view


def rows(source: Any, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    """One epoch in order, joined."""
    batches = list(feedline.Loader(source, batch_size=7, **options))
    return {name: np.concatenate([np.asarray(batch[name]) for batch in batches]) for name in source}


def test_tokens_of_a_file(tmp_path: Path) -> None:
    """As nanoGPT reads them: windows of a mapped file, and the same one token later."""
    path = tmp_path / "tokens.bin"
    np.random.default_rng(0).integers(0, 50_000, 5_000, np.uint16).tofile(path)
    tokens = np.memmap(path, np.uint16, "r")
    windows = sliding_window_view(tokens, 129)
    got = rows({"x": windows[:, :-1], "y": windows[:, 1:]})
    assert got["x"].shape == got["y"].shape == (4_872, 128)
    assert np.array_equal(got["x"], windows[:, :-1]) and np.array_equal(got["y"], windows[:, 1:])
    apart = rows({"x": windows[::128, :-1]})["x"]
    assert np.array_equal(apart, windows[::128, :-1])


def test_windows_take_no_memory() -> None:
    tokens = np.zeros(1_000_000, np.uint16)
    tracemalloc.start()
    loader = feedline.Loader({"x": sliding_window_view(tokens, 1_000)}, batch_size=4, shuffle=True, seed=1)
    batch = next(iter(loader))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.asarray(batch["x"]).shape == (4, 1_000)
    # Copied they would be 2 GB.
    assert peak < 20e6


BASE = np.arange(6 * 5 * 4, dtype=np.int32).reshape(6, 5, 4)
VIEWS = {
    "every second row": BASE[::2],
    "a column": BASE[:, 2:3],
    "the first of each": BASE[:, 0],
    "one for all": np.broadcast_to(BASE[0], (9, 5, 4)),
    "one row": BASE[3:4, 1:2],
    "backwards": BASE[::-1],
    "turned": BASE.transpose(2, 1, 0),
    "columns apart": BASE[:, ::2],
    "of another order": BASE.astype(">i4")[::2],
    "no elements": np.zeros((3, 0, 2), np.int32)[::2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_read_as_numpy_does(name: str) -> None:
    view = VIEWS[name]
    assert np.array_equal(rows({"x": view})["x"], view)
    # The same values are another data set only in where their rows lie.
    assert np.array_equal(rows({"x": view}, num_workers=0)["x"], view)


def test_tensors_unfold() -> None:
    tokens = torch.arange(500, dtype=torch.int64)
    assert np.array_equal(rows({"x": tokens.unfold(0, 64, 3)})["x"], tokens.unfold(0, 64, 3).numpy())
    halves = torch.arange(100, dtype=torch.bfloat16).unfold(0, 8, 8)
    got = rows({"x": halves})["x"].view(np.uint16)
    assert torch.equal(torch.from_numpy(got).view(torch.bfloat16), halves)


def test_a_state_knows_the_windows() -> None:
    tokens = np.arange(3_000, dtype=np.uint16)

    def loader(step: int) -> feedline.Loader:
        windows = sliding_window_view(tokens, 32)[::step][:90]
        return feedline.Loader({"x": windows}, batch_size=4, shuffle=True, seed=3)

    first = loader(1)
    whole = [np.array(batch["x"]) for batch in loader(1)]
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    again = loader(1)
    again.load_state_dict(first.state_dict())
    rest = [np.array(batch["x"]) for batch in again]
    assert len(rest) == len(whole) - 5
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(rest, whole[5:], strict=True))
    with pytest.raises(feedline.StateError, match="data"):
        loader(2).load_state_dict(first.state_dict())
