"""The loop: propose, verify, commit, rewind; token ids only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from rapid_core.config import Speculation
from rapid_core.datatypes import DraftSource, FinishReason, Proposal, SourceStats, TokenEvent, Verdict
from rapid_core.drafting import Drafter
from rapid_core.lookup import Match, NgramIndex
from rapid_core.pacing import MOST_LOOKED_UP, Choice, Pacer, Room
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler
from rapid_core.second_retrieval import SecondRetrieval
from rapid_core.verification import augmented_target, greedy_target, one_hot, verify, verify_greedy


@dataclass(slots=True)
class Counts:
    """What happened so far; readable at any time, and right after an early end too."""

    sources: dict[DraftSource, SourceStats] = field(default_factory=dict)
    looked_up: int = 0
    looked_up_accepted: int = 0
    transferred: int = 0
    emitted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    drafter_full: bool = False

    @property
    def rounds(self) -> int:
        """Verifications by the target."""
        return sum(source.rounds for source in self.sources.values())

    @property
    def drafted(self) -> int:
        """Tokens that were proposed to the target."""
        return sum(source.drafted for source in self.sources.values())

    @property
    def accepted(self) -> int:
        """Of these, the tokens of the answer."""
        return sum(source.accepted for source in self.sources.values())


class Decoder:
    """Decodes one answer behind two prefilled prompts.

    target, drafter: prefilled. A drafter of None leaves lookup, where there is an index and a
    pacer, and plain decoding. eos_ids end the answer and are part of it. is_cancelled is asked
    before every round. index, pacer: what gamma="auto" needs, none for a fixed gamma. The index
    is extended here. again: what may change the drafter's prompt between two rounds.
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
        index: NgramIndex | None = None,
        pacer: Pacer | None = None,
        again: SecondRetrieval | None = None,
    ) -> None:
        self._target = target
        self._again = again
        self._drafter = drafter
        self._sampler = sampler
        self._speculation = speculation
        self._limit = max_new_tokens
        self._eos_ids = eos_ids
        self._is_cancelled = is_cancelled
        self._index, self._pacer = index, pacer
        self._gamma = 0 if speculation.gamma == "auto" else speculation.gamma
        # Tokens of the last round that had the transfer, from its beginning.
        self._decided = 0
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
            if self._again is not None:
                self._again.retrieve()
            ids, accepted = self._round()
            for position, id_ in enumerate(ids):
                counts.emitted += 1
                counts.transferred += position < self._decided
                yield TokenEvent(id_, drafted=position < accepted, round=counts.rounds - 1)
            if ids[-1] in self._eos_ids:
                self.finish_reason = "stop"
                return

    @torch.no_grad()
    def _round(self) -> tuple[list[int], int]:
        """One round: the committed ids, and how many of them were drafted."""
        started = time.perf_counter()
        proposal, source = self._propose()
        drafted_at = time.perf_counter()
        pending, size = len(self._target.pending), self._target.step_bytes(self._target.length)
        try:
            verdict = self._verify_nothing() if proposal is None else self._verify(proposal)
        finally:
            # Whoever finds NaN first, the runner must hear of it and forget its keys.
            self._target.confirm()
        verified_at = time.perf_counter()
        # Between two devices the ids travel once a round, here.
        ids: list[int] = proposal.ids.tolist() if proposal is not None else []
        decided = self._cut([*ids[: verdict.accepted], *self._behind(verdict, proposal)])
        # What ends a constrained answer within its limit is known without another forward.
        standing, closing = self._sampler.steer(decided, self._left())
        committed = [*standing, *closing]
        accepted = min(verdict.accepted, len(standing))
        if self._pacer is not None:
            self._pacer.record_target(pending + len(ids), size, verified_at - drafted_at)
            if proposal is not None:
                self._pacer.observe(proposal, verdict.accepted)
        self._count(source, proposal, len(standing), accepted)
        self.counts.draft_s += drafted_at - started
        self.counts.verify_s += verified_at - drafted_at
        self._target.commit(committed, accepted)
        self._sampler.commit(committed)
        if self._index is not None:
            self._index.extend(committed)
        if self._drafter is not None:
            self._drafter.commit(committed, accepted)
        return committed, accepted

    def _propose(self) -> tuple[Proposal | None, DraftSource]:
        """Let whoever drafts in this round draft."""
        match = self._index.find((), MOST_LOOKED_UP) if self._index is not None else None
        room = self._room(match)
        choice = self._pacer.choose(room) if self._pacer is not None else self._fixed(room)
        if choice.source == "lookup" and match is not None:
            ids = torch.tensor(match.ids[: choice.gamma], dtype=torch.long, device=self._target.device)
            return Proposal(ids, None, matched=match.length), "lookup"
        if choice.source == "drafter" and self._drafter is not None:
            most = min(room.left if self._transfers else room.left - 1, room.verifiable)
            proposal = self._drafter.propose(choice.gamma, most)
            if proposal is not None:
                return proposal, "drafter"
        return None, "nobody"

    @property
    def _transfers(self) -> bool:
        return self._speculation.transfers

    def _left(self) -> int:
        """Tokens that the answer may still have: its limit, or what the target's window holds."""
        return min(self._limit - self.counts.emitted, self._target.room)

    def _room(self, match: Match | None) -> Room:
        left, drafter = self._left(), self._drafter
        draftable = 0
        if drafter is not None:
            draftable = max(drafter.room, 0)
            if draftable == 0 and drafter.waiting == 0 and left > (0 if self._transfers else 1):
                self.counts.drafter_full = True
        return Room(
            left=left,
            verifiable=self._target.draft_room,
            draftable=draftable,
            matched=match.length if match is not None else 0,
            found=len(match.ids) if match is not None else 0,
            target_bytes=self._target.step_bytes(self._target.length),
            drafter_bytes=drafter.step_bytes if drafter is not None else 1,
            unread=drafter.unread if drafter is not None else 1,
            waiting=drafter.waiting if drafter is not None else 0,
        )

    def _fixed(self, room: Room) -> Choice:
        """The fixed gamma, or less where the answer, a window or the drafter ends before."""
        # A token after the drafts comes for free, so the last one need not be drafted. With
        # transfer it is, for the target's own token would be chosen without it.
        wanted = room.left if self._transfers else room.left - 1
        # Without a drafter an index is there for lookups alone.
        source: DraftSource = "drafter" if self._drafter is not None else "lookup"
        gamma = min(self._gamma, wanted, room.verifiable, room.draftable if source == "drafter" else room.found)
        return Choice(source, gamma) if gamma > 0 else Choice("nobody", 0)

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
        drafts = proposal.ids.to(device)
        pending = torch.tensor(self._target.pending, dtype=torch.long, device=device)
        raw = self._target.forward(torch.cat((pending, drafts)), len(drafts) + 1)
        logits = self._sampler.logits(raw, drafts)
        # What was looked up is in no drafter's focus: there is nothing to transfer.
        eta = options.fixed_eta if proposal.probs is not None else 0.0
        shared = proposal.shared.to(device) if proposal.shared is not None else None
        if self._sampler.sampling.greedy:
            if proposal.probs is None:
                return verify_greedy(drafts, logits.argmax(dim=-1))
            choices = greedy_target(logits[:-1], proposal.probs.to(device), eta, options.tail, options.alpha, shared)
            return verify_greedy(drafts, torch.cat((choices, logits[-1:].argmax(dim=-1))))
        draft_probs = one_hot(drafts, logits) if proposal.probs is None else proposal.probs.to(device)
        augmented = augmented_target(logits[:-1], draft_probs, eta, 1.0, options.tail, options.alpha, shared)
        return verify(drafts, draft_probs, logits.softmax(dim=-1), augmented, generator=self._sampler.generator)

    def _behind(self, verdict: Verdict, proposal: Proposal | None) -> list[int]:
        """The target's token behind the accepted drafts.

        Behind a full acceptance it has no transfer. A pacer, whose drafts are short, leaves that
        position to the next round, where the drafter proposes it.
        """
        full = proposal is not None and proposal.probs is not None and verdict.accepted == len(proposal.ids)
        if full and self._transfers and self._pacer is not None:
            return []
        return [verdict.next_id]

    def _count(self, source: DraftSource, proposal: Proposal | None, standing: int, accepted: int) -> None:
        counts = self.counts
        drafted = len(proposal.ids) if proposal is not None else 0
        known = counts.sources.get(source, SourceStats())
        counts.sources[source] = SourceStats(known.rounds + 1, known.drafted + drafted, known.accepted + accepted)
        self._decided = 0
        if proposal is None or proposal.probs is None:
            return
        if self._transfers:
            # Transfer reaches every drafted position that was decided, a rejected one included.
            self._decided = min(standing, drafted)
        for check in proposal.checks:
            counts.looked_up += check.looked_up
            counts.looked_up_accepted += check.accepted

    def _cut(self, ids: list[int]) -> list[int]:
        """The round's ids up to an end-of-sequence id, the limit or a new retrieval, whichever comes first."""
        ids = ids[: self._left()]
        for position, id_ in enumerate(ids):
            if id_ in self._eos_ids:
                ids = ids[: position + 1]
                break
        # What is behind it shall be decided with the new passages, however long the round was.
        return ids[: self._again.border(ids)] if self._again is not None else ids
