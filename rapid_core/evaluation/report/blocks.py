"""What a report is made of, before it is HTML, Markdown or lines of a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    words: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Sentences, one an item."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """A command, as it was typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose first column names the row. columns: their headings; none where rows are a name and words.

    note: what stands below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure that is drawn when it is written.

    name: unique in the report, of letters, digits and hyphens. alt: what it shows, in words, with figures.
    draw: fills an empty matplotlib Figure.
    """

    name: str
    title: str
    alt: str
    draw: Callable[[Any], None]


Block = Text | Listing | Code | Table | Plot


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A title, and sections in their order."""

    title: str
    sections: tuple[Section, ...]


def one_line(text: str) -> str:
    """Foreign text as one line: no line breaks, no control characters, nothing that UTF-8 cannot hold."""
    plain = {"Cc": " ", "Cs": "\ufffd"}
    return " ".join("".join(plain.get(unicodedata.category(char), char) for char in text).split())
