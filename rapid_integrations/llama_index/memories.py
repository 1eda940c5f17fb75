"""Memories of chats: what they keep, what they give, and a word about the rest."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer

from rapid_integrations.contexts import RapidWarning
from rapid_integrations.llama_index.llm import RapidLLM


def memory_of(llm: RapidLLM, chat_history: list[ChatMessage] | None) -> ChatMemoryBuffer:
    """A memory as long as the target's window, in the target's tokens."""
    metadata = llm.metadata
    return ChatMemoryBuffer.from_defaults(
        chat_history=chat_history or [],
        token_limit=metadata.context_window - (metadata.num_output or 0),
        tokenizer_fn=llm.token_ids,
    )


def all_of(memory: BaseMemory) -> list[ChatMessage]:
    """All that a memory keeps; nothing where it cannot say."""
    try:
        return memory.get_all()
    except (ValueError, NotImplementedError):
        return []


async def aall_of(memory: BaseMemory) -> list[ChatMessage]:
    """`all_of` for an event loop."""
    try:
        return await memory.aget_all()
    except (ValueError, NotImplementedError):
        return []


def key_of(message: ChatMessage) -> tuple[str, str]:
    """Who said what: the same for a message and its copies."""
    return message.role.value, (message.content or "").strip()


def left_out(newest: Sequence[ChatMessage], history: Sequence[ChatMessage], kept: Sequence[ChatMessage]) -> list[str]:
    """A word about turns that are not read, for what is lost must be known."""
    notes = []
    given = list(map(key_of, history))
    # A memory may put something of its own before a message.
    lost = sum(not any(role == own and text in other for own, other in given) for role, text in map(key_of, kept))
    if lost:
        notes.append(f"the memory gives no more than {len(kept) - lost} of {len(kept)} messages; raise its limit")
    if gone := len(history) - len(newest):
        why = "the target's window has no room for them beside the documents"
        notes.append(f"the {gone} oldest messages are not read: {why}")
    for note in notes:
        warnings.warn(note, RapidWarning, stacklevel=2)
    return notes


def said(response: ChatResponse) -> ChatMessage:
    """An answer as it is remembered: as LlamaIndex remembers the one of a stream."""
    return ChatMessage(role=MessageRole.ASSISTANT, content=(response.message.content or "").strip())
