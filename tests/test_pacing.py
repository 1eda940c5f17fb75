"""Who drafts: choices from costs and acceptance, without a model."""

from __future__ import annotations

import pytest
import torch

from rapid_core.datatypes import Check, Proposal
from rapid_core.pacing import CostTable, Pacer, Rate, Room

# A forward over one token takes 1 s and 0.1 s more for each further one, unless said otherwise.
LENGTHS = (1, 2, 4, 8, 16, 33)


def table(seconds=1.0, more=0.1):
    costs = CostTable(accelerator=False)
    for length in LENGTHS:
        for _ in range(60):
            costs.record(length, 1, seconds + more * (length - 1))
    return costs


def pacer(target=None, drafter=None, *, transfer=False, greedy=True):
    return Pacer(target or table(), drafter or table(), transfer=transfer, greedy=greedy)


def room(**changes):
    return Room(**{"left": 100, "verifiable": 100, **changes})


def looked_up(count, matched=4):
    return Proposal(torch.arange(count), None, matched=matched)


def drafted(count, sureness=0.9, **more):
    return Proposal(torch.arange(count), torch.ones(count, 9), (sureness,) * count, (1,) * count, **more)


def test_costs_are_what_was_measured_and_linear_between():
    costs = table()
    assert costs.seconds(1, 1) == pytest.approx(1.0)
    assert costs.seconds(16, 1) == pytest.approx(2.5)
    assert costs.seconds(16, 3) == pytest.approx(7.5)
    assert costs.seconds(1, 1) < costs.seconds(3, 1) < costs.seconds(4, 1)


def test_one_measurement_moves_all_lengths_and_an_outlier_moves_little():
    costs = CostTable(accelerator=False)
    guess = costs.seconds(8, 1) / costs.seconds(1, 1)
    # The first one may be a warm-up.
    costs.record(1, 1, 900.0)
    costs.record(1, 1, 5.0)
    assert costs.seconds(8, 1) == pytest.approx(5 * guess)
    costs.record(1, 1, 500.0)
    assert costs.seconds(1, 1) < 7


def test_a_rate_starts_from_its_guess_follows_outcomes_and_forgets():
    rate = Rate(0.5)
    assert rate.mean == 0.5
    for _ in range(100):
        rate.observe(4, 0)
    high = rate.mean
    assert high > 0.9
    for _ in range(40):
        rate.observe(0, 1)
    assert rate.mean < 0.4


def test_a_slow_first_forward_does_not_end_drafting():
    costs = CostTable(accelerator=True)
    for seconds in (50.0, *[0.05] * 3):
        costs.record(1, 1, seconds)
    assert pacer(drafter=costs).choose(room(draftable=50)).source == "drafter"


def test_what_failed_is_tried_again_later():
    paced, place = pacer(drafter=table(seconds=0.1, more=0.0)), room(draftable=50)
    for _ in range(60):
        paced.choose(place)
        paced.observe(drafted(1), 0)
    assert paced.choose(place).source == "nobody"
    assert "drafter" in {paced.choose(place).source for _ in range(400)}


def test_where_no_draft_can_be_verified_somebody_is_chosen_all_the_same():
    """The border of longrope: one token is decided alone."""
    assert pacer(transfer=True).choose(room(verifiable=0, draftable=50)).source == "nobody"


def test_without_a_match_and_with_a_dear_drafter_nobody_drafts():
    assert pacer().choose(room()).source == "nobody"
    assert pacer().choose(room(draftable=50)).source == "nobody"


def test_a_cheap_drafter_drafts_and_more_if_it_is_right():
    paced, place = pacer(greedy=False), room(draftable=50, target_bytes=20, drafter_bytes=1)
    first = paced.choose(place)
    assert first.source == "drafter"
    for _ in range(30):
        paced.observe(drafted(8), 8)
    assert paced.choose(place).gamma > first.gamma
    for _ in range(60):
        paced.observe(drafted(8), 0)
    assert paced.choose(place).gamma < first.gamma


