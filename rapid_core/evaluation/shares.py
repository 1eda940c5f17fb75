"""Who gets which questions right: RAPID alone, or others, too; and whose answers are the baseline's to the letter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rapid_core.evaluation.methods import METHODS
from rapid_core.evaluation.pairing import Compared
from rapid_core.evaluation.records import Setting
from rapid_core.evaluation.scores import has_score, scored
from rapid_core.evaluation.statistics import Estimate, bootstrap

RAPID_METHODS = tuple(name for name, method in METHODS.items() if method.transfers)
# Methods whose answers are the target's own; others are where eta is 0.
LOSSLESS_METHODS = tuple(name for name, method in METHODS.items() if method.is_lossless)
# From which score an answer is right. ROUGE and judges know no right and wrong.
THRESHOLDS = {"exact_match": 1.0, "f1": 0.5}

# Whether lc, rag and RAPID are right: all there is.
CELLS = [(lc, rag, rapid) for lc in (False, True) for rag in (False, True) for rapid in (False, True)]


def threshold(metric: str) -> float | None:
    """From which value of a metric an answer counts as right; None where no value says so."""
    return 1.0 if metric.startswith("accuracy") else THRESHOLDS.get(metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Questions by who got them right, the paper's Figure 2.

    shares: of all questions, by whether (lc, rag, rapid) were right; they add up to 1.
    """

    rapid: Setting
    rag: Setting
    questions: int
    shares: Mapping[tuple[bool, bool, bool], Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """How many answers of a setting that is lossless at temperature 0 have the baseline's text."""

    setting: Setting
    baseline: Setting
    questions: int
    equal: int


def partitions(compared: Compared, metric: str, *, seed: int) -> list[Partition]:
    """One for each setting of RAPID with lc and rag beside it, over the questions with a score of every setting."""
    right = threshold(metric)
    within = scored(compared, metric)
    found = []
    for rapid in compared.settings:
        lc, rag = compared.partner("lc", rapid), compared.partner("rag", rapid)
        if right is None or rapid.method not in RAPID_METHODS or lc is None or rag is None:
            continue
        own = [compared.answers[setting] for setting in (lc, rag, rapid)]
        # A setting without any score of the metric was not waited for: it may have answers all the same.
        first = [answers.get(within[0].question) for answers in own] if within else [None]
        if any(answer is None or not has_score(answer, metric) for answer in first):
            continue
        # correct: [questions, 3], whether lc, rag and RAPID were right.
        correct = np.array([[answers[a.question].scores[metric] >= right for answers in own] for a in within])
        columns = np.stack([(correct == cell).all(axis=1) for cell in CELLS], axis=1).astype(float)
        shares = bootstrap(columns, [answer.document for answer in within], seed=seed)
        found.append(
            Partition(rapid=rapid, rag=rag, questions=len(within), shares=dict(zip(CELLS, shares, strict=True)))
        )
    return found


def equalities(compared: Compared, baselines: Mapping[Setting, Setting]) -> list[Equality]:
    """One for each setting that is lossless at temperature 0 and shares answered questions with its baseline."""
    found = []
    for setting, baseline in baselines.items():
        if setting.method not in LOSSLESS_METHODS and setting.eta != 0:
            continue
        own, others = compared.answers[setting], compared.answers[baseline]
        both = own.keys() & others.keys()
        if both and setting != baseline:
            same = sum(
                (own[question].text, own[question].reasoning) == (others[question].text, others[question].reasoning)
                for question in both
            )
            found.append(Equality(setting=setting, baseline=baseline, questions=len(both), equal=same))
    return found
