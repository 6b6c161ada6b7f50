"""CSV, TSV and JSONL: columns of numbers and text."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import feedline
import numpy as np
import pytest
from columns import rows, same

TEXTS = ["plain", "with, comma", 'with "quotes"', "two\nlines", "", "ünï", " spaces "]


@pytest.mark.parametrize(("ending", "dialect"), [("csv", "excel"), ("tsv", "excel-tab"), ("csv", "unix")])
def test_what_csv_writes(tmp_path: Path, ending: str, dialect: str) -> None:
    path = tmp_path / f"a.{ending}"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, dialect)
        writer.writerow(["whole", "number", "truth", "text"])
        for n in range(30):
            writer.writerow([n - 5, n / 4, n % 2 == 0, TEXTS[n % len(TEXTS)]])
    found = rows(path, "csv")
    same(found["whole"], [n - 5 for n in range(30)])
    same(found["number"], [np.float32(n / 4) for n in range(30)])
    same(found["truth"], [n % 2 == 0 for n in range(30)])
    assert found["text"] == [TEXTS[n % len(TEXTS)] for n in range(30)]
    assert found["truth"][0].dtype == bool
    assert found["whole"][0].dtype == np.int64


def test_many_csv_files_and_choices(tmp_path: Path) -> None:
    for part in range(3):
        lines = "".join(f"{part * 10 + n},{'word' if part == 2 else n}\n" for n in range(10))
        (tmp_path / f"{part}.csv").write_text("n,x\n" + lines)
    found = rows(tmp_path / "{0..2}.csv", "csv")
    same(found["n"], list(range(30)))
    # One word makes the column text.
    assert found["x"][:2] + found["x"][-1:] == ["0", "1", "word"]
    found = rows(tmp_path / "0.csv", "csv", {"as_text": {"column": "n", "role": "text"}})
    assert found["as_text"] == [str(n) for n in range(10)]
    with pytest.raises(feedline.SourceError, match='did you mean "n"'):
        rows(tmp_path, "csv", ["nn"])
    (tmp_path / "0.csv").write_text("n,x\n1,2\n3\n")
    with pytest.raises(feedline.SourceError, match="line 3"):
        rows(tmp_path / "0.csv", "csv")


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    values = [
        {
            "n": n,
            "x": n / 2,
            "v": [n, n + 1],
            "r": [0.5] * (n % 3),
            "m": [[n, 1]] * (n % 2 + 1),
            "t": TEXTS[n % 7],
        }
        for n in range(20)
    ]
    path.write_text("\n\n".join(json.dumps(value, ensure_ascii=n % 2 == 0) for n, value in enumerate(values)))
    found = rows(path, "jsonl")
    for name in values[0]:
        same(found[name], [value[name] for value in values])
    assert found["v"][0].dtype == np.int64
    assert found["r"][0].dtype == np.float32
    shuffled = rows(path, "jsonl", shuffle=True, seed=1)
    assert sorted(shuffled["n"]) == list(range(20))
    assert all(text == TEXTS[n % 7] for n, text in zip(shuffled["n"], shuffled["t"], strict=True))


def test_json_lines_with_holes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "b": {"c": 1}}\n{"a": 2, "d": "x"}\n')
    same(rows(path, "jsonl", ["a"])["a"], [1, 2])
    with pytest.raises(feedline.SampleError, match='row 0 has no value in column "d"'):
        rows(path, "jsonl", ["d"])
    with pytest.raises(feedline.SourceError, match="objects"):
        rows(path, "jsonl", ["b"])
