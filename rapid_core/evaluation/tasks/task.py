"""What a task is, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rapid_core.errors import OptionError
from rapid_core.evaluation.judge import Judge
from rapid_core.evaluation.records import Question


class Task(Protocol):
    """Questions, and what an answer to one of them is worth.

    metrics: what each metric is called in the report, the main one first. notes: sentences about
    all that is left out.
    """

    name: str
    metrics: Mapping[str, str]
    notes: list[str]

    def questions(self) -> Sequence[Question]:
        """All that are asked: those of one document together, always in the same order."""

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:
        """0 to 1 by the name of the metric; one that does not apply, or has no likelihoods, is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """Where the data is, and which of the questions are asked. Raises `OptionError` for values that break their rule.

    data: a folder of data files, a file of a benchmark, or the name of its dataset on the hub. skip_bad:
    lines that cannot be used are left out with a note. limit: most questions of each task, spread over
    its documents. documents: most documents of each task. max_document_tokens: longer documents are
    left out, as `count_tokens` counts. cut_middle: leaves about so many tokens of a text, without its
    middle, as benchmarks want it. seed: draws which are taken where not all are. judge: of answers that
    have no one right form. chain_of_thought: tasks are asked as those of their name with "-cot".
    """

    data: Path | None = None
    skip_bad: bool = False
    limit: int | None = None
    documents: int | None = None
    max_document_tokens: int | None = None
    count_tokens: Callable[[str], int] | None = None
    cut_middle: Callable[[str, int], str] | None = None
    seed: int = 0
    judge: Judge | None = None
    chain_of_thought: bool = False

    def __post_init__(self) -> None:
        for name in ("limit", "documents", "max_document_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} must be at least 1, got {value}; leave it out to take all")
        if self.max_document_tokens is not None and self.count_tokens is None:
            raise OptionError(
                f"max_document_tokens needs count_tokens to count with, got {self.max_document_tokens} and None; "
                "give the count of the target's tokenizer"
            )
