"""What both integrations make of retrieved passages and of the documents that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rapid_core import Chunk, Document, LongContext

SEPARATOR = "\n\n"
# Of passages without their documents the drafter reads this part, so that there is something to gain.
LARGEST_SHARE = 4
# Characters. Passages that overlap become one up to here: of many, the best must be told from the others.
LONGEST_MERGED = 4000


class RapidWarning(UserWarning):
    """Something was decided for the caller; the statistics say it too."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrieved text and the id of the document that it comes from, where that is known.

    heading: what the drafter reads before it, once for passages that follow each other.
    """

    text: str
    source: str = ""
    heading: str = ""

    @property
    def written(self) -> str:
        """The text behind its heading."""
        return f"{self.heading}{SEPARATOR}{self.text}" if self.heading else self.text


def long_context(
    passages: Sequence[Passage],
    documents: Sequence[tuple[str, Document]],
    *,
    query: str = "",
    place: str = "",
    separator: str = SEPARATOR,
    loose: bool = False,
) -> LongContext:
    """The documents for the target, best-ranked first, and the passages for the drafter, in document order.

    passages: best first. documents: with the ids that passages name. Passages of one document
    that overlap become one. loose: whether the target, too, reads passages without a document,
    behind what is there again for the next question. Without documents the passages are all that
    there is to read: the target reads all of them, and the drafter the best ones, a quarter of the
    text.
    """
    if not documents:
        texts = list(dict.fromkeys(passage.written for passage in passages if passage.text.strip()))
        return LongContext(separator.join(texts), _best(texts), query=query, place=place, separator=separator)
    ranked = sorted(documents, key=lambda document: _rank(passages, document[0]))
    found: list[_Found] = []
    known = {source for source, _ in ranked}
    told = [(rank, passage) for rank, passage in enumerate(passages) if passage.text.strip()]
    # The documents stand in the prompt in an order of their own; the drafter reads in the same one.
    for source, document in sorted(ranked, key=lambda it: (it[1].position, it[1].name, it[1].text)):
        own = [(rank, passage) for rank, passage in told if passage.source == source]
        found += _in_order(own, document.text, offsets=len(ranked) == 1)
    stray = [_Found(rank, Chunk(passage.written)) for rank, passage in told if passage.source not in known]
    found += sorted(stray, key=lambda each: each.chunk.text) if loose else stray
    # The same text once, at its first place and with its best rank.
    unique: dict[str, _Found] = {}
    for each in found:
        first = unique.setdefault(each.chunk.text, each)
        unique[each.chunk.text] = replace(first, rank=min(first.rank, each.rank))
    chunks = list(unique.values())
    alone = dict.fromkeys(each.chunk.text for each in stray) if loose else {}
    more = [Document(text, heading=False, position=1) for text in alone]
    return LongContext(
        documents=(*(document for _, document in ranked), *more),
        chunks=tuple(each.chunk for each in chunks),
        query=query,
        place=place,
        separator=separator,
        ranking=tuple(sorted(range(len(chunks)), key=lambda index: chunks[index].rank)),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A chunk, and the rank of the best passage in it."""

    rank: int
    chunk: Chunk


def _best(texts: Sequence[str]) -> tuple[Chunk, ...]:
    """The best-ranked texts up to a quarter of all, at least one; none where there is but one."""
    if len(texts) < 2:
        return ()
    room = sum(map(len, texts)) // LARGEST_SHARE
    kept = [Chunk(texts[0])]
    for text in texts[1:]:
        room -= len(text)
        if room < len(texts[0]):
            break
        kept.append(Chunk(text))
    return tuple(kept)


def _rank(passages: Sequence[Passage], source: str) -> int:
    return next((rank for rank, passage in enumerate(passages) if passage.source == source), len(passages))


def _in_order(passages: Sequence[tuple[int, Passage]], document: str, *, offsets: bool) -> list[_Found]:
    """Ranked passages as they follow each other in their document; those that it does not hold come last."""
    spans: list[tuple[int, int, int, str]] = []
    strange: list[_Found] = []
    for rank, passage in passages:
        start = document.find(passage.text)
        if start < 0:
            strange.append(_Found(rank, Chunk(passage.written)))
        else:
            spans.append((start, start + len(passage.text), rank, passage.heading))
    merged: list[tuple[int, int, int, str]] = []
    for start, end, rank, heading in sorted(spans):
        first, last, best, said = merged[-1] if merged else (0, -1, 0, "")
        if start > last:
            merged.append((start, end, rank, heading))
        elif max(last, end) - first <= LONGEST_MERGED or end <= last:
            merged[-1] = first, max(last, end), min(best, rank), said
        else:
            # What is there already is not said again.
            merged.append((last, end, rank, heading))
    found, said = [], ""
    for start, end, rank, heading in merged:
        text = Passage(document[start:end], heading=heading if heading != said else "").written
        found.append(_Found(rank, Chunk(text, start if offsets else -1, end if offsets else -1)))
        said = heading
    return [*found, *strange]
