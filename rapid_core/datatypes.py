"""The frozen records that cross the steps, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rapid_core.errors import EngineStateError

if TYPE_CHECKING:
    import torch

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "cancelled"]
# Who proposes the tokens of a round. A drafter's tokens follow its own distribution, also where
# it took them from a lookup; a lookup's go straight to the target.
DraftSource = Literal["nobody", "lookup", "drafter"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model asks a tool to do.

    `arguments` is JSON text; where the model wrote something else, it is that, and `error` says
    why it is of no use.
    """

    name: str
    arguments: str = "{}"
    id: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    `tool_calls` are what an assistant asked for; a message of role "tool" answers the one whose
    id is `tool_call_id`. `name` is that of the tool, or of a speaker, for templates that show it.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage of the document, or of a history.

    `start` and `end` are character offsets into the document, of several documents into the text
    that the target reads of them; -1 where they are not known, and always in a history.
    `score` is the cosine similarity to the question, NaN where nobody measured it.
    """

    text: str
    start: int = -1
    end: int = -1
    score: float = float("nan")


@dataclass(frozen=True, slots=True)
class Document:
    """One of several documents; without a `name` its first words name it.

    heading: whether the name stands before it in the prompt. position: documents stand in the prompt
    in the order of their positions, and of one position in that of names and texts; it says
    nothing about which of them fit.
    """

    text: str
    name: str = ""
    heading: bool = True
    position: int = 0


@dataclass(frozen=True, slots=True)
class LongContext:
    """The document that the target reads whole, and what the drafter reads of it.

    Either `text`, or `documents`, the best-ranked first: the target reads as many of them, whole,
    as its window takes, and `Stats.left_out` names the rest. With `chunks` given they are used as
    they are, in their order, and no index is built; an empty tuple says that retrieval found
    nothing. ranking: indices of the chunks, best first: where the drafter's window does not hold
    all of them, the last ones are left out with a note; without it that is an error. Without chunks,
    passages are retrieved on the fly: for `query`, or for the last user message
    where that is empty. place: a text that stands in the messages where the document belongs,
    once; without one it is put before the first user message. separator: between documents and
    between passages. history: how the messages beside the document are read, all of them by the
    target; None: as a `LongHistory()` where they are long all together, and else whole. The message
    with the document is always read. Where retrieval finds nothing in one of the two, the drafter
    reads what it finds in the other.
    """

    text: str = ""
    chunks: tuple[Chunk, ...] | None = None
    query: str = ""
    documents: tuple[Document, ...] = ()
    place: str = ""
    separator: str = "\n\n"
    history: LongHistory | None = None
    ranking: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LongHistory:
    """Messages that are long all together: the target reads all of them, the drafter a part.

    It reads the system messages, of the older messages what retrieval finds for the last user
    message, and the `newest` turns as they are, from a user message to the next: with their tool
    calls, of many the last ones. A call and its results stay together everywhere, and a result
    that is long by itself is read in passages.
    rank: called with the query and all passages, returns the indices of passages, best first;
    what it leaves out is not read, and what it raises reaches the caller. With
    `Retrieval.again_tokens` it is called again, with the end of the answer so far behind the query.
    None: the engine's own encoder.
    """

    newest: int = 2
    rank: Callable[[str, Sequence[str]], Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """How much of their vocabularies target and drafter have in common; counts of tokens."""

    target_tokens: int
    drafter_tokens: int
    shared: int

    @property
    def is_whole(self) -> bool:
        """Whether each token of either side is one of the other."""
        return self.target_tokens == self.drafter_tokens == self.shared

    @property
    def of_target(self) -> float:
        """The shared part of the target's tokens."""
        return self.shared / self.target_tokens

    @property
    def of_drafter(self) -> float:
        """The shared part of the drafter's tokens: the others it cannot draft."""
        return self.shared / self.drafter_tokens

    def __str__(self) -> str:
        return (
            f"{self.shared:,} tokens are shared, {self.of_target:.1%} of the target's {self.target_tokens:,} and "
            f"{self.of_drafter:.1%} of the drafter's {self.drafter_tokens:,}"
        )


