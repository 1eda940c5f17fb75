"""The tables of speed, of sweeps, and of unrelated passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rapid_core.evaluation.comparison import Comparison
from rapid_core.evaluation.records import Setting
from rapid_core.evaluation.report.blocks import Table
from rapid_core.evaluation.report.wording import (
    NOTHING,
    Label,
    counted,
    difference,
    estimate,
    number,
    share,
    spread,
)
from rapid_core.evaluation.summary import TaskSummary
from rapid_core.evaluation.sweeps import Sweep

OPTIONS = {
    "eta": "eta, the strength of the transfer",
    "gamma": "gamma, draft tokens a round",
    "retrieved_tokens": "tokens of passages that the drafter reads",
    "context_tokens": "tokens of the context",
}


def time_table(comparison: Comparison, label: Label) -> Table | None:
    """Seconds of a question, and what they went into."""
    rows = []
    for setting, speed in comparison.speeds.items():
        stages = (speed.retrieval_s, speed.prefill_s, speed.draft_prefill_s, speed.decode_s, speed.total_s)
        rows.append((label(setting), *(spread(stage, 2) for stage in stages), spread(speed.tokens, 0)))
    columns = ("setting", "retrieval", "prefill", "drafter's prefill", "decoding", "in all", "tokens")
    return _measured("Seconds a question", columns, rows, comparison)


def decoding_table(comparison: Comparison, label: Label, baseline: str) -> Table | None:
    """Tokens a second, and what drafts bring."""
    rows = [
        (
            label(setting),
            number(speed.pooled, 1),
            spread(speed.tokens_per_s, 1),
            spread(speed.over_baseline, 2),
            NOTHING if speed.over_baseline is None else f"{speed.over_baseline.count:,}",
            share(speed.acceptance),
            number(speed.tokens_per_round, 2),
        )
        for setting, speed in comparison.speeds.items()
    ]
    columns = ("setting", "tokens/s, all", "a question", f"÷ {baseline}", "pairs", "accepted", "tokens a round")
    return _measured("Decoding", columns, rows, comparison)


def _measured(
    title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], comparison: Comparison
) -> Table | None:
    if not rows:
        return None
    questions = next(iter(comparison.speeds.values())).questions
    note = f"Medians, and in brackets the quartiles, over {counted(questions, 'question')}."
    return Table(title, columns, tuple(rows), note)


def sweep_table(task: TaskSummary, sweep: Sweep, label: Label, baseline: str) -> Table:
    """Every point of the curves of one option."""
    rows = [
        (value, label(curve.rest), *_point(task, setting, with_mean=True))
        for curve in sweep.curves
        for value, setting in curve.settings.items()
    ]
    title = task.metrics[task.main]
    columns = (
        sweep.option.replace("_", " "),
        "setting",
        f"{title} [95 %]",
        f"difference to {baseline} [95 %]",
        f"÷ {baseline}",
    )
    note = "With eta 0 it is sd." if sweep.option == "eta" else ""
    return Table(f"Over {OPTIONS[sweep.option]}", (*columns, "accepted"), tuple(rows), note)


def unrelated_table(task: TaskSummary, label: Label, baseline: str) -> Table | None:
    """What passages of another document do, beside those of the question's own: the paper's Table 3."""
    rows = []
    for each in task.unrelated:
        related = _point(task, each.related) if each.related else (NOTHING,) * 3
        rows.append((label(replace(each.unrelated, unrelated=False)), *related, *_point(task, each.unrelated)))
    if not rows:
        return None
    names = (f"difference to {baseline}", f"÷ {baseline}", "accepted")
    columns = ("setting", *(f"own: {name}" for name in names), *(f"unrelated: {name}" for name in names))
    note = f"Differences are in {task.metrics[task.main]}. Settings in a row differ in the passages alone."
    return Table("Passages of another document", columns, tuple(rows), note)


def _point(task: TaskSummary, setting: Setting, *, with_mean: bool = False) -> tuple[str, ...]:
    score, speed = task.score(setting), task.speed(setting)
    mean = (estimate(score.mean if score else None),) if with_mean else ()
    return (
        *mean,
        difference(score.difference if score else None),
        spread(speed.over_baseline if speed else None, 2),
        share(speed.acceptance if speed else None),
    )
