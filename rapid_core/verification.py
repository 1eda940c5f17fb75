"""The equations of RAPID (arXiv 2502.20330, section 3) on plain tensors; no model code.

With z the target's logits, T the temperature, p = softmax(z / T) and q the distribution that
the drafts were drawn from:

    augmented target     p̂ = softmax(z / T + eta (q - p))
    acceptance           min(1, p̂(x) / q(x))
    residual             max(p - min(q, p̂), 0), normalised
    law of the output    P = min(q, p̂) + (1 - Σ min(q, p̂)) · residual

For eta = 0 the law is P = p: lossless. For eta > 0 it is not, and is not meant to be: the
drafter's knowledge reaches the output. (The paper calls the output unchanged; p = (.5, .5),
q = (.9, .1), eta = 5 gives P = q.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rapid_core.config import Tail, check_choice
from rapid_core.datatypes import Verdict
from rapid_core.errors import ModelOutputError, OptionError
from rapid_core.sampling import draw


def augmented_target(
    target_logits: Tensor,
    draft_probs: Tensor,
    eta: float,
    temperature: float = 1.0,
    tail: Tail = "reference",
    alpha: float = 0.1,
    shared: Tensor | None = None,
) -> Tensor:
    """The target's distribution after one step of knowledge transfer from the drafter.

    target_logits: [k, V] raw. draft_probs: [k, V]. Returns [k, V]; at temperature 0 it is
    one-hot, and draft_probs are the drafter's at temperature 1.
    tail="reference": only ids with q >= alpha max q are shifted (the authors' code).
    tail="paper": where p̂ < alpha max p̂, p is put back, without renormalising (Eq. 9).
    tail=None: no cut. shared: [V] bool, the ids that the drafter knows; no other is shifted, for
    it has said nothing about them. Raises `OptionError` for values outside their rule.
    Source: paper, section 3.2 and Eq. 9.
    """
    _check(target_logits, draft_probs, eta, temperature, tail, alpha)
    if temperature == 0:
        chosen = greedy_target(target_logits, draft_probs, eta, tail, alpha, shared)
        return one_hot(chosen, draft_probs)
    scaled = target_logits / temperature
    target_probs = scaled.softmax(dim=-1)
    if eta == 0:
        return target_probs
    # One gradient step on the logits: z + eta T (q - p), divided by T.
    shift = _shift(target_probs, draft_probs, eta, tail, alpha, shared)
    augmented = (scaled + shift).softmax(dim=-1)
    if tail == "paper":
        small = augmented < alpha * augmented.amax(dim=-1, keepdim=True)
        augmented = torch.where(small, target_probs, augmented)
    return augmented


def greedy_target(
    target_logits: Tensor,
    draft_probs: Tensor,
    eta: float,
    tail: Tail = "reference",
    alpha: float = 0.1,
    shared: Tensor | None = None,
) -> Tensor:
    """The target's choice at drafted positions at temperature 0.

    target_logits: [k, V] raw. draft_probs: [k, V] at temperature 1. Returns [k] ids: the
    largest of z + eta (q - p), p at temperature 1; for eta = 0 the largest of z itself.
    """
    if eta == 0:
        return target_logits.argmax(dim=-1)
    if tail == "paper":
        return augmented_target(target_logits, draft_probs, eta, 1.0, tail, alpha, shared).argmax(dim=-1)
    # The logits and not their softmax: what rounds to the same probability keeps its order.
    shift = _shift(target_logits.softmax(dim=-1), draft_probs, eta, tail, alpha, shared)
    return (target_logits + shift).argmax(dim=-1)


def residual(target_probs: Tensor, draft_probs: Tensor, augmented: Tensor) -> Tensor:
    """What a token is drawn from after a rejection: max(p - min(q, p̂), 0), normalised.

    All are [..., V]. Where nothing is left, because q equals p to rounding, it is p itself.
    Source: paper, section 3.2.
    """
    rest = (target_probs - torch.minimum(draft_probs, augmented)).clamp_min(0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp_min(torch.finfo(rest.dtype).tiny), target_probs)


def verify(
    draft_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    augmented: Tensor,
    *,
    generator: torch.Generator | None = None,
) -> Verdict:
    """Accept drafts by speculative sampling against the augmented target; draw the next token.

    draft_ids: [k]. draft_probs, augmented: [k, V]. target_probs: [k+1, V]: one row more than
    drafts, since after the last accepted draft the target's own next token comes for free.
    Raises `ModelOutputError` for NaN. Source: paper, section 3.2.
    """
    drafts = draft_ids.shape[0]
    if target_probs.shape[0] != drafts + 1 or draft_probs.shape[0] != drafts or augmented.shape[0] != drafts:
        raise OptionError(
            f"{drafts} drafts need {drafts} rows of draft_probs and augmented and {drafts + 1} of target_probs, "
            f"got {draft_probs.shape[0]}, {augmented.shape[0]} and {target_probs.shape[0]}"
        )
    # All of it stays on the device; the host waits once, for three numbers.
    bad = torch.isnan(target_probs.sum() + draft_probs.sum() + augmented.sum())
    following, accepted = target_probs[drafts], torch.zeros((), dtype=torch.long, device=target_probs.device)
    if drafts:
        # ratio: [k], p̂(x) / q(x) of the drafted ids
        drafted = draft_ids.unsqueeze(-1)
        ratio = augmented.gather(-1, drafted).squeeze(-1) / draft_probs.gather(-1, drafted).squeeze(-1)
        uniform = torch.rand(drafts, generator=generator, device=ratio.device, dtype=ratio.dtype)
        accepted = (uniform < ratio).long().cumprod(dim=0).sum()
        row = accepted.clamp(max=drafts - 1).view(1)
        rest = residual(*(probs.index_select(0, row)[0] for probs in (target_probs, draft_probs, augmented)))
        following = torch.where(accepted == drafts, following, rest)
    next_id = draw(following, generator)
    stands, follows, is_bad = torch.stack((accepted, next_id, bad.long())).tolist()
    if is_bad:
        raise ModelOutputError("probabilities must be numbers, got NaN; look for overflow in the model's dtype")
    return Verdict(stands, follows)


def verify_greedy(draft_ids: Tensor, choices: Tensor) -> Verdict:
    """Accept drafts as long as they are the target's choice; the first other choice follows them.

    draft_ids: [k]. choices: [k+1] ids of `greedy_target`, the last one from the target alone.
    """
    accepted = (draft_ids == choices[:-1]).long().cumprod(dim=0).sum()
    stands, follows = torch.stack((accepted, choices.index_select(0, accepted.view(1))[0])).tolist()
    return Verdict(stands, follows)


def one_hot(ids: Tensor, probs: Tensor) -> Tensor:
    """The distribution of ids that nobody drew: [k] to [k, V], of the width and dtype of `probs` [..., V]."""
    return torch.nn.functional.one_hot(ids, probs.shape[-1]).to(probs.dtype)


def _shift(
    target_probs: Tensor, draft_probs: Tensor, eta: float, tail: Tail, alpha: float, shared: Tensor | None
) -> Tensor:
    """What is added to the target's logits: eta (q - p), where tail and drafter let it."""
    shift = eta * (draft_probs - target_probs)
    if tail == "reference":
        shift = shift * (draft_probs >= alpha * draft_probs.amax(dim=-1, keepdim=True))
    return shift if shared is None else shift * shared


def _check(
    target_logits: Tensor, draft_probs: Tensor, eta: float, temperature: float, tail: Tail, alpha: float
) -> None:
    if target_logits.shape != draft_probs.shape:
        raise OptionError(
            f"target_logits and draft_probs must have one shape, got {tuple(target_logits.shape)} and "
            f"{tuple(draft_probs.shape)}"
        )
    if not 0 <= eta < math.inf:
        raise OptionError(f"eta must be at least 0 and finite, got {eta}")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise OptionError(f"temperature must be at least 0 and finite, got {temperature}")
    if not 0 <= alpha <= 1:
        raise OptionError(f"alpha must be at least 0 and at most 1, got {alpha}")
    check_choice("tail", tail, ("reference", "paper", None))
