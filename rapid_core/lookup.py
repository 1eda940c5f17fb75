"""Drafts without a model: how the text went on where its last tokens stood before.

Documents are quoted, names and phrases come again. An index of n-grams over both prompts and
the answer finds the place in a few steps, however long the text is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Three ids make one 63-bit key.
ID_BITS = 21
LEAST_MATCH, LONG_MATCH = 2, 3
# How far back two places are compared, and how many places, the latest first.
MOST_MATCH = 32
MOST_PLACES = 32
# Stands between two texts; no n-gram and no draft reaches over it.
BORDER = -1


@dataclass(frozen=True, slots=True)
class Match:
    """What followed an earlier place that ends like the text does.

    ids: the continuation. length: how many tokens the two places have in common, at most MOST_MATCH.
    """

    ids: list[int]
    length: int


class NgramIndex:
    """The n-grams of 2 and 3 ids of several texts, the last of which grows token by token.

    Built in linear time and extended in constant time a token. Where several places match, the
    longest match wins, and of equally long ones the latest: the answer before the passages,
    the passages before the full context, if the texts are given in that order.
    """

    def __init__(self, *texts: Sequence[int]) -> None:
        self._ids: list[int] = []
        for text in texts:
            if self._ids:
                self._ids.append(BORDER)
            self._ids.extend(text)
        ids = np.asarray(self._ids, dtype=np.int64)
        # An n-gram is entered with the place behind it once a token stands there.
        pairs, places = _ngrams(ids, LEAST_MATCH)
        self._after_pair: dict[int, int] = dict(zip(pairs.tolist(), places.tolist(), strict=True))
        triples, places = _ngrams(ids, LONG_MATCH)
        self._after_triple: dict[int, int] = dict(zip(triples.tolist(), places.tolist(), strict=True))
        # _before[place]: the place before it that follows the same triple, or -1
        before = np.full(len(ids) + 1, -1, dtype=np.int64)
        order = np.argsort(triples, kind="stable")
        same = triples[order][1:] == triples[order][:-1]
        before[places[order][1:][same]] = places[order][:-1][same]
        self._before: list[int] = before.tolist()

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Append committed tokens to the last text."""
        for id_ in ids:
            place = len(self._ids)
            pair, triple = _key(self._ids[-LEAST_MATCH:]), _key(self._ids[-LONG_MATCH:])
            self._ids.append(id_)
            self._before.append(-1)
            if pair is not None and place >= LEAST_MATCH:
                self._after_pair[pair] = place
            if triple is not None and place >= LONG_MATCH:
                self._before[place] = self._after_triple.get(triple, -1)
                self._after_triple[triple] = place

    def find(self, drafted: Sequence[int], limit: int) -> Match | None:
        """The continuation of the text and of `drafted` behind it, up to `limit` ids."""
        tail = [*self._ids[-MOST_MATCH:], *drafted][-MOST_MATCH:]
        place, length = self._longest(tail)
        if length == 0 or limit < 1:
            return None
        found: list[int] = []
        while len(found) < limit:
            # A text that repeats itself goes on into its own continuation.
            at = place + len(found)
            id_ = self._ids[at] if at < len(self._ids) else [*drafted, *found][at - len(self._ids)]
            if id_ == BORDER:
                break
            found.append(id_)
        return Match(found, length) if found else None

    def _longest(self, tail: list[int]) -> tuple[int, int]:
        """Where the longest match goes on, and its length; 0 where there is none."""
        triple = _key(tail[-LONG_MATCH:]) if len(tail) >= LONG_MATCH else None
        place = self._after_triple.get(triple, -1) if triple is not None else -1
        best, longest = -1, 0
        for _ in range(MOST_PLACES):
            if place < 0 or longest >= MOST_MATCH:
                break
            length = self._common(tail, place)
            if length > longest:
                best, longest = place, length
            place = self._before[place]
        if longest:
            return best, longest
        pair = _key(tail[-LEAST_MATCH:]) if len(tail) >= LEAST_MATCH else None
        place = self._after_pair.get(pair, -1) if pair is not None else -1
        return place, LEAST_MATCH if place >= 0 else 0

    def _common(self, tail: list[int], place: int) -> int:
        """How many ids before `place` are the last of `tail`."""
        ids, most, length = self._ids, min(len(tail), place), 0
        while length < most and ids[place - 1 - length] == tail[-1 - length] != BORDER:
            length += 1
        return length


def _ngrams(ids: NDArray[np.int64], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The keys of all n-grams that a token follows, and the places of those tokens."""
    count = max(len(ids) - n, 0)
    keys = np.zeros(count, dtype=np.int64)
    whole = ids[n : n + count] != BORDER
    for offset in range(n):
        part = ids[offset : offset + count]
        keys = (keys << ID_BITS) | part
        whole &= part != BORDER
    places = np.arange(n, n + count)
    return keys[whole], places[whole]


def _key(ids: Sequence[int]) -> int | None:
    key = 0
    for id_ in ids:
        if id_ == BORDER:
            return None
        key = (key << ID_BITS) | id_
    return key
