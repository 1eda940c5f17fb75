"""A drafter whose vocabulary is not the target's: tokens that are the same text stand for each other.

Everything but the drafter's model works in the target's ids. Its logits are brought to them
before anything is drawn: what has no counterpart cannot be drawn, and softmax gives the rest its
mass. So q is the distribution that the draft was drawn from, and acceptance stays exact. What
the target decides goes to the drafter as its own tokens of the same text.
Source: paper, section 4.1 (a drafter of another family); token-level intersection after Timor et
al., arXiv 2502.05202.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from rapid_core.datatypes import SharedVocabulary
from rapid_core.errors import VocabularyError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Below, hardly a word of one side is a token of the other: single bytes are less than this of any
# vocabulary that was learned.
LEAST_SHARE = 0.05
# Tokens of the target whose spelling in the drafter's tokens is remembered.
MOST_SPELLED = 65536
# Making one takes seconds for a large vocabulary, and a pair is matched before its weights are read and after.
_READERS: WeakKeyDictionary[Any, tuple[int, LLTokenizer]] = WeakKeyDictionary()


class Speaker(Protocol):
    """What is asked of a loaded model: its tokenizer, the ids that end an answer, the width of its logits."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def logit_size(self) -> int: ...


class Vocabulary(Protocol):
    """How a drafter reads and writes the target's ids."""

    @property
    def shared(self) -> Tensor | None:
        """[V] bool, the target's ids that the drafter can draw; None for all of them."""

    def read(self, ids: Sequence[int]) -> list[int]:
        """The drafter's ids of the text that the target's `ids` are."""

    def drafts(self, ids: Tensor) -> Tensor:
        """Drafts [k] as the drafter reads them, one id each."""

    def logits(self, raw: Tensor) -> Tensor:
        """The drafter's logits [k, V'] over the target's ids, [k, V]; -inf where it has no counterpart."""

    def beginning(self, ids: list[int]) -> list[int]:
        """Those of `ids` that stand before the first one that the drafter cannot draw."""


class SameVocabulary:
    """Both sides have one vocabulary: nothing changes."""

    shared = None

    def read(self, ids: Sequence[int]) -> list[int]:
        return list(ids)

    def drafts(self, ids: Tensor) -> Tensor:
        return ids

    def logits(self, raw: Tensor) -> Tensor:
        return raw

    def beginning(self, ids: list[int]) -> list[int]:
        return ids


SAME_VOCABULARY = SameVocabulary()


class Reader(Protocol):
    """What tells the bytes of tokens, and the tokens of bytes, which may come back as others."""

    def decode_bytes(self, tokens: list[int]) -> bytes: ...

    def tokenize_bytes(self, utf8bytes: bytes) -> list[int]: ...


class PlainReader:
    """Reads the tokens of a tokenizer as they are written, where nothing is known of their bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def decode_bytes(self, tokens: list[int]) -> bytes:
        return "".join(self._tokenizer.convert_ids_to_tokens(tokens)).encode()

    def tokenize_bytes(self, utf8bytes: bytes) -> list[int]:
        ids: list[int] = self._tokenizer.encode(utf8bytes.decode(errors="replace"), add_special_tokens=False)
        return ids


class TokenStrings:
    """Two vocabularies, matched by what their tokens spell.

    theirs: the drafter's id of each id of the target that has one. target, drafter: what tells
    the bytes of tokens. width: of the target's logits. Its tensors follow the drafter's.
    """

    def __init__(self, theirs: dict[int, int], target: Reader, drafter: Reader, width: int) -> None:
        self._theirs = theirs
        self._target, self._drafter = target, drafter
        index = torch.full((width,), -1, dtype=torch.long)
        index[list(theirs)] = torch.tensor(list(theirs.values()), dtype=torch.long)
        self.shared: Tensor = index >= 0
        self._index = index.clamp(min=0)
        self._spell = lru_cache(MOST_SPELLED)(self._spelled)

    def read(self, ids: Sequence[int]) -> list[int]:
        return [theirs for id_ in ids for theirs in self._spell(id_)]

    def drafts(self, ids: Tensor) -> Tensor:
        self._move(ids.device)
        return self._index[ids]

    def logits(self, raw: Tensor) -> Tensor:
        self._move(raw.device)
        return raw[..., self._index].masked_fill(~self.shared, -torch.inf)

    def beginning(self, ids: list[int]) -> list[int]:
        end = next((place for place, id_ in enumerate(ids) if id_ not in self._theirs), len(ids))
        return ids[:end]

    def _move(self, device: torch.device) -> None:
        if self._index.device != device:
            self._index, self.shared = self._index.to(device), self.shared.to(device)

    def _spelled(self, id_: int) -> tuple[int, ...]:
        """One token of the target in the drafter's; bytes that the drafter does not know at all are left out."""
        if id_ in self._theirs:
            return (self._theirs[id_],)
        text = self._target.decode_bytes([id_])
        ids = self._drafter.tokenize_bytes(text)
        if self._drafter.decode_bytes(ids) == text:
            return tuple(ids)
        # A tokenizer may add a space of its own, and reads no part of a character: one by one then.
        single = (self._drafter.tokenize_bytes(bytes([byte])) for byte in text)
        known = zip(text, single, strict=True)
        return tuple(one[0] for byte, one in known if self._drafter.decode_bytes(one) == bytes([byte]))


