"""The suite for LlamaIndex models, over a correct double and over LlamaIndex's mocks."""

from __future__ import annotations

import pytest
from llama_index.core.llms.mock import MockFunctionCallingLLM, MockLLM
from word_llm import WordLLM

from rapid_integrations.llama_index.testing import LLMSuite


class TestWordLLM(LLMSuite):
    """Nothing is skipped: the double has all that the suite asks for."""

    supports_tool_choice = True
    agent_calls_tools = True
    slow_prompt = "Tell me slowly about the sea."
    calls_for_long_node = 1

    @property
    def llm_class(self):
        return WordLLM

    @property
    def llm_params(self):
        return {"delay": 0.012}


class _Mock(LLMSuite):
    """What LlamaIndex's mocks lack, with the reasons."""

    reports_usage = False
    supports_stop = False
    limits_tokens = False
    rejects_unknown_words = False

    @pytest.mark.xfail(reason="it reads an empty list as an empty prompt", strict=True)
    def test_no_messages_are_an_error(self, llm):
        super().test_no_messages_are_an_error(llm)

    @pytest.mark.xfail(reason="images are dropped", strict=True)
    def test_image_is_not_dropped(self, llm):
        super().test_image_is_not_dropped(llm)

    @pytest.mark.xfail(reason="it has no model's name", strict=True)
    def test_metadata_names_the_model(self, llm):
        super().test_metadata_names_the_model(llm)


class TestMockLLM(_Mock):
    @property
    def llm_class(self):
        return MockLLM

    @property
    def llm_params(self):
        return {"max_tokens": 8}

    @pytest.mark.xfail(reason="the last text of a stream lacks the last word", strict=True)
    def test_items_are_cumulative(self, llm):
        super().test_items_are_cumulative(llm)

    @pytest.mark.xfail(reason="the last text of a stream lacks the last word", strict=True)
    async def test_async_items_are_cumulative(self, llm):
        await super().test_async_items_are_cumulative(llm)

    @pytest.mark.xfail(reason="the last text of a stream lacks the last word", strict=True)
    async def test_eight_methods_agree(self, llm):
        await super().test_eight_methods_agree(llm)

    @pytest.mark.xfail(reason="chat and acomplete call complete, whose callbacks come on top", strict=True)
    def test_callbacks_fire_once(self, llm):
        super().test_callbacks_fire_once(llm)

    @pytest.mark.xfail(reason="chat and acomplete call complete, whose callbacks come on top", strict=True)
    async def test_async_callbacks_fire_once(self, llm):
        await super().test_async_callbacks_fire_once(llm)

    @pytest.mark.xfail(reason="chat and acomplete call complete, whose events come on top", strict=True)
    def test_events_fire_once(self, llm):
        super().test_events_fire_once(llm)

    @pytest.mark.xfail(reason="chat and acomplete call complete, whose events come on top", strict=True)
    async def test_async_events_fire_once(self, llm):
        await super().test_async_events_fire_once(llm)


class TestMockFunctionCallingLLM(_Mock):
    @property
    def llm_class(self):
        return MockFunctionCallingLLM

    @pytest.mark.xfail(reason="it has a function among its fields", strict=True)
    def test_to_dict(self, llm):
        super().test_to_dict(llm)

    @pytest.mark.xfail(reason="its answer is the prompt", strict=True)
    def test_answers_are_new_text_only(self, llm):
        super().test_answers_are_new_text_only(llm)

    @pytest.mark.xfail(reason="error_on_no_tool_call is not read", strict=True)
    def test_answer_without_a_call(self, tool_llm):
        super().test_answer_without_a_call(tool_llm)

    @pytest.mark.xfail(reason="achat calls chat, whose callbacks come on top", strict=True)
    async def test_async_callbacks_fire_once(self, llm):
        await super().test_async_callbacks_fire_once(llm)

    @pytest.mark.xfail(reason="achat calls chat, whose events come on top", strict=True)
    async def test_async_events_fire_once(self, llm):
        await super().test_async_events_fire_once(llm)


def test_a_test_that_is_switched_off_in_silence_is_found():
    class Suite(TestWordLLM):
        test_usage = None

    with pytest.raises(AssertionError, match="test_usage"):
        Suite().test_nothing_is_overridden_without_a_reason()


def test_what_is_not_there_is_skipped_by_name():
    class Suite(TestWordLLM):
        supports_stop = False

    suite = Suite()
    with pytest.raises(pytest.skip.Exception, match="supports_stop is False"):
        suite.test_stop_cuts_answers(suite.make_llm())


def test_counts_that_are_denied_are_found():
    class Suite(TestWordLLM):
        reports_usage = False

    suite = Suite()
    with pytest.raises(AssertionError, match="reports_usage must be True"):
        suite.test_usage(suite.make_llm())
