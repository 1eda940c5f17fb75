"""`with_structured_output`: the schema of an answer, and what reads the answer."""

from __future__ import annotations

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

from rapid_integrations.schemas import pydantic_schema, read_json

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
        return pydantic_schema(schema)
    made = convert_to_json_schema(cast("Any", schema))
    if hasattr(schema, "__required_keys__"):
        made["required"] = [name for name in made["properties"] if name in schema.__required_keys__]
    return made


def name_of(schema: Mapping[str, Any] | type) -> str:
    """What the function of a schema is called."""
    if isinstance(schema, type):
        return str(convert_to_openai_tool(schema)["function"]["name"])
    return str(schema.get("name") or schema_of(schema).get("title") or "answer")


def answer_parser(schema: Mapping[str, Any] | type) -> BaseOutputParser[Any]:
    """What turns the text of an answer into an object of `schema`."""
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return _StrictPydanticParser(pydantic_object=schema)
    return _StrictJsonParser()


def _read_json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise OutputParserException(f"the answer is no JSON: {error}", llm_output=text) from error


class _StrictJsonParser(JsonOutputParser):
    """LangChain's mends JSON that was cut, which is right for a stream and wrong for its end."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        return super().parse_result(result, partial=True) if partial else _read_json(result[0].text)


class _StrictPydanticParser(PydanticOutputParser[Any]):
    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        return super().parse_result(result, partial=True) if partial else self._parse_obj(_read_json(result[0].text))


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