def test_a_cost_that_is_too_high_at_one_length_does_not_end_a_draft():
    target = table()
    for _ in range(60):
        target.record(4, 1, 4.0)
    paced = pacer(target=target, drafter=table(seconds=0.1, more=0.0), transfer=True)
    for _ in range(20):
        paced.observe(drafted(8, 0.999), 8)
    paced.choose(room(draftable=50))
    assert paced.goes_on([0.999] * 2)


def test_lookups_that_were_right_grow_and_lookups_that_were_wrong_stop():
    paced = pacer(target=table(more=0.3))
    begin = paced.choose(room(matched=4, found=32))
    assert begin.source == "lookup"
    for _ in range(10):
        paced.observe(looked_up(8), 8)
    assert paced.choose(room(matched=4, found=32)).gamma > begin.gamma
    for _ in range(40):
        paced.observe(looked_up(8), 0)
    assert paced.choose(room(matched=4, found=32)).source == "nobody"
    # What short matches are worth says nothing of long ones.
    assert paced.choose(room(matched=16, found=32)).source == "lookup"


def test_with_transfer_only_the_drafter_proposes_while_it_can():
    paced = pacer(transfer=True)
    for _ in range(50):
        paced.observe(drafted(4), 0)
    assert paced.choose(room(matched=16, found=32, draftable=50)).source == "drafter"
    assert paced.choose(room(matched=16, found=32, draftable=0)).source == "lookup"


@pytest.mark.parametrize("transfer", [False, True])
@pytest.mark.parametrize("left", [1, 2, 5])
def test_no_choice_is_longer_than_the_answer_or_a_window(left, transfer):
    paced = pacer(drafter=table(seconds=0.01, more=0.0), transfer=transfer)
    last = left if transfer else left - 1
    assert paced.choose(room(left=left, draftable=50, matched=16, found=32)).gamma <= last
    assert paced.choose(room(verifiable=3, draftable=50)).gamma <= 3
    assert paced.choose(room(draftable=2)).gamma <= 2
    assert pacer().choose(room(left=left, matched=16, found=32)).gamma <= left - 1
    assert pacer().choose(room(verifiable=3, matched=16, found=32)).gamma <= 3


def test_the_drafter_checks_as_many_tokens_as_it_believes_in():
    paced = pacer(transfer=True)
    paced.choose(room(draftable=50))
    short, long = paced.look_up(2, 32, 1), paced.look_up(20, 32, 1)
    assert short < long
    for _ in range(80):
        paced.observe(drafted(2, checks=(Check(20, 10, 0),)), 2)
    assert paced.look_up(20, 32, 1) == 0


def test_a_greedy_draft_ends_when_the_drafter_is_unsure():
    paced = pacer(drafter=table(seconds=0.2, more=0.0))
    assert paced.choose(room(draftable=50)).source == "drafter"
    assert paced.goes_on([0.999])
    assert not paced.goes_on([0.999, 0.2])
    assert not paced.goes_on([0.8] * 12)


def test_with_transfer_an_unsure_draft_goes_on_until_the_target_has_refused_some():
    paced = pacer(drafter=table(seconds=0.2, more=0.0), transfer=True)
    paced.choose(room(draftable=50))
    assert paced.goes_on([0.2])
    for _ in range(20):
        paced.observe(drafted(1, 0.2), 0)
        paced.observe(drafted(8, 0.999), 8)
    paced.choose(room(draftable=50))
    assert paced.goes_on([0.999])
    assert not paced.goes_on([0.2])


def test_with_sampling_neither_the_clock_nor_the_drafts_of_the_round_have_a_say():
    slow, fast = (pacer(drafter=table(seconds=cost), greedy=False) for cost in (5.0, 0.01))
    for seen in range(20):
        place = room(draftable=50, matched=seen % 8, found=seen % 8, target_bytes=9, drafter_bytes=2)
        assert slow.choose(place) == fast.choose(place)
        assert slow.look_up(4, 8, 1) == fast.look_up(4, 8, 1)
        for paced in (slow, fast):
            paced.observe(drafted(4), seen % 5)
    assert slow.goes_on([0.01] * 16)
