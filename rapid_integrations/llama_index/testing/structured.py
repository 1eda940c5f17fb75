"""Tests of structured output: objects of a nested class, whole and streamed."""

from __future__ import annotations

import pytest
from llama_index.core.base.llms.types import ChatResponse, CompletionResponse
from llama_index.core.llms import LLM
from llama_index.core.prompts import PromptTemplate
from pydantic import BaseModel, Field

from rapid_integrations.llama_index.testing.asking import text_of, user
from rapid_integrations.llama_index.testing.properties import SuiteProperties


class Address(BaseModel):
    """Where somebody lives."""

    street: str = Field(description="The name of the street")
    number: int = Field(description="The number of the house")


class Person(BaseModel):
    """A person and the person's address."""

    name: str = Field(description="The person's name")
    address: Address


_TEXT = "{name} lives at Mill Street 7. Describe the person."
_NAME = "Ada"


class StructuredTests(SuiteProperties):
    """A class that is asked for is what comes back."""

    def test_structured_predict(self, llm: LLM) -> None:
        """structured_predict gives an object of the class, with the one inside."""
        self.needs("supports_structured_output")
        _check("structured_predict", llm.structured_predict(Person, PromptTemplate(_TEXT), name=_NAME))

    @pytest.mark.asyncio
    async def test_astructured_predict(self, llm: LLM) -> None:
        """The same for its async twin."""
        self.needs("supports_structured_output")
        _check("astructured_predict", await llm.astructured_predict(Person, PromptTemplate(_TEXT), name=_NAME))

    def test_stream_structured_predict(self, llm: LLM) -> None:
        """stream_structured_predict ends with a whole object of the class."""
        self.needs("supports_structured_streaming")
        objects = list(llm.stream_structured_predict(Person, PromptTemplate(_TEXT), name=_NAME))
        _check("stream_structured_predict", objects[-1] if objects else None)

    @pytest.mark.asyncio
    async def test_astream_structured_predict(self, llm: LLM) -> None:
        """The same for its async twin."""
        self.needs("supports_structured_streaming")
        stream = await llm.astream_structured_predict(Person, PromptTemplate(_TEXT), name=_NAME)
        objects = [item async for item in stream]
        _check("astream_structured_predict", objects[-1] if objects else None)

    def test_structured_llm(self, llm: LLM) -> None:
        """`as_structured_llm` answers with the object in `raw` and its JSON as text."""
        self.needs("supports_structured_output")
        structured = llm.as_structured_llm(Person)
        question = _TEXT.format(name=_NAME)
        _check_response("as_structured_llm().chat", structured.chat([user(question)]))
        _check_response("as_structured_llm().complete", structured.complete(question))

    @pytest.mark.asyncio
    async def test_async_structured_llm(self, llm: LLM) -> None:
        """The same for its async twins."""
        self.needs("supports_structured_output")
        structured = llm.as_structured_llm(Person)
        question = _TEXT.format(name=_NAME)
        _check_response("as_structured_llm().achat", await structured.achat([user(question)]))
        _check_response("as_structured_llm().acomplete", await structured.acomplete(question))

    # LlamaIndex's own stream calls a method that Pydantic deprecates.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_structured_llm_streams(self, llm: LLM) -> None:
        """Its stream ends with the whole object."""
        self.needs("supports_structured_streaming")
        items = list(llm.as_structured_llm(Person).stream_chat([user(_TEXT.format(name=_NAME))]))
        assert items, "as_structured_llm().stream_chat must give at least one item"
        _check_response("as_structured_llm().stream_chat", items[-1])


def _check(method: str, found: object) -> None:
    assert isinstance(found, Person), f"{method} must give an object of the class Person, got {found!r}"
    assert isinstance(found.address, Address), f"{method} must give the object inside, too, got {found.address!r}"


def _check_response(method: str, response: ChatResponse | CompletionResponse) -> None:
    _check(method, response.raw)
    parsed = Person.model_validate_json(text_of(response))
    assert parsed == response.raw, f"the text of {method} must be its object's JSON, got {text_of(response)!r}"
