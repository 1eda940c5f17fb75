"""Which of the ranked chunks the drafter reads: threshold, budget, order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from statistics import median

from rapid_core.config import Retrieval
from rapid_core.datatypes import Chunk

SEPARATOR = "\n\n"
# In a short document the drafter reads at most this part, so that there is something to gain.
LARGEST_SHARE = 4
# A chunk of fewer tokens hardly says what it is about.
SMALLEST_CHUNK = 16
# Where similarities fall off, as a part of the way from the median to the best (docs/notes.md).
STANDS_OUT = 0.45
# A drafter reads its prompt anew where at least this part of the passages would be other ones.
LEAST_DRIFT = 0.35


def budget_tokens(document_tokens: int, retrieval: Retrieval) -> int:
    """How many tokens of a document of `document_tokens` the drafter may read.

    Source: paper, section 4.1 (between 4,096 tokens and 1/24 of the input); the quarter is ours.
    """
    if isinstance(retrieval.budget, int):
        return min(retrieval.budget, document_tokens)
    by_paper = max(retrieval.floor_tokens, int(document_tokens / retrieval.ratio))
    return min(by_paper, document_tokens // LARGEST_SHARE)


def chunk_size(room: int, retrieval: Retrieval) -> int:
    """Tokens of a chunk: the configured ones, fewer where the drafter's share of `room` would not hold two.

    room: tokens of the document, or of the target's window where that is smaller.
    """
    size = min(retrieval.chunk_tokens, room // (2 * LARGEST_SHARE))
    if isinstance(retrieval.budget, int):
        size = min(size, retrieval.budget // 2)
    return max(SMALLEST_CHUNK, size)


def above(ranked: Iterable[Chunk], threshold: float) -> list[Chunk]:
    """The chunks of a ranking whose score reaches `threshold`."""
    return list(takewhile(lambda chunk: chunk.score >= threshold, ranked))


def least_tokens(document_tokens: int, retrieval: Retrieval) -> int:
    """How many tokens of a document the drafter reads where similarities end the choice."""
    return min(retrieval.floor_tokens, int(document_tokens / retrieval.ratio))


def falls_off(scores: Sequence[float]) -> int:
    """How many of the best scores are read before they fall off.

    scores: those of all passages, in any order. What reaches the given part of the way from the median to
    the best one stands out; of equal scores all do.
    """
    if not scores:
        return 0
    common = median(scores)
    needed = STANDS_OUT * (max(scores) - common)
    return sum(score - common >= needed for score in scores)


def drift(before: Iterable[Chunk], now: Sequence[Chunk]) -> list[Chunk]:
    """The passages of `now` that are not among those of `before`, where they are enough of the text; else none."""
    known = {chunk.text for chunk in before}
    new = [chunk for chunk in now if chunk.text not in known]
    return new if _characters(new) >= LEAST_DRIFT * _characters(now) else []


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


def _characters(chunks: Iterable[Chunk]) -> int:
    return sum(len(chunk.text) for chunk in chunks)