@dataclass(frozen=True, slots=True)
class PromptPair:
    """Token ids of the two prompts, each in its model's own; `drafter_ids` is None where nobody drafts."""

    target_ids: tuple[int, ...]
    drafter_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Check:
    """Looked-up tokens that the drafter read in one forward: how many, and how many of them it would have drafted.

    `matched` is the length of the match that they came from.
    """

    matched: int
    looked_up: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """What somebody proposes in one round.

    ids: [k] int64. probs: [k, V], the distribution that each id was drawn from; for a greedy
    drafter its distribution at temperature 1, which the transfer needs. None for a lookup,
    whose distribution is one-hot and has nothing to transfer.
    sureness: the drafter's probability of each id, where the host knows it. forwards: the
    length of each forward that the drafter made. matched: length of a lookup's match. shared: [V]
    bool, the ids that a drafter of another vocabulary can draw; None for all.
    """

    ids: torch.Tensor
    probs: torch.Tensor | None
    sureness: tuple[float, ...] = ()
    forwards: tuple[int, ...] = ()
    checks: tuple[Check, ...] = ()
    matched: int = 0
    shared: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification says: the first `accepted` drafts stand, and `next_id` follows them."""

    accepted: int
    next_id: int


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token. `drafted`: the drafter or a lookup proposed it. `round` counts from 0."""

    id: int
    drafted: bool
    round: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of the target's side. `cached_tokens` of the prompt needed no prefill."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class SourceStats:
    """The rounds of one source of drafts, and how its drafts fared. Counts of tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """What a request cost, and how the drafts fared.

    Times are seconds of wall clock; `draft_s` and `verify_s` are parts of `decode_s`, the
    equations included, and so is `draft_prefill_s` where the drafter reads its prompt only when
    its first draft is asked for (eta = 0, gamma "auto"). `sources` tells the rounds by who
    drafted: "nobody", "lookup" (straight to the target) or "drafter". Of `looked_up` tokens that
    the drafter checked, `looked_up_accepted` became its drafts. `accepted` counts what the target
    accepted, behind a stop string too; `transferred` the emitted tokens whose choice had the
    drafter's transfer (eta > 0 at a position that it drafted). `eta` is the strength that it had,
    chosen where "auto" was asked for, and None without a drafter. It was chosen from `passages_gain` and
    `document_gain`, the nats by which the drafter's passages and the target's document make the
    question more probable; None where nobody asked or it is not known. `context_tokens` counts what was
    searched: the document that the target read, and the passages of a history. `retrieved` holds the
    passages that the drafter read last, those of the document and then those of the history.
    `retrievals` counts the searches for them: one, and those that were made again with the answer so
    far, whether or not they changed anything; their time is in `retrieval_s` and in `decode_s`, that of
    the prompts that they made in `draft_prefill_s`. `left_out` names
    the documents of several that the target's window had no room for. `notes` are sentences about
    everything that was decided for the user: a plain fallback, a cut, a budget that shrank.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    sources: Mapping[DraftSource, SourceStats] = field(default_factory=dict)
    looked_up: int = 0
    looked_up_accepted: int = 0
    transferred: int = 0
    eta: float | None = None
    passages_gain: float | None = None
    document_gain: float | None = None
    drafter_prompt_tokens: int = 0
    drafter_cached_tokens: int = 0
    context_tokens: int = 0
    retrieved: tuple[Chunk, ...] = ()
    retrievals: int = 0
    left_out: tuple[str, ...] = ()
    retrieval_s: float = 0.0
    prefill_s: float = 0.0
    draft_prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    time_to_first_token_s: float = 0.0
    tokens_per_s: float = 0.0
    seed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def acceptance_rate(self) -> float:
        """Accepted drafts over all drafts; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the streamed answer.

    `text` is what became final since the last delta, `events` are the tokens behind it. Where
    there are tools, calls of them come as `tool_calls` and not as text. Only the last delta has
    `finish_reason`, `usage` and `stats`.
    """

    text: str
    events: tuple[TokenEvent, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stats: Stats | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of the tokens behind this piece."""
        return tuple(event.id for event in self.events)


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer: the deltas of a stream, added up.

    `token_ids` are all that were generated, an end-of-sequence id included; `text` is cut
    before a stop string.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    stats: Stats
    tool_calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> Result:
        """Add up a stream that is read to its end; raises `EngineStateError` where the end is missing."""
        texts: list[str] = []
        ids: list[int] = []
        calls: list[ToolCall] = []
        last = Delta("")
        for delta in deltas:
            texts.append(delta.text)
            ids.extend(delta.token_ids)
            calls.extend(delta.tool_calls)
            last = delta
        if last.finish_reason is None or last.usage is None or last.stats is None:
            raise EngineStateError("a stream must be read to its end to be added up; it was closed before")
        return cls("".join(texts), tuple(ids), last.finish_reason, last.usage, last.stats, tuple(calls))
