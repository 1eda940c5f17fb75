"""Messages to token ids, through the model's own chat template."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateError

from rapid_core.datatypes import Message, ToolCall
from rapid_core.errors import InputError
from rapid_core.tool_format import ToolFormat, read_format, template_id
from rapid_core.tool_use import Tool

_MARK = re.compile("\ue000(\\d+)\ue001")


class ChatPrompter:
    """One tokenizer and its chat template.

    Raises `InputError` where the tokenizer has no template.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise InputError(
                "a tokenizer needs a chat template to turn messages into a prompt, and this one has none; "
                "use an instruct model, or set tokenizer.chat_template"
            )
        self.tokenizer = tokenizer
        added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._special = tuple({token for token in (*tokenizer.all_special_tokens, *added) if token})
        # A tokenizer of its own for text: the switch is state of the tokenizer, and another thread
        # may be counting while a prompt is made.
        self._plain = copy.deepcopy(tokenizer)
        self._plain.split_special_tokens = True

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` alone."""
        return len(self._plain_ids(text))

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` alone."""
        return tuple(self._plain_ids(text))

    @cached_property
    def tool_format(self) -> ToolFormat:
        """How this model writes tool calls."""
        return read_format(self._apply)

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """Tokens that the tokenizer reads as a whole, whatever stands around them, with their ids."""
        return {str(token): id_ for id_, token in self.tokenizer.added_tokens_decoder.items()}

    @cached_property
    def tool_tokens(self) -> frozenset[int]:
        """Special tokens that belong to a tool call, and must not be dropped from an answer."""
        return frozenset(
            id_ for token, id_ in self.added_tokens.items() if any(token in text for text in self.tool_format.texts)
        )

    def encode(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Token ids of the prompt, up to where the answer begins.

        Templates that know no system role or no two turns of one role get them merged; what they
        do not show of tools is written into the messages. Text that looks like a special token
        stays text: a document cannot end its own message.
        """
        if tools or any(message.tool_calls or message.role == "tool" for message in messages):
            messages = self.tool_format.as_text(messages, tools)
        if not any(token in text for token in self._special for message in messages for text in _texts(message)):
            return tuple(self.tokenizer.encode(self._render(messages, tools), add_special_tokens=False))
        # The template's own special tokens must be read as such, and those in the contents must
        # not be: render with stand-ins, then tokenize the two kinds of text apart.
        texts: list[str] = []

        def stand_in(text: str) -> str:
            texts.append(text)
            return f"\ue000{len(texts) - 1}\ue001"

        rendered = self._render([self._with_stand_ins(message, stand_in) for message in messages], tools)
        ids: list[int] = []
        # Odd pieces are numbers of texts: a template may change their order, or leave some out.
        for position, piece in enumerate(_MARK.split(rendered)):
            if position % 2:
                ids += self._plain_ids(texts[int(piece)])
            else:
                ids += self.tokenizer.encode(piece, add_special_tokens=False)
        return tuple(ids)

    def first_and_last(self, text: str, tokens: int) -> str:
        """`text` with its middle cut out, so that about `tokens` tokens of it are left.

        Source: paper, section 4.1 (truncation in the middle, after LongBench).
        """
        offsets = self._plain(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
            "offset_mapping"
        ]
        if len(offsets) <= tokens:
            return text
        head = tokens // 2
        tail = tokens - head
        return text[: offsets[head][0]].rstrip() + "\n\n" + text[offsets[-tail][0] :].lstrip()

    def _plain_ids(self, text: str) -> list[int]:
        ids: list[int] = self._plain(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _with_stand_ins(self, message: Message, stand_in: Callable[[str], str]) -> Message:
        def inside(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: inside(part) for key, part in value.items()}
            if isinstance(value, list):
                return [inside(part) for part in value]
            if isinstance(value, str) and any(token in value for token in self._special):
                # A template writes it as JSON.
                return stand_in(json.dumps(value, ensure_ascii=False)[1:-1])
            return value

        calls = tuple(
            replace(call, arguments=json.dumps(inside(_arguments(call)), ensure_ascii=False))
            for call in message.tool_calls
        )
        return replace(message, content=stand_in(message.content), tool_calls=calls)

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        try:
            return self._apply(messages, tools)
        except TemplateError:
            # The known refusals are of a system role and of two turns of one role in a row.
            try:
                return self._apply(_merge(_fold_system(messages)), tools)
            except TemplateError as error:
                raise InputError(f"the chat template refuses these messages: {error}") from error

    def _apply(self, messages: Sequence[Message], tools: Sequence[Tool] = (), generation_prompt: bool = True) -> str:
        text: str = self.tokenizer.apply_chat_template(
            [_as_turn(message) for message in messages],
            tools=[tool.as_function() for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=generation_prompt,
        )
        return text


def _as_turn(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates expect."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "type": "function",
                "id": template_id(call.id),
                "function": {"name": call.name, "arguments": _arguments(call)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = template_id(message.tool_call_id)
    if message.name:
        turn["name"] = message.name
    return turn


def _arguments(call: ToolCall) -> Any:
    """The arguments as templates want them; what is no JSON is shown as it is."""
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


def _texts(message: Message) -> list[str]:
    return [message.content, *(call.arguments for call in message.tool_calls)]


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """System messages become the beginning of the user message that follows them."""
    return [replace(message, role="user") if message.role == "system" else message for message in messages]


def _merge(messages: Sequence[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        mergeable = message.role != "tool" and not message.tool_calls
        if merged and mergeable and merged[-1].role == message.role and not merged[-1].tool_calls:
            merged[-1] = replace(merged[-1], content=merged[-1].content + "\n\n" + message.content)
        else:
            merged.append(message)
    return merged
