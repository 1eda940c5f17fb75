"""What the report says, in its order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rapid_core.evaluation.comparison import Comparison
from rapid_core.evaluation.report.blocks import Block, Code, Listing, Report, Section, Table, Text, one_line
from rapid_core.evaluation.report.plots import score_plot, sweep_plot, trade_plot
from rapid_core.evaluation.report.reading import reading
from rapid_core.evaluation.report.score_tables import (
    equality_table,
    failure_table,
    glance,
    heading,
    metric_tables,
    overview,
    part_tables,
    partition_table,
)
from rapid_core.evaluation.report.speed_tables import decoding_table, sweep_table, time_table, unrelated_table
from rapid_core.evaluation.report.wording import NOTHING, Label, counted, labels, without_length
from rapid_core.evaluation.summary import Summary, TaskSummary

# The engine says much of each answer; the rest is in the file of answers.
MOST_DECIDED = 30


def content(summary: Summary, description: Mapping[str, Any]) -> Report:
    """The whole report. description: of the run; its `command` is code, and mappings in it are tables of their own."""
    label = labels_of(summary)
    sections = [Section("The run", tuple(_run(summary, description, label)))]
    sections.append(Section("How to read the figures", tuple(Text(words) for words in reading(summary))))
    for task in summary.tasks:
        sections += _task(task, label, summary.baseline)
    if summary.decided:
        sections.append(Section("What the engine decided by itself", tuple(_decided(summary))))
    sections.append(Section("How it was run", tuple(_conditions(description))))
    target = one_line(str(description.get("target", "")))
    return Report(f"RAPID evaluation: {target}" if target else "RAPID evaluation", tuple(sections))


def labels_of(summary: Summary) -> Label:
    """What the settings of a report are called."""
    return labels(setting for task in summary.tasks for each in task.comparisons for setting in each.settings)


def about(comparison: Comparison) -> str:
    """How much was asked and answered, in a sentence."""
    text = f"{counted(comparison.asked, 'question')}, of which every setting answered {comparison.answered:,}, "
    text += f"about {counted(comparison.documents, 'document')}."
    failed = sum(sum(errors.values()) for errors in comparison.failed.values())
    missing = sum(comparison.missing.values())
    if failed:
        text += f" {counted(failed, 'answer')} failed."
    if missing:
        text += f" {counted(missing, 'answer')} {'is' if missing == 1 else 'are'} not there."
    return text


def _run(summary: Summary, description: Mapping[str, Any], label: Label) -> Iterator[Block]:
    rows = [(_key(key), _value(value)) for key, value in description.items() if not _apart(key, value)]
    if rows:
        yield Table("Models and data", (), tuple(rows))
    settings = [setting for task in summary.tasks for each in task.comparisons for setting in each.settings]
    gammas = {setting.gamma for setting in settings if setting.gamma is not None}
    if len(gammas) == 1:
        yield Text(f"Every setting that drafts has gamma {gammas.pop()}.")
    if summary.notes:
        yield Listing(tuple(map(one_line, summary.notes)))
    if (table := glance(summary, label)) is not None:
        yield table


def _task(task: TaskSummary, label: Label, baseline: str) -> Iterator[Section]:
    if not task.comparisons:
        yield Section(one_line(task.name), (Text("No question was asked."),))
    for number, comparison in enumerate(task.comparisons):
        name = f"{_slug(task.name)}-{number}"
        yield Section(heading(task, comparison), tuple(_comparison(name, task, comparison, label, baseline)))
    across: list[Block] = []
    for sweep in task.sweeps:
        across.append(sweep_plot(f"{_slug(task.name)}-{_slug(sweep.option)}", task, sweep, label, baseline))
        across.append(sweep_table(task, sweep, label, baseline))
    if (table := unrelated_table(task, label, baseline)) is not None:
        across.append(table)
    if across:
        yield Section(f"{one_line(task.name)}: one option at a time", tuple(across))


def _comparison(name: str, task: TaskSummary, comparison: Comparison, label: Label, baseline: str) -> Iterator[Block]:
    yield Text(about(comparison))
    if comparison.remarks:
        yield Listing(tuple(map(one_line, comparison.remarks)))
    label = without_length(label)
    by = (task, comparison, label, baseline)
    blocks: list[Block | None] = [
        overview(*by),
        score_plot(f"{name}-scores", *by),
        trade_plot(f"{name}-speed", task, comparison, label),
        *metric_tables(*by),
        *part_tables("group", comparison.groups, *by),
        *part_tables("source", comparison.sources, *by),
        partition_table(task, comparison, label),
        equality_table(comparison, label, baseline),
        time_table(comparison, label),
        decoding_table(comparison, label, baseline),
        failure_table(comparison, label),
    ]
    yield from (block for block in blocks if block is not None)


def _decided(summary: Summary) -> Iterator[Block]:
    items = list(summary.decided.items())
    rows = tuple((one_line(note), counted(answers, "answer")) for note, answers in items[:MOST_DECIDED])
    yield Table("Notes in the answers", (), rows)
    if len(items) > MOST_DECIDED:
        yield Text(f"{counted(len(items) - MOST_DECIDED, 'rarer note')} more: the file of answers has them.")


def _conditions(description: Mapping[str, Any]) -> Iterator[Block]:
    if command := description.get("command"):
        yield Code(one_line(str(command)))
    for key, value in description.items():
        if isinstance(value, Mapping):
            yield Table(_key(key), (), tuple((_key(name), _value(each)) for name, each in value.items()))


def _apart(key: str, value: object) -> bool:
    """Whether something stands at the end of the report."""
    return key == "command" or isinstance(value, Mapping)


def _key(key: object) -> str:
    return one_line(str(key)).replace("_", " ")


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        value = [f"{name}: {_value(each)}" for name, each in value.items()]
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value)) or NOTHING
    return NOTHING if value is None else one_line(str(value))


def _slug(name: str) -> str:
    """Letters, digits and hyphens, for ids and names of files."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "task"
