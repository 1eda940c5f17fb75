"""Where sentences end, in text that grows by a token at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapid_core.sentences import last_sentences, sentence_ends


def sentences(text):
    ends = sentence_ends(text)
    return [text[start:end].strip() for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("He left. She stayed. ", ["He left.", "She stayed."]),
        ("He left. She", ["He left."]),
        ('"Why?" he asked. "No!" Then', ['"Why?" he asked.', '"No!"']),
        ("Really?! Yes… Well", ["Really?!", "Yes…"]),
        ("**Bold.** Next", ["**Bold.**"]),
        ("今日は。明日も。はい", ["今日は。", "明日も。"]),
        ("行く\uff01 来る\uff1f", ["行く\uff01", "来る\uff1f"]),
        ("「行く。」と", ["「行く。」"]),
        ("वह गया। फिर", ["वह गया।"]),
        ("- first item\n- second item\n", ["- first item", "- second item"]),
        ("A title\n\nText", ["A title"]),
        ("It was in 1999. Then", ["It was in 1999."]),
        ('He said "no." Then', ['He said "no."']),
    ],
)
def test_sentences_end_at_their_marks_or_at_the_end_of_a_line(text, found):
    assert sentences(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "It takes 3.5 seconds",
        "Dr. Smith and Prof. Jones",
        "J. R. R. Tolkien",
        "at 3 p.m. in the U.S. Army",
        "e.g. Rome, i.e. Italy",
        "see No. 5 and Fig. 3",
        "am 3. Mai",
        "1. First",
        "he said “go.” and went",
        "example.org is",
        "It ends.",
        "",
        " . ",
        "\n\n",
    ],
)
def test_what_only_looks_like_an_end_is_none(text):
    assert [text[:end] for end in sentence_ends(text) if text.strip() not in ("", ".")] == []


def test_the_last_sentences_are_whole_ones():
    text = "One is first. Two comes next.\nThree is last. And then"
    assert [last_sentences(text, count) for count in (1, 2, 9)] == [
        "Three is last.", "Two comes next.\nThree is last.", "One is first. Two comes next.\nThree is last.",
    ]  # fmt: skip
    assert last_sentences("Nothing has ended yet", 2) == ""


@given(st.text(alphabet="aB.!? \n。\"'1", max_size=60))
def test_ends_are_in_order_and_lose_no_text(text):
    ends = sentence_ends(text)
    assert ends == sorted(set(ends)) and all(0 < end <= len(text) for end in ends)
    assert last_sentences(text, len(ends) + 1) == (text[: ends[-1]].strip() if ends else "")
