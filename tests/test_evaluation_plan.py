"""What a run asks: documents of a given length, passages of another one, and what is left out."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_helpers import about_documents, about_history, options, text_of

from rapid_core import LongContext
from rapid_core.evaluation.lengths import cut_to, lengthened
from rapid_core.evaluation.plan import Planner


def words(text):
    return len(text.split())


TEXTS = st.lists(
    st.lists(st.sampled_from(["a", "bb", "c."]), min_size=1, max_size=6).map(" ".join), min_size=1, max_size=8
).map("\n\n".join)


@given(TEXTS, st.integers(1, 30))
def test_a_text_is_cut_behind_the_last_paragraph_that_fits(text, tokens):
    cut = cut_to(text, tokens, words)
    assert text.startswith(cut) and words(cut) <= tokens
    paragraphs, kept = text.split("\n\n"), cut.split("\n\n") if cut else []
    assert kept == paragraphs[: len(kept)]
    if len(kept) < len(paragraphs):
        assert words("\n\n".join(paragraphs[: len(kept) + 1])) > tokens


@given(TEXTS, st.lists(TEXTS, max_size=4), st.integers(1, 60))
def test_a_text_is_lengthened_with_as_many_others_as_are_needed_in_their_order(text, others, tokens):
    long = lengthened(text, others, tokens, words)
    together = "\n\n".join([text, *others])
    if words(together) < tokens:
        assert long == ""
    else:
        assert together.startswith(long) and words(long) <= tokens
        assert long == cut_to(together, tokens, words)


def test_a_line_break_ends_a_paragraph_and_a_last_break_adds_none():
    assert cut_to("a b\nc d\n", 2, words) == "a b"
    assert cut_to("a b\nc d\n", 4, words) == "a b\nc d"
    assert cut_to("a b c", 2, words) == "" == cut_to("", 2, words)


def plan(questions, **asked):
    return Planner(options(**asked).settings, words).plan(questions)


def test_questions_of_one_document_stand_together_even_where_a_task_mixes_them():
    first, second, third, fourth = about_documents().questions()
    found = plan([[first, third, second, fourth]], methods="lc")
    assert [[question for question, _ in part] for part in found.parts] == [[first, second], [third, fourth]]
    assert [part.tokens for part in found.parts] == [words(text_of("Spain")), words(text_of("Norway"))]


def test_a_plan_counts_its_answers_and_tells_two_questions_apart():
    questions = about_documents().questions()
    found = plan([questions], methods=("lc", "rapid"), eta=(5, 10))
    assert len(found) == 12 == sum(1 for part in found.parts for _ in part)
    assert found.fingerprint() == plan([questions], methods=("lc", "rapid"), eta=(5, 10)).fingerprint()
    for name, value in (("references", ("Oslo",)), ("context", LongContext("x")), ("max_new_tokens", 9)):
        other = [replace(questions[0], **{name: value}), *questions[1:]]
        assert found.fingerprint() != plan([other], methods=("lc", "rapid"), eta=(5, 10)).fingerprint()
    assert found.fingerprint() != plan([questions], methods=("lc", "rapid"), eta=(5, 11)).fingerprint()


def test_a_long_document_is_cut_and_questions_whose_evidence_is_behind_the_cut_are_left_out():
    questions = about_documents(documents=("Spain",), questions=4).questions()
    paragraphs = text_of("Spain").split("\n\n")
    found = plan([questions], methods="lc", context_tokens=words("\n\n".join(paragraphs[:2])))
    [part] = found.parts
    assert [question.id for question, _ in part] == [question.id for question in questions[:2]]
    assert {question.context.text for question, _ in part} == {"\n\n".join(paragraphs[:2])}
    # What is searched for stays.
    assert [question.context.query for question, _ in part] == [question.context.query for question in questions[:2]]
    left_out = "facts: 2 questions not asked with 16 tokens of context, since the evidence is behind the cut"
    assert found.notes == (left_out,)


def test_a_short_document_is_lengthened_with_others_of_its_task_and_keeps_its_evidence():
    questions = about_documents(documents=("Spain", "Norway", "Peru"), questions=1).questions()
    found = plan([questions], methods="lc", context_tokens=150)
    texts = {question.document: question.context.text for part in found.parts for question, _ in part}
    # By name, from each on and round again.
    for name, others in (("Spain", "Norway Peru"), ("Norway", "Peru Spain"), ("Peru", "Spain Norway")):
        together = "\n\n".join(text_of(each) for each in (name, *others.split()))
        assert texts[name] == cut_to(together, 150, words) and 140 < words(texts[name]) <= 150
    assert found.notes == ()


def test_how_a_document_is_lengthened_does_not_depend_on_the_order_of_the_questions():
    questions = about_documents(documents=("Spain", "Norway", "Peru"), questions=2).questions()
    asked = {"methods": ("lc", "rag"), "context_tokens": 150, "unrelated": True}
    found, other = plan([questions], **asked), plan([questions[::-1]], **asked)
    assert {pair for part in found.parts for pair in part} == {pair for part in other.parts for pair in part}
    others = [{question.document: part.other for part in each.parts for question, _ in part} for each in (found, other)]
    assert others[0] == others[1] == {"Norway": text_of("Spain"), "Peru": text_of("Norway"), "Spain": text_of("Peru")}


@pytest.mark.parametrize(
    ("questions", "tokens", "why"),
    [
        (about_documents(evidence=None), 20, "since the cut may have its evidence"),
        (about_documents(), 3, "since no paragraph ends before"),
        (about_documents(), 500, "since all documents together are shorter"),
        (about_history(), 20, "since a history is not cut"),
    ],
)
def test_a_question_that_a_length_cannot_be_asked_with_is_left_out_with_the_reason(questions, tokens, why):
    found = plan([questions.questions()], methods="lc", context_tokens=tokens)
    count = len(questions.questions())
    assert found.parts == () and len(found) == 0
    assert found.notes == (f"{questions.name}: {count} questions not asked with {tokens} tokens of context, {why}",)


def test_a_question_without_evidence_is_asked_about_a_longer_document():
    found = plan([about_documents(evidence=None).questions()], methods="lc", context_tokens=100)
    assert len(found) == 4 and found.notes == ()


def test_passages_are_chosen_for_a_setting_only_where_there_are_documents_and_another_one():
    found = plan([about_history(talks=("one",)).questions()], methods=("lc", "rag"), retrieved_tokens=100)
    assert [setting.label for part in found.parts for _, setting in part] == ["lc"]
    assert found.notes == (
        "talk: 1 question not asked by rag, 100 retrieved, since passages are chosen of documents alone",
    )
    alone = plan([about_documents(documents=("Spain",)).questions()], methods=("lc", "rag"), unrelated=True)
    assert [setting.label for part in alone.parts for _, setting in part] == ["lc", "rag"] * 2
    assert alone.notes == (
        "facts: 2 questions not asked by rag, unrelated passages, since the task has no other document beside its text",
    )


def test_passages_of_another_document_are_of_one_that_does_not_lengthen_the_text():
    questions = about_documents(documents=("Norway", "Peru", "Spain"), questions=1).questions()
    [length] = {words(text_of(name)) for name in ("Norway", "Peru", "Spain")}
    for tokens, asked in ((length, 2), (2 * length, 2), (2 * length + 30, 1), (3 * length, 1)):
        found = plan([questions], methods=("rag",), context_tokens=tokens, unrelated=True)
        assert [len(list(part)) for part in found.parts] == [asked] * 3
        for part in found.parts:
            assert bool(part.other) == (asked == 2)
            assert all(part.other not in question.context.text for question, _ in part if part.other)
        assert bool(found.notes) == (asked == 1)


def test_what_is_unrelated_belongs_to_what_a_run_asks():
    norway, peru, spain = about_documents(documents=("Norway", "Peru", "Spain"), questions=1).questions()
    asked = {"methods": ("rag",), "unrelated": True}
    found = plan([[norway, spain]], **asked)
    changed = plan([[norway, replace(spain, context=replace(spain.context, text=peru.context.text))]], **asked)
    # Of the first part alone the other document has changed.
    assert found.parts[0].asked == changed.parts[0].asked
    assert (
        replace(found, parts=found.parts[:1]).fingerprint() != replace(changed, parts=changed.parts[:1]).fingerprint()
    )


def test_the_order_in_which_methods_are_named_means_nothing():
    assert options(methods=("sd", "rapid", "lc")) == options(methods=("lc", "sd", "rapid"))


def test_another_length_of_the_same_document_is_another_part():
    found = plan([about_documents(documents=("Spain",)).questions()], methods=("lc", "rag"), context_tokens=(20, 40))
    lengths = [{setting.context_tokens for _, setting in part} for part in found.parts]
    assert lengths == [{20}, {40}] and [len(list(part)) for part in found.parts] == [4, 4]
    assert all(re.fullmatch(r"lc|rag", setting.method) for part in found.parts for _, setting in part)
