"""Drafters whose window is smaller than what retrieval finds, than the messages, or than the answer."""

from __future__ import annotations

import pytest
from helpers import ask

from rapid_core import Chunk, LongContext, Message, RapidEngine, Retrieval, Sampling, Speculation
from rapid_core.testing import WordEncoder, tiny_pair


def small(window, **options):
    """A target that reads everything beside a drafter of this window, whose answers end at their limit."""
    target, drafter = tiny_pair(window=4096)
    drafter.model.config.max_position_embeddings = window
    target.model.generation_config.eos_token_id = -1
    retrieval = Retrieval(chunk_tokens=64, threshold=0.0, **{"floor_tokens": 2048, **options})
    return RapidEngine(target, drafter, retrieval=retrieval, encoder=WordEncoder())


@pytest.mark.parametrize("gamma", [4, "auto"])
def test_the_budget_shrinks_to_the_window_and_the_stats_say_so(document, gamma):
    with small(320) as engine:
        # A quarter of the document is more than the window.
        plain = ask(engine, document * 3, speculation=Speculation.off(), max_new_tokens=24)
        result = ask(engine, document * 3, speculation=Speculation.lossless(gamma=gamma), max_new_tokens=24)
        assert result.token_ids == plain.token_ids
        notes = [note for note in result.stats.notes if "shrank" in note]
        assert len(notes) == 1 and notes[0].startswith("the drafter's window of 320 tokens shrank its budget to ")
        assert 0 < result.stats.drafter_prompt_tokens <= 320 - 24
        assert result.stats.retrieved
        if gamma == 4:
            assert result.stats.drafted > 0


def test_a_window_that_is_large_enough_shrinks_nothing(document):
    with small(2048) as engine:
        result = ask(engine, document * 3, max_new_tokens=8)
        assert not any("shrank" in note for note in result.stats.notes)


def test_messages_that_fill_the_window_alone_leave_no_drafter_and_say_why(document):
    with small(256) as engine:
        messages = [Message("system", "Be brief. " * 30), Message("user", "Who lives in Lima?")]
        options = {"context": document, "sampling": Sampling(max_new_tokens=8)}
        result = engine.generate(messages, speculation=Speculation.lossless(gamma=4), **options)
        plain = engine.generate(messages, speculation=Speculation.off(), **options)
        assert result.token_ids == plain.token_ids
        assert result.stats.drafted == result.stats.drafter_prompt_tokens == 0
        (reason,) = (note for note in result.stats.notes if note.startswith("no drafter"))
        assert reason == "no drafter: no passage fits the drafter's budget"
        assert any("shrank its budget to 0" in note for note in result.stats.notes)


@pytest.mark.parametrize("gamma", [4, "auto"])
def test_a_window_that_fills_up_during_the_answer_ends_the_drafts_and_not_the_answer(document, gamma):
    with small(320) as engine:
        plain = ask(engine, document * 3, speculation=Speculation.off(), max_new_tokens=400)
        result = ask(engine, document * 3, speculation=Speculation.lossless(gamma=gamma), max_new_tokens=400)
        assert plain.usage.completion_tokens == 400 and result.token_ids == plain.token_ids
        assert len(engine._drafter.sequence) > 320 or gamma == "auto"
        full = "the drafter's window filled up, and the answer went on without it"
        assert (full in result.stats.notes) == (gamma == 4 or "drafter" in result.stats.sources)


def test_ranked_chunks_are_read_as_far_as_the_window_holds(document):
    chunks = tuple(Chunk(text) for text in document.split("\n\n"))
    context = LongContext(document, chunks, ranking=tuple(range(len(chunks))))
    with small(320) as engine:
        result = ask(engine, context, speculation=Speculation.lossless(gamma=4), max_new_tokens=16)
        assert 0 < len(result.stats.retrieved) < len(chunks)
        assert result.stats.drafter_prompt_tokens <= 320 and result.stats.drafted > 0


def test_a_prompt_without_a_document_over_the_drafters_window_is_answered_plainly():
    with small(64) as engine:
        result = engine.generate("x" * 100, sampling=Sampling(max_new_tokens=4))
        assert any("does not fit the drafter's window of 64" in note for note in result.stats.notes)
        assert result.usage.completion_tokens == 4
