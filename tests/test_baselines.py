"""Drafts by lookups alone or through a StreamingLLM cache, the drafter alone, likelihoods, and reproducible reuse."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from transformers import DynamicCache

from rapid_core import LongContext, OptionError, RapidEngine, Retrieval, Sampling, Speculation
from rapid_core.attention import can_group
from rapid_core.errors import InputError, PromptTooLongError
from rapid_core.likelihood import Likelihoods
from rapid_core.runner import ModelRunner
from rapid_core.streaming_llm import STRIDE, StreamingRunner
from rapid_core.testing import WordEncoder, tiny_engine, tiny_foreign_pair, tiny_model, tiny_pair
from rapid_core.verification import augmented_target
from rapid_core.vocabulary import SAME_VOCABULARY

THINGS, PLACES = "key lamp rope chart map boat seal bell".split(), "house ship tower mill barn yard".split()
DOCUMENT = "\n\n".join(f"The {a} of the {b} is kept in room {len(a) * len(b)}." for a in THINGS for b in PLACES)
QUESTION = "Where is the map of the barn?"
ANSWERS = ("room 3", "in the yard", "nobody knows")
SHORT = Sampling(max_new_tokens=24)
WINDOW = {"max_position_embeddings": 8192}


@pytest.fixture(scope="module")
def engine():
    with tiny_engine(reproducible=True, **WINDOW) as made:
        yield made


@pytest.mark.parametrize("gamma", [1, 3, 10, "auto"])
@pytest.mark.parametrize(
    "options",
    [
        {"drafter": "lookup"},
        {"drafter": "lookup", "eta": 10.0},
        {"drafter": "streaming", "sliding_window": 1},
        {"drafter": "streaming", "sliding_window": 100, "sinks": 0},
        {"drafter": "streaming"},
    ],
    ids=str,
)
def test_greedy_answers_are_the_targets_own_whoever_drafts_without_transfer(engine, gamma, options):
    plain = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=Speculation.off())
    asked = Speculation(**{"eta": 0.0, **options}, gamma=gamma)
    drafted = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=asked)
    assert drafted.token_ids == plain.token_ids
    # Whether drafting pays is the pacer's to say, by the clock.
    assert drafted.stats.drafted > 0 or gamma == "auto"


def test_a_streaming_cache_that_holds_everything_drafts_what_the_target_says(engine):
    asked = Speculation.lossless(drafter="streaming", sliding_window=8000, gamma=4)
    stats = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=asked).stats
    assert stats.accepted == stats.drafted > 0
    assert stats.drafter_prompt_tokens == 0 and stats.retrievals == 0 and stats.draft_prefill_s == 0


def test_lookups_alone_propose_what_stood_behind_the_same_words():
    target = tiny_model(**WINDOW)
    with RapidEngine(target, encoder=WordEncoder()) as engine:
        plain = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=Speculation.off())
        # The answer stands in the document: it can be looked up as a whole.
        text = f"{DOCUMENT}\n\n{plain.text}"
        asked = Speculation(drafter="lookup", gamma=5)
        stats = engine.generate(QUESTION, context=text, sampling=SHORT, speculation=asked).stats
        assert set(stats.sources) <= {"lookup", "nobody"} and stats.eta is None
        assert stats.drafted <= 5 * stats.sources["lookup"].rounds


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


def test_the_drafter_alone_answers_what_its_model_says_to_its_prompt():
    target, drafter = tiny_pair(closeness=0.5, **WINDOW)
    retrieval = Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=128)
    with RapidEngine(target, drafter, retrieval=retrieval, encoder=WordEncoder()) as engine:
        both = engine.prompts(QUESTION, context=DOCUMENT)
        alone = engine.prompts(QUESTION, context=DOCUMENT, speculation=Speculation.retrieved_alone())
        assert (alone.target_ids, alone.drafter_ids) == (both.drafter_ids, None)
        found = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=Speculation.retrieved_alone())
        ids = torch.tensor([both.drafter_ids])
        wanted = drafter.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        assert found.token_ids == tuple(wanted[0, ids.shape[1] :].tolist())
        assert found.usage.prompt_tokens == len(both.drafter_ids)
        assert found.stats.retrieved and found.stats.rounds == len(found.token_ids)


def test_the_drafter_alone_reads_a_document_that_the_target_has_no_room_for():
    target, drafter = tiny_pair(max_position_embeddings=1024)
    retrieval = Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=128)
    with RapidEngine(target, drafter, retrieval=retrieval, encoder=WordEncoder()) as engine:
        with pytest.raises(PromptTooLongError):
            engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT)
        assert engine.generate(
            QUESTION, context=DOCUMENT, sampling=SHORT, speculation=Speculation.retrieved_alone()
        ).token_ids


def test_the_drafter_alone_says_that_it_found_no_passage():
    retrieval = Retrieval(chunk_tokens=64, threshold=1.0)
    with tiny_engine(retrieval=retrieval, **WINDOW) as engine:
        found = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT, speculation=Speculation.retrieved_alone())
        [note] = found.stats.notes
        assert note.startswith("the drafter answers without passages: no passage is as similar to the question as 1")
        bare = engine.prompts(QUESTION, speculation=Speculation.retrieved_alone()).target_ids
        assert found.usage.prompt_tokens == len(bare)


def test_a_drafter_that_answers_cannot_draft_too():
    with pytest.raises(OptionError, match="retrieved_alone"):
        Speculation(answers="drafter")


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


def test_a_prompt_that_was_read_before_costs_its_answer_nothing(engine):
    other = DOCUMENT.replace("kept", "found")
    stats = engine.prefill(QUESTION, context=other, speculation=Speculation(gamma=3))
    assert stats.prefill_s > 0 and stats.draft_prefill_s > 0 and stats.rounds == 0
    found = engine.generate(QUESTION, context=other, sampling=SHORT, speculation=Speculation(gamma=3))
    assert found.usage.cached_tokens == found.usage.prompt_tokens - 1
    assert found.stats.drafter_cached_tokens == found.stats.drafter_prompt_tokens - 1


@pytest.mark.parametrize("stage", ["index", "prefill", "draft prefill"])
def test_what_a_progress_callback_raises_ends_a_prefill_as_it_is(stage):
    def progress(name: str, done: int, total: int) -> None:
        if name == stage:
            raise ValueError("the caller has had enough")

    with tiny_engine(**WINDOW) as engine:
        with pytest.raises(ValueError, match="had enough"):
            engine.prefill(QUESTION, context=DOCUMENT, progress=progress)
        assert engine.prefill(QUESTION, context=DOCUMENT).prefill_s > 0


def test_retrieved_passages_are_those_that_the_drafter_reads(engine):
    found = engine.generate(QUESTION, context=DOCUMENT, sampling=SHORT).stats.retrieved
    assert engine.retrieve(QUESTION, context=DOCUMENT) == found
    shorter = engine.retrieve(QUESTION, context=DOCUMENT, tokens=100)
    assert 0 < len(shorter) < len(found)
    given = engine.generate(QUESTION, context=LongContext(DOCUMENT, shorter), sampling=SHORT).stats
    assert given.retrieved == shorter
    with pytest.raises(OptionError, match="budget"):
        engine.retrieve(QUESTION, context=DOCUMENT, tokens=0)
    with pytest.raises(OptionError, match="threshold"):
        engine.retrieve(QUESTION, context=DOCUMENT, threshold=2)


def test_passages_can_be_retrieved_whatever_the_threshold():
    retrieval = Retrieval(chunk_tokens=64, threshold=1.0, floor_tokens=128)
    with tiny_engine(retrieval=retrieval, **WINDOW) as engine:
        assert engine.retrieve(QUESTION, context=DOCUMENT) == ()
        found = engine.retrieve(QUESTION, context=DOCUMENT, threshold=-1)
        assert found and engine.retrieve(QUESTION, context=DOCUMENT, threshold=0.999) == ()
        assert [chunk.start for chunk in found] == sorted(chunk.start for chunk in found)


def test_first_and_last_leaves_out_the_middle(engine):
    cut = engine.first_and_last(DOCUMENT, 100)
    head, tail = cut.split("\n\n")[0], cut.split("\n\n")[-1]
    assert DOCUMENT.startswith(head) and DOCUMENT.endswith(tail) and engine.count_tokens(cut) < 110


def test_what_was_asked_before_changes_no_bit_of_a_reproducible_engine():
    questions = [f"Where is the {thing} of the {place}?" for thing in THINGS[:3] for place in PLACES[:3]]
    options = {"context": DOCUMENT, "sampling": SHORT}
    with tiny_engine(reproducible=True, **WINDOW) as engine:
        logits = {}
        for order in (questions, questions[::-1], [*questions[4:], *questions[:4]]):
            for question in order:
                engine.log_likelihoods(question, ANSWERS, context=DOCUMENT, speculation=Speculation(eta=5.0))
                for speculation in (Speculation(eta="auto", gamma=4), Speculation.off(), Speculation(gamma=4)):
                    result = engine.generate(question, **options, speculation=speculation)
                    found = (result.token_ids, result.stats.eta, result.stats.passages_gain, result.stats.rounds)
                    assert logits.setdefault((question, speculation), found) == found
                found = engine.log_likelihoods(question, ANSWERS, context=DOCUMENT, speculation=Speculation(eta=5.0))
                assert logits.setdefault(question, found) == found
        engine.prefill(QUESTION, context=DOCUMENT)
        again = engine.generate("What else?", **options, speculation=Speculation.off()).usage
        assert again.cached_tokens % 512 == 0 and again.cached_tokens >= 512


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


def test_options_of_who_drafts_are_checked():
    for options in ({"drafter": "nobody"}, {"sinks": -1}, {"sliding_window": 0}, {"answers": "both"}):
        with pytest.raises(OptionError, match=next(iter(options))):
            Speculation(**options)
    assert Speculation(drafter="lookup").transfers is False
