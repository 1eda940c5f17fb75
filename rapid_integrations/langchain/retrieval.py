"""`RapidContext` for LangChain, and the functions that make one of a retriever or a store."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore

from rapid_core import Document as WholeDocument
from rapid_core import InputError
from rapid_integrations.langchain.hooks import DocumentLoader, LangChainHook, check_retriever, make_hook, to_document
from rapid_integrations.rapid_context import BaseContext
from rapid_integrations.search import OnRetrievalError, Search, check_count, check_on_retrieval_error

DEFAULT_K = 10


class RapidContext(BaseContext):
    """The long context of one call, for `chat.bind(rapid_context=…)`; its texts may be LangChain's documents."""

    @staticmethod
    def _to_document(value: str | Document) -> WholeDocument:
        return to_document(value)

    @staticmethod
    def _to_text(chunk: str | Document) -> str:
        if isinstance(chunk, (str, Document)):
            return chunk if isinstance(chunk, str) else chunk.page_content
        raise InputError(f"a chunk must be text or a LangChain Document, got {type(chunk).__name__}")

    @staticmethod
    def _to_hook(retriever: Any) -> LangChainHook:
        return LangChainHook(check_retriever(retriever))


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
