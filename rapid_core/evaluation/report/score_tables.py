"""The tables of scores: every metric with its intervals, groups, who is right, equal answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rapid_core.evaluation.comparison import Comparison, Part
from rapid_core.evaluation.pairing import order
from rapid_core.evaluation.report.blocks import Table, one_line
from rapid_core.evaluation.report.wording import (
    HIGHER,
    LOWER,
    NOTHING,
    Label,
    arrow,
    between,
    capital,
    counted,
    difference,
    estimate,
    number,
    points,
    share,
)
from rapid_core.evaluation.scores import Score
from rapid_core.evaluation.shares import threshold
from rapid_core.evaluation.statistics import Estimate
from rapid_core.evaluation.summary import Summary, TaskSummary

# What Figure 2 of the paper shows comes first.
PARTITION = {
    (False, False, True): "only RAPID",
    (True, False, False): "only lc",
    (False, True, False): "only rag",
    (True, True, False): "lc and rag",
    (True, False, True): "lc and RAPID",
    (False, True, True): "rag and RAPID",
    (True, True, True): "all three",
    (False, False, False): "none",
}


def glance(summary: Summary, label: Label) -> Table | None:
    """The main metric of every setting in all tasks; None where there is one task."""
    parts = [(task, comparison) for task in summary.tasks for comparison in task.comparisons]
    if len(parts) < 2:
        return None
    shown = {replace(setting, context_tokens=None) for _, comparison in parts for setting in comparison.settings}
    rows = []
    for setting in sorted(shown, key=order):
        here = [(task, replace(setting, context_tokens=comparison.context_tokens)) for task, comparison in parts]
        rows.append((label(setting), *(_short(task.score(own)) for task, own in here)))
    heads = tuple(f"{heading(task, comparison)}: {task.metrics[task.main]}" for task, comparison in parts)
    note = f"{HIGHER} and {LOWER}: the interval of the difference to {summary.baseline} leaves 0 out."
    return Table("All tasks", ("setting", *heads), tuple(rows), note)


def _short(score: Score | None) -> str:
    if score is None:
        return NOTHING
    return points(score.mean.value) + arrow(score.difference.interval if score.difference else None)


def heading(task: TaskSummary, comparison: Comparison) -> str:
    """The task, and how long the context is where it was cut or lengthened."""
    length = f", {comparison.context_tokens:,} tokens of context" if comparison.context_tokens else ""
    return one_line(task.name) + length


def overview(task: TaskSummary, comparison: Comparison, label: Label, baseline: str) -> Table:
    """Each setting in one row: score, difference, speed, drafts."""
    rows = []
    for setting in comparison.settings:
        score, speed = comparison.scores[task.main].get(setting), comparison.speeds.get(setting)
        rows.append(
            (
                label(setting),
                estimate(score.mean if score else None),
                difference(score.difference if score else None),
                number(speed.pooled if speed else None, 1),
                number(speed.over_baseline.median if speed and speed.over_baseline else None, 2),
                share(speed.acceptance if speed else None),
            )
        )
    title = task.metrics[task.main]
    columns = (
        "setting",
        f"{title} [95 %]",
        f"difference to {baseline} [95 %]",
        "tokens/s",
        f"÷ {baseline}",
        "accepted",
    )
    return Table("Scores and speed", columns, tuple(rows))


def metric_tables(task: TaskSummary, comparison: Comparison, label: Label, baseline: str) -> Iterator[Table]:
    """A table for each metric, with the intervals over documents and over questions."""
    for metric, title in task.metrics.items():
        scores = comparison.scores[metric]
        if not scores:
            continue
        rows = []
        for setting, score in scores.items():
            rows.append((label(setting), *_both(score.mean), *_both(score.difference, sign=True)))
        counts = next(iter(scores.values())).mean
        intervals = ("by documents", "by questions")
        columns = ("setting", "mean", *intervals, f"difference to {baseline}", *intervals)
        note = f"Over {counted(counts.questions, 'question')} about {counted(counts.documents, 'document')}."
        yield Table(capital(title), columns, tuple(rows), note)


def _both(found: Estimate | None, *, sign: bool = False) -> tuple[str, str, str]:
    if found is None:
        return NOTHING, NOTHING, NOTHING
    by_documents, by_questions = between(found.by_documents, sign=sign), between(found.by_questions, sign=sign)
    arrows = (arrow(found.by_documents), arrow(found.by_questions)) if sign else ("", "")
    return points(found.value, sign=sign), by_documents + arrows[0], by_questions + arrows[1]


def part_tables(
    what: str, parts: Sequence[Part], task: TaskSummary, comparison: Comparison, label: Label, baseline: str
) -> Iterator[Table]:
    """The main metric by groups or sources, and its differences to the baseline."""
    scores = comparison.scores[task.main]
    whole = next(iter(scores.values())).mean.questions if scores else 0
    every = Part(name="overall", questions=whole, scores=scores)
    if len(parts) < 2:
        return
    title = capital(task.metrics[task.main])
    heads = tuple(f"{one_line(part.name) or 'unnamed'} ({part.questions:,})" for part in (every, *parts))
    means, differences = [], []
    for setting, score in scores.items():
        own = [part.scores.get(setting) for part in (every, *parts)]
        means.append((label(setting), *(estimate(each.mean if each else None) for each in own)))
        if score.difference is not None:
            differences.append((label(setting), *(difference(each.difference if each else None) for each in own)))
    note = "In brackets: how many questions."
    yield Table(f"{title} by {what}", ("setting", *heads), tuple(means), note)
    if differences:
        yield Table(f"{title} by {what}, difference to {baseline}", ("setting", *heads), tuple(differences), note)


def partition_table(task: TaskSummary, comparison: Comparison, label: Label) -> Table | None:
    """Which share of the questions who gets right."""
    if not comparison.partitions:
        return None
    rows = [
        (label(each.rapid), label(each.rag), *(estimate(each.shares[cell]) for cell in PARTITION))
        for each in comparison.partitions
    ]
    title = task.metrics[task.main]
    note = (
        f"Percent of {counted(comparison.partitions[0].questions, 'question')}. An answer is right where {title} is "
        f"at least {points(threshold(task.main) or 0)}. A row adds up to 100."
    )
    return Table("Who gets it right", ("RAPID", "rag", *PARTITION.values()), tuple(rows), note)


def equality_table(comparison: Comparison, label: Label, baseline: str) -> Table | None:
    """How many answers of lossless settings are those of the baseline."""
    if not comparison.equalities:
        return None
    rows = tuple(
        (label(each.setting), f"{each.equal:,} of {each.questions:,}", share(each.equal / each.questions))
        for each in comparison.equalities
    )
    note = (
        "These settings leave the choice to the target: at temperature 0 and in float32 every text must be that of "
        f"{baseline}. With fewer bits rounding may decide near ties, and at other temperatures answers are drawn."
    )
    return Table(f"Texts equal to those of {baseline}", ("setting", "equal", "share"), rows, note)


def failure_table(comparison: Comparison, label: Label) -> Table | None:
    """What has no answer, and why."""
    rows = [
        (label(setting), f"{counted(count, 'question')}: {one_line(error)}")
        for setting, errors in comparison.failed.items()
        for error, count in errors.items()
    ]
    rows += [
        (label(setting), f"{counted(count, 'question')}: not asked") for setting, count in comparison.missing.items()
    ]
    return Table("Without an answer", (), tuple(rows)) if rows else None
