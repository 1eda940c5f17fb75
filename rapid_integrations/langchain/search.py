"""A retriever and the documents behind its chunks, asked once a call."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever

from rapid_core import Document as WholeDocument
from rapid_core import InputError, LongContext, LongHistory, OptionError
from rapid_integrations.contexts import Passage, RapidWarning, long_context
from rapid_integrations.langchain.messages import text_of

OnRetrievalError = Literal["raise", "plain"]
DocumentLoader = Callable[[Any], "str | Document | None"]

DEFAULT_ID_KEY = "source"
NO_DOCUMENTS = (
    "no whole documents: the target reads only the chunks that were retrieved; give docstore= or document_loader="
)
NOTHING_FOUND = "the retriever returned nothing: plain decoding, without a document and without a drafter"


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the engine is given: a context or none, sentences for the statistics, and whether nobody shall draft."""

    context: LongContext | LongHistory | None
    notes: Sequence[str] = ()
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Hook:
    """A retriever for the chunks, and where the documents that they come from are kept.

    retriever: None where the chunks are already there. docstore: anything with `mget(ids)`.
    loader: gives a document for its id. id_key: the key of a chunk's metadata that holds the id.
    warning: said with every use. name: its own, for its repr.
    """

    retriever: BaseRetriever | None = None
    docstore: Any = None
    loader: DocumentLoader | None = None
    id_key: str = DEFAULT_ID_KEY
    warning: str = ""
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __repr__(self) -> str:
        return f"Hook({self.name})"

    @property
    def knows_documents(self) -> bool:
        """Whether there is anybody to ask for whole documents."""
        return self.docstore is not None or self.loader is not None

    def fetch(self, sources: Sequence[Any]) -> list[Any]:
        """The documents of some ids, None for one that is missing."""
        if self.docstore is not None:
            return list(self.docstore.mget(list(sources)))
        return [self.loader(source) if self.loader is not None else None for source in sources]

    async def afetch(self, sources: Sequence[Any]) -> list[Any]:
        """`fetch` for an event loop."""
        if self.docstore is not None and hasattr(self.docstore, "amget"):
            return list(await self.docstore.amget(list(sources)))
        return await asyncio.to_thread(self.fetch, sources)


def _content(document: Document) -> str:
    return document.page_content


@dataclass(frozen=True, slots=True)
class Search:
    """A question that a hook has yet to answer.

    chunks: where they were retrieved before, best first. whole: the documents, where they are
    known. written: how a document stands in the prompt, heading: whether its id stands before
    it; place, separator: see `LongContext`.
    """

    hook: Hook
    query: str = ""
    chunks: tuple[Document, ...] | None = None
    whole: tuple[WholeDocument, ...] = ()
    place: str = ""
    separator: str = "\n\n"
    written: Callable[[Document], str] = _content
    heading: bool = True
    on_error: OnRetrievalError | None = None

    def run(self, messages: Sequence[BaseMessage], on_error: OnRetrievalError) -> Resolved:
        """Ask for chunks and documents. What is raised is raised, or becomes plain decoding."""
        chunks = self.chunks
        try:
            if chunks is None and self.hook.retriever is not None:
                chunks = tuple(self.hook.retriever.invoke(self.query or last_question(messages)))
            sources = self._sources(chunks or ())
            return self._made(chunks or (), sources, self.hook.fetch(list(sources.values())))
        except Exception as error:
            if (self.on_error or on_error) == "raise":
                raise
            return self._without_drafter(error, chunks or ())

    async def arun(self, messages: Sequence[BaseMessage], on_error: OnRetrievalError) -> Resolved:
        """`run` for an event loop."""
        chunks = self.chunks
        try:
            if chunks is None and self.hook.retriever is not None:
                chunks = tuple(await self.hook.retriever.ainvoke(self.query or last_question(messages)))
            sources = self._sources(chunks or ())
            return self._made(chunks or (), sources, await self.hook.afetch(list(sources.values())))
        except Exception as error:
            if (self.on_error or on_error) == "raise":
                raise
            return self._without_drafter(error, chunks or ())

    def _sources(self, chunks: Sequence[Document]) -> dict[str, Any]:
        """The ids of the documents to fetch, as text and as they are, in the order of their best chunk."""
        found: dict[str, Any] = {}
        for chunk in () if self.whole else chunks:
            if source := self._source(chunk):
                found.setdefault(source, chunk.metadata.get(self.hook.id_key))
        return found

    def _source(self, chunk: Document) -> str:
        source = chunk.metadata.get(self.hook.id_key)
        # Some stores keep a missing value as text.
        return "" if source in (None, "", "None") else str(source)

    def _made(self, chunks: Sequence[Document], sources: Iterable[str], fetched: Sequence[Any]) -> Resolved:
        if self.whole:
            return self._of_known_documents(chunks)
        if not any(chunk.page_content.strip() for chunk in chunks):
            return Resolved(None, (NOTHING_FOUND,), plain=True)
        # An empty document is as good as none.
        pairs = [(source, value if _is_there(value) else None) for source, value in zip(sources, fetched, strict=True)]
        found = [(source, self._whole(value, source, chunks)) for source, value in pairs if value is not None]
        notes = self._notes(chunks, [source for source, value in pairs if value is None])
        passages = [Passage(chunk.page_content, self._source(chunk)) for chunk in chunks]
        return Resolved(self._context(passages, found), tuple(notes))

    def _of_known_documents(self, chunks: Sequence[Document]) -> Resolved:
        if not chunks:
            return Resolved(LongContext(documents=self.whole, chunks=(), query=self.query))
        named = [(str(position), document) for position, document in enumerate(self.whole)]
        passages = [
            Passage(chunk.page_content, next((name for name, known in named if chunk.page_content in known.text), ""))
            for chunk in chunks
        ]
        return Resolved(self._context(passages, named))

    def _context(self, passages: Sequence[Passage], documents: Sequence[tuple[str, WholeDocument]]) -> LongContext:
        return long_context(passages, documents, query=self.query, place=self.place, separator=self.separator)

    def _whole(self, value: Any, source: str, chunks: Sequence[Document]) -> WholeDocument:
        """A fetched document as it stands in the prompt; text alone has its first chunk's metadata."""
        if isinstance(value, (str, bytes)):
            text = value.decode() if isinstance(value, bytes) else value
            first = next(chunk for chunk in chunks if self._source(chunk) == source)
            value = Document(text, metadata=first.metadata)
        if not isinstance(value, Document):
            raise InputError(f"a document must be text or a LangChain Document, got {type(value).__name__}")
        return WholeDocument(self.written(value), " ".join(source.split()), self.heading)

    def _notes(self, chunks: Sequence[Document], missing: Sequence[str]) -> list[str]:
        """What the caller should know, as warnings and for the statistics."""
        notes = [self.hook.warning] if self.hook.warning else []
        if not self.hook.knows_documents:
            notes.append(NO_DOCUMENTS)
        elif missing:
            listed = ", ".join(map(repr, missing))
            notes.append(f"no document was found for {listed}; check the docstore, or document_loader")
        loose = sum(not self._source(chunk) for chunk in chunks)
        if loose and self.hook.knows_documents:
            notes.append(
                f"{loose} of {len(chunks)} chunks name no document under the metadata key {self.hook.id_key!r}"
            )
        for note in notes:
            warnings.warn(note, RapidWarning, stacklevel=2)
        return notes

    def _without_drafter(self, error: Exception, chunks: Sequence[Document]) -> Resolved:
        note = f"retrieval failed, and the answer is given without a drafter: {type(error).__name__}: {error}"
        warnings.warn(note, RapidWarning, stacklevel=2)
        if self.whole:
            return Resolved(LongContext(documents=self.whole, chunks=()), (note,), plain=True)
        if not chunks:
            return Resolved(None, (note,), plain=True)
        passages = [Passage(chunk.page_content) for chunk in chunks]
        return Resolved(self._context(passages, []), (note,), plain=True)


