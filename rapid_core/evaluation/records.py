"""The records of an evaluation: what is asked, by which setting, what was answered, and what that took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rapid_core.datatypes import LongContext, LongHistory, Message


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondCall:
    """How chain of thought asks for the answer alone: in one message, without the document.

    before, after: what stands on either side of the reasoning.
    """

    before: str
    after: str
    max_new_tokens: int = 128

    def message(self, reasoning: str) -> Message:
        """What is asked behind `reasoning`."""
        return Message("user", f"{self.before}{reasoning}{self.after}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question of a task, ready for an engine.

    id: unique in a run. document: what `context` or a history is called; questions that share it
    share what is read, and stand together. messages: the question, behind a history where that is
    the context. references: gold answers or reference texts. choices: of a multiple-choice
    question, whose right one is `choices[right]`. evidence: characters of the context in which the
    answer stands, where that is known. groups: what the results are told apart by, "easy" or
    "short". second: for chain of thought, whose first answer is the reasoning.
    """

    id: str
    task: str
    document: str
    messages: tuple[Message, ...]
    context: LongContext | LongHistory | None
    references: tuple[str, ...]
    source: str = ""
    choices: tuple[str, ...] = ()
    right: int | None = None
    evidence: tuple[int, int] | None = None
    groups: tuple[str, ...] = ()
    max_new_tokens: int = 32
    temperature: float = 0.0
    second: SecondCall | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A method with its options: what is compared.

    None is what a method has no use for, or leaves to the engine. retrieved_tokens: of passages,
    None for the engine's own budget. context_tokens: of the document, None for all of it.
    unrelated: the drafter reads passages of another document.
    """

    method: str
    eta: float | Literal["auto"] | None = None
    gamma: int | Literal["auto"] | None = None
    retrieved_tokens: int | None = None
    context_tokens: int | None = None
    unrelated: bool = False

    @property
    def label(self) -> str:
        """What a reader calls it: "rapid, eta 10, 1,024 retrieved"."""
        parts = [self.method]
        if self.eta is not None:
            parts.append(f"eta {self.eta if isinstance(self.eta, str) else f'{self.eta:g}'}")
        if self.gamma is not None:
            parts.append(f"gamma {self.gamma}")
        if self.retrieved_tokens is not None:
            parts.append(f"{self.retrieved_tokens:,} retrieved")
        if self.context_tokens is not None:
            parts.append(f"{self.context_tokens:,} in context")
        if self.unrelated:
            parts.append("unrelated passages")
        return ", ".join(parts)

    def as_object(self) -> dict[str, Any]:
        """For JSON; `Setting(**object)` reads it again."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a setting answered to a question: nothing in it depends on a clock.

    asked: the message that asks, without the document or a history. references: as of the question. text: the
    answer, of chain of thought the second one, whose `reasoning` is the first. tokens: generated ones of
    both. likelihoods: of a multiple-choice question the log-likelihood of each option, in nats. eta: as it
    was chosen where "auto" was asked for. scores: 0 to 1 by the name of the metric. error: why there is no
    answer, "" for all others: the prompt did not fit, say.
    """

    question: str
    task: str
    document: str
    source: str
    groups: tuple[str, ...]
    setting: Setting
    text: str
    asked: str = ""
    references: tuple[str, ...] = ()
    reasoning: str = ""
    finish_reason: str = "stop"
    tokens: int = 0
    prompt_tokens: int = 0
    drafter_prompt_tokens: int = 0
    likelihoods: tuple[float, ...] | None = None
    eta: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What an answer took; seconds of wall clock, counts of tokens.

    prefill_s: reading of the target's whole prompt, the document included, and draft_prefill_s of the
    drafter's: measured once a question, and the same for all settings that read it. What a cache held
    has the seconds that it took when it was read. decode_s: first token to last. Rounds, drafted and
    accepted as in `Stats`.
    """

    question: str
    setting: Setting
    retrieval_s: float = 0.0
    prefill_s: float = 0.0
    draft_prefill_s: float = 0.0
    decode_s: float = 0.0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
