"""A long history: which messages belong together, its passages, and what the drafter reads of it.

An agent's tool results or many short turns are long all together, and no single message is the
document. The target reads every message. The drafter reads the system messages, the newest units
as they are, and of the older ones those in which retrieval finds something.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from rapid_core.context import (
    LONG_MESSAGE_TOKENS,
    QUESTION_CHARACTERS,
    Task,
    query_of,
    split_long_message,
)
from rapid_core.datatypes import Chunk, LongHistory, Message
from rapid_core.errors import InputError
from rapid_core.retrieval import SEPARATOR, join
from rapid_core.tool_use import Tool

# Messages of fewer tokens together are read as they are, and so are fewer units.
LONG_HISTORY_TOKENS = 2048
LEAST_UNITS = 6
# So many units for each turn that stays as it is.
UNITS_A_TURN = 3
# What the drafter reads of a long message in which nothing was found.
OMITTED = "…"


@dataclass(frozen=True, slots=True)
class HistoryTask:
    """Messages that are the long context themselves, what to search for in them, and tools shown with them."""

    messages: tuple[Message, ...]
    query: str
    history: LongHistory
    tools: tuple[Tool, ...] = ()


AnyTask: TypeAlias = Task | HistoryTask


@dataclass(frozen=True, slots=True)
class Unit:
    """Places of messages that belong together, and of the question and the answer around them.

    A question and its final answer are a unit, and so is each tool call with its results in
    between. Whoever reads a unit reads its frame, so that what is left is a conversation: it
    begins with the user, and an exchange ends as it ended.
    """

    places: tuple[int, ...]
    frame: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """What retrieval finds: a chunk of the long message at `place`, or of the short messages of a unit.

    For these `place` is -1: they are read all or none.
    """

    text: str
    unit: int
    place: int = -1


def find_history(
    messages: tuple[Message, ...], given: LongHistory | None, count_tokens: Callable[[str], int]
) -> HistoryTask | None:
    """The messages as a history, where the caller says so or where they are long all together."""
    if given is None and not _is_long(messages, count_tokens):
        return None
    return HistoryTask(messages, _history_query(messages, count_tokens), given or LongHistory())


def units_of(messages: Sequence[Message]) -> list[Unit]:
    """The units in the order in which they ended; system messages are in none.

    What stands before the first user message is in none either, where there is one.
    """
    exchanges: list[list[int]] = []
    for place, message in enumerate(messages):
        if message.role == "user" or (message.role != "system" and not exchanges):
            exchanges.append([])
        if message.role != "system":
            exchanges[-1].append(place)
    asked = [exchange for exchange in exchanges if messages[exchange[0]].role == "user"]
    units = [unit for exchange in asked or exchanges for unit in _units_of_exchange(messages, exchange)]
    return sorted(units, key=lambda unit: unit.places[-1])


def newest_units(units: Sequence[Unit], turns: int) -> list[Unit]:
    """The units of the newest turns; of turns with many tool calls, which an agent has, the last ones."""
    first = [unit.frame[0] if unit.frame else unit.places[0] for unit in units]
    begins = sorted(set(first))[-turns:][0]
    return [unit for unit, start in zip(units, first, strict=True) if start >= begins][-UNITS_A_TURN * turns :]


def ranked_by(rank: Callable[[str, Sequence[str]], Sequence[int]], query: str, passages: Sequence[str]) -> list[int]:
    """The caller's own ranking; raises `InputError` where it is no ranking of these passages."""
    given: object = rank(query, passages)
    if not isinstance(given, Iterable):
        raise InputError(f"LongHistory.rank must return indices of passages, got {type(given).__name__}")
    ranked: dict[int, None] = {}
    for index in given:
        try:
            number = operator.index(index)
        except TypeError:
            number = -1
        if not 0 <= number < len(passages) or number in ranked:
            raise InputError(
                f"LongHistory.rank must return each index at most once, from 0 to {len(passages) - 1}, got {index!r}"
            )
        ranked[number] = None
    return list(ranked)


