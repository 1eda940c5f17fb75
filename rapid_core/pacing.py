"""Who drafts in a round and how many tokens, from what forwards cost and how drafts fared.

A choice is rated by expected tokens over expected seconds. With acceptance a, gamma drafts give
1 + a + … + a^gamma tokens; where every position shall have the drafter's transfer, the token
behind the last draft is left to the next round, and they give 1 + a + … + a^(gamma-1).

A choice uses what was committed before the round and nothing that the round will draw, so that
the law of the output stays what it is. Only greedy drafts, where there is no law to bias, also
end by how sure the drafter was of them.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from rapid_core.datatypes import DraftSource, Proposal

MOST_DRAFTS = 16
# What is left of an answer that has no end yet, when a prefill has to pay within it.
TYPICAL_ANSWER = 128
PREFILL_CHUNK = 512
# With what else a forward reads, at most as many as a compiled step takes.
MOST_LOOKED_UP = 30

# Seconds a byte and the cost of one forward over k tokens as a multiple of one over a single
# token, before anything is measured: two CPU cores (docs/notes.md), and a GPU that is not yet busy.
CPU_COSTS = (1e-10, ((1, 1.0), (2, 1.1), (4, 1.4), (8, 1.8), (12, 2.1), (16, 2.2), (32, 3.3), (512, 22.0)))
ACCELERATOR_COSTS = (1e-12, ((1, 1.0), (16, 1.05), (32, 1.15), (512, 4.0)))

# Lookups by the length of the match, drafts by the drafter's own probability: where the classes
# begin, and the acceptance of each before any was seen.
MATCH_CLASSES = (3, 4, 6, 9, 16)
MATCH_PRIORS = (0.3, 0.45, 0.6, 0.75, 0.85, 0.92)
SURENESS_CLASSES = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
SURENESS_PRIORS = (0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95)
DRAFT_PRIOR = 0.75
# With transfer the target goes along with drafts of which the drafter itself is hardly sure.
TRANSFER_PRIOR = 0.85
PRIOR_WEIGHT = 2.0
# Old outcomes fade with each new token, so that an answer that begins to quote is soon noticed, and
# with each round, so that what failed once is tried again.
FADING = 0.95
ROUND_FADING = 0.99
# Share of a new measurement in what a forward is thought to cost; outliers of a busy machine are capped.
NEWEST_SHARE = 0.3
LARGEST_JUMP = 2.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Who drafts in a round, and how many tokens at the most."""

    source: DraftSource
    gamma: int


class Rate:
    """An acceptance rate that starts from a guess and forgets old outcomes."""

    def __init__(self, guess: float) -> None:
        self._guess = guess
        self._accepted = self._rejected = 0.0

    @property
    def mean(self) -> float:
        """The expected acceptance of the next token."""
        seen = self._accepted + self._rejected
        return (self._accepted + PRIOR_WEIGHT * self._guess) / (seen + PRIOR_WEIGHT)

    def observe(self, accepted: int, rejected: int) -> None:
        """Count tokens; at most one of a draft is rejected, those behind it say nothing."""
        self.fade(FADING ** (accepted + rejected))
        self._accepted += accepted
        self._rejected += rejected

    def fade(self, kept: float) -> None:
        """Keep this part of what was seen."""
        self._accepted *= kept
        self._rejected *= kept


class CostTable:
    """What one role's forwards cost by the number of tokens in them.

    Costs are seconds a byte that a forward over one token has to read, so that they hold for
    caches of any length. They outlive a request.
    """

    def __init__(self, *, accelerator: bool) -> None:
        costs = ACCELERATOR_COSTS if accelerator else CPU_COSTS
        self._per_byte: float = costs[0]
        self._shape: tuple[tuple[int, float], ...] = costs[1]
        self._begun: set[int] = set()
        self._tokens: list[int] = []
        self._measured: list[float] = []

    def seconds(self, tokens: int, size: int, *, measured: bool = True) -> float:
        """Expected seconds of a forward over `tokens`, where one over a single token reads `size` bytes.

        measured: False reckons with the costs that stand above, which no clock changes.
        """
        guess = self._guess(tokens)
        if not measured or not self._tokens:
            return guess * size
        at = bisect_left(self._tokens, tokens)
        low, high = max(at - 1, 0), min(at, len(self._tokens) - 1)
        share = 0.0
        if self._tokens[high] > self._tokens[low]:
            share = (tokens - self._tokens[low]) / (self._tokens[high] - self._tokens[low])
        ratios = [self._measured[i] / self._guess(self._tokens[i]) for i in (low, high)]
        return guess * size * (ratios[0] + min(max(share, 0.0), 1.0) * (ratios[1] - ratios[0]))

    def record(self, tokens: int, size: int, seconds: float) -> None:
        """Take over what a forward really cost.

        The first one of each length is left out: libraries load, kernels are chosen and graphs
        recorded in it, and a source that seems dear is not chosen again and never measured anew.
        """
        if tokens not in self._begun:
            self._begun.add(tokens)
            return
        cost = seconds / size
        expected = self.seconds(tokens, 1)
        if self._tokens:
            cost = min(cost, LARGEST_JUMP * expected)
        at = bisect_left(self._tokens, tokens)
        if at == len(self._tokens) or self._tokens[at] != tokens:
            self._tokens.insert(at, tokens)
            self._measured.insert(at, cost)
        else:
            self._measured[at] += NEWEST_SHARE * (cost - self._measured[at])

    def _guess(self, tokens: int) -> float:
        """The cost before measurement, linear between the points of the shape and beyond them."""
        points = self._shape
        at = min(max(bisect([k for k, _ in points], tokens), 1), len(points) - 1)
        (k0, f0), (k1, f1) = points[at - 1], points[at]
        return self._per_byte * (f0 + (f1 - f0) * (tokens - k0) / (k1 - k0))


