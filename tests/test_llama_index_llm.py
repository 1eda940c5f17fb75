"""RapidLLM by itself: options, messages, tools, objects, and what an application relies on."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
import threading
from typing import Literal

import pytest
from helpers import ticks_while
from integration_helpers import obedient_engine, roles
from llama_index.core import PromptTemplate, Settings
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import CachePoint, CitableBlock, ImageBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.extractors import KeywordExtractor
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.llms import ChatMessage, ChatResponse, TextBlock
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.schema import TextNode
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel, Field

from rapid_core import (
    InputError,
    LongContext,
    LongHistory,
    OptionError,
    PromptTooLongError,
    RapidEngine,
    Retrieval,
    Speculation,
    ToolCall,
    UnknownOptionError,
)
from rapid_core.testing import ScriptedEngine, WordEncoder, save_tiny_model, tiny_engine, tiny_pair
from rapid_integrations.llama_index import RapidContext, RapidLLM, RapidWarning

DOCUMENT = "\n\n".join(f"The bridge of town {n} is {n * 7} feet wide and painted {n}." for n in range(60))
PIXEL = b"\x89PNG\r\n\x1a\n"


def llm_of(*answers, **options):
    return RapidLLM(engine=ScriptedEngine(list(answers)), **options)


@pytest.fixture
def wide():
    """A real engine with random weights, whose answers end at their limit."""
    with tiny_engine(window=16384) as made:
        made.target.model.generation_config.eos_token_id = -1
        yield made


@pytest.fixture
def ending():
    """A real engine with random weights, whose answers may end: a form needs an end."""
    with tiny_engine(window=16384) as made:
        yield made


# What it reads


def test_a_long_message_finds_its_context_by_itself(wide):
    llm = RapidLLM(engine=wide, max_tokens=8)
    answer = llm.complete(f"{DOCUMENT}\n\nHow wide is the bridge of town 31?")
    target, drafter = roles(wide)
    assert DOCUMENT in target and "town 31 is 217 feet" in drafter and len(drafter) < len(target) / 2
    assert answer.raw["rapid"]["drafter_prompt_tokens"] > 0 and answer.raw["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    "context", [DOCUMENT, RapidContext(DOCUMENT), LongContext(DOCUMENT)], ids=["text", "RapidContext", "LongContext"]
)
def test_a_call_takes_its_long_context_as_a_keyword(context, wide):
    llm = RapidLLM(engine=wide, max_tokens=4)
    llm.chat([ChatMessage("How wide is the bridge of town 31?")], rapid_context=context)
    target, drafter = roles(wide)
    assert DOCUMENT in target and "town 31 is 217 feet" in drafter and "town 2 is" not in drafter


def test_a_history_may_say_how_many_turns_stay():
    engine = ScriptedEngine(["yes"])
    RapidLLM(engine=engine).chat([ChatMessage("hi")], rapid_context=LongHistory(newest=4))
    assert engine.requests[0].context == LongHistory(newest=4)
    with pytest.raises(OptionError, match="rapid_context must be text"):
        llm_of("x").chat([ChatMessage("hi")], rapid_context=7)


def test_messages_are_read_role_by_role_and_block_by_block():
    engine = ScriptedEngine(["done"])
    RapidLLM(engine=engine).chat(
        [
            ChatMessage(role="developer", content="Be brief."),
            ChatMessage(role="user", content=[TextBlock(text="A document."), TextBlock(text="A question?")]),
            ChatMessage(
                role="assistant",
                content=[ThinkingBlock(content="hm"), TextBlock(text="Let me "), TextBlock(text="see.")],
            ),
            ChatMessage(role="user", content=[CitableBlock(title="t", source="s", content=[TextBlock(text="cited")])]),
            ChatMessage(
                role="assistant",
                content=[ToolCallBlock(tool_call_id="i1", tool_name="look", tool_kwargs={"at": "ü"})],
            ),
            ChatMessage(role="tool", content="seen", additional_kwargs={"tool_call_id": "i1"}),
            ChatMessage(
                role="assistant",
                additional_kwargs={"tool_calls": [{"id": "i2", "function": {"name": "look", "arguments": "{}"}}]},
            ),
            ChatMessage(role="function", content="seen again", additional_kwargs={"name": "look"}),
            ChatMessage(role="chatbot", content="Good."),
            ChatMessage(role="user", content=[TextBlock(text="And now?"), CachePoint(cache_control={"type": "x"})]),
        ]
    )
    messages = engine.requests[0].messages
    assert [message.role for message in messages] == (
        "system user assistant user assistant tool assistant tool assistant user".split()
    )
    assert messages[1].content == "A document.\n\nA question?" and messages[2].content == "Let me see."
    assert messages[3].content == "cited" and messages[4].content == messages[6].content == ""
    assert messages[4].tool_calls == (ToolCall("look", '{"at": "ü"}', "i1"),)
    assert messages[5].tool_call_id == "i1" and messages[6].tool_calls == (ToolCall("look", "{}", "i2"),)
    assert messages[7].name == "look" and messages[9].content == "And now?"


def test_a_system_message_at_the_end_is_a_question():
    """LlamaIndex's agents end with one where they have to come to an end."""
    engine = ScriptedEngine(["done"])
    RapidLLM(engine=engine).chat([ChatMessage("hi"), ChatMessage(role="system", content="Sum it up.")])
    assert [message.role for message in engine.requests[0].messages] == ["user", "user"]


