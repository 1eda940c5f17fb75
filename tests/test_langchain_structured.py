"""Answers of a form and calls that must be: enforced while decoding, on models that know nothing."""

from __future__ import annotations

import json
import math
from datetime import datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import pytest
from integration_helpers import obedient_engine
from langchain.agents import create_agent
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field, HttpUrl, SecretStr
from typing_extensions import TypedDict

from rapid_core import OptionError, ToolCall
from rapid_core.testing import ScriptedEngine
from rapid_integrations.langchain import ChatRapid
from rapid_integrations.langchain.structured import schema_of

RANDOM = {"temperature": 1.0, "max_tokens": 140}


class Address(BaseModel):
    street: str
    number: int = Field(ge=1, le=99)


class Person(BaseModel):
    """Somebody who lives somewhere."""

    name: str = Field(description="what they are called")
    job: Literal["judge", "queen"]
    addresses: list[Address] = Field(max_length=2)
    married: bool | None = None


class Tree(BaseModel):
    value: int = Field(ge=0, le=9)
    left: Tree | None = None


class Odd(BaseModel):
    """Types for which JSON Schema has no word that could be enforced."""

    words: set[Literal["a", "b"]] = Field(max_length=2)
    place: Path
    secret: SecretStr = Field(max_length=4)


class Joke(TypedDict):
    """A joke."""

    setup: Annotated[str, ..., "how it begins"]
    punchline: Annotated[str, ..., "how it ends"]


SCHEMA = {
    "title": "Weather",
    "description": "The weather.",
    "type": "object",
    "properties": {"sky": {"type": "string", "enum": ["clear", "grey"]}, "degrees": {"type": "number"}},
    "required": ["sky", "degrees"],
}


@tool
def get_weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    """The weather in a city."""
    return f"20 {unit} in {city}"


@tool
def send(to: str) -> str:
    """Sends a letter."""
    return f"sent to {to}"


@tool
def ping() -> str:
    """Says that somebody is there."""
    return "pong"


@pytest.fixture(scope="module")
def chat():
    """A random model, which by itself would never write JSON."""
    from rapid_core.testing import tiny_engine

    with tiny_engine(window=4096) as engine:
        yield ChatRapid(engine=engine, **RANDOM)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize(
    "schema", [Person, Tree, Odd, Joke, SCHEMA], ids=["pydantic", "recursive", "odd", "typed dict", "schema"]
)
def test_the_answer_is_an_object_of_the_schema_every_time(schema, method, chat):
    bound = chat.with_structured_output(schema, method=method)
    for seed in range(3):
        answer = bound.invoke("Who lives in Lima?", seed=seed)
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            assert isinstance(answer, schema)
        else:
            names = schema["required"] if schema is SCHEMA else ["setup", "punchline"]
            assert isinstance(answer, dict) and list(answer) == names


ONE = {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]}


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 3}, lambda made: isinstance(made, list)),
        ({"enum": ["a", "b"]}, lambda made: made in ("a", "b")),
        ({"anyOf": [ONE]}, lambda made: made == {"k": 1}),
        ({"$ref": "#/$defs/B", "$defs": {"B": {"const": 3}}}, lambda made: made == 3),
        ({"name": "s", "schema": ONE}, lambda made: made == {"k": 1}),
    ],
)
def test_any_json_schema_is_enforced_as_it_stands(schema, fits, chat):
    assert all(fits(chat.with_structured_output(schema).invoke("?", seed=seed)) for seed in range(3))


class Strict(BaseModel):
    """What Pydantic reads more strictly than JSON Schema."""

    at: time
    when: datetime
    lasts: timedelta
    where: HttpUrl
    costs: float
    price: Decimal


def test_pydantics_own_types_are_valid_every_time(chat):
    bound = chat.with_structured_output(Strict)
    for seed in range(6):
        made = bound.invoke("?", seed=seed, max_tokens=220)
        assert isinstance(made, Strict) and math.isfinite(made.costs)


def test_a_typed_dict_may_leave_fields_out():
    class Half(TypedDict, total=False):
        """Half of it."""

        a: int
        b: int

    assert schema_of(Half)["required"] == []


def test_stop_does_not_cut_what_must_have_a_form(chat):
    stopping = chat.model_copy(update={"stop": ["e", "\n"]})
    assert isinstance(stopping.with_structured_output(Person).invoke("Who?", seed=1), Person)
    assert stopping.bind_tools([send], tool_choice="any").invoke("Hello!", seed=1).tool_calls
    with pytest.raises(OptionError, match="cannot be cut by stop"):
        chat.with_structured_output(Person).invoke("Who?", stop=["e"])


def test_an_answer_that_was_cut_is_no_object():
    cut = ChatRapid(engine=ScriptedEngine(['{"setup": "a", "pun']))
    for schema in (Joke, Person):
        with pytest.raises(OutputParserException, match="no JSON"):
            cut.with_structured_output(schema).invoke("q")


