"""The two prompts of a request, as they come about; what planning writes into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rapid_core.context import Task
from rapid_core.datatypes import Chunk, Message, PromptPair

OnProgress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Plan:
    """The prompts of one request and how they came about.

    task: with the text that several documents make, once it is known which of them are read.
    document_tokens, history_tokens: of what the drafter's passages are chosen from. retrieved: of the
    last of all `retrievals`. bare: the drafter's messages without any passages. again_tokens: of the
    answer, from one retrieval to the next; 0 where the first one is all. no_drafter: why the drafter has no
    prompt although it was asked for, "" where it has one.
    """

    task: Task
    prompts: PromptPair
    document_tokens: int = 0
    history_tokens: int = 0
    retrieved: tuple[Chunk, ...] = ()
    bare: tuple[Message, ...] = ()
    retrievals: int = 0
    again_tokens: int = 0
    left_out: tuple[str, ...] = ()
    no_drafter: str = ""
    retrieval_s: float = 0.0
    notes: list[str] = field(default_factory=list)
