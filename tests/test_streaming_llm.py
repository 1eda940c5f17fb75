"""A drafter that is the target with the keys of its first and its last tokens."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from rooms import DOCUMENT, QUESTION, SHORT, WINDOW
from transformers import DynamicCache

from rapid_core import RapidEngine, Sampling, Speculation
from rapid_core.attention import can_group
from rapid_core.runner import ModelRunner
from rapid_core.streaming_llm import STRIDE, StreamingRunner
from rapid_core.testing import WordEncoder, tiny_engine, tiny_foreign_pair, tiny_model, tiny_pair


@pytest.fixture(scope="module")
def engine():
    with tiny_engine(reproducible=True, **WINDOW) as made:
        yield made


def test_a_streaming_cache_that_holds_everything_drafts_what_the_target_says(engine):
    asked = Speculation.lossless(drafter="streaming", sliding_window=8000, gamma=4)
    stats = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=asked).stats
    assert stats.accepted == stats.drafted > 0
    assert stats.drafter_prompt_tokens == 0 and stats.retrievals == 0 and stats.draft_prefill_s == 0


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gpt_neox"])
@pytest.mark.parametrize("moved", [False, True], ids=["as it was made", "after the window moved"])
def test_a_streaming_runner_attends_to_the_first_and_last_tokens_in_their_places(architecture, moved):
    loaded = tiny_model(architecture)
    target = ModelRunner(loaded.model, role="target")
    ids = [(7 * i) % 90 + 4 for i in range(240)]
    target.prefill(ids, reserve=200)
    runner = StreamingRunner(target, sinks=4, sliding_window=80, reserve=200)
    first = len(ids) - 1 - 80
    if moved:
        for id_ in ids[10:13]:
            runner.forward(torch.tensor(runner.pending), 1)
            runner.commit([id_])
            ids.append(id_)
        first += STRIDE
    assert runner.sequence == [*ids[:4], *ids[first:]]
    found = runner.forward(torch.tensor([*runner.pending, 5, 6, 7]), 4)
    # The same by transformers: all keys, and a mask over those that are gone. Keys of tokens behind the
    # prompt were made under the mask too.
    wanted = _masked(loaded.model, [*ids, 5, 6, 7], prompt=240, first=240 - 81, last_first=first)
    assert can_group(loaded.model.config) or architecture == "gpt_neox"
    torch.testing.assert_close(found, wanted[-4:], atol=2e-5, rtol=1e-4)


def _masked(model, ids, *, prompt, first, last_first):
    """Logits behind a prompt by one forward a token, each of which sees 4 tokens, and those from `first` on.

    Those behind the prompt see those from `last_first` on.
    """
    model = copy.copy(model)
    cache, rows = DynamicCache(), []
    with torch.no_grad():
        model(input_ids=torch.tensor([ids[: prompt - 1]]), past_key_values=cache, use_cache=True)
        for place in range(prompt - 1, len(ids)):
            seen_from = last_first if place >= prompt else first
            mask = torch.zeros(1, 1, 1, place + 1)
            mask[..., 4:seen_from] = torch.finfo(torch.float32).min
            out = model(
                input_ids=torch.tensor([[ids[place]]]),
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                position_ids=torch.tensor([[place]]),
            )
            rows.append(out.logits[0, -1].float())
    return torch.stack(rows)


def test_a_model_whose_keys_change_with_the_length_of_its_text_gets_no_streaming_drafter():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    target = tiny_model("llama", rope_parameters=rope, **WINDOW)
    with RapidEngine(target, encoder=WordEncoder()) as engine:
        asked = Speculation.lossless(drafter="streaming")
        result = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=asked)
        assert "drafter" not in result.stats.sources
        assert any("length of its text" in note for note in result.stats.notes)


def test_drawn_answers_follow_the_law_of_the_target_through_a_streaming_drafter(engine):
    """Two tokens, three candidates each: all nine answers in 1,500 draws, where their law is computed exactly."""
    draws, asked = 1500, Speculation.lossless(drafter="streaming", sliding_window=100, gamma=2)
    text = DOCUMENT[:300]
    ids = list(engine.prompts(QUESTION, context=text).target_ids)
    law = {}
    for first, share in _top_three(engine, ids):
        law |= {(first, second): share * rest for second, rest in _top_three(engine, [*ids, first])}
    found, accepted = Counter(), set()
    for seed in range(draws):
        sampling = Sampling(temperature=1.0, top_k=3, max_new_tokens=2, seed=seed)
        result = engine.generate(QUESTION, context=text, sampling=sampling, speculation=asked)
        found[result.token_ids[:2]] += 1
        accepted.add(result.stats.accepted)
    assert set(found) <= set(law) and accepted >= {0, 1}
    distance = sum((found[answer] - draws * share) ** 2 / (draws * share) for answer, share in law.items())
    # 8 degrees of freedom: a right drafter is above this once in 10,000 runs, and the seeds are fixed.
    assert distance < 31.8


def _top_three(engine, ids):
    """The three most probable next tokens with their shares."""
    with torch.no_grad():
        logits = engine.target.model(input_ids=torch.tensor([ids])).logits[0, -1, : engine.target.logit_size]
    values, tokens = logits.float().topk(3)
    return list(zip(tokens.tolist(), values.double().softmax(0).tolist(), strict=True))


def test_what_a_streaming_drafter_costs_is_not_taken_for_the_cost_of_another_model():
    target, drafter = tiny_pair(**WINDOW)
    with RapidEngine(target, drafter, encoder=WordEncoder()) as engine:
        costs = engine._answerer.costs[1]
        before = costs.seconds(1, 1)
        asked = Speculation.lossless(drafter="streaming", gamma="auto")
        streaming = engine._answerer._streaming_costs
        for _ in range(20):
            engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=asked)
            # Whether drafting pays is the pacer's to say, by the clock.
            if streaming.seconds(1, 1) != before:
                break
        assert streaming.seconds(1, 1) != before
        assert costs.seconds(1, 1) == before


def test_a_streaming_drafter_says_that_it_is_not_compiled():
    asked = Speculation.lossless(drafter="streaming", gamma=3)
    note = "the drafter is not compiled: its window of keys moves"
    for backend in (False, "eager"):
        with RapidEngine(tiny_model(**WINDOW), encoder=WordEncoder(), compile=backend) as engine:
            stats = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=asked).stats
            assert stats.drafted > 0 and (note in stats.notes) == bool(backend)


def test_notes_say_nothing_of_a_drafter_model_that_does_not_draft():
    target, drafter = tiny_foreign_pair(target_words=("barn",), drafter_words=("room",), **WINDOW)
    with RapidEngine(target, drafter, encoder=WordEncoder()) as engine:
        asked = Speculation.lossless(drafter="streaming", gamma=3)
        stats = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=asked).stats
        assert stats.drafted > 0
        assert not any("vocabulary" in note for note in stats.notes)
