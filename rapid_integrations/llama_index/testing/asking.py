"""Asking a model in each of its eight ways, and judging what comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, TypeVar

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.callbacks.token_counting import get_tokens_from_response
from llama_index.core.llms import LLM

T = TypeVar("T")

Response = ChatResponse | CompletionResponse

WHOLE = ("chat", "complete")
STREAMED = ("stream_chat", "stream_complete")
SYNC = WHOLE + STREAMED
ASYNC = tuple(f"a{name}" for name in SYNC)


def user(text: str) -> ChatMessage:
    """A message of the user."""
    return ChatMessage(role="user", content=text)


def argument(method: str, prompt: str) -> str | list[ChatMessage]:
    """The prompt as the method takes it."""
    return prompt if "complete" in method else [user(prompt)]


def read(llm: LLM, method: str, prompt: str, **words: Any) -> list[Response]:
    """What one of the four methods says: the items of a stream, or one whole answer."""
    result = getattr(llm, method)(argument(method, prompt), **words)
    return list(result) if isinstance(result, Generator) else [result]


async def aread(llm: LLM, method: str, prompt: str, **words: Any) -> list[Response]:
    """`read` for the four async methods."""
    result = await getattr(llm, method)(argument(method, prompt), **words)
    return [item async for item in result] if isinstance(result, AsyncGenerator) else [result]


def text_of(response: Response) -> str:
    """The text so far."""
    return response.text if isinstance(response, CompletionResponse) else response.message.content or ""


def usage_of(response: Response) -> tuple[int, int]:
    """Tokens of the prompt and of the answer, as LlamaIndex's own counter reads them; zeros where there are none."""
    return get_tokens_from_response(response)


class Refused:
    """A block that must raise an error that says something; `rule` is the message where it does not."""

    def __init__(self, rule: str) -> None:
        self._rule = rule

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert error is not None, self._rule
        assert str(error).strip(), f"an error must say what is wrong, got {error!r}"
        return isinstance(error, Exception)


def within(seconds: float, rule: str, work: Callable[[], T]) -> T:
    """What `work` gives, in a thread of its own, where it might hang."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is asked for
            outcome.set_exception(error)

    # A daemon, so that a model that hangs does not keep the tests from ending.
    threading.Thread(target=run, daemon=True).start()
    done, _ = wait([outcome], seconds)
    assert done, f"{rule}, got no answer within {seconds:g} s"
    return outcome.result()


async def awithin(seconds: float, rule: str, work: Awaitable[T]) -> T:
    """`within` for an event loop."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
        raise AssertionError(f"{rule}, got no answer within {seconds:g} s")
    return task.result()
