"""LlamaIndex's messages to ours, and our answers to its responses."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    ChatResponse,
    CitableBlock,
    CitationBlock,
    CompletionResponse,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from rapid_core import InputError, Message, ToolCall
from rapid_integrations.messages import paragraphs
from rapid_integrations.model import Piece
from rapid_integrations.statistics import statistics

_ROLES = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool",
    MessageRole.FUNCTION: "tool",
}


def to_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Our messages for LlamaIndex's; raises `InputError` for what is not text.

    A system message at the end asks for something, as an agent's does that has to come to an end:
    it is read as the user's, since most templates know no other.
    """
    made = [_to_message(message) for message in messages]
    if made and made[-1].role == "system":
        made[-1] = replace(made[-1], role="user")
    return made


def text_of(message: ChatMessage) -> str:
    """The text of a message; raises `InputError` where it holds anything else."""
    assistant = _ROLES[message.role] == "assistant"
    texts = list(_texts(message.blocks, message.role, assistant=assistant))
    return "".join(texts) if assistant else paragraphs(texts)


def _texts(blocks: Iterable[Any], role: MessageRole, *, assistant: bool) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, CitableBlock):
            yield from _texts(block.content, role, assistant=assistant)
        elif isinstance(block, CitationBlock):
            yield from _texts([block.cited_content], role, assistant=assistant)
        # Calls come again as tool calls, and thoughts are not read twice.
        elif not isinstance(block, CachePoint) and not (
            assistant and isinstance(block, (ToolCallBlock, ThinkingBlock))
        ):
            raise InputError(
                f"a message may hold text only, and one of role {role.value!r} holds a {type(block).__name__}; turn "
                "images, audio and files into text first"
            )


def _to_message(message: ChatMessage) -> Message:
    text, more = text_of(message), message.additional_kwargs
    name = str(more.get("name") or "")
    role = _ROLES[message.role]
    if role == "assistant":
        return Message("assistant", text, _calls(message), name=name)
    if role == "tool":
        return Message("tool", text, tool_call_id=str(more.get("tool_call_id") or ""), name=name)
    return Message(role, text, name=name)  # type: ignore[arg-type]


def _calls(message: ChatMessage) -> tuple[ToolCall, ...]:
    """Calls as blocks, or where there are none as OpenAI's integration used to keep them."""
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if blocks:
        return tuple(
            ToolCall(block.tool_name, _as_json(block.tool_kwargs), block.tool_call_id or "") for block in blocks
        )
    return tuple(_call_of(call) for call in message.additional_kwargs.get("tool_calls") or ())


def _call_of(call: Any) -> ToolCall:
    plain = call if isinstance(call, Mapping) else call.model_dump()
    function = plain.get("function")
    if not isinstance(function, Mapping):
        raise InputError(f"a tool call must be a ToolCallBlock or a function as OpenAI describes it, got {call!r}")
    return ToolCall(str(function["name"]), _as_json(function.get("arguments") or {}), str(plain.get("id") or ""))


def _as_json(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def to_chat_response(pieces: Sequence[Piece]) -> ChatResponse:
    """A whole answer from its pieces."""
    response = _chat_response(pieces[-1], "".join(map(_new_text, pieces)))
    response.delta = None
    return response


def stream_chat(pieces: Iterable[Piece]) -> Generator[ChatResponse, None, None]:
    """An answer as LlamaIndex streams it: each item has all text so far; the last one calls, usage and statistics."""
    text = ""
    for piece in pieces:
        text += _new_text(piece)
        yield _chat_response(piece, text)


async def astream_chat(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[ChatResponse, None]:
    """`stream_chat` for an event loop."""
    text = ""
    async with aclosing(pieces):
        async for piece in pieces:
            text += _new_text(piece)
            yield _chat_response(piece, text)


def to_completion(response: ChatResponse) -> CompletionResponse:
    """The text of a chat response, as `complete` gives it."""
    return CompletionResponse(text=response.message.content or "", delta=response.delta, raw=response.raw)


def stream_completion(pieces: Iterable[Piece]) -> Generator[CompletionResponse, None, None]:
    """`stream_chat` as completions."""
    for response in stream_chat(pieces):
        yield to_completion(response)


async def astream_completion(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[CompletionResponse, None]:
    """`stream_completion` for an event loop."""
    async with aclosing(astream_chat(pieces)) as responses:
        async for response in responses:
            yield to_completion(response)


def _new_text(piece: Piece) -> str:
    """A piece's text; a call that cannot be used stays text, since LlamaIndex has no place for it."""
    broken = [call.arguments for call in piece.delta.tool_calls if call.error]
    return (
        "\n".join([piece.delta.text, *broken]) if broken and piece.delta.text else piece.delta.text + "\n".join(broken)
    )


def _chat_response(piece: Piece, text: str) -> ChatResponse:
    valid = [call for call in piece.delta.tool_calls if not call.error]
    broken = [
        {"id": call.id, "name": call.name, "arguments": call.arguments, "error": call.error}
        for call in piece.delta.tool_calls
        if call.error
    ]
    blocks: list[TextBlock | ToolCallBlock] = [TextBlock(text=text)]
    blocks += [
        ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=json.loads(call.arguments))
        for call in valid
    ]
    # LlamaIndex's streaming programs look for calls here alone.
    functions = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in valid
    ]
    more = {"tool_calls": functions, "invalid_tool_calls": broken}
    return ChatResponse(
        message=ChatMessage(
            role=MessageRole.ASSISTANT,
            blocks=blocks,
            additional_kwargs={name: calls for name, calls in more.items() if calls},
        ),
        delta=_new_text(piece),
        raw=_raw(piece),
    )


def _raw(piece: Piece) -> dict[str, Any] | None:
    """What `TokenCountingHandler` and others look for, on the last item alone; statistics under "rapid"."""
    delta = piece.delta
    if delta.finish_reason is None or delta.usage is None or delta.stats is None:
        return None
    called = delta.finish_reason == "stop" and any(not call.error for call in delta.tool_calls)
    return {
        "model": piece.model,
        "finish_reason": "tool_calls" if called else delta.finish_reason,
        "usage": {
            "prompt_tokens": delta.usage.prompt_tokens,
            "completion_tokens": delta.usage.completion_tokens,
            "total_tokens": delta.usage.total_tokens,
            "cached_tokens": delta.usage.cached_tokens,
        },
        "rapid": statistics(delta.stats, delta.usage, piece.notes),
    }
