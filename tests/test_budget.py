"""How many passages the drafter reads: a length, or as far as the similarities go."""

from __future__ import annotations

import re

import pytest
from conversations import chat
from helpers import ask
from hypothesis import given
from hypothesis import strategies as st

from rapid_core import LongContext, LongHistory, RapidEngine, Retrieval, Speculation
from rapid_core.retrieval import budget_tokens, falls_off, least_tokens
from rapid_core.testing import WordEncoder, tiny_pair

# In eighths: sums and halves are exact.
SCORES = st.lists(st.integers(-80, 80).map(lambda number: number / 8), min_size=1, max_size=40)
AUTO = Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=256, ratio=48, budget="auto")


# -- the rule -------------------------------------------------------------------------------------


def test_what_stands_out_is_read_and_no_more():
    assert falls_off([0.7, 0.68, 0.3, 0.29, 0.28, 0.3, 0.31]) == 2
    assert falls_off([0.9, *[0.3] * 9]) == 1


@given(SCORES)
def test_at_least_one_passage_is_read_and_at_most_all(scores):
    assert 1 <= falls_off(scores) <= len(scores)


@given(SCORES, st.randoms())
def test_the_order_of_the_passages_does_not_matter(scores, random):
    shuffled = list(scores)
    random.shuffle(shuffled)
    assert falls_off(shuffled) == falls_off(scores)


@given(SCORES, st.integers(-40, 40), st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_only_what_lies_between_the_scores_counts(scores, shift, scale):
    """An encoder whose similarities are all higher, or further apart, changes nothing."""
    assert falls_off([score * scale + shift for score in scores]) == falls_off(scores)


@given(SCORES, st.integers(1, 80))
def test_a_better_best_passage_never_brings_others_with_it(scores, more):
    best = max(range(len(scores)), key=scores.__getitem__)
    raised = [score + more * (place == best) for place, score in enumerate(scores)]
    assert falls_off(raised) <= falls_off(scores)


@given(st.floats(-1, 1), st.integers(1, 30))
def test_of_equal_passages_none_stands_out_and_all_are_read(score, count):
    assert falls_off([score] * count) == count


def test_nothing_to_choose_from_is_nothing():
    assert falls_off([]) == 0


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.floats(1, 100))
def test_auto_moves_between_the_two_lengths_of_which_the_paper_takes_the_larger(tokens, floor, ratio):
    paper = Retrieval(floor_tokens=floor, ratio=ratio)
    auto = Retrieval(floor_tokens=floor, ratio=ratio, budget="auto")
    assert budget_tokens(tokens, auto) == budget_tokens(tokens, paper)
    assert least_tokens(tokens, auto) == min(floor, int(tokens / ratio))


@pytest.mark.parametrize(("document", "tokens"), [(100_000, 700), (1_000, 700), (500, 500), (0, 0)])
def test_a_number_is_so_many_tokens_and_never_more_than_there_are(document, tokens):
    assert budget_tokens(document, Retrieval(budget=700)) == tokens


# -- behind the engine ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lines():
    """A long document in which one line is about Lima, and a few share a word with the question."""
    text = [f"Line {i} of the report is about nothing at all that anybody needs." for i in range(60)]
    text[30] = "The many ships of Lima belong to the queen, who is Rosa."
    return "\n\n".join(text)


def engine_of(retrieval):
    return RapidEngine(*tiny_pair(window=16384), retrieval=retrieval, encoder=WordEncoder())


def test_a_clear_answer_takes_fewer_passages_and_a_note_says_why(lines):
    question = "Who are the many ships of Lima?"
    with engine_of(AUTO) as engine, engine_of(Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=256)) as fixed:
        auto, paper = (ask(made, lines, question, max_new_tokens=2).stats for made in (engine, fixed))
        count = engine.count_tokens
    assert {chunk.text for chunk in auto.retrieved} < {chunk.text for chunk in paper.retrieved}
    assert any("Lima" in chunk.text for chunk in auto.retrieved)
    (note,) = auto.notes
    found = re.fullmatch(
        r"budget='auto' for the document: (\d+) of (\d+) passages, ([\d,]+) of at most ([\d,]+) tokens; the "
        r"similarities fall from ([\d.]+) to ([\d.]+) behind them",
        note,
    )
    chosen, _, tokens, most, last, following = (float(group.replace(",", "")) for group in found.groups())
    assert chosen == len(auto.retrieved)
    assert tokens == sum(count(chunk.text + "\n\n") for chunk in auto.retrieved) < most
    assert most == budget_tokens(auto.context_tokens, AUTO)
    assert last == round(min(chunk.score for chunk in auto.retrieved), 2) > following
    assert paper.notes == ()


