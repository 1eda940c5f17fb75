"""The equations, on small vectors and by the exact law of the output."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rapid_core import ModelOutputError, OptionError
from rapid_core.verification import augmented_target, greedy_target, residual, verify, verify_greedy

P = torch.tensor([[0.5, 0.5]])
Q = torch.tensor([[0.9, 0.1]])


def law(p: torch.Tensor, q: torch.Tensor, augmented: torch.Tensor) -> torch.Tensor:
    """P(x) = min(q, p̂) + (1 - Σ min(q, p̂)) · max(p - min(q, p̂), 0) / Z, written out on its own."""
    kept = torch.minimum(q, augmented)
    rest = (p - kept).clamp_min(0)
    return kept + (1 - kept.sum(-1, keepdim=True)) * rest / rest.sum(-1, keepdim=True)


def output_frequencies(
    p: torch.Tensor, q: torch.Tensor, augmented: torch.Tensor, draws: int, seed: int
) -> torch.Tensor:
    """How often each id comes out of `verify` at a drafted position, drafts drawn from q.

    A call decides a block of drafts up to its first rejection. Given what came before it, each
    of those tokens follows the law on its own, so that all of them count.
    """
    block = 8
    generator = torch.Generator().manual_seed(seed)
    drafts = torch.multinomial(q[0], draws * block, replacement=True, generator=generator).view(draws, block)
    q, target, augmented = q.expand(block, -1), p.expand(block + 1, -1), augmented.expand(block, -1)
    out: list[int] = []
    for row in drafts:
        verdict = verify(row, q, target, augmented, generator=generator)
        out += row[: verdict.accepted].tolist()
        if verdict.accepted < block:
            out.append(verdict.next_id)
        if len(out) >= draws:
            break
    return torch.bincount(torch.tensor(out[:draws]), minlength=p.shape[-1]) / draws


def total_variation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().sum() / 2)


def noise_bound(size: int, draws: int, odds: float = 1e-9) -> float:
    """The total variation that `draws` samples of `size` ids exceed with probability below `odds`.

    Bretagnolle-Huber-Carol: P(TV >= t) <= 2^size exp(-2 draws t²).
    """
    return math.sqrt((size * math.log(2) - math.log(odds)) / (2 * draws))


@pytest.mark.parametrize("tail", ["reference", "paper", None])
def test_without_transfer_the_augmented_target_is_the_target(tail):
    logits = torch.randn(4, 11, generator=torch.Generator().manual_seed(0))
    draft = torch.randn(4, 11, generator=torch.Generator().manual_seed(1)).softmax(-1)
    assert torch.equal(augmented_target(logits, draft, 0.0, 0.7, tail), (logits / 0.7).softmax(-1))


def test_the_shift_is_eta_times_the_difference_of_the_distributions():
    augmented = augmented_target(P.log(), Q, eta=5.0, tail=None)
    # z + 5 (q - p) = log .5 + (2, -2), so that the odds are e^4.
    assert augmented[0, 0].item() == pytest.approx(1 / (1 + math.exp(-4)), abs=1e-6)
    assert [round(x, 3) for x in augmented[0].tolist()] == [0.982, 0.018]


def test_temperature_divides_the_logits_but_not_the_shift():
    z, t = torch.tensor([[1.0, 0.0, -1.0]]), 0.5
    q = torch.tensor([[0.2, 0.7, 0.1]])
    p = (z / t).softmax(-1)
    assert torch.allclose(augmented_target(z, q, 3.0, t, tail=None), (z / t + 3.0 * (q - p)).softmax(-1))


def test_the_reference_tail_shifts_only_what_the_drafter_finds_likely():
    q = torch.tensor([[0.90, 0.08, 0.02]])
    z = torch.zeros(1, 3)
    p = z.softmax(-1)
    # 0.08 and 0.02 are below 0.1 · 0.9: only the first id moves.
    expected = (z + 4.0 * torch.tensor([[0.90 - 1 / 3, 0.0, 0.0]])).softmax(-1)
    assert torch.allclose(augmented_target(z, q, 4.0, tail="reference", alpha=0.1), expected)
    assert torch.allclose(augmented_target(z, q, 4.0, tail="reference", alpha=0.0), (z + 4 * (q - p)).softmax(-1))


def test_the_paper_tail_puts_the_target_back_and_does_not_renormalise():
    q = torch.tensor([[0.98, 0.01, 0.01]])
    z = torch.zeros(1, 3)
    plain = augmented_target(z, q, 10.0, tail=None)
    cut = augmented_target(z, q, 10.0, tail="paper", alpha=0.1)
    assert cut[0, 0] == plain[0, 0]
    assert torch.equal(cut[0, 1:], z.softmax(-1)[0, 1:])
    assert cut.sum() > 1.5


@pytest.mark.parametrize("tail", ["reference", "paper", None])
def test_an_id_that_a_filter_ruled_out_stays_out(tail):
    z = torch.tensor([[1.0, 0.5, -math.inf]])
    q = torch.tensor([[0.1, 0.1, 0.8]])
    assert augmented_target(z, q, 20.0, tail=tail)[0, 2] == 0


@pytest.mark.parametrize(
    ("tail", "eta", "draws"),
    [("reference", 0.0, 200_000)]
    + [(tail, eta, 40_000) for tail in ("reference", "paper", None) for eta in (5.0, 40.0)],
)
def test_the_output_follows_the_stated_law(tail, eta, draws):
    """On 6 ids; without transfer the law is the target itself. Exceeded by chance once in 10^9 runs."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(1, 6, generator=generator) * 1.5
    q = (torch.randn(1, 6, generator=generator) * 1.5).softmax(-1)
    p = logits.softmax(-1)
    augmented = augmented_target(logits, q, eta, 1.0, tail, 0.1)
    expected = law(p, q, augmented)[0]
    found = output_frequencies(p, q, augmented, draws, seed=11)
    assert expected.sum().item() == pytest.approx(1, abs=1e-6)
    assert total_variation(found, expected) < noise_bound(6, draws)
    if eta == 0:
        assert torch.allclose(expected, p[0], atol=1e-6)
    else:
        # The test can tell the law from the target's own distribution.
        assert total_variation(expected, p[0]) > 3 * noise_bound(6, draws)


