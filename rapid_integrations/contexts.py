"""What both integrations make of retrieved passages and of the documents that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rapid_core import Chunk, Document, LongContext

SEPARATOR = "\n\n"
# Of passages without their documents the drafter reads this part, so that there is something to gain.
LARGEST_SHARE = 4


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
    behind what is there again for the next question. Without documents the passages are all that there is to read: the
    target reads all of them, and the drafter the best ones, a quarter of the text.
    """
    if not documents:
        texts = list(dict.fromkeys(passage.written for passage in passages if passage.text.strip()))
        return LongContext(separator.join(texts), _best(texts), query=query, place=place, separator=separator)
    ranked = sorted(documents, key=lambda document: _rank(passages, document[0]))
    chunks: list[Chunk] = []
    known = {source for source, _ in ranked}
    # The documents stand in the prompt in an order of their own; the drafter reads in the same one.
    for source, document in sorted(ranked, key=lambda it: (it[1].position, it[1].name, it[1].text)):
        own = [passage for passage in passages if passage.source == source and passage.text.strip()]
        chunks.extend(_in_order(own, document.text, offsets=len(ranked) == 1))
    stray = dict.fromkeys(
        passage.written for passage in passages if passage.source not in known and passage.text.strip()
    )
    chunks.extend(map(Chunk, stray))
    unique = {chunk.text: chunk for chunk in chunks}
    more = [Document(text, heading=False, position=1) for text in stray] if loose else []
    return LongContext(
        documents=(*(document for _, document in ranked), *more),
        chunks=tuple(unique.values()),
        query=query,
        place=place,
        separator=separator,
    )


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


def _in_order(passages: Iterable[Passage], document: str, *, offsets: bool) -> list[Chunk]:
    """Passages as they follow each other in their document; those that it does not hold come last."""
    spans: list[tuple[int, int, str]] = []
    strange: list[Chunk] = []
    for passage in passages:
        start = document.find(passage.text)
        if start < 0:
            strange.append(Chunk(passage.written))
        else:
            spans.append((start, start + len(passage.text), passage.heading))
    merged: list[tuple[int, int, str]] = []
    for start, end, heading in sorted(spans):
        if merged and start <= merged[-1][1]:
            first, last, said = merged[-1]
            merged[-1] = first, max(last, end), said
        else:
            merged.append((start, end, heading))
    found, said = [], ""
    for start, end, heading in merged:
        text = Passage(document[start:end], heading=heading if heading != said else "").written
        found.append(Chunk(text, start if offsets else -1, end if offsets else -1))
        said = heading
    return [*found, *strange]