def test_auto_reads_the_smaller_length_even_where_one_passage_stands_out(lines):
    retrieval = Retrieval(chunk_tokens=80, threshold=0.0, floor_tokens=250, ratio=1, budget="auto")
    with engine_of(retrieval) as engine:
        stats = ask(engine, lines, "Who are the many ships of Lima?", max_new_tokens=2).stats
        read = sum(engine.count_tokens(chunk.text + "\n\n") for chunk in stats.retrieved)
    # The smaller of 250 tokens and all of the document.
    assert 250 - 82 < read <= 250
    assert stats.notes[0].endswith("the similarities fall off before, and no less is read")


def test_passages_that_are_all_alike_fill_the_budget(lines):
    alike = "\n\n".join(["The same line is here once more and again."] * 60)
    with engine_of(AUTO) as engine:
        stats = ask(engine, alike, "Which line?", max_new_tokens=2).stats
        read = sum(engine.count_tokens(chunk.text + "\n\n") for chunk in stats.retrieved)
    most = budget_tokens(stats.context_tokens, AUTO)
    assert most - 64 < read <= most
    assert stats.notes[0].endswith("the similarities do not fall off before")


def test_passages_of_a_history_end_where_their_similarities_fall_too():
    messages = chat("Who are the many ships of Lima?", ["Oslo", "Lima", "Rome", "Paris", "Cairo", "Quito"] * 3)
    options = {"chunk_tokens": 256, "threshold": 0.0, "floor_tokens": 2000, "ratio": 16}
    stats = []
    for budget in ("paper", "auto"):
        with engine_of(Retrieval(**options, budget=budget)) as engine:
            stats.append(ask(engine, LongHistory(), messages, max_new_tokens=2).stats)
    paper, auto = stats
    assert len(auto.retrieved) < len(paper.retrieved)
    assert all("Lima" in chunk.text for chunk in auto.retrieved)
    assert auto.notes[0].startswith(f"budget='auto' for the older messages: {len(auto.retrieved)} of ")


def test_a_ranking_of_the_callers_own_has_the_papers_length_and_a_note():
    messages = chat("Who are the many ships of Lima?")
    with engine_of(AUTO) as engine:
        notes = ask(engine, LongHistory(rank=lambda query, texts: [2, 1]), messages, max_new_tokens=2).stats.notes
    assert notes == (
        "budget='auto' needs similarities, and LongHistory.rank gives none: the older messages have the paper's length",
    )


def test_chunks_of_the_caller_are_read_as_they_are(lines):
    chunks = tuple(lines.split("\n\n")[:9])
    with engine_of(AUTO) as engine:
        stats = ask(engine, LongContext(lines, chunks), "Who?", Speculation(), max_new_tokens=2).stats
    assert [chunk.text for chunk in stats.retrieved] == list(chunks)
    assert stats.notes == ("budget='auto' is not for chunks that were given: they are used as they are",)


def test_a_note_tells_the_threshold_where_that_ended_the_choice(lines):
    with engine_of(Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=256)) as engine:
        scores = [chunk.score for chunk in ask(engine, lines, "Which line?", max_new_tokens=2).stats.retrieved]
    retrieval = Retrieval(chunk_tokens=64, threshold=max(scores), floor_tokens=256, budget="auto")
    with engine_of(retrieval) as engine:
        stats = ask(engine, lines, "Which line?", max_new_tokens=2).stats
    assert all(chunk.score >= retrieval.threshold for chunk in stats.retrieved)
    assert stats.retrieved and stats.notes[0].endswith("the similarities of the others do not reach the threshold")


def test_a_budget_of_fewer_tokens_than_a_chunk_has_makes_chunks_shorter(lines):
    with engine_of(Retrieval(threshold=0.0, budget=160)) as engine:
        stats = ask(engine, lines, "Who are the many ships of Lima?", max_new_tokens=2).stats
    assert stats.retrieved and sum(len(chunk.text) for chunk in stats.retrieved) <= 160
