"""The two prompts of a request, as they come about; what planning writes into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rapid_core.config import Retrieval
from rapid_core.datatypes import Chunk, PromptPair
from rapid_core.history import AnyTask
from rapid_core.retrieval import budget_tokens

OnProgress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Plan:
    """The prompts of one request and how they came about.

    task: with the text that several documents make, once it is known which of them are read.
    """

    task: AnyTask
    prompts: PromptPair
    context_tokens: int = 0
    retrieved: tuple[Chunk, ...] = ()
    left_out: tuple[str, ...] = ()
    retrieval_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    def drafter_budget(self, retrieval: Retrieval, drafter_window: int, taken: int) -> int:
        """Tokens of passages that the drafter may read where `taken` tokens of its window are not for them."""
        budget, room = budget_tokens(self.context_tokens, retrieval), drafter_window - taken
        if room < budget:
            self.notes.append(
                f"the drafter's window of {drafter_window:,} tokens shrank its budget to {max(room, 0):,}"
            )
        return min(budget, room)

    def note_nothing_found(self, retrieval: Retrieval, ranked: list[Chunk], near: int) -> None:
        """Say why there is no drafter: none of the ranked passages is near, or those that are do not fit."""
        best = f"; the best one has {ranked[0].score:.2f}" if ranked else ""
        self.notes.append(
            "no drafter: no passage fits the drafter's budget"
            if near
            else f"no drafter: no passage is as similar to the question as {retrieval.threshold:g}{best}"
        )
