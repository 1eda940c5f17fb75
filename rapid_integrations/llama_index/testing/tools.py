"""Tests of tools: calls, their results, and an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Generator
from typing import Any, cast

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms import LLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool

from rapid_integrations.llama_index.testing.asking import text_of, usage_of, user
from rapid_integrations.llama_index.testing.properties import SuiteProperties

_FOUR = ("chat_with_tools", "stream_chat_with_tools", "achat_with_tools", "astream_chat_with_tools")


class ToolTests(SuiteProperties):
    """A model with tools calls them, reads their results, and works in an agent."""

    @pytest.fixture
    def tool_llm(self, llm: LLM) -> FunctionCallingLLM:
        """The model, where it has tools."""
        self.needs("supports_tools")
        return cast("FunctionCallingLLM", llm)

    @property
    def _words(self) -> dict[str, Any]:
        return {"tool_required": True} if self.supports_tool_choice else {}

    @pytest.mark.asyncio
    async def test_tools_in_four_ways(self, tool_llm: FunctionCallingLLM) -> None:
        """chat_with_tools, its stream and their async twins end with a call that can be made."""
        self._needs_calls()
        seen = {}
        for method in _FOUR:
            items = await _ask(tool_llm, method, user_msg=self.tool_prompt, **self._words)
            for item in items:
                role = item.message.role
                assert role == "assistant", f"{method} must answer in the role assistant, got {role!r}"
                # Agents ask each item.
                tool_llm.get_tool_calls_from_response(item, error_on_no_tool_call=False)
            calls = tool_llm.get_tool_calls_from_response(items[-1], error_on_no_tool_call=True)
            _check_calls(method, calls)
            seen[method] = [(call.tool_name, call.tool_kwargs) for call in calls]
        if self.is_deterministic:
            first = seen[_FOUR[0]]
            assert all(calls == first for calls in seen.values()), f"all four must make the same calls, got {seen}"

    @pytest.mark.asyncio
    async def test_tool_required_makes_it_call(self, tool_llm: FunctionCallingLLM) -> None:
        """`tool_required=True` makes it call a tool, also where nothing asks for one."""
        self.needs("supports_tool_choice")
        for method in _FOUR:
            last = (await _ask(tool_llm, method, user_msg=self.prompt, tool_required=True))[-1]
            calls = tool_llm.get_tool_calls_from_response(last, error_on_no_tool_call=False)
            assert calls, f"{method} with tool_required=True must call a tool, got {text_of(last)!r}"

    def test_one_call_unless_parallel_ones_are_allowed(self, tool_llm: FunctionCallingLLM) -> None:
        """`allow_parallel_tool_calls=False` gives one call at most; True is taken, too."""
        self._needs_calls()
        question = "Add 1 and 2, and also add 3 and 4. Use the tool add twice."
        for allowed in (False, True):
            answer = tool_llm.chat_with_tools(
                _tools(), user_msg=question, allow_parallel_tool_calls=allowed, **self._words
            )
            calls = tool_llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
            _check_calls(f"chat_with_tools(allow_parallel_tool_calls={allowed})", calls)
            if not allowed:
                assert len(calls) == 1, f"allow_parallel_tool_calls=False allows one call, got {len(calls)}"

    def test_answer_without_a_call(self, tool_llm: FunctionCallingLLM) -> None:
        """Where there is no call, `error_on_no_tool_call` decides between an error and an empty list."""
        answer = tool_llm.chat([user(self.prompt)])
        calls = tool_llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
        assert calls == [], f"an answer without a call must have no calls, got {calls}"
        try:
            calls = tool_llm.get_tool_calls_from_response(answer, error_on_no_tool_call=True)
        except ValueError:
            return
        raise AssertionError(f"error_on_no_tool_call=True must raise a ValueError where there is no call, got {calls}")

    @pytest.mark.asyncio
    async def test_tool_result_is_read(self, tool_llm: FunctionCallingLLM) -> None:
        """A history with a call and its result is answered in all four ways."""
        call = ToolCallBlock(tool_call_id="call_1", tool_name="add", tool_kwargs={"a": 3, "b": 4})
        history = [user(self.tool_prompt), ChatMessage(role="assistant", blocks=[call]), _result("7", "call_1")]
        for method in _FOUR:
            last = (await _ask(tool_llm, method, chat_history=history))[-1]
            calls = tool_llm.get_tool_calls_from_response(last, error_on_no_tool_call=False)
            assert text_of(last).strip() or calls, f"{method} must go on after the result of a tool, and said nothing"
            if self.reports_usage:
                before = usage_of((await _ask(tool_llm, method, chat_history=history[:1]))[-1])[0]
                after = usage_of(last)[0]
                assert after > before, f"{method} must read the result of a tool, got {after} tokens, {before} without"

    def test_own_call_is_read_again(self, tool_llm: FunctionCallingLLM) -> None:
        """The message with its own call goes back to it unchanged, with the result behind it."""
        self._needs_calls()
        answer = tool_llm.chat_with_tools(_tools(), user_msg=self.tool_prompt, **self._words)
        calls = tool_llm.get_tool_calls_from_response(answer, error_on_no_tool_call=True)
        results = [_result("7", call.tool_id) for call in calls]
        history = [user(self.tool_prompt), answer.message, *results]
        last = tool_llm.chat_with_tools(_tools(), chat_history=history)
        more = tool_llm.get_tool_calls_from_response(last, error_on_no_tool_call=False)
        assert text_of(last).strip() or more, "chat_with_tools must go on after its own call, and said nothing"

    @pytest.mark.asyncio
    async def test_predict_and_call(self, tool_llm: FunctionCallingLLM) -> None:
        """predict_and_call and its async twin make the call and give its result."""
        self._needs_calls()
        answers = {
            "predict_and_call": await asyncio.to_thread(
                tool_llm.predict_and_call, _tools(), user_msg=self.tool_prompt, **self._words
            ),
            "apredict_and_call": await tool_llm.apredict_and_call(_tools(), user_msg=self.tool_prompt, **self._words),
        }
        for method, answer in answers.items():
            assert answer.sources, f"{method} must call the tool add, got {answer.response!r}"
            output = answer.sources[0]
            assert not output.is_error, f"{method} must call the tool with arguments that it takes, got {output}"

    # LlamaIndex's agents look at every attribute of a Pydantic object, deprecated ones too.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.asyncio
    @pytest.mark.parametrize("streaming", [True, False])
    async def test_function_agent(self, tool_llm: FunctionCallingLLM, streaming: bool) -> None:
        """A FunctionAgent calls a tool, reads its result, and answers."""
        self.needs("agent_calls_tools")
        made: list[tuple[int, int]] = []

        def add(a: int, b: int) -> int:
            """Add two numbers."""
            made.append((a, b))
            return a + b

        agent = FunctionAgent(tools=[FunctionTool.from_defaults(fn=add)], llm=tool_llm, streaming=streaming)
        # The default memory is an SQLite database that nobody closes.
        memory = ChatMemoryBuffer.from_defaults(tokenizer_fn=str.split)
        output = await agent.run(user_msg=self.tool_prompt, memory=memory)
        assert made, f"a FunctionAgent must call the tool add, got {output!s}"
        assert str(output).strip(), "a FunctionAgent must answer after its tool, and said nothing"

    def _needs_calls(self) -> None:
        if not self.supports_tool_choice:
            self.needs("agent_calls_tools")


def _tools() -> list[FunctionTool]:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return [FunctionTool.from_defaults(fn=add)]


def _result(content: str, call_id: str) -> ChatMessage:
    return ChatMessage(role="tool", content=content, additional_kwargs={"tool_call_id": call_id})


async def _ask(llm: FunctionCallingLLM, method: str, **words: Any) -> list[ChatResponse]:
    """The items of a stream, or one whole answer."""
    ask = getattr(llm, method)
    if method.startswith("a"):
        result = ask(_tools(), **words)
        assert isinstance(result, Awaitable), f"{method} must be awaited, got {type(result).__name__}"
        result = await result
        return [item async for item in result] if isinstance(result, AsyncGenerator) else [result]

    def collect() -> list[ChatResponse]:
        result = ask(_tools(), **words)
        return list(result) if isinstance(result, Generator) else [result]

    return await asyncio.to_thread(collect)


def _check_calls(method: str, calls: list[ToolSelection]) -> None:
    assert calls, f"{method} must call the tool add, got no call"
    ids = [call.tool_id for call in calls]
    assert len(set(ids) - {""}) == len(ids), f"the calls of {method} must have ids of their own, got {ids}"
    for call in calls:
        assert call.tool_name == "add", f"{method} must call a tool that it was given, got {call.tool_name!r}"
        assert set(call.tool_kwargs) == {"a", "b"}, (
            f"{method} must call add with its arguments a and b, got {call.tool_kwargs}"
        )
