"""Constraints at work: which tokens may stand at each place of an answer, and how it ends within its limit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from rapid_core.closing import Alphabet, find_closing
from rapid_core.constraint import JSON_OPTIONS, Constraint
from rapid_core.errors import ModelOutputError, OptionError

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from llguidance._lib import JsonCompileOptions

# How far a closing path is looked for from the beginning of an answer, in tokens.
MOST_CLOSING = 4096
# Of an error that is not ours, in characters.
MOST_REASON = 300
WORD_BITS = 32
# How a grammar names a token that is no text.
SPECIALS = re.compile(r"<\[(\d+)\]>")


class Grammars:
    """Makes the matchers of one tokenizer; what they share is made once, with the first: it takes about a second.

    vocab_size: the width of the logits. Ids that the tokenizer does not know never fit.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._alphabets: dict[tuple[int, ...], Alphabet] = {}

    def matcher(
        self,
        constraint: Constraint,
        eos_ids: frozenset[int],
        max_new_tokens: int,
        *,
        shorter: Constraint | None = None,
    ) -> Matcher:
        """A matcher at the beginning of an answer, which one of `eos_ids` must end.

        shorter: a form that `constraint` allows, too, where a shorter end may be found. Raises
        `OptionError` for a constraint that cannot be enforced, and where its shortest answer and
        an end-of-sequence id take more than `max_new_tokens`.
        """
        alphabet = self._alphabet(eos_ids).with_specials(SPECIALS.findall(constraint.text))
        grammar = _grammar(constraint, alphabet)
        closing = find_closing(grammar, alphabet, MOST_CLOSING)
        if shorter is not None and shorter != constraint:
            other = find_closing(_grammar(shorter, alphabet), alphabet, MOST_CLOSING)
            if other is not None and (closing is None or len(other) < len(closing)):
                closing = other
        matcher = Matcher(grammar, alphabet, self._vocab_size, closing)
        # A grammar without any answer is found here, and not behind a long prefill.
        matcher.forbidden((), 1)
        if matcher.shortest > max_new_tokens:
            raise OptionError(
                f"max_new_tokens must leave room for an answer of the constraint's form, and got {max_new_tokens}: "
                f"the shortest one that was found takes {matcher.shortest}, its end included; raise max_new_tokens"
            )
        return matcher

    def _alphabet(self, eos_ids: frozenset[int]) -> Alphabet:
        usable = tuple(sorted(id_ for id_ in eos_ids if 0 <= id_ < self._vocab_size))
        if not usable:
            raise OptionError(
                f"a constraint needs an end-of-sequence id below {self._vocab_size:,} to end the answer with, and the "
                f"model has {sorted(eos_ids)}; set eos_token_id in its generation_config"
            )
        if usable not in self._alphabets:
            from llguidance.hf import from_tokenizer

            try:
                made = from_tokenizer(self._tokenizer, eos_token=list(usable))
            except ValueError as error:
                raise OptionError(
                    f"a constraint needs a tokenizer whose bytes llguidance can read, and "
                    f"{type(self._tokenizer).__name__} is none: {_short(str(error))}; use a fast tokenizer"
                ) from error
            self._alphabets[usable] = Alphabet.of(made, self._vocab_size, usable[0])
        return self._alphabets[usable]


