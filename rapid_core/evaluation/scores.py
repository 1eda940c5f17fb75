"""How good the answers are: the mean of a metric for every setting, and its difference to the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rapid_core.evaluation.pairing import Compared
from rapid_core.evaluation.records import Answer, Setting
from rapid_core.evaluation.statistics import Estimate, bootstrap


@dataclass(frozen=True, slots=True)
class Score:
    """Of one setting, 0 to 1. difference: to the baseline over the same questions; None without one."""

    mean: Estimate
    difference: Estimate | None


def scores(
    compared: Compared, metric: str, baselines: Mapping[Setting, Setting], within: Sequence[Answer], *, seed: int
) -> dict[Setting, Score]:
    """The scores of each setting that has this metric, over the questions of `within`."""
    settings = [setting for setting in compared.settings if _has_any(compared, setting, metric)]
    if not within or not settings:
        return {}
    against = {setting: baselines[setting] for setting in settings if baselines.get(setting) in settings}
    values = {setting: _values(compared, setting, metric, within) for setting in settings}
    columns = [values[setting] for setting in settings]
    columns += [values[setting] - values[baseline] for setting, baseline in against.items()]
    found = bootstrap(np.stack(columns, axis=1), [answer.document for answer in within], seed=seed)
    differences = dict(zip(against, found[len(settings) :], strict=True))
    return {
        setting: Score(mean, differences.get(setting))
        for setting, mean in zip(settings, found[: len(settings)], strict=True)
    }


def scored(compared: Compared, metric: str) -> tuple[Answer, ...]:
    """An answer to each question for which every setting that has this metric has it."""
    return compared.shared(lambda answer: has_score(answer, metric))


def has_score(answer: Answer, metric: str) -> bool:
    """Whether the metric was computed, and is a number."""
    return math.isfinite(answer.scores.get(metric, math.nan))


def _has_any(compared: Compared, setting: Setting, metric: str) -> bool:
    return any(has_score(answer, metric) for answer in compared.answers[setting].values())


def _values(compared: Compared, setting: Setting, metric: str, within: Sequence[Answer]) -> NDArray[np.float64]:
    answers = compared.answers[setting]
    return np.array([answers[asked.question].scores[metric] for asked in within], dtype=np.float64)
