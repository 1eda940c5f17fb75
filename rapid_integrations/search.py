"""A retriever and the documents behind its chunks, asked once a call."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from rapid_core import Document, LongContext, LongHistory, Message, OptionError
from rapid_integrations.contexts import Passage, RapidWarning, long_context
from rapid_integrations.messages import last_question

OnRetrievalError = Literal["raise", "plain"]

PLAINLY = "plain decoding, without a document and without a drafter"
NOTHING_FOUND = f"the retriever returned nothing: {PLAINLY}"
COVERED = (
    "the retrieved chunks are nearly all of the documents, and the drafter reads as much as the target; fewer or "
    "smaller chunks make it faster"
)
# The part of the documents from which on the drafter has next to nothing to gain.
NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the engine is given: a context or none, sentences for the statistics, and whether nobody shall draft."""

    context: LongContext | LongHistory | None
    notes: Sequence[str] = ()
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """Documents by their ids, in the order of their best chunk; None where one was not found.

    notes: sentences about what is not whole, or not certain.
    """

    documents: dict[str, Document | None]
    notes: tuple[str, ...] = ()


class Hook(ABC):
    """A framework's retriever, and where the documents are kept that its chunks come from.

    remedy: how a caller says where documents are. naming: where a chunk names its document.
    warning: said with every use. nothing_found: what is said where there is no chunk, as a warning
    if `warns_of_nothing`. reads_loose: whether the target reads chunks without a document beside
    documents. The repr is its own, and no secret is in it.
    """

    remedy: ClassVar[str]
    warns_of_nothing: ClassVar[bool] = False
    reads_loose: ClassVar[bool] = False
    naming: str
    warning: str = ""
    nothing_found: str = NOTHING_FOUND

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex

    def __repr__(self) -> str:
        return f"Hook({self._name})"

    @property
    @abstractmethod
    def knows_documents(self) -> bool:
        """Whether there is anybody to ask for whole documents."""

    @abstractmethod
    def retrieve(self, query: str) -> Sequence[Any]:
        """Chunks of the framework's own kind, best first."""

    @abstractmethod
    async def aretrieve(self, query: str) -> Sequence[Any]:
        """`retrieve` for an event loop."""

    @abstractmethod
    def passage(self, chunk: Any) -> Passage:
        """What the drafter reads of a chunk, and its document's id."""

    @abstractmethod
    def fetch(self, chunks: Sequence[Any]) -> Fetched:
        """The documents of some chunks."""

    async def afetch(self, chunks: Sequence[Any]) -> Fetched:
        """`fetch` for an event loop."""
        return await asyncio.to_thread(self.fetch, chunks)


