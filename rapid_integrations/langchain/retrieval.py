"""The long context of a call: given whole, or found by the application's own retriever."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore

from rapid_core import Chunk, InputError, LongContext
from rapid_integrations.langchain.search import (
    DocumentLoader,
    Hook,
    OnRetrievalError,
    Resolved,
    Search,
    check_count,
    check_on_retrieval_error,
    check_retriever,
    make_hook,
    to_document,
)

DEFAULT_K = 10


class RapidContext:
    """The long context of one call, for `chat.bind(rapid_context=…)`.

    text, or documents (best-ranked first): what the target reads. chunks: what the drafter reads
    of it; without them passages are retrieved on the fly. query: what to search for, the last
    human message unless given. retriever: finds the chunks at each call; without text and
    documents see `from_retriever`. on_retrieval_error: the chat model's unless given. Its repr is
    a hash, so that caches and traces hold no documents; the answers to a retriever's context are
    cached by messages, also when its store changes.
    """

    def __init__(
        self,
        text: str = "",
        *,
        documents: Sequence[str | Document] = (),
        chunks: Sequence[str | Document] | None = None,
        query: str = "",
        retriever: BaseRetriever | None = None,
        on_retrieval_error: OnRetrievalError | None = None,
    ) -> None:
        """Raises `InputError` where there is nothing to read."""
        check_on_retrieval_error(on_retrieval_error)
        if not text and not documents:
            raise InputError("a context needs text= or documents=, got none; see from_retriever, or leave it out")
        if (text and documents) or (chunks is not None and retriever is not None):
            raise InputError("a context takes text= or documents=, and chunks= or retriever=, got both")
        whole = [to_document(document) for document in (documents or [text])]
        if retriever is not None:
            hook = Hook(check_retriever(retriever))
            self._source: Resolved | Search = Search(hook, query=query, whole=tuple(whole), on_error=on_retrieval_error)
            return
        given = None if chunks is None else tuple(Chunk(_text(chunk)) for chunk in chunks)
        self._source = Resolved(LongContext(documents=tuple(whole), chunks=given, query=query))

    @classmethod
    def of(cls, source: Resolved | Search) -> RapidContext:
        """A context of something that is already known, or that has yet to be searched."""
        made = cls.__new__(cls)
        made._source = source
        return made

    def __repr__(self) -> str:
        digest = hashlib.sha256(repr(self._source).encode("utf-8", "surrogatepass")).hexdigest()
        return f"RapidContext({digest[:32]})"

    def resolve(self, messages: Sequence[BaseMessage], on_error: OnRetrievalError) -> Resolved:
        """What the engine is given; a retriever is asked now."""
        return self._source if isinstance(self._source, Resolved) else self._source.run(messages, on_error)

    async def aresolve(self, messages: Sequence[BaseMessage], on_error: OnRetrievalError) -> Resolved:
        """`resolve` for an event loop."""
        return self._source if isinstance(self._source, Resolved) else await self._source.arun(messages, on_error)


def from_retriever(
    retriever: BaseRetriever,
    *,
    docstore: Any = None,
    document_loader: DocumentLoader | None = None,
    id_key: str | None = None,
    query: str = "",
    on_retrieval_error: OnRetrievalError | None = None,
) -> RapidContext:
    """A context that asks the application's retriever at each call.

    Its chunks go to the drafter, their documents to the target. A `ParentDocumentRetriever` or
    `MultiVectorRetriever` has both sides. Any other retriever needs `docstore` (with `mget(ids)`) or
    `document_loader` (id to text or Document), and id_key, the key of a chunk's metadata that holds
    its document's id: "source" unless given. Without either the chunks are all that the target
    reads, which a warning says. on_retrieval_error: "plain" answers without a drafter, with a
    warning, where "raise" lets the retriever's error through. Raises `InputError` for what is no
    retriever.
    """
    check_on_retrieval_error(on_retrieval_error)
    hook = make_hook(retriever, docstore, document_loader, id_key)
    return RapidContext.of(Search(hook, query=query, on_error=on_retrieval_error))


def from_vector_store(
    store: VectorStore,
    *,
    k: int = DEFAULT_K,
    search_kwargs: dict[str, Any] | None = None,
    docstore: Any = None,
    document_loader: DocumentLoader | None = None,
    id_key: str | None = None,
    query: str = "",
    on_retrieval_error: OnRetrievalError | None = None,
) -> RapidContext:
    """`from_retriever` for a vector store: its `k` best chunks, whatever scores it gives them."""
    if not isinstance(store, VectorStore):
        raise InputError(f"from_vector_store needs a LangChain VectorStore, got {type(store).__name__}")
    check_count("k", k)
    return from_retriever(
        store.as_retriever(search_kwargs={"k": k, **(search_kwargs or {})}),
        docstore=docstore,
        document_loader=document_loader,
        id_key=id_key,
        query=query,
        on_retrieval_error=on_retrieval_error,
    )


def _text(chunk: str | Document) -> str:
    if isinstance(chunk, (str, Document)):
        return chunk if isinstance(chunk, str) else chunk.page_content
    raise InputError(f"a chunk must be text or a LangChain Document, got {type(chunk).__name__}")
