"""`RapidContextChatEngine`: a chat over documents, whose turns go on in the cache.

Longer than other files: two constructors name all options, and each way to ask is there twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    MessageRole,
)
from llama_index.core.callbacks import CallbackManager, trace_method
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.chat_engine.types import AgentChatResponse, StreamingAgentChatResponse
from llama_index.core.memory import BaseMemory
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import MetadataMode, NodeWithScore
from llama_index.core.settings import Settings
from llama_index.core.tools import ToolOutput
from llama_index.core.types import Thread

from rapid_core import InputError, LongContext, LongHistory
from rapid_integrations.llama_index.conversation import Conversation, ConversationHook
from rapid_integrations.llama_index.documents import DocumentLoader, Documents
from rapid_integrations.llama_index.llm import RapidLLM
from rapid_integrations.llama_index.memories import aall_of, all_of, key_of, left_out, memory_of, said
from rapid_integrations.llama_index.retrieval import RapidContext, check_retriever
from rapid_integrations.llama_index.synthesizer import cost_of, rapid_llm
from rapid_integrations.messages import PLACE
from rapid_integrations.search import (
    OnRetrievalError,
    Resolved,
    Search,
    check_count,
    check_on_retrieval_error,
)


@dataclass
class RapidStreamingResponse(StreamingAgentChatResponse):
    """A streaming response; `metadata["rapid"]` holds the statistics when the stream has ended."""

    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one turn asks, the nodes that were found for it, and what the conversation is when it is answered."""

    messages: list[ChatMessage]
    context: RapidContext
    nodes: list[NodeWithScore]
    conversation: Conversation


