"""The suite for LlamaIndex models over RapidLLM: an engine that is told what to say, a real one, the demo model."""

from __future__ import annotations

import pytest
from integration_helpers import obedient

from rapid_core import ToolCall
from rapid_core.testing import ScriptedEngine, tiny_engine
from rapid_integrations.llama_index import RapidLLM
from rapid_integrations.llama_index.testing import LLMSuite


def willing(asked):
    """Does as it is asked, and says a sentence that repeats nothing of the question."""
    answer = obedient(asked)
    return answer if isinstance(answer, ToolCall) or asked.sampling.constraint else SENTENCE


SENTENCE = "Every answer of this engine consists of these same twelve words exactly."


class _Suite(LLMSuite):
    supports_tool_choice = True
    calls_for_long_node = 1

    @property
    def llm_class(self):
        return RapidLLM


class TestRapidLLMScripted(_Suite):
    agent_calls_tools = True
    slow_prompt = "Tell me slowly about the sea."

    @property
    def llm_params(self):
        return {"engine": ScriptedEngine(willing, window=60_000, delay_s=0.012)}


class TestRapidLLMReal(_Suite):
    """Random weights, which must do what they are forced to and count what they read."""

    # What they have more to say to than to most.
    prompt = "Describe a ship."
    calls_for_long_node = None
    slow_prompt = "Tell me slowly about the sea."

    @pytest.fixture(autouse=True)
    def engine(self):
        with tiny_engine(window=16384) as made:
            self.made = made
            yield

    @property
    def llm_params(self):
        return {"engine": self.made, "max_tokens": 200, "function_calling": True}


@pytest.mark.xdist_group("demo")
class TestRapidLLMDemo(_Suite):
    """The demo model, whose template has no tools: they are described to it."""

    # Its answer to this one is short.
    prompt = "What is 2 plus 2?"
    calls_for_long_node = None
    slow_prompt = "Tell me slowly about the sea."

    @property
    def llm_params(self):
        return {"target": "demo", "max_tokens": 48, "function_calling": True}
