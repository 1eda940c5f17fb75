"""Retrieval and both prefills, side by side and one after the other."""

from __future__ import annotations

import signal
import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import TINY, ask

from rapid_core import (
    LongContext,
    ModelOutputError,
    NotEnoughMemoryError,
    PromptTooLongError,
    RapidEngine,
    RetrievalError,
    Sampling,
    Speculation,
    first_token,
    runner,
)
from rapid_core.request import Request
from rapid_core.testing import WordEncoder, tiny_engine, tiny_model, tiny_pair

# A test that passes never waits for so long.
PATIENCE_S = 20


class SlowEncoder(WordEncoder):
    """Tells of every passage by itself, and does something before each."""

    def __init__(self, before=lambda: None):
        super().__init__()
        self.before = before

    def embed_passages(self, texts, on_batch):
        vectors = []
        for text in texts:
            self.before()
            vectors.append(super().embed_passages([text], lambda _: None)[0])
            on_batch(len(vectors))
        return np.stack(vectors)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(runner, "PREFILL_CHUNK", 64)
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rapid-prefill")]


@pytest.fixture(params=[True, False], ids=["side by side", "in turn"])
def side_by_side(request, monkeypatch):
    monkeypatch.setattr(first_token, "pays_side_by_side", lambda *_: request.param)
    return request.param


@pytest.fixture
def beside(monkeypatch):
    monkeypatch.setattr(first_token, "pays_side_by_side", lambda *_: True)


@pytest.fixture
def stopped(monkeypatch):
    """Set when one side has told the other to end; waiting for it makes the order of things certain."""
    event, stop = threading.Event(), first_token._Together.stop
    monkeypatch.setattr(first_token._Together, "stop", lambda self: (stop(self), event.set()))
    return event


def make_engine(encoder=None, models=None):
    return RapidEngine(*(models or tiny_pair()), retrieval=TINY, encoder=encoder or WordEncoder())


def before_forward(loaded, hook):
    return loaded.model.register_forward_pre_hook(lambda *_: hook())


@pytest.mark.parametrize("self_speculating", [False, True])
def test_side_by_side_and_in_turn_give_the_same(document, monkeypatch, self_speculating):
    seen = []
    for together in (True, False):
        monkeypatch.setattr(first_token, "pays_side_by_side", lambda *_, together=together: together)
        with make_engine(models=(tiny_model(),) if self_speculating else None) as engine:
            for question in ("Who lives in Lima?", "What number is the queen of Japan?"):
                result = ask(engine, document, question, Speculation(gamma=4), max_new_tokens=12)
                stats = result.stats
                counts = (stats.drafted, stats.accepted, stats.drafter_cached_tokens, stats.notes)
                seen.append((result.token_ids, result.usage, stats.retrieved, counts))
    assert seen[:2] == seen[2:]


def test_the_target_reads_while_passages_are_embedded(document, beside):
    """Each waits for the other: in turn, the barrier would break."""
    meet = threading.Barrier(2, timeout=PATIENCE_S)
    first = [True, True]

    def wait(side):
        if first[side]:
            first[side] = False
            meet.wait()

    with make_engine(SlowEncoder(lambda: wait(0))) as engine:
        before_forward(engine.target, lambda: wait(1))
        assert ask(engine, document, max_new_tokens=2).stats.retrieved
    assert first == [False, False]


def test_two_models_read_at_the_same_time(document, beside):
    meet = threading.Barrier(2, timeout=PATIENCE_S)
    first = {"target": True, "drafter": True}

    def wait(role):
        if first[role]:
            first[role] = False
            meet.wait()

    with make_engine() as engine:
        for role in first:
            before_forward(getattr(engine, role), lambda role=role: wait(role))
        ask(engine, document, max_new_tokens=2)
    assert not any(first.values())


