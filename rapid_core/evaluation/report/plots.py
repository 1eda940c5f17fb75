"""What the plots show: scores with intervals, score against speed, and the curves of the sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rapid_core.evaluation.comparison import Comparison
from rapid_core.evaluation.report.blocks import Plot
from rapid_core.evaluation.report.speed_tables import OPTIONS
from rapid_core.evaluation.report.wording import Label, capital, difference, estimate, spread
from rapid_core.evaluation.statistics import Estimate, Quartiles
from rapid_core.evaluation.summary import TaskSummary
from rapid_core.evaluation.sweeps import Sweep

# Okabe and Ito's, which colour-blind readers tell apart, on white and on black; markers tell them apart without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Of lines and letters; an SVG takes the colour of the page's text for it.
INK = "#010203"
WIDTH = 9.0  # inches


@dataclass(frozen=True, slots=True)
class Mark:
    """A value and what it may lie between, in the units of its axis."""

    value: float
    low: float
    high: float


def score_plot(name: str, task: TaskSummary, comparison: Comparison, label: Label, baseline: str) -> Plot | None:
    """The main metric of each setting, and its difference to the baseline."""
    scores = comparison.scores[task.main]
    if not scores:
        return None
    title = task.metrics[task.main]
    names = [label(setting) for setting in scores]
    means = [_of_estimate(score.mean) for score in scores.values()]
    differences = [_of_estimate(score.difference) for score in scores.values()]

    def draw(figure: Any) -> None:
        # Settings are rows, so that their names can be read.
        figure.set_size_inches(WIDTH, 1.2 + 0.32 * len(names))
        left, right = figure.subplots(1, 2, sharey=True)
        for panel, marks, colour in ((left, means, COLOURS[0]), (right, differences, COLOURS[1])):
            for row, mark in enumerate(marks):
                if mark is not None:
                    panel.plot([mark.low, mark.high], [row, row], color=colour, linewidth=2)
                    panel.plot([mark.value], [row], color=colour, marker="o")
            panel.grid(axis="x", alpha=0.25)
        left.set_yticks(range(len(names)), names)
        left.set_ylim(len(names) - 0.5, -0.5)
        left.set_xlabel(f"{title}, times 100")
        right.tick_params(left=False)
        right.axvline(0, color=INK, linewidth=0.8)
        right.set_xlabel(f"difference to {baseline}, points")

    told = [
        f"{each} {estimate(score.mean)}" + (f", difference {difference(score.difference)}" if score.difference else "")
        for each, score in zip(names, scores.values(), strict=True)
    ]
    heading = f"{capital(title)} by setting, and the difference to {baseline}, with 95 % intervals"
    return Plot(name, heading, f"{heading}: {'; '.join(told)}.", draw)


def trade_plot(name: str, task: TaskSummary, comparison: Comparison, label: Label) -> Plot | None:
    """The main metric against the speed of decoding."""
    known = []
    for setting, score in comparison.scores[task.main].items():
        speed = comparison.speeds.get(setting)
        if speed is not None and speed.tokens_per_s is not None:
            known.append((label(setting), speed.tokens_per_s, score.mean))
    if not known:
        return None
    title = task.metrics[task.main]

    def draw(figure: Any) -> None:
        figure.set_size_inches(WIDTH, max(3.6, 0.6 + 0.28 * len(known)))
        panel = figure.subplots()
        for position, (each, speed, mean) in enumerate(known):
            score = _of_estimate(mean)
            if score is None:
                continue
            colour = COLOURS[position % len(COLOURS)]
            panel.plot([speed.low, speed.high], [score.value] * 2, color=colour, linewidth=1, alpha=0.5)
            panel.plot([speed.median] * 2, [score.low, score.high], color=colour, linewidth=1, alpha=0.5)
            marker = MARKERS[position % len(MARKERS)]
            panel.plot([speed.median], [score.value], color=colour, marker=marker, linestyle="", label=each)
        panel.set_xlim(left=0)
        panel.set_xlabel("decoding, tokens/s: median (quartiles)")
        panel.set_ylabel(f"{title}, times 100 [95 %]")
        panel.grid(alpha=0.25)
        panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small", frameon=False)

    told = [f"{each} {estimate(mean)} at {spread(speed, 1)} tokens/s" for each, speed, mean in known]
    heading = f"{capital(title)} against the speed of decoding"
    return Plot(name, heading, f"{heading}: {'; '.join(told)}.", draw)


def sweep_plot(name: str, task: TaskSummary, sweep: Sweep, label: Label, baseline: str) -> Plot:
    """The main metric and the speed-up over one option; its values stand at equal distances."""
    title = task.metrics[task.main]

    def draw(figure: Any) -> None:
        figure.set_size_inches(WIDTH, 3.9 + 0.12 * len(sweep.curves))
        left, right = figure.subplots(1, 2)
        for position, curve in enumerate(sweep.curves):
            places: list[float] = [sweep.values.index(value) for value in curve.settings]
            scores = [task.score(setting) for setting in curve.settings.values()]
            speeds = [task.speed(setting) for setting in curve.settings.values()]
            # Side by side, so that no interval hides another.
            places = [place + 0.06 * (position - (len(sweep.curves) - 1) / 2) for place in places]
            numeric = sum(value[0].isdigit() for value in curve.settings)
            means = [_of_estimate(s.mean) if s else None for s in scores]
            ratios = [_of_quartiles(s.over_baseline) if s else None for s in speeds]
            _curve(left, position, label(curve.rest), places, means, numeric)
            _curve(right, position, label(curve.rest), places, ratios, numeric)
        left.set_ylabel(f"{title}, times 100 [95 %]")
        right.set_ylabel(f"tokens/s ÷ {baseline} (quartiles)")
        right.axhline(1, color=INK, linewidth=0.8)
        for panel in (left, right):
            panel.set_xticks(range(len(sweep.values)), sweep.values)
            panel.set_xlim(-0.3, len(sweep.values) - 0.7)
            panel.set_xlabel(OPTIONS[sweep.option])
            panel.grid(alpha=0.25)
        handles = left.get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=2, fontsize="small", frameon=False)

    told = []
    for curve in sweep.curves:
        for value, setting in curve.settings.items():
            score, speed = task.score(setting), task.speed(setting)
            ratio = spread(speed.over_baseline if speed else None, 2)
            told.append(f"{label(curve.rest)} at {value}: {estimate(score.mean if score else None)}, {ratio}")
    heading = f"{capital(title)} and speed-up over {OPTIONS[sweep.option]}"
    return Plot(name, heading, f"{heading}: {'; '.join(told)}.", draw)


def _curve(
    panel: Any, position: int, name: str, places: Sequence[float], marks: Sequence[Mark | None], numeric: int
) -> None:
    """Marks with their intervals; a line joins the first `numeric` of them, since words are no places on an axis."""
    colour, marker = COLOURS[position % len(COLOURS)], MARKERS[position % len(MARKERS)]
    known = [(place, mark) for place, mark in zip(places, marks, strict=True) if mark is not None]
    for place, mark in known:
        panel.plot([place, place], [mark.low, mark.high], color=colour, linewidth=1.5, alpha=0.5)
    panel.plot(
        [p for p, _ in known], [m.value for _, m in known], color=colour, marker=marker, linestyle="", label=name
    )
    joined = [(p, m.value) for p, m in zip(places[:numeric], marks[:numeric], strict=True) if m is not None]
    panel.plot([p for p, _ in joined], [value for _, value in joined], color=colour)


def _of_estimate(found: Estimate | None) -> Mark | None:
    """In points; without an interval a mark is its value alone."""
    if found is None:
        return None
    low, high = (found.interval.low, found.interval.high) if found.interval else (found.value, found.value)
    return Mark(100 * found.value, 100 * low, 100 * high)


def _of_quartiles(found: Quartiles | None) -> Mark | None:
    return None if found is None else Mark(found.median, found.low, found.high)
