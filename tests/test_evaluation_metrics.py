"""What an answer is worth: the public definitions, worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapid_core import MissingDependencyError
from rapid_core.evaluation.letters import MOST_CHOICES, find_choice, lettered
from rapid_core.evaluation.metrics import exact_match, most_likely, normalize, rouge_l_sum, token_f1

WORDS = st.text(alphabet="ab the.,!", max_size=20)
CHOICES = ("Seven days", "NATO", "A good friend of his", "He left the town in 1942, since it burned")


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The Walt Disney Company", "walt disney company"),
        ("  An  apple,\na pear!", "apple pear"),
        # An article is a whole word; punctuation goes before articles do, and joins what it stood between.
        ("theatre, Anna and (the) band", "theatre anna and band"),
        ("A.N. Other's well-known U.S. song", "others wellknown us song"),
        # Only ASCII punctuation is taken out.
        ("“Disney–ABC”", "“disney–abc”"),  # noqa: RUF001
        ("The", ""),
    ],
)
def test_text_is_normalized_as_squad_does(text, normalized):
    assert normalize(text) == normalized


@pytest.mark.parametrize(
    ("text", "references", "f1", "exact"),
    [
        # Articles and punctuation count for nothing.
        ("The cat sat on the mat.", ["a cat sat on mat"], 1, 1),
        # 1 word of 3 is right, and it is all of 1: P = 1/3, R = 1.
        ("David Sarnoff, RCA", ["Sarnoff!"], 2 * (1 / 3) / (4 / 3), 0),
        # 2 of 3 words, 2 of 4: P = 2/3, R = 1/2, F1 = 4/7.
        ("the Citadel Broadcasting group", ["Citadel Broadcasting Corporation, Nevada"], 4 / 7, 0),
        # Each word counts as often as both have it: 2 of 3, 2 of 2.
        ("no no no", ["no, no"], 4 / 5, 0),
        # The reference that fits best: "1066" gives 2 * (1/4) / (5/4) = 2/5, "the year 1066" gives 2/3.
        ("in the year 1066 AD", ["1066", "the year 1066"], 2 / 3, 0),
        ("1066.", ["the year 1066", "1066"], 1, 1),
        ("Paris", ["London"], 0, 0),
        ("", ["London"], 0, 0),
        # Nothing against nothing is a match without a word in common.
        ("the", ["a"], 0, 1),
    ],
)
def test_f1_and_exact_match_are_those_of_squad(text, references, f1, exact):
    assert token_f1(text, references) == pytest.approx(f1)
    assert exact_match(text, references) == exact


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3), WORDS)
def test_f1_stays_in_its_range_and_one_more_reference_never_lowers_it(text, references, more):
    f1 = token_f1(text, references)
    assert 0 <= f1 <= 1 and f1 <= token_f1(text, [*references, more])
    assert token_f1(text, [more]) == pytest.approx(token_f1(more, [text]))
    assert exact_match(text, references) <= exact_match(text, [*references, more])


@pytest.mark.parametrize(
    ("text", "references", "score"),
    [
        # The union of two sentences' common subsequences is w1 w2 w3 w5: R = 4/5, P = 4/10, F = 8/15 (Lin 2004, 3.2).
        ("W1 w2 w6 w7 w8. W1 w3 w8 w9 w5.", ["W1 w2 w3 w4 w5."], 8 / 15),
        # Sentences may stand in another order. As one line "dogs bark" or "cats purr" alone would count, half of all.
        ("Cats purr. Dogs bark.", ["Dogs bark. Cats purr."], 1),
        ("Cats purr.\nDogs bark.", ["Dogs bark.  Cats purr."], 1),
        # Within a sentence they may not: "dogs" or "bark", 1 of 2.
        ("Bark dogs.", ["Dogs bark."], 1 / 2),
        # A word counts as often as both sides have it: 3 of 4 against 3 of 3, F = 6/7.
        ("Dogs bark. Dogs run.", ["Dogs bark. Dogs."], 6 / 7),
        # No stemming: 1 of 2 against 1 of 2.
        ("Dogs barked.", ["Dogs bark."], 1 / 2),
        # The best of several: the first gives 1/2, the second 1.
        ("Dogs bark.", ["Dogs run.", "Dogs bark!"], 1),
        # An abbreviation ends no sentence: as two lines of a reference, "went Smith" could not be in order.
        ("Mr. Smith went.", ["Mr. Smith went."], 1),
        ("", ["Dogs bark."], 0),
    ],
)
def test_rouge_l_sum_compares_sentence_by_sentence(text, references, score):
    assert rouge_l_sum(text, references) == pytest.approx(score)


def test_without_the_library_the_extra_is_named(monkeypatch):
    from rapid_core.evaluation import metrics

    def missing(module, *, extra):
        raise MissingDependencyError(f"{module} [{extra}]")

    monkeypatch.setattr(metrics, "require", missing)
    metrics._rouge.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"rouge_score.rouge_scorer \[eval\]"):
        rouge_l_sum("Dogs bark.", ["Dogs bark."])


@pytest.mark.parametrize(
    ("likelihoods", "right", "score"),
    [
        ([-3.0, -1.0, -2.0], 1, 1),
        ([-3.0, -1.0, -2.0], 2, 0),
        # Nothing tells two that are as likely apart.
        ([-1.0, -1.0], 0, 0),
        ([-math.inf, -math.inf], 1, 0),
        ([-math.inf, -9.0], 1, 1),
    ],
)
def test_the_right_option_must_be_more_likely_than_every_other(likelihoods, right, score):
    assert most_likely(likelihoods, right) == score


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("B", "B"),
        ("b", "B"),
        (" B.", "B"),
        ("(B)", "B"),
        ("b)", "B"),
        ("**B**", "B"),
        ('"B"', "B"),
        ("B\n\nThe text says so, and A is wrong.", "B"),
        ("B. NATO", "B"),
        ("B NATO", "B"),
        ("B: because of the treaty", "B"),
        ("B because of the treaty", "B"),
        ("C - A good friend", "C"),
        ("B B B", "B"),
        ("The answer is B", "B"),
        ("The correct answer is (B).", "B"),
        ("the answer is b.", "B"),
        ("Answer:\n\n**B. NATO**", "B"),
        ("The best option would be: B", "B"),
        ("I choose option B, since it fits.", "B"),
        (r"$\boxed{\text{B}}$", "B"),
        ("I think it's B.", "B"),
        # The last word counts.
        ("The answer is A? No: the answer is B.", "B"),
        ("The answer is B. Option A is wrong.", "B"),
        # An option in its own words, whole, within a sentence, or cut off by the limit of tokens.
        ("nato", "B"),
        ("It was NATO, I think.", "B"),
        ("The answer is He left the town in", "D"),
        ("He left the town in", "D"),
        # A is a word, too.
        ("A good friend of his", "C"),
        ("The answer is A good friend of his", "C"),
        ("A. Seven days", "A"),
        ("A Seven days", "A"),
        ("A", "A"),
        ("The answer is A", "A"),
        ("The answer is A because of the days.", "A"),
        ("A man came by", None),
        ("The answer is a man", None),
        ("I do not know", None),
        # No such option, none, or several.
        ("E", None),
        ("The answer is E", None),
        ("", None),
        ("  \n", None),
        ("A or B", None),
        ("Both B and D", None),
        ("Option A is wrong, and option B is, too", None),
        ("The answer is not A.", None),
        ("NATO within seven days", None),
    ],
)
def test_an_answer_names_an_option_by_its_letter_or_its_words(text, choice):
    found = find_choice(text, CHOICES)
    assert (None if found is None else "ABCD"[found]) == choice


def test_of_an_option_within_another_the_longer_one_is_meant():
    choices = ("two", "twenty two", "three")
    assert find_choice("There were twenty two of them.", choices) == 1
    assert find_choice("There were two of them.", choices) == 0
    # Options of the same words cannot be told apart.
    assert find_choice("two", ("two", "Two.", "three")) is None


@given(st.text(), st.lists(st.text(min_size=1), min_size=2, max_size=5))
def test_what_is_found_is_one_of_the_options(text, choices):
    found = find_choice(text, choices)
    assert found is None or 0 <= found < len(choices)


def test_options_are_shown_with_their_letters():
    assert lettered(["one", "two"]) == "A. one\nB. two"
    assert lettered(["it"] * MOST_CHOICES).endswith("\nZ. it")
