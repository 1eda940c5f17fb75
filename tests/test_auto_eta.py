"""eta="auto": how strong the transfer is by what the passages are worth to the question."""

from __future__ import annotations

import math
import re

import pytest
import torch
from conversations import call, chat, result, user
from helpers import RANDOM, TINY, ask, count_forwards
from hypothesis import given
from hypothesis import strategies as st

from rapid_core import (
    Chunk,
    Constraint,
    LongContext,
    LongHistory,
    Message,
    RapidEngine,
    Sampling,
    Speculation,
    question,
)
from rapid_core.context import Task
from rapid_core.testing import WordEncoder, tiny_engine, tiny_model, tiny_pair
from rapid_core.transfer import LARGEST_AUTO_ETA, LEAST_GAIN, LEAST_SHARE, Evidence, auto_eta, in_words

AUTO = Speculation(eta="auto")
QUESTION = "Who lives in Lima?"
GAINS = st.floats(-1e6, 1e6)


@pytest.fixture
def weighed(monkeypatch):
    """A function that says what passages and document are worth."""
    return lambda evidence: monkeypatch.setattr(question.Weigher, "weigh", lambda *_: evidence or "told so")


def log_probability(loaded, ids, wanted):
    """Log-probability of `wanted` where it stands in `ids` for the last time: one plain forward over all of it."""
    start = max(at for at in range(len(ids)) if list(ids[at : at + len(wanted)]) == list(wanted))
    with torch.no_grad():
        logits = loaded.model(torch.tensor([ids])).logits[0]
    rows = logits[start - 1 : start - 1 + len(wanted)].log_softmax(-1)
    return float(rows.gather(-1, torch.tensor(wanted).unsqueeze(-1)).sum())


# -- the rule -------------------------------------------------------------------------------------


@given(GAINS, GAINS, GAINS)
def test_eta_is_bounded_and_grows_with_what_the_passages_are_worth(document, one, other):
    low, high = (auto_eta(Evidence(document, passages)) for passages in sorted((one, other)))
    assert 0 <= low <= high <= LARGEST_AUTO_ETA


@given(GAINS, GAINS, GAINS)
def test_eta_shrinks_with_what_the_document_knows_besides(passages, one, other):
    low, high = (auto_eta(Evidence(document, passages)) for document in sorted((one, other), reverse=True))
    assert low <= high


@given(GAINS, GAINS, st.floats(0, 1))
def test_eta_is_continuous(document, passages, step):
    difference = auto_eta(Evidence(document, passages + step)) - auto_eta(Evidence(document, passages))
    assert difference <= step * LARGEST_AUTO_ETA / (1 - LEAST_SHARE) / LEAST_GAIN + 1e-6


def test_passages_that_keep_all_of_the_document_have_the_full_transfer_and_worthless_ones_none():
    assert auto_eta(Evidence(40.0, 40.0)) == auto_eta(Evidence(40.0, 60.0)) == LARGEST_AUTO_ETA
    assert auto_eta(Evidence(40.0, 40.0 * LEAST_SHARE)) == auto_eta(Evidence(40.0, -3.0)) == 0.0
    assert auto_eta(Evidence(40.0, 40.0 * (1 + LEAST_SHARE) / 2)) == pytest.approx(LARGEST_AUTO_ETA / 2)
    # A question that says nothing of what it is about is no evidence for any passages.
    assert auto_eta(Evidence(0.0, LEAST_GAIN * LEAST_SHARE)) == auto_eta(Evidence(-9.0, 0.0)) == 0.0
    assert auto_eta(None) == 0.0


def test_the_choice_is_told_in_words():
    assert in_words(Evidence(40.0, 42.5)) == (
        f"eta='auto': {LARGEST_AUTO_ETA:.1f} of {LARGEST_AUTO_ETA:g}, as the passages make the question 42.5 nats more "
        "probable to the drafter, and the document 40.0 nats more to the target"
    )
    assert "eta='auto': 0.0 of" in in_words(Evidence(40.0, -2.5))
    assert "2.5 nats less probable" in in_words(Evidence(40.0, -2.5))
    assert in_words("told so") == "eta='auto': 0, as nothing tells what the passages are worth: told so"


# -- what the passages are worth ------------------------------------------------------------------