class History:
    """The units of a history, its passages, and the messages that a choice among them leaves.

    size: tokens over which an older message is read in passages. cut: a text into passages of
    that size.
    """

    def __init__(
        self, task: HistoryTask, size: int, cut: Callable[[str], list[Chunk]], count_tokens: Callable[[str], int]
    ) -> None:
        self._messages = task.messages
        self._count = count_tokens
        self._units = units_of(task.messages)
        newest = newest_units(self._units, task.history.newest)
        self._system = {place for place, message in enumerate(task.messages) if message.role == "system"}
        self._newest = {place for unit in newest for place in (*unit.places, *unit.frame)}
        # Of a message that is read in passages: what stands before and behind them, and its own tokens.
        self._around: dict[int, tuple[str, str]] = {}
        self._tokens: dict[int, int] = {}
        # A last message that is all document: its end is what was searched for, and stays.
        self._last_words = {len(task.messages) - 1: task.query} if task.messages[-1].role == "user" else {}
        self.passages: list[Passage] = []
        for number, unit in enumerate(self._units):
            self._cut_unit(number, unit, size, cut)

    def choose(self, ranked: Sequence[int], near: int, budget: int) -> list[int]:
        """The best passages that fit into `budget` tokens with all that is read along with them, best first.

        ranked: indices of passages, of which the first `near` are good enough by themselves. One
        that does not fit is passed over.
        """
        # Of a long message that is read along, its best passage is: a question needs some of its answer.
        best: dict[int, int] = {}
        for index in ranked:
            best.setdefault(self.passages[index].place, index)
        chosen: list[int] = []
        read, found = set(self._newest), set[int]()
        for index in ranked[:near]:
            along = self._along(self.passages[index])
            places = along & best.keys() - found - {self.passages[index].place}
            more = [index, *(best[place] for place in sorted(places))]
            size = sum(self._tokens[place] for place in along - read) + sum(map(self._tokens_of_chunk, more))
            if index not in chosen and size <= budget:
                chosen += more
                read |= along
                found |= {self.passages[number].place for number in more}
                budget -= size
        return chosen

    def read(self, chosen: Iterable[int]) -> list[Message]:
        """The drafter's messages, in their order."""
        found: dict[int, list[Passage]] = {}
        places = self._system | self._newest
        for index in sorted(chosen):
            passage = self.passages[index]
            found.setdefault(passage.place, []).append(passage)
            places |= self._along(passage)
        return [self._message(place, found.get(place, ())) for place in sorted(places)]

    def _cut_unit(self, number: int, unit: Unit, size: int, cut: Callable[[str], list[Chunk]]) -> None:
        short = []
        for place in unit.places:
            message = self._messages[place]
            limit = LONG_MESSAGE_TOKENS if place in self._newest else size
            self._tokens[place] = tokens = self._count(_text_of(message))
            content, calls = message.content, _calls_of(message)
            if tokens > limit and self._count(content) > limit:
                before, document, after = split_long_message(content) if message.role == "user" else ("", content, "")
                self._around[place] = before, after
                self._tokens[place] = self._count(before + after + calls)
                self.passages += [Passage(chunk.text, number, place) for chunk in cut(document)]
                content = ""
            if place not in self._newest:
                short += [text for text in (content, calls) if text.strip()]
        if short:
            self.passages += [Passage(chunk.text, number) for chunk in cut("\n".join(short))]

    def _along(self, passage: Passage) -> set[int]:
        """The places that are read with a passage."""
        unit = self._units[passage.unit]
        return {*unit.places, *unit.frame} | self._newest

    def _tokens_of_chunk(self, index: int) -> int:
        """What a passage costs beside its message: nothing where that is read whole."""
        passage = self.passages[index]
        return self._count(passage.text + SEPARATOR) if passage.place >= 0 else 0

    def _message(self, place: int, found: Sequence[Passage]) -> Message:
        if place not in self._around:
            return self._messages[place]
        before, after = self._around[place]
        if found:
            content = before + join(Chunk(passage.text) for passage in found) + after
        else:
            content = (before + after).strip() or self._last_words.get(place, OMITTED)
        return replace(self._messages[place], content=content)


def _is_long(messages: Sequence[Message], count_tokens: Callable[[str], int]) -> bool:
    """Whether the messages are long together, and none of them is most of it: that one would be a document."""
    texts = [(message.role, _text_of(message)) for message in messages if message.role != "system"]
    # Tokenizing costs time, and a text of so few characters is hardly ever so many tokens.
    if sum(len(text) for _, text in texts) < LONG_HISTORY_TOKENS or len(units_of(messages)) < LEAST_UNITS:
        return False
    counts = [(role, count_tokens(text)) for role, text in texts]
    total = sum(tokens for _, tokens in counts)
    longest = max((tokens for role, tokens in counts if role in ("user", "tool")), default=0)
    return total >= LONG_HISTORY_TOKENS and 2 * longest < total


def _history_query(messages: Sequence[Message], count_tokens: Callable[[str], int]) -> str:
    """The user's last question; behind tool results with the call that they answer, which is what goes on."""
    query = query_of(messages)
    if len(query) >= LONG_MESSAGE_TOKENS <= count_tokens(query):
        before, document, after = split_long_message(query)
        query = (before + after).strip() or document[-QUESTION_CHARACTERS:]
    calls = [_calls_of(messages[place]) for place in units_of(messages)[-1].places]
    return "\n".join([query, *(text[:QUESTION_CHARACTERS] for text in calls if text)])


def _units_of_exchange(messages: Sequence[Message], exchange: Sequence[int]) -> list[Unit]:
    """The units from one user message to the next."""
    first, last = exchange[0], exchange[-1]
    frame = [first] if messages[first].role == "user" else []
    if messages[last].role == "assistant" and not messages[last].tool_calls and frame:
        frame.append(last)
    inner: list[list[int]] = []
    for place in exchange:
        if place in frame:
            continue
        if messages[place].role == "tool" and inner:
            inner[-1].append(place)
        else:
            inner.append([place])
    around = tuple(frame)
    return [Unit(tuple(places), around) for places in ([frame] if frame else []) + inner]


def _calls_of(message: Message) -> str:
    return "\n".join(f"{call.name} {call.arguments}" for call in message.tool_calls)


def _text_of(message: Message) -> str:
    return "\n".join(text for text in (message.content, _calls_of(message)) if text)
