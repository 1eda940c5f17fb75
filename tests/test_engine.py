"""`RapidEngine` from the outside: text, streams, seeds, reuse, errors."""

from __future__ import annotations

import re

import pytest
import torch
from helpers import RANDOM, TINY, ask, count_forwards

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
    Retrieval,
    Sampling,
    Speculation,
    UnsupportedModelError,
    VocabularyError,
)
from rapid_core.loading import LoadedModel
from rapid_core.testing import WordEncoder, tiny_engine, tiny_model, tiny_pair, tiny_tokenizer


def test_the_two_roles_read_different_prompts(engine, document):
    pair = engine.prompts("Who lives in Lima?", context=document)
    decode = engine.target.tokenizer.decode
    target, drafter = decode(pair.target_ids), decode(pair.drafter_ids)
    assert document in target
    assert "Lima" in drafter
    assert len(pair.drafter_ids) < len(pair.target_ids) / 2
    for prompt in (target, drafter):
        assert prompt.endswith("Who lives in Lima?<|im_end|>\n<|im_start|>assistant\n")


def test_transfer_reaches_the_answer_and_is_counted(engine, document):
    plain = ask(engine, document, speculation=Speculation.off())
    lossless = ask(engine, document, speculation=Speculation.lossless())
    transferred = ask(engine, document, speculation=Speculation(eta=40.0))
    assert lossless.token_ids == plain.token_ids
    assert transferred.token_ids != plain.token_ids
    assert (plain.stats.drafted, lossless.stats.transferred) == (0, 0)
    assert 0 < transferred.stats.transferred <= 40


@pytest.mark.parametrize("limit", [1, 2, 10, 11])
@pytest.mark.parametrize("eta", [0.0, 10.0])
def test_max_new_tokens_is_exact(engine, document, limit, eta):
    whole = ask(engine, document, max_new_tokens=30, speculation=Speculation(gamma=10, eta=eta))
    short = ask(engine, document, max_new_tokens=limit, speculation=Speculation(gamma=10, eta=eta))
    assert short.usage.completion_tokens == len(short.token_ids) == limit
    assert short.finish_reason == "length"
    if eta == 0:
        assert short.token_ids == whole.token_ids[:limit]


@pytest.mark.parametrize("gamma", [1, 4, 16])
def test_a_stop_string_ends_the_text_before_it_in_stream_and_whole(engine, document, gamma):
    speculation = Speculation.lossless(gamma=gamma)
    whole = ask(engine, document, speculation=speculation)
    for start in range(3, 30, 5):
        stop = whole.text[start : start + 3]
        if not stop.strip() or "\ufffd" in stop:
            continue
        cut = ask(engine, document, speculation=speculation, stop=[stop, "never said"])
        assert cut.text == whole.text[: whole.text.find(stop)]
        assert cut.finish_reason == "stop"
        assert stop not in cut.text
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]


def test_the_end_of_sequence_is_part_of_the_ids_and_not_of_the_text(document):
    target, drafter = tiny_pair("llama")
    with RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder()) as engine:
        whole = ask(engine, document, speculation=Speculation.lossless())
        eos = whole.token_ids[7]
        target.model.generation_config.eos_token_id = [eos, 2]
        cut = ask(engine, document, speculation=Speculation.lossless())
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(eos) + 1]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_seed_gives_the_same_text_and_another_seed_another(engine, document, seed):
    first, second = (ask(engine, document, seed=seed, **RANDOM) for _ in range(2))
    other = ask(engine, document, seed=seed + 1, **RANDOM)
    assert first.token_ids == second.token_ids
    assert other.token_ids != first.token_ids
    assert first.stats.seed == seed


def test_without_a_seed_a_fresh_one_is_drawn_and_named(engine, document):
    first, second = (ask(engine, document, **RANDOM) for _ in range(2))
    assert first.stats.seed != second.stats.seed
    assert ask(engine, document, seed=first.stats.seed, **RANDOM).token_ids == first.token_ids


