"""When the drafter's passages are searched for anew, and that it reads those that are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rapid_core.drafting import RagDrafter, WaitingPrompt
from rapid_core.runner import ModelRunner
from rapid_core.sentences import last_sentences, sentence_ends

# Sentences of the answer that are searched for with the question.
SENTENCES = 2
# An end of a sentence is looked for in so many of the last tokens.
LAST_TOKENS = 32


class SecondRetrieval:
    """Asks for other passages where the answer has gone on for long, at the end of a sentence.

    It looks at committed ids alone, and ends a round where it asks: neither what was drafted nor how
    long rounds were has a say in what the drafter reads.

    every: tokens of the answer from one retrieval to the next. decode: ids to text. search: told the
    last sentences of the answer and its tokens, returns a new prompt, or None where the drafter's stays. read:
    lets the drafter read ids.
    """

    def __init__(
        self,
        target: ModelRunner,
        drafter: RagDrafter,
        *,
        every: int,
        decode: Callable[[Sequence[int]], str],
        search: Callable[[str, int], Sequence[int] | None],
        read: Callable[[list[int]], None],
    ) -> None:
        self._target, self._drafter = target, drafter
        self._decode, self._search, self._read = decode, search, read
        self._prompt_length = len(target.sequence)
        self._every = every
        self._next = every

    def border(self, ids: Sequence[int]) -> int:
        """How many of the ids that a round decided come before the next retrieval; all, where none is due."""
        answer = self._answer
        for count in range(max(self._next - len(answer), 1), len(ids)):
            if self._ends_sentence([*answer[-LAST_TOKENS:], *ids[:count]]):
                return count
        return len(ids)

    def retrieve(self) -> None:
        """Before a round: ask for other passages where that is due, and let the drafter read them."""
        answer = self._answer
        if len(answer) < self._next or not self._ends_sentence(answer):
            return
        self._next = len(answer) + self._every
        prompt = self._search(last_sentences(self._decode(answer), SENTENCES), len(answer))
        if prompt is not None:
            self._drafter.reread(WaitingPrompt(list(prompt), self._read))

    @property
    def _answer(self) -> list[int]:
        return self._target.sequence[self._prompt_length :]

    def _ends_sentence(self, ids: Sequence[int]) -> bool:
        """Whether the last of `ids` made it certain that a sentence has ended."""
        ids = ids[-LAST_TOKENS:]
        return len(sentence_ends(self._decode(ids))) > len(sentence_ends(self._decode(ids[:-1])))
