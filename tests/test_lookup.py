"""The n-gram index against a search of the whole text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_core.lookup import BORDER, LEAST_MATCH, NgramIndex

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=3)


def matches(ids, drafted):
    """The length of the match of every place with the end of the text, by comparing all of them."""
    text = [*ids, *drafted]
    found = {}
    for place in range(1, len(ids)):
        length = 0
        while length < place and ids[place - 1 - length] == text[-1 - length] != BORDER:
            length += 1
        if length >= LEAST_MATCH and ids[place] != BORDER:
            found[place] = length
    return found


def joined(texts):
    ids = list(texts[0])
    for text in texts[1:]:
        ids += [BORDER, *text]
    return ids


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 2), max_size=3))
def test_it_finds_a_longest_match_and_of_those_the_latest(texts, drafted):
    ids = joined(texts)
    expected = matches(ids, drafted)
    found = NgramIndex(*texts).find(drafted, 1)
    if not expected:
        assert found is None
        return
    longest = max(expected.values())
    place = max(place for place, length in expected.items() if length == longest)
    assert found is not None and (found.length, found.ids) == (min(longest, 32), [ids[place]])


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 2), max_size=20))
def test_extended_token_by_token_it_is_what_it_is_when_built_at_once(texts, answer):
    at_once = NgramIndex(*texts[:-1], [*texts[-1], *answer])
    grown = NgramIndex(*texts)
    for id_ in answer:
        grown.extend([id_])
    assert len(grown) == len(at_once)
    for drafted in ([], [0], [1, 2]):
        assert grown.find(drafted, 8) == at_once.find(drafted, 8)


def test_the_continuation_ends_at_the_limit_and_at_the_border_of_a_text():
    index = NgramIndex([1, 2, 3, 4, 5], [9, 1, 2])
    assert index.find([], 2).ids == [3, 4]
    assert index.find([], 10).ids == [3, 4, 5]
    assert index.find([], 0) is None


def test_no_match_reaches_over_a_border():
    assert NgramIndex([5, 1], [2, 7, 5, 1, 2]).find([], 4) is None


def test_a_text_that_repeats_itself_goes_on_repeating():
    assert NgramIndex([7, 1, 2, 3, 1, 2, 3]).find([], 7).ids == [1, 2, 3, 1, 2, 3, 1]


def test_drafts_count_as_text_and_are_not_kept():
    index = NgramIndex([1, 2, 3, 4, 8, 1, 2])
    assert index.find([3], 2).ids == [4, 8]
    assert index.find([9], 2) is None
    assert index.find([], 2).ids == [3, 4]


def test_the_answer_goes_before_the_passages_and_they_before_the_document():
    document, passages = [1, 2, 3, 0, 0], [1, 2, 4, 9, 1, 2]
    index = NgramIndex(document, passages)
    assert index.find([], 1).ids == [4]
    index.extend([5, 1, 2])
    assert index.find([], 1).ids == [5]


def test_it_is_built_once_and_never_scanned():
    """A find in a text of 200,000 different pairs looks at no more places than in a short one."""

    class Counted(list):
        reads = 0

        def __getitem__(self, at):
            type(self).reads += 1
            return super().__getitem__(at)

    text = [id_ for i in range(50_000) for id_ in (3, 4, i % 1_000 + 10, i % 777 + 2_000)]
    index = NgramIndex([*text, 3, 4])
    index._ids = Counted(index._ids)
    assert index.find([], 8) is not None
    assert Counted.reads < 32 * 33 + 20
