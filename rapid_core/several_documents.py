"""Several documents in one prompt: which of them the target reads, and how they stand there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rapid_core.datatypes import Document
from rapid_core.retrieval import SEPARATOR

# A document without a name is named by so many of its first words.
NAMING_WORDS = 8


def whole_that_fit(
    documents: Sequence[Document], room: int, count_tokens: Callable[[str], int], separator: str = SEPARATOR
) -> tuple[list[Document], list[Document]]:
    """What is read and what is left out, both best-ranked first: whole documents until `room` tokens are full.

    One that does not fit is passed over, and a later one may still fit. The first is always read:
    whether it fits alone is the caller's to decide.
    """
    kept, rest = [documents[0]], []
    room -= count_tokens(_with_name(documents[0]))
    for document in documents[1:]:
        size = count_tokens(separator + _with_name(document))
        if size <= room:
            kept.append(document)
            room -= size
        else:
            rest.append(document)
    return kept, rest


def joined(documents: Iterable[Document], separator: str = SEPARATOR) -> str:
    """One text of all documents, each behind its heading.

    Their order is that of positions, names and texts: the next question ranks them in another way,
    and must still find them in the cache.
    """
    ordered = sorted(documents, key=lambda document: (document.position, document.name, document.text))
    return separator.join(_with_name(document) for document in ordered)


def name_of(document: Document) -> str:
    """What a document is called where it is left out."""
    if document.name:
        return document.name
    words = document.text.split()
    return " ".join(words[:NAMING_WORDS]) + (" …" if len(words) > NAMING_WORDS else "")


def _with_name(document: Document) -> str:
    heading = f"=== {document.name} ==={SEPARATOR}" if document.name and document.heading else ""
    return heading + document.text
