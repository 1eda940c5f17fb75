"""Which of the ranked chunks the drafter reads: threshold, budget, order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile

from rapid_core.config import Retrieval
from rapid_core.datatypes import Chunk

SEPARATOR = "\n\n"
# In a short document the drafter reads at most this part, so that there is something to gain.
LARGEST_SHARE = 4
# A chunk of fewer tokens hardly says what it is about.
SMALLEST_CHUNK = 16


def budget_tokens(document_tokens: int, retrieval: Retrieval) -> int:
    """How many tokens of a document of `document_tokens` the drafter may read.

    Source: paper, section 4.1 (between 4,096 tokens and 1/24 of the input); the quarter is ours.
    """
    by_paper = max(retrieval.floor_tokens, int(document_tokens / retrieval.ratio))
    return min(by_paper, document_tokens // LARGEST_SHARE)


def chunk_size(room: int, retrieval: Retrieval) -> int:
    """Tokens of a chunk: the configured ones, fewer where the drafter's share of `room` would not hold two.

    room: tokens of the document, or of the target's window where that is smaller.
    """
    return max(SMALLEST_CHUNK, min(retrieval.chunk_tokens, room // (2 * LARGEST_SHARE)))


def above(ranked: Iterable[Chunk], threshold: float) -> list[Chunk]:
    """The chunks of a ranking whose score reaches `threshold`."""
    return list(takewhile(lambda chunk: chunk.score >= threshold, ranked))


def fill(ranked: Iterable[Chunk], budget: int, count_tokens: Callable[[str], int]) -> list[Chunk]:
    """The best chunks that fit into `budget` tokens together; one that does not fit is passed over."""
    kept = []
    for chunk in ranked:
        size = count_tokens(chunk.text + SEPARATOR)
        if size <= budget:
            kept.append(chunk)
            budget -= size
    return kept


def in_document_order(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The chunks as they follow each other in the document."""
    return sorted(chunks, key=lambda chunk: chunk.start)


def join(chunks: Iterable[Chunk], separator: str = SEPARATOR) -> str:
    """One text; a blank line between chunks unless told (paper, section 4.1)."""
    return separator.join(chunk.text for chunk in chunks)