def test_what_is_not_text_is_an_error_and_not_left_out():
    with pytest.raises(InputError, match="holds a ImageBlock; turn images"):
        llm_of("x").chat([ChatMessage(role="user", content=[TextBlock(text="see"), ImageBlock(image=PIXEL)])])
    with pytest.raises(InputError, match="at least one message"):
        llm_of("x").chat([])
    with pytest.raises(InputError, match="last message"):
        llm_of("x").chat([ChatMessage("hi"), ChatMessage(role="assistant", content="so")])


def test_a_prompt_over_the_window_is_an_error_with_both_numbers(wide):
    with pytest.raises(PromptTooLongError, match="16,384") as raised:
        RapidLLM(engine=wide).complete("word " * 20000)
    assert raised.value.window == 16384 and raised.value.prompt_tokens > 16384


# Options


def test_the_window_is_the_targets_own(wide):
    metadata = RapidLLM(engine=wide, max_tokens=100_000).metadata
    assert (metadata.context_window, metadata.is_chat_model) == (16384, True)
    # Who packs prompts leaves the answer this much.
    assert metadata.num_output == 4096
    assert RapidLLM(engine=wide, max_tokens=16).metadata.num_output == 16


@pytest.mark.parametrize("shown", [True, False])
def test_a_model_is_said_to_call_functions_only_where_its_template_shows_them(shown):
    engine = ScriptedEngine(["x"], tools_in_template=shown)
    assert RapidLLM(engine=engine).metadata.is_function_calling_model is shown
    assert RapidLLM(engine=engine, function_calling=not shown).metadata.is_function_calling_model is not shown


def test_unknown_words_are_named():
    with pytest.warns(RapidWarning, match="RapidLLM has no option context_window"):
        RapidLLM(target="demo", context_window=3900)
    with pytest.warns(RapidWarning, match="ignores messages_to_prompt"):
        RapidLLM(target="demo", messages_to_prompt=str)
    with pytest.raises(UnknownOptionError, match="a call of RapidLLM has no option 'temprature'; did you mean"):
        llm_of("x").chat([ChatMessage("hi")], temprature=1)
    with pytest.raises(UnknownOptionError, match="num_beams"):
        llm_of("x").stream_complete("hi", num_beams=2)
    with pytest.raises(ValueError, match="needs target="):
        RapidLLM(target="")
    with pytest.raises(ValueError, match="device cannot change it"):
        RapidLLM(engine=ScriptedEngine(["x"]), device="cpu")
    with pytest.raises(ValueError, match="temperature"):
        RapidLLM(target="demo", temperature=-1)


