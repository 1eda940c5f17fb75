"""How probable given answers are behind a prompt."""

from __future__ import annotations

import pytest
import torch
from rooms import ANSWERS, DOCUMENT, QUESTION, SHORT, WINDOW

from rapid_core import RapidEngine, Retrieval, Speculation
from rapid_core.errors import InputError, PromptTooLongError
from rapid_core.likelihood import Likelihoods
from rapid_core.runner import ModelRunner
from rapid_core.testing import WordEncoder, tiny_engine, tiny_foreign_pair, tiny_model, tiny_pair
from rapid_core.verification import augmented_target
from rapid_core.vocabulary import SAME_VOCABULARY


@pytest.fixture(scope="module")
def engine():
    with tiny_engine(reproducible=True, **WINDOW) as made:
        yield made


def test_likelihoods_are_the_sums_that_the_model_gives(engine):
    found = engine.log_likelihoods(QUESTION, ANSWERS, context=DOCUMENT, speculation=Speculation.off())
    prompt = engine.prompts(QUESTION, context=DOCUMENT).target_ids
    for answer, likelihood in zip(ANSWERS, found, strict=True):
        ids = engine.token_ids(answer)
        with torch.no_grad():
            logits = engine.target.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0].float()
        rows = logits[len(prompt) - 1 : -1].log_softmax(dim=-1)
        assert likelihood == pytest.approx(float(rows[range(len(ids)), list(ids)].sum()), abs=1e-3)
    for same in (Speculation.lossless(), Speculation(drafter="lookup"), Speculation.lossless(drafter="streaming")):
        assert engine.log_likelihoods(QUESTION, ANSWERS, context=DOCUMENT, speculation=same) == found


@pytest.mark.parametrize("tail", ["reference", "paper", None])
def test_likelihoods_with_transfer_are_those_of_the_augmented_target(engine, tail):
    found = engine.log_likelihoods(QUESTION, ANSWERS, context=DOCUMENT, speculation=Speculation(eta=4.0, tail=tail))
    prompts = engine.prompts(QUESTION, context=DOCUMENT)
    for answer, likelihood in zip(ANSWERS, found, strict=True):
        ids = engine.token_ids(answer)
        rows = []
        for model, prompt in ((engine.target.model, prompts.target_ids), (engine.drafter.model, prompts.drafter_ids)):
            with torch.no_grad():
                rows.append(model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float())
        probs = augmented_target(rows[0], rows[1].softmax(dim=-1), 4.0, tail=tail)
        assert likelihood == pytest.approx(float(probs[range(len(ids)), list(ids)].log().sum()), abs=1e-3)


def test_likelihoods_read_a_foreign_drafter_in_its_own_tokens():
    target, drafter = tiny_foreign_pair(target_words=("barn",), drafter_words=("room",), **WINDOW)
    retrieval = Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=128)
    with RapidEngine(target, drafter, retrieval=retrieval, encoder=WordEncoder()) as engine:
        asked = {"context": DOCUMENT, "speculation": Speculation(eta=4.0)}
        together = engine.log_likelihoods(QUESTION, ("the barn", "room 3"), **asked)
        assert together == tuple(engine.log_likelihoods(QUESTION, (one,), **asked)[0] for one in ("the barn", "room 3"))
        assert together != engine.log_likelihoods(
            QUESTION, ("the barn", "room 3"), context=DOCUMENT, speculation=Speculation.lossless()
        )


def test_likelihoods_leave_no_trace_in_the_answer_that_follows(engine):
    plain = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT)
    engine.log_likelihoods(QUESTION, ANSWERS, context=DOCUMENT)
    again = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT)
    assert again.token_ids == plain.token_ids
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1


def test_an_answer_whose_likelihood_is_asked_has_a_token_and_fits(engine):
    with pytest.raises(InputError, match="must have a token"):
        engine.log_likelihoods(QUESTION, ("room 3", ""), context=DOCUMENT)
    with pytest.raises(PromptTooLongError, match="must fit behind the prompt"):
        engine.log_likelihoods(QUESTION, ("room " * 8000,), context=DOCUMENT)
    assert engine.log_likelihoods(QUESTION, (), context=DOCUMENT) == ()


def test_likelihoods_of_one_prompt_are_read_once_for_all_strengths_of_the_transfer():
    target, drafter = tiny_pair(**WINDOW)
    runners = [ModelRunner(loaded.model, role=role) for role, loaded in (("target", target), ("drafter", drafter))]
    for runner in runners:
        runner.prefill([5, 6, 7, 8], reserve=20)
    calls = []
    for runner in runners:
        forward = runner.forward
        runner.forward = lambda ids, rows, forward=forward: calls.append(rows) or forward(ids, rows)
    likelihoods = Likelihoods(*runners, SAME_VOCABULARY)
    values = {eta: likelihoods.of([[9, 10], [11]], Speculation(eta=eta), drafts=True) for eta in (0.0, 5.0, 20.0)}
    assert sorted(calls) == [1, 1, 2, 2]
    assert len(set(values.values())) == 3
    runners[0].prefill([5, 6, 7, 9], reserve=20)
    assert likelihoods.of([[9, 10], [11]], Speculation(eta=0.0), drafts=True) != values[0.0]


@pytest.mark.parametrize("asked", [Speculation(eta="auto"), Speculation(eta=5.0)], ids=["auto", "5"])
def test_likelihoods_of_a_reproducible_engine_are_the_same_whatever_eta_came_before(asked):
    found = []
    auto, five = Speculation(eta="auto"), Speculation(eta=5.0)
    for before in ((), (auto,), (five,), (Speculation.off(), auto)):
        with tiny_engine(reproducible=True, **WINDOW) as engine:
            for speculation in (*before, asked):
                likelihoods = engine.log_likelihoods(QUESTION, ANSWERS, context=DOCUMENT, speculation=speculation)
        found.append(likelihoods)
    assert len(set(found)) == 1


def test_logits_of_answers_are_remembered_only_as_far_as_memory_is_meant_for_them(monkeypatch):
    target = tiny_model()
    runner = ModelRunner(target.model, role="target")
    runner.prefill([5, 6, 7, 8], reserve=20)
    monkeypatch.setattr("rapid_core.likelihood.MOST_REMEMBERED", 3 * 4 * runner.vocab_size)
    likelihoods, read = Likelihoods(runner, runner, SAME_VOCABULARY), []
    forward = runner.forward
    runner.forward = lambda ids, rows: read.append(rows) or forward(ids, rows)
    for _ in range(2):
        likelihoods.of([[9, 10], [11, 12]], Speculation.off(), drafts=False)
    assert len(read) == 3


def test_an_answer_over_the_border_of_longrope_changes_nothing_for_the_next_one():
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 256,
        "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0,
    }  # fmt: skip
    target = tiny_model("llama", rope_parameters=rope)
    long, short = [5 + i for i in range(12)], [9, 10]

    def likelihoods(*answers):
        runner = ModelRunner(target.model, role="target")
        runner.prefill([(7 * i) % 90 + 4 for i in range(250)], reserve=64)
        found = Likelihoods(runner, runner, SAME_VOCABULARY).of(answers, Speculation.off(), drafts=False)
        return found, runner.forward(torch.tensor(runner.pending), 1)

    (only_short,), after_short = likelihoods(short)
    (_, behind_long), after_both = likelihoods(long, short)
    _, after_long = likelihoods(long)
    assert behind_long == only_short
    assert torch.equal(after_both, after_short) and torch.equal(after_long, after_short)
