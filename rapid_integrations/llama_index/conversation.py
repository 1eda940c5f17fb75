"""The documents of a conversation: each stays where it came in, so that the next turn goes on in the cache."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from llama_index.core.schema import MetadataMode, NodeWithScore

from rapid_core import Document, LongContext, LongHistory
from rapid_integrations.llama_index.documents import Documents
from rapid_integrations.llama_index.retrieval import NodeHook
from rapid_integrations.messages import PLACE
from rapid_integrations.search import Fetched


class Conversation:
    """The documents that a conversation has read, by their ids, with their places in the prompt."""

    def __init__(self) -> None:
        self._kept: dict[str, Document] = {}

    def placed(self, id_: str, document: Document) -> Document:
        """A document at the place where it came in; one that is new comes behind all others."""
        known = self._kept.get(id_)
        position = len(self._kept) if known is None else known.position
        self._kept[id_] = replace(document, position=position)
        return self._kept[id_]

    def with_earlier(self, context: LongContext | LongHistory | None) -> LongContext | None:
        """What one turn found, and behind it in rank the documents of earlier turns, the newest first."""
        found: Sequence[Document] = ()
        if isinstance(context, LongContext):
            # Nodes without a document stand for themselves.
            found = context.documents or (Document(context.text, heading=False),)
        known = list(self._kept.values())
        own = [document if document in known else self.placed(document.text, document) for document in found]
        earlier = [document for document in self._kept.values() if document not in own]
        if not own and not earlier:
            return None
        base = context if isinstance(context, LongContext) else LongContext(chunks=(), place=PLACE)
        return replace(base, text="", documents=(*own, *reversed(earlier)))

    def forget(self) -> None:
        """Begin anew."""
        self._kept.clear()


class ConversationHook(NodeHook):
    """The hook of one turn: its documents stand where the conversation has them, and `nodes` are what was found.

    earlier: nodes to go on with where nothing is found.
    """

    def __init__(
        self,
        conversation: Conversation,
        documents: Documents,
        get_nodes: Callable[[str], list[NodeWithScore]],
        aget_nodes: Callable[[str], Awaitable[list[NodeWithScore]]],
        earlier: list[NodeWithScore],
        *,
        drafter_metadata_mode: MetadataMode,
    ) -> None:
        super().__init__(documents, drafter_metadata_mode=drafter_metadata_mode)
        self._conversation, self._earlier = conversation, earlier
        self._get_nodes, self._aget_nodes = get_nodes, aget_nodes
        self.nodes: list[NodeWithScore] = []

    def retrieve(self, query: str) -> Sequence[NodeWithScore]:
        """The nodes that the chat engine finds for a message."""
        self.nodes = self._get_nodes(query) or self._earlier
        return self.nodes

    async def aretrieve(self, query: str) -> Sequence[NodeWithScore]:
        """`retrieve` for an event loop."""
        self.nodes = await self._aget_nodes(query) or self._earlier
        return self.nodes

    def fetch(self, chunks: Sequence[NodeWithScore]) -> Fetched:
        """The documents at their places."""
        fetched = super().fetch(chunks)
        return replace(
            fetched,
            documents={
                id_: None if document is None else self._conversation.placed(id_, document)
                for id_, document in fetched.documents.items()
            },
        )
