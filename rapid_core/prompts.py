"""Messages to token ids, through the model's own chat template."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jinja2.exceptions import TemplateError

from rapid_core.datatypes import Message
from rapid_core.errors import InputError

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

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of the prompt, up to where the answer begins.

        Templates that know no system role or no two turns of one role get them merged.
        Text that looks like a special token stays text: a document cannot end its own message.
        """
        contents = [message.content for message in messages]
        if not any(token in content for token in self._special for content in contents):
            return tuple(self.tokenizer.encode(self._render(messages), add_special_tokens=False))
        # The template's own special tokens must be read as such, and those in the contents must
        # not be: render with stand-ins, then tokenize the two kinds of text apart.
        rendered = self._render([replace(m, content=f"\ue000{i}\ue001") for i, m in enumerate(messages)])
        ids: list[int] = []
        # Odd pieces are numbers of contents: a template may change their order, or leave some out.
        for position, piece in enumerate(_MARK.split(rendered)):
            if position % 2:
                ids += self._plain_ids(contents[int(piece)])
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

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            return self._apply(messages)
        except TemplateError:
            # The known refusals are of a system role and of two turns of one role in a row.
            try:
                return self._apply(_merge(_fold_system(messages)))
            except TemplateError as error:
                raise InputError(f"the chat template refuses these messages: {error}") from error

    def _apply(self, messages: Sequence[Message]) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return text


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """System messages become the beginning of the user message that follows them."""
    return [replace(message, role="user") if message.role == "system" else message for message in messages]


def _merge(messages: Sequence[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1].role == message.role:
            merged[-1] = replace(message, content=merged[-1].content + "\n\n" + message.content)
        else:
            merged.append(message)
    return merged
