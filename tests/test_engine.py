"""`RapidEngine` from the outside: text, streams, seeds, windows, reuse."""

from __future__ import annotations

import re

import pytest
import torch
from helpers import RANDOM, TINY, ask, count_forwards

from rapid_core import (
    Chunk,
    LongContext,
    Message,
    RapidEngine,
    Retrieval,
    Sampling,
    Speculation,
)
from rapid_core.testing import WordEncoder, tiny_engine, tiny_model, tiny_pair


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
    monkeypatch.setattr(module, "Sampler", lambda *a: seeds.append(a[4]) or original(*a))
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
    monkeypatch.setattr(engine._planner.searcher, "rank", lambda *_: pytest.fail("an index was built"))
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


# -- what does not fit ----------------------------------------------------------------------------


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


def test_two_engines_on_one_document_close_on_their_own(document):
    first, second = tiny_engine(), tiny_engine()
    ask(first, document, max_new_tokens=2)
    ask(second, document, max_new_tokens=2)
    first.close()
    assert ask(second, document, max_new_tokens=2).stats.retrieved
    second.close()


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
