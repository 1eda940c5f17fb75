"""Token ids to text, piece by piece, and stop strings in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rapid_core.datatypes import Delta, TokenEvent, ToolCall
from rapid_core.tool_parsing import ToolCallStream

# What a tokenizer writes for bytes that are not yet a whole character.
INCOMPLETE = "\ufffd"


class Detokenizer:
    """Ids to text, a piece at a time; the pieces joined are the text of all ids.

    A piece is the difference that a token makes to the text of a few tokens before it, since
    tokenizers write a token differently at the start of a text. Characters of several tokens
    (emoji, Chinese) come out whole.
    """

    def __init__(self, tokenizer: Any, shown: frozenset[int] = frozenset()) -> None:
        """shown: special tokens that are part of the text, such as the tags of a tool call."""
        self._tokenizer = tokenizer
        added = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._silent = (added | set(tokenizer.all_special_ids)) - shown
        self._ids: list[int] = []
        self._context = 0
        self._read = 0

    def push(self, id_: int) -> str:
        """The text that became certain with this id."""
        if id_ in self._silent:
            return ""
        self._ids.append(id_)
        known, text = self._texts()
        if text.endswith(INCOMPLETE) or len(text) <= len(known):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return text[len(known) :]

    def flush(self) -> str:
        """What is left at the end, as the tokenizer writes it."""
        known, text = self._texts()
        self._context = self._read = len(self._ids)
        return text[len(known) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._ids[self._context : self._read]), self._decode(self._ids[self._context :])

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


class TextStream:
    """Turns token events into deltas, and ends the text before a stop string.

    Text that may be the beginning of a stop string is held back until it is known. calls: takes
    the calls of tools out of the text, in which no stop string is looked for; shown: their tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str],
        *,
        calls: ToolCallStream | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, shown)
        self._stop = tuple(stop)
        self._calls = calls
        self._held = ""
        self._events: list[TokenEvent] = []
        self.tokens = 0
        self.stopped = False

    def push(self, event: TokenEvent) -> Delta | None:
        """The delta that this token completes, if any; `stopped` tells whether a stop string was met."""
        self.tokens += 1
        self._events.append(event)
        piece = self._detokenizer.push(event.id)
        return self._release(piece if self._calls is None else self._calls.push(piece), final=False)

    def finish(self) -> Delta:
        """The rest of the text, and all calls, when no token follows."""
        if self.stopped:
            return Delta("")
        rest = self._detokenizer.flush()
        called: tuple[ToolCall, ...] = ()
        if self._calls is not None:
            rest, called = self._calls.finish(rest)
        return replace(self._release(rest, final=True) or Delta(""), tool_calls=called)

    def _release(self, piece: str, *, final: bool) -> Delta | None:
        self._held += piece
        found = self._first_stop()
        if found is not None:
            self.stopped = True
            ready, self._held = self._held[:found], ""
        else:
            keep = 0 if final else self._possible_stop()
            cut = len(self._held) - keep
            ready, self._held = self._held[:cut], self._held[cut:]
        if not ready and not ((final or self.stopped) and self._events):
            return None
        events, self._events = tuple(self._events), []
        return Delta(ready, events)

    def _first_stop(self) -> int | None:
        """Where the stop string begins that is complete first."""
        ends = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        return min(ends)[1] if ends else None

    def _possible_stop(self) -> int:
        """How long the end of the held text is that could begin a stop string."""
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if self._held.endswith(stop[:n])),
            default=0,
        )
