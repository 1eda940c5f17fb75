"""Options say what is wrong with them, when they are made."""

from __future__ import annotations

import dataclasses
import math

import pytest

from rapid_core import OptionError, RapidError, Retrieval, Sampling, Speculation, UnknownOptionError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Speculation(gamma=0), "gamma must be at least 1, got 0"),
        (lambda: Speculation(gamma=2.5), "gamma must be a whole number, got 2.5"),
        (lambda: Speculation(gamma="many"), "gamma must be a whole number or 'auto', got 'many'"),
        (lambda: Speculation(gamma=True), "gamma must be a whole number, got True"),
        (lambda: Speculation(eta=-1), "eta must be at least 0 and at most 1e+06, got -1"),
        (lambda: Speculation(eta=math.nan), "eta must be at least 0 and at most 1e+06, got nan"),
        (lambda: Speculation(eta=math.inf), "eta must be at least 0 and at most 1e+06, got inf"),
        (lambda: Speculation(eta="much"), "eta must be a number or 'auto', got 'much'"),
        (lambda: Speculation(eta="auto").fixed_eta, "eta must be a number while decoding, got 'auto'"),
        (lambda: Speculation(tail="none"), "tail must be one of 'reference', 'paper', None, got 'none'"),
        (lambda: Speculation(alpha=1.5), "alpha must be at least 0 and at most 1, got 1.5"),
        (lambda: Sampling(temperature=-0.1), "temperature must be at least 0 and finite, got -0.1"),
        (lambda: Sampling(temperature="hot"), "temperature must be a number, got 'hot'"),
        (lambda: Sampling(temperature=1e-40), "temperature must be 0 or at least 0.0001, got 1e-40; 0 is greedy"),
        (lambda: Sampling(temperature=10**400), "temperature must be a number, got 1000000000"),
        (lambda: Sampling(stop=5), "stop must be text or a list of texts, got 5"),
        (lambda: Sampling(top_p=0), "top_p must be above 0 and at most 1, got 0"),
        (lambda: Sampling(top_k=-1), "top_k must be at least 0, got -1"),
        (lambda: Sampling(max_new_tokens=0), "max_new_tokens must be at least 1, got 0"),
        (lambda: Sampling(repetition_penalty=0), "repetition_penalty must be at least 0.01 and at most 100, got 0"),
        (lambda: Sampling(stop=[""]), "stop must be text that is not empty"),
        (lambda: Sampling(seed=-3), "seed must be at least 0, got -3"),
        (lambda: Retrieval(chunk_tokens=1), "chunk_tokens must be at least 16, got 1"),
        (lambda: Retrieval(encoder=""), "encoder must be a hub name"),
        (lambda: Retrieval(budget="all"), "budget must be a whole number, 'paper' or 'auto', got 'all'"),
        (lambda: Retrieval(budget=0), "budget must be at least 1, got 0"),
        (lambda: Retrieval(budget=True), "budget must be a whole number, got True"),
        (lambda: Retrieval(budget=None), "budget must be a whole number, got None"),
        (lambda: Retrieval(again_tokens=-1), "again_tokens must be at least 0, got -1"),
        (lambda: Retrieval(again_tokens="often"), "again_tokens must be a whole number, got 'often'"),
        (lambda: Retrieval(threshold=2), "threshold must be at least -1 and at most 1, got 2"),
    ],
)
def test_a_value_outside_its_rule_names_rule_and_value(make, message):
    with pytest.raises(OptionError) as caught:
        make()
    assert message in str(caught.value)
    assert isinstance(caught.value, RapidError | ValueError)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: Sampling(temprature=1), "did you mean 'temperature'?"),
        (lambda: Speculation(etha=1), "did you mean 'eta'?"),
        (lambda: Retrieval(nothing_like_it=1), "It knows: encoder"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(make, hint):
    with pytest.raises(UnknownOptionError) as caught:
        make()
    assert hint in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_options_are_frozen_and_compare_by_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().temperature = 1.0
    assert Sampling(stop="a") == Sampling(stop=["a"])
    assert Sampling(stop=None) == Sampling()
    assert hash(Speculation()) == hash(Speculation(gamma="auto", eta=10.0))


def test_lossless_is_eta_zero_and_off_is_no_speculation():
    assert Speculation.lossless(gamma=3) == Speculation(gamma=3, eta=0.0)
    assert not Speculation.off().enabled
    with pytest.raises(OptionError, match="eta is 0 in lossless speculation, got 5"):
        Speculation.lossless(eta=5)


def test_an_eta_that_is_chosen_later_counts_as_transfer():
    assert Speculation(eta="auto").transfers and Speculation(eta=0.5).transfers
    assert not Speculation.lossless().transfers
    assert Speculation(eta=5).fixed_eta == 5.0