def test_structured_answers_stream_and_the_last_piece_is_whole(chat):
    pieces = list(chat.with_structured_output(Joke).stream("A joke?", seed=1))
    assert len(pieces) > 1 and pieces[-1] == chat.with_structured_output(Joke).invoke("A joke?", seed=1)
    assert isinstance(list(chat.with_structured_output(Person).stream("Who?", seed=1))[-1], Person)


async def test_structured_answers_on_an_event_loop(chat):
    assert isinstance(await chat.with_structured_output(Person).ainvoke("Who?", seed=2), Person)


def test_the_raw_message_is_there_for_who_asks_for_it(chat):
    found = chat.with_structured_output(Person, include_raw=True).invoke("Who?", seed=3)
    assert isinstance(found["parsed"], Person) and found["parsing_error"] is None
    assert json.loads(found["raw"].content)["name"] == found["parsed"].name
    broken = (
        ChatRapid(engine=ScriptedEngine(["no JSON"])).with_structured_output(Person, include_raw=True).invoke("Who?")
    )
    assert broken["parsed"] is None and broken["parsing_error"] is not None and broken["raw"].content == "no JSON"


def test_json_mode_enforces_what_the_prompt_has_to_name(chat):
    bound = chat.with_structured_output(Person, method="json_mode")
    assert isinstance(bound.invoke("A person with name, job, addresses?", seed=1), Person)
    engine = obedient_engine()
    ChatRapid(engine=engine).with_structured_output(Joke, method="json_mode").invoke("A joke?")
    assert [message.role for message in engine.requests[0].messages] == ["user"]
    assert isinstance(json.loads(chat.invoke("?", response_format={"type": "json_object"}, seed=1).content), dict)


def test_the_model_is_told_the_schema_in_the_system_message():
    engine = obedient_engine()
    ChatRapid(engine=engine).with_structured_output(Joke).invoke([HumanMessage("A joke?")])
    asked = engine.requests[0]
    assert [message.role for message in asked.messages] == ["system", "user"]
    assert "how it begins" in asked.messages[0].content and asked.messages[1].content == "A joke?"


def test_what_cannot_be_enforced_is_an_error_before_any_work(chat):
    odd = {
        "title": "odd",
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}},
        "required": ["a"],
    }
    with pytest.raises(OptionError, match="uniqueItems"):
        chat.with_structured_output(odd).invoke("?")
    with pytest.raises(OptionError, match="max_new_tokens must leave room"):
        chat.with_structured_output(Person).invoke("?", max_tokens=8)
    with pytest.raises(OptionError, match="method must be one of"):
        chat.with_structured_output(Person, method="hope")


@pytest.mark.parametrize("choice", ["any", "send", "get_weather"])
def test_a_tool_that_must_be_called_is_called_with_arguments_that_fit(choice, chat):
    bound = chat.bind_tools([get_weather, send], tool_choice=choice)
    for seed in range(3):
        answer = bound.invoke("Hello!", seed=seed)
        (call,) = answer.tool_calls
        assert answer.content == "" and not answer.invalid_tool_calls
        assert call["name"] in (("get_weather", "send") if choice == "any" else (choice,))
        {"get_weather": get_weather, "send": send}[call["name"]].invoke(call)
        chunks = list(bound.stream("Hello!", seed=seed))
        merged = sum(chunks[1:], chunks[0])
        assert [(c["name"], c["args"]) for c in merged.tool_calls] == [(call["name"], call["args"])]


def test_several_calls_only_where_they_are_allowed(chat):
    for parallel in (True, False):
        bound = chat.bind_tools([ping], tool_choice="any", parallel_tool_calls=parallel)
        counts = {len(bound.invoke("Hello!", seed=seed).tool_calls) for seed in range(8)}
        assert min(counts) == 1 and (max(counts) > 1) == parallel


def test_an_agents_answer_of_a_form_may_be_a_call_before(chat):
    """Tools and a schema together: each answer is one or the other."""
    bound = chat.bind_tools([send], response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}})
    kinds = set()
    for seed in range(12):
        answer = bound.invoke("Hello!", seed=seed)
        kinds.add(bool(answer.tool_calls))
        if not answer.tool_calls:
            assert json.loads(answer.content)["sky"] in ("clear", "grey")
    assert kinds == {True, False}


def test_create_agent_returns_an_object():
    engine = ScriptedEngine([ToolCall("send", '{"to": "Ada"}'), '{"setup": "a", "punchline": "b"}'])
    agent = create_agent(ChatRapid(engine=engine), [send], response_format=Joke)
    assert agent.invoke({"messages": [HumanMessage("Send and joke.")]})["structured_response"] == {
        "setup": "a",
        "punchline": "b",
    }


@pytest.mark.xdist_group("demo")
def test_the_demo_model_returns_a_valid_object_every_time():
    chat = ChatRapid(target="demo", **RANDOM)
    bound = chat.with_structured_output(Person)
    people = [bound.invoke("Invent somebody who lives in Lima.", seed=seed) for seed in range(8)]
    assert all(isinstance(person, Person) for person in people) and len({person.name for person in people}) > 4
    for seed in range(2):
        (call,) = chat.bind_tools([get_weather], tool_choice="any").invoke("The weather in Oslo?", seed=seed).tool_calls
        get_weather.invoke(call)
