"""Who proposes tokens: the drafter model on its short, retrieved context, and lookups for it to check."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rapid_core.cache_store import shared_prefix
from rapid_core.config import Speculation
from rapid_core.datatypes import Check, Proposal
from rapid_core.lookup import Match, NgramIndex
from rapid_core.pacing import MOST_LOOKED_UP, Pacer
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler
from rapid_core.verification import one_hot, verify, verify_greedy
from rapid_core.vocabulary import SAME_VOCABULARY, Vocabulary


class Drafter(Protocol):
    """What the decoder needs of whoever proposes."""

    @property
    def room(self) -> int:
        """How many tokens can still be proposed before the drafter's window is full."""

    @property
    def unread(self) -> int:
        """Committed ids that it reads before its first draft."""

    @property
    def step_bytes(self) -> int:
        """What one of its forwards over one token has to read."""

    @property
    def waiting(self) -> int:
        """Tokens of its prompt that it has to read before it can draft at all."""

    def propose(self, gamma: int, most: int) -> Proposal | None:
        """Draft about `gamma` tokens behind the committed ones, never over `most`; None where it has none."""

    def commit(self, ids: Sequence[int], accepted: int) -> None:
        """Take over what the target decided, the first `accepted` of them drafts, and forget the rejected ones."""


@dataclass(slots=True)
class WaitingPrompt:
    """A drafter's prompt that is read when the first draft is asked for; `read` prefills it.

    Committed tokens are appended to `ids` while it waits, as the drafter reads them.
    """

    ids: list[int]
    read: Callable[[list[int]], None]


