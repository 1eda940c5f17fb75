"""Doubles with one fault each, and the test of the suite that must find it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextlib import suppress

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from pydantic import PrivateAttr
from word_llm import WordLLM, completion_of, user

from rapid_integrations.llama_index.testing import LLMSuite


class NotCumulative(WordLLM):
    def items(self, messages, **words):
        for item in super().items(messages, **words):
            yield item.model_copy(update={"message": ChatMessage(role="assistant", content=item.delta)})


class LosesDeltas(WordLLM):
    def items(self, messages, **words):
        for item in super().items(messages, **words):
            yield item.model_copy(update={"delta": None})


class OtherStream(WordLLM):
    @llm_chat_callback()
    def stream_chat(self, messages, **words):
        return self.items([*messages, user("More.")], **words)


class WrongRole(WordLLM):
    def items(self, messages, **words):
        for item in super().items(messages, **words):
            item.message.role = "user"
            yield item


class NoUsageInStreams(WordLLM):
    @llm_chat_callback()
    def stream_chat(self, messages, **words):
        return (item.model_copy(update={"raw": None}) for item in self.items(messages, **words))


class UsageOnEachItem(WordLLM):
    def items(self, messages, **words):
        for item in super().items(messages, **words):
            yield item.model_copy(update={"raw": self.usage(messages, 1)})


class CountsTwice(WordLLM):
    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **words):
        return completion_of(self.chat([user(prompt)], **words))


class BlocksTheLoop(WordLLM):
    @llm_chat_callback()
    async def achat(self, messages, **words):
        return self.chat(messages, **words)


class BlocksTheLoopInStreams(WordLLM):
    @llm_chat_callback()
    async def astream_chat(self, messages, **words):
        async def items():
            for item in self.items(messages, **words):
                yield item

        return items()


class EchoesThePrompt(WordLLM):
    def answer(self, messages):
        return [f"user: {messages[-1].content}", *super().answer(messages)]


class DropsWords(WordLLM):
    def items(self, messages, **words):
        known = ("stop", "max_tokens", "tools", "tool_required")
        return super().items(messages, **{name: words[name] for name in known if name in words})


class IgnoresStop(WordLLM):
    def items(self, messages, stop=(), **words):
        return super().items(messages, **words)


class IgnoresTheLimit(WordLLM):
    def items(self, messages, max_tokens=None, **words):
        return super().items(messages, **words)


class ReadsAnything(WordLLM):
    def check(self, messages):
        pass

    def answer(self, messages):
        return super().answer(messages or [user("")])


class ReadsTheLastMessage(WordLLM):
    def usage(self, messages, completion):
        return super().usage(messages[-1:], completion)


class ReadsTheFirstBlock(WordLLM):
    def items(self, messages, **words):
        return super().items([user(message.blocks[0].text) for message in messages], **words)


class ChangesMessages(WordLLM):
    def answer(self, messages):
        messages[-1].additional_kwargs["seen"] = True
        return super().answer(messages)


class HoldsItsLock(WordLLM):
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def items(self, messages, **words):
        self._lock.acquire()
        yield from super().items(messages, **words)
        self._lock.release()


class SwallowsCancellation(WordLLM):
    @llm_chat_callback()
    async def achat(self, messages, **words):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)
        return list(self.items(messages, **words))[-1]


class MixesCallsUp(WordLLM):
    _asked: list = PrivateAttr(default_factory=list)

    @llm_chat_callback()
    async def achat(self, messages, **words):
        self._asked = messages
        await asyncio.sleep(0.01)
        return list(self.items(self._asked, **words))[-1]


class StaysWithItsLoop(WordLLM):
    _loop: object = PrivateAttr(default=None)

    @llm_chat_callback()
    async def achat(self, messages, **words):
        self._loop = self._loop or asyncio.get_running_loop()
        more = [] if self._loop is asyncio.get_running_loop() else [user("Another loop.")]
        return list(self.items([*messages, *more], **words))[-1]


class StreamIsNotAwaited(WordLLM):
    async def astream_chat(self, messages, **words):
        for item in self.items(messages, **words):
            yield item


class StreamIsAList(WordLLM):
    def stream_complete(self, prompt, formatted=False, **words):
        return [completion_of(item) for item in self.items([user(prompt)], **words)]


class HidesTools(WordLLM):
    @property
    def metadata(self):
        return super().metadata.model_copy(update={"is_function_calling_model": False})


class NoWindow(WordLLM):
    @property
    def metadata(self):
        return super().metadata.model_copy(update={"context_window": -1})


class NotRequired(WordLLM):
    def items(self, messages, tools=(), **words):
        return super().items(messages, **words)


class NoIds(WordLLM):
    def call(self, tool, raw):
        response = super().call(tool, raw)
        response.message.blocks[0].tool_call_id = ""
        return response


class NeverAnErrorWithoutCalls(WordLLM):
    def get_tool_calls_from_response(self, response, error_on_no_tool_call=True, **_):
        return super().get_tool_calls_from_response(response, error_on_no_tool_call=False)


class TwoCalls(WordLLM):
    def call(self, tool, raw):
        response = super().call(tool, raw)
        response.message.blocks.append(response.message.blocks[0].model_copy(update={"tool_call_id": "call_2"}))
        return response


class ForgetsResults(WordLLM):
    def items(self, messages, **words):
        return super().items([message for message in messages if message.role == "user"], **words)


class NoArguments(WordLLM):
    def call(self, tool, raw):
        response = super().call(tool, raw)
        response.message.blocks[0].tool_kwargs = {}
        return response


class CopiesDiffer(WordLLM):
    def __deepcopy__(self, memo=None):
        return OtherAnswer()


class LosesItsState(WordLLM):
    # LlamaIndex leaves out of a pickle, with a line in the log, what cannot be pickled.
    _answers: object = PrivateAttr(default=None)

    def __init__(self, **words):
        super().__init__(**words)
        self._answers = lambda answer: answer

    def __setstate__(self, state):
        super(FunctionCallingLLM, self).__setstate__({**state, "__dict__": {"no": "such"}})
        self.__pydantic_private__ = {}

    def answer(self, messages):
        return self._answers(super().answer(messages))


class OtherAnswer(WordLLM):
    def answer(self, messages):
        return "It rains all day long on sea and land.".split()


class SharesItsName(WordLLM):
    @classmethod
    def class_name(cls):
        return "WordLLM"


class NoName(WordLLM):
    @property
    def metadata(self):
        return super().metadata.model_copy(update={"model_name": "unknown"})


FAULTS = [
    (NotCumulative, "test_items_are_cumulative"),
    (NotCumulative, "test_async_items_are_cumulative"),
    (LosesDeltas, "test_items_are_cumulative"),
    (LosesDeltas, "test_predict_in_four_ways"),
    (OtherStream, "test_eight_methods_agree"),
    (WrongRole, "test_role_is_the_assistant"),
    (WrongRole, "test_tools_in_four_ways"),
    (NoUsageInStreams, "test_usage"),
    (NoUsageInStreams, "test_token_counter_sees_the_usage"),
    (UsageOnEachItem, "test_usage"),
    (UsageOnEachItem, "test_async_usage"),
    (CountsTwice, "test_callbacks_fire_once"),
    (CountsTwice, "test_events_fire_once"),
    (CountsTwice, "test_token_counter_sees_the_usage"),
    (BlocksTheLoop, "test_event_loop_stays_free"),
    (BlocksTheLoop, "test_async_callbacks_fire_once"),
    (BlocksTheLoopInStreams, "test_event_loop_stays_free"),
    (EchoesThePrompt, "test_answers_are_new_text_only"),
    (DropsWords, "test_unknown_words_are_errors"),
    (IgnoresStop, "test_stop_cuts_answers"),
    (IgnoresTheLimit, "test_limit_of_tokens"),
    (ReadsAnything, "test_no_messages_are_an_error"),
    (ReadsAnything, "test_image_is_not_dropped"),
    (ReadsTheLastMessage, "test_system_message_is_read"),
    (ReadsTheLastMessage, "test_earlier_turns_are_read"),
    (ReadsTheFirstBlock, "test_blocks_of_text_are_read"),
    (ChangesMessages, "test_messages_stay_as_they_are"),
    (HoldsItsLock, "test_abandoned_stream_leaves_the_model_usable"),
    (SwallowsCancellation, "test_cancelled_task_leaves_the_model_usable"),
    (MixesCallsUp, "test_ten_calls_at_once"),
    (StaysWithItsLoop, "test_model_outlives_an_event_loop"),
    (StreamIsNotAwaited, "test_async_streams_are_awaited_generators"),
    (StreamIsAList, "test_streams_are_generators"),
    (HidesTools, "test_metadata"),
    (NoWindow, "test_metadata"),
    (NoName, "test_metadata_names_the_model"),
    (SharesItsName, "test_class_name_is_its_own"),
    (CopiesDiffer, "test_deepcopy"),
    (LosesItsState, "test_pickle"),
    (NotRequired, "test_tool_required_makes_it_call"),
    (NoIds, "test_tools_in_four_ways"),
    (NoArguments, "test_tools_in_four_ways"),
    (NoArguments, "test_predict_and_call"),
    (NeverAnErrorWithoutCalls, "test_answer_without_a_call"),
    (TwoCalls, "test_one_call_unless_parallel_ones_are_allowed"),
    (ForgetsResults, "test_tool_result_is_read"),
    (NotRequired, "test_function_agent"),
]


# The agent's deprecated attributes, as in the suite: its marks are not read here.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("fault", "test"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
async def test_the_suite_finds_a_fault(fault, test):
    class Suite(LLMSuite):
        llm_class = fault
        llm_params = {"delay": 0.012}  # noqa: RUF012
        supports_tool_choice = True
        agent_calls_tools = True
        slow_prompt = "Tell me slowly about the sea."
        patience = 0.5

    suite = Suite()
    found = getattr(suite, test)
    llm = suite.make_llm()
    given = {"llm": llm, "tool_llm": llm, "streaming": True}

    async def run():
        result = found(**{name: given[name] for name in inspect.signature(found).parameters})
        if inspect.isawaitable(result):
            await result

    with pytest.raises(AssertionError, match="must|allows"):
        await run()
