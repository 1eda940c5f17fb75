"""The report as one HTML file that needs nothing else: no network, no scripts, plots inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from rapid_core.evaluation.report.blocks import Plot
from rapid_core.evaluation.report.content import content
from rapid_core.evaluation.report.drawing import svg
from rapid_core.evaluation.report.page import STYLE, TEMPLATE
from rapid_core.evaluation.summary import Summary


def write_html(summary: Summary, description: Mapping[str, Any], path: Path) -> None:
    """Write the report; a file that is there is replaced.

    description: of the run, what a reader must know to run it again: models, device, data,
    `command`, versions, date. Raises `MissingDependencyError` without matplotlib, and `OSError` for
    a file that cannot be written.
    """
    # What comes from documents and answers is escaped; style and drawings are ours.
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(TEMPLATE)
    page = template.render(
        report=content(summary, description),
        style=Markup(STYLE),
        kind_of=lambda block: type(block).__name__,
        drawn=_drawn,
    )
    path.write_text(page, encoding="utf-8", newline="\n")


def _drawn(plot: Plot) -> Markup:
    return Markup(svg(plot))
