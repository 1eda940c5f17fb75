"""How sure a mean is: bootstrap intervals over documents and over questions, and quartiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rapid_core.extras import require

RESAMPLES = 10_000
LEVEL = 0.95
# Below it there are too few documents to tell how much they differ, and questions are drawn in their place.
FEWEST_DOCUMENTS = 8
# Draws that are held at once.
BLOCK = 2_000_000
# Where resampled means differ by rounding alone, their quantiles must not.
DIGITS = 12


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which values a mean lies, at `LEVEL`."""

    low: float
    high: float

    @property
    def leaves_out_zero(self) -> bool:
        """Whether all of it is on one side of zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over questions, and how sure it is.

    by_documents: documents were drawn, each with all its questions, since questions of one document
    hang together. by_questions: each question was drawn by itself, which makes the interval too
    narrow where they do. None where there is one document, or one question.
    """

    value: float
    questions: int
    documents: int
    by_documents: Interval | None
    by_questions: Interval | None

    @property
    def drew_documents(self) -> bool:
        """Whether `interval` is the one over documents: where there are `FEWEST_DOCUMENTS`."""
        return self.documents >= FEWEST_DOCUMENTS

    @property
    def interval(self) -> Interval | None:
        """The one to read."""
        return self.by_documents if self.drew_documents else self.by_questions


@dataclass(frozen=True, slots=True)
class Quartiles:
    """The median, the quartiles, and of how many values they are."""

    median: float
    low: float
    high: float
    count: int


def quartiles(values: Iterable[float]) -> Quartiles | None:
    """Of the values that are finite; None where there is none."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return None
    low, median, high = np.quantile(known, (0.25, 0.5, 0.75))
    return Quartiles(float(median), float(low), float(high), len(known))


def bootstrap(values: NDArray[np.float64], documents: Sequence[str], *, seed: int) -> list[Estimate]:
    """The mean of each column, with its percentile bootstrap intervals.

    values: [questions, columns], finite. documents: whose question each row is. All columns are
    resampled alike, so that a column of differences gives the paired bootstrap. The result depends
    on the order of the rows, and on nothing else but seed and values.
    """
    # numbers: [questions], of the row's document.
    names, numbers = np.unique(np.asarray(documents), return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, numbers, values)
    over_documents = _intervals(sums, np.bincount(numbers).astype(float), seed)
    over_questions = _intervals(values, np.ones(len(values)), seed)
    return [
        Estimate(
            value=float(np.round(mean, DIGITS)) + 0.0,
            questions=len(values),
            documents=len(names),
            by_documents=own_documents,
            by_questions=own_questions,
        )
        for mean, own_documents, own_questions in zip(values.mean(axis=0), over_documents, over_questions, strict=True)
    ]


def _intervals(sums: NDArray[np.float64], sizes: NDArray[np.float64], seed: int) -> list[Interval | None]:
    """An interval a column, of clusters with these sums [clusters, columns] and sizes [clusters]."""
    clusters, columns = sums.shape
    if clusters < 2:
        return [None] * columns
    means = np.empty((RESAMPLES, columns))
    random = np.random.default_rng(seed)
    step = max(1, BLOCK // clusters)
    for start in range(0, RESAMPLES, step):
        rows = min(step, RESAMPLES - start)
        drawn = random.integers(clusters, size=(rows, clusters)) + clusters * np.arange(rows)[:, None]
        # times: [rows, clusters], how often each was drawn.
        times = np.bincount(drawn.ravel(), minlength=rows * clusters).reshape(rows, clusters).astype(float)
        means[start : start + rows] = (times @ sums) / (times @ sizes)[:, None]
    outside = tail(clusters)
    # Adding zero makes -0.0 a zero.
    low, high = np.round(np.quantile(means, (outside, 1 - outside), axis=0), DIGITS) + 0.0
    return [Interval(float(each_low), float(each_high)) for each_low, each_high in zip(low, high, strict=True)]


def tail(clusters: int) -> float:
    """The share of the resampled means that is left out on each side.

    Percentile intervals of few values are too narrow; Hesterberg's expanded ones (2015, "What
    teachers should know about the bootstrap", 3.3) reach as far as those of Student's t do for a mean:
    0.025 for many, 0.009 for 10.
    """
    quantile = float(require("scipy.stats", extra="eval").t.ppf((1 + LEVEL) / 2, clusters - 1))
    return NormalDist().cdf(-math.sqrt(clusters / (clusters - 1)) * quantile)