@dataclass(frozen=True, slots=True)
class Search:
    """A question that a hook has yet to answer.

    chunks: where they were retrieved before, best first. whole: the documents, where they are
    known. place, separator: see `LongContext`.
    """

    hook: Hook
    query: str = ""
    chunks: tuple[Any, ...] | None = None
    whole: tuple[Document, ...] = ()
    place: str = ""
    separator: str = "\n\n"
    on_error: OnRetrievalError | None = None

    def run(self, messages: Sequence[Message], on_error: OnRetrievalError) -> Resolved:
        """Ask for chunks and documents. What is raised is raised, or becomes plain decoding."""
        chunks = self.chunks
        try:
            if chunks is None:
                chunks = tuple(self.hook.retrieve(self.query or last_question(messages)))
            return self._made(chunks, Fetched({}) if self.whole else self.hook.fetch(chunks))
        except Exception as error:
            if (self.on_error or on_error) == "raise":
                raise
            return self._without_drafter(error, chunks or ())

    async def arun(self, messages: Sequence[Message], on_error: OnRetrievalError) -> Resolved:
        """`run` for an event loop."""
        chunks = self.chunks
        try:
            if chunks is None:
                chunks = tuple(await self.hook.aretrieve(self.query or last_question(messages)))
            return self._made(chunks, Fetched({}) if self.whole else await self.hook.afetch(chunks))
        except Exception as error:
            if (self.on_error or on_error) == "raise":
                raise
            return self._without_drafter(error, chunks or ())

    def _made(self, chunks: Sequence[Any], fetched: Fetched) -> Resolved:
        passages = [self.hook.passage(chunk) for chunk in chunks]
        if self.whole:
            return self._of_known_documents(passages)
        if not any(passage.text.strip() for passage in passages):
            note = (
                f"none of {len(passages)} retrieved chunks holds text: {PLAINLY}"
                if passages
                else self.hook.nothing_found
            )
            if self.hook.warns_of_nothing:
                warnings.warn(note, RapidWarning, stacklevel=2)
            return Resolved(None, (note,), plain=True)
        found = [(source, document) for source, document in fetched.documents.items() if document is not None]
        more = list(fetched.notes)
        strange = _strange(passages, dict(found)) if self.hook.reads_loose else []
        if strange:
            more.append(
                f"{len(strange)} of {len(passages)} chunks hold text that their document does not hold; the target "
                "reads them beside it"
            )
        notes = self._notes(passages, replace(fetched, notes=tuple(more)))
        if found and _cover(passages, [document for _, document in found]):
            notes = (*notes, COVERED)
        passages = [replace(passage, source="") if passage in strange else passage for passage in passages]
        return Resolved(self._context(passages, found, loose=self.hook.reads_loose), notes)

    def _of_known_documents(self, passages: Sequence[Passage]) -> Resolved:
        if not passages:
            return Resolved(LongContext(documents=self.whole, chunks=(), query=self.query))
        named = [(str(position), document) for position, document in enumerate(self.whole)]
        held = [
            Passage(passage.text, next((name for name, document in named if passage.text in document.text), ""))
            for passage in passages
        ]
        return Resolved(self._context(held, named))

    def _context(
        self, passages: Sequence[Passage], documents: Sequence[tuple[str, Document]], *, loose: bool = False
    ) -> LongContext:
        return long_context(
            passages, documents, query=self.query, place=self.place, separator=self.separator, loose=loose
        )

    def _notes(self, passages: Sequence[Passage], fetched: Fetched) -> tuple[str, ...]:
        """What the caller should know, as warnings and for the statistics."""
        notes = [self.hook.warning] if self.hook.warning else []
        missing = [source for source, document in fetched.documents.items() if document is None]
        loose = sum(not passage.source for passage in passages)
        if not self.hook.knows_documents:
            notes.append(
                f"no whole documents: the target reads only the chunks that were retrieved; {self.hook.remedy}"
            )
        elif missing:
            listed = ", ".join(map(repr, missing))
            notes.append(f"no document was found for {listed}; {self.hook.remedy}")
        if loose and self.hook.knows_documents:
            notes.append(f"{loose} of {len(passages)} chunks name no document {self.hook.naming}")
        if empty := sum(not passage.text.strip() for passage in passages):
            notes.append(f"{empty} of {len(passages)} chunks hold no text, and are left out")
        notes += fetched.notes
        for note in notes:
            warnings.warn(note, RapidWarning, stacklevel=2)
        return tuple(notes)

    def _without_drafter(self, error: Exception, chunks: Sequence[Any]) -> Resolved:
        note = f"retrieval failed, and the answer is given without a drafter: {type(error).__name__}: {error}"
        warnings.warn(note, RapidWarning, stacklevel=2)
        if self.whole:
            return Resolved(LongContext(documents=self.whole, chunks=()), (note,), plain=True)
        if not chunks:
            return Resolved(None, (note,), plain=True)
        passages = [Passage(self.hook.passage(chunk).text) for chunk in chunks]
        return Resolved(self._context(passages, []), (note,), plain=True)


def source_of(value: object) -> str:
    """The id of a document as text, empty for none: some stores keep a missing value as the word."""
    return "" if value in (None, "", "None") else str(value)


def _strange(passages: Sequence[Passage], documents: dict[str, Document]) -> list[Passage]:
    """Passages that are not in their document, whatever the white space."""
    texts = {source: "".join(document.text.split()) for source, document in documents.items()}
    return [
        passage
        for passage in passages
        if passage.source in texts and "".join(passage.text.split()) not in texts[passage.source]
    ]


def _cover(passages: Sequence[Passage], documents: Sequence[Document]) -> bool:
    """Whether passages are nearly all that their documents hold."""
    texts = dict.fromkeys(passage.text for passage in passages)
    return sum(map(len, texts)) >= NEARLY_ALL * sum(len(document.text) for document in documents)


def check_count(name: str, value: object) -> None:
    """Raise `OptionError` unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_on_retrieval_error(value: object) -> None:
    """Raise `OptionError` unless it is one of the two ways, or None for the chat model's own."""
    if value not in ("raise", "plain", None):
        raise OptionError(f"on_retrieval_error must be 'raise' or 'plain', got {value!r}")
