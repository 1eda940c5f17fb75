"""Other ways to use an engine: lookups alone, the drafter alone, prompts read ahead, and reproducible reuse."""

from __future__ import annotations

import pytest
import torch
from rooms import ANSWERS, DOCUMENT, PLACES, QUESTION, SHORT, THINGS, WINDOW

from rapid_core import LongContext, OptionError, RapidEngine, Retrieval, Speculation
from rapid_core.errors import PromptTooLongError
from rapid_core.testing import WordEncoder, tiny_engine, tiny_model, tiny_pair


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


def test_options_of_who_drafts_are_checked():
    for options in ({"drafter": "nobody"}, {"sinks": -1}, {"sliding_window": 0}, {"answers": "both"}):
        with pytest.raises(OptionError, match=next(iter(options))):
            Speculation(**options)
    assert Speculation(drafter="lookup").transfers is False
