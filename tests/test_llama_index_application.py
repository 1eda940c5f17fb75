"""RapidLLM in an application: caches, copies, settings, event loops and threads."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
import threading

import pytest
from helpers import ticks_while
from llama_index.core import PromptTemplate, Settings
from llama_index.core.extractors import KeywordExtractor
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import TextNode
from llama_index_helpers import TOOL, llm_of

from rapid_core import (
    RapidEngine,
    Retrieval,
)
from rapid_core.testing import ScriptedEngine, WordEncoder, save_tiny_model, tiny_pair
from rapid_integrations.llama_index import RapidLLM


def test_a_cache_tells_two_engines_apart():
    cache = IngestionCache()
    for answer in ("first", "second"):
        llm = llm_of(answer)
        pipeline = IngestionPipeline(transformations=[KeywordExtractor(llm=llm, show_progress=False)], cache=cache)
        (node,) = pipeline.run(nodes=[TextNode(text="x", id_="1")])
        assert node.metadata["excerpt_keywords"] == answer
    named = RapidLLM(target="demo", temperature=0.5)
    assert RapidLLM.from_dict(named.to_dict()).to_dict() == named.to_dict()


def test_settings_take_it_and_its_tokenizer(monkeypatch):
    llm = llm_of("fine")
    monkeypatch.setattr(Settings, "_llm", None)
    Settings.llm = llm
    assert Settings.llm is llm and Settings.llm.complete("hi").text == "fine"
    assert len(llm.token_ids("three little words")) == 3


def test_tracing_does_not_load_a_model_that_is_not_there():
    llm = RapidLLM(target="/nowhere")
    assert llm.to_payload()["model_name"] == "/nowhere"
    assert llm_of("x").to_payload()["context_window"] == 8192


def test_models_are_loaded_once_for_a_name_and_copies_share_them(tmp_path):
    path = str(save_tiny_model(tmp_path / "m"))
    one, two = RapidLLM(target=path, max_tokens=2), RapidLLM(model=path, temperature=1)
    one.complete("hi")
    assert one._engine() is two._engine() is copy.deepcopy(one)._engine()
    again = pickle.loads(pickle.dumps(one))
    assert (again.target, again.max_tokens) == (path, 2) and not again._held
    assert again.metadata.context_window == 1024
    with pytest.raises(TypeError, match="weights and threads do not travel"):
        pickle.dumps(llm_of("x"))


def test_load_makes_everything_ready(tmp_path):
    with RapidEngine(*tiny_pair(), retrieval=Retrieval(chunk_tokens=64), encoder=WordEncoder()) as engine:
        RapidLLM(engine=engine).load()


@pytest.mark.parametrize("method", ["acomplete", "apredict", "astream", "apredict_and_call"])
async def test_the_event_loop_stays_free_while_weights_are_loaded(method, tmp_path, monkeypatch):
    path = str(save_tiny_model(tmp_path / "m"))
    load, names = RapidEngine.load, []

    def slowly(*arguments, **options):
        names.append(threading.current_thread().name)
        return load(*arguments, **options)

    monkeypatch.setattr(RapidEngine, "load", slowly)
    llm = RapidLLM(target=path, max_tokens=40, function_calling=True)
    asked = {
        "acomplete": lambda: llm.acomplete("hi"),
        "apredict": lambda: llm.apredict(PromptTemplate("hi")),
        "astream": lambda: llm.astream(PromptTemplate("hi")),
        "apredict_and_call": lambda: llm.apredict_and_call([TOOL], "hi", error_on_no_tool_call=False),
    }[method]
    answer, ticks = await ticks_while(asked())
    assert answer and ticks > 1
    assert names and names[0] != threading.main_thread().name


async def test_ten_calls_at_once_answer_as_one_by_one(engine):
    llm = RapidLLM(engine=engine, max_tokens=6)
    questions = [f"Question {n}?" for n in range(10)]
    alone = [llm.complete(question).text for question in questions]
    together = await asyncio.gather(*(llm.acomplete(question) for question in questions))
    assert [answer.text for answer in together] == alone


async def test_streams_that_are_left_and_calls_that_are_cancelled_leave_it_usable(engine):
    llm = RapidLLM(engine=engine, max_tokens=400)
    for item in llm.stream_complete("hi"):
        assert item.delta
        break
    stream = await llm.astream_chat([ChatMessage("hi")])
    await anext(stream)
    await stream.aclose()
    task = asyncio.create_task(llm.achat([ChatMessage("hi")]))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await asyncio.wait_for(llm.acomplete("hi", max_tokens=2), 60)).raw["usage"]["completion_tokens"] == 2


def test_what_goes_wrong_behind_a_stream_reaches_its_reader():
    llm = RapidLLM(engine=ScriptedEngine([ValueError("broken")]))
    with pytest.raises(ValueError, match="broken"):
        list(llm.stream_chat([ChatMessage("hi")]))


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, rapid_integrations.llama_index\n"
        "print(sorted({'torch', 'transformers', 'llama_index', 'chromadb'} & set(sys.modules)))\n"
        "rapid_integrations.llama_index.RapidLLM(target='demo')\n"
        "print(sorted({'torch', 'transformers', 'chromadb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    code = (
        "import sys\nsys.modules['llama_index'] = None\n"
        "from rapid_core import MissingDependencyError\n"
        "import rapid_integrations.llama_index as ours\n"
        "try:\n    ours.RapidLLM\nexcept MissingDependencyError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'rapid-integrations[llama-index]'" in done.stdout