def test_the_global_random_state_is_left_as_it_was(engine, document):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    ask(engine, document, seed=1, **RANDOM)
    ask(engine, document, **RANDOM)
    assert torch.equal(torch.get_rng_state(), before)


def test_drafts_are_drawn_independently_of_what_decides_about_them(engine, document, monkeypatch):
    seeds = []
    import rapid_core.answering as module

    original = module.Sampler
    monkeypatch.setattr(module, "Sampler", lambda *a: seeds.append(a[-1]) or original(*a))
    ask(engine, document, seed=3, **RANDOM)
    assert len(seeds) == len(set(seeds)) == 2


@pytest.mark.parametrize("options", [{"seed": 0, **RANDOM}, {"max_new_tokens": 60}])
def test_a_joined_stream_is_the_whole_answer(engine, document, options):
    sampling = Sampling(**options)
    deltas = list(engine.stream("名前は? 🦊", context=document, sampling=sampling))
    whole = engine.generate("名前は? 🦊", context=document, sampling=sampling)
    assert "".join(delta.text for delta in deltas) == whole.text
    assert tuple(id_ for delta in deltas for id_ in delta.token_ids) == whole.token_ids
    assert whole.text == engine.target.tokenizer.decode(whole.token_ids, skip_special_tokens=True)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == whole.finish_reason
    assert deltas[-1].usage == whole.usage or deltas[-1].usage.cached_tokens < whole.usage.cached_tokens


def test_a_closed_stream_stops_the_work_and_frees_the_engine(document):
    with tiny_engine() as engine:
        calls = count_forwards(engine)
        stream = engine.stream("Who?", context=document, sampling=Sampling(max_new_tokens=400))
        next(stream)
        stream.close()
        after = calls[0]
        expected = ask(tiny_engine(), document)
        assert calls[0] == after
        assert ask(engine, document).token_ids == expected.token_ids


def test_the_second_question_reuses_the_document(document):
    encoder = WordEncoder()
    with RapidEngine(*tiny_pair(), retrieval=TINY, encoder=encoder) as engine:
        first = ask(engine, document, "Who lives in Lima?")
        embedded = encoder.embedded
        second = ask(engine, document, "What number is the queen of Japan?")
        assert first.usage.cached_tokens == 0
        assert second.usage.cached_tokens > len(document.encode()) > 800
        assert encoder.embedded == embedded
        fresh = RapidEngine(*tiny_pair(), retrieval=TINY, encoder=encoder)
        assert ask(fresh, document, "What number is the queen of Japan?").token_ids == second.token_ids


def test_the_next_turn_of_a_dialogue_reuses_the_one_before(document):
    with tiny_engine() as engine:
        turns = [Message("user", "Who lives in Lima?")]
        first = engine.generate(turns, context=document, sampling=Sampling(max_new_tokens=20))
        turns += [
            Message("assistant", "Three of them."),
            Message("user", "And in Madrid, which of them lives there now?"),
        ]
        second = engine.generate(turns, context=document, sampling=Sampling(max_new_tokens=20))
        assert second.usage.cached_tokens >= first.usage.prompt_tokens - 1


def test_chunks_of_the_caller_are_used_as_they_are_and_nothing_is_indexed(engine, document, monkeypatch):
    monkeypatch.setattr(engine._planner, "_rank", lambda *_: pytest.fail("an index was built"))
    given = (Chunk("The judge of Peru lives in Lima."), "The queen of Spain is number 4 in the register")
    context = LongContext(document, given)
    result = engine.generate("Who?", context=context, sampling=Sampling(max_new_tokens=5))
    assert [chunk.text for chunk in result.stats.retrieved] == [given[0].text, given[1]]
    assert result.stats.retrieved[1].start == document.find(given[1])
    prompt = engine.target.tokenizer.decode(engine.prompts("Who?", context=context).drafter_ids)
    assert given[0].text + "\n\n" + given[1] in prompt


