"""A long history: which messages belong together, its passages, and what the drafter reads of it.

An agent's tool results or many short turns are long all together, and no single message is the
document; or they are long beside one. The target reads every message. The drafter reads the system
messages, the newest units as they are, of the older ones those in which retrieval finds something,
and always the message that holds the document.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rapid_core.context import (
    LONG_MESSAGE_TOKENS,
    QUESTION_CHARACTERS,
    Task,
    find_document,
    query_of,
    question_in,
    split,
    split_long_message,
)
from rapid_core.datatypes import Chunk, LongContext, LongHistory, Message
from rapid_core.errors import InputError
from rapid_core.retrieval import SEPARATOR, join

# Messages of fewer tokens together are read as they are, and so are fewer units.
LONG_HISTORY_TOKENS = 2048
LEAST_UNITS = 6
# So many units for each turn that stays as it is.
UNITS_A_TURN = 3
# What the drafter reads of a long message in which nothing was found.
OMITTED = "…"


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


def find_task(
    messages: tuple[Message, ...], context: LongContext | LongHistory | None, count_tokens: Callable[[str], int]
) -> Task:
    """The document of a request, and whether its messages, or those beside the document, are a history.

    Messages that are a history have a document only in a system message: another long one is a
    part of the history.
    """
    if isinstance(context, LongContext):
        task, given = split(messages, context, count_tokens), context.history
    elif history := find_history(messages, context, count_tokens):
        document = find_document(messages, ("system",), count_tokens)
        return replace(document, history=history) if document else Task(messages, query_of(messages), history=history)
    else:
        task, given = split(messages, None, count_tokens), None
        if task.context is None:
            return task
    return replace(task, history=find_history(task.with_context(""), given, count_tokens))


def find_history(
    messages: tuple[Message, ...], given: LongHistory | None, count_tokens: Callable[[str], int]
) -> LongHistory | None:
    """How the messages are read as a history, where the caller says so or where they are long all together."""
    if given is None and _is_long(messages, count_tokens):
        return LongHistory()
    return given


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

    given: how it is read. size: tokens over which an older message is read in passages. cut: a text
    into passages of that size.
    """

    def __init__(
        self,
        task: Task,
        given: LongHistory,
        size: int,
        cut: Callable[[str], list[Chunk]],
        count_tokens: Callable[[str], int],
    ) -> None:
        self.query = history_query(task, count_tokens)
        self.rank = given.rank
        self._task = task
        self._count = count_tokens
        self._units = units_of(task.messages)
        # The message with the document has passages of its own, and is never cut into others.
        self._holder = task.index if task.context is not None else -1
        newest = newest_units(self._units, given.newest)
        kept = [*newest, *(unit for unit in self._units if self._holder in unit.places)]
        self._system = {place for place, message in enumerate(task.messages) if message.role == "system"}
        self._kept = {place for unit in kept for place in (*unit.places, *unit.frame)} | {self._holder} - {-1}
        # Of a message that is read in passages: what stands before and behind them, and its own tokens.
        self._around: dict[int, tuple[str, str]] = {}
        self._tokens: dict[int, int] = {}
        # A last message that is all document: its end is what was searched for, and stays.
        self._last_words = {len(task.messages) - 1: self.query} if task.messages[-1].role == "user" else {}
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
        read, found = set(self._kept), set[int]()
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

    def read(self, chosen: Iterable[int], document: str = "") -> list[Message]:
        """The drafter's messages, in their order, with what it reads of the document."""
        found: dict[int, list[Passage]] = {}
        places = self._system | self._kept
        for index in sorted(chosen):
            passage = self.passages[index]
            found.setdefault(passage.place, []).append(passage)
            places |= self._along(passage)
        messages = self._task.with_context(document)
        return [self._message(messages[place], place, found.get(place, ())) for place in sorted(places)]

    def _cut_unit(self, number: int, unit: Unit, size: int, cut: Callable[[str], list[Chunk]]) -> None:
        short = []
        for place in unit.places:
            if place == self._holder:
                continue
            message = self._task.messages[place]
            limit = LONG_MESSAGE_TOKENS if place in self._kept else size
            self._tokens[place] = tokens = self._count(_text_of(message))
            content, calls = message.content, _calls_of(message)
            if tokens > limit and self._count(content) > limit:
                before, document, after = split_long_message(content) if message.role == "user" else ("", content, "")
                self._around[place] = before, after
                self._tokens[place] = self._count(before + after + calls)
                self.passages += [Passage(chunk.text, number, place) for chunk in cut(document)]
                content = ""
            if place not in self._kept:
                short += [text for text in (content, calls) if text.strip()]
        if short:
            self.passages += [Passage(chunk.text, number) for chunk in cut("\n".join(short))]

    def _along(self, passage: Passage) -> set[int]:
        """The places that are read with a passage."""
        unit = self._units[passage.unit]
        return {*unit.places, *unit.frame} | self._kept

    def _tokens_of_chunk(self, index: int) -> int:
        """What a passage costs beside its message: nothing where that is read whole."""
        passage = self.passages[index]
        return self._count(passage.text + SEPARATOR) if passage.place >= 0 else 0

    def _message(self, message: Message, place: int, found: Sequence[Passage]) -> Message:
        if place not in self._around:
            return message
        before, after = self._around[place]
        if found:
            content = before + join(Chunk(passage.text) for passage in found) + after
        else:
            content = (before + after).strip() or self._last_words.get(place, OMITTED)
        return replace(message, content=content)


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


def history_query(task: Task, count_tokens: Callable[[str], int]) -> str:
    """The user's last question; behind tool results with the call that they answer, which is what goes on."""
    query = task.query
    if len(query) >= LONG_MESSAGE_TOKENS <= count_tokens(query):
        query = question_in(*split_long_message(query))
    calls = [_calls_of(task.messages[place]) for place in units_of(task.messages)[-1].places]
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
