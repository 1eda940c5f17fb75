"""The report as Markdown, its plots as PNG files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rapid_core.evaluation.report.blocks import Block, Code, Listing, Plot, Table, Text
from rapid_core.evaluation.report.content import content
from rapid_core.evaluation.report.drawing import png
from rapid_core.evaluation.summary import Summary

# What could become code, emphasis, a tag, a column or a formula; a link; and, at the start of a line, a list, a
# heading, a rule or the definition of a link.
_SPECIAL = re.compile(r"([\\`*_<>|~&$]|(?<=\])\(|^#|^[-+](?=[-\s]|$)|^\[(?=[^\]]*\]:))")
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def write_markdown(summary: Summary, description: Mapping[str, Any], path: Path) -> None:
    """Write the report, and beside it a PNG for each plot; files that are there are replaced.

    description: as for `write_html`. Raises `MissingDependencyError` without matplotlib, and
    `OSError` for a file that cannot be written.
    """
    report = content(summary, description)
    parts = [f"# {_escaped(report.title)}"]
    for section in report.sections:
        parts.append(f"## {_escaped(section.title)}")
        for block in section.blocks:
            parts += _block(block, path)
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8", newline="\n")


def _block(block: Block, path: Path) -> Iterator[str]:
    match block:
        case Text(words):
            yield _escaped(words)
        case Listing(items):
            yield "\n".join(f"- {_escaped(item)}" for item in items)
        case Code(text):
            # A fence is longer than any within.
            fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 3)
            yield f"{fence}\n{text}\n{fence}"
        case Table(title, columns, rows, note):
            yield f"**{_escaped(title)}**"
            yield "\n".join(_table(columns, rows))
            if note:
                yield _escaped(note)
        case Plot(name, title, alt):
            file = path.with_name(f"{path.stem}-{name}.png")
            file.write_bytes(png(block))
            yield f"**{_escaped(title)}**"
            yield f"![{_escaped(alt)}]({quote(file.name)})"


def _table(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    width = len(columns) or len(rows[0])
    yield _row(columns or ("",) * width)
    # Figures stand to the right, and words to the left.
    yield "|" + " --- |" + (" ---: |" if columns else " --- |") * (width - 1)
    yield from map(_row, rows)


def _row(cells: tuple[str, ...]) -> str:
    return "".join(f"| {_escaped(cell)} " for cell in cells) + "|"


def _escaped(text: str) -> str:
    return _NUMBERED.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", text))
