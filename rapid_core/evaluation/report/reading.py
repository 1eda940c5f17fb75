"""How to read the figures, in plain words."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_core.evaluation.report.wording import BY_QUESTIONS, HIGHER, LOWER, NOTHING
from rapid_core.evaluation.statistics import FEWEST_DOCUMENTS, RESAMPLES
from rapid_core.evaluation.summary import Summary


def reading(summary: Summary) -> Iterator[str]:
    """A paragraph each: scores, intervals, the bootstrap, speed."""
    baseline = summary.baseline
    yield (
        "Scores are times 100. A table counts only the questions that every setting in it answered, so that all rows "
        f"are about the same questions; a difference to {baseline} is taken question by question."
    )
    yield (
        "The brackets behind a score hold its 95 % interval: had other questions of this kind been asked, the score "
        "would be expected in there. It says nothing about other models or other kinds of text. Where the interval of "
        "a difference holds 0, these questions do not tell which of the two is better. "
        f"{HIGHER} and {LOWER} mark differences whose interval leaves 0 out; where there is no difference at all, one "
        "of twenty gets such a mark by chance."
    )
    yield (
        f"Intervals come from the bootstrap: as many documents as there are, are drawn with repetition, {RESAMPLES:,} "
        "times, each with all its questions, since questions about one document are not independent. Percentiles are "
        f"widened for few documents (Hesterberg, 2015); the seed is {summary.seed}. With fewer than {FEWEST_DOCUMENTS} "
        f"documents questions are drawn instead: {BY_QUESTIONS} marks these intervals, which may be too narrow. The "
        "tables of a single metric have both. Where all questions have the same score the interval has no width, and "
        "says little."
    )
    yield (
        "tokens/s is all tokens over all seconds of decoding, without the prefill. A speed-up is that of a question "
        f"over the same question with {baseline}: the median, and in brackets the quartiles, between which half of "
        "the questions lie. They tell how questions differ, not how sure the median is. Answers of a few tokens tell "
        "little about speed. The seconds in all are those of a question that is the only one about its document; in "
        "the run a document is read once for all its questions."
    )
    yield f"A {NOTHING} stands where something cannot be told; the sentences above the tables say why."