def test_a_call_overrules_the_constructor():
    engine = ScriptedEngine(["one two three STOP four"])
    llm = RapidLLM(engine=engine, temperature=0.5, max_tokens=7, stop=["STOP"], speculation={"gamma": 3})
    assert llm.complete("hi").text == "one two three "
    assert llm.complete("hi", stop=["two"], temperature=0, max_tokens=9, speculation=Speculation.off()).text == "one "
    first, second = engine.requests
    assert (first.sampling.temperature, first.sampling.max_new_tokens, first.speculation.gamma) == (0.5, 7, 3)
    assert (second.sampling.temperature, second.sampling.max_new_tokens) == (0, 9) and not second.speculation.enabled
    cut = llm.complete("hi", stop=[], max_tokens=2)
    assert (cut.text, cut.raw["finish_reason"]) == ("one two", "length")


def test_a_stop_string_never_shows_in_a_stream():
    llm = llm_of("one two\nObservation: three", stop=["\nObservation:"])
    assert "".join(item.delta for item in llm.stream_complete("hi")) == "one two"


def test_a_timeout_ends_a_call():
    llm = RapidLLM(engine=ScriptedEngine(["a b c d e f g h"], delay_s=0.1), timeout=0.15)
    with pytest.raises(TimeoutError, match="timeout=0.15"):
        llm.complete("hi")


def test_the_system_prompt_of_the_llm_stands_first_where_templates_are_filled_in():
    engine = ScriptedEngine(["fine"])
    llm = RapidLLM(engine=engine, system_prompt="Be kind.")
    assert llm.predict(PromptTemplate("How is {name}?"), name="Ann") == "fine"
    assert [message.content for message in engine.requests[0].messages] == ["Be kind.", "How is Ann?"]


# Tools


def look(at: str, times: int = 1) -> str:
    """Looks at something."""
    return f"{at} is blue, {times} times"


TOOL = FunctionTool.from_defaults(look)


def memory_of(llm):
    """An agent's own one leaves a database open."""
    return ChatMemoryBuffer.from_defaults(token_limit=16000, tokenizer_fn=llm.token_ids)


async def test_a_function_agent_calls_its_tools_and_goes_on():
    engine = ScriptedEngine([ToolCall("look", '{"at": "the sky", "times": 2}'), "It is blue."])
    llm = RapidLLM(engine=engine)
    agent = FunctionAgent(tools=[look], llm=llm, system_prompt="Be exact.")
    output = await agent.run("What colour is the sky?", memory=memory_of(llm))
    assert output.response.content == "It is blue."
    first, second = engine.requests
    assert first.tools.tools[0].name == "look" and first.messages[0].content == "Be exact."
    call, result = second.messages[-2:]
    assert call.tool_calls[0].arguments == '{"at": "the sky", "times": 2}' and call.content == ""
    assert (result.role, result.content) == ("tool", "the sky is blue, 2 times")
    assert result.tool_call_id == call.tool_calls[0].id != ""


async def test_an_agent_is_refused_where_the_template_has_no_tools():
    llm = RapidLLM(engine=ScriptedEngine(["x"], tools_in_template=False))
    with pytest.raises(ValueError, match="FunctionCallingLLM"):
        await FunctionAgent(tools=[look], llm=llm).run("hi", memory=memory_of(llm))


async def test_an_agents_next_turn_goes_on_in_the_cache(ending):
    llm = RapidLLM(engine=ending, max_tokens=120, function_calling=True)
    agent = FunctionAgent(tools=[look], llm=llm, initial_tool_choice="look", streaming=True)
    memory = memory_of(llm)
    before = 0
    for turn in range(3):
        output = await agent.run(f"Look at thing {turn}.", memory=memory)
        usage = output.raw["usage"]
        assert usage["cached_tokens"] >= before
        before = usage["prompt_tokens"] - 2
    history = await memory.aget_all()
    assert [message.role.value for message in history] == ["user", "assistant", "tool", "assistant"] * 3
    # Random weights must call the tool with arguments that fit, for a grammar holds them to it.
    assert all(set(message.blocks[-1].tool_kwargs) >= {"at"} for message in history[1::4])


