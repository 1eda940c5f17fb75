"""ChatRapid in an application: caches, copies, shared weights, event loops and threads."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import subprocess
import sys
import threading
import time

import pytest
from helpers import ticks_while
from langchain_core.caches import InMemoryCache
from langchain_core.load import dumpd, load
from transformers import BitsAndBytesConfig

from rapid_core import (
    OptionError,
)
from rapid_core.testing import ScriptedEngine, save_tiny_model, tiny_engine
from rapid_integrations.langchain import ChatRapid, RapidContext


def chat_of(*answers, **options):
    return ChatRapid(engine=ScriptedEngine(list(answers)), **options)


# Caches and copies


def test_a_cache_tells_models_options_and_contexts_apart():
    cache = InMemoryCache()
    engines = [ScriptedEngine([name], name=name) for name in ("first", "second")]
    first, second = (ChatRapid(engine=engine, cache=cache) for engine in engines)
    assert (first.invoke("hi").content, second.invoke("hi").content) == ("first", "second")
    first.invoke("hi")
    assert len(engines[0].requests) == 1
    first.invoke("hi", stop=["x"])
    first.invoke("hi", temperature=1)
    first.bind(rapid_context=RapidContext("one")).invoke("hi")
    first.bind(rapid_context=RapidContext("two")).invoke("hi")
    ChatRapid(engine=engines[0], cache=cache, max_tokens=3).invoke("hi")
    assert len(engines[0].requests) == 6
    first.bind(rapid_context=RapidContext("two")).invoke("hi")
    assert len(engines[0].requests) == 6


def test_a_cache_tells_engines_of_one_name_apart():
    cache = InMemoryCache()
    first, second = (ChatRapid(engine=ScriptedEngine([text]), cache=cache) for text in ("first", "second"))
    assert (first.invoke("hi").content, second.invoke("hi").content) == ("first", "second")
    assert ChatRapid(engine=first.engine, cache=cache).invoke("hi").content == "first"
    assert len(first.engine.requests) == 1


def test_the_repr_of_a_context_is_a_short_hash():
    context = RapidContext("secret " * 1000)
    assert "secret" not in repr(context) and len(repr(context)) < 60
    assert repr(context) == repr(RapidContext("secret " * 1000)) != repr(RapidContext("secret"))


def test_copies_share_the_engine_and_pickles_say_what_cannot_travel(tmp_path):
    chat = ChatRapid(engine=tiny_engine(), temperature=0.5)
    assert copy.deepcopy(chat).engine is chat.engine and copy.copy(chat).engine is chat.engine
    with pytest.raises(TypeError, match="weights and threads do not travel"):
        pickle.dumps(chat)
    named = ChatRapid(target=str(save_tiny_model(tmp_path / "m")), temperature=0.5, max_tokens=2)
    named.invoke("hi")
    again = pickle.loads(pickle.dumps(named))
    assert (again.target, again.temperature) == (named.target, 0.5) and not again._held
    assert again.profile["max_input_tokens"] == 1024
    chat.engine.close()


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")
def test_a_chat_model_is_written_and_read_again_without_its_secret(monkeypatch):
    chat = ChatRapid(model="demo", temperature=0.5, stop=["x"], api_key="a secret")
    written = dumpd(chat)
    assert written["kwargs"]["temperature"] == 0.5 and "a secret" not in json.dumps(written)
    monkeypatch.setenv("RAPID_API_KEY", "a secret")
    again = load(written, allowed_objects=[ChatRapid], valid_namespaces=["rapid_integrations"], secrets_from_env=True)
    assert again.asdict() == chat.asdict() and (again.target, again.stop) == ("demo", ["x"])


def test_chat_models_of_one_name_share_their_weights_and_a_call_may_name_another_model(tmp_path):
    left, right = (str(save_tiny_model(tmp_path / name, seed=seed)) for seed, name in enumerate(("left", "right")))
    one, two = ChatRapid(target=left, max_tokens=8), ChatRapid(model=left, temperature=1, max_tokens=8)
    assert one._engine(None) is two._engine(None)
    texts = {name: one.invoke("hi", model=name) for name in (left, right)}
    assert texts[left].content != texts[right].content
    assert [texts[name].response_metadata["model_name"] for name in (left, right)] == [left, right]
    paired = ChatRapid(target=left, drafter=right, drafter_dtype="float32", max_tokens=8)
    assert paired.invoke("hi", model=right).content == texts[right].content
    assert ChatRapid(target=left, drafter=left)._engine(None) is one._engine(None)
    assert ChatRapid(target=right, max_tokens=8).invoke("hi").content == texts[right].content
    with pytest.raises(OptionError, match="given an engine"):
        chat_of("x").invoke("hi", model="other")


def test_options_that_cannot_be_hashed_tell_engines_apart_by_what_they_say(tmp_path):
    folder = str(save_tiny_model(tmp_path / "one"))

    def engine(**options):
        chat = ChatRapid(target=folder, max_tokens=4, **options)
        chats.append(chat)
        return chat._engine(None)

    chats = []
    everywhere = {"model": "cpu", "lm_head": "cpu"}
    mapped = engine(device_map=everywhere)
    assert mapped is engine(device_map=dict(reversed(everywhere.items()))) is not engine(device_map={"": "cpu"})
    four, again = (BitsAndBytesConfig(load_in_4bit=True) for _ in range(2))
    assert engine(quantization=four) is engine(quantization=again) is not mapped
    assert engine(quantization=four).target.model.is_quantized
    assert chats[-1].invoke("hi").content is not None


def test_a_drafter_that_is_the_target_with_options_of_its_own_is_another_model(tmp_path):
    folder = str(save_tiny_model(tmp_path / "one"))
    chat = ChatRapid(target=folder, drafter=folder, drafter_quantization="torchao-int8", max_tokens=4)
    engine = chat._engine(None)
    assert engine.drafter.model.is_quantized and engine.target.model is not engine.drafter.model
    assert ChatRapid(target=folder, max_tokens=4)._identity() != chat._identity()


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, rapid_integrations.langchain\n"
        "rapid_integrations.langchain.ChatRapid(target='demo')\n"
        "print(sorted({'torch', 'transformers', 'langchain', 'langgraph', 'chromadb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Event loops and threads


async def test_ten_calls_at_once_keep_the_loop_free_and_answer_as_one_by_one(engine, document):
    chat = ChatRapid(engine=engine, max_tokens=24).bind(rapid_context=document)
    questions = [f"Who lives in house {number}?" for number in range(10)]
    one_by_one = [chat.invoke(question).content for question in questions]
    started = time.monotonic()
    answers, ticks = await ticks_while(asyncio.gather(*(chat.ainvoke(question) for question in questions)))
    assert [answer.content for answer in answers] == one_by_one
    # A loop that is blocked ticks once an answer; ten ticks a second leave room for a busy machine.
    assert ticks > max(10, 10 * (time.monotonic() - started))
    assert [answer.content for answer in chat.batch(questions)] == one_by_one
    assert [answer.content for answer in await chat.abatch(questions)] == one_by_one


async def test_loading_keeps_the_loop_free(tmp_path):
    chat = ChatRapid(target=str(save_tiny_model(tmp_path / "m", seed=5)), max_tokens=2)
    answer, ticks = await ticks_while(chat.ainvoke("hi"))
    assert answer.usage_metadata["output_tokens"] == 2 and ticks > 2


async def test_a_stream_that_is_left_or_cancelled_stops_the_work():
    engine = ScriptedEngine([" ".join(map(str, range(1000)))], delay_s=0.01)
    chat, said = ChatRapid(engine=engine), []
    async for chunk in chat.astream("hi"):
        said.append(chunk.content)
        if len(said) == 3:
            break
    task = asyncio.create_task(chat.ainvoke("hi"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.3)
    assert not [thread for thread in threading.enumerate() if thread.name == "rapid-request" and thread.is_alive()]


async def test_a_cancelled_call_leaves_the_engine_usable(engine, document):
    chat = ChatRapid(engine=engine, max_tokens=400).bind(rapid_context=document)
    task = asyncio.create_task(chat.ainvoke("Who lives in Oslo?"))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stream = chat.stream("Who lives in Oslo?")
    next(stream)
    stream.close()
    assert (await chat.ainvoke("hi", max_tokens=3)).usage_metadata["output_tokens"] == 3


async def test_what_the_engine_raises_reaches_every_kind_of_caller():
    for call in ("invoke", "stream"):
        with pytest.raises(RuntimeError, match="broken"):
            list(getattr(chat_of(RuntimeError("broken")), call)("hi"))
    with pytest.raises(RuntimeError, match="broken"):
        await chat_of(RuntimeError("broken")).ainvoke("hi")
    with pytest.raises(RuntimeError, match="broken"):
        async for _ in chat_of(RuntimeError("broken")).astream("hi"):
            pass
