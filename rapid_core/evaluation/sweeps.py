"""Curves over one option, all others being equal: the paper's Figures 1 and 3, and its Table 3."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from rapid_core.evaluation.pairing import order, place
from rapid_core.evaluation.records import Setting

SweptOption = Literal["eta", "gamma", "retrieved_tokens", "context_tokens"]


@dataclass(frozen=True, slots=True)
class Curve:
    """Settings that differ in one option alone.

    rest: what they have in common, the option being None. settings: by the value of the option, as
    it is written.
    """

    rest: Setting
    settings: dict[str, Setting]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The curves of one option. values: of all curves, in the order of the axis."""

    option: SweptOption
    values: tuple[str, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class Unrelated:
    """A setting whose drafter read passages of another document, and the one that differs in this alone."""

    unrelated: Setting
    related: Setting | None


def sweeps(settings: Iterable[Setting]) -> list[Sweep]:
    """One for each option that has two values or more in settings that are otherwise the same."""
    ordered = sorted(settings, key=order)
    return [found for option in get_args(SweptOption) if (found := _sweep(option, ordered)) is not None]


def unrelated(settings: Iterable[Setting]) -> list[Unrelated]:
    """The settings with unrelated passages, each beside its other one."""
    ordered = sorted(settings, key=order)
    pairs = ((setting, replace(setting, unrelated=False)) for setting in ordered if setting.unrelated)
    return [Unrelated(setting, other if other in ordered else None) for setting, other in pairs]


def _sweep(option: SweptOption, settings: list[Setting]) -> Sweep | None:
    curves: dict[Setting, dict[str, Setting]] = {}
    places: dict[str, tuple[int, float]] = {}
    for setting in settings:
        named = _as_rapid(setting) if option == "eta" else setting
        value = getattr(named, option)
        written = _written(option, value)
        places[written] = place(value)
        curves.setdefault(_changed(named, option, None), {}).setdefault(written, setting)
    swept = {rest: found for rest, found in curves.items() if len(found) > 1}
    if not swept:
        return None
    values = sorted({value for found in swept.values() for value in found}, key=places.__getitem__)
    return Sweep(
        option,
        tuple(values),
        tuple(
            Curve(rest, {value: found[value] for value in values if value in found}) for rest, found in swept.items()
        ),
    )


def _changed(setting: Setting, option: SweptOption, value: Any) -> Setting:
    changed: dict[str, Any] = {option: value}
    return replace(setting, **changed)


def _as_rapid(setting: Setting) -> Setting:
    """Without transfer RAPID is `sd`: the first point of its curve over eta."""
    return replace(setting, method="rapid", eta=0.0) if setting.method == "sd" else setting


def _written(option: SweptOption, value: float | str | None) -> str:
    if value is None:
        return "all of it" if option == "context_tokens" else "engine's own"
    return value if isinstance(value, str) else f"{value:,g}" if option == "eta" else f"{value:,}"
