"""What a conversation has read: its documents stay where they came in, so that the next turn goes on in the cache."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Self

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.schema import MetadataMode, NodeWithScore

from rapid_core import Document, LongContext, LongHistory
from rapid_integrations.contexts import Passage
from rapid_integrations.llama_index.documents import Documents
from rapid_integrations.llama_index.retrieval import NodeHook
from rapid_integrations.messages import PLACE
from rapid_integrations.search import Fetched

# Where turns have to go, so many go at once that the next ones find the rest in the cache.
KEPT_SHARE = 0.75


class Conversation:
    """The documents of a conversation by their ids, with their places in the prompt, and where its turns begin.

    A turn works on a copy, which takes its place when the turn has been answered: one that fails
    leaves nothing behind.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Document] = {}
        self._first: ChatMessage | None = None

    def copy(self) -> Self:
        """Another one that goes on from here."""
        made = type(self)()
        made._kept, made._first = dict(self._kept), self._first
        return made

    def __bool__(self) -> bool:
        return bool(self._kept)

    def placed(self, id_: str, document: Document) -> Document:
        """A document at the place where it came in; one that is new comes behind all others."""
        known = self._kept.get(id_)
        position = len(self._kept) if known is None else known.position
        self._kept[id_] = replace(document, position=position)
        return self._kept[id_]

    def with_earlier(
        self, context: LongContext | LongHistory | None, passages: Sequence[Passage]
    ) -> LongContext | None:
        """What one turn found, and behind it in rank the documents of earlier turns, the newest first.

        passages: those that the turn found; where none has a document, they stand for themselves.
        """
        found: Sequence[Document] = ()
        if isinstance(context, LongContext):
            alone = dict.fromkeys(passage.written for passage in passages if passage.text.strip())
            found = context.documents or [Document(text, heading=False) for text in alone]
        known = list(self._kept.values())
        own = [document if document in known else self.placed(document.text, document) for document in found]
        earlier = [document for document in self._kept.values() if document not in own]
        if not own and not earlier:
            return None
        base = context if isinstance(context, LongContext) else LongContext(chunks=(), place=PLACE)
        return replace(base, text="", documents=(*own, *reversed(earlier)))

    def newest(
        self, history: Sequence[ChatMessage], room: int, count: Callable[[Sequence[ChatMessage]], int]
    ) -> list[ChatMessage]:
        """The turns that fit into `room` tokens, as `count` counts them: those of the last time, while they do."""
        begins = history.index(self._first) if self._first in history else 0
        # Where there is no room at all, the engine says why.
        if room > 0 and count(history[begins:]) > room:
            turns = [place for place, message in enumerate(history) if message.role == MessageRole.USER]
            later = [place for place in turns if place > begins]
            begins = next((place for place in later if count(history[place:]) <= room * KEPT_SHARE), len(history))
        self._first = history[begins] if 0 < begins < len(history) else None
        return list(history[begins:])


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
        self.conversation, self._earlier = conversation, earlier
        self._get_nodes, self._aget_nodes = get_nodes, aget_nodes
        self.nodes: list[NodeWithScore] = []
        self.failed = True
        if conversation:
            self.nothing_found = "the retriever returned nothing: the documents of earlier turns are read"

    def retrieve(self, query: str) -> Sequence[NodeWithScore]:
        """The nodes that the chat engine finds for a message."""
        return self._found(self._get_nodes(query))

    async def aretrieve(self, query: str) -> Sequence[NodeWithScore]:
        """`retrieve` for an event loop."""
        return self._found(await self._aget_nodes(query))

    def _found(self, nodes: list[NodeWithScore]) -> list[NodeWithScore]:
        self.nodes = nodes or self._earlier
        return self.nodes

    def fetch(self, chunks: Sequence[NodeWithScore]) -> Fetched:
        """The documents at their places."""
        fetched = super().fetch(chunks)
        self.failed = False
        return replace(
            fetched,
            documents={
                id_: None if document is None else self.conversation.placed(id_, document)
                for id_, document in fetched.documents.items()
            },
        )
