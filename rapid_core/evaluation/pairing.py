"""Which answers are compared: those to the same questions, at one length of the context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rapid_core.errors import InputError
from rapid_core.evaluation.methods import METHODS
from rapid_core.evaluation.records import Answer, Setting

# The order in which a reader meets the methods; those that are no more come behind, by name.
_ORDER = tuple(METHODS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The answers of a task at one length of the context.

    settings: in the order of the report. answers: those without an error, by setting and question.
    failed: how often each error ended a setting's answers. asked: all questions.
    """

    context_tokens: int | None
    settings: tuple[Setting, ...]
    answers: Mapping[Setting, Mapping[str, Answer]]
    failed: Mapping[Setting, Mapping[str, int]]
    asked: frozenset[str]

    def shared(self, has: Callable[[Answer], bool] | None = None) -> tuple[Answer, ...]:
        """An answer to each question that every setting answered, in a way that `has` takes.

        A setting with no such answer at all is not waited for. They are sorted by document and question.
        """
        own = [
            {question: answer for question, answer in self.answers[setting].items() if has is None or has(answer)}
            for setting in self.settings
        ]
        own = [answers for answers in own if answers]
        questions = set.intersection(*map(set, own)) if own else set()
        return tuple(sorted((own[0][question] for question in questions), key=lambda a: (a.document, a.question)))

    @property
    def missing(self) -> dict[Setting, int]:
        """How many of the asked questions have no record of a setting: an interrupted run, say."""
        there = {
            setting: len(self.answers[setting]) + sum(self.failed.get(setting, {}).values())
            for setting in self.settings
        }
        return {setting: len(self.asked) - count for setting, count in there.items() if count < len(self.asked)}

    def partner(self, method: str, setting: Setting) -> Setting | None:
        """The setting of `method` beside `setting`; None where there is none, or no telling which.

        Of several it is the one that reads the same passages, and drafts as many tokens where it drafts.
        """
        others = [other for other in self.settings if other.method == method]
        if len(others) > 1:
            others = [
                other
                for other in others
                if other.retrieved_tokens == setting.retrieved_tokens
                and other.unrelated == setting.unrelated
                and other.gamma in {None, setting.gamma}
            ]
        return others[0] if len(others) == 1 else None


def compared(answers: Iterable[Answer]) -> dict[str, list[Compared]]:
    """The answers of each task, by the length of the context, the whole one last.

    Raises `InputError` where a question has two answers of one setting.
    """
    found: dict[str, dict[int | None, list[Answer]]] = {}
    for answer in answers:
        found.setdefault(answer.task, {}).setdefault(answer.setting.context_tokens, []).append(answer)
    return {
        task: [_compared(length, lengths[length]) for length in sorted(lengths, key=place)]
        for task, lengths in sorted(found.items())
    }


def order(setting: Setting) -> tuple[object, ...]:
    """By method, then by each option."""
    method = _ORDER.index(setting.method) if setting.method in METHODS else len(METHODS)
    options = (setting.eta, setting.gamma, setting.retrieved_tokens, setting.context_tokens)
    return method, setting.method, setting.unrelated, *map(place, options)


def place(value: float | str | None) -> tuple[int, float]:
    """Where a value of an option stands: numbers first, then words, and last what is left to the engine."""
    if value is None:
        return 2, 0.0
    return (1, 0.0) if isinstance(value, str) else (0, float(value))


def _compared(length: int | None, answers: list[Answer]) -> Compared:
    settings = tuple(sorted({answer.setting for answer in answers}, key=order))
    by_setting: dict[Setting, dict[str, Answer]] = {setting: {} for setting in settings}
    failed: dict[Setting, Counter[str]] = {setting: Counter() for setting in settings}
    seen = set()
    for answer in answers:
        place = (answer.setting, answer.question)
        if place in seen:
            raise InputError(
                f"a setting answers a question once, and {answer.setting.label!r} answered {answer.question!r} "
                "twice; take one of the two out"
            )
        seen.add(place)
        if answer.error:
            failed[answer.setting][answer.error] += 1
        else:
            by_setting[answer.setting][answer.question] = answer
    return Compared(
        context_tokens=length,
        settings=settings,
        answers=by_setting,
        failed={setting: dict(sorted(errors.items())) for setting, errors in failed.items() if errors},
        asked=frozenset(answer.question for answer in answers),
    )
