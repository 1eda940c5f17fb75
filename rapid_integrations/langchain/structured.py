"""`with_structured_output`: the schema of an answer, and what reads the answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, cast

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.outputs import Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from rapid_core import Message

# What Pydantic takes for the formats of its own types.
PATTERNS = {
    "time": r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\d$",
    "date-time": r"^(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ$",
    "duration": r"^P(\d{1,4}D|T\d{1,4}[HMS])$",
    "uri": r"^https?://[a-z0-9]{1,30}(\.[a-z]{2,12}){1,3}(/[A-Za-z0-9_.-]{1,40}){0,6}$",
}
METHODS = ("json_schema", "function_calling", "json_mode")


def schema_of(schema: Mapping[str, Any] | type) -> dict[str, Any]:
    """The JSON schema of a Pydantic class (1 or 2), a TypedDict, a function's description or a schema."""
    if isinstance(schema, Mapping):
        inner = schema.get("schema")
        if isinstance(inner, Mapping):
            return dict(inner)
        described = {"parameters", "input_schema", "function"} & schema.keys()
        return convert_to_json_schema(dict(schema)) if described else dict(schema)
    if is_basemodel_subclass(schema):
        # LangChain's own conversion writes references out, which a recursive model never ends.
        known = cast("Any", schema)
        if hasattr(known, "model_json_schema"):
            made = known.model_json_schema(schema_generator=_NumbersForDecimals)
        else:
            made = known.schema()
        return cast("dict[str, Any]", _as_pydantic_reads(made))
    made = convert_to_json_schema(cast("Any", schema))
    if hasattr(schema, "__required_keys__"):
        made["required"] = [name for name in made["properties"] if name in schema.__required_keys__]
    return made


class _NumbersForDecimals(GenerateJsonSchema):
    """Pydantic describes a Decimal as a number or any text, and takes only texts that are numbers."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> dict[str, Any]:
        made = super().decimal_schema(schema)
        return next((part for part in made.get("anyOf", ()) if part.get("type") == "number"), made)


def name_of(schema: Mapping[str, Any] | type) -> str:
    """What the function of a schema is called."""
    if isinstance(schema, type):
        return str(convert_to_openai_tool(schema)["function"]["name"])
    return str(schema.get("name") or schema_of(schema).get("title") or "answer")


def _as_pydantic_reads(schema: Any) -> Any:
    """A schema of Pydantic's with what it demands beyond JSON Schema, and less what it does not.

    It takes a list with equal items for a set. Of times, durations and addresses it refuses many
    that their formats allow.
    """
    if isinstance(schema, list):
        return [_as_pydantic_reads(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _as_pydantic_reads(part) for key, part in schema.items() if (key, part) != ("uniqueItems", True)}
    if made.get("type") == "string" and "pattern" not in made and made.get("format") in PATTERNS:
        made["pattern"] = PATTERNS[made.pop("format")]
    return made


def response_format(schema: Mapping[str, Any] | type, *, told: bool) -> dict[str, Any]:
    """The schema in the form that `bind(response_format=…)` takes; told: whether the model reads it."""
    made = schema_of(schema)
    inner = {"name": made.get("title") or "answer", "schema": made, "told": told}
    return {"type": "json_schema", "json_schema": inner}


def answer_parser(schema: Mapping[str, Any] | type) -> BaseOutputParser[Any]:
    """What turns the text of an answer into an object of `schema`."""
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return _StrictPydanticParser(pydantic_object=schema)
    return _StrictJsonParser()


def read_json(text: str) -> Any:
    """The value of a text that is JSON and nothing else; raises `OutputParserException`.

    A number beyond all floats is the largest of them.
    """
    try:
        return json.loads(text, parse_float=_finite)
    except ValueError as error:
        raise OutputParserException(f"the answer is no JSON: {error}", llm_output=text) from error


def _finite(text: str) -> float:
    return max(min(float(text), sys.float_info.max), -sys.float_info.max)


class _StrictJsonParser(JsonOutputParser):
    """LangChain's mends JSON that was cut, which is right for a stream and wrong for its end."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        return super().parse_result(result, partial=True) if partial else read_json(result[0].text)


class _StrictPydanticParser(PydanticOutputParser[Any]):
    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        return super().parse_result(result, partial=True) if partial else self._parse_obj(read_json(result[0].text))


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
