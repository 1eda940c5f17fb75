"""What a subclass of the suite says about its model."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.llms import LLM


class SuiteProperties:
    """The model, and what it has; a subclass overrides what differs."""

    @property
    def llm_class(self) -> type[LLM]:
        """The class under test; must be given."""
        raise NotImplementedError(f"{type(self).__name__} must have the property llm_class")

    @property
    def llm_params(self) -> dict[str, Any]:
        """What the class is constructed with."""
        return {}

    # What the model has.

    @property
    def supports_tools(self) -> bool:
        """Whether it calls functions; if not, its metadata must say so."""
        return "FunctionCallingLLM" in {base.__name__ for base in self.llm_class.__mro__}

    @property
    def supports_tool_choice(self) -> bool:
        """Whether `tool_required=True` makes it call a tool, whatever the question."""
        return False

    @property
    def agent_calls_tools(self) -> bool:
        """Whether it calls a tool of its own accord where the question asks for it."""
        return False

    @property
    def supports_structured_output(self) -> bool:
        """Whether `structured_predict` always gives an object of the class."""
        return self.supports_tool_choice

    @property
    def supports_structured_streaming(self) -> bool:
        """Whether `stream_structured_predict` always ends with an object of the class."""
        return self.supports_structured_output

    @property
    def supports_images(self) -> bool:
        """Whether it reads images; if not, an image must be an error."""
        return False

    @property
    def supports_stop(self) -> bool:
        """Whether a call takes stop strings, as the keyword `stop_word`."""
        return True

    @property
    def limits_tokens(self) -> bool:
        """Whether a call takes a limit of new tokens, as the keyword `limit_word`."""
        return True

    @property
    def rejects_unknown_words(self) -> bool:
        """Whether a keyword that it does not know is an error."""
        return True

    @property
    def reports_usage(self) -> bool:
        """Whether answers count their tokens in `raw`; if not, there must be no counts."""
        return True

    @property
    def is_deterministic(self) -> bool:
        """Whether the same question has the same answer."""
        return True

    # What it is asked.

    @property
    def stop_word(self) -> str:
        """The keyword of a list of stop strings."""
        return "stop"

    @property
    def limit_word(self) -> str:
        """The keyword of the limit of new tokens."""
        return "max_tokens"

    @property
    def prompt(self) -> str:
        """A question whose answer has at least eight characters and does not repeat it."""
        return "Say in one short sentence what the weather is like at sea."

    @property
    def slow_prompt(self) -> str | None:
        """A question whose answer takes at least a tenth of a second; without one, event loops are not tested."""
        return None

    @property
    def tool_prompt(self) -> str:
        """A question that the tool `add(a: int, b: int)` answers."""
        return "What is 3 plus 4? Use the tool add."

    @property
    def calls_for_long_node(self) -> int | None:
        """How many calls a query over one node of 20,000 words may cost; None where that is not fixed."""
        return None

    @property
    def patience(self) -> float:
        """Seconds that an answer may take where a model might hang."""
        return 60.0

    @pytest.fixture
    def llm(self) -> LLM:
        """The model of one test."""
        return self.make_llm()

    def make_llm(self) -> LLM:
        """A new model."""
        return self.llm_class(**self.llm_params)

    def needs(self, *names: str) -> None:
        """Skip a test unless the model has all that is named."""
        for name in names:
            value = getattr(self, name)
            if value is None or value is False:
                pytest.skip(f"{name} is {value}")
