"""Documents of a given length: cut at a paragraph's end, or lengthened with other documents of the task."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

CountTokens = Callable[[str], int]

SEPARATOR = "\n\n"


def cut_to(text: str, tokens: int, count_tokens: CountTokens) -> str:
    """The longest beginning of a text that ends with a paragraph and has at most so many tokens; "" where none has."""
    ends = [found.start() for found in re.finditer(r"\n+", text)]
    if text and not text.endswith("\n"):
        ends.append(len(text))
    # The key rises with the position: a longer beginning has no fewer tokens.
    fitting = bisect_right(ends, tokens, key=lambda end: count_tokens(text[:end]))
    return text[: ends[fitting - 1]] if fitting else ""


def lengthened(text: str, others: Sequence[str], tokens: int, count_tokens: CountTokens) -> str:
    """A text with others behind it, cut to at most so many tokens; "" where all of them together are shorter."""
    joined = text
    for other in others:
        if count_tokens(joined) >= tokens:
            break
        joined = f"{joined}{SEPARATOR}{other}"
    return cut_to(joined, tokens, count_tokens) if count_tokens(joined) >= tokens else ""
