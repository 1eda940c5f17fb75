"""The filters, on vectors small enough to work out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rapid_core import Sampling
from rapid_core.sampling import Sampler

NO_DRAFTS = torch.empty(0, dtype=torch.long)


def sampler(prompt_ids=(), size=4, **options):
    return Sampler(Sampling(**options), size, prompt_ids, torch.device("cpu"), seed=0)


def kept(logits):
    return [i for i, value in enumerate(logits[0].tolist()) if value != -math.inf]


def test_temperature_divides_the_logits():
    z = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    assert torch.equal(sampler(temperature=0.5).logits(z, NO_DRAFTS), z / 0.5)


def test_greedy_leaves_the_logits_alone():
    z = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    assert torch.equal(sampler(temperature=0, top_k=1, top_p=0.1).logits(z, NO_DRAFTS), z)


def test_top_k_keeps_the_k_largest():
    z = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    assert kept(sampler(temperature=1, top_k=2).logits(z, NO_DRAFTS)) == [1, 3]


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    z = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert kept(sampler(temperature=1, top_p=0.79).logits(z, NO_DRAFTS)) == [0, 1]
    assert kept(sampler(temperature=1, top_p=0.81).logits(z, NO_DRAFTS)) == [0, 1, 2]
    assert kept(sampler(temperature=1, top_p=1e-9).logits(z, NO_DRAFTS)) == [0]


def test_min_p_is_relative_to_the_most_probable():
    z = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert kept(sampler(temperature=1, min_p=0.5).logits(z, NO_DRAFTS)) == [0, 1]


def test_filters_work_row_by_row():
    z = torch.tensor([[0.0, 3.0, 1.0, 2.0], [9.0, 0.0, 0.0, 8.0]])
    rows = sampler(temperature=1, top_k=2).logits(z, torch.tensor([1]))
    assert [kept(row[None]) for row in rows] == [[1, 3], [0, 3]]


def test_a_repetition_penalty_sees_the_prompt():
    z = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    shaped = sampler(prompt_ids=[0, 1], repetition_penalty=2.0).logits(z, NO_DRAFTS)
    assert shaped.tolist() == [[1.0, -4.0, 2.0, -2.0]]


def test_a_penalty_at_a_row_sees_the_drafts_before_it_and_no_others():
    z = torch.zeros(3, 4)
    penalised = sampler(frequency_penalty=1.0)
    penalised.commit([3])
    shaped = penalised.logits(z, torch.tensor([0, 0]))
    assert shaped.tolist() == [[0, 0, 0, -1], [-1, 0, 0, -1], [-2, 0, 0, -1]]
    # A single row, as the drafter asks for it, stands behind all drafts.
    assert penalised.logits(z[:1], torch.tensor([0, 0])).tolist() == [[-2, 0, 0, -1]]


def test_presence_counts_once_and_frequency_each_time():
    z = torch.zeros(1, 4)
    both = sampler(presence_penalty=0.5, frequency_penalty=0.25)
    both.commit([2, 2, 1])
    assert both.logits(z, NO_DRAFTS).tolist() == [[0, -0.75, -1.0, 0]]


def test_ids_of_the_prompt_beyond_the_shared_vocabulary_do_not_disturb():
    z = torch.ones(1, 4)
    assert sampler(prompt_ids=[99], repetition_penalty=2.0).logits(z, NO_DRAFTS).tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.8}, {"min_p": 0.2}, {}])
def test_draws_follow_the_filtered_distribution(options):
    """20,000 draws on 4 ids; by Bretagnolle-Huber-Carol a total variation of .03 has odds below 10^-14."""
    z = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    one = sampler(temperature=1, **options)
    probs = one.logits(z, NO_DRAFTS).softmax(-1)
    counts = torch.bincount(one.draw(probs.expand(20_000, -1)), minlength=4) / 20_000
    assert float((counts - probs[0]).abs().sum() / 2) < 0.03
    assert bool((counts[probs[0] == 0] == 0).all())
