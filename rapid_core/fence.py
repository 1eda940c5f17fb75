"""A document between two rules or two tags, which an application put around it.

Prompts of RAG applications hold their passages like this, in a message of the user or of the system.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# One character over and over, alone on its line, or at its end behind a sentence.
_RULE = re.compile(r"(?:^|(?<=[.:!?]))[ \t]*((?P<sign>[-=_*#~])(?P=sign){2,})[ \t\r]*$", re.MULTILINE)
# A tag that says what it holds, on a line of its own.
_TAG = re.compile(
    r"^[ \t]*<(?P<closes>/?)(?P<name>contexts?|documents?|passages|sources|text)(?:\s[^<>\n]*)?>[ \t\r]*$",
    re.MULTILINE | re.IGNORECASE,
)
# A rule of fewer characters is a divider of instructions, where a message is made of them.
LONG_RULE = 10


@dataclass(frozen=True, slots=True)
class _Line:
    """A rule or a tag, and where it stands in the text."""

    text: str
    start: int
    end: int


def find_fence(text: str, *, longest_frame: int, shortest_rule: int = 3) -> tuple[str, str, str] | None:
    """(before, document, after), which are the text together; None where there is no such document.

    The rules and the tags are in `before` and `after`. The document is most of the text, and what
    is around it has at most `longest_frame` characters. Of several rules the first one opens, and
    the last one of the same text closes: a document holds rules of its own. The same goes for
    tags. Of more than two rules, those that Markdown puts between sections count for nothing.
    shortest_rule: characters.
    """
    for opening, closing in sorted(_pairs(text, shortest_rule), key=lambda pair: pair[0].start):
        between = text[opening.end : closing.start]
        start = opening.end + len(between) - len(between.lstrip("\r\n"))
        document = text[start : closing.start].rstrip()
        if len(document) <= len(text) // 2 or len(text) - len(document) > longest_frame:
            continue
        if _underlines(opening, text) and _underlines(closing, text):
            continue
        return text[:start], document, text[start + len(document) :]
    return None


def without_fences(text: str) -> str:
    """The text without its rules and tags, which mean nothing in a search."""
    return _TAG.sub("", _RULE.sub("", text))


def _pairs(text: str, shortest_rule: int) -> Iterator[tuple[_Line, _Line]]:
    rules = [_Line(match[1], match.start(), match.end()) for match in _RULE.finditer(text)]
    rules = [rule for rule in rules if len(rule.text) >= shortest_rule]
    tags = [
        (match["closes"], _Line(match["name"].lower(), match.start(), match.end())) for match in _TAG.finditer(text)
    ]
    if len(rules) == 2:
        # Whatever they are made of.
        yield rules[0], rules[1]
    else:
        rules = [rule for rule in rules if len(rule.text) >= LONG_RULE or not _divides(rule, text)]
        yield from _first_and_last(rules, rules)
    yield from _first_and_last([tag for closes, tag in tags if not closes], [tag for closes, tag in tags if closes])


def _first_and_last(openings: list[_Line], closings: list[_Line]) -> Iterator[tuple[_Line, _Line]]:
    """Of each text the first opening and the last closing."""
    first = {line.text: line for line in reversed(openings)}
    last = {line.text: line for line in closings}
    for text, opening in first.items():
        if text in last and last[text].start >= opening.end:
            yield opening, last[text]


def _divides(rule: _Line, text: str) -> bool:
    """Whether it is a paragraph of its own, as Markdown has them between sections."""
    above, below = text[max(0, rule.start - 4) : rule.start], text[rule.end : rule.end + 4]
    return above.replace("\r", "").endswith("\n\n") and below.replace("\r", "").startswith("\n\n")


def _underlines(rule: _Line, text: str) -> bool:
    """Whether it is as long as the line above it, as under a heading."""
    above = text[: rule.start].rstrip("\r\n").rpartition("\n")[2].strip()
    return not rule.text.isalpha() and len(above) == len(rule.text)
