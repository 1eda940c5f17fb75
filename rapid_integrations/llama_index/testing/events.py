"""Tests of what a model reports: callbacks, instrumentation events, counted tokens."""

from __future__ import annotations

import pytest
from llama_index.core.callbacks import CallbackManager, EventPayload, TokenCountingHandler
from llama_index.core.llms import LLM

from rapid_integrations.llama_index.testing.asking import ASYNC, SYNC, Response, aread, read, usage_of
from rapid_integrations.llama_index.testing.properties import SuiteProperties
from rapid_integrations.llama_index.testing.watching import CallRecorder, watched


class EventTests(SuiteProperties):
    """One call is reported once."""

    def test_callbacks_fire_once(self, llm: LLM) -> None:
        """One call is one start and one end, with what was asked and answered."""
        for method in SYNC:
            recorder = CallRecorder.of(llm)
            read(llm, method, self.prompt)
            _check_callbacks(method, recorder)

    @pytest.mark.asyncio
    async def test_async_callbacks_fire_once(self, llm: LLM) -> None:
        """The same for the async twins."""
        for method in ASYNC:
            recorder = CallRecorder.of(llm)
            await aread(llm, method, self.prompt)
            _check_callbacks(method, recorder)

    def test_events_fire_once(self, llm: LLM) -> None:
        """One call is one start event, one for each item of a stream, and one end event."""
        for method in SYNC:
            with watched() as calls:
                items = read(llm, method, self.prompt)
            _check_events(method, calls.names, items)

    @pytest.mark.asyncio
    async def test_async_events_fire_once(self, llm: LLM) -> None:
        """The same for the async twins."""
        for method in ASYNC:
            with watched() as calls:
                items = await aread(llm, method, self.prompt)
            _check_events(method, calls.names, items)

    def test_token_counter_sees_the_usage(self, llm: LLM) -> None:
        """`TokenCountingHandler` counts each call once, with the model's own numbers."""
        self.needs("reports_usage")
        for method in SYNC:
            counter = _counter(llm)
            _check_counts(method, counter, read(llm, method, self.prompt))

    @pytest.mark.asyncio
    async def test_async_token_counter_sees_the_usage(self, llm: LLM) -> None:
        """The same for the async twins."""
        self.needs("reports_usage")
        for method in ASYNC:
            counter = _counter(llm)
            _check_counts(method, counter, await aread(llm, method, self.prompt))


def _check_callbacks(method: str, recorder: CallRecorder) -> None:
    counts = len(recorder.starts), len(recorder.ends)
    assert counts == (1, 1), f"{method} must report one start and one end of an LLM event, got {counts}"
    asked, said = (
        (EventPayload.MESSAGES, EventPayload.RESPONSE)
        if "chat" in method
        else (EventPayload.PROMPT, EventPayload.COMPLETION)
    )
    assert asked in recorder.starts[0], f"the start of {method} must have {asked}, got {list(recorder.starts[0])}"
    assert recorder.ends[0].get(said) is not None, f"the end of {method} must have {said}, got {recorder.ends[0]}"


def _check_events(method: str, names: list[str], items: list[Response]) -> None:
    kind = "LLMChat" if "chat" in method else "LLMCompletion"
    progress = [f"{kind}InProgressEvent"] * (len(items) if "stream" in method else 0)
    expected = [f"{kind}StartEvent", *progress, f"{kind}EndEvent"]
    assert names == expected, f"{method} must fire {expected}, got {names}"


def _counter(llm: LLM) -> TokenCountingHandler:
    # Its own tokenizer would be fetched; words are other numbers than any model's tokens.
    counter = TokenCountingHandler(tokenizer=str.split)
    llm.callback_manager = CallbackManager([counter])
    return counter


def _check_counts(method: str, counter: TokenCountingHandler, items: list[Response]) -> None:
    times = len(counter.llm_token_counts)
    assert times == 1, f"TokenCountingHandler must count {method} once, got {times} times"
    seen, expected = (counter.prompt_llm_token_count, counter.completion_llm_token_count), usage_of(items[-1])
    assert seen == expected, f"TokenCountingHandler must see the usage of {method}, {expected}, got {seen}"
