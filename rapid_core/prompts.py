"""Messages to token ids, through the model's own chat template."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateError

from rapid_core.datatypes import Message, ToolCall
from rapid_core.errors import InputError
from rapid_core.tool_format import ToolFormat, read_format, template_id
from rapid_core.tool_use import Tool


class ChatPrompter:
    """One tokenizer and its chat template.

    eos_ids: what ends an answer, also where it is the end of a tool call. Raises `InputError`
    where the tokenizer has no template.
    """

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int] = frozenset()) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise InputError(
                "a tokenizer needs a chat template to turn messages into a prompt, and this one has none; "
                "use an instruct model, or set tokenizer.chat_template"
            )
        self.tokenizer = tokenizer
        self._eos_ids = eos_ids
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
        ends = [token for token, id_ in self.added_tokens.items() if id_ in self._eos_ids]
        return read_format(self._apply).ended_by(ends)

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
            tools = tools if self.tool_format.shows_tools else ()
        texts = "\n".join([*(text for message in messages for text in _texts(message)), *map(_written, tools)])
        if not any(token in texts for token in self._special):
            return tuple(self.tokenizer.encode(self._render(messages, tools), add_special_tokens=False))
        # The template's own special tokens must be read as such, and those in the texts must not:
        # these are rendered as marks, and written out when all else has been tokenized.
        mark = next(chr(point) for point in range(0xE000, 0xF8FF) if chr(point) not in texts)
        tokens = sorted(self._special, key=len, reverse=True)
        hidden = {token: f"{mark}{number}{mark}" for number, token in enumerate(tokens)}

        def hide(text: str) -> str:
            for token, stand_in in hidden.items():
                text = text.replace(token, stand_in)
            return text

        rendered = self._render([_hidden(message, hide) for message in messages], [_hide_tool(t, hide) for t in tools])
        ids: list[int] = []
        for position, piece in enumerate(rendered.split(mark)):
            if position % 2:
                ids += self._plain_ids(tokens[int(piece)])
            elif piece:
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

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        try:
            return self._apply(messages, tools)
        except TemplateError:
            # The known refusals are of a system role and of two turns of one role in a row.
            try:
                return self._apply(_merge(_fold_system(messages)), tools)
            except TemplateError as error:
                raise InputError(f"the chat template refuses these messages: {error}") from error

    def _apply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        generation_prompt: bool = True,
        arguments_as_text: bool | None = None,
    ) -> str:
        if arguments_as_text is None:
            arguments_as_text = any(m.tool_calls for m in messages) and self.tool_format.arguments_as_text
        text: str = self.tokenizer.apply_chat_template(
            [_as_turn(message, arguments_as_text) for message in messages],
            tools=[tool.as_function() for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=generation_prompt,
        )
        return text


def _as_turn(message: Message, arguments_as_text: bool) -> dict[str, Any]:
    """A message in the form that chat templates expect."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "type": "function",
                "id": template_id(call.id),
                "function": {"name": call.name, "arguments": call.arguments if arguments_as_text else _arguments(call)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = template_id(message.tool_call_id)
    if message.name:
        turn["name"] = message.name
    return turn


def _arguments(call: ToolCall) -> Any:
    """The arguments as most templates want them; what is no JSON is shown as it is."""
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


def _hidden(message: Message, hide: Callable[[str], str]) -> Message:
    calls = tuple(replace(c, name=hide(c.name), arguments=hide(c.arguments)) for c in message.tool_calls)
    return replace(message, content=hide(message.content), name=hide(message.name), tool_calls=calls)


def _hide_tool(tool: Tool, hide: Callable[[str], str]) -> Tool:
    return Tool(**json.loads(hide(_written(tool))))


def _texts(message: Message) -> list[str]:
    calls = [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return [message.content, message.name, *calls]


def _written(tool: Tool) -> str:
    return json.dumps(tool.as_function()["function"], ensure_ascii=False)


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """System messages become the beginning of the user message that follows them."""
    return [replace(message, role="user") if message.role == "system" else message for message in messages]


def _merge(messages: Sequence[Message]) -> list[Message]:
    """No two messages of one role in a row; calls and results between them count for nothing."""
    merged: list[Message] = []
    last = -1
    for message in messages:
        if message.role == "tool" or message.tool_calls:
            merged.append(message)
            continue
        if last >= 0 and merged[last].role == message.role:
            message = replace(message, content=merged[last].content + "\n\n" + message.content)  # noqa: PLW2901
            del merged[last]
        last = len(merged)
        merged.append(message)
    return merged
