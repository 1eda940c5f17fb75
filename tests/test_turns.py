"""Several requests at once, streams left open, and the end of an engine."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import RANDOM, TINY, ask, count_forwards

from rapid_core import (
    EngineStateError,
    InputError,
    RapidEngine,
    Sampling,
    Speculation,
)
from rapid_core.testing import WordEncoder, tiny_engine, tiny_pair
from rapid_core.turns import Turns


def test_a_closed_engine_says_so(document):
    engine = tiny_engine()
    with engine:
        ask(engine, document)
    with pytest.raises(EngineStateError, match="closed"):
        ask(engine, document)
    with pytest.raises(EngineStateError, match="closed"):
        engine.prompts("Who?", context=document)
    engine.close()


def test_leaving_with_a_stream_open_closes_the_engine_and_lets_the_users_error_out(document):
    def leave_it_open():
        with tiny_engine() as engine:
            stream.append(engine.stream("Who?", context=document))
            next(stream[-1])
            raise KeyError("mine")

    def work():
        with pytest.raises(KeyError):
            leave_it_open()

    stream: list = []
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    for left_open in stream:
        with pytest.raises(EngineStateError, match="closed while this stream was open"):
            next(left_open)


def test_a_thread_that_waits_for_its_own_stream_is_told_so_after_a_while(document, monkeypatch):
    import rapid_core.turns as module

    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    told = []

    def work():
        with tiny_engine() as engine:
            stream = engine.stream("Who?", context=document)
            next(stream)
            with pytest.raises(EngineStateError, match="still has a stream of it open") as error:
                ask(engine, document)
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert told


async def test_an_async_request_behind_an_open_stream_of_its_thread_is_told_so(engine, document):
    stream = engine.stream("Who?", context=document)
    next(stream)
    with pytest.raises(EngineStateError, match="still has a stream of it open"):
        await asyncio.wait_for(engine.agenerate("Who?", context=document), timeout=20)
    stream.close()


# -- several at once ------------------------------------------------------------------------------


def test_requests_from_threads_are_served_one_by_one(engine, document):
    questions = [f"Question {i}: who lives in Oslo?" for i in range(6)]
    expected = [ask(engine, document, q, seed=1, **RANDOM).token_ids for q in questions]
    found = [None] * 6

    def work(i):
        found[i] = ask(engine, document, questions[i], seed=1, **RANDOM).token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_a_stream_that_waits_for_itself_is_told_so(engine, document):
    stream = engine.stream("Who?", context=document)
    next(stream)
    with pytest.raises(EngineStateError, match="still has a stream of it open"):
        ask(engine, document)
    stream.close()
    ask(engine, document, max_new_tokens=2)


async def test_ten_at_once_keep_the_loop_free_and_come_in_order(engine, document):
    questions = [f"Question {i}: who lives in Oslo?" for i in range(10)]
    expected = [ask(engine, document, q, seed=1, **RANDOM).token_ids for q in questions]
    ticks, done = 0, []

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    async def one(i):
        result = await engine.agenerate(
            questions[i], context=document, sampling=Sampling(**RANDOM, seed=1), speculation=Speculation()
        )
        done.append(i)
        return result.token_ids

    ticker = asyncio.create_task(tick())
    found = await asyncio.gather(*(one(i) for i in range(10)))
    ticker.cancel()
    assert found == expected
    assert done == list(range(10))
    assert ticks > 20


async def test_an_async_stream_gives_the_same_text(engine, document):
    sampling = Sampling(max_new_tokens=30)
    deltas = [delta async for delta in engine.astream("Who?", context=document, sampling=sampling)]
    assert "".join(d.text for d in deltas) == engine.generate("Who?", context=document, sampling=sampling).text
    assert deltas[-1].finish_reason


async def test_a_cancelled_task_stops_the_work_and_frees_the_engine(document):
    with tiny_engine() as engine:
        calls = count_forwards(engine)
        task = asyncio.create_task(engine.agenerate("Who?", context=document, sampling=Sampling(max_new_tokens=5000)))
        while calls[0] < 10:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        result = await asyncio.wait_for(
            engine.agenerate("Who?", context=document, sampling=Sampling(max_new_tokens=2)), timeout=20
        )
        assert len(result.token_ids) == 2


async def test_an_async_stream_closed_early_frees_the_engine(document):
    with tiny_engine() as engine:
        stream = engine.astream("Who?", context=document, sampling=Sampling(max_new_tokens=5000))
        await anext(stream)
        calls = count_forwards(engine)
        await stream.aclose()
        # It may finish the round that it is in: at most ten drafts and their verification.
        await asyncio.sleep(0.5)
        assert calls[0] <= 1
        assert await asyncio.wait_for(engine.agenerate("Who?", context=document), timeout=20)


def test_a_turn_that_was_given_up_before_it_began_does_not_run():
    turns = Turns()
    turn = turns.join()
    turn.leave()
    assert turn.wait(lambda: False) is False


async def test_an_error_reaches_the_async_caller(engine):
    with pytest.raises(InputError, match="must not be empty"):
        await engine.agenerate("")


@pytest.mark.parametrize("compile_one", [False, "eager"])
def test_engines_that_share_a_model_answer_in_threads_as_alone(document, compile_one):
    """A forward switches its model's attention, or its layers: never under another engine's forward."""
    pair = tiny_pair()
    engines = [
        RapidEngine(*pair, retrieval=TINY, encoder=WordEncoder(), compile=compiled) for compiled in (False, compile_one)
    ]
    before = pair[0].model.config._attn_implementation
    questions = ("Who lives in Lima?", "Who lives in Oslo?", "Who lives in Madrid?")
    lossless = Speculation.lossless(gamma=3)
    expected = [ask(engines[0], document, question, lossless).token_ids for question in questions]
    with ThreadPoolExecutor(4) as pool:
        jobs = [(engine, number) for number in range(3) for engine in engines]
        answers = [(n, pool.submit(ask, engine, document, questions[n], lossless)) for engine, n in jobs]
        for number, answer in answers:
            assert answer.result().token_ids == expected[number]
    assert pair[0].model.config._attn_implementation == before
    for engine in engines:
        engine.close()
