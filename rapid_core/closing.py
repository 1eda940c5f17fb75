"""How a constrained answer ends soon: a short path from where it stands to an end that its grammar accepts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# What ends JSON's objects, lists and strings. In a string, where this letter fits, brackets end nothing.
CLOSERS, CLOSERS_OF_TEXT, LETTER = b'}]"', b'"', b"x"
# Makes text of a closer.
ESCAPE = b"\\"
# Tried first of all other bytes: numbers, dates and hours of ones are valid, and addresses soon have their sign.
FIRST = b"1@:"
# So often a byte is taken before others get their turn, which a grammar with a circle in it needs.
TURN = 4
# How llguidance writes a token that is no bytes.
SPECIAL = re.compile(rb"\xff\[(\d+)\]")
# Of bytes that are forced, so many times the tokens that are wanted: no more is ever used.
MOST_BYTES = 16


@dataclass(frozen=True)
class Alphabet:
    """What closing paths are spelled with: `tokenizer`'s ids, those of one byte in `singles`, `eos_id` at the end.

    The bytes stand in the order in which they are tried. specials: tokens that are no text, of a grammar.
    """

    tokenizer: LLTokenizer
    singles: dict[int, int]
    eos_id: int
    specials: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: LLTokenizer, vocab_size: int, eos_id: int) -> Self:
        """The alphabet of the ids below `vocab_size`."""
        singles: dict[int, int] = {}
        for byte in (*FIRST, *(byte for byte in range(256) if byte not in FIRST)):
            ids = tokenizer.tokenize_bytes(bytes([byte]))
            # Some tokenizers write a space before a first letter.
            if len(ids) == 1 and ids[0] < vocab_size and tokenizer.decode_bytes(ids) == bytes([byte]):
                singles[byte] = ids[0]
        return cls(tokenizer, singles, eos_id)

    def with_specials(self, ids: Iterable[str]) -> Self:
        """The alphabet of a grammar that names these ids."""
        return replace(self, specials=tuple(dict.fromkeys(map(int, ids))))

    def ids(self, characters: bytes) -> list[int]:
        """The ids of those of the bytes that are tokens."""
        return [self.singles[byte] for byte in characters if byte in self.singles]


def find_closing(grammar: LLMatcher, alphabet: Alphabet, most: int, known: list[int] | None = None) -> list[int] | None:
    """A short closing path from where `grammar` stands, at most `most` ids with the end-of-sequence id.

    known: a path from a place before; the new one may end like it, which is found much sooner.
    None where none was found. `grammar` stays where it is.
    """
    # Closers end JSON soon. In other grammars they may lead in a circle, and then all bytes get their turn.
    for closing in (True, False):
        path = _descend(grammar.deep_copy(), alphabet, most, known or [], closing=closing)
        if path is not None:
            return path
    return None


def _descend(grammar: LLMatcher, alphabet: Alphabet, most: int, known: list[int], *, closing: bool) -> list[int] | None:
    path: list[int] = []
    used: Counter[int] = Counter()
    while len(path) < most:
        if grammar.is_accepting():
            return [*path, alphabet.eos_id]
        if rest := _end_of(known, grammar):
            return [*path, *rest] if len(path) + len(rest) <= most else None
        # A grammar without an end can force bytes without an end.
        forced = grammar.compute_ff_bytes()[: most * MOST_BYTES]
        ids = _ids_of_forced(forced, alphabet)
        taken = grammar.try_consume_tokens(ids)
        if not taken:
            ids = _next(grammar, alphabet, used, closing=closing)
            taken = grammar.try_consume_tokens(ids)
            if not taken:
                return None
        elif closing and set(CLOSERS) & set(forced):
            used.clear()
        path.extend(ids[:taken])
    return None


def _ids_of_forced(forced: bytes, alphabet: Alphabet) -> list[int]:
    """The ids of forced bytes, up to a token that has none; such a token is written as a number behind 0xff."""
    special = SPECIAL.match(forced)
    if special:
        return [int(special.group(1))]
    return alphabet.tokenizer.tokenize_bytes(forced.partition(b"\xff")[0])


def _end_of(known: list[int], grammar: LLMatcher) -> list[int]:
    """The end of a known path that leads from where `grammar` stands to an end of the answer, if there is one."""
    for start in range(len(known)):
        # One id is soon asked for, and hardly ever fits where the rest does not.
        if grammar.validate_tokens(known[start : start + 1]):
            rest = known[start:]
            if grammar.validate_tokens(rest) == len(rest):
                return rest
    return []


def _next(grammar: LLMatcher, alphabet: Alphabet, used: Counter[int], *, closing: bool) -> list[int]:
    """A closer that fits, else a byte that an end fits behind, else the byte whose turn it is, else nothing."""

    def first(ids: Iterable[int], *behind: int) -> int | None:
        wanted = 1 + len(behind)
        return next((id_ for id_ in ids if grammar.validate_tokens([id_, *behind]) == wanted), None)

    # Behind the end of a call another one may begin, or all of them end: that is tried first.
    special = first(id_ for id_ in reversed(alphabet.specials) if used[id_] < TURN)
    if special is not None:
        used.update([special])
        return [special]
    ends = [alphabet.eos_id]
    if closing:
        in_text = first(alphabet.ids(LETTER)) is not None
        closers = alphabet.ids(CLOSERS_OF_TEXT if in_text else CLOSERS)
        closer = first(closers)
        if closer is not None:
            used.clear()
            return [closer]
        ends.extend(closers)
    order = sorted(alphabet.singles.values(), key=lambda id_: used[id_] // TURN)
    order = [id_ for id_ in order if grammar.validate_tokens([id_])]
    plain = [id_ for id_ in order if id_ not in alphabet.ids(ESCAPE)]
    last = next((id_ for end in ends if (id_ := first(plain, end)) is not None), None)
    chosen = [last] if last is not None else order[:1]
    used.update(chosen)
    return chosen
