"""Passages that are searched for again while the answer is written: when, what changes, and what never does."""

from __future__ import annotations

import pytest
import torch
from conversations import chat, turn
from helpers import TINY

from rapid_core import (
    Chunk,
    Constraint,
    Document,
    LongContext,
    LongHistory,
    RapidEngine,
    Retrieval,
    RetrievalError,
    Sampling,
    Speculation,
)
from rapid_core.decoder import Decoder
from rapid_core.drafting import RagDrafter, WaitingPrompt
from rapid_core.pacing import Choice, CostTable, Pacer
from rapid_core.retrieval.select import drift
from rapid_core.runner import ModelRunner
from rapid_core.sampling import Sampler
from rapid_core.second_retrieval import SecondRetrieval
from rapid_core.testing import FixedLogits, WordEncoder, tiny_model, tiny_pair
from rapid_core.verification import augmented_target

CPU = torch.device("cpu")
# Tiny models write no sentences by themselves.
SENTENCES = Constraint.regex(r"([A-Z][a-z]{2,5} [a-z]{3,6}\. ){8}")
AGAIN = Retrieval(chunk_tokens=64, threshold=0.0, floor_tokens=128, again_tokens=24)
QUESTION = "Who lives in Lima?"


class Wandering(WordEncoder):
    """Whatever is asked with an answer is taken for a question about Norway."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def embed_query(self, text):
        if text.startswith(QUESTION):
            self.asked.append(text)
        return super().embed_query("Norway Oslo" if text.startswith(QUESTION + "\n") else text)


def engine_of(encoder=None, retrieval=AGAIN, models=None, **options):
    return RapidEngine(*(models or tiny_pair(window=4096)), retrieval=retrieval, encoder=encoder or Wandering())


def ask(engine, context, speculation=None, prompt=QUESTION, **options):
    sampling = Sampling(**{"max_new_tokens": 120, "constraint": SENTENCES, **options})
    return engine.generate(prompt, context=context, sampling=sampling, speculation=speculation or Speculation())


@pytest.fixture(scope="module")
def searcher():
    return Wandering()


@pytest.fixture
def encoder(searcher):
    """That of `engine`, which was asked nothing yet."""
    searcher.asked.clear()
    return searcher


@pytest.fixture(scope="module")
def engine(searcher):
    with engine_of(searcher) as made:
        yield made


@pytest.fixture(scope="module")
def once():
    """An engine that searches once."""
    with engine_of(retrieval=TINY) as made:
        yield made


# -- what changes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("speculation", [Speculation(), Speculation(gamma=5), Speculation(gamma=5, eta=0.0)])
def test_the_drafter_reads_what_the_answer_is_about(document, engine, once, encoder, speculation):
    first, result = ask(once, document, speculation), ask(engine, document, speculation)
    best = [max(stats.retrieved, key=lambda chunk: chunk.score).text for stats in (first.stats, result.stats)]
    assert best == ["Lima.", "Oslo."]
    assert [chunk.text for chunk in result.stats.retrieved] != [chunk.text for chunk in first.stats.retrieved]
    assert first.stats.retrievals == 1 and result.stats.retrievals == len(encoder.asked) > 2
    # The question of Norway finds the same each time: it is read once.
    notes = [note for note in result.stats.notes if note.startswith("searched again behind ")]
    assert len(notes) == 1 and "passages that the drafter reads from there on are new" in notes[0]


def test_the_query_is_the_question_with_the_last_sentences_of_the_answer(document, engine, encoder):
    result = ask(engine, document, Speculation(gamma=7))
    said = [query.removeprefix(QUESTION + "\n") for query in encoder.asked[1:]]
    ends = [result.text.index(text) + len(text) for text in said]
    assert len(said) > 1 and all(text.endswith(".") and text.count(".") <= 2 for text in said)
    # A token is a character: the first end of a sentence behind 24 tokens, and its white space.
    places, last = [], 0
    for place in (i + 2 for i, sign in enumerate(result.text) if sign == "."):
        if place - last >= 24 and place < len(result.token_ids):
            places.append(place)
            last = place
    assert [end + 1 for end in ends] == places


def test_the_new_prompt_is_prefilled_behind_what_it_shares_with_the_old_one(document):
    with engine_of() as engine:
        read = []
        prefill = engine._drafter.prefill
        engine._drafter.prefill = lambda ids, **options: read.append((len(ids), prefill(ids, **options))) or read[-1][1]
        result = ask(engine, document, Speculation(gamma=5))
        sequence = engine._drafter.sequence
    assert len(read) == 2
    assert read[1][1] > 0
    assert sequence[result.stats.drafter_prompt_tokens :] == list(result.token_ids)


def test_the_answer_does_not_depend_on_how_long_rounds_were(document, engine):
    """With gamma="auto" a clock decides about rounds: what the drafter reads must not."""

    class Rounds(Pacer):
        lengths = (1,)

        def choose(self, room):
            super().choose(room)
            self.turn = getattr(self, "turn", -1) + 1
            wanted = self.lengths[self.turn % len(self.lengths)]
            return Choice("drafter", min(wanted, room.left, room.draftable))

        def goes_on(self, sureness):
            return True

    answers = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rapid_core.answering.Pacer", Rounds)
        for lengths in ((1,), (9,), (2, 13, 5)):
            Rounds.lengths = lengths
            result = ask(engine, document)
            assert len([note for note in result.stats.notes if note.startswith("searched again")]) == 1
            answers.append(result.token_ids)
    assert answers[0] == answers[1] == answers[2]


# -- what never changes ---------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", ["auto", 1, 6])
@pytest.mark.parametrize("shared", [True, False], ids=["one model", "two models"])
def test_without_transfer_a_greedy_answer_stays_the_targets_own(document, gamma, shared):
    models = (tiny_model(window=4096),) if shared else None
    with engine_of(models=models) as engine:
        plain = ask(engine, document, Speculation.off())
        result = ask(engine, document, Speculation.lossless(gamma=gamma))
    assert result.token_ids == plain.token_ids
    assert result.stats.retrievals > 1 and plain.stats.retrievals == 0


def test_a_seed_gives_the_same_text_again(document):
    texts = set()
    for _ in range(2):
        with engine_of() as engine:
            for _ in range(2):
                result = ask(engine, document, temperature=1.0, seed=7)
                texts.add(result.text)
    assert len(texts) == 1 and result.stats.retrievals > 1


class Forced(Pacer):
    """Lets the drafter draft four tokens in each round."""

    def __init__(self, transfer):
        super().__init__(*(CostTable(accelerator=False) for _ in range(2)), transfer=transfer, greedy=False)

    def choose(self, room):
        super().choose(room)
        gamma = min(4, room.left if self.transfer else room.left - 1, room.draftable)
        return Choice("drafter", gamma) if gamma > 0 else Choice("nobody", 0)


@pytest.mark.parametrize("eta", [0.0, 6.0])
def test_every_token_follows_the_law_of_the_prompt_that_the_drafter_had_before_it(eta):
    """4,000 tokens on 6 ids, 800 at least behind each prompt; a variation over .13 by chance has odds below 10^-9.

    The drafter's distribution changes with each prompt, behind every id 0, which ends a sentence.
    """
    generator = torch.Generator().manual_seed(5)
    z, *tables = (torch.randn(1, 6, generator=generator) * 1.2 for _ in range(3))
    sampling = Sampling(temperature=1.0, max_new_tokens=4_000)
    target, model = ModelRunner(FixedLogits(z, window=10**6), role="target"), FixedLogits(tables[0], window=10**6)
    short, pacer = ModelRunner(model, role="drafter"), Forced(transfer=eta > 0)
    target.prefill((1, 2, 3), reserve=8)
    short.prefill((2, 3), reserve=8)
    drafter = RagDrafter(short, Sampler(sampling, 6, (), CPU, 1), Speculation(eta=eta), frozenset(), pacer=pacer)
    searched = []

    def search(text, tokens):
        searched.append(tokens)
        return (4, 5) if len(searched) % 2 else (2, 3)

    def read(ids):
        model.table = tables[ids[0] == 4]
        short.prefill(ids, reserve=8)

    again = SecondRetrieval(
        target, drafter, every=1, decode=lambda ids: "".join(". " if id_ == 0 else "word" for id_ in ids),
        search=search, read=read,
    )  # fmt: skip
    decoder = Decoder(
        target, drafter, Sampler(sampling, 6, (), CPU, 0), Speculation(eta=eta),
        max_new_tokens=4_000, eos_ids=frozenset(), pacer=pacer, again=again,
    )  # fmt: skip
    behind = [[], []]
    for event in decoder.tokens():
        behind[len(searched) % 2].append(event.id)
    ids = target.sequence[3:]
    assert searched == [place + 1 for place, id_ in enumerate(ids[:-1]) if id_ == 0]
    assert short.sequence[2:] == ids
    p = z.softmax(-1)
    for table, found in zip(tables, behind, strict=True):
        kept = torch.minimum(table.softmax(-1), augmented_target(z, table.softmax(-1), eta))
        rest = (p - kept).clamp_min(0)
        expected = kept + (1 - kept.sum()) * rest / rest.sum()
        assert len(found) > 800
        counts = torch.bincount(torch.tensor(found), minlength=6) / len(found)
        assert float((counts - expected[0]).abs().sum() / 2) < 0.13


# -- where it works -------------------------------------------------------------------------------


def test_several_documents_are_searched_again(document):
    lines = document.split("\n\n")
    documents = tuple(Document("\n\n".join(lines[i : i + 6]), name=f"part {i}") for i in (0, 6))
    with engine_of() as engine:
        result = ask(engine, LongContext(documents=documents))
    assert sum(note.startswith("searched again") for note in result.stats.notes) == 1


def test_passages_of_a_history_are_ranked_again():
    asked = []

    def rank(query, passages):
        asked.append(query)
        city = "Oslo" if "\n" in query else "Lima"
        return [i for i, passage in enumerate(passages) if city in passage]

    messages = chat("Who are the many ships of Lima?")
    with engine_of(WordEncoder(), Retrieval(chunk_tokens=256, floor_tokens=150, again_tokens=24)) as engine:
        result = ask(engine, LongHistory(rank=rank), prompt=messages)
    assert [chunk.text for chunk in result.stats.retrieved] == ["\n".join(m.content for m in turn("Oslo"))]
    assert len(asked) == result.stats.retrievals > 2


def test_chunks_of_the_caller_stay_and_a_note_says_so(document):
    chunk = document[:200]
    with engine_of() as engine:
        result = ask(engine, LongContext(document, (chunk,)))
    assert [c.text for c in result.stats.retrieved] == [chunk]
    assert result.stats.retrievals == 0
    assert "the document is not searched again: its chunks were given, and are used as they are" in result.stats.notes


def test_a_drafter_that_still_waits_takes_the_new_prompt_in_its_place():
    runner = ModelRunner(FixedLogits(torch.eye(5)), role="drafter")
    read = []
    waiting = WaitingPrompt([1, 2, 3], lambda ids: read.append(("first", list(ids))))
    sampler = Sampler(Sampling(), 5, (), CPU, 0)
    drafter = RagDrafter(runner, sampler, Speculation(), frozenset(), waiting=waiting)
    drafter.commit([4, 4], 0)

    def prefill(ids):
        read.append(("second", list(ids)))
        runner.prefill(ids, reserve=8)

    drafter.reread(WaitingPrompt([2, 2], prefill))
    assert (drafter.waiting, drafter.room) == (4, runner.window - 4 + 1)
    drafter.commit([3], 0)
    drafter.propose(1, 1)
    assert read == [("second", [2, 2, 4, 4, 3])]


def test_a_short_answer_is_not_searched_for_again(document, engine, encoder):
    assert ask(engine, document, max_new_tokens=20, constraint=None).stats.retrievals == 1
    assert len(encoder.asked) == 1


# -- when it fails --------------------------------------------------------------------------------


def test_an_error_of_the_second_retrieval_reaches_the_caller_and_leaves_the_engine_usable(document):
    encoder = Wandering()
    embed = encoder.embed_query

    def fail(text):
        if text.startswith(QUESTION + "\n"):
            raise RuntimeError("out of memory")
        return embed(text)

    with engine_of(encoder) as engine, engine_of() as fresh:
        encoder.embed_query = fail
        with pytest.raises(RetrievalError, match="out of memory"):
            ask(engine, document)
        encoder.embed_query = embed
        assert ask(engine, document).token_ids == ask(fresh, document).token_ids


def test_what_a_progress_callback_raises_in_the_new_prompt_reaches_the_caller(document):
    class MineError(Exception):
        pass

    begun = [0]

    def progress(stage, done, total):
        begun[0] += stage == "draft prefill" and done == total
        if begun[0] == 2:
            raise MineError

    with engine_of() as engine:
        deltas = engine.stream(
            QUESTION, context=document, progress=progress, sampling=Sampling(max_new_tokens=120, constraint=SENTENCES)
        )
        with pytest.raises(MineError):
            list(deltas)
        assert ask(engine, document).finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    ("now", "new"), [(["a" * 90, "b" * 10], []), (["a" * 70, "b" * 40], ["b" * 40]), (["c"], ["c"]), ([], [])]
)
def test_passages_have_drifted_where_a_good_part_of_the_text_is_new(now, new):
    before = [Chunk("a" * 90), Chunk("a" * 70)]
    assert [chunk.text for chunk in drift(before, [Chunk(text) for text in now])] == new


def test_other_passages_take_the_place_of_the_old_ones_in_the_cache(document):
    with engine_of() as engine:
        result = ask(engine, document, Speculation(gamma=5))
        assert any(note.startswith("searched again") for note in result.stats.notes)
        assert len(engine._drafter.store.slots) == 1
