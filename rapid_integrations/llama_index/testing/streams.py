"""Tests of streams: their items, their kinds, and where tokens are counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from inspect import isawaitable
from itertools import pairwise

import pytest
from llama_index.core.base.llms.types import ChatResponse
from llama_index.core.llms import LLM

from rapid_integrations.llama_index.testing.asking import (
    ASYNC,
    STREAMED,
    SYNC,
    Response,
    aread,
    argument,
    read,
    text_of,
    usage_of,
    within,
)
from rapid_integrations.llama_index.testing.properties import SuiteProperties


class StreamTests(SuiteProperties):
    """Items carry the text so far and what is new of it; the last one counts the tokens."""

    def test_streams_are_generators(self, llm: LLM) -> None:
        """LlamaIndex ends the callbacks of generators only."""
        for method in STREAMED:
            result = getattr(llm, method)(argument(method, self.prompt))
            assert isinstance(result, Generator), f"{method} must return a generator, got {type(result).__name__}"
            result.close()

    @pytest.mark.asyncio
    async def test_async_streams_are_awaited_generators(self, llm: LLM) -> None:
        """astream_chat and astream_complete are awaited first and iterated then."""
        for method in (f"a{name}" for name in STREAMED):
            pending = getattr(llm, method)(argument(method, self.prompt))
            assert isawaitable(pending), f"{method} must be awaited, got {type(pending).__name__}"
            result = await pending
            assert isinstance(result, AsyncGenerator), (
                f"{method} must give an async generator when awaited, got {type(result).__name__}"
            )
            await result.aclose()

    def test_items_are_cumulative(self, llm: LLM) -> None:
        """Each text begins with the one before; the deltas together are the last text."""
        for method in STREAMED:
            _check_items(method, read(llm, method, self.prompt))

    @pytest.mark.asyncio
    async def test_async_items_are_cumulative(self, llm: LLM) -> None:
        """The same for the async twins."""
        for method in (f"a{name}" for name in STREAMED):
            _check_items(method, await aread(llm, method, self.prompt))

    def test_role_is_the_assistant(self, llm: LLM) -> None:
        """Whole answers and every item of a stream are messages of the assistant."""
        for method in ("chat", "stream_chat"):
            for item in read(llm, method, self.prompt):
                assert isinstance(item, ChatResponse), f"{method} must give ChatResponse, got {type(item).__name__}"
                role = item.message.role
                assert role == "assistant", f"{method} must answer in the role assistant, got {role!r}"

    def test_usage(self, llm: LLM) -> None:
        """Tokens are counted once: on whole answers, and on the last item of a stream."""
        for method in SYNC:
            self._check_usage(method, read(llm, method, self.prompt))

    @pytest.mark.asyncio
    async def test_async_usage(self, llm: LLM) -> None:
        """The same for the async twins."""
        for method in ASYNC:
            self._check_usage(method, await aread(llm, method, self.prompt))

    def _check_usage(self, method: str, items: list[Response]) -> None:
        assert items, f"{method} must give at least one item"
        *others, last = (usage_of(item) for item in items)
        early = [usage for usage in others if usage != (0, 0)]
        assert not early, f"{method} must count its tokens on the last item only, got {early[0]} before"
        if self.reports_usage:
            assert min(last) > 0, (
                f'{method} must count its tokens in raw["usage"] of the last item, prompt_tokens and '
                f"completion_tokens, got {last}"
            )
        else:
            assert last == (0, 0), f"{method} counts its tokens, {last}, so that reports_usage must be True"

    def test_abandoned_stream_leaves_the_model_usable(self, llm: LLM) -> None:
        """A stream that is closed, or forgotten, after its first item holds nothing back."""
        expected = text_of(read(llm, "chat", self.prompt)[-1])
        for method in STREAMED:
            closed, forgotten = (getattr(llm, method)(argument(method, self.prompt)) for _ in range(2))
            next(closed)
            closed.close()
            rule = f"chat must answer after a {method} that was left at its first item"
            text = text_of(within(self.patience, rule, lambda: read(llm, "chat", self.prompt))[-1])
            within(self.patience, rule, lambda stream=forgotten: next(stream))  # type: ignore[misc]
            del forgotten
            again = text_of(within(self.patience, rule, lambda: read(llm, "chat", self.prompt))[-1])
            if self.is_deterministic:
                assert text == again == expected, f"{rule} as before, {expected!r}, got {text!r} and {again!r}"


def _check_items(method: str, items: list[Response]) -> None:
    assert items, f"{method} must give at least one item"
    texts = [text_of(item) for item in items]
    for before, after in pairwise(texts):
        assert after.startswith(before), (
            f"each item of {method} must hold the text so far, got {after!r} behind {before!r}"
        )
    joined = "".join(item.delta or "" for item in items)
    assert joined == texts[-1], f"the deltas of {method} must join to the last text, {texts[-1]!r}, got {joined!r}"
    assert joined.strip(), f"{method} must give text, got {joined!r}"