def test_an_empty_list_of_chunks_is_plain_decoding_and_says_so(engine, document):
    result = engine.generate("Who?", context=LongContext(document, ()), sampling=Sampling(max_new_tokens=5))
    assert result.stats.drafted == 0
    assert "empty list of chunks" in result.stats.notes[0]


def test_nothing_similar_is_plain_decoding_and_says_so(document):
    with RapidEngine(*tiny_pair(), retrieval=Retrieval(threshold=1.0), encoder=WordEncoder()) as engine:
        result = ask(engine, document, "zebra", max_new_tokens=5)
    assert result.stats.drafted == 0
    assert "no passage is as similar to the question as 1" in result.stats.notes[0]


def test_a_question_without_context_is_answered_plainly_or_with_a_small_drafter(engine):
    result = engine.generate("Who are you?", sampling=Sampling(max_new_tokens=10))
    assert result.stats.drafted > 0
    with RapidEngine(tiny_model()) as alone:
        plain = alone.generate("Who are you?", sampling=Sampling(max_new_tokens=10))
    assert plain.stats.drafted == 0
    assert "without a long text" in plain.stats.notes[0]


def test_a_long_message_finds_its_own_document(document):
    long = "\n\n".join([document] * 3)
    with tiny_engine(window=8192) as engine:
        result = engine.generate(f"{long}\n\nWho lives in Lima?", sampling=Sampling(max_new_tokens=5))
        assert any("Lima" in chunk.text for chunk in result.stats.retrieved)
        assert result.stats.drafter_prompt_tokens < result.usage.prompt_tokens
        text = engine.target.tokenizer.decode(engine.prompts(f"{long}\n\nWho lives in Lima?").target_ids)
        assert f"<|im_start|>user\n{long}\n\nWho lives in Lima?<|im_end|>" in text


def test_self_speculation_shares_the_weights_and_not_the_caches(document):
    model = tiny_model()
    with RapidEngine(model, retrieval=TINY, encoder=WordEncoder()) as engine:
        assert engine._target.model is engine._drafter.model
        result = ask(engine, document)
        assert engine._target.length > engine._drafter.length > 0
        assert result.stats.drafted > 0


def test_padded_vocabularies_of_one_tokenizer_work_together(document):
    target, drafter = tiny_model("qwen2", padded_to=300), tiny_model("qwen2", seed=1, padded_to=320)
    known = len(target.tokenizer)
    with RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder()) as engine:
        lossless = ask(engine, document, speculation=Speculation.lossless())
        assert lossless.token_ids == ask(engine, document, speculation=Speculation.off()).token_ids
        sampled = ask(engine, document, seed=1, **RANDOM)
        assert max(lossless.token_ids + sampled.token_ids) < known


def test_other_vocabularies_are_refused_with_the_numbers():
    other = tiny_tokenizer()
    other.add_tokens(["<extra>"])
    drafter = LoadedModel(tiny_model().model, other, "other")
    with pytest.raises(VocabularyError, match=r"\(259 tokens\) and 'other' \(260 tokens\) agree on 259 only"):
        RapidEngine(tiny_model(), drafter)


# -- what does not fit ----------------------------------------------------------------------------


def test_a_document_over_the_window_is_an_error_with_both_numbers(document):
    with tiny_engine(window=512) as engine, pytest.raises(PromptTooLongError) as error:
        ask(engine, document)
    assert (
        "512 tokens" in str(error.value) and "fit='retrieve'" in str(error.value) and "--fit middle" in str(error.value)
    )
    assert error.value.window == 512
    assert f"{error.value.prompt_tokens:,}" in str(error.value)


