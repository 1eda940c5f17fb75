"""gamma="auto" behind the engine: equal answers, seeds, transfer, and a drafter that waits."""

from __future__ import annotations

import pytest
from helpers import RANDOM, TINY, ask, count_forwards

from rapid_core import OptionError, RapidEngine, Sampling, Speculation
from rapid_core.request import Request
from rapid_core.testing import WordEncoder, tiny_engine, tiny_model, tiny_pair

QUESTIONS = ("Who lives in Lima?", "Which number has the judge of Norway?", "名前は? 🦊")


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen2", "gpt_neox"])
def test_it_is_the_default_and_at_eta_zero_the_answer_is_the_targets(architecture, document):
    assert Speculation().gamma == Speculation.lossless().gamma == "auto"
    with tiny_engine(architecture) as engine:
        for question in QUESTIONS:
            plain = ask(engine, document, question, Speculation.off(), max_new_tokens=80)
            auto = ask(engine, document, question, Speculation.lossless(), max_new_tokens=80)
            assert auto.token_ids == plain.token_ids
            assert sum(source.rounds for source in auto.stats.sources.values()) == auto.stats.rounds
            assert sum(source.drafted for source in auto.stats.sources.values()) == auto.stats.drafted


def test_with_transfer_every_token_has_it_and_the_answer_is_the_same_each_time(engine, document):
    first, second = (ask(engine, document, speculation=Speculation(eta=20.0)) for _ in range(2))
    assert first.stats.transferred == first.usage.completion_tokens == 40
    assert first.token_ids == second.token_ids
    assert set(first.stats.sources) == {"drafter"}


def test_a_seed_gives_the_same_text_whatever_the_clock_says(document):
    """Two engines that think differently of what forwards cost."""
    answers = []
    for target_s, drafter_s in ((1.0, 1e-3), (1e-3, 1.0)):
        with tiny_engine() as engine:
            for costs, seconds in zip(engine._answerer.costs, (target_s, drafter_s), strict=True):
                for tokens in (1, 2, 4, 8, 16):
                    costs.record(tokens, 1, seconds)
            answers.append([ask(engine, document, seed=5, speculation=s, **RANDOM).token_ids for s in both()])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_seed_gives_the_same_text_whatever_the_engine_did_before(document, temperature):
    with RapidEngine(tiny_model(window=4096), retrieval=TINY, encoder=WordEncoder()) as engine:
        options = {"seed": 2, "temperature": temperature, "max_new_tokens": 60}
        first, second = (ask(engine, document, speculation=Speculation.lossless(), **options) for _ in range(2))
        ask(engine, document * 2, "Who?", speculation=Speculation(eta=3.0), max_new_tokens=5)
        third = ask(engine, document, speculation=Speculation.lossless(), **options)
    assert first.token_ids == second.token_ids == third.token_ids
    assert first.stats.sources == second.stats.sources == third.stats.sources


def test_a_stop_string_inside_a_block_ends_what_is_counted_as_transferred(engine, document):
    whole = ask(engine, document, speculation=Speculation(eta=20.0))
    for start in range(2, len(whole.text) - 1):
        if whole.text[start] == "\ufffd":
            continue
        cut = ask(engine, document, speculation=Speculation(eta=20.0), stop=[whole.text[start]])
        assert cut.stats.transferred == cut.usage.completion_tokens


@pytest.fixture
def one_after_the_other(monkeypatch):
    """The drafter's prefill costs time beside the target's, as on a busy machine."""
    monkeypatch.setattr("rapid_core.first_token.pays_side_by_side", lambda *_: False)


def both():
    return Speculation.lossless(), Speculation(eta=5.0)


def test_a_drafter_that_nobody_asks_reads_nothing(document):
    """One set of weights: drafts cost what they save, and lookups are the better choice."""
    model = tiny_model()
    with RapidEngine(model, retrieval=TINY, encoder=WordEncoder()) as engine:
        for costs in engine._answerer.costs:
            costs.seconds = lambda tokens, size, *, measured=True: 1.0 + 0.1 * tokens
        result = ask(engine, document, speculation=Speculation.lossless())
        assert "drafter" not in result.stats.sources
        assert result.stats.drafter_prompt_tokens > 0 and result.stats.draft_prefill_s == 0
        assert engine._drafter.length == 0
        ask(engine, document, speculation=Speculation(eta=5.0))
        assert engine._drafter.length > 0


def test_a_drafter_that_is_asked_later_reads_what_was_decided_until_then(document, one_after_the_other):
    target, drafter = tiny_pair()
    target.model.generation_config.eos_token_id = -1
    with RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder()) as engine:
        plain = ask(engine, document, speculation=Speculation.off(), max_new_tokens=80)
        later = {"rounds": 0}

        def waits(tokens, size, *, measured=True):
            """The drafter is dear at first, and nearly free after the tenth round."""
            return 1e3 if later["rounds"] < 10 else 1e-9

        for costs, price in zip(engine._answerer.costs, (None, waits), strict=True):
            costs.record = lambda *_: later.update(rounds=later["rounds"] + 1)
            costs.seconds = price or (lambda tokens, size, *, measured=True: 1.0)
        seen = []
        result = engine.generate(
            QUESTIONS[0], context=document, sampling=Sampling(max_new_tokens=80), speculation=Speculation.lossless(),
            progress=lambda stage, done, total: seen.append((stage, done)),
        )  # fmt: skip
        assert result.token_ids == plain.token_ids
        assert result.stats.sources["drafter"].rounds > 0
        assert result.stats.sources["nobody"].rounds + result.stats.sources.get("lookup", NONE).rounds >= 10
        assert result.stats.draft_prefill_s > 0 and ("draft prefill", 0) in seen
        assert engine._drafter.sequence[-80:] == list(result.token_ids)


class NONE:
    rounds = 0


def test_a_stream_that_is_cancelled_while_the_drafter_reads_ends_as_cancelled(document, one_after_the_other):
    target, drafter = tiny_pair()
    with RapidEngine(target, drafter, retrieval=TINY, encoder=WordEncoder()) as engine:
        stop = {"now": False}
        engine._answerer.costs[1].seconds = lambda *_, **__: 1e-9
        original = engine._drafter.prefill

        def prefill(*arguments, **options):
            stop["now"] = True
            return original(*arguments, **options)

        engine._drafter.prefill = prefill
        request = Request.of("Who?", document, Sampling(max_new_tokens=9), Speculation.lossless(), "error", (), None)
        deltas = list(engine._serve(request, engine._turns.join, lambda: stop["now"]))
        assert deltas[-1].finish_reason == "cancelled"
        del engine._drafter.prefill
        assert ask(engine, document).usage.completion_tokens == 40


def test_a_fixed_gamma_means_exactly_that(engine, document):
    result = ask(engine, document, speculation=Speculation.lossless(gamma=3), max_new_tokens=40)
    assert result.stats.looked_up == 0 and "lookup" not in result.stats.sources
    fixed = result.stats.sources["drafter"]
    # The last round may have less to draft.
    assert 3 * (fixed.rounds - 1) <= fixed.drafted <= 3 * fixed.rounds
    with pytest.raises(OptionError, match="gamma must be a whole number or 'auto', got 'ten'"):
        Speculation(gamma="ten")


def test_without_speculation_nothing_is_looked_up(document):
    with tiny_engine() as engine:
        engine.target.model.generation_config.eos_token_id = -1
        calls = count_forwards(engine)
        before = calls[0]
        result = ask(engine, document, speculation=Speculation.off())
        assert result.stats.drafted == 0 and set(result.stats.sources) == {"nobody"}
        assert calls[0] - before >= 40
