"""A short table of each task, for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rapid_core.evaluation.report.blocks import one_line
from rapid_core.evaluation.report.content import about, labels_of
from rapid_core.evaluation.report.score_tables import heading, overview
from rapid_core.evaluation.report.wording import without_length
from rapid_core.evaluation.summary import Summary


def print_summary(summary: Summary, console: Console) -> None:
    """Print scores, differences, speed and acceptance of each task, and what cannot be told."""
    label = labels_of(summary)
    for task in summary.tasks:
        for comparison in task.comparisons:
            found = overview(task, comparison, without_length(label), summary.baseline)
            table = Table(title=Text(heading(task, comparison)), title_justify="left", box=None, pad_edge=False)
            for position, column in enumerate(found.columns):
                table.add_column(Text(column), justify="right" if position else "left", no_wrap=position > 0)
            for row in found.rows:
                # A text is no markup of rich, brackets or not.
                table.add_row(*map(Text, row))
            console.print(table)
            console.print(Text(about(comparison), style="dim"), soft_wrap=True)
            for remark in comparison.remarks:
                console.print(Text(one_line(remark), style="yellow"), soft_wrap=True)
            console.print()
    for note in summary.notes:
        console.print(Text(f"note: {one_line(note)}", style="yellow"), soft_wrap=True)