def test_a_tool_that_has_to_be_called_is_called_with_arguments_that_fit(ending):
    llm = RapidLLM(engine=ending, temperature=1.0, seed=3, max_tokens=120, function_calling=True)
    response = llm.chat_with_tools([TOOL], "What is blue?", tool_required=True)
    (call,) = llm.get_tool_calls_from_response(response)
    assert call.tool_name == "look" and isinstance(call.tool_kwargs["at"], str)
    assert response.raw["finish_reason"] == "tool_calls" and response.message.content == ""
    assert llm.predict_and_call([TOOL], "What is blue?", tool_required=True).response.endswith("times")


@pytest.mark.parametrize("choice", ["look", {"type": "function", "function": {"name": "look"}}, "required"])
def test_a_choice_of_tools_is_read_as_providers_write_it(choice):
    engine = obedient_engine()
    RapidLLM(engine=engine).chat_with_tools([TOOL], "'the sky'?", tool_choice=choice)
    assert [tool.name for tool in engine.requests[0].tools.forced] == ["look"]
    with pytest.raises(OptionError, match="'nothing'"):
        RapidLLM(engine=engine).chat_with_tools([TOOL], "hi", tool_choice="nothing")


def test_a_call_that_cannot_be_used_stays_text():
    llm = llm_of('Well. <tool_call>{"name": "look", "arguments": {"at": </tool_call>')
    whole = llm.chat_with_tools([TOOL], "hi")
    assert llm.get_tool_calls_from_response(whole, error_on_no_tool_call=False) == []
    assert whole.message.content.startswith("Well.") and '"at":' in whole.message.content
    (broken,) = whole.message.additional_kwargs["invalid_tool_calls"]
    assert broken["error"]
    *_, last = llm.stream_chat_with_tools([TOOL], "hi")
    assert last.message.content == whole.message.content
    with pytest.raises(ValueError, match="a tool call was expected"):
        llm.get_tool_calls_from_response(whole)


async def test_where_one_call_is_allowed_streams_keep_to_it_too():
    calls = [ToolCall("look", f'{{"at": "{place}"}}') for place in ("up", "down")]
    llm = llm_of(calls)
    with pytest.warns(RapidWarning, match="left out: look"):
        *_, last = llm.stream_chat_with_tools([TOOL], "hi")
    assert len(llm.get_tool_calls_from_response(last)) == 1 and "left out" in last.raw["rapid"]["notes"][-1]
    with pytest.warns(RapidWarning, match="left out: look"):
        items = [item async for item in await llm.astream_chat_with_tools([TOOL], "hi")]
    assert len(llm.get_tool_calls_from_response(items[-1])) == 1


async def test_a_completion_has_no_place_for_calls_and_says_so():
    llm = llm_of(ToolCall("look", '{"at": "up"}'))
    for ask in (llm.complete, llm.stream_complete):
        with pytest.raises(OptionError, match="no place for tool calls"):
            ask("hi", tools=[TOOL])
    for ask in (llm.acomplete, llm.astream_complete):
        with pytest.raises(OptionError, match="no place for tool calls"):
            await ask("hi", tools=[TOOL])


def paint(colours: set[int]) -> str:
    """Paints."""
    return "painted"


def test_a_tool_may_take_a_set(ending):
    llm = RapidLLM(engine=ending, max_tokens=200, temperature=1.0, function_calling=True)
    assert llm.predict_and_call([FunctionTool.from_defaults(paint)], "go", tool_required=True).response == "painted"


