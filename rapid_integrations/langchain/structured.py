"""`with_structured_output`: the schema of an answer, and what reads the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, cast

from langchain_core.messages import AIMessage
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass

from rapid_core import Message

METHODS = ("json_schema", "function_calling", "json_mode")


def schema_of(schema: Mapping[str, Any] | type) -> dict[str, Any]:
    """The JSON schema of a Pydantic class (1 or 2), a TypedDict, a function or a schema."""
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        # LangChain's own conversion writes references out, which a recursive model never ends.
        known = cast("Any", schema)
        made = known.model_json_schema() if hasattr(known, "model_json_schema") else known.schema()
        return cast("dict[str, Any]", _with_lists_for_sets(made))
    return convert_to_json_schema(cast("Any", schema))


def _with_lists_for_sets(schema: Any) -> Any:
    """Pydantic asks for unique items of a set, and takes a list with equal ones all the same."""
    if isinstance(schema, list):
        return [_with_lists_for_sets(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _with_lists_for_sets(part) for key, part in schema.items() if (key, part) != ("uniqueItems", True)}


def response_format(schema: Mapping[str, Any] | type, *, told: bool) -> dict[str, Any]:
    """The schema in the form that `bind(response_format=…)` takes; told: whether the model reads it."""
    made = schema_of(schema)
    inner = {"name": made.get("title") or "answer", "schema": made, "told": told}
    return {"type": "json_schema", "json_schema": inner}


def answer_parser(schema: Mapping[str, Any] | type) -> BaseOutputParser[Any]:
    """What turns the text of an answer into an object of `schema`."""
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()


def call_parser(schema: Mapping[str, Any] | type, name: str) -> BaseOutputParser[Any]:
    """What turns the arguments of a tool call into an object of `schema`."""
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticToolsParser(tools=[schema], first_tool_only=True)
    return JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)


def with_raw(model: Runnable[Any, AIMessage], parser: BaseOutputParser[Any]) -> Runnable[Any, Any]:
    """The raw message, the object, and the error of the one that could not be parsed."""
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def tell_schema(messages: list[Message], schema: Mapping[str, Any]) -> list[Message]:
    """The messages with the schema in the system message: the grammar holds its form, and this its meaning.

    It stands at the beginning, where the turns of a conversation leave it as it is.
    """
    text = "Answer with one JSON object that fits this JSON schema:\n" + json.dumps(schema, ensure_ascii=False)
    if messages and messages[0].role == "system":
        return [Message("system", messages[0].content + "\n\n" + text, name=messages[0].name), *messages[1:]]
    return [Message("system", text), *messages]