def make_hook(
    retriever: BaseRetriever, docstore: Any = None, loader: DocumentLoader | None = None, id_key: str | None = None
) -> Hook:
    """A retriever with its documents; one that keeps both is asked for its chunks."""
    check_retriever(retriever)
    check_documents(docstore, loader)
    store = getattr(retriever, "vectorstore", None)
    own = getattr(retriever, "docstore", None)
    if store is None or own is None:
        return Hook(retriever, docstore, loader, id_key or DEFAULT_ID_KEY)
    # Such a retriever returns documents; the drafter reads the chunks that led to them.
    kind = getattr(retriever, "search_type", "similarity")
    chunks = store.as_retriever(
        search_type=getattr(kind, "value", kind), search_kwargs=dict(getattr(retriever, "search_kwargs", {}))
    )
    warning = ""
    if getattr(retriever, "parent_splitter", None) is not None:
        warning = (
            "the documents of a ParentDocumentRetriever with a parent_splitter are parts, and the target reads no more "
            "than those; leave parent_splitter out to keep them whole"
        )
    chosen = id_key or str(getattr(retriever, "id_key", DEFAULT_ID_KEY))
    return Hook(chunks, None if loader else docstore or own, loader, chosen, warning)


def last_question(messages: Sequence[BaseMessage]) -> str:
    """What to search for: the last human message, or the last one of all."""
    chosen = [message for message in messages if isinstance(message, HumanMessage)] or messages
    return text_of(chosen[-1]) if chosen else ""


def check_retriever(retriever: object) -> BaseRetriever:
    """Raise `InputError` for what is no retriever of LangChain's."""
    if not isinstance(retriever, BaseRetriever):
        raise InputError(
            f"a retriever must be a LangChain BaseRetriever, got {type(retriever).__name__}; use from_vector_store for "
            "a store"
        )
    return retriever


def check_documents(docstore: Any, loader: object) -> None:
    """Raise `InputError` where documents could not be fetched."""
    if docstore is not None and not hasattr(docstore, "mget"):
        raise InputError(f"a docstore must have mget(ids), got {type(docstore).__name__}; use document_loader=")
    if loader is not None and not callable(loader):
        raise InputError(f"document_loader must be callable with a document's id, got {type(loader).__name__}")
    if docstore is not None and loader is not None:
        raise InputError("documents come from docstore= or from document_loader=, got both")


def check_count(name: str, value: object) -> None:
    """Raise `OptionError` unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_on_retrieval_error(value: object) -> None:
    """Raise `OptionError` unless it is one of the two ways, or None for the chat model's own."""
    if value not in ("raise", "plain", None):
        raise OptionError(f"on_retrieval_error must be 'raise' or 'plain', got {value!r}")


def _is_there(value: Any) -> bool:
    if isinstance(value, Document):
        return bool(value.page_content.strip())
    return bool(value.strip()) if isinstance(value, str | bytes) else value is not None


def to_document(value: str | Document) -> WholeDocument:
    """A whole document of ours; raises `InputError` for what is none."""
    if isinstance(value, str):
        return WholeDocument(value)
    if isinstance(value, Document):
        name = str(value.metadata.get(DEFAULT_ID_KEY) or value.id or "")
        return WholeDocument(value.page_content, " ".join(name.split()))
    raise InputError(f"a document must be text or a LangChain Document, got {type(value).__name__}")