@pytest.mark.parametrize("fit", ["retrieve", "middle"])
def test_a_document_can_be_made_to_fit_and_the_answer_says_so(document, fit):
    with tiny_engine(window=512) as engine:
        sampling = Sampling(max_new_tokens=32)
        result = engine.generate("Who lives in Lima?", context=document, sampling=sampling, fit=fit)
        text = engine.target.tokenizer.decode(
            engine.prompts("Who lives in Lima?", context=document, sampling=sampling, fit=fit).target_ids
        )
    assert 400 < result.usage.prompt_tokens <= 512 - 32
    assert any(f"fit={fit!r}" in note and "512" in note for note in result.stats.notes)
    if fit == "retrieve":
        numbers = [int(number) for number in re.findall(r"is number (\d+)", text)]
        assert "Lima" in text and numbers == sorted(numbers) and len(numbers) > 1
    else:
        assert document[:100] in text and document.rstrip()[-100:] in text


def test_a_fitted_document_is_embedded_once_for_all_questions(document):
    encoder, embedded = WordEncoder(), []
    with RapidEngine(*tiny_pair(window=512), retrieval=TINY, encoder=encoder) as engine:
        for question in ("Who lives in Lima?", "What is the number of the judge of Japan, who lives in a city?"):
            engine.generate(question, context=document, sampling=Sampling(max_new_tokens=8), fit="retrieve")
            embedded.append(encoder.embedded)
    assert embedded[0] == embedded[1] > 0


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


# -- bad input ------------------------------------------------------------------------------------


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


def test_two_engines_on_one_document_close_on_their_own(document):
    first, second = tiny_engine(), tiny_engine()
    ask(first, document, max_new_tokens=2)
    ask(second, document, max_new_tokens=2)
    first.close()
    assert ask(second, document, max_new_tokens=2).stats.retrieved
    second.close()


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


def test_a_small_drafter_without_context_stays_out_of_prompts_that_it_cannot_hold():
    target, drafter = tiny_model("llama"), tiny_model("gpt2", window=256)
    history = [Message("user", "word " * 60), Message("assistant", "word " * 60), Message("user", "Who?")]
    with RapidEngine(target, drafter) as engine:
        result = engine.generate(history, sampling=Sampling(max_new_tokens=4))
    assert "drafter" not in result.stats.sources and "does not fit the drafter's window of 256" in result.stats.notes[0]


@pytest.mark.parametrize("start", [100, 200, 225, 240, 251, 254, 255, 256, 257, 300])
def test_a_text_that_grows_over_the_border_of_longrope_equals_transformers(start):
    """All keys change there: transformers reads everything again, and so do we."""
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 256,
        "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0,
    }  # fmt: skip
    options = {"rope_parameters": rope, "original_max_position_embeddings": 256}
    target, drafter = tiny_pair("phi3", closeness=0.999, **options)
    with RapidEngine(target, drafter) as engine:
        overhead = len(engine.prompts("x").target_ids) - 1
        for question in ("x" * (start - overhead), "y" * (start - overhead)):
            prompt_ids = engine.prompts(question).target_ids
            assert len(prompt_ids) == start
            out = target.model.generate(torch.tensor([prompt_ids]), max_new_tokens=40, do_sample=False)
            for speculation in (Speculation.off(), Speculation.lossless(gamma=5)):
                result = engine.generate(question, sampling=Sampling(max_new_tokens=40), speculation=speculation)
                assert result.token_ids == tuple(out[0, start:].tolist())


def test_yarn_stretches_the_window():
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
    with RapidEngine(tiny_model("qwen2", window=256, rope_parameters=rope)) as engine:
        assert engine.window == 1024


def test_progress_is_told_for_every_stage(document):
    told = []
    with tiny_engine() as engine:
        engine.generate(
            "Who?",
            context=document,
            sampling=Sampling(max_new_tokens=2),
            progress=lambda stage, done, total: told.append((stage, done, total)),
        )
    # Retrieval and the target's prefill may run side by side.
    assert sorted(stage for stage, done, total in told if done == total) == ["draft prefill", "index", "prefill"]
    prefill = [done for stage, done, _ in told if stage == "prefill"]
    assert prefill == sorted(prefill) and prefill[0] == 0 and len(prefill) > 2
