"""The curves of the paper's Figure 3: tokens a second and speed-up against context length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rapid_core.bench.report import Report, label
from rapid_core.bench.summary import Spread
from rapid_core.extras import require


def draw(report: Report, path: Path) -> None:
    """Write a PNG of two panels; bars reach from the smallest to the largest run."""
    require("matplotlib", extra="bench").use("Agg")
    pyplot = require("matplotlib.pyplot", extra="bench")
    figure, (speed, speedup) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    try:
        for number, method in enumerate(report.options.measured):
            measured = {length: report.methods(length).get(method) for length in report.lengths}
            found = {length: figures for length, figures in measured.items() if figures is not None}
            name = label(method, report.options)
            _curve(speed, number, name, {length: figures.tokens_per_s for length, figures in found.items()})
            # A method is not drawn against itself, and keeps its colour in both panels.
            _curve(speedup, number, name, {length: figures.over.get("generate") for length, figures in found.items()})
        speed.set_ylabel("tokens/s")
        speedup.set_ylabel("speed-up over transformers generate()")
        speedup.axhline(1, color="grey", linewidth=0.8)
        for panel in (speed, speedup):
            panel.set_xlabel("context length, tokens")
            panel.set_xticks(list(report.lengths))
            panel.set_ylim(bottom=0)
        if speed.containers:
            speed.legend(fontsize="small")
        figure.suptitle(report.title(), fontsize="medium", wrap=True)
        figure.savefig(path, format="png", dpi=150)
    finally:
        pyplot.close(figure)


def _curve(panel: Any, number: int, name: str, points: dict[int, Spread | None]) -> None:
    known = {length: point for length, point in points.items() if point is not None}
    if known:
        middles = [point.median for point in known.values()]
        low = [point.median - point.min for point in known.values()]
        high = [point.max - point.median for point in known.values()]
        panel.errorbar(list(known), middles, yerr=(low, high), color=f"C{number}", marker="o", capsize=3, label=name)
