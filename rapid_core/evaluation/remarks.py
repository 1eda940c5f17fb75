"""What the records of a comparison cannot tell, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rapid_core.evaluation.pairing import Compared
from rapid_core.evaluation.records import Answer, Setting
from rapid_core.evaluation.scores import scored
from rapid_core.evaluation.shares import RAPID_METHODS, threshold
from rapid_core.evaluation.speed import Measured
from rapid_core.evaluation.statistics import FEWEST_DOCUMENTS


def remarks(
    found: Compared,
    titles: Mapping[str, str],
    measured: Measured,
    baselines: Mapping[Setting, Setting],
    baseline: str,
) -> Iterator[str]:
    """Sentences about settings, questions, scores and times that are not there."""
    yield from _of_settings(found, baselines, baseline)
    yield from _of_questions(scored(found, next(iter(titles), "")))
    yield from _of_scores(found, titles)
    yield from _of_right_answers(found, titles)
    unmeasured = sum(
        (question, setting) not in measured for setting in found.settings for question in found.answers[setting]
    )
    if unmeasured:
        yield f"Answers without a measurement, which no figure of speed counts: {unmeasured:,}."


def _of_settings(found: Compared, baselines: Mapping[Setting, Setting], baseline: str) -> Iterator[str]:
    if silent := [setting.label for setting in found.settings if not found.answers[setting]]:
        yield f"No answers at all, and so no figures, of: {'; '.join(silent)}."
    alone = [setting.label for setting in found.settings if setting.method != baseline and setting not in baselines]
    if alone:
        yield (
            f"There is no single setting of {baseline} to compare with, and so no difference and no speed-up, for: "
            f"{'; '.join(alone)}."
        )


def _of_questions(within: tuple[Answer, ...]) -> Iterator[str]:
    documents = len({answer.document for answer in within})
    if not within:
        yield "No question has a score of every setting: nothing can be compared."
    elif len(within) == 1:
        yield "There is one question: how sure a score is cannot be told."
    elif documents < FEWEST_DOCUMENTS:
        yield (
            f"The questions are about {documents} document{'s' * (documents > 1)}, too few to tell how documents "
            "differ: intervals are over questions, and may be too narrow."
        )


def _of_scores(found: Compared, titles: Mapping[str, str]) -> Iterator[str]:
    answered = len(found.shared())
    every = [answer for answers in found.answers.values() for answer in answers.values()]
    for metric, title in titles.items():
        if (counted := len(scored(found, metric))) < answered:
            yield (
                f"In {title} {counted:,} of the {answered:,} questions count that all answered: the others have no "
                "score of some setting."
            )
        if broken := sum(not math.isfinite(answer.scores.get(metric, 0.0)) for answer in every):
            yield f"In {title} {broken:,} scores are no numbers, and do not count."


def _of_right_answers(found: Compared, titles: Mapping[str, str]) -> Iterator[str]:
    rapids = [setting for setting in found.settings if setting.method in RAPID_METHODS]
    if not rapids:
        return
    main, title = next(iter(titles.items()), ("", "no metric"))
    if threshold(main) is None:
        yield f"What only RAPID gets right cannot be told: no value of {title} says that an answer is right."
    for method in ("lc", "rag"):
        if lonely := [setting.label for setting in rapids if found.partner(method, setting) is None]:
            yield (
                f"What only RAPID gets right cannot be told without one setting of {method} beside it, for: "
                f"{'; '.join(lonely)}."
            )
