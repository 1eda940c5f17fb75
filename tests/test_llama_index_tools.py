"""What RapidLLM is held to: calls of tools, and objects of Pydantic classes."""

from __future__ import annotations

from typing import Literal

import pytest
from integration_helpers import obedient_engine
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.tools import FunctionTool
from llama_index_helpers import TOOL, llm_of, look
from pydantic import BaseModel, Field

from rapid_core import (
    OptionError,
    ToolCall,
)
from rapid_core.testing import ScriptedEngine, tiny_engine
from rapid_integrations.llama_index import RapidLLM, RapidWarning


@pytest.fixture
def ending():
    """A real engine with random weights, whose answers may end: a form needs an end."""
    with tiny_engine(window=16384) as made:
        yield made


# Tools


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
