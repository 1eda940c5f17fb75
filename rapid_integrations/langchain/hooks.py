"""LangChain's retrievers and docstores, as the search asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from rapid_core import Document as WholeDocument
from rapid_core import InputError
from rapid_integrations.contexts import Passage
from rapid_integrations.search import Fetched, Hook, source_of

DocumentLoader = Callable[[Any], "str | Document | None"]

DEFAULT_ID_KEY = "source"


def _content(document: Document) -> str:
    return document.page_content


class LangChainHook(Hook):
    """A retriever for the chunks, and where the documents that they come from are kept.

    retriever: None where the chunks are already there. docstore: anything with `mget(ids)`.
    loader: gives a document for its id. id_key: the key of a chunk's metadata that holds the id.
    written: how a document stands in the prompt; heading: whether its id stands before it.
    """

    remedy = "give docstore= or document_loader=, or check the one that is given"

    def __init__(
        self,
        retriever: BaseRetriever | None = None,
        docstore: Any = None,
        loader: DocumentLoader | None = None,
        id_key: str = DEFAULT_ID_KEY,
        *,
        warning: str = "",
        written: Callable[[Document], str] = _content,
        heading: bool = True,
    ) -> None:
        super().__init__()
        self._retriever, self._docstore, self._loader = retriever, docstore, loader
        self._id_key, self._written, self._heading = id_key, written, heading
        self.warning = warning
        self.naming = f"under the metadata key {id_key!r}"

    @property
    def knows_documents(self) -> bool:
        """Whether there is anybody to ask for whole documents."""
        return self._docstore is not None or self._loader is not None

    def retrieve(self, query: str) -> Sequence[Document]:
        """The retriever's documents, which are chunks here."""
        return [] if self._retriever is None else self._retriever.invoke(query)

    async def aretrieve(self, query: str) -> Sequence[Document]:
        """`retrieve` for an event loop."""
        return [] if self._retriever is None else await self._retriever.ainvoke(query)

    def passage(self, chunk: Document) -> Passage:
        """A chunk's text and the id of its document."""
        return Passage(chunk.page_content, self._source(chunk))

    def fetch(self, chunks: Sequence[Document]) -> Fetched:
        """The documents of some chunks, asked for once each."""
        ids = self._ids(chunks)
        if self._docstore is not None:
            return self._read(chunks, ids, self._docstore.mget(list(ids.values())))
        values = [self._loader(id_) if self._loader is not None else None for id_ in ids.values()]
        return self._read(chunks, ids, values)

    async def afetch(self, chunks: Sequence[Document]) -> Fetched:
        """`fetch` for an event loop."""
        if self._docstore is not None and hasattr(self._docstore, "amget"):
            ids = self._ids(chunks)
            return self._read(chunks, ids, await self._docstore.amget(list(ids.values())))
        return await asyncio.to_thread(self.fetch, chunks)

    def _ids(self, chunks: Sequence[Document]) -> dict[str, Any]:
        """The ids of documents, as text and as they are, in the order of their best chunk."""
        found: dict[str, Any] = {}
        for chunk in chunks:
            if source := self._source(chunk):
                found.setdefault(source, chunk.metadata.get(self._id_key))
        return found

    def _source(self, chunk: Document) -> str:
        return source_of(chunk.metadata.get(self._id_key))

    def _read(self, chunks: Sequence[Document], ids: dict[str, Any], values: Sequence[Any]) -> Fetched:
        pairs = zip(ids, values, strict=True)
        # An empty document is as good as none.
        return Fetched({id_: self._whole(value, id_, chunks) if _is_there(value) else None for id_, value in pairs})

    def _whole(self, value: Any, source: str, chunks: Sequence[Document]) -> WholeDocument:
        """A fetched document as it stands in the prompt; text alone has its first chunk's metadata."""
        if isinstance(value, (str, bytes)):
            text = value.decode() if isinstance(value, bytes) else value
            first = next(chunk for chunk in chunks if self._source(chunk) == source)
            value = Document(text, metadata=first.metadata)
        if not isinstance(value, Document):
            raise InputError(f"a document must be text or a LangChain Document, got {type(value).__name__}")
        return WholeDocument(self._written(value), " ".join(source.split()), self._heading)


def make_hook(
    retriever: BaseRetriever,
    docstore: Any = None,
    loader: DocumentLoader | None = None,
    id_key: str | None = None,
    *,
    written: Callable[[Document], str] = _content,
    heading: bool = True,
) -> LangChainHook:
    """A retriever with its documents; one that keeps both is asked for its chunks."""
    check_retriever(retriever)
    check_documents(docstore, loader)
    store = getattr(retriever, "vectorstore", None)
    own = getattr(retriever, "docstore", None)
    if store is None or own is None:
        return LangChainHook(retriever, docstore, loader, id_key or DEFAULT_ID_KEY, written=written, heading=heading)
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
    return LangChainHook(
        chunks,
        None if loader else docstore or own,
        loader,
        id_key or str(getattr(retriever, "id_key", DEFAULT_ID_KEY)),
        warning=warning,
        written=written,
        heading=heading,
    )


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


def to_document(value: str | Document) -> WholeDocument:
    """A whole document of ours; raises `InputError` for what is none."""
    if isinstance(value, str):
        return WholeDocument(value)
    if isinstance(value, Document):
        name = str(value.metadata.get(DEFAULT_ID_KEY) or value.id or "")
        return WholeDocument(value.page_content, " ".join(name.split()))
    raise InputError(f"a document must be text or a LangChain Document, got {type(value).__name__}")


def _is_there(value: Any) -> bool:
    if isinstance(value, Document):
        return bool(value.page_content.strip())
    return bool(value.strip()) if isinstance(value, str | bytes) else value is not None