class Matcher:
    """Where one role's answer stands in its grammar.

    It reads drafts ahead of what was committed, and takes them back where others come. closing:
    ids that end the answer from its beginning; None where none were found, and then nothing
    makes the answer end in time.
    """

    def __init__(self, grammar: LLMatcher, alphabet: Alphabet, vocab_size: int, closing: list[int] | None) -> None:
        self._grammar = grammar
        self._alphabet = alphabet
        self._vocab_size = vocab_size
        self._closing = closing
        # Drafts that were read, and whether the last of them ends the answer.
        self._ahead: list[int] = []
        self._ended = False
        # What the grammar writes of a row, in whole words; ids of the model beyond it stay 0.
        self._written = -(-alphabet.tokenizer.vocab_size // WORD_BITS)
        self._packed = torch.zeros(0, max(self._written, -(-vocab_size // WORD_BITS)), dtype=torch.int32)

    def twin(self) -> Matcher:
        """Another matcher at the same place, for the other role."""
        return Matcher(self._grammar.deep_copy(), self._alphabet, self._vocab_size, self._closing)

    @property
    def ends(self) -> bool:
        """Whether a way to end the answer is known, so that it is whole within its limit."""
        return self._closing is not None

    @property
    def shortest(self) -> int:
        """Tokens that end the answer from here, the end-of-sequence id included; 0 where none were found."""
        return len(self._closing or ())

    def forbidden(self, draft_ids: Sequence[int], rows: int) -> Tensor:
        """Which ids do not fit: [rows, V], on the CPU; row i stands behind the first d - rows + 1 + i of d drafts.

        Behind a draft that does not fit, or behind an end, nothing is asked for: such rows are
        never used. Raises `OptionError` where nothing fits behind the committed answer.
        """
        if self._packed.shape[0] < rows:
            self._packed = torch.zeros(rows, self._packed.shape[1], dtype=torch.int32)
        first = len(draft_ids) - rows + 1
        fits = True
        for row in range(rows):
            # Each reads one draft more than the row before it.
            fits = fits and self._read(draft_ids[: first + row])
            if not fits or not self._write(row):
                # Ids beyond what the grammar writes stay forbidden: nobody would clear them again.
                self._packed[row, : self._written] = -1
        # numpy unpacks bits twenty times as fast as torch shifts and compares them.
        unfit = np.unpackbits(~self._packed[:rows].numpy().view(np.uint8), axis=1, bitorder="little")
        return torch.from_numpy(unfit[:, : self._vocab_size]).view(torch.bool)

    def steer(self, ids: Sequence[int], left: int) -> tuple[list[int], list[int]]:
        """Those of the decided `ids` that leave room for an end within `left` tokens, and how to end behind them.

        The second list is empty where all stand. Else it ends the answer from where the first
        id that leaves no room would stand. It depends on the answer so far and `left` alone, and
        so leaves the law of what comes before untouched. Both lists are committed next.
        """
        if self._closing is None:
            return list(ids), []
        for position, id_ in enumerate(ids):
            if not self._read(ids[: position + 1]):
                raise _unfit(id_)
            closing = self._behind(id_, self._closing, left - position - 1)
            if closing is None:
                return list(ids[:position]), self._closing
            self._closing = closing
        return list(ids), []

    def commit(self, ids: Sequence[int]) -> None:
        """Take over what was decided; raises `ModelOutputError` for what does not fit."""
        if not self._read(ids):
            raise _unfit(ids[len(self._ahead)])
        self._ahead.clear()

    def _behind(self, id_: int, closing: list[int], left: int) -> list[int] | None:
        """A closing path of at most `left` ids behind `id_`, which `closing` stood before and the grammar has read."""
        if id_ == closing[0]:
            return closing[1:]
        if self._ended:
            return []
        # In the middle of a text the same path ends it, whatever was written.
        if len(closing) <= left and self._grammar.validate_tokens(closing) == len(closing):
            return closing
        return find_closing(self._grammar, self._alphabet, left, closing)

    def _read(self, ids: Sequence[int]) -> bool:
        """Stand behind the committed answer and `ids`, as far as they fit; whether all do."""
        same = 0
        while same < min(len(ids), len(self._ahead)) and ids[same] == self._ahead[same]:
            same += 1
        if same < len(self._ahead):
            # The grammar itself never reads an end: where nothing else can follow, it refuses to.
            self._grammar.rollback(len(self._ahead) - same - self._ended)
            self._ended = False
            del self._ahead[same:]
        while len(self._ahead) < len(ids) and self._take(ids[len(self._ahead)]):
            self._ahead.append(ids[len(self._ahead)])
        return len(self._ahead) == len(ids)

    def _take(self, id_: int) -> bool:
        """Read one id; whether it fits."""
        if self._ended:
            return False
        if id_ in self._alphabet.tokenizer.eos_tokens:
            self._ended = self._grammar.is_accepting()
            return self._ended
        taken = self._grammar.try_consume_tokens([id_])
        if self._grammar.is_error():
            raise _stuck(self._grammar.get_error())
        return taken == 1

    def _write(self, row: int) -> bool:
        """Write what fits here into a row; whether anything does."""
        packed = self._packed[row]
        # A copy, for a grammar that finds no way on stays broken, also when the draft before is taken back.
        grammar = self._grammar.deep_copy()
        grammar.unsafe_compute_mask_ptr(packed.data_ptr(), self._written * packed.element_size())
        # Some offer an end then that they do not accept.
        word, bit = divmod(self._alphabet.eos_id, WORD_BITS)
        ends = bool(int(packed[word]) >> bit & 1)
        if not grammar.is_error() and ends == grammar.is_accepting():
            return True
        if self._ahead:
            return False
        raise _stuck(grammar.get_error() or grammar.stop_reason())


def _grammar(constraint: Constraint, alphabet: Alphabet) -> LLMatcher:
    """A matcher of llguidance's; raises `OptionError` for what it cannot enforce."""
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher(alphabet.tokenizer, _text(constraint), log_level=0)
    except ValueError as error:
        raise _not_enforced(constraint, str(error)) from error
    if grammar.is_error():
        raise _not_enforced(constraint, grammar.get_error())
    if warnings := grammar.get_grammar_warnings():
        raise _not_enforced(constraint, "; ".join(warnings))
    return grammar


def _text(constraint: Constraint) -> str:
    """The grammar as llguidance writes it."""
    from llguidance import LLMatcher

    if constraint.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(constraint.text, overrides=cast("JsonCompileOptions", JSON_OPTIONS))
    if constraint.kind == "regex":
        return LLMatcher.grammar_from_regex(constraint.text)
    return LLMatcher.grammar_from_lark(constraint.text)


def _not_enforced(constraint: Constraint, reason: str) -> OptionError:
    return OptionError(
        f"a constraint must be one that llguidance can enforce, and {constraint!r} is none: {_short(reason)}; "
        "leave that out, or check the answer yourself"
    )


def _stuck(reason: str) -> OptionError:
    return OptionError(
        "a constraint must have a way on wherever the answer stands, within llguidance's limits, and this one has "
        f"none: {_short(reason)}; look for rules that contradict each other, or write a simpler one"
    )


def _unfit(id_: int) -> ModelOutputError:
    return ModelOutputError(
        f"a token must fit the constraint, and the model chose {id_}: it gives none that fits any probability"
    )


def _short(reason: str) -> str:
    """An error's own words in one line, without the state of the parser that may follow them."""
    line = " ".join(reason.partition("<state>")[0].split())
    return line if len(line) <= MOST_REASON else line[:MOST_REASON] + "…"
