"""LangChain's messages to ours, and our answers to its chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.utils.json import parse_partial_json

from rapid_core import Delta, InputError, Message, ToolCall
from rapid_integrations.messages import paragraphs
from rapid_integrations.model import Piece
from rapid_integrations.statistics import statistics

PROVIDER = "rapid"

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "function": "tool",
}
# What an assistant's content may hold beside text: calls come again as tool_calls, and thoughts
# are not read twice.
_SILENT_BLOCKS = frozenset(
    {
        "tool_use",
        "tool_call",
        "tool_call_chunk",
        "invalid_tool_call",
        "function_call",
        "reasoning",
        "reasoning_content",
        "thinking",
        "redacted_thinking",
    }
)


def to_messages(messages: Sequence[BaseMessage]) -> list[Message]:
    """Our messages for LangChain's; raises `InputError` for what is not text."""
    return [_to_message(message) for message in messages]


def text_of(message: BaseMessage) -> str:
    """The text of a message; raises `InputError` where it holds anything else."""
    if isinstance(message.content, str):
        return message.content
    texts = []
    for block in message.content:
        kind = "text" if isinstance(block, str) else block.get("type")
        if isinstance(block, str):
            texts.append(block)
        elif kind in ("text", "text-plain") and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif not (isinstance(message, AIMessage) and kind in _SILENT_BLOCKS):
            raise InputError(
                f"a message may hold text only, and one of type {message.type!r} holds a block of type {kind!r}; "
                "turn images, audio and files into text first"
            )
    return "".join(texts) if isinstance(message, AIMessage) else paragraphs(texts)


def _to_message(message: BaseMessage) -> Message:
    text, name = text_of(message), message.name or ""
    if isinstance(message, SystemMessage):
        return Message("system", text, name=name)
    if isinstance(message, HumanMessage):
        return Message("user", text, name=name)
    if isinstance(message, AIMessage):
        return Message("assistant", text, _calls(message), name=name)
    if isinstance(message, ToolMessage):
        return Message("tool", text, tool_call_id=message.tool_call_id, name=name)
    if isinstance(message, FunctionMessage):
        return Message("tool", text, name=name)
    role = _ROLES.get(message.role) if isinstance(message, ChatMessage) else None
    if role is None:
        shown = message.role if isinstance(message, ChatMessage) else message.type
        raise InputError(f"a message must be from one of {', '.join(_ROLES)}, got {shown!r}")
    return Message(role, text, name=name)  # type: ignore[arg-type]


def _calls(message: AIMessage) -> tuple[ToolCall, ...]:
    valid = [
        ToolCall(call["name"], json.dumps(call["args"], ensure_ascii=False), call.get("id") or "")
        for call in message.tool_calls
    ]
    invalid = [
        ToolCall(call.get("name") or "", call.get("args") or "", call.get("id") or "", call.get("error") or "invalid")
        for call in message.invalid_tool_calls
    ]
    return (*valid, *invalid)


def to_chunk(piece: Piece) -> ChatGenerationChunk:
    """A piece of the answer as LangChain streams it; the last one carries usage, metadata and calls.

    Chunks are merged by adding, so that nothing but the last one may have metadata.
    """
    delta = piece.delta
    if delta.finish_reason is None or delta.usage is None or delta.stats is None:
        return ChatGenerationChunk(message=AIMessageChunk(content=delta.text))
    usage = delta.usage
    message = AIMessageChunk(
        content=delta.text,
        chunk_position="last",
        tool_call_chunks=[
            tool_call_chunk(name=call.name, args=_mergeable(call), id=call.id, index=index)
            for index, call in enumerate(delta.tool_calls)
        ],
        usage_metadata={
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "input_token_details": {"cache_read": usage.cached_tokens},
        },
        response_metadata={
            "finish_reason": "tool_calls" if _called(delta) else delta.finish_reason,
            "model_name": piece.model,
            "model_provider": PROVIDER,
            "rapid": statistics(delta.stats, usage, piece.notes),
        },
    )
    return ChatGenerationChunk(message=message)


def to_message(pieces: Sequence[Piece]) -> AIMessage:
    """A whole answer from its pieces; calls that cannot be used keep the reason."""
    last, calls = to_chunk(pieces[-1]).message, pieces[-1].delta.tool_calls
    assert isinstance(last, AIMessageChunk)
    return AIMessage(
        content="".join(piece.delta.text for piece in pieces),
        tool_calls=[
            tool_call(name=call.name, args=json.loads(call.arguments), id=call.id) for call in calls if not call.error
        ],
        invalid_tool_calls=[
            invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=call.error)
            for call in calls
            if call.error
        ],
        usage_metadata=last.usage_metadata,
        response_metadata=last.response_metadata,
    )


def _called(delta: Delta) -> bool:
    return delta.finish_reason == "stop" and any(not call.error for call in delta.tool_calls)


def _mergeable(call: ToolCall) -> str:
    """Arguments as LangChain adds chunks up: it mends JSON that was cut, and must not mend a broken call."""
    if not call.error:
        return call.arguments
    try:
        mended = parse_partial_json(call.arguments) if call.arguments else {}
    except ValueError:
        return call.arguments
    return json.dumps(call.arguments) if isinstance(mended, dict) else call.arguments
