"""Watching what a model reports: callbacks and instrumentation events."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from llama_index.core.callbacks import CallbackManager, CBEventType
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.instrumentation.events.llm import LLMChatStartEvent, LLMCompletionStartEvent
from llama_index.core.llms import LLM
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.event_handlers.base import BaseEventHandler
from pydantic import Field


class CallRecorder(BaseCallbackHandler):
    """Keeps the payloads of the LLM calls that callbacks report."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.starts: list[dict[str, Any]] = []
        self.ends: list[dict[str, Any]] = []

    @classmethod
    def of(cls, llm: LLM) -> CallRecorder:
        """A recorder of the model's calls."""
        recorder = cls()
        llm.callback_manager = CallbackManager([recorder])
        return recorder

    def on_event_start(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",
        parent_id: str = "",  # noqa: ARG002 - the base class's signature
        **_: Any,
    ) -> str:
        if event_type is CBEventType.LLM:
            self.starts.append(payload or {})
        return event_id

    def on_event_end(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",  # noqa: ARG002
        **_: Any,
    ) -> None:
        if event_type is CBEventType.LLM:
            self.ends.append(payload or {})

    def start_trace(self, trace_id: str | None = None) -> None:
        """Traces are not kept."""

    def end_trace(self, trace_id: str | None = None, trace_map: dict[str, list[str]] | None = None) -> None:
        """Traces are not kept."""


class Calls(BaseEventHandler):
    """Keeps the chat and completion events that instrumentation fires."""

    events: list[BaseEvent] = Field(default_factory=list)

    def handle(self, event: BaseEvent, **_: Any) -> None:
        if type(event).__name__.startswith(("LLMChat", "LLMCompletion")):
            self.events.append(event)

    @property
    def names(self) -> list[str]:
        """The events' classes, in order."""
        return [type(event).__name__ for event in self.events]

    @property
    def prompts(self) -> list[str]:
        """What each call read, as text."""
        prompts = []
        for event in self.events:
            if isinstance(event, LLMChatStartEvent):
                prompts.append("\n".join(str(message) for message in event.messages))
            elif isinstance(event, LLMCompletionStartEvent):
                prompts.append(event.prompt)
        return prompts


@contextmanager
def watched() -> Generator[Calls]:
    """The calls of any model in the block: engines put callback managers of their own into models."""
    calls, root = Calls(), get_dispatcher()
    root.add_event_handler(calls)
    try:
        yield calls
    finally:
        root.event_handlers.remove(calls)