def test_arguments_may_be_text_and_what_is_none_is_an_error():
    def response(arguments):
        block = ToolCallBlock(tool_call_id="i", tool_name="look", tool_kwargs=arguments)
        return ChatResponse(message=ChatMessage(role="assistant", content=[block]))

    (call,) = llm_of("x").get_tool_calls_from_response(response('{"at": "up"}'))
    assert call.tool_kwargs == {"at": "up"}
    with pytest.raises(ValueError, match="must be a JSON object"):
        llm_of("x").get_tool_calls_from_response(response("[1]"))


def test_where_one_call_is_allowed_the_others_are_named():
    calls = [ToolCall("look", f'{{"at": "{place}"}}') for place in ("up", "down")]
    with pytest.warns(RapidWarning, match="left out: look"):
        response = llm_of(calls).chat_with_tools([TOOL], "hi")
    assert [block.tool_kwargs for block in response.message.blocks if isinstance(block, ToolCallBlock)] == [
        {"at": "up"}
    ]
    both = llm_of(calls).chat_with_tools([TOOL], "hi", allow_parallel_tool_calls=True)
    assert len(RapidLLM.get_tool_calls_from_response(llm_of("x"), both)) == 2


# Objects


class Flat(BaseModel):
    rooms: int = Field(ge=1, le=9)
    kind: Literal["attic", "cellar"]


class Lease(BaseModel):
    """A lease."""

    tenant: str = Field(max_length=12)
    flats: list[Flat] = Field(min_length=1, max_length=2)


PROMPT = PromptTemplate("Who rents what in {town}?")


async def test_objects_are_valid_every_time_whatever_the_model(ending):
    llm = RapidLLM(engine=ending, temperature=1.0, max_tokens=160)
    for seed in range(3):
        assert isinstance(llm.structured_predict(Lease, PROMPT, {"seed": seed}, town="Lima"), Lease)
    assert isinstance(await llm.astructured_predict(Lease, PROMPT, town="Lima"), Lease)
    *grown, last = llm.stream_structured_predict(Lease, PROMPT, {"seed": 1}, town="Lima")
    assert isinstance(last, Lease) and last == llm.structured_predict(Lease, PROMPT, {"seed": 1}, town="Lima")
    assert len(grown) > 3
    items = [item async for item in await llm.astream_structured_predict(Lease, PROMPT, {"seed": 1}, town="Lima")]
    assert items[-1] == last
    structured = llm.as_structured_llm(Lease)
    assert isinstance(structured.chat([ChatMessage("Who rents {what}?")]).raw, Lease)


@pytest.mark.xdist_group("demo")
def test_the_demo_model_gives_valid_objects_at_temperature_1():
    llm = RapidLLM(target="demo", temperature=1.0, max_tokens=160)
    for seed in range(5):
        assert llm.structured_predict(Lease, PROMPT, {"seed": seed}, town="Lima").flats


def test_the_model_is_told_the_schema_and_its_own_template():
    engine = obedient_engine()
    RapidLLM(engine=engine, system_prompt="Be exact.").structured_predict(Joke, PROMPT, town="Lima")
    system, user = engine.requests[0].messages
    assert system.content.startswith("Be exact.") and '"punchline"' in system.content
    assert user.content == "Who rents what in Lima?" and engine.requests[0].sampling.constraint is not None


class Joke(BaseModel):
    setup: str
    punchline: str


def test_another_way_to_objects_is_taken_where_it_is_asked_for():
    engine = obedient_engine()
    llm = RapidLLM(engine=engine, pydantic_program_mode="function")
    assert isinstance(llm.structured_predict(Joke, PROMPT, town="Lima"), Joke)
    assert [tool.name for tool in engine.requests[0].tools.forced] == ["Joke"]
    *_, last = llm.stream_structured_predict(Joke, PROMPT, town="Lima")
    assert last.model_dump() == {"setup": "some setup", "punchline": "some punchline"}
    program = FunctionCallingProgram.from_defaults(Joke, prompt_template_str="Of {town}", llm=llm)
    *_, last = program.stream_call(town="Lima")
    assert last.setup == "some setup"


# In an application


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
