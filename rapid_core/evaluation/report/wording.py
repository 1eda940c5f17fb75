"""How figures and settings are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from rapid_core.evaluation.records import Setting
from rapid_core.evaluation.statistics import Estimate, Interval, Quartiles

NOTHING = "-"
# Beside an interval: it was made by drawing questions, or leaves out zero.
BY_QUESTIONS = "†"
HIGHER, LOWER = "▲", "▼"

Label = Callable[[Setting], str]


def labels(settings: Iterable[Setting]) -> Label:
    """What settings are called in a report: without a gamma that they all have."""
    gammas = {setting.gamma for setting in settings if setting.gamma is not None}

    def label(setting: Setting) -> str:
        return (setting if len(gammas) > 1 else replace(setting, gamma=None)).label

    return label


def without_length(label: Label) -> Label:
    """The same where the length of the context is told beside it."""
    return lambda setting: label(replace(setting, context_tokens=None))


def points(value: float, *, sign: bool = False) -> str:
    """A score times 100, with one decimal."""
    # "z" is for no minus before a zero.
    return f"{100 * value:+z.1f}" if sign else f"{100 * value:z.1f}"


def between(interval: Interval | None, *, sign: bool = False) -> str:
    """An interval of scores."""
    return NOTHING if interval is None else f"[{points(interval.low, sign=sign)}, {points(interval.high, sign=sign)}]"


def estimate(found: Estimate | None) -> str:
    """A mean and the interval to read."""
    if found is None:
        return NOTHING
    return f"{points(found.value)} {between(found.interval)}{_mark(found)}"


def difference(found: Estimate | None) -> str:
    """A difference with its sign and interval, and an arrow where that leaves out zero."""
    if found is None:
        return NOTHING
    return f"{points(found.value, sign=True)} {between(found.interval, sign=True)}{_mark(found)}{arrow(found.interval)}"


def arrow(interval: Interval | None) -> str:
    """Which side of zero an interval is on."""
    if interval is None or not interval.leaves_out_zero:
        return ""
    return f" {HIGHER if interval.low > 0 else LOWER}"


def _mark(found: Estimate) -> str:
    return "" if found.interval is None or found.drew_documents else BY_QUESTIONS


def number(value: float | None, digits: int) -> str:
    """With so many decimals."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """In percent."""
    return NOTHING if value is None else f"{value:.1%}"


def spread(found: Quartiles | None, digits: int) -> str:
    """A median and the quartiles around it."""
    if found is None:
        return NOTHING
    return f"{number(found.median, digits)} ({number(found.low, digits)} to {number(found.high, digits)})"


def capital(text: str) -> str:
    """With a capital at the beginning."""
    return text[:1].upper() + text[1:]


def counted(number: int, noun: str) -> str:
    """ "1 question", "2 questions"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