class RapidContextChatEngine(ContextChatEngine):
    """A `ContextChatEngine` whose target reads whole documents and the whole history.

    The documents of the conversation stand in the system message, in the order in which they came
    in, and turns follow: the next turn goes on in the cache. The drafter reads the nodes that were
    found for the message, and of turns that are long all together the newest ones and what
    retrieval finds in the others. Oldest turns that the target's window has no room for are left
    out with a warning. Make it with `from_defaults`.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        llm: RapidLLM,
        memory: BaseMemory,
        prefix_messages: list[ChatMessage],
        node_postprocessors: list[BaseNodePostprocessor] | None = None,
        context_template: str | PromptTemplate | None = None,
        context_refine_template: str | PromptTemplate | None = None,
        callback_manager: CallbackManager | None = None,
        *,
        documents: Documents | None = None,
        drafter_metadata_mode: MetadataMode = MetadataMode.LLM,
        newest: int | None = None,
        on_retrieval_error: OnRetrievalError | None = None,
    ) -> None:
        if context_refine_template is not None:
            raise InputError("context_refine_template is for chunks that do not fit, and here is no such; leave it out")
        check_on_retrieval_error(on_retrieval_error)
        if newest is not None:
            check_count("newest", newest)
        self._rapid, output_cls = rapid_llm(llm, "RapidContextChatEngine")
        if output_cls is not None:
            raise InputError("a chat answers in text, and llm= is a StructuredLLM; give the RapidLLM in it")
        super().__init__(
            check_retriever(retriever),
            llm,
            memory,
            prefix_messages,
            node_postprocessors,
            context_template,
            None,
            callback_manager,
        )
        self._documents = documents or Documents(retriever=retriever)
        self._drafter_mode, self._on_error = drafter_metadata_mode, on_retrieval_error
        self._history = None if newest is None else LongHistory(newest=newest)
        self._conversation = Conversation()

    @classmethod
    def from_defaults(  # type: ignore[override] # a word that is unknown there is ignored, and here an error
        cls,
        retriever: BaseRetriever,
        chat_history: list[ChatMessage] | None = None,
        memory: BaseMemory | None = None,
        system_prompt: str | None = None,
        prefix_messages: list[ChatMessage] | None = None,
        node_postprocessors: list[BaseNodePostprocessor] | None = None,
        context_template: str | PromptTemplate | None = None,
        context_refine_template: str | PromptTemplate | None = None,
        llm: RapidLLM | None = None,
        *,
        index: Any = None,
        docstore: Any = None,
        vector_store: Any = None,
        document_loader: DocumentLoader | None = None,
        id_key: str | None = None,
        metadata_mode: MetadataMode = MetadataMode.LLM,
        drafter_metadata_mode: MetadataMode = MetadataMode.LLM,
        newest: int | None = None,
        on_retrieval_error: OnRetrievalError | None = None,
    ) -> Self:
        """An engine over a retriever, with a memory that counts the target's tokens.

        The first words are those of `ContextChatEngine`, and those about documents of
        `RapidSynthesizer`. newest: turns that the drafter reads as they are, also where the talk is
        short; None: two of a talk that is long, all of a short one. Raises `InputError`.
        """
        given: Any = Settings.llm if llm is None else llm
        rapid, _ = rapid_llm(given, "RapidContextChatEngine")
        if memory is not None and chat_history is not None:
            raise InputError(
                "a chat goes on with chat_history= or with memory=, got both; put the turns into the memory"
            )
        if system_prompt is not None:
            if prefix_messages is not None:
                raise InputError("a chat begins with system_prompt= or with prefix_messages=, got both")
            prefix_messages = [ChatMessage(role=MessageRole.SYSTEM, content=system_prompt)]
        return cls(
            retriever,
            given,
            memory or memory_of(rapid, chat_history),
            prefix_messages or [],
            node_postprocessors,
            context_template,
            context_refine_template,
            Settings.callback_manager,
            documents=Documents(
                index=index,
                retriever=retriever,
                docstore=docstore,
                vector_store=vector_store,
                document_loader=document_loader,
                id_key=id_key,
                metadata_mode=metadata_mode,
            ),
            drafter_metadata_mode=drafter_metadata_mode,
            newest=newest,
            on_retrieval_error=on_retrieval_error,
        )

    @trace_method("chat")
    def chat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> AgentChatResponse:
        """The answer to a message; statistics are in `metadata["rapid"]`."""
        turn = self._turn(message, chat_history, prev_chunks)
        response = self._rapid.chat(turn.messages, rapid_context=turn.context)
        self._conversation = turn.conversation
        self._memory.put(turn.messages[-1])
        self._memory.put(said(response))
        return _answered(turn, response)

    @trace_method("chat")
    async def achat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> AgentChatResponse:
        """`chat` for an event loop."""
        turn = await self._aturn(message, chat_history, prev_chunks)
        response = await self._rapid.achat(turn.messages, rapid_context=turn.context)
        self._conversation = turn.conversation
        await self._memory.aput(turn.messages[-1])
        await self._memory.aput(said(response))
        return _answered(turn, response)

    @trace_method("chat")
    def stream_chat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> StreamingAgentChatResponse:
        """`chat` as a stream, which a thread writes into the memory."""
        turn = self._turn(message, chat_history, prev_chunks)
        made = RapidStreamingResponse(sources=_sources(turn), source_nodes=turn.nodes)
        stream = self._rapid.stream_chat(turn.messages, rapid_context=turn.context)
        made.chat_stream = self._watched(stream, turn, made.metadata)
        self._memory.put(turn.messages[-1])
        thread = Thread(target=made.write_response_to_history, args=(self._memory,))
        made.write_response_to_history_thread = thread
        thread.start()
        return made

    @trace_method("chat")
    async def astream_chat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> StreamingAgentChatResponse:
        """`stream_chat` for an event loop, which a task writes into the memory."""
        turn = await self._aturn(message, chat_history, prev_chunks)
        made = RapidStreamingResponse(sources=_sources(turn), source_nodes=turn.nodes)
        stream = await self._rapid.astream_chat(turn.messages, rapid_context=turn.context)
        made.achat_stream = self._awatched(stream, turn, made.metadata)
        await self._memory.aput(turn.messages[-1])
        made.awrite_response_to_history_task = asyncio.create_task(made.awrite_response_to_history(self._memory))
        return made

    def reset(self) -> None:
        """Forget the turns, and the documents that were read for them."""
        super().reset()
        self._conversation = Conversation()

    def _turn(
        self, message: str, chat_history: list[ChatMessage] | None, prev_chunks: list[NodeWithScore] | None
    ) -> _Turn:
        if chat_history is not None:
            self._goes_on(chat_history, all_of(self._memory))
            self._memory.set(chat_history)
        hook = self._hook(prev_chunks)
        resolved = Search(hook, query=message, place=PLACE).run([], self._on_error_of())
        return self._made(message, hook, resolved, self._memory.get(input=message), all_of(self._memory))

    async def _aturn(
        self, message: str, chat_history: list[ChatMessage] | None, prev_chunks: list[NodeWithScore] | None
    ) -> _Turn:
        if chat_history is not None:
            self._goes_on(chat_history, await aall_of(self._memory))
            await self._memory.aset(chat_history)
        hook = self._hook(prev_chunks)
        resolved = await Search(hook, query=message, place=PLACE).arun([], self._on_error_of())
        history, kept = await self._memory.aget(input=message), await aall_of(self._memory)
        # What fits is counted by the model, which may have to be loaded.
        return await asyncio.to_thread(self._made, message, hook, resolved, history, kept)

    def _goes_on(self, given: Sequence[ChatMessage], kept: Sequence[ChatMessage]) -> None:
        """Forget the documents where a history is given that is another one's."""
        if not kept or list(map(key_of, given[: len(kept)])) != list(map(key_of, kept)):
            self._conversation = Conversation()

    def _hook(self, prev_chunks: list[NodeWithScore] | None) -> ConversationHook:
        return ConversationHook(
            self._conversation.copy(),
            self._documents,
            self._get_nodes,
            self._aget_nodes,
            prev_chunks or [],
            drafter_metadata_mode=self._drafter_mode,
        )

    def _on_error_of(self) -> OnRetrievalError:
        return self._on_error or self._rapid.on_retrieval_error

    def _made(
        self,
        message: str,
        hook: ConversationHook,
        resolved: Resolved,
        history: list[ChatMessage],
        kept: Sequence[ChatMessage],
    ) -> _Turn:
        conversation = hook.conversation
        context = conversation.with_earlier(resolved.context, [hook.passage(node) for node in hook.nodes])
        if context is not None:
            context = replace(context, history=self._history)
        beginning = self._beginning(with_documents=context is not None)
        asked = ChatMessage(role=MessageRole.USER, content=message)
        newest = conversation.newest(history, self._room([*beginning, asked], context), self._rapid.count_tokens)
        notes = [*resolved.notes, *left_out(newest, history, kept)]
        # With documents of earlier turns there is something to draft from.
        plain = resolved.plain and (hook.failed or context is None)
        found = RapidContext.of(Resolved(context, notes, plain))
        return _Turn([*beginning, *newest, asked], found, hook.nodes, conversation)

    def _room(self, messages: Sequence[ChatMessage], context: LongContext | None) -> int:
        """Tokens for turns, beside the answer, other messages and the best-ranked document; half the window at most."""
        metadata = self._rapid.metadata
        taken = self._rapid.count_tokens(messages)
        if context is not None:
            document = len(self._rapid.token_ids(context.documents[0].text))
            # One that has to be cut leaves as much as it takes.
            taken += document if self._rapid.fit == "error" else min(document, metadata.context_window // 2)
        return metadata.context_window - (metadata.num_output or 0) - taken

    def _watched(self, responses: ChatResponseGen, turn: _Turn, metadata: dict[str, Any]) -> ChatResponseGen:
        """A stream, at whose end the statistics are in the metadata and the turn has become the last one."""
        for response in responses:
            if response.raw is not None:
                metadata["rapid"] = cost_of(response)
            yield response
        self._conversation = turn.conversation

    async def _awatched(
        self, responses: ChatResponseAsyncGen, turn: _Turn, metadata: dict[str, Any]
    ) -> ChatResponseAsyncGen:
        async for response in responses:
            if response.raw is not None:
                metadata["rapid"] = cost_of(response)
            yield response
        self._conversation = turn.conversation

    def _beginning(self, *, with_documents: bool) -> list[ChatMessage]:
        """The system message, with the place of the documents where there are any, and what else stands first."""
        prefix = list(self._prefix_messages)
        system = prefix.pop(0).content or "" if prefix and prefix[0].role == MessageRole.SYSTEM else ""
        if with_documents:
            context = self._context_template.format(context_str=PLACE)
            if (times := context.count(PLACE)) != 1:
                raise InputError(
                    "context_template must have {context_str} once, as it is, for the whole documents, and it stands "
                    f"there {times} times"
                )
            system = context + system.strip()
        return [*([ChatMessage(role=MessageRole.SYSTEM, content=system)] if system.strip() else []), *prefix]


def _sources(turn: _Turn) -> list[ToolOutput]:
    question = turn.messages[-1].content
    return [
        ToolOutput(
            tool_name="retriever", content=str(turn.nodes), raw_input={"message": question}, raw_output=turn.nodes
        )
    ]


def _answered(turn: _Turn, response: ChatResponse) -> AgentChatResponse:
    return AgentChatResponse(
        response=response.message.content or "",
        sources=_sources(turn),
        source_nodes=turn.nodes,
        metadata={"rapid": cost_of(response)},
    )
