"""Logits to probabilities: penalties, temperature, top-k, top-p, min-p; the same on both sides.

No model code: logits come in, distributions go out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rapid_core.config import Sampling
from rapid_core.constrained import Matcher


class Sampler:
    """The filters of one role and its own random numbers, for one request.

    Each role has its own, on its own device: drafts must be drawn independently of the numbers
    that decide about them. `prompt_ids` are what a repetition penalty counts as seen. matcher:
    where the answer stands in the grammar of its constraint, if it has one.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocab_size: int,
        prompt_ids: Sequence[int],
        device: torch.device,
        seed: int,
        matcher: Matcher | None = None,
    ) -> None:
        self.sampling = sampling
        self._matcher = matcher
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(seed)
        if sampling.penalised:
            self._in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            known = [id_ for id_ in prompt_ids if id_ < vocab_size]
            self._in_prompt[torch.tensor(known, dtype=torch.long, device=device)] = True
            self._counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)

    @property
    def constrained(self) -> bool:
        """Whether a constraint says which ids fit."""
        return self._matcher is not None

    def logits(self, raw: Tensor, draft_ids: Tensor) -> Tensor:
        """What softmax turns into the distributions that tokens are drawn from.

        raw: [k, V] as the model gave them. draft_ids: [d], d >= k - 1, the drafts after which
        the rows stand: row i follows the answer so far and the first d - k + 1 + i drafts.
        Returns [k, V]: penalised, divided by the temperature, -inf where the constraint or a
        filter says no.
        Greedy sampling is penalised only; its division is by no temperature at all.
        """
        options = self.sampling
        if self._matcher is not None:
            raw = raw.masked_fill(self._matcher.forbidden(draft_ids.tolist(), raw.shape[0]).to(raw.device), -torch.inf)
        shaped = self._penalise(raw, draft_ids) if options.penalised else raw
        if options.greedy:
            return shaped
        shaped = shaped / options.temperature
        if 0 < options.top_k < shaped.shape[-1]:
            least = shaped.topk(options.top_k, dim=-1).values[..., -1:]
            shaped = shaped.masked_fill(shaped < least, -torch.inf)
        if options.top_p < 1:
            shaped = _top_p(shaped, options.top_p)
        if options.min_p > 0:
            probs = shaped.softmax(dim=-1)
            shaped = shaped.masked_fill(probs < options.min_p * probs.amax(dim=-1, keepdim=True), -torch.inf)
        return shaped

    def draw(self, probs: Tensor) -> Tensor:
        """One id of each distribution, [k, V] to [k]."""
        return draw(probs, self.generator)

    def steer(self, ids: Sequence[int], left: int) -> tuple[list[int], list[int]]:
        """What of the decided `ids` stands, and what ends the answer behind it so that it is whole in `left` tokens."""
        return (list(ids), []) if self._matcher is None else self._matcher.steer(ids, left)

    def commit(self, ids: Sequence[int]) -> None:
        """Count committed tokens for the penalties and the constraint to come."""
        if self._matcher is not None:
            self._matcher.commit(ids)
        if self.sampling.penalised:
            added = torch.tensor(ids, dtype=torch.long, device=self._counts.device)
            self._counts.index_add_(0, added, torch.ones(len(ids), device=self._counts.device))

    def _penalise(self, raw: Tensor, draft_ids: Tensor) -> Tensor:
        options, rows = self.sampling, raw.shape[0]
        # counts: [k, V]; row i also counts the drafts that stand before it
        counts = self._counts.expand(rows, -1).clone()
        ahead = draft_ids.shape[0] - rows + 1
        before = torch.arange(draft_ids.shape[0], device=raw.device) < ahead + torch.arange(
            rows, device=raw.device
        ).unsqueeze(1)
        counts.scatter_add_(1, draft_ids.expand(rows, -1), before.to(counts.dtype))
        answered = counts > 0
        seen = answered | self._in_prompt
        penalty = options.repetition_penalty
        shaped = torch.where(seen, torch.where(raw > 0, raw / penalty, raw * penalty), raw)
        return shaped - options.presence_penalty * answered - options.frequency_penalty * counts


def draw(probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """One id of each distribution, [..., V] to [...].

    The id that wins a race of exponential clocks: what `torch.multinomial` does, less its
    checks, for which the host would wait.
    """
    return (probs / torch.empty_like(probs).exponential_(generator=generator)).argmax(dim=-1)


def _top_p(logits: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most probable ids whose mass reaches `top_p`."""
    ordered, order = logits.sort(dim=-1, descending=True)
    probs = ordered.softmax(dim=-1)
    # An id goes if those before it already reach top_p; the first one always stays.
    beyond = probs.cumsum(dim=-1) - probs >= top_p
    beyond[..., 0] = False
    return logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