@pytest.mark.parametrize("self_speculating", [False, True])
def test_a_gain_is_a_log_probability_behind_what_a_role_reads_less_that_of_the_question_alone(
    document, self_speculating
):
    models = (tiny_model(),) if self_speculating else tiny_pair()
    with RapidEngine(*models, retrieval=TINY, encoder=WordEncoder()) as engine:
        stats = ask(engine, document, QUESTION, AUTO, max_new_tokens=4).stats
        prompts = engine.prompts(QUESTION, context=document)
        alone = engine.target.tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_dict=False
        )
        # Without its first token and its last one, which a template may join with what stands around them.
        wanted = list(engine.token_ids(QUESTION))[1:-1]
        expected = [
            log_probability(loaded, ids, wanted) - log_probability(loaded, alone, wanted)
            for loaded, ids in ((engine.target, prompts.target_ids), (engine.drafter, prompts.drafter_ids))
        ]
    assert [stats.document_gain, stats.passages_gain] == pytest.approx(expected, abs=1e-3)
    assert min(map(abs, expected)) > 0.1
    evidence = Evidence(stats.document_gain, stats.passages_gain)
    assert stats.eta == auto_eta(evidence)
    assert in_words(evidence) in stats.notes


def test_a_query_of_the_callers_is_what_is_weighed_where_the_question_holds_it(document):
    prompt = f"Mind the register. Query: {QUESTION}\nAnswer:"
    passages = (Chunk(document[:300]),)
    with tiny_engine(window=4096) as engine:

        def gain(query):
            context = LongContext(document, passages, query=query)
            answer = engine.generate(prompt, context=context, sampling=Sampling(max_new_tokens=2), speculation=AUTO)
            return answer.stats.passages_gain

        whole = gain(prompt)
        assert gain(QUESTION) != pytest.approx(whole, abs=1e-3)
        # A query in other words stands nowhere in the prompt.
        assert gain("Lima, inhabitants of") == pytest.approx(whole, abs=1e-6)


def test_only_the_beginning_of_a_long_question_is_weighed(document):
    long, context = QUESTION + " Say it in one word. " * 20, LongContext(document, (Chunk(document[:300]),))
    with tiny_engine(window=4096) as engine:
        with_end = ask(engine, context, long, AUTO, max_new_tokens=2).stats.passages_gain
        other_end = ask(engine, context, long + " Please!", AUTO, max_new_tokens=2).stats.passages_gain
    assert with_end == pytest.approx(other_end, abs=1e-4)


def test_the_last_question_of_a_long_history_is_weighed():
    with RapidEngine(*tiny_pair(window=8192), retrieval=TINY, encoder=WordEncoder()) as engine:
        stats = engine.generate(
            chat("Who are the many ships of Lima?"),
            context=LongHistory(),
            sampling=Sampling(max_new_tokens=2),
            speculation=AUTO,
        ).stats
    assert stats.passages_gain is not None and stats.eta is not None


REASONS = {
    "before the passages": "no question behind a document",
    "before a tool's result": "no question behind a document",
    "far before the end": "more than 4 tokens stand behind the question",
    "beside much else": "more than 8 tokens stand beside document and passages",
    "too short": "the question is too short to tell",
}


@pytest.mark.parametrize("case", REASONS)
def test_where_the_question_is_not_behind_the_passages_nothing_is_transferred(document, case, monkeypatch):
    context, prompt = LongContext(document), [user(QUESTION)]
    if case == "before the passages":
        context, prompt = LongContext(document, place="{here}"), [user(QUESTION + "\n{here}")]
    elif case == "before a tool's result":
        prompt = [user(QUESTION), call("search", f'{{"query": "{QUESTION}"}}'), result("nothing")]
    elif case == "far before the end":
        monkeypatch.setattr(question, "MOST_BEHIND", 4)
    elif case == "beside much else":
        monkeypatch.setattr(question, "MOST_BARE", 8)
    else:
        prompt = [user("a?")]
    with tiny_engine() as engine:
        options = {"context": context, "sampling": Sampling(max_new_tokens=12)}
        answer = engine.generate(prompt, speculation=AUTO, **options)
        lossless = engine.generate(prompt, speculation=Speculation.lossless(), **options)
    assert (answer.stats.passages_gain, answer.stats.eta, answer.stats.transferred) == (None, 0.0, 0)
    assert any(note.startswith("eta='auto': 0, ") and REASONS[case] in note for note in answer.stats.notes)
    assert answer.token_ids == lossless.token_ids


def test_a_token_that_the_drafter_rules_out_leaves_a_number(document):
    drafter = tiny_model(seed=1)
    barred = next(iter(drafter.tokenizer.encode("v")))
    drafter.model.lm_head.register_forward_hook(
        lambda _, __, logits: logits.index_fill(-1, torch.tensor([barred]), -math.inf)
    )
    with RapidEngine(tiny_model(), drafter, retrieval=TINY, encoder=WordEncoder()) as engine:
        stats = ask(engine, document, QUESTION, AUTO, max_new_tokens=4).stats
    assert math.isfinite(stats.passages_gain)


