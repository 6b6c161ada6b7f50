"""The parts of the benchmarks that decide what a figure is; no rival is installed here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bars  # noqa: E402
import contest  # noqa: E402
import photos  # noqa: E402
import python_code  # noqa: E402
import report  # noqa: E402
import works  # noqa: E402


def entry(*rates: float, first: float | None = 0.05, peak: float = 150e6) -> dict[str, Any]:
    """A loader that ran at these rates."""
    epochs = [
        {"images": 4000, "seconds": 4000 / rate, "first": first, "cpu": 4.0, "others": 0.01} for rate in rates
    ]
    return {"epochs": epochs, "peak_pss": peak}


def train(**loaders: dict[str, Any]) -> report.Result:
    return {"title": "", "workers": 2, "page_cache": "warm", "loaders": loaders}


def test_ratios_are_taken_within_rounds() -> None:
    # The machine halves its speed in the second and third round: the ratio does not see it.
    result = train(feedline=entry(2000, 1000, 1000), torch=entry(500, 250, 250))
    assert report.ratio(result, "feedline", "torch") == pytest.approx(4)
    assert report.speed(result, "feedline") == pytest.approx(1000)
    assert report.ratio(result, "feedline", "dali") is None


def test_rivals_are_neither_ours_nor_limits_nor_absent() -> None:
    result = train(
        feedline=entry(9),
        feedline_one=entry(8),
        limit_crop=entry(99),
        torch=entry(2),
        tfdata=entry(3),
        dali={"failure": "did not install: no"},
    )
    assert report.rivals(result) == ["tfdata", "torch"]
    assert report.ours(result) == "feedline"


def test_the_table_shows_who_did_not_run() -> None:
    result = train(
        feedline=entry(2000),
        torch=entry(500),
        tfdata=entry(800),
        limit_crop=entry(2300, first=None),
        ffcv={"failure": "did not install: needs libopencv-dev"},
    )
    rows = report.table("train", result)
    assert len({row.count("|") for row in rows[:-1]}) == 1
    names = [row.split("|")[1].strip() for row in rows[2:]]
    assert names == ["feedline", "tf.data", "torch + Pillow", "libjpeg-turbo: crop", "FFCV"]
    assert "| 2,000 | 4.00x | 1.00x | 150 MB | 50 ms | 1 s |" in rows[2]
    assert "2.50x" in rows[3] and "no antialiasing" in rows[3]
    assert "needs libopencv-dev" in rows[-1]


def test_the_summary_joins_works() -> None:
    results = {
        "train": train(feedline=entry(2000), torch=entry(500), ffcv=entry(1000)),
        "arrays": train(feedline=entry(400_000), torch_arrays=entry(30_000), ffcv=entry(100_000)),
        "raw": train(feedline_raw=entry(9000), torch=entry(500), ffcv_raw=entry(4000)),
    }
    rows = report.summary(results)
    assert rows[2] == "| feedline | 2,000 (4.00x) | 400,000 (13.33x) | 9,000 (18.00x) | 150 MB | 50 ms |"
    assert rows[3] == "| FFCV * | 1,000 (2.00x) | 100,000 (3.33x) | 4,000 (8.00x) | 150 MB | 50 ms |"
    assert rows[4] == "| torch + Pillow | 500 (1.00x) | 30,000 (1.00x) |  | 150 MB | 50 ms |"


def test_bars_are_met_missed_or_left_out() -> None:
    result = train(
        feedline=entry(2000, peak=250e6),
        feedline_one=entry(1040),
        feedline_indexed={"failure": "did not prepare its data"},
        torch=entry(500),
        ffcv=entry(1000),
        limit_crop=entry(2600),
    )
    verdicts = {verdict.bar.title: verdict for verdict in bars.judge({"train": result})}
    assert verdicts["train: feedline to the best rival"].value == pytest.approx(2)
    assert verdicts["train: feedline to the best rival"].met
    assert not verdicts["train: feedline to libjpeg-turbo's bare crop"].met
    # A loader that did not run misses its bar; a work that was not asked for has none.
    assert verdicts["crop-indexed: feedline to the best rival"].value is None
    assert not verdicts["crop-indexed: feedline to the best rival"].met
    assert not verdicts["peak memory on standard photos"].met
    assert verdicts["rate per worker with two, of that with one"].value == pytest.approx(96.15, abs=0.01)
    assert not [title for title in verdicts if title.startswith(("eval", "large", "arrays"))]
    lines = [str(verdict) for verdict in verdicts.values()]
    assert lines[0].startswith("met") and "2.00 x" in lines[0]
    assert lines[0].endswith("(without feedline_indexed)")
    assert any(line.startswith("MISSED") and "not measured" in line for line in lines)


def test_bars_of_the_start() -> None:
    start = {"first_batch_ms": 90.0, "manifest_seconds": 2.5, "manifest_bytes": 43.0}
    assert [verdict.met for verdict in bars.judge({"start": start})] == [True, False, True]


def test_every_work_names_loaders_that_exist() -> None:
    for work in works.WORKS.values():
        assert work.base in work.loaders
        assert set(work.loaders) <= set(works.LOADERS)
        assert any(name in works.OURS for name in work.loaders)
    for loader in works.LOADERS.values():
        if loader.environment is None:
            continue
        assert (BENCHMARKS / "loaders" / f"{loader.script}.py").is_file()
        assert (BENCHMARKS.parent / "requirements" / f"{loader.environment}.txt").is_file()


def test_only_the_marked_block_is_replaced() -> None:
    text = "a\n<!-- benchmark -->\nold\n<!-- /benchmark -->\nb\n"
    assert report.replace_block(text, ["new"]) == text.replace("old", "new")


def test_a_log_gives_its_reason() -> None:
    assert (
        contest.reason("\nTraceback\nValueError: no such file\n\nhint: try again\n")
        == "ValueError: no such file"
    )
    assert contest.reason("one\ntwo\n") == "two"
    assert contest.reason("") == "no reason given"


#: Speaks the loaders' protocol; ends at the third line.
OBEDIENT = """
import json, sys
for number, _ in enumerate(sys.stdin):
    if number == 2:
        sys.exit("RuntimeError: worn out")
    print(json.dumps({"images": 10, "seconds": 2.0, "first": 0.5}), flush=True)
