"""Draws a record of benchmarks/runs as SVG and PNG beside it.

python benchmarks/plot.py benchmarks/runs/2026-11-16.json
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from report import Result, rate, ratio, rivals, speed
from works import LIMITS, LOADERS, OURS, WORKS

OWN, OTHER, BOUND = "#c2410c", "#94a3b8", "#e2e8f0"


def draw(axes: Axes, name: str, result: Result) -> None:
    """One work as bars, the fastest on top; a line over each bar spans its slowest and fastest epoch."""
    shown = [one for one in OURS if one != "feedline_one" and speed(result, one)]
    shown += rivals(result)
    shown.sort(key=lambda one: speed(result, one) or 0)
    shown = [*reversed([one for one in LIMITS if speed(result, one)]), *shown]
    for row, one in enumerate(shown):
        value = speed(result, one) or 0
        rates = [rate(epoch) for epoch in result["loaders"][one]["epochs"]]
        color = OWN if one in OURS else BOUND if one in LIMITS else OTHER
        axes.barh(row, value, color=color, height=0.72)
        axes.plot([min(rates), max(rates)], [row, row], color="#334155", linewidth=1)
        times = ratio(result, one, WORKS[name].base)
        text = f"{value:,.0f}" + (f"  ({times:.1f}x)" if times else "")
        axes.text(max(value, *rates) * 1.02, row, text, va="center", fontsize=8, color="#0f172a")
    axes.set_yticks(range(len(shown)), [LOADERS[one].title for one in shown], fontsize=8)
    for label, one in zip(axes.get_yticklabels(), shown, strict=True):
        label.set_fontweight("bold" if one in OURS else "normal")
    axes.set_xlim(0, axes.get_xlim()[1] * 1.22)
    axes.set_title(WORKS[name].title.replace(": ", "\n", 1), fontsize=9, loc="left")
    axes.tick_params(axis="x", labelsize=7)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def main() -> None:
    path = Path(sys.argv[1])
    record = json.loads(path.read_text())
    results: dict[str, Result] = {name: record["works"][name] for name in WORKS if name in record["works"]}
    plt.rcParams["font.family"] = "DejaVu Sans"
    # Text stays text in the SVG: smaller, sharp and searchable. The hash makes files comparable.
    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "feedline"
    columns = 2 if len(results) > 1 else 1
    rows = math.ceil(len(results) / columns)
    counts = [len(result["loaders"]) for result in results.values()]
    heights = [max(counts[row * columns : (row + 1) * columns]) * 0.24 + 0.85 for row in range(rows)]
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(6.2 * columns, sum(heights) + 0.4),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for axes in grid.flat:
        axes.set_visible(False)
    for axes, (name, result) in zip(grid.flat, results.items(), strict=False):
        axes.set_visible(True)
        draw(axes, name, result)
    machine = record["machine"]
    place = f"{machine['cpu']}, {machine['cores']} cores"
    about = f"images/s (ratio to torch), {record['workers']} workers, {place}"
    figure.suptitle(about, fontsize=9, x=0.01, ha="left", color="#475569")
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