PASSAGES = (Chunk("Photosynthesis turns light into sugar."), Chunk("A sonnet has fourteen lines, and one turn."))


@pytest.mark.parametrize("self_speculating", [False, True])
def test_what_other_turns_and_a_system_message_say_is_no_merit_of_the_passages(document, self_speculating):
    turns = [
        Message("system", "You answer questions about who lives in Lima."),
        user(QUESTION),
        Message("assistant", "Who lives in Lima? Please ask again."),
        user(QUESTION),
    ]
    models = (tiny_model(window=4096),) if self_speculating else tiny_pair(window=4096)
    with RapidEngine(*models, retrieval=TINY, encoder=WordEncoder()) as engine:
        context, sampling = LongContext(document, PASSAGES), Sampling(max_new_tokens=2)
        stats = engine.generate(turns, context=context, sampling=sampling, speculation=AUTO).stats
        prompts = engine.prompts(turns, context=context)
        bare = engine.target.tokenizer.apply_chat_template(
            [{"role": turn.role, "content": turn.content} for turn in turns],
            add_generation_prompt=True,
            return_dict=False,
        )
        wanted = list(engine.token_ids(QUESTION))[1:-1]
        expected = [
            log_probability(loaded, ids, wanted) - log_probability(loaded, bare, wanted)
            for loaded, ids in ((engine.target, prompts.target_ids), (engine.drafter, prompts.drafter_ids))
        ]
        again = engine.generate(turns, context=context, sampling=sampling, speculation=AUTO).stats
    assert [stats.document_gain, stats.passages_gain] == pytest.approx(expected, abs=1e-3)
    assert again.passages_gain == pytest.approx(stats.passages_gain, abs=1e-4)


@pytest.mark.parametrize(("behind_the_border", "known"), [(5, False), (500, True)])
def test_a_question_over_which_positions_change_is_not_weighed(document, behind_the_border, known):
    with RapidEngine(tiny_model("phi3", window=4096), retrieval=TINY, encoder=WordEncoder()) as engine:
        border = len(engine.prompts(QUESTION, context=document).target_ids) - behind_the_border
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": border,
        "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0,
    }  # fmt: skip
    options = {"window": 4096, "rope_parameters": rope, "original_max_position_embeddings": border}
    with RapidEngine(tiny_model("phi3", **options), retrieval=TINY, encoder=WordEncoder()) as engine:
        stats = ask(engine, document, QUESTION, AUTO, max_new_tokens=2).stats
    assert (stats.passages_gain is not None) == known
    assert any("encodes positions by the length" in note for note in stats.notes) != known


# -- what it does to an answer --------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [{}, {**RANDOM, "seed": 5}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("gamma", ["auto", 4])
@pytest.mark.parametrize("evidence", [None, Evidence(40.0, -2.0), Evidence(40.0, 30.0), Evidence(40.0, 50.0)])
def test_an_answer_is_that_of_the_eta_which_was_chosen(document, weighed, evidence, gamma, sampled):
    weighed(evidence)
    chosen = auto_eta(evidence)
    if sampled and gamma == "auto" and chosen == 0:
        pytest.skip("with a fixed eta of 0 the drafter's prompt waits, and pacing reckons with that")
    with tiny_engine() as engine:
        auto = ask(engine, document, QUESTION, Speculation(gamma=gamma, eta="auto"), **sampled)
    with tiny_engine() as engine:
        fixed = ask(engine, document, QUESTION, Speculation(gamma=gamma, eta=chosen), **sampled)
    assert auto.token_ids == fixed.token_ids
    assert (auto.stats.eta, fixed.stats.eta) == (chosen, chosen)
    assert auto.stats.transferred == fixed.stats.transferred
    assert (auto.stats.transferred > 0) == (chosen > 0)


def test_a_constraint_masks_answers_and_not_the_question(document):
    digits = Constraint.regex(r"[0-9]{3}")
    with tiny_engine() as engine:
        free = ask(engine, document, QUESTION, AUTO, max_new_tokens=8)
        bound = ask(engine, document, QUESTION, AUTO, max_new_tokens=8, constraint=digits)
        fixed = ask(engine, document, QUESTION, Speculation(eta=bound.stats.eta), max_new_tokens=8, constraint=digits)
    assert bound.stats.passages_gain == pytest.approx(free.stats.passages_gain, abs=1e-4)
    assert bound.token_ids == fixed.token_ids
    assert re.fullmatch("[0-9]{3}", bound.text)