def test_one_model_never_reads_for_both_roles_at_once(document, beside):
    inside, most = [0], [0]

    def count(step):
        inside[0] += step
        most[0] = max(most[0], inside[0])

    with make_engine(models=(tiny_model(),)) as engine:
        before_forward(engine.target, lambda: count(1))
        engine.target.model.register_forward_hook(lambda *_: count(-1))
        assert ask(engine, document, max_new_tokens=2).stats.drafter_prompt_tokens > 100
    assert most == [1]


def test_progress_is_told_by_one_thread_at_a_time(document, side_by_side):
    telling, told = threading.Lock(), []

    def progress(stage, done, total):
        assert telling.acquire(blocking=False)
        told.append((stage, done, total))
        threading.Event().wait(0.001)
        telling.release()

    with make_engine(SlowEncoder()) as engine:
        engine.generate("Who?", context=document, sampling=Sampling(max_new_tokens=2), progress=progress)
    for stage in ("index", "prefill", "draft prefill"):
        done = [done for told_stage, done, _ in told if told_stage == stage]
        assert len(done) > 2 and all(a <= b for a, b in pairwise(done))
        assert done[-1] == next(total for told_stage, _, total in told if told_stage == stage)


class MineError(Exception):
    pass


@pytest.mark.parametrize("stage", ["index", "prefill", "draft prefill"])
def test_what_a_callback_raises_ends_both_sides_and_is_raised_once(document, side_by_side, stage):
    raised = []

    def progress(told, done, total):
        if told == stage and done:
            raised.append(MineError(stage))
            raise raised[-1]

    with make_engine(SlowEncoder()) as engine, tiny_engine() as fresh:
        with pytest.raises(MineError) as error:
            engine.generate("Who?", context=document, progress=progress)
        assert raised == [error.value]
        assert ask(engine, document, max_new_tokens=8).token_ids == ask(fresh, document, max_new_tokens=8).token_ids


def test_a_bad_model_output_ends_retrieval(document, beside, stopped):
    embedded = [0]

    def wait():
        embedded[0] += 1
        stopped.wait(PATIENCE_S)

    def spoil(module, args, output):
        output.logits = output.logits * torch.nan

    with make_engine(SlowEncoder(wait)) as engine, tiny_engine() as fresh:
        handle = engine.target.model.register_forward_hook(spoil)
        with pytest.raises(ModelOutputError, match="the target model returned NaN"):
            ask(engine, document)
        assert embedded[0] <= 1
        handle.remove()
        assert ask(engine, document, max_new_tokens=8).token_ids == ask(fresh, document, max_new_tokens=8).token_ids


@pytest.mark.parametrize("error", [ValueError("no such word"), KeyboardInterrupt()])
def test_a_failure_of_retrieval_ends_the_prefill(document, beside, stopped, error):
    forwards, began = [0], threading.Event()

    def count():
        forwards[0] += 1
        began.set()
        stopped.wait(PATIENCE_S)

    def fail():
        began.wait(PATIENCE_S)
        raise error

    expected = RetrievalError if isinstance(error, ValueError) else KeyboardInterrupt
    encoder = SlowEncoder(fail)
    with make_engine(encoder) as engine, tiny_engine() as fresh:
        handle = before_forward(engine.target, count)
        with pytest.raises(expected):
            ask(engine, document)
        assert forwards == [1]
        handle.remove()
        encoder.before = lambda: None
        assert ask(engine, document, max_new_tokens=8).token_ids == ask(fresh, document, max_new_tokens=8).token_ids


