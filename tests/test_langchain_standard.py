"""LangChain's own suites, over an engine that does as it is asked and over the demo model."""

from __future__ import annotations

import pytest
from integration_helpers import obedient_engine
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from rapid_integrations.langchain import ChatRapid

ENGINE = obedient_engine()


class TestChatRapidUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self):
        return ChatRapid

    @property
    def chat_model_params(self):
        # By name: making a chat model must load nothing.
        return {"target": "demo"}

    @property
    def init_from_env_params(self):
        names = {"RAPID_TARGET": "demo", "RAPID_DRAFTER": "/models/small"}
        return names, {}, {"target": "demo", "drafter": "/models/small"}

    @pytest.mark.filterwarnings("ignore:The function `load` is in beta")
    @pytest.mark.xfail(raises=ValueError, strict=True, reason="load() knows by itself LangChain's own packages only")
    def test_serdes(self, model, snapshot):
        super().test_serdes(model, snapshot)


class _Suite(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatRapid

    @property
    def supports_json_mode(self):
        return True

    @property
    def supports_anthropic_inputs(self):
        return True

    @property
    def supports_model_override(self):
        return True

    @property
    def enable_vcr_tests(self):
        return True

    @property
    def supported_usage_metadata_details(self):
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream=False):
        chat = self.chat_model_class(**self.chat_model_params)
        chat.invoke("Who lives in Lima?")
        if not stream:
            return chat.invoke("Who lives in Lima?")
        chunks = list(chat.stream("Who lives in Lima?"))
        return sum(chunks[1:], chunks[0])


class TestChatRapidScripted(_Suite):
    @property
    def chat_model_params(self):
        return {"engine": ENGINE}

    @property
    def model_override_value(self):
        return "scripted"


@pytest.mark.xdist_group("demo")
class TestChatRapidDemo(_Suite):
    """The demo model, which is too small to answer as the suite hopes, but must do what it is forced to."""

    @property
    def chat_model_params(self):
        return {"target": "demo", "max_tokens": 48}

    @property
    def model_override_value(self):
        return "demo"

    @pytest.mark.xfail(reason="135M parameters do not call a tool of their own accord", strict=True)
    def test_agent_loop(self, model):
        super().test_agent_loop(model)
