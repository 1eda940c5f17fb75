"""The two prompts of a request, as they come about; what planning writes into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rapid_core.context import Task
from rapid_core.datatypes import Chunk, PromptPair

OnProgress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Plan:
    """The prompts of one request and how they came about.

    task: with the text that several documents make, once it is known which of them are read.
    """

    task: Task
    prompts: PromptPair
    context_tokens: int = 0
    retrieved: tuple[Chunk, ...] = ()
    left_out: tuple[str, ...] = ()
    retrieval_s: float = 0.0
    notes: list[str] = field(default_factory=list)
