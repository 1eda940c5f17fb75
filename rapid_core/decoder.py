"""The loop: propose, verify, commit, rewind; token ids only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from rapid_core.config import Speculation
from rapid_core.datatypes import FinishReason, Proposal, TokenEvent, Verdict
from rapid_core.drafting import Drafter
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler
from rapid_core.verification import augmented_target, greedy_target, verify, verify_greedy


@dataclass(slots=True)
class Counts:
    """What happened so far; readable at any time, and right after an early end too."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    transferred: int = 0
    emitted: int = 0
    drafter_full: bool = False


class Decoder:
    """Decodes one answer behind two prefilled prompts.

    target, drafter: prefilled. A drafter of None is plain decoding. eos_ids end the answer and
    are part of it. is_cancelled is asked before every round.
    """

    def __init__(
        self,
        target: ModelRunner,
        drafter: Drafter | None,
        sampler: Sampler,
        speculation: Speculation,
        *,
        max_new_tokens: int,
        eos_ids: frozenset[int],
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._sampler = sampler
        self._speculation = speculation
        self._limit = max_new_tokens
        self._eos_ids = eos_ids
        self._is_cancelled = is_cancelled
        self.counts = Counts()
        self.finish_reason: FinishReason = "cancelled"

    def tokens(self) -> Iterator[TokenEvent]:
        """Yield the answer's tokens; a round is decided as a whole before its first token is.

        Both caches stand at the committed tokens whenever this yields, so that a consumer may
        stop at any of them.
        """
        counts = self.counts
        while not self._is_cancelled():
            if self._left() < 1:
                self.finish_reason = "length"
                return
            ids, accepted = self._round()
            for position, id_ in enumerate(ids):
                counts.emitted += 1
                yield TokenEvent(id_, drafted=position < accepted, round=counts.rounds - 1)
            if ids[-1] in self._eos_ids:
                self.finish_reason = "stop"
                return

    @torch.no_grad()
    def _round(self) -> tuple[list[int], int]:
        """One round: the committed ids, and how many of them the drafter proposed."""
        counts = self.counts
        gamma = self._draft_length()
        proposal = self._drafter.propose(gamma) if self._drafter is not None and gamma > 0 else None
        if proposal is None:
            verdict, ids = self._verify_nothing(), []
        else:
            # Over the drafts' device the ids travel once a round, here.
            verdict, ids = self._verify(proposal), proposal.ids.tolist()
        drafted = len(ids)
        committed = self._cut([*ids[: verdict.accepted], verdict.next_id])
        counts.rounds += 1
        counts.drafted += drafted
        counts.accepted += min(verdict.accepted, len(committed))
        if self._speculation.eta > 0:
            # Transfer reaches every drafted position that was decided, a rejected one included.
            counts.transferred += min(len(committed), drafted)
        self._target.commit(committed)
        self._sampler.commit(committed)
        if self._drafter is not None:
            self._drafter.commit(committed)
        return committed, min(verdict.accepted, len(committed))

    def _left(self) -> int:
        """Tokens that the answer may still have: its limit, or what the target's window holds."""
        return min(self._limit - self.counts.emitted, self._target.room)

    def _draft_length(self) -> int:
        """The fixed gamma, or less where the answer, a window or the drafter ends before."""
        if self._drafter is None:
            return 0
        left = self._left()
        # A token after the drafts comes for free, so the last one need not be drafted. With
        # transfer it is, for the target's own token would be chosen without it.
        wanted = left if self._speculation.eta > 0 else left - 1
        gamma = min(self._speculation.gamma, wanted, self._target.draft_room)
        if self._drafter.room < min(gamma, 1):
            self.counts.drafter_full = True
        return max(0, min(gamma, self._drafter.room))

    def _verify_nothing(self) -> Verdict:
        pending = torch.tensor(self._target.pending, dtype=torch.long, device=self._target.device)
        no_drafts = pending[:0]
        logits = self._sampler.logits(self._target.forward(pending, 1), no_drafts)
        if self._sampler.sampling.greedy:
            return Verdict(0, int(logits.argmax(dim=-1)))
        return Verdict(0, int(self._sampler.draw(logits.softmax(dim=-1))))

    def _verify(self, proposal: Proposal) -> Verdict:
        """One target forward over the pending token and the drafts.

        It scores one position more than there are drafts: after a full acceptance the last row
        gives the next token without another forward.
        """
        device, options = self._target.device, self._speculation
        drafts, draft_probs = proposal.ids.to(device), proposal.probs.to(device)
        pending = torch.tensor(self._target.pending, dtype=torch.long, device=device)
        raw = self._target.forward(torch.cat((pending, drafts)), len(drafts) + 1)
        logits = self._sampler.logits(raw, drafts)
        if self._sampler.sampling.greedy:
            choices = greedy_target(logits[:-1], draft_probs, options.eta, options.tail, options.alpha)
            return verify_greedy(drafts, torch.cat((choices, logits[-1:].argmax(dim=-1))))
        augmented = augmented_target(logits[:-1], draft_probs, options.eta, 1.0, options.tail, options.alpha)
        return verify(drafts, draft_probs, logits.softmax(dim=-1), augmented, generator=self._sampler.generator)

    def _cut(self, ids: list[int]) -> list[int]:
        """The round's ids up to an end-of-sequence id or the limit, whichever comes first."""
        ids = ids[: self._left()]
        for position, id_ in enumerate(ids):
            if id_ in self._eos_ids:
                return ids[: position + 1]
        return ids
