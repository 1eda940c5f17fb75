"""Objects of Pydantic classes: what a call is told, and what reads its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from llama_index.core.base.llms.types import ChatResponse, ChatResponseAsyncGen, ChatResponseGen
from llama_index.core.program.streaming_utils import process_streaming_content_incremental
from pydantic import BaseModel

from rapid_integrations.schemas import pydantic_schema, read_json, response_format

# What LlamaIndex's programs say of the tool that they would use in place of a schema.
_OF_TOOLS = ("tool_required", "tool_choice", "allow_parallel_tool_calls")


def call_options(output_cls: type[BaseModel], llm_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """The words of a call whose answer is an object of a class."""
    asked = {name: value for name, value in (llm_kwargs or {}).items() if name not in _OF_TOOLS}
    return {**asked, "response_format": response_format(pydantic_schema(output_cls), told=True)}


def as_object(output_cls: type[BaseModel], response: ChatResponse) -> BaseModel:
    """The object that an answer is; raises ValueError for one that is none."""
    return output_cls.model_validate(read_json(response.message.content or ""))


def stream_objects(output_cls: type[BaseModel], responses: ChatResponseGen) -> Generator[Any, None, None]:
    """What is known of the object with each item of a stream; at its end the object itself."""
    grown: Any = None
    response: ChatResponse | None = None
    for response in responses:
        grown = process_streaming_content_incremental(response, output_cls, grown)
        yield grown
    if response is not None:
        yield as_object(output_cls, response)


async def astream_objects(output_cls: type[BaseModel], responses: ChatResponseAsyncGen) -> AsyncGenerator[Any, None]:
    """`stream_objects` for an event loop."""
    grown: Any = None
    response: ChatResponse | None = None
    async for response in responses:
        grown = process_streaming_content_incremental(response, output_cls, grown)
        yield grown
    if response is not None:
        yield as_object(output_cls, response)
