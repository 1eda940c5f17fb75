"""Who proposes tokens: the drafter model on its short, retrieved context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from rapid_core.config import Speculation
from rapid_core.datatypes import Proposal
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler


class Drafter(Protocol):
    """What the decoder needs of whoever proposes."""

    @property
    def room(self) -> int:
        """How many tokens can still be proposed before the drafter's window is full."""

    def propose(self, gamma: int) -> Proposal:
        """Draft up to `gamma` tokens behind the committed ones."""

    def commit(self, ids: Sequence[int]) -> None:
        """Take over what the target decided, and forget the rejected drafts."""


class RagDrafter:
    """Drafts with a model that reads the retrieved passages (paper, section 3.1)."""

    def __init__(
        self, runner: ModelRunner, sampler: Sampler, speculation: Speculation, eos_ids: frozenset[int]
    ) -> None:
        self.runner = runner
        self._sampler = sampler
        self._least_confidence = speculation.draft_confidence
        self._eos_ids = eos_ids

    @property
    def room(self) -> int:
        """The last draft is never read, so that one more fits than the window has places."""
        return self.runner.room + 1

    def propose(self, gamma: int) -> Proposal:
        """Draft greedily or by sampling; one forward a token.

        A draft ends early only behind the token that ended it, for dropping a token by its
        value would bias what takes its place.
        """
        greedy = self._sampler.sampling.greedy
        ids = torch.empty(0, dtype=torch.long, device=self.runner.device)
        rows = []
        # After a full acceptance the last draft is still unread: the first forward reads two ids.
        unread = torch.tensor(self.runner.pending, dtype=torch.long, device=self.runner.device)
        for _ in range(gamma):
            logits = self._sampler.logits(self.runner.forward(unread, 1), ids)
            # probs: [1, V]; at temperature 0 the distribution at temperature 1, which the transfer needs
            probs = logits.softmax(dim=-1)
            unread = logits.argmax(dim=-1) if greedy else self._sampler.draw(probs)
            ids = torch.cat((ids, unread))
            rows.append(probs)
            drafted = int(unread)
            if drafted in self._eos_ids:
                break
            if self._least_confidence and float(probs[0, drafted]) < self._least_confidence:
                break
        return Proposal(ids, torch.cat(rows))

    def commit(self, ids: Sequence[int]) -> None:
        """Append the round's tokens; the runner's length says what it read of them."""
        self.runner.commit(ids)
        self._sampler.commit(ids)
