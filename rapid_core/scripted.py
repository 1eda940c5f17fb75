"""A double of the engine that says what it is told, without a model."""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import accumulate
from os import PathLike
from pathlib import Path

from rapid_core.background import iterate_in_thread
from rapid_core.config import Fit, Sampling, Speculation, check_fit
from rapid_core.context import Context, find_place, read_context, read_messages
from rapid_core.datatypes import (
    Chunk,
    Delta,
    FinishReason,
    LongContext,
    LongHistory,
    Message,
    Result,
    SharedVocabulary,
    Stats,
    TokenEvent,
    ToolCall,
    Usage,
)
from rapid_core.errors import EngineStateError, OptionError, PromptTooLongError, SavedDocumentError
from rapid_core.several_documents import joined
from rapid_core.tool_format import ToolFormat
from rapid_core.tool_parsing import new_id, read_calls
from rapid_core.tool_use import Tool, ToolUse


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that a scripted engine was asked."""

    messages: tuple[Message, ...]
    context: LongContext | LongHistory | None
    sampling: Sampling
    speculation: Speculation
    tools: ToolUse


Answer = str | ToolCall | Sequence[ToolCall]


class ScriptedEngine:
    """An engine that says what it is told, with the methods of `RapidEngine` that answer and without a model.

    answers: given in turn, the last one again and again; a callable is asked with the request;
    an exception is raised. An answer is text, in which tool calls in <tool_call> tags are found
    where there are tools, or the calls themselves. `requests` keeps what was asked. Each word is
    a token. delay_s: seconds a token. name: of the model. tools_in_template: what the property of
    the real engine says.
    """

    def __init__(
        self,
        answers: Sequence[Answer | Exception] | Callable[[Asked], Answer],
        *,
        window: int = 8192,
        delay_s: float = 0.0,
        name: str = "scripted",
        tools_in_template: bool = True,
    ) -> None:
        if not callable(answers) and not answers:
            raise OptionError("a scripted engine needs at least one answer, got none")
        self._answers = answers
        self.window = window
        self.names = (name, name)
        self.shared_vocabulary = SharedVocabulary(1, 1, 1)
        self.tools_in_template = tools_in_template
        self._delay_s = delay_s
        self.requests: list[Asked] = []
        self._lock = threading.Lock()
        self.closed = False

    def count_tokens(self, prompt: str | Sequence[Message], *, tools: Sequence[Tool] | ToolUse = ()) -> int:  # noqa: ARG002
        """Words of a text, or of all messages."""
        return len(self.token_ids(prompt if isinstance(prompt, str) else _contents(prompt)))

    def token_ids(self, text: str) -> tuple[int, ...]:
        """A number for each word of `text`, the same for the same word."""
        return tuple(zlib.crc32(word.encode()) for word in text.split())

    def generate(
        self,
        prompt: str | Sequence[Message],
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Result:
        """The next answer, whole."""
        return Result.of(
            self.stream(
                prompt,
                context=context,
                sampling=sampling,
                speculation=speculation,
                fit=fit,
                tools=tools,
                progress=progress,
            )
        )

    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Generator[Delta]:
        """The next answer, word by word."""
        asked, prompt_tokens = self._asked(prompt, context, sampling, speculation, fit, tools)
        with self._lock:
            self.requests.append(asked)
            number = len(self.requests)
        return self._say(asked, number, prompt_tokens, progress)

    def prefill(
        self,
        prompt: str | Sequence[Message],
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Stats:
        """Nothing to read: the checks of a request alone."""
        asked, _ = self._asked(prompt, context, sampling, speculation, fit, tools)
        if progress is not None:
            progress("prefill", 0, 0)
        return Stats(context_tokens=self.count_tokens(_document(asked)))

    def log_likelihoods(
        self,
        prompt: str | Sequence[Message],
        answers: Sequence[str],
        *,
        context: Context | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
    ) -> tuple[float, ...]:
        """One nat less for each word of an answer, as if all words were alike."""
        self._asked(prompt, context, None, speculation, fit, ())
        return tuple(-float(self.count_tokens(answer)) for answer in answers)

    def retrieve(
        self,
        prompt: str | Sequence[Message],
        *,
        context: Context | None = None,
        tokens: int | None = None,
        threshold: float | None = None,  # noqa: ARG002 - it searches for nothing
    ) -> tuple[Chunk, ...]:
        """The first paragraphs of the document, of up to `tokens` words, or its first one."""
        asked, _ = self._asked(prompt, context, None, None, "error", ())
        paragraphs = [text for text in _document(asked).split("\n\n") if text.strip()]
        if tokens is None:
            return tuple(map(Chunk, paragraphs[:1]))
        lengths = accumulate(map(self.count_tokens, paragraphs))
        return tuple(Chunk(text) for text, length in zip(paragraphs, lengths, strict=True) if length <= tokens)

    def first_and_last(self, text: str, tokens: int) -> str:
        """`text` without its middle words, so that `tokens` are left."""
        words = text.split()
        if len(words) <= tokens:
            return text
        head = tokens // 2
        return f"{' '.join(words[:head])}\n\n{' '.join(words[len(words) - (tokens - head) :])}"

    def _asked(
        self,
        prompt: str | Sequence[Message],
        context: Context | None,
        sampling: Sampling | None,
        speculation: Speculation | None,
        fit: Fit,
        tools: Sequence[Tool] | ToolUse,
    ) -> tuple[Asked, int]:
        """A checked request, and the words of its prompt."""
        if self.closed:
            raise EngineStateError("a closed engine cannot answer; make another one")
        check_fit(fit)
        messages = read_messages(prompt)
        given = read_context(context, fit) if context is not None else None
        if isinstance(given, LongContext) and given.place:
            find_place(messages, given.place)
        asked = Asked(messages, given, sampling or Sampling(), speculation or Speculation(), ToolUse.of(tools))
        prompt_tokens = self.count_tokens(messages)
        prompt_tokens += self.count_tokens(_document(asked))
        if prompt_tokens >= self.window:
            raise PromptTooLongError(
                f"a prompt must be shorter than the window of {self.window:,} tokens, and this one has "
                f"{prompt_tokens:,}; shorten it",
                prompt_tokens=prompt_tokens,
                window=self.window,
            )
        return asked, prompt_tokens

    async def agenerate(
        self,
        prompt: str | Sequence[Message],
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Result:
        """`generate` for an event loop."""
        stream = self.astream(
            prompt,
            context=context,
            sampling=sampling,
            speculation=speculation,
            fit=fit,
            tools=tools,
            progress=progress,
        )
        return Result.of([delta async for delta in stream])

    async def astream(
        self,
        prompt: str | Sequence[Message],
        *,
        context: Context | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        fit: Fit = "error",
        tools: Sequence[Tool] | ToolUse = (),
        progress: Callable[[str, int, int], None] | None = None,
    ) -> AsyncGenerator[Delta]:
        """`stream` for an event loop."""
        stream = self.stream(
            prompt,
            context=context,
            sampling=sampling,
            speculation=speculation,
            fit=fit,
            tools=tools,
            progress=progress,
        )
        async with aclosing(iterate_in_thread(lambda _: stream)) as deltas:
            async for delta in deltas:
                yield delta

    def warm_up(self) -> None:
        """Nothing to load."""

    def save_document(self, path: str | PathLike[str]) -> None:
        """Write the text of the last request's document to `path`."""
        document = self.requests[-1].context if self.requests else None
        if not isinstance(document, LongContext):
            raise EngineStateError("save_document saves the document of the last request, and there was none")
        Path(path).write_bytes((joined(document.documents, document.separator) or document.text).encode())

    def load_document(self, path: str | PathLike[str]) -> LongContext:
        """The document that `save_document` wrote."""
        if not Path(path).is_file():
            raise SavedDocumentError(f"a saved document must be a file, and {str(path)!r} is none; check the path")
        return LongContext(Path(path).read_bytes().decode())

    def close(self) -> None:
        """Note that it was closed; what is asked from now on is an error."""
        self.closed = True

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, asked: Asked, number: int) -> Answer:
        if callable(self._answers):
            return self._answers(asked)
        answer = self._answers[min(number, len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _say(
        self, asked: Asked, number: int, prompt_tokens: int, progress: Callable[[str, int, int], None] | None
    ) -> Generator[Delta]:
        if progress is not None:
            progress("prefill", 0, 0)
        answer = self._answer(asked, number)
        calls: tuple[ToolCall, ...] = ()
        if not isinstance(answer, str):
            calls = (answer,) if isinstance(answer, ToolCall) else tuple(answer)
            calls, answer = tuple(call if call.id else replace(call, id=new_id()) for call in calls), ""
        elif asked.tools.shown:
            answer, calls = read_calls(answer, ToolFormat())
        ends = [at for stop in asked.sampling.stop_strings if (at := answer.find(stop)) >= 0]
        # Every word with the white space before it, and what white space is left at the end.
        words = re.findall(r"\s*\S+|\s+$", answer[: min(ends, default=len(answer))])
        said = words[: asked.sampling.max_new_tokens]
        for position, word in enumerate(said):
            time.sleep(self._delay_s)
            yield Delta(word, (TokenEvent(position, False, position),))
        reason: FinishReason = "stop" if len(said) == len(words) else "length"
        yield Delta("", (), reason, Usage(prompt_tokens, len(said)), Stats(rounds=len(said)), calls)


def _document(asked: Asked) -> str:
    """The text of the context, empty where it is none."""
    given = asked.context
    return (given.text or joined(given.documents, given.separator)) if isinstance(given, LongContext) else ""


def _contents(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)