@dataclass(frozen=True, slots=True)
class Pairing:
    """How target and drafter understand each other, and how many of each side's logits are used."""

    vocabulary: Vocabulary
    report: SharedVocabulary
    target_size: int
    drafter_size: int


def pair_vocabularies(target: Speaker, drafter: Speaker) -> Pairing:
    """Match the vocabularies of a pair.

    Models of one vocabulary can be padded to different widths; then the ids of the tokenizer
    are what both know. Raises `VocabularyError` where two vocabularies share too little.
    """
    ours, theirs = target.tokenizer.get_vocab(), drafter.tokenizer.get_vocab()
    if ours == theirs:
        size = target.logit_size
        if size != drafter.logit_size:
            size = min(int(max(ours.values())) + 1, size, drafter.logit_size)
        report = SharedVocabulary(len(ours), len(ours), len(ours))
        return Pairing(SAME_VOCABULARY, report, size, size)
    sides = [_Tokens.of(side) for side in (target, drafter)]
    pairs = _match(*sides)
    report = SharedVocabulary(len(sides[0].ids), len(sides[1].ids), len(pairs))
    if min(report.of_target, report.of_drafter) < LEAST_SHARE:
        raise VocabularyError(
            f"target and drafter must share at least {LEAST_SHARE:.0%} of each one's tokens, and of those of "
            f"{target.name!r} and {drafter.name!r} {report}; choose a drafter of another family, or leave it out to "
            "let the target draft for itself"
        )
    vocabulary = TokenStrings(pairs, sides[0].reader, sides[1].reader, target.logit_size)
    return Pairing(vocabulary, report, target.logit_size, drafter.logit_size)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A vocabulary by what its tokens are: their bytes, and whether they are special.

    ends: what may end an answer; end: what the tokenizer ends one with, where it is one of them.
    """

    ids: dict[tuple[bool, bytes], int]
    reader: Reader
    end: int | None
    ends: frozenset[int]

    @classmethod
    def of(cls, side: Speaker) -> _Tokens:
        tokenizer = side.tokenizer
        reader = _reader(tokenizer)
        added = tokenizer.added_tokens_decoder
        ids: dict[tuple[bool, bytes], int] = {}
        for id_ in sorted(tokenizer.get_vocab().values()):
            token = added.get(id_)
            text = str(token).encode() if token is not None else reader.decode_bytes([id_])
            key = (token is not None and token.special, text)
            if id_ >= side.logit_size or not text:
                continue
            # Of two that spell the same, the one that the tokenizer itself would write.
            if key in ids and reader.tokenize_bytes(text) == [ids[key]]:
                continue
            ids[key] = id_
        end = tokenizer.eos_token_id
        return cls(ids, reader, end if end in side.eos_ids else None, side.eos_ids)


def _reader(tokenizer: Any) -> Reader:
    from llguidance.hf import from_tokenizer

    tokens, reader = _READERS.get(tokenizer, (0, None))
    if reader is None or tokens != len(tokenizer):
        try:
            reader = from_tokenizer(tokenizer)
        except ValueError:
            # A vocabulary of whole words, or a tokenizer in Python.
            return PlainReader(tokenizer)
        _READERS[tokenizer] = len(tokenizer), reader
    return reader


def _match(target: _Tokens, drafter: _Tokens) -> dict[int, int]:
    """The drafter's id of each id of the target that has one."""
    pairs = {id_: drafter.ids[key] for key, id_ in target.ids.items() if key in drafter.ids}
    # What ends an answer means the same, however it is written; text alone could pair the target's
    # end with a token that ends nothing in the drafter's answers.
    if target.end is None or drafter.end is None or pairs.get(target.end) in drafter.ends:
        return pairs
    others = {ours: theirs for ours, theirs in pairs.items() if theirs != drafter.end}
    return {**others, target.end: drafter.end}