def test_worthless_passages_leave_the_targets_own_greedy_answer(document, weighed):
    weighed(Evidence(40.0, -5.0))
    with tiny_engine() as engine:
        auto = ask(engine, document, QUESTION, AUTO)
        assert auto.token_ids == ask(engine, document, QUESTION, Speculation.off()).token_ids
        assert auto.token_ids != ask(engine, document, QUESTION, Speculation(eta=40.0)).token_ids


def test_a_fixed_eta_asks_nothing_about_the_question(document, monkeypatch):
    monkeypatch.setattr(question.Weigher, "weigh", lambda *_: pytest.fail("weighed for a fixed eta"))
    with tiny_engine() as engine:
        for speculation in (Speculation(), Speculation.lossless(), Speculation.off()):
            stats = ask(engine, document, QUESTION, speculation, max_new_tokens=2).stats
            assert stats.passages_gain is None
            assert stats.eta == (speculation.eta if speculation.enabled else None)


def test_without_a_drafter_there_is_no_eta():
    with RapidEngine(tiny_model(), retrieval=TINY, encoder=WordEncoder()) as engine:
        stats = engine.generate("Short.", sampling=Sampling(max_new_tokens=2), speculation=AUTO).stats
    assert (stats.eta, stats.passages_gain) == (None, None)
    assert not [note for note in stats.notes if "auto" in note]


def test_a_drafter_that_reads_what_the_target_reads_transfers_nothing():
    with tiny_engine() as engine:
        stats = engine.generate("Short.", sampling=Sampling(max_new_tokens=4), speculation=AUTO).stats
    assert (stats.eta, stats.transferred) == (0.0, 0)


# -- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_gib", [0.0, 1.0])
@pytest.mark.parametrize("self_speculating", [False, True])
def test_the_question_alone_pushes_nothing_out_of_the_caches(document, cache_gib, self_speculating):
    seen = []
    for speculation in (Speculation(gamma=2), Speculation(gamma=2, eta="auto")):
        models = (tiny_model(),) if self_speculating else tiny_pair()
        with RapidEngine(*models, retrieval=TINY, encoder=WordEncoder(), cache_gib=cache_gib) as engine:
            for asked in (QUESTION, QUESTION, "What is the number of the king of Spain?"):
                answer = ask(engine, document, asked, speculation, max_new_tokens=2)
                seen.append((answer.usage.cached_tokens, answer.stats.drafter_cached_tokens))
    assert seen[:3] == seen[3:]
    assert seen[1][1] > 100


def test_both_roles_stand_behind_their_prompts_again(document):
    with tiny_engine() as engine:
        prompts = engine.prompts(QUESTION, context=document)
        readers = [question.Reader(runner, engine._prompter) for runner in (engine._target, engine._drafter)]
        expected = []
        for reader, ids in zip(readers, (prompts.target_ids, prompts.drafter_ids), strict=True):
            reader.runner.prefill(ids, reserve=8)
            expected.append(reader.runner.forward(torch.tensor(ids[-1:]), 1))
            reader.runner.rewind(len(ids) - 1)
        task = Task((Message("user", QUESTION),), QUESTION, LongContext(document), after="\n\n" + QUESTION)
        assert isinstance(question.Weigher(*readers).weigh(task, task.with_context("")), Evidence)
        for reader, ids, logits in zip(readers, (prompts.target_ids, prompts.drafter_ids), expected, strict=True):
            assert (reader.runner.length, reader.runner.sequence) == (len(ids) - 1, list(ids))
            assert torch.allclose(reader.runner.forward(torch.tensor(ids[-1:]), 1), logits, atol=1e-4)


def test_the_bare_prompt_is_read_once_where_one_set_of_weights_is_both(document):
    reads = []
    for models in ((tiny_model(),), tiny_pair()):
        with RapidEngine(*models, retrieval=TINY, encoder=WordEncoder()) as engine:
            forwards = [0]
            for loaded in {id(m.model): m for m in (engine.target, engine.drafter)}.values():
                loaded.model.register_forward_hook(
                    lambda *_, forwards=forwards: forwards.__setitem__(0, forwards[0] + 1)
                )
            prompts = engine.prompts(QUESTION, context=document)
            readers = [question.Reader(runner, engine._prompter) for runner in (engine._target, engine._drafter)]
            for reader, ids in zip(readers, (prompts.target_ids, prompts.drafter_ids), strict=True):
                reader.runner.prefill(ids, reserve=8)
            of_target = count_forwards(engine)
            task = Task((Message("user", QUESTION),), QUESTION, LongContext(document), after="\n\n" + QUESTION)
            question.Weigher(*readers).weigh(task, task.with_context(""))
            reads.append(of_target[0])
    # By the target's model. Each time the question and what stands behind it; the bare prompt is read before it.
    assert reads == [2 + 1 + 2 + 2 + 2, 2 + 1 + 2]