"""


def test_contestants_take_turns_and_may_fail(tmp_path: Path) -> None:
    said: list[str] = []
    one, other = (
        contest.Contestant(name, [sys.executable, "-c", code], {}, tmp_path / name)
        for name, code in {"one": OBEDIENT, "other": OBEDIENT.replace("== 2", "== 9")}.items()
    )
    try:
        failures = contest.compete([one, other], 2, lambda: None, said.append)
    finally:
        one.end()
        other.end()
    assert failures == {"one": "RuntimeError: worn out"}
    assert len(other.epochs) == 2
    assert other.peak > 0
    assert [line.split()[4] for line in said if line.startswith("round")] == [
        "one",
        "other",
        "other",
        "one",
        "other",
    ]


def test_photos_depend_on_their_number_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Image.effect_noise((1200, 1000), 90).convert("RGB")
    noise.save(tmp_path / "noise.png")
    monkeypatch.setattr(photos, "ORIGINALS", ("noise.png",))
    first = photos.cut("standard", 7, tmp_path)
    assert photos.cut("standard", 8, tmp_path) != first
    photos.original.cache_clear()
    assert photos.cut("standard", 7, tmp_path) == first


def test_kept_runs_can_be_read() -> None:
    for path in (BENCHMARKS / "runs").glob("*.json"):
        record = json.loads(path.read_text())
        assert record["machine"]["cores"] >= 1
        for work, result in record.get("works", {}).items():
            assert report.table(work, result)


def python_results() -> dict[str, Any]:
    """What benchmarks/python_code.py measures: a second epoch that starts too late, processes that take too
    much, tokens that are too slow."""
    firsts = {name: 2.0 if name.startswith("torch") else 0.5 for name in python_code.START}
    peaks = {"1": 1_500_000_000, "8": 1_560_000_000}
    both = {"torch": entry(2000, peak=900e6), "feedline": entry(3000, peak=500e6)}
    contest_of_two = train(**both, feedline_processes=entry(3000, peak=1080e6))
    tokens = train(
        torch=entry(2000, peak=900e6),
        feedline=entry(3000, peak=500e6),
        feedline_loader=entry(5000, peak=500e6),
    )
    for loader in (*contest_of_two["loaders"].values(), *tokens["loaders"].values()):
        loader["epochs"][0]["base_pss"] = 400e6
    return {
        "sleeping": contest_of_two,
        "photos": contest_of_two,
        "tokens": tokens,
        "stream": {
            name: [{"first": firsts[name], "second_epoch": 0.004}] for name in ("feedline", "torch_fork")
        },
        "start": {name: [{"first": first, "second_epoch": 0.006}] for name, first in firsts.items()},
        "objects": {kind: dict.fromkeys(names, peaks) for kind, names in python_code.HOLDERS.items()},
        "state": {name: [{"mean": 5e-5, "median": 5e-5, "worst": 1e-3}] for name in python_code.STATE},
    }


def test_bars_of_python_code() -> None:
    results = python_results()
    verdicts = {verdict.bar.title: verdict for verdict in bars.judge(results, python_code.BARS)}
    values = [verdict.value for verdict in verdicts.values()]
    assert values == pytest.approx([1.5, 1.5, 20, 1.2, 1.5, 2.5, 25, 25, 25, 25, 6, 4, 0.5], abs=0.01)
    missed = [title for title, verdict in verdicts.items() if not verdict.met]
    assert missed == [
        "photos, processes: peak memory, to torch's fork",
        "mapped tokens, Python code: feedline to torch",
        "mapped tokens, feedline.Loader to torch",
        "first batch of the second epoch",
    ]
    # A loader that did not run is no reason to be content.
    results["photos"]["loaders"]["feedline"] = {"failure": "did not run"}
    results["objects"]["objects"]["feedline_threads"] = {"1": None, "8": None}
    failed = [verdict for verdict in bars.judge(results, python_code.BARS) if verdict.value is None]
    assert len(failed) == 4 and not any(verdict.met for verdict in failed)


def test_tables_of_python_code() -> None:
    results = python_results()
    text = python_code.text_of(results)
    assert "| feedline | 3,000 | 1.50x | 500 MB | 100 MB | 50 ms | 1 s |  |" in text
    assert "| torch, fork | a list of dicts | 1,500 MB | 1,560 MB |" in text
    assert "| feedline | 0.50 % | 1.00 ms |" in text
    lines = python_code.readme_lines(results, "how")
    assert "| Pillow + torchvision v2, 2 workers | 2,000 samples/s | 3,000 samples/s (1.50x) |" in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    readme = "a\n<!-- benchmark-python -->\nold\n<!-- /benchmark-python -->\n"
    assert "old" not in report.replace_block(readme, lines, "benchmark-python")
