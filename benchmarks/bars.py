"""What feedline must reach, each bar with its measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from report import Result, ours, ratio, rivals, speed

#: All that was measured: the contests under their names, and "start" with benchmarks/start.py's figures.
Results = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    title: str
    #: The parts of the results that it needs; it is not looked at unless one of them was measured.
    needs: tuple[str, ...]
    value: Callable[[Any], float | None]
    bound: float
    unit: str = "x"
    #: Whether the value may not pass the bound, rather than not fall below it.
    at_most: bool = False


@dataclass(frozen=True)
class Verdict:
    bar: Bar
    value: float | None
    #: Loaders of the work that did not run: the best rival may be among them.
    absent: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.bar.bound if self.bar.at_most else self.value >= self.bar.bound

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:,.2f} {self.bar.unit}"
        side = "at most" if self.bar.at_most else "at least"
        bound = f"{side} {self.bar.bound:g} {self.bar.unit}"
        without = f" (without {', '.join(self.absent)})" if self.absent else ""
        return f"{'met   ' if self.met else 'MISSED'}  {self.bar.title:<48} {value:>16}   {bound}{without}"


def to_best(result: Result, name: str | None = None) -> float | None:
    found = rivals(result)
    return ratio(result, name or ours(result), found[0]) if found else None


def to(name: str, other: str) -> Callable[[Result], float | None]:
    return lambda result: ratio(result, name, other)


def megabytes(result: Result) -> float | None:
    peak = result["loaders"]["feedline"].get("peak_pss")
    return peak / 1e6 if peak else None


def per_worker(result: Result) -> float | None:
    """The rate of each of two workers as a part of one alone."""
    both = ratio(result, "feedline", "feedline_one")
    return None if both is None or not speed(result, "feedline") else both / result["workers"] * 100


BARS = (
    Bar("train: feedline to the best rival", ("train",), to_best, 1.6),
    Bar("train: feedline to libjpeg-turbo's bare crop", ("train",), to("feedline", "limit_crop"), 0.8),
    Bar(
        "crop-indexed: feedline to the best rival",
        ("train", "indexed"),
        lambda result: to_best(result, "feedline_indexed"),
        2.2,
    ),
    Bar(
        "crop-indexed: feedline to itself on the fly",
        ("train", "indexed"),
        to("feedline_indexed", "feedline"),
        1.25,
    ),
    Bar("eval: feedline to the best rival", ("eval",), to_best, 1.4),
    Bar("large: feedline to tf.data", ("large",), to("feedline", "tfdata"), 1.5),
    Bar("large: feedline to libjpeg-turbo's scaled crop", ("large",), to("feedline", "limit_scaled"), 0.8),
    Bar("arrays: feedline to the best rival", ("arrays",), to_best, 4.0),
    Bar("raw: feedline to the best rival", ("raw",), to_best, 1.5),
    Bar("sample: feedline to torch with Pillow", ("sample",), to("feedline", "torch"), 3.0),
    Bar("peak memory on standard photos", ("train", "indexed"), megabytes, 200, "MB", at_most=True),
    Bar("peak memory on large photos", ("large",), megabytes, 400, "MB", at_most=True),
    Bar("rate per worker with two, of that with one", ("train",), per_worker, 95, "%"),
    Bar(
        "first batch from Loader(...) over 4,000 files",
        ("start",),
        lambda start: start["first_batch_ms"],
        150,
        "ms",
        at_most=True,
    ),
    Bar(
        "start with a manifest of 1,000,000 files",
        ("start",),
        lambda start: start["manifest_seconds"],
        2,
        "s",
        at_most=True,
    ),
    Bar(
        "memory for each of its samples beyond the text",
        ("start",),
        lambda start: start["manifest_bytes"],
        100,
        "bytes",
        at_most=True,
    ),
)


def judge(results: Results, bars: Iterable[Bar] = BARS) -> list[Verdict]:
    """A verdict for each bar whose work was run."""
    verdicts = []
    for bar in bars:
        part = next((results[need] for need in bar.needs if need in results), None)
        if part is not None:
            loaders = part.get("loaders", {})
            absent = tuple(name for name, entry in loaders.items() if "failure" in entry)
            verdicts.append(Verdict(bar, bar.value(part), absent))
    return verdicts