class RagDrafter:
    """Drafts with a model that reads the retrieved passages (paper, section 3.1).

    sampler, eos_ids, index and what is proposed and committed are in the target's ids; vocabulary:
    how they are the drafter's own. waiting: its prompt, where that is not yet read. index, pacer:
    with both, it also checks looked-up tokens, many in one forward. Its drafts follow its own
    distribution all the same, by speculative sampling against itself.
    """

    def __init__(
        self,
        runner: ModelRunner,
        sampler: Sampler,
        speculation: Speculation,
        eos_ids: frozenset[int],
        *,
        vocabulary: Vocabulary = SAME_VOCABULARY,
        waiting: WaitingPrompt | None = None,
        index: NgramIndex | None = None,
        pacer: Pacer | None = None,
    ) -> None:
        self.runner = runner
        self._vocabulary = vocabulary
        # What its constraint asks for next, a drafter of another vocabulary may not have.
        self._may_lack = vocabulary.shared is not None and sampler.constrained
        self._sampler = sampler
        self._least_confidence = speculation.draft_confidence
        self._eos_ids = eos_ids
        self._waiting = waiting
        self._prompt_length = len(self._read_or_waiting)
        self._index, self._pacer = index, pacer
        # On an accelerator the host waits for a draft only where it has to know it.
        self._looks = runner.device.type == "cpu" or pacer is not None or self._least_confidence > 0

    @property
    def room(self) -> int:
        """The last draft is never read, so that one more fits than the window has places."""
        if self._waiting is not None:
            return self.runner.window - len(self._waiting.ids) + 1
        return self.runner.room + 1

    @property
    def unread(self) -> int:
        """One id, or two after a full acceptance."""
        return 1 if self._waiting is not None else len(self.runner.pending)

    @property
    def step_bytes(self) -> int:
        """Behind its prompt, also while that is not read: what an earlier request left does not count."""
        return self.runner.step_bytes(len(self._waiting.ids) if self._waiting is not None else self.runner.length)

    @property
    def waiting(self) -> int:
        """All of its prompt, or nothing."""
        return len(self._waiting.ids) if self._waiting is not None else 0

    def propose(self, gamma: int, most: int) -> Proposal | None:
        """Draft greedily or by sampling; one forward a token, or one for several looked-up ones.

        Only where looked-up tokens were right it is more than `gamma` tokens. A draft ends early
        only behind the token that ended it, for dropping a token by its value would bias what
        takes its place; or before a place where its vocabulary has nothing that the constraint
        allows, which depends on what stands before that place alone.
        """
        if self._waiting is not None:
            self._waiting.read(self._waiting.ids)
            self._waiting = None
        try:
            return self._drafted(gamma, most)
        finally:
            # Whoever finds NaN first, the runner must hear of it and forget its keys.
            self.runner.confirm()

    def reread(self, prompt: WaitingPrompt) -> None:
        """Draft behind another prompt from now on; what was committed comes behind it, and both wait to be read."""
        answer = self._read_or_waiting[self._prompt_length :]
        if self._waiting is None:
            # The new prompt takes the old one's place in the cache: one answer keeps one of the drafter's.
            self.runner.rewind(shared_prefix(self.runner.sequence, prompt.ids, self.runner.length))
        self._prompt_length = len(prompt.ids)
        prompt.ids.extend(answer)
        self._waiting = prompt

    def commit(self, ids: Sequence[int], accepted: int) -> None:
        """Append the round's tokens; each accepted draft is one id of the drafter's too."""
        read = self._vocabulary.read(ids)
        if self._waiting is not None:
            self._waiting.ids.extend(read)
        else:
            self.runner.commit(read, accepted)
        self._sampler.commit(ids)

    @property
    def _read_or_waiting(self) -> list[int]:
        """Its prompt and what was committed behind it."""
        return self._waiting.ids if self._waiting is not None else self.runner.sequence

    def _drafted(self, gamma: int, most: int) -> Proposal | None:
        drafts = _Drafts(self.runner.device, most=min(most, self.room))
        # After a full acceptance the last draft is still unread: the first forward reads two ids.
        unread = torch.tensor(self.runner.pending, dtype=torch.long, device=self.runner.device)
        while len(drafts) < gamma:
            match = self._match(drafts, len(unread))
            before = len(drafts)
            started = time.perf_counter()
            length = len(unread) + (len(match.ids) if match is not None else 0)
            if match is not None:
                self._check(unread, match, drafts)
            elif not self._draft(unread, drafts):
                break
            unread = self._vocabulary.drafts(drafts.ids[-1:])
            drafts.forwards.append(length)
            if not self._looks:
                continue
            drafts.look(before)
            if self._pacer is not None:
                self._pacer.record_drafter(length, self.step_bytes, time.perf_counter() - started)
            if self._ends(drafts, before):
                break
        return drafts.proposal(self._vocabulary.shared) if len(drafts) else None

    def _draft(self, unread: Tensor, drafts: _Drafts) -> bool:
        """One token by one forward; False where the drafter has none that the constraint allows."""
        logits = self._sampler.logits(self._vocabulary.logits(self.runner.forward(unread, 1)), drafts.ids)
        if self._may_lack and bool((logits == -torch.inf).all()):
            return False
        # probs: [1, V]; at temperature 0 the distribution at temperature 1, which the transfer needs
        probs = logits.softmax(dim=-1)
        drafts.add(logits.argmax(dim=-1) if self._sampler.sampling.greedy else self._sampler.draw(probs), probs)
        return True

    def _check(self, unread: Tensor, match: Match, drafts: _Drafts) -> None:
        """Read looked-up tokens in one forward, keep those that it would have drafted, draft the next one.

        Speculative sampling with the drafter as target and a one-hot proposal: what comes out
        follows the drafter's distribution.
        """
        candidates = torch.tensor(match.ids, dtype=torch.long, device=self.runner.device)
        read = len(self.runner.sequence) + len(drafts)
        raw = self.runner.forward(torch.cat((unread, self._vocabulary.drafts(candidates))), len(match.ids) + 1)
        logits = self._sampler.logits(self._vocabulary.logits(raw), torch.cat((drafts.ids, candidates)))
        probs = logits.softmax(dim=-1)
        if self._sampler.sampling.greedy:
            verdict = verify_greedy(candidates, logits.argmax(dim=-1))
        else:
            proposed = one_hot(candidates, probs)
            verdict = verify(candidates, proposed, probs, probs[:-1], generator=self._sampler.generator)
        accepted = verdict.accepted
        self.runner.rewind(read + accepted)
        following = torch.tensor([verdict.next_id], dtype=torch.long, device=self.runner.device)
        drafts.add(torch.cat((candidates[:accepted], following)), probs[: accepted + 1])
        drafts.checks.append(Check(match.length, len(match.ids), accepted))

    def _match(self, drafts: _Drafts, unread: int) -> Match | None:
        """Tokens to check in the next forward, where that pays."""
        # Rows of several places at once cannot end where one of them has nothing to draw.
        if self._index is None or self._pacer is None or self._may_lack:
            return None
        limit = min(drafts.most - len(drafts) - 1, self.runner.draft_room - len(drafts) - 1, MOST_LOOKED_UP)
        match = self._index.find(drafts.known, limit)
        if match is None:
            return None
        found = self._vocabulary.beginning(match.ids)
        count = self._pacer.look_up(match.length, len(found), unread)
        return Match(found[:count], match.length) if count else None

    def _ends(self, drafts: _Drafts, before: int) -> bool:
        new = slice(before, None)
        if self._eos_ids.intersection(drafts.known[new]):
            return True
        if self._least_confidence and min(drafts.sureness[new]) < self._least_confidence:
            return True
        return self._pacer is not None and not self._pacer.goes_on(drafts.sureness)


class _Drafts:
    """The drafts of one round as they come: on the device, and on the host where it looks."""

    def __init__(self, device: torch.device, *, most: int) -> None:
        self.most = most
        self.ids = torch.empty(0, dtype=torch.long, device=device)
        self.known: list[int] = []
        self.sureness: list[float] = []
        self.forwards: list[int] = []
        self.checks: list[Check] = []
        self._rows: list[Tensor] = []

    def __len__(self) -> int:
        return self.ids.shape[0]

    def add(self, ids: Tensor, probs: Tensor) -> None:
        self.ids = torch.cat((self.ids, ids))
        self._rows.append(probs)

    def look(self, start: int) -> None:
        """Bring the ids from `start` on to the host, with the probabilities that the drafter gave them."""
        ids = self.ids[start:]
        sure = self._rows[-1].gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        self.known.extend(ids.tolist())
        self.sureness.extend(sure.tolist())

    def proposal(self, shared: Tensor | None) -> Proposal:
        return Proposal(
            self.ids,
            torch.cat(self._rows),
            tuple(self.sureness),
            tuple(self.forwards),
            tuple(self.checks),
            shared=shared,
        )
