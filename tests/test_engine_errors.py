"""What `RapidEngine` refuses, and that an error costs nothing but its request."""

from __future__ import annotations

import pytest
import torch
from helpers import ask

from rapid_core import (
    Chunk,
    InputError,
    LongContext,
    Message,
    ModelOutputError,
    OptionError,
    PromptTooLongError,
    RapidEngine,
    RapidError,
    UnsupportedModelError,
)
from rapid_core.testing import WordEncoder, tiny_engine, tiny_model


def test_a_document_over_the_window_is_an_error_with_both_numbers(document):
    with tiny_engine(window=512) as engine, pytest.raises(PromptTooLongError) as error:
        ask(engine, document)
    assert (
        "512 tokens" in str(error.value) and "fit='retrieve'" in str(error.value) and "--fit middle" in str(error.value)
    )
    assert error.value.window == 512
    assert f"{error.value.prompt_tokens:,}" in str(error.value)


def test_a_passage_that_no_window_can_hold_is_an_error_that_says_so(document):
    with tiny_engine(window=512) as engine, pytest.raises(PromptTooLongError, match="none of 1 does; pass shorter"):
        engine.generate("Who?", context=LongContext(document, (document,)), fit="retrieve")


def test_messages_over_the_window_are_an_error(engine):
    with pytest.raises(PromptTooLongError, match="window of 1,024 tokens"):
        engine.generate([Message("system", "x" * 2000), Message("user", "Who?")])


def test_chunks_over_the_drafters_window_are_an_error(document):
    with tiny_engine(window=2048) as engine:
        engine.drafter.model.config.max_position_embeddings = 512
        small = RapidEngine(engine.target, engine.drafter, encoder=WordEncoder())
        with pytest.raises(PromptTooLongError, match="drafter's prompt must be shorter than its window of 512"):
            ask(small, LongContext(document, (document,)))


@pytest.mark.parametrize(
    ("prompt", "context", "message"),
    [
        ("", "a document", "the question must not be empty"),
        ("  \n", "a document", "the question must not be empty"),
        ([], "a document", "at least one message"),
        ("Who?", "", "the document must not be empty"),
        ("Who?", " \n ", "the document must not be empty"),
        ("Who?", 5, "context must be text"),
        ("Who?", LongContext("text", ("",)), "a chunk must not be empty"),
        ("Who?", LongContext("text", (7,)), "a chunk must be text or a Chunk of text"),
        ("Who\ud800?", None, "must be valid Unicode"),
        ([Message("robot", "hi")], None, "role must be one of"),
        ([Message("assistant", "hi")], None, "the last message must be from"),
        (["hi"], None, "must be a Message"),
        ("Who?", LongContext("text", "abc"), "chunks must be a list"),
        ("Who?", LongContext("text", 5), "chunks must be a list"),
        ("Who?", LongContext("text", (Chunk(5),)), "a chunk must be text or a Chunk of text"),
        ("Who?", LongContext("text", (Chunk("\ud800"),)), "a chunk must be valid Unicode"),
        ("Who?", LongContext("text", query=5), "query must be text"),
    ],
)
def test_bad_input_is_refused_before_any_work(engine, prompt, context, message):
    with pytest.raises(InputError, match=message) as error:
        engine.generate(prompt, context=context)
    assert isinstance(error.value, RapidError)
    # A stream refuses when it is made, and not when it is first read.
    with pytest.raises(InputError):
        engine.stream(prompt, context=context)


def test_options_of_the_wrong_kind_are_refused(engine):
    with pytest.raises(OptionError, match="sampling must be a Sampling, got dict"):
        engine.generate("Who?", sampling={"temperature": 1})


def test_an_unknown_way_to_fit_is_refused(engine):
    with pytest.raises(OptionError, match="fit must be one of 'error', 'retrieve', 'middle', got 'squeeze'"):
        engine.generate("Who?", fit="squeeze")


def test_an_error_of_the_model_leaves_the_engine_usable(document):
    with tiny_engine() as engine:
        expected = ask(engine, document).token_ids
        forward = engine.target.model.forward
        engine.target.model.forward = lambda *_, **__: (_ for _ in ()).throw(MemoryError("no room"))
        with pytest.raises(MemoryError):
            ask(engine, document, "Another question?")
        engine.target.model.forward = forward
        assert ask(engine, document).token_ids == expected


def test_memory_that_runs_out_while_the_cache_grows_costs_nothing_but_the_request(document, monkeypatch):
    import rapid_core.kv_cache as module

    original, made = module._empty_like, []

    def fail_at(call):
        def sometimes(states, capacity):
            made.append(capacity)
            if len(made) == call:
                raise MemoryError("no room")
            return original(states, capacity)

        return sometimes

    for call in range(1, 6):
        with tiny_engine(window=8192) as engine:
            expected = ask(engine, document, max_new_tokens=8).token_ids
            made.clear()
            monkeypatch.setattr(module, "_empty_like", fail_at(call))
            with pytest.raises(MemoryError):
                ask(engine, document * 3, max_new_tokens=8)
            monkeypatch.undo()
            assert ask(engine, document, max_new_tokens=8).token_ids == expected


def test_one_bad_number_is_forgotten_with_the_request(document):
    with tiny_engine() as engine:
        expected = ask(engine, document, max_new_tokens=8).token_ids
        broken = [True]

        def spoil(module, args, output):
            if broken and output.logits.shape[1] == 1:
                broken.clear()
                output.logits = output.logits * torch.nan
            return output

        handle = engine.target.model.register_forward_hook(spoil)
        with pytest.raises(ModelOutputError):
            ask(engine, document + "!", max_new_tokens=8)
        handle.remove()
        assert ask(engine, document, max_new_tokens=8).token_ids == expected


def test_what_the_progress_callback_raises_reaches_the_caller_as_it_is(document):
    class MineError(ValueError):
        pass

    def refuse(stage, done, total):
        raise MineError(stage)

    with tiny_engine() as engine:
        with pytest.raises(MineError, match="^(index|prefill)$"):
            engine.generate("Who?", context=document, progress=refuse)
        assert ask(engine, document, max_new_tokens=2)


def test_a_model_that_cannot_be_rewound_is_refused_by_the_constructor_too():
    model = tiny_model("recurrent_gemma", attention_window_size=24)
    with pytest.raises(UnsupportedModelError, match="'recurrent_gemma'"):
        RapidEngine(model)
