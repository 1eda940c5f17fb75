"""`RapidContext` for LlamaIndex, and the hook that asks its retrievers and stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle

from rapid_core import Document, InputError
from rapid_integrations.contexts import Passage
from rapid_integrations.llama_index.documents import DocumentLoader, Documents
from rapid_integrations.rapid_context import BaseContext
from rapid_integrations.search import Fetched, Hook, OnRetrievalError, Search, check_on_retrieval_error


class NodeHook(Hook):
    """A retriever for the nodes, and where the documents that they come from are kept.

    retriever: None where the nodes are already there. drafter_metadata_mode: which metadata the
    drafter reads before a node's text.
    """

    warns_of_nothing = True
    reads_loose = True
    naming = "in ref_doc_id, or under the metadata key that id_key= says"
    remedy = "pass index=, docstore=, vector_store= or document_loader=, or check the one that is given"

    def __init__(
        self,
        documents: Documents,
        retriever: BaseRetriever | None = None,
        *,
        postprocessors: Sequence[BaseNodePostprocessor] = (),
        drafter_metadata_mode: MetadataMode = MetadataMode.LLM,
    ) -> None:
        super().__init__()
        self._documents, self._retriever, self._postprocessors = documents, retriever, postprocessors
        self._mode = drafter_metadata_mode

    @property
    def knows_documents(self) -> bool:
        """Whether there is anybody to ask for whole documents."""
        return self._documents.knows_documents

    def retrieve(self, query: str) -> Sequence[NodeWithScore]:
        """The retriever's nodes, through the postprocessors."""
        nodes = [] if self._retriever is None else self._retriever.retrieve(query)
        for postprocessor in self._postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=QueryBundle(query))
        return nodes

    async def aretrieve(self, query: str) -> Sequence[NodeWithScore]:
        """`retrieve` for an event loop."""
        nodes = [] if self._retriever is None else await self._retriever.aretrieve(query)
        for postprocessor in self._postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=QueryBundle(query))
        return nodes

    def passage(self, chunk: NodeWithScore) -> Passage:
        """A node's own text behind its metadata, and the id of its document."""
        node = chunk.node
        heading = "" if self._mode == MetadataMode.NONE else node.get_metadata_str(self._mode).strip()
        return Passage(node.get_content(MetadataMode.NONE), self._documents.source(node), heading)

    def fetch(self, chunks: Sequence[NodeWithScore]) -> Fetched:
        """The documents of some nodes."""
        return self._documents.fetch(chunks)


class RapidContext(BaseContext):
    """The long context of one call, for `llm.chat(messages, rapid_context=…)`; its texts may be LlamaIndex's nodes."""

    @staticmethod
    def _to_document(value: str | BaseNode) -> Document:
        if isinstance(value, str):
            return Document(value)
        if isinstance(value, BaseNode):
            return Document(value.get_content(MetadataMode.LLM), " ".join(value.node_id.split()), heading=False)
        raise InputError(f"a document must be text or a LlamaIndex Document, got {type(value).__name__}")

    @staticmethod
    def _to_text(chunk: str | BaseNode | NodeWithScore) -> str:
        if isinstance(chunk, (BaseNode, NodeWithScore)):
            return chunk.get_content(metadata_mode=MetadataMode.LLM)
        if isinstance(chunk, str):
            return chunk
        raise InputError(f"a chunk must be text or a LlamaIndex node, got {type(chunk).__name__}")

    @staticmethod
    def _to_hook(retriever: Any) -> NodeHook:
        return NodeHook(Documents(), check_retriever(retriever), drafter_metadata_mode=MetadataMode.NONE)


def from_retriever(
    retriever: BaseRetriever,
    *,
    node_postprocessors: Sequence[BaseNodePostprocessor] = (),
    index: Any = None,
    docstore: Any = None,
    vector_store: Any = None,
    document_loader: DocumentLoader | None = None,
    id_key: str | None = None,
    metadata_mode: MetadataMode = MetadataMode.LLM,
    drafter_metadata_mode: MetadataMode = MetadataMode.LLM,
    query: str = "",
    on_retrieval_error: OnRetrievalError | None = None,
) -> RapidContext:
    """A context that asks the application's retriever at each call.

    Its nodes go to the drafter, their documents to the target: from `document_loader` (id to text
    or Document), from `docstore`, or rebuilt from the nodes of `vector_store`; of these the
    retriever's own, or those of `index`, unless given. id_key: a key of a node's metadata that names
    its document, such as "file_path" where every page was a document of its own. metadata_mode:
    which metadata the target reads at the top of a document, and drafter_metadata_mode the drafter
    before a node. on_retrieval_error: "plain" answers without a drafter, with a warning, where
    "raise" lets the retriever's error through. Raises `InputError` for what is no retriever.
    """
    check_on_retrieval_error(on_retrieval_error)
    documents = Documents(
        index=index,
        retriever=check_retriever(retriever),
        docstore=docstore,
        vector_store=vector_store,
        document_loader=document_loader,
        id_key=id_key,
        metadata_mode=metadata_mode,
    )
    hook = NodeHook(
        documents, retriever, postprocessors=node_postprocessors, drafter_metadata_mode=drafter_metadata_mode
    )
    return RapidContext.of(Search(hook, query=query, on_error=on_retrieval_error))


def check_retriever(retriever: object) -> BaseRetriever:
    """Raise `InputError` for what is no retriever of LlamaIndex's."""
    if not isinstance(retriever, BaseRetriever):
        raise InputError(
            f"a retriever must be a LlamaIndex BaseRetriever, got {type(retriever).__name__}; an index gives one with "
            "as_retriever()"
        )
    return retriever
