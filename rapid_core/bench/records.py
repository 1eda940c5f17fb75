"""What one run gave, in the same terms for every method."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer and its times, seconds from the request.

    first_burst: tokens that came together first, at `first_token_s`: the first step's. total_s:
    the end of the last step. rounds: target steps. drafted, accepted: None where nobody drafts.
    transferred: tokens whose choice had the drafter's transfer.
    """

    ids: tuple[int, ...]
    first_burst: int
    first_token_s: float
    total_s: float
    rounds: int
    drafted: int | None = None
    accepted: int | None = None
    transferred: int = 0
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens behind the first burst over the time since it came; None where nothing came behind.

        One rule for all: what a method does before its first token, prefill and its first draft
        above all, is no part of its decoding speed, and neither are the tokens that this brought.
        """
        later = len(self.ids) - self.first_burst
        return later / (self.total_s - self.first_token_s) if later else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One answer in its place: which length, prompt, repeat and method."""

    length: int
    kind: str
    prompt: int
    repeat: int
    method: str
    prompt_tokens: int
    answer: Answer

    @property
    def request(self) -> tuple[int, str, int]:
        """What the answer depends on, the method apart."""
        return self.length, self.kind, self.prompt


@dataclass(slots=True)
class Memory:
    """Bytes of one cold request. beyond: the peak less the weights and what the caches hold."""

    weights: int
    caches: int
    beyond: int


@dataclass(slots=True)
class FirstToken:
    """Seconds to the first token, and what they went into where the engine tells."""

    seconds: float
    retrieval_s: float | None = None
    prefill_s: float | None = None
    draft_prefill_s: float | None = None
    cached_tokens: int = 0


@dataclass(slots=True)
class LengthFigures:
    """What is measured once a length; what an interrupted run did not come to is missing.

    cold, warm: ours, with nothing cached and for a second question about the document.
    cold_generate: transformers'. forward_s: seconds of one target forward by its tokens.
    other_share: by method, the part of decoding that is spent outside the two models.
    """

    prompt_tokens: int = 0
    cold: FirstToken | None = None
    warm: FirstToken | None = None
    cold_generate: FirstToken | None = None
    memory: Memory | None = None
    memory_generate: Memory | None = None
    forward_s: dict[int, float] = field(default_factory=dict)
    other_share: dict[str, float] = field(default_factory=dict)