@dataclass(frozen=True, slots=True)
class Room:
    """What a round may do; tokens, and bytes where it says so.

    left: of the answer, at least 1. verifiable: drafts that one target forward takes. draftable:
    drafts that the drafter's window takes, 0 without a drafter. matched: length of the lookup's
    match, 0 for none; found: the tokens behind it. target_bytes, drafter_bytes: what a forward
    over one token reads. unread: ids that the drafter reads before its first draft. waiting:
    tokens of its prompt that it has not read at all.
    """

    left: int
    verifiable: int
    draftable: int = 0
    matched: int = 0
    found: int = 0
    target_bytes: int = 1
    drafter_bytes: int = 1
    unread: int = 1
    waiting: int = 0


class Pacer:
    """Chooses each round's drafting for one request.

    target_costs, drafter_costs: of the engine, shared by its requests. transfer: every position
    shall have the drafter's transfer, so that only the drafter proposes while it can. greedy:
    the answer does not depend on the choices, so that the clock may have a say, and drafts may
    end by how sure the drafter was. With sampling both are left out: a seed gives the same text
    again, on a busy machine too.
    """

    def __init__(self, target_costs: CostTable, drafter_costs: CostTable, *, transfer: bool, greedy: bool) -> None:
        self.transfer = transfer
        self._greedy = greedy
        self._target_costs, self._drafter_costs = target_costs, drafter_costs
        self._drafts = Rate(TRANSFER_PRIOR if transfer else DRAFT_PRIOR)
        self._lookups = [Rate(guess) for guess in MATCH_PRIORS]
        self._checks = [Rate(guess) for guess in MATCH_PRIORS]
        self._sureness = [Rate(max(guess, TRANSFER_PRIOR) if transfer else guess) for guess in SURENESS_PRIORS]
        # Seconds a draft over those of a forward for one: below 1 where lookups save forwards.
        self._forwards_a_draft = 1.0
        self._round = Room(left=1, verifiable=0)
        self._tokens_per_s = 0.0

    def choose(self, room: Room) -> Choice:
        """The choice with the most expected tokens a second; of equals the first, which drafts least."""
        self._round = room
        for rate in (self._drafts, *self._lookups, *self._checks):
            rate.fade(ROUND_FADING)
        drafts_must = self.transfer and min(room.draftable, room.verifiable) > 0
        options = [] if drafts_must else [self._nobody(room), *self._looking_up(room)]
        if room.draftable > 0:
            options += self._drafting(room)
        self._tokens_per_s, choice = max(options, key=lambda option: option[0])
        return choice

    def look_up(self, matched: int, found: int, unread: int) -> int:
        """How many looked-up tokens the drafter shall check in its next forward; 0 for a plain draft."""
        rate, size = self._of_match(self._checks, matched).mean, self._round.drafter_bytes
        best, chosen = 1 / self._drafter_seconds(unread, size), 0
        for count, tokens in enumerate(_tokens(rate, found)[1:], start=1):
            speed = tokens / self._drafter_seconds(unread + count, size)
            if speed > best:
                best, chosen = speed, count
        return chosen

    def goes_on(self, sureness: Sequence[float]) -> bool:
        """Whether more greedy drafts pay, after drafts that the drafter gave these probabilities.

        They do if some number of them is worth more tokens than pass on the whole in the time that
        they take. One more alone would not do as a test: a forward over 4 tokens can cost more
        than one over 8.
        """
        if not self._greedy:
            return True
        room, drafted = self._round, len(sureness)
        reached = 1.0
        for probability in sureness:
            reached *= self._of_sureness(probability).mean
        if not self.transfer:
            reached *= self._drafts.mean
        draft = self._forwards_a_draft * self._drafter_seconds(1, room.drafter_bytes)
        so_far = self._target_seconds(drafted + 1, room.target_bytes)
        gained = 0.0
        for count in range(drafted + 1, MOST_DRAFTS + 1):
            gained += reached
            reached *= self._drafts.mean
            seconds = (count - drafted) * draft + self._target_seconds(count + 1, room.target_bytes) - so_far
            if gained > self._tokens_per_s * seconds:
                return True
        return False

    def record_target(self, tokens: int, size: int, seconds: float) -> None:
        """Take over what a verification cost, from its forward to its verdict."""
        self._target_costs.record(tokens, size, seconds)

    def record_drafter(self, tokens: int, size: int, seconds: float) -> None:
        """Take over what one of the drafter's forwards cost."""
        self._drafter_costs.record(tokens, size, seconds)

    def observe(self, proposal: Proposal, accepted: int) -> None:
        """Take over how many tokens of a proposal the target accepted, and what the drafter checked for it."""
        drafted = proposal.ids.shape[0]
        rejected = int(accepted < drafted)
        if proposal.probs is None:
            self._of_match(self._lookups, proposal.matched).observe(accepted, rejected)
            return
        self._drafts.observe(accepted, rejected)
        for position, probability in enumerate(proposal.sureness[: accepted + rejected]):
            self._of_sureness(probability).observe(int(position < accepted), int(position == accepted))
        for check in proposal.checks:
            rate = self._of_match(self._checks, check.matched)
            rate.observe(check.accepted, int(check.accepted < check.looked_up))
        size = self._round.drafter_bytes
        spent = sum(self._drafter_seconds(length, size) for length in proposal.forwards)
        ratio = spent / (drafted * self._drafter_seconds(1, size))
        self._forwards_a_draft += NEWEST_SHARE * (ratio - self._forwards_a_draft)

    def _nobody(self, room: Room) -> tuple[float, Choice]:
        return 1 / self._target_seconds(1, room.target_bytes), Choice("nobody", 0)

    def _looking_up(self, room: Room) -> list[tuple[float, Choice]]:
        # The token behind the last draft comes for free.
        most = min(room.left - 1, room.verifiable, room.found, MOST_LOOKED_UP)
        expected = _tokens(self._of_match(self._lookups, room.matched).mean, most)
        return [
            (expected[count] / self._target_seconds(count + 1, room.target_bytes), Choice("lookup", count))
            for count in range(1, most + 1)
        ]

    def _drafting(self, room: Room) -> list[tuple[float, Choice]]:
        most = min(room.left if self.transfer else room.left - 1, room.verifiable, room.draftable, MOST_DRAFTS)
        expected = _tokens(self._drafts.mean, most)
        draft = self._forwards_a_draft * self._drafter_seconds(1, room.drafter_bytes)
        first = self._drafter_seconds(room.unread, room.drafter_bytes) - self._drafter_seconds(1, room.drafter_bytes)
        wait = room.waiting / PREFILL_CHUNK * self._drafter_seconds(PREFILL_CHUNK, room.drafter_bytes)
        answer = min(room.left, TYPICAL_ANSWER)
        options = []
        for count in range(1, most + 1):
            seconds = first + count * draft + self._target_seconds(count + 1, room.target_bytes)
            a_token = seconds / expected[count - 1 if self.transfer else count]
            # A greedy draft ends where `goes_on` says so, and may be longer than the average one.
            options.append((1 / (a_token + wait / answer), Choice("drafter", most if self._greedy else count)))
        return options

    def _target_seconds(self, tokens: int, size: int) -> float:
        return self._target_costs.seconds(tokens, size, measured=self._greedy)

    def _drafter_seconds(self, tokens: int, size: int) -> float:
        return self._drafter_costs.seconds(tokens, size, measured=self._greedy)

    def _of_match(self, rates: list[Rate], matched: int) -> Rate:
        return rates[bisect(MATCH_CLASSES, matched)]

    def _of_sureness(self, probability: float) -> Rate:
        return self._sureness[bisect(SURENESS_CLASSES, probability)]


def _tokens(rate: float, most: int) -> list[float]:
    """Expected tokens of a round with 0, 1, … drafts: 1 + a + … + a^gamma."""
    expected, reached = [1.0], 1.0
    for _ in range(most):
        reached *= rate
        expected.append(expected[-1] + reached)
    return expected
