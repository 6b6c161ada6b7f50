"""Figures to text: medians, ratios within rounds, tables, the README's block."""

from __future__ import annotations

import statistics
from typing import Any

from works import LIMITS, LOADERS, OURS, WORKS

#: A finished contest: per loader its epochs, its peak memory or the reason why there are none.
Result = dict[str, Any]


def rate(epoch: dict[str, Any]) -> float:
    return float(epoch["images"] / epoch["seconds"])


def speed(result: Result, name: str) -> float | None:
    """Images a second, the median of the epochs; none if it did not run."""
    epochs = result["loaders"].get(name, {}).get("epochs")
    return statistics.median(map(rate, epochs)) if epochs else None


def ratio(result: Result, name: str, other: str) -> float | None:
    """How many times as fast as another: the median over the rounds, since machines drift."""
    first = result["loaders"].get(name, {}).get("epochs")
    second = result["loaders"].get(other, {}).get("epochs")
    if not first or not second:
        return None
    return statistics.median(rate(a) / rate(b) for a, b in zip(first, second, strict=True))


def rivals(result: Result) -> list[str]:
    """Those that ran and are neither ours nor a limit, the fastest first."""
    others = [name for name in result["loaders"] if name not in OURS and name not in LIMITS]
    speeds = {name: value for name in others if (value := speed(result, name))}
    return sorted(speeds, key=lambda name: -speeds[name])


def ours(result: Result) -> str:
    """The feedline of a work."""
    return next((name for name in OURS if name in result["loaders"]), "feedline")


def median_of(epochs: list[dict[str, Any]], key: str) -> float:
    return statistics.median(float(epoch[key] / epoch["images"]) for epoch in epochs)


def disturbance(results: dict[str, Result]) -> float:
    """The part of the machine that others took, in the median of all epochs."""
    entries = [entry for result in results.values() for entry in result["loaders"].values()]
    parts = [epoch["others"] for entry in entries for epoch in entry.get("epochs", ())]
    return statistics.median(parts) if parts else 0.0


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def table(name: str, result: Result) -> list[str]:
    """The contest as Markdown: ours, then the rivals from fast to slow, then the limits."""
    work = WORKS[name]
    rows = [
        f"| {name} | images/s | to torch | feedline to it | peak memory | first batch "
        "| CPU per 1,000 | note |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    absent = [one for one in result["loaders"] if "failure" in result["loaders"][one]]
    mine = [one for one in OURS if one in result["loaders"] and one not in absent]
    bounds = [one for one in LIMITS if one in result["loaders"] and one not in absent]
    for one in [*mine, *rivals(result), *bounds]:
        entry = result["loaders"][one]
        first = entry["epochs"][0]["first"]
        cells = [
            LOADERS[one].title,
            f"{speed(result, one):,.0f}",
            times(ratio(result, one, work.base)),
            times(ratio(result, ours(result), one)),
            f"{entry['peak_pss'] / 1e6:,.0f} MB",
            "-" if first is None else f"{first * 1e3:,.0f} ms",
            f"{median_of(entry['epochs'], 'cpu') * 1e3:.3g} s",
            # The notes are about photos.
            "" if work.data == "arrays" else LOADERS[one].note,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    rows += [f"| {LOADERS[one].title} | {result['loaders'][one]['failure']} |" for one in absent]
    return rows


#: The columns of the README's table: a work and its heading.
COLUMNS = {
    "train": "train",
    "eval": "eval",
    "large": "large photos",
    "arrays": "small arrays",
    "raw": "packed pixels",
}
#: Rows that are one product under several names.
SAME = {
    "feedline": ("feedline", "feedline_raw"),
    "torch": ("torch", "torch_arrays"),
    "torch_tuned": ("torch_tuned", "torch_batched"),
    "ffcv": ("ffcv", "ffcv_raw"),
    "turboloader": ("turboloader", "turboloader_raw"),
}


def summary(results: dict[str, Result]) -> list[str]:
    """One row for each loader over all works: what the README shows."""
    shown = {work: title for work, title in COLUMNS.items() if work in results}
    rows = [
        f"| images/s | {' | '.join(shown.values())} | peak memory | first batch |",
        f"|---|{'---:|' * (len(shown) + 2)}",
    ]
    order = ["feedline", "feedline_indexed", *(rivals(results["train"]) if "train" in results else ())]
    for name in order:
        less = LOADERS[name].note and name not in OURS
        cells = [LOADERS[name].title + (" *" if less else "")]
        names = SAME.get(name, (name,))
        for work in shown:
            # In `raw`, torch reads the JPEGs: it is there for the ratio only.
            found = [one for one in names if speed(results[work], one) and (work, one) != ("raw", "torch")]
            if found:
                times_torch = times(ratio(results[work], found[0], WORKS[work].base))
                cells.append(f"{speed(results[work], found[0]):,.0f} ({times_torch})")
            else:
                cells.append("")
        entry = results["train"]["loaders"].get(name, {}) if "train" in results else {}
        if entry.get("epochs"):
            cells.append(f"{entry['peak_pss'] / 1e6:,.0f} MB")
            cells.append(f"{entry['epochs'][0]['first'] * 1e3:,.0f} ms")
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def replace_block(text: str, lines: list[str], name: str = "benchmark") -> str:
    """The README with other lines between the marks of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    return head + begin + "\n" + "\n".join(lines) + "\n" + end + tail
