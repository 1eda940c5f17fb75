"""`LLMSuite`: tests that run against any LlamaIndex `LLM`.

    from rapid_integrations.llama_index.testing import LLMSuite

    class TestMyLLM(LLMSuite):
        @property
        def llm_class(self):
            return MyLLM

        @property
        def llm_params(self):
            return {"model": "my-model", "temperature": 0}

The other properties say what the model has (`SuiteProperties` lists them): a test of what it has
not is skipped with the property's name. A test that cannot pass is overridden with
`@pytest.mark.xfail(reason=...)`, and nothing else may be overridden. Needs pytest and
pytest-asyncio, in either of its modes; the tests over a vector store need chromadb and
llama-index-vector-stores-chroma. Nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

from rapid_integrations.llama_index.testing.answers import AnswerTests
from rapid_integrations.llama_index.testing.events import EventTests
from rapid_integrations.llama_index.testing.loops import LoopTests
from rapid_integrations.llama_index.testing.messages import MessageTests
from rapid_integrations.llama_index.testing.stores import StoreTests
from rapid_integrations.llama_index.testing.streams import StreamTests
from rapid_integrations.llama_index.testing.structured import StructuredTests
from rapid_integrations.llama_index.testing.tools import ToolTests

__all__ = ["LLMSuite"]


class LLMSuite(AnswerTests, MessageTests, StreamTests, EventTests, LoopTests, ToolTests, StructuredTests, StoreTests):
    """All tests for one model: give `llm_class`, `llm_params` and what the model has."""

    def test_nothing_is_overridden_without_a_reason(self) -> None:
        """A test of the suite is overridden with `@pytest.mark.xfail(reason=...)` only."""
        changed = [
            name
            for name in dir(LLMSuite)
            if name.startswith("test_") and getattr(type(self), name, None) is not getattr(LLMSuite, name)
        ]
        silent = [name for name in changed if not _has_reason(getattr(type(self), name, None))]
        assert not silent, f"a test is overridden with @pytest.mark.xfail(reason=...) only, got without: {silent}"


def _has_reason(test: Any) -> bool:
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in getattr(test, "pytestmark", ()))