def test_ctrl_c_while_the_main_thread_waits_for_the_target_ends_the_prefill(document, beside, stopped):
    forwards = [0]
    # With chunks given and one model there is nothing to do beside the prefill.
    context = LongContext(document, ("The judge of Peru lives in Lima.",))

    def interrupt():
        forwards[0] += 1
        if forwards[0] == 3:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            stopped.wait(PATIENCE_S)

    with make_engine(models=(tiny_model(),)) as engine, make_engine(models=(tiny_model(),)) as fresh:
        handle = before_forward(engine.target, interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask(engine, context)
        assert forwards == [3]
        handle.remove()
        assert ask(engine, context, max_new_tokens=8).token_ids == ask(fresh, context, max_new_tokens=8).token_ids


@pytest.mark.parametrize(
    ("failure", "reaches", "message"),
    [
        (ZeroDivisionError("out of order"), ZeroDivisionError, "out of order"),
        (MemoryError("no room"), NotEnoughMemoryError, "memory must suffice, and it ran out"),
    ],
)
def test_a_failure_of_the_drafter_ends_the_prefill(document, beside, failure, reaches, message):
    with make_engine() as engine, tiny_engine() as fresh:
        forward = engine.drafter.model.forward
        engine.drafter.model.forward = lambda *_, **__: (_ for _ in ()).throw(failure)
        with pytest.raises(reaches, match=message):
            ask(engine, document)
        engine.drafter.model.forward = forward
        assert ask(engine, document, max_new_tokens=8).token_ids == ask(fresh, document, max_new_tokens=8).token_ids


def test_chunks_that_do_not_fit_the_drafter_are_an_error_in_both_ways(document, side_by_side):
    with tiny_engine(window=2048) as engine:
        engine.drafter.model.config.max_position_embeddings = 512
        small = RapidEngine(engine.target, engine.drafter, encoder=WordEncoder())
        with pytest.raises(PromptTooLongError, match="drafter's prompt must be shorter"):
            ask(small, LongContext(document, (document,)))


@pytest.mark.parametrize("after", [0, 3, 8])
def test_a_cancelled_request_ends_both_sides(document, side_by_side, after):
    asked = [0]

    def is_cancelled():
        asked[0] += 1
        return asked[0] > after

    with make_engine(SlowEncoder()) as engine, tiny_engine() as fresh:
        request = Request.of("Who?", document, None, None, "error", (), None)
        (delta,) = engine._answerer.answer(request, is_cancelled)
        assert delta.finish_reason == "cancelled"
        assert ask(engine, document, max_new_tokens=8).token_ids == ask(fresh, document, max_new_tokens=8).token_ids


def test_seconds_are_each_sides_own(document, beside):
    pause = threading.Event()
    with make_engine(SlowEncoder(lambda: pause.wait(0.02))) as engine:
        stats = ask(engine, document, max_new_tokens=1).stats
    assert stats.retrieval_s > 0.2
    assert 0 < stats.prefill_s < stats.time_to_first_token_s
    assert stats.retrieval_s + stats.draft_prefill_s < stats.time_to_first_token_s


def test_plain_decoding_starts_no_thread(document, beside):
    threads = []
    with make_engine() as engine:
        before_forward(engine.target, lambda: threads.append(threading.current_thread()))
        ask(engine, document, max_new_tokens=1, speculation=Speculation.off())
    assert set(threads) == {threading.current_thread()}


def test_a_document_that_retrieval_must_fit_is_ranked_before_it_is_read(document, beside):
    with make_engine(models=tiny_pair(window=512)) as engine:
        sampling = Sampling(max_new_tokens=8)
        result = engine.generate("Who lives in Lima?", context=document, sampling=sampling, fit="retrieve")
        assert any("fit='retrieve'" in note for note in result.stats.notes) and result.stats.drafted


@pytest.mark.parametrize(
    ("target", "drafter", "encoder", "cores", "pays"),
    [
        ("cpu", "cpu", "cpu", 2, False),
        ("cpu", "cpu", "cpu", 3, True),
        ("cuda:0", "cuda:0", "cuda:0", 64, False),
        ("cuda:0", "cuda:1", "cuda:0", 1, True),
        ("cuda:0", "cuda:0", "cpu", 1, True),
        ("cpu", "cuda:0", "cpu", 1, True),
    ],
)
def test_side_by_side_pays_on_another_device_or_with_free_cores(monkeypatch, target, drafter, encoder, cores, pays):
    monkeypatch.setattr(first_token, "_usable_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert first_token.pays_side_by_side(*map(torch.device, (target, drafter, encoder))) is pays
