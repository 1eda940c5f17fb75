"""A long chat in which short dialogues are scattered: their turns stand far apart, between those of others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from rapid_core.datatypes import Message


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a user says and what an assistant replies, and the tokens of both."""

    messages: tuple[Message, Message]
    tokens: int


def exchanges(turns: Iterable[tuple[str, str]], count_tokens: Callable[[str], int]) -> tuple[Exchange, ...]:
    """What user and assistant said to each other; turns of one of them that follow each other are one.

    An assistant's turn that nobody asked for, and a user's without a reply, are left out: other exchanges will stand
    beside them.
    """
    said = [
        Message("user" if speaker == "user" else "assistant", "\n\n".join(text for _, text in several))
        for speaker, several in groupby(turns, key=lambda turn: turn[0])
    ]
    return tuple(
        Exchange((asks, reply), count_tokens(f"{asks.content}\n{reply.content}\n"))
        for asks, reply in pairwise(said)
        if asks.role == "user"
    )


def long_chat(
    dialogues: Sequence[Sequence[Exchange]], filling: Iterable[Exchange], tokens: int, draw: random.Random
) -> tuple[tuple[Message, ...], int]:
    """`dialogues` scattered in as much of `filling` as fits, and how many tokens that makes, `tokens` at most.

    Everything stays in its order. Of each dialogue one exchange comes to stand in each of as many equal stretches of
    the chat.
    """
    length = sum(exchange.tokens for dialogue in dialogues for exchange in dialogue)
    between: list[Exchange] = []
    for exchange in filling:
        if length + exchange.tokens > tokens:
            break
        between.append(exchange)
        length += exchange.tokens
    # Each exchange stands before the one of the filling at its place.
    placed = [
        (len(between) * (position + draw.random()) / len(dialogue), exchange)
        for dialogue in dialogues
        for position, exchange in enumerate(dialogue)
    ]
    placed += [(index + 1.0, exchange) for index, exchange in enumerate(between)]
    # A stable sort: where there is nothing to stand between, a dialogue keeps its order.
    placed.sort(key=lambda place: place[0])
    return tuple(message for _, exchange in placed for message in exchange.messages), length
