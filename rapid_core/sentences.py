"""Where sentences end in a text that is still being written."""

from __future__ import annotations

import re

# In languages with spaces white space follows the mark, with quotes and brackets between them; others
# need the mark alone. A line break ends a sentence too, since the items of a list have no marks.
_ENDS = re.compile(
    r"(?P<mark>[.!?…؟۔।॥]+)[\"'”’»)\]*_]*(?=\s)"  # noqa: RUF001 - marks of many languages
    r"|[。！？｡]+[」』”’）]*"  # noqa: RUF001
    r"|\S(?=[^\S\n]*\n)"
)
# What a full stop shortens, beside initials and words with a stop behind every letter.
_SHORT = (
    " abb abs al approx art bd bzw ca cf ch co col corp dept dr ed eq etc evtl fig gen gov hon inc jr lt ltd max min "
    "mr mrs ms mt nr op pp prof rep rev sec sen sr st usw vgl vol vs "
)
_OPENING = "\"'“‘„«([*_"  # noqa: RUF001
# Of a word before a full stop so many characters are looked at: no abbreviation is longer.
_WORD = 12


def sentence_ends(text: str) -> list[int]:
    """Offsets behind the end of each sentence in `text`, in their order.

    A full stop behind an abbreviation, an initial or a short number ("No. 5", "3. Mai"), or before a
    small letter, is taken for none: one that is missed costs less than one too many. The same text
    with more behind it may have one end less, where it goes on with a small letter.
    """
    return [found.end() for found in _ENDS.finditer(text) if _ends(found, text)]


def last_sentences(text: str, count: int) -> str:
    """The last `count` whole sentences of `text`, as they stand there; empty where none has ended."""
    ends = sentence_ends(text)
    if not ends:
        return ""
    start = ends[-count - 1] if len(ends) > count else 0
    return text[start : ends[-1]].strip()


def _ends(found: re.Match[str], text: str) -> bool:
    behind = text[found.end() :]
    if found["mark"] is None or behind.lstrip(" \t").startswith("\n"):
        return True
    if behind.lstrip()[:1].islower():
        return False
    words = text[max(0, found.start() - _WORD) : found.start()].split()
    if found["mark"] != "." or not words or text[found.start() - 1].isspace():
        return True
    word = words[-1].lstrip(_OPENING)
    # "No. 5", but also "He said no."
    number = (word.isdecimal() and len(word) <= 2) or (word.lower() == "no" and behind.lstrip()[:1].isdecimal())
    return not (number or f" {word.lower()} " in _SHORT or all(len(part) == 1 for part in word.split(".")))
