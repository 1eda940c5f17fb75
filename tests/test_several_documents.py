"""Several documents in one request: which are read, where they stand, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import TINY

from rapid_core import (
    Chunk,
    Document,
    InputError,
    LongContext,
    PromptTooLongError,
    RapidEngine,
    Sampling,
    Speculation,
)
from rapid_core.retrieval import join
from rapid_core.several_documents import joined, name_of, whole_that_fit
from rapid_core.testing import ScriptedEngine, WordEncoder, tiny_engine, tiny_pair

QUESTION = "Who lives in Lima?"
SHORT = Sampling(max_new_tokens=4)
PERU = Document("The judge of Peru lives in Lima, near the harbour and the old church.", "peru.txt")
SPAIN = Document("The king of Spain lives in Madrid.\n\nHis house has many rooms.", "spain.txt")
NORWAY = Document("The queen of Norway lives in Oslo, and reads.")
ALL = (SPAIN, PERU, NORWAY)
TEXT = (
    "The queen of Norway lives in Oslo, and reads.\n\n"
    "=== peru.txt ===\n\nThe judge of Peru lives in Lima, near the harbour and the old church.\n\n"
    "=== spain.txt ===\n\nThe king of Spain lives in Madrid.\n\nHis house has many rooms."
)


def long_document(name, tokens):
    """A document that takes so many tokens with its name and the blank line before it, of one a byte."""
    text = f"The secret of {name} is told. "
    return Document(text + "x" * (tokens - len(text) - len(f"\n\n=== {name} ===\n\n")), name)


def target_text(engine, context, **options):
    pair = engine.prompts(QUESTION, context=context, sampling=SHORT, **options)
    return engine.target.tokenizer.decode(pair.target_ids)


def room_of(engine):
    """Tokens that the window leaves for documents beside the question and the answer."""
    return engine.window - SHORT.max_new_tokens - len(engine.prompts(QUESTION, context="x").target_ids)


def test_the_documents_stand_together_behind_their_names_whatever_their_ranking():
    with tiny_engine() as engine:
        for ranking in (ALL, ALL[::-1], (PERU, NORWAY, SPAIN)):
            text = target_text(engine, LongContext(documents=ranking))
            assert text.startswith(f"<|im_start|>user\n{TEXT}\n\n{QUESTION}<|im_end|>")


def test_the_next_question_reuses_the_cache_and_the_index_although_ranks_changed():
    encoder = WordEncoder()
    with RapidEngine(*tiny_pair(), retrieval=TINY, encoder=encoder) as engine:
        engine.generate(QUESTION, context=LongContext(documents=ALL), sampling=SHORT)
        embedded = encoder.embedded
        result = engine.generate("And who in Oslo?", context=LongContext(documents=ALL[::-1]), sampling=SHORT)
    assert result.usage.cached_tokens > len(TEXT) and encoder.embedded == embedded > 0
    assert result.stats.context_tokens == len(TEXT) and result.stats.left_out == ()


def test_a_position_goes_before_the_name_and_says_nothing_of_the_rank():
    first, last = replace(SPAIN, position=-1), replace(NORWAY, position=1)
    with tiny_engine(window=1024) as engine:
        for ranking in ((last, PERU, first), (PERU, first, last)):
            text = target_text(engine, LongContext(documents=ranking))
            assert text.startswith(f"<|im_start|>user\n{joined([SPAIN])}\n\n{joined([PERU])}\n\n{NORWAY.text}\n\n")
        late = replace(long_document("large", 900), position=-5)
        result = engine.generate(QUESTION, context=LongContext(documents=(last, PERU, late)), sampling=SHORT)
    assert result.stats.left_out == ("large",)


def test_a_document_of_a_later_turn_comes_behind_those_that_the_cache_holds():
    with tiny_engine() as engine:
        before = engine.generate(QUESTION, context=LongContext(documents=(SPAIN, PERU)), sampling=SHORT)
        documents = (replace(NORWAY, position=1), SPAIN, PERU)
        result = engine.generate("And who in Oslo?", context=LongContext(documents=documents), sampling=SHORT)
    read = len(f"<|im_start|>user\n{joined((SPAIN, PERU))}\n\n") - len("<|im_start|>") + 1
    assert before.usage.prompt_tokens > result.usage.cached_tokens >= read


def test_passages_are_retrieved_over_all_of_them():
    with tiny_engine() as engine:
        stats = engine.generate(QUESTION, context=LongContext(documents=ALL), sampling=SHORT).stats
    assert "judge of Peru" in join(stats.retrieved)
    assert all(TEXT[chunk.start : chunk.end] == chunk.text for chunk in stats.retrieved)


def test_chunks_of_the_caller_are_the_drafters_also_where_their_document_was_left_out():
    chunks = (Chunk("The judge of Peru lives in Lima"), "from the left out one")
    with tiny_engine(window=1024) as engine:
        documents = (PERU, long_document("large", 2000))
        pair = engine.prompts(QUESTION, context=LongContext(documents=documents, chunks=chunks), sampling=SHORT)
        text = engine.target.tokenizer.decode(pair.drafter_ids)
    assert f"user\nThe judge of Peru lives in Lima\n\nfrom the left out one\n\n{QUESTION}<" in text


def test_the_best_ranked_are_read_whole_until_the_window_is_full_to_the_token():
    with tiny_engine(window=1024) as engine:
        room = room_of(engine)
        large, small = long_document("large", 500), long_document("small", room - 500 + 2)
        # The first one has no blank line before it.
        fits = LongContext(documents=(large, small))
        assert engine.generate(QUESTION, context=fits, sampling=SHORT).stats.left_out == ()
        result = engine.generate(QUESTION, context=fits, sampling=Sampling(max_new_tokens=5))
        assert result.stats.left_out == ("small",)
        one_more = LongContext(documents=(large, Document(small.text + "x", "small")))
        assert engine.generate(QUESTION, context=one_more, sampling=SHORT).stats.left_out == ("small",)


def test_one_that_does_not_fit_is_passed_over_and_named():
    unnamed = Document("Eight words of this document are its name " + "x" * 900)
    with tiny_engine(window=1024) as engine:
        context = LongContext(documents=(PERU, long_document("large", 950), unnamed, SPAIN))
        result = engine.generate(QUESTION, context=context, sampling=SHORT)
        text = target_text(engine, context)
    assert result.stats.left_out == ("large", "Eight words of this document are its name …")
    assert result.stats.notes[0] == (
        "the target's window of 1,024 tokens has room for 2 of 4 documents, and these are left out: "
        "large; Eight words of this document are its name …"
    )
    assert joined((PERU, SPAIN)) in text and "secret" not in text
    assert result.stats.context_tokens == len(joined((PERU, SPAIN)))


def test_what_was_counted_too_short_is_left_out_after_all(monkeypatch):
    """Tokens of texts do not add up exactly where a tokenizer joins over their borders."""
    with tiny_engine(window=1024) as engine:
        monkeypatch.setattr(engine._prompter, "count_tokens", lambda text: len(text) // 2)
        context = LongContext(documents=(PERU, SPAIN, long_document("large", 900)))
        result = engine.generate(QUESTION, context=context, sampling=SHORT)
    assert result.stats.left_out == ("large",) and result.usage.prompt_tokens <= 1024 - SHORT.max_new_tokens


def test_the_best_ranked_one_that_does_not_fit_alone_is_an_error_by_default():
    with tiny_engine(window=1024) as engine:
        context = LongContext(documents=(long_document("large", 2000), PERU))
        with pytest.raises(PromptTooLongError, match="with the best-ranked document alone; choose fit='retrieve'"):
            engine.generate(QUESTION, context=context)


@pytest.mark.parametrize("fit", ["middle", "retrieve"])
def test_fit_decides_about_the_best_ranked_one_alone(fit):
    lines = [f"Line {i} of the long report says little of Lima." for i in range(60)]
    report = Document("\n\n".join(lines), "report.txt")
    chunks = ("The king of Spain lives in Madrid.", lines[40], lines[7])
    with tiny_engine(window=1024) as engine:
        context = LongContext(documents=(report, SPAIN))
        text = target_text(engine, context, fit=fit)
        result = engine.generate(QUESTION, context=context, sampling=SHORT, fit=fit)
        of_the_caller = target_text(engine, LongContext(documents=(report, SPAIN), chunks=chunks), fit=fit)
        foreign = target_text(engine, LongContext(documents=(report, SPAIN), chunks=chunks[:1]), fit=fit)
    assert result.stats.left_out == ("spain.txt",) and "Madrid" not in text
    assert f"(fit={fit!r})" in result.stats.notes[0] and "left out: spain.txt" in result.stats.notes[1]
    if fit == "middle":
        assert "=== report.txt ===\n\nLine 0 " in text and text == of_the_caller
    else:
        # The target reads of this document alone: the caller's own passages of it, or those that we find.
        assert f"user\n{lines[7]}\n\n{lines[40]}\n\n{QUESTION}" in of_the_caller
        assert "Madrid" not in foreign and "Line" in foreign


def test_several_documents_are_saved_as_the_text_that_the_target_read(tmp_path):
    with tiny_engine(window=1024) as engine:
        context = LongContext(documents=(*ALL, long_document("large", 2000)))
        expected = engine.generate(QUESTION, context=context, sampling=SHORT, speculation=Speculation.off())
        engine.save_document(tmp_path / "kept")
    with tiny_engine(window=1024) as engine:
        loaded = engine.load_document(tmp_path / "kept")
        assert loaded == LongContext(TEXT)
        result = engine.generate(QUESTION, context=loaded, sampling=SHORT, speculation=Speculation.off())
    assert result.token_ids == expected.token_ids and result.usage.cached_tokens >= len(TEXT)


def test_the_scripted_engine_takes_several_documents_and_saves_their_text(tmp_path):
    engine = ScriptedEngine(["one"])
    engine.generate(QUESTION, context=LongContext(documents=ALL))
    engine.save_document(tmp_path / "kept")
    assert engine.load_document(tmp_path / "kept").text == TEXT


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (LongContext(), "the document must not be empty"),
        (LongContext("text", documents=(PERU,)), "either text or documents, got both"),
        (LongContext(documents=(PERU, Document(" \n", "empty"))), "document 1 must not be empty; drop it"),
        (LongContext(documents=("text",)), "document 0 must be a Document of text, got str"),
        (LongContext(documents="text"), "documents must be a list of Document, got str"),
        (LongContext(documents=(Document("text", "two\nlines"),)), "its name must be one line of text"),
        (LongContext(documents=(Document("text", None),)), "its name must be one line of text, got None"),
        (LongContext(documents=(Document("\ud800"),)), "document 0 must be valid Unicode"),
        (LongContext(documents=(PERU, Document("text", position="1"))), "document 1: its position must be .* got '1'"),
        (LongContext(documents=(Document("text", position=True),)), "must be a whole number, got True"),
    ],
)
def test_documents_that_cannot_be_used_are_an_error(context, reason):
    for engine in (tiny_engine(), ScriptedEngine(["one"])):
        with pytest.raises(InputError, match=reason):
            engine.generate(QUESTION, context=context)


def test_a_list_of_documents_is_as_good_as_a_tuple_and_positions_stay():
    with tiny_engine() as engine:
        assert target_text(engine, LongContext(documents=[PERU])) == target_text(engine, joined([PERU]))
        assert LongContext("text", (Chunk("a"),), "query") == LongContext(
            text="text", chunks=(Chunk("a"),), query="query"
        )


def test_the_choice_is_whole_and_best_ranked_first():
    documents = [Document("a" * 10), Document("b" * 20), Document("c" * 5), Document("d" * 3)]
    kept, rest = whole_that_fit(documents, 10 + 2 + 5 + 2 + 3, len)
    assert (kept, rest) == ([documents[0], documents[2], documents[3]], [documents[1]])
    assert whole_that_fit(documents, 3, len) == ([documents[0]], documents[1:])
    assert name_of(Document("one two")) == "one two"
