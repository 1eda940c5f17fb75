"""One request: what a caller asks of an engine, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rapid_core.config import Fit, Sampling, Speculation, check_fit
from rapid_core.context import Context, read_context, read_messages
from rapid_core.datatypes import LongContext, LongHistory, Message
from rapid_core.errors import OptionError
from rapid_core.pacing import MOST_LOOKED_UP
from rapid_core.tool_use import Tool, ToolUse

Prompt = str | Sequence[Message]
Progress = Callable[[str, int, int], None]


def _silent(stage: str, done: int, total: int) -> None:
    """Report progress to nobody."""


@dataclass(frozen=True)
class Request:
    """A checked request."""

    messages: tuple[Message, ...]
    context: LongContext | LongHistory | None
    sampling: Sampling
    speculation: Speculation
    fit: Fit
    tools: ToolUse
    progress: Progress

    @classmethod
    def of(
        cls,
        prompt: Prompt,
        context: Context | None,
        sampling: Sampling | None,
        speculation: Speculation | None,
        fit: Fit,
        tools: Sequence[Tool] | ToolUse,
        progress: Progress | None,
    ) -> Request:
        """Check what a caller asks; raises `InputError` and `OptionError`."""
        check_fit(fit)
        for name, value, kind in (("sampling", sampling, Sampling), ("speculation", speculation, Speculation)):
            if value is not None and not isinstance(value, kind):
                raise OptionError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
        if progress is not None and not callable(progress):
            raise OptionError(f"progress must be callable, got {type(progress).__name__}")
        messages = read_messages(prompt)
        given = read_context(context, fit) if context is not None else None
        return cls(
            messages,
            given,
            sampling or Sampling(),
            speculation or Speculation(),
            fit,
            ToolUse.of(tools),
            progress or _silent,
        )

    @property
    def reserve(self) -> int:
        """Tokens to come behind either prompt: the answer, and the drafts of one round."""
        gamma = self.speculation.gamma
        return self.sampling.max_new_tokens + (MOST_LOOKED_UP if gamma == "auto" else gamma) + 1

    @property
    def drafter_may_wait(self) -> bool:
        """Without transfer it may turn out that nobody needs the drafter's drafts, nor its prompt."""
        return self.speculation.gamma == "auto" and not self.speculation.transfers
