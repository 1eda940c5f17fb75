"""How fast a setting is: seconds, tokens a second, what drafts bring, and ratios to the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rapid_core.evaluation.pairing import Compared
from rapid_core.evaluation.records import Answer, Measurement, Setting
from rapid_core.evaluation.statistics import Quartiles, quartiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Of one setting, over the questions that all settings answered and that were measured for all.

    Seconds and tokens are of one question. total_s: its retrieval, prefills and decoding, as if it
    were the only one about its document. pooled: all tokens over all seconds of decoding, tokens/s.
    over_baseline: ratio of tokens/s to the baseline's, question by question. acceptance: accepted
    drafts over all. What cannot be told is None: the speed of no tokens, the acceptance without drafts.
    """

    questions: int
    retrieval_s: Quartiles | None
    prefill_s: Quartiles | None
    draft_prefill_s: Quartiles | None
    decode_s: Quartiles | None
    total_s: Quartiles | None
    tokens: Quartiles | None
    tokens_per_s: Quartiles | None
    pooled: float | None
    over_baseline: Quartiles | None
    acceptance: float | None
    tokens_per_round: float | None


Measured = Mapping[tuple[str, Setting], Measurement]


def usable(measurement: Measurement) -> bool:
    """Whether all of its seconds are numbers, and none is below zero."""
    return all(math.isfinite(seconds) and seconds >= 0 for seconds in _seconds(measurement))


def speeds(compared: Compared, measured: Measured, baselines: Mapping[Setting, Setting]) -> dict[Setting, Speed]:
    """Of each setting that has measurements."""
    within = compared.shared()
    own = {setting: _of(setting, within, measured) for setting in compared.settings}
    own = {setting: found for setting, found in own.items() if found}
    shared = sorted(set.intersection(*map(set, own.values()))) if own else []
    return {
        setting: _speed(
            [found[question] for question in shared],
            [own[baselines[setting]][question] for question in shared] if baselines.get(setting) in own else None,
        )
        for setting, found in own.items()
    }


def _of(setting: Setting, within: Sequence[Answer], measured: Measured) -> dict[str, Measurement]:
    found = {answer.question: measured.get((answer.question, setting)) for answer in within}
    return {question: measurement for question, measurement in found.items() if measurement is not None}


def _speed(measured: Sequence[Measurement], baseline: Sequence[Measurement] | None) -> Speed:
    return Speed(
        questions=len(measured),
        retrieval_s=quartiles(each.retrieval_s for each in measured),
        prefill_s=quartiles(each.prefill_s for each in measured),
        draft_prefill_s=quartiles(each.draft_prefill_s for each in measured),
        decode_s=quartiles(each.decode_s for each in measured),
        total_s=quartiles(math.fsum(_seconds(each)) for each in measured),
        tokens=quartiles(each.tokens for each in measured),
        tokens_per_s=quartiles(map(tokens_per_s, measured)),
        pooled=_ratio((each.tokens for each in measured), (each.decode_s for each in measured)),
        over_baseline=None if baseline is None else quartiles(map(_over, measured, baseline)),
        acceptance=_ratio((each.accepted for each in measured), (each.drafted for each in measured)),
        tokens_per_round=_ratio((each.tokens for each in measured), (each.rounds for each in measured)),
    )


def tokens_per_s(measurement: Measurement) -> float:
    """Tokens over seconds of decoding; NaN where there is none of either."""
    known = measurement.tokens > 0 and measurement.decode_s > 0
    return measurement.tokens / measurement.decode_s if known else math.nan


def _over(measurement: Measurement, baseline: Measurement) -> float:
    return tokens_per_s(measurement) / tokens_per_s(baseline)


def _ratio(over: Iterable[float], under: Iterable[float]) -> float | None:
    divisor = math.fsum(under)
    return math.fsum(over) / divisor if divisor else None


def _seconds(measurement: Measurement) -> tuple[float, float, float, float]:
    return measurement.retrieval_s, measurement.prefill_s, measurement.draft_prefill_s, measurement.decode_s