def test_the_counter_example_gives_the_drafters_distribution():
    """p = (.5, .5), q = (.9, .1), eta = 5: the output is q. Once in 10^9 runs by chance."""
    augmented = augmented_target(P.log(), Q, 5.0, tail=None)
    assert torch.allclose(law(P, Q, augmented)[0], Q[0], atol=1e-6)
    draws = 40_000
    assert total_variation(output_frequencies(P, Q, augmented, draws, seed=3), Q[0]) < noise_bound(2, draws)


def test_disjoint_distributions_accept_nothing():
    p = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    q = torch.tensor([[1.0, 0.0]])
    for seed in range(50):
        verdict = verify(torch.tensor([0]), q, p, p[:1], generator=torch.Generator().manual_seed(seed))
        assert (verdict.accepted, verdict.next_id) == (0, 1)


def test_equal_distributions_accept_everything():
    p = torch.rand(5, 9, generator=torch.Generator().manual_seed(0)).softmax(-1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        drafts = torch.multinomial(p[:4], 1, generator=generator).squeeze(-1)
        assert verify(drafts, p[:4], p, p[:4], generator=generator).accepted == 4


def test_nothing_after_the_first_rejection_is_accepted():
    q = torch.tensor([[1.0, 0.0]] * 3)
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    verdict = verify(torch.tensor([0, 0, 0]), q, p, p[:3], generator=torch.Generator().manual_seed(0))
    assert (verdict.accepted, verdict.next_id) == (1, 1)


def test_no_drafts_means_one_token_of_the_target():
    p = torch.tensor([[0.0, 0.0, 1.0]])
    verdict = verify(torch.empty(0, dtype=torch.long), p[:0], p, p[:0])
    assert (verdict.accepted, verdict.next_id) == (0, 2)


def test_an_empty_residual_falls_back_to_the_target():
    p = torch.tensor([[0.3, 0.7]])
    assert torch.equal(residual(p, p, p), p)
    # A forced rejection with q = p to rounding draws from p and does not crash.
    q = torch.tensor([[0.3 + 1e-8, 0.7]])
    assert torch.isfinite(residual(p, q, torch.maximum(p, q))).all()


def test_nan_never_reaches_the_sampler():
    p = torch.tensor([[math.nan, 0.5], [0.5, 0.5]])
    with pytest.raises(ModelOutputError, match="NaN"):
        verify(torch.tensor([0]), Q, p, P)


@settings(max_examples=200, deadline=None)
@given(
    arrays("float32", (1, 8), elements=st.floats(-30, 30, width=32)),
    arrays("float32", (1, 8), elements=st.floats(-30, 30, width=32)),
    st.floats(0, 50),
    st.sampled_from(["reference", "paper", None]),
    st.floats(0.05, 5),
)
def test_the_law_is_a_distribution_for_any_input(logits, draft_logits, eta, tail, temperature):
    z, q = torch.from_numpy(logits).double(), torch.from_numpy(draft_logits).double().softmax(-1)
    augmented = augmented_target(z, q, eta, temperature, tail)
    p = (z / temperature).softmax(-1)
    rest = residual(p, q, augmented)
    assert bool((augmented >= 0).all()) and bool((rest >= 0).all())
    assert rest.sum().item() == pytest.approx(1)
    # Z >= 1 - Σ min(q, p̂): the law never gives an id less than nothing.
    kept = torch.minimum(q, augmented)
    assert (p - kept).clamp_min(0).sum() >= 1 - kept.sum() - 1e-9


@pytest.mark.parametrize("tail", ["reference", "paper", None])
def test_greedy_is_the_largest_of_the_shifted_logits(tail):
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(50, 12, generator=generator).double()
    q = (torch.randn(50, 12, generator=generator) * 2).double().softmax(-1)
    p = z.softmax(-1)
    if tail == "paper":
        vector = (z + 10 * (q - p)).softmax(-1)
        vector = torch.where(vector < 0.1 * vector.amax(-1, keepdim=True), p, vector)
    else:
        mask = 1 if tail is None else (q >= 0.1 * q.amax(-1, keepdim=True))
        vector = z + 10 * (q - p) * mask
    assert torch.equal(greedy_target(z, q, 10.0, tail), vector.argmax(-1))
    one_hot = augmented_target(z, q, 10.0, 0.0, tail)
    assert torch.equal(one_hot.argmax(-1), vector.argmax(-1)) and torch.equal(one_hot.sum(-1), torch.ones(50).double())
    assert torch.equal(greedy_target(z, q, 0.0, tail), z.argmax(-1))


@pytest.mark.parametrize("right", [0, 1, 3, 4])
def test_greedy_accepts_up_to_the_first_other_choice(right):
    choices = torch.tensor([5, 6, 7, 8, 9])
    drafts = choices[:4].clone()
    drafts[right:] = 0
    verdict = verify_greedy(drafts, choices)
    assert (verdict.accepted, verdict.next_id) == (right, 5 + right)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"eta": -1.0}, "eta must be at least 0"),
        ({"eta": math.nan}, "eta must be at least 0"),
        ({"eta": math.inf}, "eta must be at least 0 and finite"),
        ({"eta": 1.0, "temperature": -0.1}, "temperature must be at least 0"),
        ({"eta": 1.0, "tail": "other"}, "tail must be one of"),
        ({"eta": 1.0, "alpha": 2.0}, "alpha must be"),
    ],
)
def test_a_value_outside_its_rule_is_refused(options, rule):
    with pytest.raises(OptionError, match=rule):
        augmented_target(P.log(), Q, **options)


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(OptionError, match="one shape"):
        augmented_target(torch.zeros(1, 3), Q, 1.0)
    with pytest.raises(OptionError, match="2 of target_probs"):
        verify(torch.tensor([0]), Q, P, Q)
