"""Medians, spreads and paired ratios of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from rapid_core.bench.records import Run

# What the others are compared with, run by run.
REFERENCES = ("generate", "prompt-lookup", "plain")


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and the smallest and largest value."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFigures:
    """What the runs of one method at one length say; None where nothing was to be measured.

    over: tokens/s over that of a reference, of runs of the same prompt and repeat.
    worst_prompt: the same, the smallest of the prompts' medians. of_limit: tokens/s over what
    the memory bandwidth allows plain decoding. transferred: share of the tokens that had the
    transfer. differing: tokens of all prompts' first answers that differ from those of
    `compared_with`, out of `compared`.
    """

    runs: int
    tokens_per_s: Spread | None
    over: dict[str, Spread]
    worst_prompt: dict[str, float]
    of_limit: float | None
    acceptance: float | None
    tokens_per_round: float
    transferred: float
    compared_with: str | None
    compared: int
    differing: int
    first_difference: int | None


@dataclass(frozen=True, slots=True)
class Limit:
    """What memory bandwidth allows plain decoding: every weight and the whole cache once a token.

    weights: bytes. cache: bytes a token. bandwidth: bytes a second.
    """

    weights: int
    cache: int
    bandwidth: float

    def tokens_per_s(self, context_tokens: float) -> float:
        """The most tokens a second behind so many tokens."""
        return self.bandwidth / (self.weights + self.cache * context_tokens)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median and range of the values that were measured; None where none was."""
    known = [value for value in values if value is not None]
    return Spread(median(known), min(known), max(known)) if known else None


def ratios(runs: Iterable[Run], method: str, reference: str) -> dict[tuple[int, str, int], list[float]]:
    """Speed of a method over that of another in runs of one prompt and repeat, by request."""
    speeds = {(run.method, run.repeat, run.request): run.answer.tokens_per_s for run in runs}
    found: dict[tuple[int, str, int], list[float]] = {}
    for (name, repeat, request), speed in speeds.items():
        other = speeds.get((reference, repeat, request))
        if name == method and speed is not None and other is not None:
            found.setdefault(request, []).append(speed / other)
    return found


def summarise(runs: Sequence[Run], method: str, limit: Limit) -> MethodFigures | None:
    """The figures of one method in runs of one length; None where it has no run."""
    own = [run for run in runs if run.method == method]
    if not own:
        return None
    paired = {name: ratios(runs, method, name) for name in REFERENCES if name != method}
    over = {name: spread(value for values in found.values() for value in values) for name, found in paired.items()}
    reference = next((name for name in ("generate", "plain") if any(run.method == name for run in runs)), None)
    compared, differing, first = _differences(runs, method, reference)
    drafted = sum(run.answer.drafted or 0 for run in own)
    limited = spread(
        None
        if (speed := run.answer.tokens_per_s) is None
        else speed / limit.tokens_per_s(run.prompt_tokens + len(run.answer.ids) / 2)
        for run in own
    )
    return MethodFigures(
        runs=len(own),
        tokens_per_s=spread(run.answer.tokens_per_s for run in own),
        over={name: value for name, value in over.items() if value is not None},
        worst_prompt={name: min(map(median, found.values())) for name, found in paired.items() if found},
        of_limit=limited.median if limited else None,
        acceptance=sum(run.answer.accepted or 0 for run in own) / drafted if drafted else None,
        tokens_per_round=sum(len(run.answer.ids) for run in own) / sum(run.answer.rounds for run in own),
        transferred=sum(run.answer.transferred for run in own) / sum(len(run.answer.ids) for run in own),
        compared_with=reference,
        compared=compared,
        differing=differing,
        first_difference=first,
    )


def by_kind(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each kind of prompt, in the order in which the kinds came."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    return kinds


def _differences(runs: Sequence[Run], method: str, reference: str | None) -> tuple[int, int, int | None]:
    """Tokens compared, tokens that differ, and the first position where one does."""
    compared, differing, earliest = 0, 0, None
    theirs = _first_answers(runs, reference)
    for request, ids in _first_answers(runs, method).items():
        other = theirs.get(request, ())
        positions = [i for i, (left, right) in enumerate(zip(ids, other, strict=False)) if left != right]
        compared += min(len(ids), len(other))
        differing += len(positions)
        if positions:
            earliest = positions[0] if earliest is None else min(earliest, positions[0])
    return compared, differing, earliest


def _first_answers(runs: Sequence[Run], method: str | None) -> dict[tuple[int, str, int], tuple[int, ...]]:
    """The answer of the first repeat to each request."""
    return {run.request: run.answer.ids for run in reversed(runs) if run.method == method}
